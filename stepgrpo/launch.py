"""`stepgrpo train`, and what `stepgrpo evaluate` shares with it: `accelerate launch` of a recipe, wherever the package is.

Does what `accelerate launch recipes/RECIPE.py` does in a checkout of the repository.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from stepgrpo.arguments import RECIPES, parse_recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Starts a recipe under `accelerate launch` and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="stepgrpo train",
        description="Train with `accelerate launch`. Options that are not listed go to the recipe, such as --config FILE; its "
        "own are in docs/settings.md, and all of them, with TRL's, in `python -m stepgrpo.launch step_grpo --help`.",
        epilog="Example: stepgrpo train --config_file accelerate_configs/ddp.yaml --config configs/household.yaml",
        allow_abbrev=False,
    )
    parser.add_argument("--recipe", choices=RECIPES, default="step_grpo", help="what to run (default: step_grpo)")
    _add_options(parser)
    args, rest = parser.parse_known_args(argv)
    return start(args.recipe, _given(args), rest)


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options among these that are for `accelerate launch`, and the others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_options(parser)
    args, rest = parser.parse_known_args(argv)
    return _given(args), rest


def start(recipe: str, launcher: Sequence[str], argv: Sequence[str]) -> int:
    """Starts a recipe under `accelerate launch` and returns its exit status.

    Args:
        recipe: one of `RECIPES`, or evaluate.
        launcher: options of `accelerate launch`.
        argv: options of the recipe.
    """
    # Quiet: the recipe's own message stays the last one.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", *launcher]
    command = [*launch, "-m", "stepgrpo.launch", recipe, *argv]
    return subprocess.run(command, check=False).returncode


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config_file", metavar="FILE", help="accelerate's configuration, one of accelerate_configs/")
    parser.add_argument("--num_processes", type=int, help="passed on to accelerate launch")


def _given(args: argparse.Namespace) -> list[str]:
    values = {name: getattr(args, name) for name in ("config_file", "num_processes")}
    return [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]


def run(recipe: str, argv: Sequence[str]) -> int:
    """Runs a recipe in this process and returns the exit status.

    Args:
        recipe: one of `RECIPES`, or evaluate.
        argv: its options.
    """
    if recipe == "evaluate":
        from stepgrpo import evaluation_command

        return evaluation_command.run(argv)
    arguments = parse_recipe(recipe, argv)
    from stepgrpo.training import train_sft, train_step_grpo

    train: Any = {"step_grpo": train_step_grpo, "sft": train_sft}[recipe]
    train(*arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1], sys.argv[2:]))
