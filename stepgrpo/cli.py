"""The command line. Commands import what they need when they run, so that `--help` answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from stepgrpo._version import __version__

# name: module with a `main(argv)`, what it does
COMMANDS = {
    "demo": ("stepgrpo.demo.run", "train a small planner on the household world: GRPO beside step-level GRPO"),
    "prepare": ("stepgrpo.data.convert", "convert a data set to training rows and say what was dropped"),
    "train": ("stepgrpo.launch", "start recipes for training with `accelerate launch`: step_grpo or sft"),
    "doctor": (
        "stepgrpo.doctor.command",
        "find what is wrong with an installation, or with a config before it is trained",
    ),
    "evaluate": ("stepgrpo.evaluation_command", "write plans with a trained model and measure them"),
    "audit": ("stepgrpo.audit.command", "find out whether a teacher tells right steps from wrong ones on your data"),
}


def usage() -> str:
    """The text of `stepgrpo --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: stepgrpo COMMAND [options]",
            "",
            "Step-level credit for GRPO: which step of a plan was right, on the tokens of that step.",
            "",
            *lines,
            "",
            "`stepgrpo COMMAND --help` lists a command's options, `stepgrpo --version` the version.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0, what the command returned, or 2 on an unknown command."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"stepgrpo {__version__}")
        return 0
    if args[0] not in COMMANDS:
        print(f"stepgrpo: no command {args[0]!r}. Choose one of: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    return import_module(COMMANDS[args[0]][0]).main(args[1:]) or 0
