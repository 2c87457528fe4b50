"""What an audit says of each signal: from scored plans to the content of `audit.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepgrpo.audit.cases import Case
from stepgrpo.audit.corruptions import (
    AFTER_GAP,
    AFTER_WRONG,
    CORRUPTIONS,
    NONE,
    RIGHT_ONLY,
    SWAPPED_FIRST,
    SWAPPED_SECOND,
)
from stepgrpo.audit.scores import StepScores
from stepgrpo.audit.statistics import Bools, Estimate, Floats, Ints, PlanBootstrap, mean_and_std

ALL = "all"
HARD_CASES = (AFTER_WRONG, AFTER_GAP, SWAPPED_FIRST, SWAPPED_SECOND)
Scored = Sequence[tuple[Case, Mapping[str, StepScores]]]


@dataclass(frozen=True)
class _Steps:
    """All steps of all plans as columns, (S,)."""

    plan: Ints
    corruption: np.ndarray
    kind: np.ndarray
    right: Bools

    @classmethod
    def of(cls, cases: Sequence[Case]) -> _Steps:
        # Plans that could not be scored leave no gap in the numbers.
        number = {row: n for n, row in enumerate(dict.fromkeys(case.row for case in cases))}
        lengths = [len(case.plan.steps) for case in cases]
        return cls(
            plan=np.repeat([number[case.row] for case in cases], lengths).astype(np.int64),
            corruption=np.repeat(np.array([case.plan.corruption for case in cases]), lengths),
            kind=np.array([kind for case in cases for kind in case.plan.kinds]),
            right=np.array([right for case in cases for right in case.plan.right], dtype=np.bool_),
        )


def measure(scored: Scored, draws: int = 1000, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The statistics of each signal.

    Args:
        scored: each plan with the scores of every signal.
        draws: samples of the bootstrap, each of whole plans: all that was made of a ground truth is drawn together.
        seed: of the bootstrap.

    Returns:
        By the name of a signal, where it has a score for a right and for a wrong step:

        - "auroc": how often a right step scores higher than a wrong one, ties counting half, by corruption, within its
          plans; "all": over all steps of all plans. Two corruptions have no wrong step: for "reordering" and "paraphrase" it
          is how often a changed step, which is right, scores higher than a wrong one of "same_verb".
        - "wrong_rewarded": the share of all wrong steps with a score above 0; "right_punished": of all right steps below 0.
          "wrong_rewarded_by" and "right_punished_by": the same by corruption; for those two, of the changed steps.
        - "hard_cases": AUROC by kind of step (see `CorruptedPlan`). "after_wrong": right steps directly after a wrong one,
          against all wrong ones; "after_gap", "swapped_first" and "swapped_second": these wrong steps, against the right ones
          of the same corruption.
        - "score" and "difference": mean and std of the scores, and of what was squashed.

        `NAME_interval` beside a number or a mapping holds 95% intervals, [low, high].
    """
    steps = _Steps.of([case for case, _ in scored])
    bootstrap = PlanBootstrap(int(steps.plan.max()) + 1, draws, seed)
    found = {}
    for name in scored[0][1]:
        scores = _column(scored, name, "scores")
        known = ~np.isnan(scores)
        if steps.right[known].any() and not steps.right[known].all():
            entry = _signal(steps, scores, known, bootstrap)
            entry["score"] = _mean_std(scores)
            entry["difference"] = _mean_std(_column(scored, name, "differences"))
            found[name] = entry
    return found


def _column(scored: Scored, name: str, what: str) -> Floats:
    values = (value for _, signals in scored for value in getattr(signals[name], what))
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _mean_std(values: Floats) -> dict[str, float | None]:
    mean, std = mean_and_std(values[~np.isnan(values)])
    return {"mean": _number(mean), "std": _number(std)}


def _signal(steps: _Steps, scores: Floats, known: Bools, bootstrap: PlanBootstrap) -> dict[str, Any]:
    right, wrong = known & steps.right, known & ~steps.right

    def compare(upper: Bools, lower: Bools) -> Estimate:
        return bootstrap.auroc(scores[upper], steps.plan[upper], scores[lower], steps.plan[lower])

    def rewarded(where: Bools) -> Estimate:
        return bootstrap.share(scores[where] > 0, steps.plan[where])

    def punished(where: Bools) -> Estimate:
        return bootstrap.share(scores[where] < 0, steps.plan[where])

    aurocs, rewards, punishments = {}, {}, {}
    for corruption in (NONE, *CORRUPTIONS):
        here = steps.corruption == corruption
        mine = right & here
        if corruption in RIGHT_ONLY:
            mine &= steps.kind == "changed"
            aurocs[corruption] = compare(mine, wrong & (steps.corruption == "same_verb"))
        else:
            aurocs[corruption] = compare(mine, wrong & here)
            rewards[corruption] = rewarded(wrong & here)
        punishments[corruption] = punished(mine)
    aurocs[ALL] = compare(right, wrong)
    hard = {AFTER_WRONG: compare(right & (steps.kind == AFTER_WRONG), wrong)}
    for kind in HARD_CASES[1:]:
        mine = wrong & (steps.kind == kind)
        hard[kind] = compare(right & np.isin(steps.corruption, np.unique(steps.corruption[mine])), mine)
    after = punished(right & (steps.kind == AFTER_WRONG))
    return {
        **_with_intervals("auroc", aurocs),
        **_with_interval("wrong_rewarded", rewarded(wrong)),
        **_with_interval("right_punished", punished(right)),
        **_with_intervals("wrong_rewarded_by", rewards),
        **_with_intervals("right_punished_by", {**punishments, AFTER_WRONG: after}),
        **_with_intervals("hard_cases", hard),
    }


def _with_intervals(name: str, estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    there = {key: estimate for key, estimate in estimates.items() if not math.isnan(estimate.value)}
    return {
        name: {key: _number(estimate.value) for key, estimate in there.items()},
        f"{name}_interval": {key: _interval(estimate) for key, estimate in there.items()},
    }


def _with_interval(name: str, estimate: Estimate) -> dict[str, Any]:
    return {name: _number(estimate.value), f"{name}_interval": _interval(estimate)}


def _interval(estimate: Estimate) -> list[float | None]:
    return [_number(estimate.low), _number(estimate.high)]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def counts(cases: Sequence[Case]) -> dict[str, dict[str, int]]:
    """By corruption how many plans, steps, and wrong steps among them there are."""
    found = {name: {"plans": 0, "steps": 0, "wrong": 0} for name in (NONE, *CORRUPTIONS)}
    for case in cases:
        entry = found[case.plan.corruption]
        entry["plans"] += 1
        entry["steps"] += len(case.plan.steps)
        entry["wrong"] += case.plan.right.count(False)
    return found
