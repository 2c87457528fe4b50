"""Reads a recipe's arguments as its processes will, on a machine that may not be theirs."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stepgrpo.doctor.findings import Report
from stepgrpo.doctor.launch_file import Launch

_OURS = str(Path(__file__).parents[1])


@dataclass
class Run:
    """A run that could be started.

    Attributes:
        name: `step_grpo` or `sft`. recipe, args, model_args: its arguments.
        launch: how it is started.
        rows: its training rows; empty until they are read.
        processing_class: its tokenizer or processor; None until it is loaded, or where it cannot be.
        shape: sizes of the model; None until they are known.
        adapter_failed: whether its adapter cannot be made, so that what is trained is not known.
        longest_prompt: in tokens, with pictures; None until prompts were measured.
        longest_answer: of a true plan, in tokens with the end token; None until plans were measured.
        longest_pictures: how many of a prompt's tokens are pictures', at most.
    """

    name: str
    recipe: Any
    args: Any
    model_args: Any
    launch: Launch
    rows: list[dict[str, Any]] = field(default_factory=list)
    processing_class: Any = None
    shape: Any = None
    adapter_failed: bool = False
    longest_prompt: int | None = None
    longest_answer: int | None = None
    longest_pictures: int = 0

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the processing class."""
        return getattr(self.processing_class, "tokenizer", self.processing_class)


def parse_run(report: Report, recipe: str, argv: Sequence[str], launch: Launch) -> Run | None:
    """Parses a recipe's arguments; adds what is wrong with them.

    Sizes of batches are checked for the launch's number of processes, and `bf16` is allowed without a GPU here, if the launch
    is not for CPUs: the config may be checked where there is none.

    Args:
        report: where to.
        recipe: one of `RECIPES`.
        argv: `--config FILE` and `--field value ...`.
        launch: how it will be started.

    Returns:
        The run, or None if its arguments are refused.
    """
    from stepgrpo.arguments import parse_recipe

    said = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, _as_launched(launch):
        warnings.simplefilter("always")
        try:
            with contextlib.redirect_stderr(said):
                arguments = parse_recipe(recipe, argv)
        except SystemExit:
            message = " ".join(said.getvalue().rpartition(f"{recipe}: ")[2].split())
            report.fail("fields", message or "the arguments are refused", _advice(recipe, argv, message))
            return None
    report.ok("fields", f"{recipe}, {' '.join(argv) or 'no options'}")
    for warning in caught:
        if warning.filename.startswith(_OURS):
            report.warn("fields", warning.message)
    recipe_args, args, model_args = arguments
    return Run(recipe, recipe_args, args, model_args, launch)


def _advice(recipe: str, argv: Sequence[str], message: str) -> str:
    """What may be meant by arguments that a recipe refuses."""
    from stepgrpo.arguments import RECIPES, parse_recipe

    if "no such field" in message:
        for other in RECIPES:
            with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                if other != recipe:
                    parse_recipe(other, argv)
                    return f"the arguments are those of --recipe {other}"
    if "use_cpu" in message:
        return "to check a run for another machine, give its --config_file, or --gpu_memory"
    return ""


@contextlib.contextmanager
def _as_launched(launch: Launch) -> Iterator[None]:
    import torch
    from transformers import TrainingArguments

    patches: list[Any] = [patch.object(TrainingArguments, "world_size", property(lambda _: launch.processes))]
    if not launch.cpu and not torch.accelerator.is_available():
        patches.append(patch("transformers.training_args.is_torch_bf16_gpu_available", lambda: True))
    with contextlib.ExitStack() as stack:
        for change in patches:
            stack.enter_context(change)
        yield


def check_batches(report: Report, run: Run) -> None:
    """Adds how many completions and prompts an update has. That they fit was checked with the fields."""
    args, processes = run.args, run.launch.processes
    rows = args.per_device_train_batch_size * processes * args.gradient_accumulation_steps
    factors = (
        f"{args.per_device_train_batch_size} rows",
        f"{processes} process(es)",
        f"{args.gradient_accumulation_steps} accumulated",
    )
    made = " x ".join(factors)
    if run.name == "sft":
        report.ok("batch", f"{made} = {rows} rows an update")
        return
    at_once, group = args.generation_batch_size, args.num_generations
    report.ok("batch", f"{made} = {rows} completions an update")
    report.ok(
        "generated at once",
        f"{at_once} = {at_once // group} prompts x {group} completions; {at_once // processes} a process",
    )
    if args.step_advantage_w == 0:
        report.warn("step term", "step_advantage_w is 0: plain GRPO")
    else:
        report.ok("step term", f"{args.step_reward_kind}, {args.step_match_mode}, weight {args.step_advantage_w:g}")


def check_output(report: Report, run: Run) -> None:
    """Adds whether there is a checkpoint to resume from and whether a push could begin; asks the Hub nothing."""
    from huggingface_hub import get_token

    from stepgrpo.hub import STRATEGIES, read_metrics
    from stepgrpo.resume import find_checkpoint

    args = run.args
    with report.guard("resume_from_checkpoint"):
        if checkpoint := find_checkpoint(args.resume_from_checkpoint, str(args.output_dir)):
            report.ok("resume_from_checkpoint", checkpoint)
    if not args.push_to_hub:
        return
    strategy = str(getattr(args.hub_strategy, "value", args.hub_strategy))
    if strategy not in STRATEGIES:
        report.fail("hub_strategy", strategy, f"choose one of: {', '.join(STRATEGIES)}")
    if not (args.hub_token or get_token()):
        report.fail("push_to_hub", "there is no token", "set HF_TOKEN, or run `hf auth login`")
    else:
        report.ok("push_to_hub", "there is a token; whether the Hub takes it is asked when the run starts")
    with report.guard("model_card_metrics"):
        read_metrics(run.recipe.model_card_metrics or [])


def needed_packages(run: Run) -> dict[str, str]:
    """Optional packages that the run does not go without: by name, the field that needs it."""
    args, model_args, needed = run.args, run.model_args, {}
    if model_args.load_in_4bit or model_args.load_in_8bit or "8bit" in str(getattr(args.optim, "value", args.optim)):
        needed["bitsandbytes"] = "load_in_4bit, load_in_8bit or optim"
    if getattr(args, "use_vllm", False) and args.vllm_mode == "colocate":
        needed["vllm"] = "use_vllm"
    if model_args.attn_implementation == "flash_attention_2":
        needed["flash-attn"] = "attn_implementation"
    if run.launch.spread.startswith("zero"):
        needed["deepspeed"] = "the accelerate config"
    if "wandb" in _reporters(args):
        needed["wandb"] = "report_to"
    return needed


def _reporters(args: Any) -> list[str]:
    given = args.report_to
    return [given] if isinstance(given, str) else list(given or [])


def _check_attention(report: Report, name: str | None) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    known = ["eager", *ALL_ATTENTION_FUNCTIONS]
    if name is not None and name not in known and "/" not in name:
        report.fail("attn_implementation", f"{name!r} is not known", f"choose one of: {', '.join(known)}")


def check_packages(report: Report, run: Run, versions: dict[str, str | None]) -> None:
    """Adds optional packages that this run needs and that are not installed, and attention that is not known."""
    _check_attention(report, run.model_args.attn_implementation)
    needed = needed_packages(run)
    for name, why in needed.items():
        if versions.get(name) is None:
            report.fail("packages", f"{name} is not installed, and {why} needs it", f"pip install {name}")
    if needed and all(versions.get(name) for name in needed):
        report.ok("packages", f"{', '.join(needed)}: installed")
