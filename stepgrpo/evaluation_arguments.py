"""The arguments of `stepgrpo evaluate`, from a YAML file and the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepgrpo.arguments import parse
from stepgrpo.rewards.plan import PLAN_KEY

PROG = "stepgrpo evaluate"
DTYPES = ("auto", "bfloat16", "float16", "float32")
_TEXTS = ("data", "out", "model", "gguf_file", "split", "template", "plan_key", "gt_field", "device")
_LEAST = {"n": 1, "max_plan_steps": 1, "examples": 0, "samples": 0, "max_new_tokens": 1, "batch_size": 1}
_OPTIONAL = ("model", "gguf_file", "n", "max_plan_steps", "template", "gt_field", "device")
_EPILOG = """All of these can stand in a YAML file, which --config FILE names; what is given here as well goes before. With
--config_file FILE (one of accelerate_configs/) or --num_processes N, all runs under `accelerate launch`. See
docs/evaluate.md."""


def _option(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(kw_only=True)
class EvaluateArguments:
    """
    Arguments of an evaluation.

    Parameters:
        data (`str`):
            `household`, `alfred:PATH`, another source of docs/data.md, or the path of a JSON-lines file whose rows have a
            `prompt`.
        out (`str`):
            Directory to write `metrics.json` and `completions.jsonl` to.
        model (`str`, *optional*):
            Directory of a model or of a LoRA adapter, a hub id, or `smollm2`. Needed unless `completions` is given.
        completions (`list[str]`, *optional*):
            Files of completions to measure, instead of writing some.
        gguf_file (`str`, *optional*):
            Name of the GGUF file in the directory of the model, or of an adapter's base.
        dtype (`str`, *optional*, defaults to `"auto"`):
            Of the weights: `auto` (the saved one), `bfloat16`, `float16` or `float32`.
        split (`str`, *optional*, defaults to `"dev"`):
            `train`, `dev` or `test`. A single file has no splits.
        n (`int`, *optional*, defaults to `64`):
            How many rows, at least 1; `null` in YAML for all of a file or folder.
        max_plan_steps (`int`, *optional*):
            Leaves out rows whose ground truth has more steps, and says how many.
        images (`bool`, *optional*, defaults to `True`):
            Whether the model sees the rows' pictures.
        template (`str`, *optional*):
            Of the prompts, a name or a file, instead of the data's own; see docs/data.md.
        examples (`int`, *optional*, defaults to `0`):
            How many tasks of the split train the prompts show, each with its plan; the template must have a place for them.
        samples (`int`, *optional*, defaults to `4`):
            Sampled completions of each row, besides the greedy one, 0 for none.
        max_new_tokens (`int`, *optional*, defaults to `512`):
            At most so many tokens a completion.
        batch_size (`int`, *optional*, defaults to `64`):
            Completions at a time, on each process.
        temperature (`float`, *optional*, defaults to `1.0`), top_p (`float`, *optional*, defaults to `1.0`):
            Of the samples; above 0, and in (0, 1].
        seed (`int`, *optional*, defaults to `0`):
            Of the samples, and of the drawing of rows.
        plan_key (`str`, *optional*, defaults to `"executable_plan"`):
            Key of the list of steps in the completion's JSON.
        gt_field (`str`, *optional*):
            Column of the ground truth; where it is not set, `gt_action_close`, else `ground_truth`.
        device (`str`, *optional*):
            `cpu`, `cuda`, `cuda:1`, ...; where it is not set, the process's GPU, if any.
        quiet (`bool`, *optional*, defaults to `False`):
            No progress bar.
    """

    data: str = field(metadata=_option("household, alfred:PATH, another source of docs/data.md, or a JSON-lines file"))
    out: str = field(metadata=_option("directory to write to"))
    model: str | None = field(
        default=None, metadata=_option("directory of a model or of a LoRA adapter, a hub id, or smollm2")
    )
    completions: list[str] | None = field(
        default=None, metadata=_option("files of completions to measure instead of writing some")
    )
    gguf_file: str | None = field(
        default=None, metadata=_option("name of the GGUF file in the directory of the model, or of an adapter's base")
    )
    dtype: str = field(default="auto", metadata=_option(f"of the weights: {', '.join(DTYPES)}"))
    split: str = field(default="dev", metadata=_option("train, dev or test"))
    n: int | None = field(default=64, metadata=_option("how many rows"))
    max_plan_steps: int | None = field(default=None, metadata=_option("leave out rows with longer ground truths"))
    images: bool = field(
        default=True, metadata=_option("whether the model sees the rows' pictures; --no_images: it does not")
    )
    template: str | None = field(default=None, metadata=_option("of the prompts, a name or a file"))
    examples: int = field(default=0, metadata=_option("how many training tasks the prompts show with their plans"))
    samples: int = field(default=4, metadata=_option("sampled completions per row, besides the greedy one"))
    max_new_tokens: int = field(default=512, metadata=_option("at most so many tokens a completion"))
    batch_size: int = field(default=64, metadata=_option("completions at a time"))
    temperature: float = field(default=1.0, metadata=_option("of the samples"))
    top_p: float = field(default=1.0, metadata=_option("of the samples"))
    seed: int = field(default=0, metadata=_option("of the samples, and of drawing rows"))
    plan_key: str = field(default=PLAN_KEY, metadata=_option("key of the list of steps"))
    gt_field: str | None = field(
        default=None, metadata=_option("column of the ground truth; else gt_action_close, else ground_truth")
    )
    device: str | None = field(default=None, metadata=_option("cpu, cuda, cuda:1, ...; else the process's GPU"))
    quiet: bool = field(default=False, metadata=_option("no progress bar"))

    def __post_init__(self) -> None:
        if isinstance(self.completions, str):
            self.completions = [self.completions]

    def check(self) -> None:
        """Refuses values that cannot be.

        Raises:
            ValueError: for the first such value; names it and what it can be.
        """
        if (self.model is None) == (not self.completions):
            given = "neither" if self.model is None else "both"
            raise ValueError(f"Give either model or completions, a model or what one has written; {given} is given.")
        for name in _TEXTS:
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and not (value is None and name in _OPTIONAL):
                raise ValueError(f"{name}={value!r} must be a text.")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not (_is_whole(value) and value >= least) and not (value is None and name in _OPTIONAL):
                raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")
        if not _is_whole(self.seed):
            raise ValueError(f"seed={self.seed!r} must be a whole number.")
        if not (_is_number(self.temperature) and 0 < self.temperature < float("inf")):
            raise ValueError(f"temperature={self.temperature!r} must be above 0; greedy plans are written anyway.")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p={self.top_p!r} must be in (0, 1].")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} is not a choice. Choose one of: {', '.join(DTYPES)}.")


def parse_arguments(argv: Sequence[str]) -> EvaluateArguments:
    """Reads the command line, and the YAML file that `--config` names.

    Args:
        argv: the options. Names may be written with hyphens or underscores.

    Raises:
        SystemExit: with status 2 and one message if an option or a value cannot be; with 0 after `--help`.
    """
    kind: Any = EvaluateArguments
    description = "Writes plans with a trained model and measures them."
    (arguments,) = parse((kind,), PROG, argv, description=description, epilog=_EPILOG)
    try:
        arguments.check()
    except ValueError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    return arguments


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
