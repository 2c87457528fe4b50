"""The private surface of TRL that `stepgrpo.trainer` stands on, in one place for the doctor and the contract test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from stepgrpo.doctor.findings import Report, describe


@dataclass(frozen=True)
class Hook:
    """Something of TRL that has to be there.

    Attributes:
        name: what.
        moved: a function that says how it differs from what is needed, None if it does not.
    """

    name: str
    moved: Callable[[], str | None]


def _trainer() -> Any:
    from trl import GRPOTrainer

    return GRPOTrainer


# Overridden methods, with the parameters that are passed on by name or place.
OVERRIDDEN: dict[str, Sequence[str]] = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_generate": ("self", "prompts"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_set_signature_columns_if_needed": ("self",),
    "_save_checkpoint": ("self", "model", "trial"),
    "_push_from_checkpoint": ("self", "checkpoint_folder"),
    "_load_optimizer_and_scheduler": ("self", "checkpoint"),
}
# Methods of which only the first parameters matter: the rest is passed on as it comes, or left out.
BEGINNINGS: dict[str, Sequence[str]] = {
    "__init__": ("self", "model", "reward_funcs", "args", "train_dataset", "eval_dataset"),
    "_get_per_token_logps_and_entropies": ("self", "model"),
    "_get_train_sampler": ("self",),
    "_get_output_dir": ("self", "trial"),
    "push_to_hub": ("self", "commit_message", "blocking", "token", "revision", "private"),
}
# Class attributes that are overridden: the tags and the name of the model card.
CARD = ("_tag_names", "_name")
# What TRL's code sets on the trainer and ours reads.
ATTRIBUTES = (
    "_buffered_inputs",
    "_is_vlm",
    "_metrics",
    "_signature_columns",
    "_step",
    "_tokenizer",
    "generation_config",
    "num_generations",
    "num_generations_eval",
    "num_iterations",
    "ref_model",
    "reward_weights",
)
IMPORTED = (
    ("trl.trainer.utils", "get_config_model_id"),
    ("trl.models", "prepare_deepspeed"),
    ("trl.models", "prepare_fsdp"),
    ("trl", "prepare_multimodal_messages"),
    ("trl", "get_quantization_config"),
)
OUTPUTS = ("advantages", "completion_ids", "completion_mask", "tool_mask")


def _parameters(name: str, wanted: Sequence[str], begin: bool) -> str | None:
    method = getattr(_trainer(), name, None)
    if method is None:
        return "it is not there"
    found = list(inspect.signature(method).parameters)
    if (found[: len(wanted)] if begin else found) == list(wanted):
        return None
    return f"its parameters are ({', '.join(found)}), not ({', '.join(wanted)}{', ...' if begin else ''})"


def _our_hook() -> str | None:
    return "TRL has a _compute_advantages of its own now" if hasattr(_trainer(), "_compute_advantages") else None


def _attributes() -> str | None:
    # `_signature_columns` is set by transformers' trainer, which TRL's is. Whole files: looking for a class takes long.
    files = {inspect.getfile(kind) for kind in _trainer().__mro__[:-1]}
    source = "".join(Path(file).read_text(encoding="utf-8") for file in files if file.endswith(".py"))
    missing = [name for name in ATTRIBUTES if f"self.{name}" not in source]
    return f"not set: {', '.join(missing)}" if missing else None


def _loss() -> str | None:
    source = inspect.getsource(_trainer()._compute_loss)
    return None if "advantages.dim() == 1" in source else "it no longer asks whether there is one advantage per token"


def _outputs() -> str | None:
    source = inspect.getsource(_trainer()._generate_and_score_completions)
    missing = [key for key in OUTPUTS if f'"{key}"' not in source]
    if missing:
        return f"not among its outputs: {', '.join(missing)}"
    rewards, outputs = source.find("_calculate_rewards("), source.find("output = {")
    return None if 0 <= rewards < outputs else "rewards are no longer worked out before the outputs are put together"


def _images() -> str | None:
    source = inspect.getsource(_trainer()._generate)
    last = source.rpartition("return")[2]
    wanted = ["images", "tool_images"]
    found = [part.strip() for part in last.strip().strip("()").rstrip(",)\n ").split(",") if part.strip()]
    return None if found[-2:] == wanted else f"it ends its results by {', '.join(found[-2:])}, not {', '.join(wanted)}"


def _batches() -> str | None:
    import torch
    from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

    batch: Any = {"advantages": torch.arange(8.0).view(4, 2), "completion_ids": torch.arange(8).view(4, 2)}
    shuffled: Any = shuffle_sequence_dict(batch)
    parts = [("split_tensor_dict", part) for part in split_tensor_dict(shuffled, 2)]
    for name, part in [("shuffle_sequence_dict", shuffled), *parts]:
        if not torch.equal(part["advantages"].long(), part["completion_ids"]):
            return f"{name} no longer keeps token advantages with their tokens"
    return None


def _card() -> str | None:
    missing = [name for name in CARD if not hasattr(_trainer(), name)]
    return f"not there: {', '.join(missing)}" if missing else None


def _sampler() -> str | None:
    """What `stepgrpo.resume.skip_epochs` draws again."""
    from trl.trainer.utils import RepeatSampler

    missing = [name for name in ("generator", "shuffle", "num_samples") if name not in vars(RepeatSampler([1], 1))]
    return f"not set: {', '.join(missing)}" if missing else None


def _imported() -> str | None:
    """Names that TRL does not promise to keep, by their modules."""
    missing = [f"{module}.{name}" for module, name in IMPORTED if not hasattr(import_module(module), name)]
    return f"not there: {', '.join(missing)}" if missing else None


HOOKS: tuple[Hook, ...] = (
    *(Hook(f"GRPOTrainer.{name}", partial(_parameters, name, wanted, False)) for name, wanted in OVERRIDDEN.items()),
    *(Hook(f"GRPOTrainer.{name}", partial(_parameters, name, wanted, True)) for name, wanted in BEGINNINGS.items()),
    Hook("GRPOTrainer._compute_advantages is free", _our_hook),
    Hook("attributes of GRPOTrainer", _attributes),
    Hook("(B, T) advantages in GRPOTrainer._compute_loss", _loss),
    Hook("outputs of GRPOTrainer._generate_and_score_completions", _outputs),
    Hook("results of GRPOTrainer._generate", _images),
    Hook("batches of token advantages", _batches),
    Hook("names on GRPOTrainer's model card", _card),
    Hook("attributes of RepeatSampler", _sampler),
    Hook("imported names", _imported),
)


def check_hooks(report: Report, hooks: Sequence[Hook] = HOOKS) -> None:
    """Adds whether the installed TRL has all that the trainer stands on."""
    report.section("TRL")
    import trl

    moved = []
    for hook in hooks:
        try:
            problem = hook.moved()
        except Exception as error:
            problem = describe(error)
        if problem:
            moved.append(hook.name)
            report.fail(hook.name, problem, f"TRL {trl.__version__} has moved it: install a TRL of the range above")
    if not moved:
        report.ok(
            "hooks", f"all {len(hooks)} that the trainer stands on are as TRL {trl.__version__} should have them"
        )
