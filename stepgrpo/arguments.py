"""What a recipe is told: the fields of its YAML file and of the command line, which wins."""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

RECIPES = ("step_grpo", "sft")


def argument_types(recipe: str) -> Any:
    """The dataclasses whose fields a recipe has: its own, the trainer's and the model's.

    Args:
        recipe: one of `RECIPES`.
    """
    from trl import ModelConfig, SFTConfig

    from stepgrpo.config import StepGRPOConfig
    from stepgrpo.recipe import RecipeArguments

    return RecipeArguments, {"step_grpo": StepGRPOConfig, "sft": SFTConfig}[recipe], ModelConfig


def parse_recipe(recipe: str, argv: Sequence[str] | None = None) -> Any:
    """Reads a training recipe's arguments: `RecipeArguments`, the trainer's config and TRL's `ModelConfig`.

    Args:
        recipe: one of `RECIPES`.
        argv: see `parse`.

    Raises:
        SystemExit: see `parse`.
    """
    return parse(argument_types(recipe), recipe, argv)


def parse(types: Any, prog: str, argv: Sequence[str] | None = None, **parser_options: Any) -> Any:
    """Reads dataclasses of arguments.

    Args:
        types: the dataclasses.
        prog: what messages begin with.
        argv: `--config FILE` and `--field value ...`; the command line where not given.
        parser_options: for the parser, such as `description`.

    Returns:
        An object of each dataclass.

    Raises:
        SystemExit: with status 2 and one message that names the field, if a field is unknown, a value cannot be, or the file
            cannot be read.
    """
    import yaml
    from trl import TrlParser

    given = list(sys.argv[1:] if argv is None else argv)
    options = [part for text in given for part in (text.split("=", 1) if text.startswith("--config=") else [text])]
    parser = TrlParser(types, prog=prog, allow_abbrev=False, **parser_options)
    # Without the usage, which lists some 250 fields.
    parser.error = functools.partial(_refuse, parser)  # type: ignore[method-assign]
    if options[-1:] == ["--config"]:
        parser.error("argument --config: expected a YAML file")
    known = {name for action in parser._actions for name in (action.dest, *_bare(action.option_strings))} | {"env"}
    try:
        fields = _fields(options[options.index("--config") + 1]) if "--config" in options else []
        if unknown := sorted(set(fields) - known):
            raise ValueError(f"the YAML file has no such field: {_with_guesses(unknown, known)}")
        if "use_cpu" in known - {*fields, *_bare(options)} and _several_on_cpus():
            # accelerate starts the processes and tells none of them that it is not alone, unless it is to use the CPU.
            options += ["--use_cpu", "true"]
        *arguments, rest = parser.parse_args_and_config(options, return_remaining_strings=True)
        if rest:
            names = _bare(text for text in rest if text.startswith("--")) or rest
            raise ValueError(f"no such field: {_with_guesses(names, known)}")
    except (ValueError, OSError, yaml.YAMLError) as error:
        parser.error(str(error))
    return tuple(arguments)


def _several_on_cpus() -> bool:
    import torch

    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.accelerator.is_available()


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    parser.exit(2, f"{parser.prog}: {message}\n")


def _fields(file: str) -> list[str]:
    import yaml

    with open(file, encoding="utf-8") as text:
        config = yaml.safe_load(text)
    if not isinstance(config, dict):
        raise ValueError(f"{file} must have one `field: value` on a line.")
    return [str(name) for name in config]


def _bare(options: Any) -> list[str]:
    return [option.lstrip("-").split("=")[0] for option in options]


def _with_guesses(names: Sequence[str], known: set[str]) -> str:
    said = []
    for name in names:
        near = difflib.get_close_matches(name, sorted(known), n=1)
        said.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return f"{', '.join(said)}. All fields: --help."
