"""Step-level GRPO; plain GRPO with `--step_advantage_w 0`.

accelerate launch [--config_file accelerate_configs/X.yaml] recipes/step_grpo.py --config configs/Y.yaml [--option value ...]
"""

from trl import ModelConfig, TrlParser

from stepgrpo import StepGRPOConfig
from stepgrpo.recipe import RecipeArguments
from stepgrpo.training import train_step_grpo

if __name__ == "__main__":
    train_step_grpo(*TrlParser((RecipeArguments, StepGRPOConfig, ModelConfig)).parse_args_and_config())
