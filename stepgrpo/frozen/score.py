"""Log-probabilities of continuations that share their beginnings: each prefix is run once, the head only where it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor

from stepgrpo.frozen.head import TokenScores
from stepgrpo.frozen.prefix import SharedCache, has_pictures, is_recurrent, prefix_inputs
from stepgrpo.frozen.rows import Positions, Row, batches, checked_positions, rows_to_run


@torch.no_grad()
def score_continuations(
    model: Any,
    prefixes: Sequence[Any],
    continuations: Sequence[Sequence[Sequence[int]]],
    positions: Positions | None = None,
    max_tokens: int = 32768,
    chunk_size: int = 512,
    max_rows: int | None = None,
    accelerator: Any = None,
    stand_in: Any = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """How probable a model finds the tokens of continuations, and the most probable token in the place of each.

    The prefix's key-value cache is computed once and shared; its N continuations run as one batch, padded on the right, where
    causal attention keeps the padding out of every score. A continuation that another one begins with, up to its last scored
    token, runs with that one; so equal ones run once, and those that differ in their last scored token only run as one. The
    head runs on the scored positions only, `chunk_size` at a time. The numbers are those of one forward over prefix and
    continuation.

    Args:
        model: a causal or vision-language model, perhaps with an adapter or sharded. It runs in evaluation mode and is left in
            the mode it was in.
        prefixes: G prefixes, each with one or more tokens: their ids, or what a processor returns for one conversation
            (`input_ids` (1, P) and what belongs to it, such as pictures). Padding is left out, whichever side it is on.
        continuations: for each prefix its continuations, as token ids. An id that stands for a picture is an ordinary token.
        positions: for each prefix and continuation the indices of the tokens to score; None for all.
        max_tokens: cached and new tokens in one forward; more continuations than fit go in several batches.
        chunk_size: positions whose logits are held at once.
        max_rows: continuations in one forward; None for as many as `max_tokens` lets in.
        accelerator: the trainer's, given where the model is sharded over its processes (ZeRO-3, FSDP). All of them call this
            function, each with its own prefixes or with none, and run the model equally often.
        stand_in: a prefix with a picture, what a processor returns. Where some process has more prefixes with pictures than
            this one, it runs this, or its own first one, in their place.

    Returns:
        logp and max_logp: for each continuation, prefix after prefix, a float32 tensor with one value <= 0 per scored token,
        in the order of `positions`: log p(x_t | prefix, x_<t) and max_v log p(v | prefix, x_<t), on the model's device.

    Raises:
        ValueError: if the arguments do not belong together, a position is out of range, a prefix is empty, a model that keeps
            a recurrent state gets pictures, or some process has pictures and another has none to stand in for them.
    """
    wanted = checked_positions(prefixes, continuations, positions)
    inner = extract_model_from_parallel(model)  # DeepSpeed's engine has a `config` that is not the model's
    device = next(inner.parameters()).device if accelerator is None else accelerator.device
    scores = TokenScores(inner, chunk_size)
    groups = [
        _Group(model, scores, device, prefix_inputs(prefix), list(map(list, texts)), places, max_tokens, max_rows)
        for prefix, texts, places in zip(prefixes, continuations, wanted, strict=True)
    ]
    asked = [group for group in groups if any(group.places)]
    with _evaluating(model), scores.in_place():
        if accelerator is None:
            for group in asked:
                group.run()
        else:
            _run_in_step(model, scores, device, asked, accelerator, stand_in)
    found = [pair for group in groups for pair in group.found]
    return [logp for logp, _ in found], [best for _, best in found]


class _Group:
    """One prefix with its continuations.

    Attributes:
        places: for each continuation the positions that are scored.
        batches: of rows, one forward each, after the one over the prefix.
        found: after `run`, logp and max_logp of each continuation.
    """

    def __init__(
        self,
        model: Any,
        scores: TokenScores,
        device: torch.device,
        prefix: dict[str, Any],
        texts: Sequence[Sequence[int]],
        places: list[list[int]],
        max_tokens: int,
        max_rows: int | None,
    ) -> None:
        self.model, self.scores, self.device, self.prefix = model, scores, device, prefix
        self.texts, self.places = texts, places
        self.length = prefix["input_ids"].size(1)
        self.batches = list(batches(rows_to_run(texts, places), self.length, max_tokens, max_rows))
        nothing = torch.empty(0, device=device)
        self.found = [(nothing, nothing)] * len(texts)
        self._at: dict[tuple[int, int], int] = {}
        self._values: list[Tensor] = []

    def run(self) -> None:
        """One forward over the prefix, and one for each batch."""
        inputs = _on(self.device, self.prefix)
        first = [(n, 0) for n, row in enumerate(self.places) if 0 in row]
        output = self._forward([(0, self.length - 1)] * len(first), first, **inputs, use_cache=True)
        name = "cache" if "cache" in output else "past_key_values"
        cache = output.get(name)
        if cache is None or is_recurrent(cache):
            if has_pictures(inputs):
                raise ValueError(
                    f"{type(self.model).__name__} keeps a recurrent state that cannot be shared between continuations, and a "
                    "prefix with pictures cannot be run again for each: choose a model with attention alone."
                )
            for batch in self.batches:
                ids = torch.cat([inputs["input_ids"].expand(len(batch), -1), self._padded(batch)], dim=1)
                self._ask_rows(batch, self.length, input_ids=ids, use_cache=False)
        else:
            shared, offset = SharedCache(cache), self._offset()
            for batch in self.batches:
                ids = self._padded(batch)
                past = {name: shared.of(len(batch), self.device)}
                # Said outright: vision-language models would take the offset of whatever picture they saw last.
                place = torch.arange(self.length, self.length + ids.size(1), device=ids.device).expand(len(batch), -1)
                if offset is not None:
                    place = (place + offset.to(place.device)).expand(3, -1, -1)
                self._ask_rows(batch, 0, input_ids=ids, position_ids=place, **past, use_cache=True)
        logp, best = torch.cat(self._values).T
        for n, row in enumerate(self.places):
            at = torch.tensor([self._at[n, t] for t in row], dtype=torch.long, device=self.device)
            self.found[n] = logp[at], best[at]

    def _forward(self, places: list[tuple[int, int]], tokens: list[tuple[int, int]], **inputs: Any) -> Any:
        """A forward that is asked for `tokens` (continuation, position) at `places` (row, column)."""
        self.scores.ask([(*place, self.texts[n][t]) for place, (n, t) in zip(places, tokens, strict=True)])
        output = self.model(**inputs)
        start = sum(map(len, self._values))
        self._at.update((token, start + number) for number, token in enumerate(tokens))
        self._values.append(self.scores.take())
        return output

    def _ask_rows(self, batch: list[Row], start: int, **inputs: Any) -> None:
        """A forward over a batch; `start` is the column that predicts the second token of a continuation."""
        asked = [(row, token) for row, read in enumerate(batch) for token in read.asked]
        self._forward([(row, start + t - 1) for row, (_, t) in asked], [token for _, token in asked], **inputs)

    def _padded(self, batch: list[Row]) -> Tensor:
        width = max(len(row.ids) for row in batch)
        return torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in batch], device=self.device)

    def _offset(self) -> Tensor | None:
        """(1, 1): how far the positions after the prefix's pictures lag behind the number of tokens (M-RoPE)."""
        if not any(name.endswith("_grid_thw") for name in self.prefix):
            return None
        return next((m.rope_deltas for m in self.model.modules() if getattr(m, "rope_deltas", None) is not None), None)


