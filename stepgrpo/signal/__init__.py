"""How good each step is: a signal returns one score per step and nothing else.

A signal is called with the rollouts of a batch that have steps, and returns for each rollout one finite number per
step, or None for a step without a verdict. A signal that cannot score a rollout sets its `failure` to one of
`FAILURES`, and what it returns for that rollout does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stepgrpo.rollout import FAILURES, Rollout

Scores = list[float | None]
Signal = Callable[[list[Rollout]], list[Scores]]


def score_rollouts(signal: Signal, rollouts: list[Rollout]) -> list[Scores]:
    """Scores every rollout that has steps; those without get an empty list.

    Raises:
        ValueError: if the signal returns a different number of scores than there are steps, or one that is not finite.
    """
    scorable = [i for i, rollout in enumerate(rollouts) if rollout.failure is None]
    scores: list[Scores] = [[] for _ in rollouts]
    # Called on every process, also with nothing to score: a signal may talk to the other processes.
    returned = list(signal([rollouts[i] for i in scorable]))
    name = getattr(signal, "__name__", type(signal).__name__)
    if len(returned) != len(scorable):
        raise ValueError(f"The step signal {name} returned scores for {len(returned)} of {len(scorable)} completions.")
    for i, row in zip(scorable, returned, strict=True):
        if rollouts[i].failure is not None:
            if rollouts[i].failure not in FAILURES:
                raise ValueError(
                    f"The step signal {name} set the failure {rollouts[i].failure!r}. Choose one of: {', '.join(FAILURES)}."
                )
            scores[i] = [None] * len(rollouts[i].steps)
            continue
        values: Scores = [None if score is None else float(score) for score in row or [None] * len(rollouts[i].steps)]
        if len(values) != len(rollouts[i].steps):
            raise ValueError(
                f"The step signal {name} returned {len(values)} scores for the {len(rollouts[i].steps)} steps of the "
                f"completion {rollouts[i].text[:200]!r}; it must return one per step."
            )
        if any(value is not None and not math.isfinite(value) for value in values):
            raise ValueError(
                f"The step signal {name} returned a score that is not finite ({values}) for the completion "
                f"{rollouts[i].text[:200]!r}; use None for a step without a verdict."
            )
        scores[i] = values
    return scores
