"""Log-probabilities of continuations that share their beginnings: each prefix is run once, the head only where it is asked."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stepgrpo.frozen.head import TokenScores

Positions = Sequence[Sequence[Sequence[int] | None]]


@torch.no_grad()
def score_continuations(
    model: Any,
    prefixes: Sequence[Any],
    continuations: Sequence[Sequence[Sequence[int]]],
    positions: Positions | None = None,
    max_tokens: int = 32768,
    chunk_size: int = 1024,
) -> tuple[list[Tensor], list[Tensor]]:
    """How probable a model finds the tokens of continuations, and the most probable token in the place of each.

    The prefix's key-value cache is computed once and expanded; its N continuations run as one batch, padded on the right,
    where causal attention keeps the padding out of every score. The head runs on the scored positions only, `chunk_size` at
    a time. The numbers are those of one forward over prefix and continuation.

    Args:
        model: a causal or vision-language model, perhaps with an adapter or sharded. It runs in evaluation mode and is left in
            the mode it was in.
        prefixes: G prefixes, each with one or more tokens: their ids, or what a processor returns for one conversation
            (`input_ids` (1, P) and what belongs to it, such as pictures). Padding is left out, whichever side it is on.
        continuations: for each prefix its continuations, as token ids. An id that stands for a picture is an ordinary token.
        positions: for each prefix and continuation the indices of the tokens to score; None for all.
        max_tokens: cached and new tokens in one forward; more continuations than fit go in several batches.
        chunk_size: positions whose logits are held at once.

    Returns:
        logp and max_logp: for each continuation, prefix after prefix, a float32 tensor with one value <= 0 per scored token,
        in the order of `positions`: log p(x_t | prefix, x_<t) and max_v log p(v | prefix, x_<t), on the model's device.

    Raises:
        ValueError: if the arguments do not belong together, a position is out of range, a prefix is empty, or a model that
            keeps a recurrent state gets pictures.
    """
    wanted = _checked(prefixes, continuations, positions)
    logp: list[Tensor] = []
    max_logp: list[Tensor] = []
    scores = TokenScores(model, chunk_size)
    with _evaluating(model), scores.in_place():
        for prefix, texts, places in zip(prefixes, continuations, wanted, strict=True):
            group = _Group(model, scores, _prefix_inputs(prefix, scores.device), texts, places)
            for values, best in group.run(max_tokens):
                logp.append(values)
                max_logp.append(best)
    return logp, max_logp


class _Group:
    """One prefix with its continuations."""

    def __init__(
        self,
        model: Any,
        scores: TokenScores,
        prefix: dict[str, Any],
        texts: Sequence[Sequence[int]],
        places: list[list[int]],
    ) -> None:
        self.model, self.scores, self.prefix, self.texts, self.places = model, scores, prefix, texts, places
        self.length = prefix["input_ids"].size(1)
        # Tokens after the last scored one, and that one itself, need not be read.
        self.read = [max(row, default=0) for row in places]

    def run(self, max_tokens: int) -> list[tuple[Tensor, Tensor]]:
        """logp and max_logp of each continuation."""
        found: dict[tuple[int, int], Tensor] = {}
        first = [(n, 0) for n, row in enumerate(self.places) if 0 in row]
        self.scores.ask([0] * len(first), [self.length - 1] * len(first), [self.texts[n][0] for n, _ in first])
        output = self.model(**self.prefix, use_cache=True)
        found.update(zip(first, self.scores.take(), strict=True))
        name = "cache" if "cache" in output else "past_key_values"
        cache = output.get(name)
        batches = list(self._batches(max_tokens))
        if cache is None or _is_recurrent(cache):
            if len(self.prefix) > 2:
                raise ValueError(
                    f"{type(self.model).__name__} keeps a recurrent state that cannot be shared between continuations, and a "
                    "prefix with pictures cannot be run again for each: choose a model with attention alone."
                )
            for batch in batches:
                self._whole(batch, found)
        else:
            offset = self._offset()
            for number, batch in enumerate(batches):
                mine = cache if number == len(batches) - 1 else copy.deepcopy(cache)
                self._continue(batch, name, mine, offset, found)
        empty = torch.empty(2, 0, device=self.scores.device)
        rows = [torch.stack([found[n, t] for t in row], dim=1) if row else empty for n, row in enumerate(self.places)]
        return [(row[0], row[1]) for row in rows]

    def _batches(self, max_tokens: int) -> Iterator[list[int]]:
        """The numbers of continuations that are read together: like lengths, at most `max_tokens` with the prefix of each."""
        order = sorted((n for n, length in enumerate(self.read) if length), key=lambda n: -self.read[n])
        while order:
            fit = max(1, max_tokens // (self.length + self.read[order[0]]))
            yield order[:fit]
            order = order[fit:]

    def _padded(self, batch: list[int]) -> Tensor:
        width = max(self.read[n] for n in batch)
        rows = [list(self.texts[n][: self.read[n]]) + [0] * (width - self.read[n]) for n in batch]
        return torch.tensor(rows, dtype=torch.long, device=self.scores.device)

    def _ask(self, batch: list[int], start: int) -> list[tuple[int, int]]:
        """Asks for the scored tokens after the first; `start` is the column that predicts the second one."""
        asked = [(row, n, t) for row, n in enumerate(batch) for t in self.places[n] if t > 0]
        self.scores.ask(
            [row for row, _, _ in asked], [start + t - 1 for _, _, t in asked], [self.texts[n][t] for _, n, t in asked]
        )
        return [(n, t) for _, n, t in asked]

    def _continue(self, batch: list[int], name: str, cache: Any, offset: Tensor | None, found: dict) -> None:
        ids = self._padded(batch)
        cache.reorder_cache(torch.zeros(len(batch), dtype=torch.long, device=ids.device))
        # Said outright: vision-language models would take the offset of whatever picture they saw last.
        place = torch.arange(self.length, self.length + ids.size(1), device=ids.device).expand(len(batch), -1)
        if offset is not None:
            place = (place + offset.to(place.device)).expand(3, -1, -1)
        asked = self._ask(batch, 0)
        self.model(input_ids=ids, position_ids=place, **{name: cache}, use_cache=True)
        found.update(zip(asked, self.scores.take(), strict=True))

    def _whole(self, batch: list[int], found: dict) -> None:
        ids = self._padded(batch)
        ids = torch.cat([self.prefix["input_ids"].expand(len(batch), -1), ids], dim=1)
        asked = self._ask(batch, self.length)
        self.model(input_ids=ids, use_cache=False)
        found.update(zip(asked, self.scores.take(), strict=True))

    def _offset(self) -> Tensor | None:
        """(1, 1): how far the positions after the prefix's pictures lag behind the number of tokens (M-RoPE)."""
        if not any(name.endswith("_grid_thw") for name in self.prefix):
            return None
        return next((m.rope_deltas for m in self.model.modules() if getattr(m, "rope_deltas", None) is not None), None)