def _run_in_step(
    model: Any, scores: TokenScores, device: torch.device, groups: list[_Group], accelerator: Any, stand_in: Any
) -> None:
    """Runs the groups of this process, and stand-ins where others run more.

    A forward without pictures gathers the same weights whether it reads a prefix or continues one. So the processes agree on
    three numbers: prefixes with pictures, forwards after each of these, and forwards of the rest.
    """
    seeing = [group for group in groups if has_pictures(group.prefix)]
    reading = [group for group in groups if not has_pictures(group.prefix)]
    after, rest = max((len(group.batches) for group in seeing), default=0), sum(1 + len(g.batches) for g in reading)
    picture = prefix_inputs(stand_in) if stand_in is not None else seeing[0].prefix if seeing else None
    mine = [len(seeing), after, rest, int(picture is None)]
    pictures, after, most, blind = accelerator.gather(torch.tensor([mine], device=device)).amax(0).tolist()
    if pictures and blind:
        raise ValueError("Where some process scores prefixes with pictures, all have to pass one as `stand_in`.")

    def stand(inputs: dict[str, Any] | None, times: int) -> None:
        for _ in range(times):
            scores.ask([])
            model(**_on(device, inputs or {"input_ids": torch.zeros(1, 1, dtype=torch.long)}), use_cache=True)

    for group in seeing:
        group.run()
        stand(None, after - len(group.batches))
    for _ in range(pictures - len(seeing)):
        stand(picture, 1)
        stand(None, after)
    for group in reading:
        group.run()
    stand(None, most - rest)


def _on(device: torch.device, inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
