"""Supervised training on ground-truth plans.

accelerate launch [--config_file accelerate_configs/X.yaml] recipes/sft.py --config configs/Y.yaml [--option value ...]
"""

from trl import ModelConfig, SFTConfig, TrlParser

from stepgrpo.recipe import RecipeArguments
from stepgrpo.training import train_sft

if __name__ == "__main__":
    train_sft(*TrlParser((RecipeArguments, SFTConfig, ModelConfig)).parse_args_and_config())
