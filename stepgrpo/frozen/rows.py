"""Which tokens are run to score continuations, and which of the positions that ran answer for which token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Positions = Sequence[Sequence[Sequence[int] | None]]


@dataclass
class Row:
    """Tokens after a prefix that are run, perhaps for several continuations.

    Attributes:
        ids: what is read.
        asked: the scored tokens that it answers for, each a continuation's number and a position above 0 in it.
    """

    ids: list[int]
    asked: list[tuple[int, int]] = field(default_factory=list)


def rows_to_run(texts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> list[Row]:
    """The rows that answer for all scored tokens after the first of each continuation, the longest first.

    A token's probability depends on those before it. So the last scored token of a continuation need not be read, nor what
    follows it; and a continuation whose read part another one begins with needs no row of its own.

    Args:
        texts: the continuations of one prefix.
        places: for each the positions that are scored.
    """
    read = [(list(text[: max(row, default=0)]), n) for n, (text, row) in enumerate(zip(texts, places, strict=True))]
    rows: list[Row] = []
    # Sorted backwards, all that begin a row come after it, without another row between.
    for ids, n in sorted((pair for pair in read if pair[0]), reverse=True):
        if not rows or rows[-1].ids[: len(ids)] != ids:
            rows.append(Row(ids))
        rows[-1].asked += [(n, t) for t in places[n] if t > 0]
    return sorted(rows, key=lambda row: -len(row.ids))


def batches(rows: Sequence[Row], prefix: int, max_tokens: int, max_rows: int | None) -> Iterator[list[Row]]:
    """Rows that are run together: like lengths, so that little is padded.

    Args:
        rows: the longest first.
        prefix: tokens of the prefix, which every row has in its cache.
        max_tokens: of all rows of a batch with the prefix of each; one row may have more.
        max_rows: rows in a batch; None for any number.
    """
    start = 0
    while start < len(rows):
        fit = max(1, max_tokens // (prefix + len(rows[start].ids)))
        fit = fit if max_rows is None else min(fit, max_rows)
        yield list(rows[start : start + fit])
        start += fit


def checked_positions(
    prefixes: Sequence[Any], continuations: Sequence[Sequence[Sequence[int]]], positions: Positions | None
) -> list[list[list[int]]]:
    """The tokens to score of each prefix's continuations.

    Raises:
        ValueError: if the arguments do not belong together, a position is out of range, or a prefix is not one conversation.
    """
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
