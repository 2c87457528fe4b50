"""From the log-probabilities of a step's tokens to one score in [-1, 1]. Plain numbers, imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

SQUASHES = ("contrast", "prob", "margin")
AGGREGATES = ("mean", "min", "weighted", "sum")
COMBINES = ("add", "modulate")
SIGNS = ("rule", "episode")
CONTRAST_REFERENCES = ("none", "shuffled")


def aggregate(differences: Sequence[float], how: str = "mean") -> float:
    """One number for the tokens of a step.

    Args:
        differences: n >= 1 finite numbers, one per token.
        how: "mean"; "min", the weakest token; "weighted": the mean weighted by size, `Σ |d| d / Σ |d|`, where filler tokens,
            whose difference is next to nothing, do not thin out those that decide; "sum", which of log-probabilities is that
            of the whole step, whatever pieces its words are cut into.

    Raises:
        ValueError: on an unknown `how` or no differences.
    """
    if how not in AGGREGATES:
        raise ValueError(f"Unknown aggregate {how!r}. Choose one of: {', '.join(AGGREGATES)}.")
    if not differences:
        raise ValueError("A step without a token has no score.")
    if how == "mean":
        return math.fsum(differences) / len(differences)
    if how == "min":
        return min(differences)
    if how == "sum":
        return math.fsum(differences)
    size = math.fsum(abs(d) for d in differences)
    return math.fsum(abs(d) * d for d in differences) / size if size else 0.0


def squash(value: float, how: str) -> float:
    """An aggregated difference as a score in [-1, 1].

    Args:
        value: for "contrast" any real number, for "prob" and "margin" one <= 0.
        how: "contrast": `tanh(value)`; "prob" and "margin": `2 · exp(value) - 1`.

    Raises:
        ValueError: on an unknown `how`.
    """
    if how not in SQUASHES:
        raise ValueError(f"Unknown squash {how!r}. Choose one of: {', '.join(SQUASHES)}.")
    return math.tanh(value) if how == "contrast" else 2.0 * math.exp(min(value, 0.0)) - 1.0


def modulate(score: float, verdict: float) -> float:
    """The verdict's sign with the size the teacher sets: `verdict · (1 + verdict · score) / 2`.

    RLSD (arXiv 2604.03128) lets a reward that can be trusted decide the direction and a teacher only the size. Here it is
    1 where the teacher agrees fully, 1/2 where it has no opinion, 0 where it is of the opposite one.

    Args:
        score: the teacher's, in [-1, 1].
        verdict: the rule's, +1 or -1.

    Returns:
        In [0, 1] for a right step, in [-1, 0] for a wrong one.
    """
    return verdict * (1.0 + verdict * score) / 2.0
