"""`stepgrpo train`: `accelerate launch` of a recipe, from wherever the package is installed.

Does what `accelerate launch recipes/RECIPE.py` does in a checkout of the repository.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

RECIPES = ("step_grpo", "sft")


def main(argv: Sequence[str] | None = None) -> int:
    """Starts a recipe under `accelerate launch` and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="stepgrpo train",
        description="Train with `accelerate launch`. Options that are not listed go to the recipe, such as --config FILE.",
        epilog="Example: stepgrpo train --config_file accelerate_configs/ddp.yaml --config configs/household.yaml",
        allow_abbrev=False,
    )
    parser.add_argument("--recipe", choices=RECIPES, default="step_grpo", help="what to run (default: step_grpo)")
    parser.add_argument("--config_file", metavar="FILE", help="accelerate's configuration, one of accelerate_configs/")
    parser.add_argument("--num_processes", type=int, help="passed on to accelerate launch")
    args, rest = parser.parse_known_args(argv)
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    for name in ("config_file", "num_processes"):
        if getattr(args, name) is not None:
            command += [f"--{name}", str(getattr(args, name))]
    return subprocess.run([*command, "-m", "stepgrpo.launch", args.recipe, *rest], check=False).returncode


def run(recipe: str, argv: Sequence[str]) -> None:
    """Runs a recipe in this process.

    Args:
        recipe: one of `RECIPES`.
        argv: its options.
    """
    from trl import ModelConfig, SFTConfig, TrlParser

    from stepgrpo.config import StepGRPOConfig
    from stepgrpo.recipe import RecipeArguments
    from stepgrpo.training import train_sft, train_step_grpo

    config: Any = {"step_grpo": StepGRPOConfig, "sft": SFTConfig}[recipe]
    train: Any = {"step_grpo": train_step_grpo, "sft": train_sft}[recipe]
    types: Any = (RecipeArguments, config, ModelConfig)
    train(*TrlParser(types).parse_args_and_config(list(argv)))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
