"""Loads frozen models, each once: the verify model and the teacher may be the same weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from accelerate import PartialState
from accelerate.utils import patch_environment
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from stepgrpo import modeling
from stepgrpo.frozen.model import FrozenModel

_LOADED: WeakValueDictionary[tuple[Any, ...], FrozenModel] = WeakValueDictionary()


def load_frozen(
    model: str | os.PathLike[str] | PreTrainedModel,
    processing_class: Any = None,
    dtype: str | torch.dtype = "auto",
    offload: bool = False,
    init_kwargs: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> FrozenModel:
    """A frozen model; the same object for the same weights, as long as somebody holds it.

    Args:
        model: a directory of a model or an adapter, a hub id, or a model that is loaded already.
        processing_class: its tokenizer or processor; read from the same place where it is not given.
        dtype: of the weights of a model that is loaded here. "auto": bfloat16 on an accelerator, the saved one on the CPU.
        offload: see `FrozenModel`. A shared model is offloaded only if all its users ask for it.
        init_kwargs: for `from_pretrained`, such as `revision`.
        device: where it computes, such as "cpu" or "cuda:1"; "auto" is the process's.

    Raises:
        ValueError: if there is no model that can be read, or no processing class for a model that was given.
    """
    if not isinstance(model, (str, os.PathLike)):
        known = next((key for key, frozen in _LOADED.items() if frozen.model is model), None)
        # A FrozenModel holds its model, so the number is not given to another one while the entry is there.
        key = known or (id(model), device)
        return _shared(key, lambda: FrozenModel(model, _given(model, processing_class), offload, device), offload)
    place = os.fspath(model)
    where = str(Path(place).resolve()) if Path(place).exists() else place
    options = dict(init_kwargs or {})
    key = (where, str(dtype), device, *(f"{name}={value}" for name, value in sorted(options.items())))

    def load() -> FrozenModel:
        try:
            processor = processing_class or modeling.load_processing_class(place)
            with _whole_weights():
                loaded = modeling.load_model(
                    place, dtype=_dtype(dtype), **options, **_placement(offload or device != "auto")
                )
        except (OSError, ValueError) as error:
            raise ValueError(
                f"The frozen model {place!r} cannot be loaded. Give a directory of a saved model, or a hub id. {error}"
            ) from error
        return FrozenModel(loaded, processor, offload, device)

    return _shared(key, load, offload)


def _shared(key: tuple[Any, ...], make: Callable[[], FrozenModel], offload: bool) -> FrozenModel:
    frozen = _LOADED.get(key)
    if frozen is None:
        frozen = _LOADED[key] = make()
    frozen.offload = frozen.offload and offload
    return frozen


def _given(model: Any, processing_class: Any) -> Any:
    if processing_class is not None:
        return processing_class
    name = getattr(model.config, "_name_or_path", "")
    if not name:
        raise ValueError("A model that was made in memory needs its tokenizer or processor: pass `processing_class`.")
    return modeling.load_processing_class(name)


def _dtype(dtype: str | torch.dtype) -> Any:
    if dtype != "auto":
        return getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return torch.bfloat16 if _device().type in ("cuda", "xpu") else "auto"


def _device() -> torch.device:
    if PartialState._shared_state:
        return PartialState().device
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _placement(offload: bool) -> dict[str, Any]:
    """Straight to the process's device, without a copy in the host's memory, where the model stays whole there."""
    fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true")
    device = _device()
    if offload or fsdp or is_deepspeed_zero3_enabled() or device.type in ("cpu", "mps"):
        return {}
    return {"device_map": {"": device}}


@contextmanager
def _whole_weights() -> Iterator[None]:
    """Every process reads the weights itself.

    With FSDP's `cpu_ram_efficient_loading`, processes other than the first would get empty ones and wait for a broadcast that
    accelerate does for the policy only.
    """
    with patch_environment(FSDP_CPU_RAM_EFFICIENT_LOADING="false"):
        yield
