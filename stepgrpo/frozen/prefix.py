"""One prefix as a forward reads it, and its key-value cache as its continuations share it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


def prefix_inputs(prefix: Any) -> dict[str, Any]:
    """A prefix as keyword arguments of a forward, without padding.

    Args:
        prefix: token ids, or what a processor returns for one conversation.

    Returns:
        `input_ids` (1, P), `attention_mask` (1, P) and what else the processor gave, where they were.
    """
    if not isinstance(prefix, Mapping):
        ids = torch.as_tensor(prefix, dtype=torch.long).reshape(1, -1)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs = dict(prefix)
    shape = inputs["input_ids"].shape
    inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
    real = inputs["attention_mask"][0].bool()
    return inputs if real.all() else cut(inputs, real, shape)


def cut(inputs: Mapping[str, Any], columns: Any, shape: Any) -> dict[str, Any]:
    """What belongs to each token, at some columns only; the rest, such as pictures, as it is."""
    return {
        name: value[:, columns] if isinstance(value, Tensor) and value.shape == shape else value
        for name, value in inputs.items()
    }


def has_pictures(inputs: Mapping[str, Any]) -> bool:
    """Whether a forward with these inputs runs more than the language model: ids and masks are whole numbers, pixels not."""
    return any(isinstance(value, Tensor) and value.is_floating_point() for value in inputs.values())


def is_recurrent(cache: Any) -> bool:
    """Whether a cache holds states that the next tokens overwrite."""
    return any(hasattr(layer, "recurrent_states") or hasattr(layer, "conv_states") for layer in cache.layers)


class SharedCache:
    """The cache of one prefix, read by batch after batch of its continuations.

    Attention layers get the prefix's keys and values put before the batch's own for as long as they compute, so that there is
    one copy of the prefix for all continuations and layers, and one layer's copy for each of them. Other kinds of layers are
    copied for each batch and each continuation.

    Args:
        cache: of a forward over the prefix, a batch of one.
    """

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        kinds = {type(layer) for layer in cache.layers if getattr(layer, "is_initialized", True)}
        self._expands = kinds <= {DynamicLayer, DynamicSlidingWindowLayer}
        if self._expands:
            for layer in cache.layers:
                layer.update = MethodType(_put_before, layer)

    def of(self, batch: int, device: torch.device) -> Any:
        """The cache for a forward over `batch` continuations."""
        if self._expands:
            return self.cache
        mine = copy.deepcopy(self.cache)
        mine.reorder_cache(torch.zeros(batch, dtype=torch.long, device=device))
        return mine


def _put_before(layer: Any, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    """Stands for `update` of a cache's layer: returns the states with the cached ones before them, and keeps nothing."""
    past = layer.keys.expand(len(keys), -1, -1, -1), layer.values.expand(len(values), -1, -1, -1)
    return torch.cat([past[0], keys], dim=-2), torch.cat([past[1], values], dim=-2)