def _prefix_inputs(prefix: Any, device: torch.device) -> dict[str, Any]:
    """A prefix as keyword arguments of a forward, without padding."""
    if not isinstance(prefix, Mapping):
        ids = torch.as_tensor(prefix, dtype=torch.long, device=device).reshape(1, -1)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in prefix.items()}
    shape = inputs["input_ids"].shape
    inputs.setdefault("attention_mask", torch.ones(shape, dtype=torch.long, device=device))
    real = inputs["attention_mask"][0].bool()
    if real.all():
        return inputs
    return {
        name: value[:, real] if isinstance(value, Tensor) and value.shape == shape else value
        for name, value in inputs.items()
    }


def _is_recurrent(cache: Any) -> bool:
    return any(hasattr(layer, "recurrent_states") or hasattr(layer, "conv_states") for layer in cache.layers)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _checked(
    prefixes: Sequence[Any], continuations: Sequence[Sequence[Sequence[int]]], positions: Positions | None
) -> list[list[list[int]]]:
    """The tokens to score of each prefix's continuations."""
    if len(prefixes) != len(continuations) or (positions is not None and len(positions) != len(prefixes)):
        given = "" if positions is None else f", and positions for {len(positions)}"
        raise ValueError(f"There are {len(prefixes)} prefixes, continuations of {len(continuations)}{given}.")
    wanted = []
    for number, (prefix, texts) in enumerate(zip(prefixes, continuations, strict=True)):
        ids = prefix["input_ids"] if isinstance(prefix, Mapping) else prefix
        if isinstance(ids, Tensor) and ids.ndim == 2 and len(ids) != 1:
            raise ValueError(f"The prefix {number} is a batch of {len(ids)}; each prefix is one conversation.")
        if not (ids.numel() if isinstance(ids, Tensor) else len(ids)):
            raise ValueError(f"The prefix {number} has no token, so nothing says what its continuations begin with.")
        given_rows = [None] * len(texts) if positions is None else positions[number]
        if len(given_rows) != len(texts):
            raise ValueError(
                f"The prefix {number} has {len(texts)} continuations and positions for {len(given_rows)}."
            )
        rows = [list(range(len(text)) if row is None else row) for text, row in zip(texts, given_rows, strict=True)]
        for text, row in zip(texts, rows, strict=True):
            if any(not 0 <= t < len(text) for t in row):
                raise ValueError(f"A continuation of {len(text)} tokens has no position {max(row, key=abs)}.")
        wanted.append(rows)
    return wanted
