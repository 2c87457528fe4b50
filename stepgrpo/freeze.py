"""Freezes parts of a model by name, such as the vision tower of a vision-language model."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from torch import nn

_DEPTH = 3  # of the modules that an error offers


def freeze_modules(model: nn.Module, names: str | Sequence[str]) -> list[str]:
    """Sets `requires_grad=False` on all weights of the named modules, adapters' in them too.

    Call it before there is an optimizer: one that is made afterwards leaves the weights out.

    Args:
        model: a model, also with adapters around it (PEFT).
        names: names of modules, or one. A name stands for every module whose dotted name is that or ends in it: `visual` is
            `model.visual`, and `base_model.model.model.visual` of a model with adapters.

    Returns:
        The dotted names of the modules that were frozen, each once.

    Raises:
        ValueError: a name that stands for no module with weights, or a model with nothing left to train.
    """
    names = [names] if isinstance(names, str) else names
    modules = {
        name: module for name, module in model.named_modules() if name and any(True for _ in module.parameters())
    }
    frozen: dict[str, None] = {}
    for name in names:
        found = [path for path in modules if path == name or path.endswith(f".{name}")]
        if not found:
            raise ValueError(_unknown(name, list(modules)))
        frozen |= dict.fromkeys(found)
    for path in frozen:
        modules[path].requires_grad_(False)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(f"freeze_modules={list(names)} leaves no weight to train.")
    return list(frozen)


def _unknown(name: str, paths: list[str]) -> str:
    last = list(dict.fromkeys(path.rpartition(".")[2] for path in paths if not path.rpartition(".")[2].isdigit()))
    near = difflib.get_close_matches(name.rpartition(".")[2], last, n=3)
    outer = [path for path in (_without_wrapper(path) for path in paths) if path and path.count(".") < _DEPTH]
    likely = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f"freeze_modules: {name!r} is no module of this model.{likely} "
        f"Choose from {', '.join(dict.fromkeys(outer))}, or modules in them."
    )


def _without_wrapper(path: str) -> str:
    """A module's name without what PEFT puts in front of it."""
    return (
        path.removeprefix("base_model").removeprefix(".").removeprefix("model.")
        if path.startswith("base_model")
        else path
    )
