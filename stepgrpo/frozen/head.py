"""Stands in for a model's head during a forward: scores chosen tokens instead of making all logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from torch import Tensor


class TokenScores:
    """What is read off a model's head: one token and the best one, at chosen positions.

    The head's own forward is called inside the model's, where ZeRO-3 and FSDP have gathered its weights, on `chunk_size`
    hidden states at a time.

    Args:
        model: with `get_output_embeddings`, none of an accelerator's wrappers around it.
        chunk_size: positions whose logits are held at once.
    """

    def __init__(self, model: Any, chunk_size: int) -> None:
        self.head = model.get_output_embeddings()
        self.chunk_size = chunk_size
        self._softcap, self._scale = logit_transform(model.config)
        self._asked: Sequence[tuple[int, int, int]] = ()
        self._taken: Tensor | None = None

    def ask(self, asked: Sequence[tuple[int, int, int]]) -> None:
        """Sets what the next forward is asked: for each token its row, the column that predicts it, and its id.

        Tokens of one row and column cost no more than one token.
        """
        self._asked, self._taken = asked, None

    def take(self) -> Tensor:
        """The answers in the order of the questions: (n, 2) float32, each token's log-probability and the best token's."""
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
        order = sorted(range(len(self._asked)), key=lambda number: self._asked[number][:2])
        places = [(place, list(group)) for place, group in groupby(order, key=lambda number: self._asked[number][:2])]
        taken = torch.empty(len(order), 2, device=hidden.device)
        for start in range(0, len(places), self.chunk_size):
            part = places[start : start + self.chunk_size]
            rows, columns = _on(hidden.device, [place for place, _ in part])
            asked = [
                (line, self._asked[number][2], number) for line, (_, group) in enumerate(part) for number in group
            ]
            lines, ids, numbers = _on(hidden.device, asked)
            logits = self._project(hidden[rows, columns]).float()
            if self._scale != 1:
                logits = logits * self._scale
            if self._softcap is not None:
                logits = torch.tanh(logits / self._softcap) * self._softcap
            chosen, best = logits[lines, ids], logits.amax(1)
            # In place: of a large vocabulary each copy takes longer than the sum itself.
            total = best + logits.sub_(best[:, None]).exp_().sum(1).log()
            taken[numbers] = torch.stack([chosen, best[lines]], dim=1) - total[lines, None]
        self._taken = taken
        return hidden[..., :1]


def _on(device: torch.device, values: Sequence[tuple[int, ...]]) -> tuple[Tensor, ...]:
    return torch.tensor(values, dtype=torch.long).T.contiguous().to(device).unbind(0)


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
