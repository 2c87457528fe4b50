"""Supervised training on ground-truth plans.

accelerate launch [--config_file accelerate_configs/X.yaml] recipes/sft.py --config configs/Y.yaml [--option value ...]
"""

from stepgrpo.arguments import parse_recipe
from stepgrpo.training import train_sft

if __name__ == "__main__":
    train_sft(*parse_recipe("sft"))
