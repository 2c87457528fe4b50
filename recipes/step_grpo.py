"""Step-level GRPO; plain GRPO with `--step_advantage_w 0`.

accelerate launch [--config_file accelerate_configs/X.yaml] recipes/step_grpo.py --config configs/Y.yaml [--option value ...]
"""

from stepgrpo.arguments import parse_recipe
from stepgrpo.training import train_step_grpo

if __name__ == "__main__":
    train_step_grpo(*parse_recipe("step_grpo"))
