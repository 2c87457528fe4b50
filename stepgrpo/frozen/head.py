"""Stands in for a model's head during a forward: scores chosen tokens instead of making all logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class TokenScores:
    """What is read off a model's head: one token and the best one, at chosen positions.

    The head's own forward is called inside the model's, where ZeRO-3 and FSDP have gathered its weights, on `chunk_size`
    hidden states at a time.

    Args:
        model: with `get_output_embeddings`.
        chunk_size: positions whose logits are held at once.
    """

    def __init__(self, model: Any, chunk_size: int) -> None:
        self.head = model.get_output_embeddings()
        self.chunk_size = chunk_size
        self.device: torch.device = next(model.parameters()).device
        self._softcap, self._scale = logit_transform(model.config)
        self._rows: Sequence[int] = ()
        self._columns: Sequence[int] = ()
        self._ids: Sequence[int] = ()
        self._taken: list[Tensor] | None = None

    def ask(self, rows: Sequence[int], columns: Sequence[int], ids: Sequence[int]) -> None:
        """Sets what the next forward is asked: for each token its row, the column that predicts it, and its id."""
        self._rows, self._columns, self._ids, self._taken = rows, columns, ids, None

    def take(self) -> list[Tensor]:
        """The answers, each (2,) float32: the token's log-probability and the best token's."""
        if self._taken is None:
            raise RuntimeError("The model did not call its output embeddings, so its tokens cannot be scored.")
        return self._taken

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model's forwards return no logits that mean anything."""
        had = self.head.__dict__.get("forward")
        self._project = self.head.forward
        self.head.forward = self._forward
        try:
            yield
        finally:
            if had is None:
                del self.head.forward
            else:
                self.head.forward = had

    def _forward(self, hidden: Tensor) -> Tensor:
        taken: list[Tensor] = []
        rows, columns, ids = (
            torch.tensor(list(values), dtype=torch.long, device=hidden.device)
            for values in (self._rows, self._columns, self._ids)
        )
        for start in range(0, len(ids), self.chunk_size):
            part = slice(start, start + self.chunk_size)
            logits = self._project(hidden[rows[part], columns[part]]).float() * self._scale
            if self._softcap is not None:
                logits = torch.tanh(logits / self._softcap) * self._softcap
            total = logits.logsumexp(1)
            chosen = logits.gather(1, ids[part, None])[:, 0]
            taken += torch.stack([chosen - total, logits.amax(1) - total], dim=1).unbind(0)
        self._taken = taken
        return hidden[..., :1]


def logit_transform(config: Any) -> tuple[float | None, float]:
    """What a model does to its head's output: the cap of `cap · tanh(x / cap)`, if it has one, after a factor.

    The names are those that models of transformers have in their configs.
    """
    text = config.get_text_config()
    factors = (getattr(text, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"))
    scale = next((factor for factor in factors if factor is not None), None)
    if scale is None and (divisor := getattr(text, "logits_scaling", None)) is not None:
        scale = divisor if text.model_type == "hyperclovax" else 1 / divisor
    return getattr(text, "final_logit_softcapping", None), 1.0 if scale is None else float(scale)
