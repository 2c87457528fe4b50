"""Puts a frozen model on the trainer's processes, the way TRL puts its reference model there."""

from __future__ import annotations

from typing import Any

from accelerate.utils import DistributedType


def is_sharded(accelerator: Any) -> bool:
    """Whether `prepare_frozen` spreads a model over the processes (ZeRO-3, FSDP) instead of giving each a replica.

    A sharded model runs only if all processes run it, the same number of times.
    """
    if accelerator.distributed_type == DistributedType.FSDP:
        return True
    if accelerator.distributed_type != DistributedType.DEEPSPEED:
        return False
    return accelerator.state.deepspeed_plugin.zero_stage == 3


def prepare_frozen(model: Any, accelerator: Any) -> Any:
    """A model without gradients, ready to score on all processes.

    Args:
        model: a `PreTrainedModel`, in any mode.
        accelerator: the trainer's `Accelerator`.

    Returns:
        Under DeepSpeed its engine, sharded for ZeRO-3; under FSDP the sharded model; else the model itself on the process's
        device, with the accelerator's mixed precision.
    """
    from trl.models import prepare_deepspeed, prepare_fsdp

    model.requires_grad_(False).eval()
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return prepare_deepspeed(model, accelerator)
    if accelerator.distributed_type == DistributedType.FSDP:
        return prepare_fsdp(model, accelerator)
    return accelerator.prepare_model(model, evaluation_mode=True)
