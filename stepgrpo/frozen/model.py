"""A frozen model with its processor: what the verify model and the teacher have in common."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils.memory import clear_device_cache
from torch import Tensor

from stepgrpo.frozen.prepare import is_sharded, prepare_frozen


class FrozenModel:
    """A model that only scores. Users of the same weights share one; see `load_frozen`.

    Args:
        model: a causal or vision-language model, with or without an adapter. Its weights stop requiring gradients.
        processing_class: its tokenizer or processor, which is set to pad on the left.
        offload: whether the weights wait on the CPU while nobody scores. Not for a model that is sharded.
        device: where it computes, such as "cpu" or "cuda:1"; "auto" is the process's. Elsewhere every process has a copy.

    Attributes:
        model: the model, or what the accelerator made of it.
        processing_class: the tokenizer or processor. tokenizer: the tokenizer in it.
        is_multimodal: whether it is a processor with an image processor.
        sharded: whether all processes have to run the model together.
        accelerator: the trainer's, once `prepare` was called.
    """

    def __init__(self, model: Any, processing_class: Any, offload: bool = False, device: str = "auto") -> None:
        self.model = model.requires_grad_(False).eval()
        self.processing_class = processing_class
        self.tokenizer = getattr(processing_class, "tokenizer", processing_class)
        self.is_multimodal = hasattr(processing_class, "image_processor")
        self.offload = offload
        self._own_device = None if device == "auto" else torch.device(device)
        self.sharded = False
        self.accelerator: Any = None
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        # Asked before the accelerator wraps the forward in a function that takes anything.
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._keeps_last = "logits_to_keep" in inspect.signature(base.forward).parameters

    def prepare(self, accelerator: Any) -> None:
        """Puts the model on the processes of a trainer. Does nothing where that was done for this accelerator.

        Raises:
            ValueError: if the model would be sharded and is to be offloaded, or on a device of its own, as well.
        """
        if self.accelerator is accelerator:
            return
        sharded = is_sharded(accelerator)
        if self._own_device is not None:
            if sharded:
                raise ValueError(
                    "A frozen model that is sharded over the processes (ZeRO-3, FSDP) has no device of its own; it is to be "
                    f"on {self._own_device}. Leave out step_teacher_device."
                )
            self.accelerator = accelerator
            return
        self.sharded = sharded
        if self.sharded and self.offload:
            raise ValueError(
                "A frozen model that is sharded over the processes (ZeRO-3, FSDP) cannot be offloaded between uses. Turn its "
                "offload option (verify_offload, step_teacher_offload) off; DeepSpeed's offload_param and FSDP's cpu_offload "
                "do it for all models."
            )
        self.accelerator = accelerator
        self.model = prepare_frozen(self.model, accelerator)
        self._park()

    @property
    def device(self) -> torch.device:
        """Where the inputs of a forward belong."""
        if self._own_device is not None:
            return self._own_device
        if self.accelerator is not None:
            return self.accelerator.device
        # Without a trainer: where a script that was started by accelerate runs, else where the model is.
        return PartialState().device if PartialState._shared_state else next(self.model.parameters()).device

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The model is on its device inside, and back on the CPU afterwards if it is offloaded."""
        if next(self.model.parameters()).device != self.device and not self.sharded:
            self.model.to(self.device)
        try:
            yield
        finally:
            self._park()

    def _park(self) -> None:
        if self.offload and self.device.type != "cpu":
            self.model.to("cpu")
            clear_device_cache()

    @torch.no_grad()
    def last_logits(self, inputs: Mapping[str, Any]) -> Tensor:
        """The logits of the token that would come next.

        Args:
            inputs: of B texts, padded on the left: `input_ids` (B, T), `attention_mask` (B, T), perhaps pictures.

        Returns:
            (B, V) float32. Only the last position goes through the head where the model can do so.
        """
        keep = {"logits_to_keep": 1} if self._keeps_last else {}
        moved = {name: value.to(self.device) if hasattr(value, "to") else value for name, value in inputs.items()}
        return self.model(**moved, **keep).logits[:, -1].float()
