"""AUROC, shares and intervals of step scores. NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; NaN where there is nothing to compute it from.

    Attributes:
        value: of the sample. low, high: the 2.5% and 97.5% quantiles over resampled plans.
    """

    value: float
    low: float
    high: float


def wins(right: Floats, wrong: Floats) -> Floats:
    """For each right step how many wrong ones score lower, (n,); those that score the same count half."""
    ordered = np.sort(wrong)
    return (np.searchsorted(ordered, right, "left") + np.searchsorted(ordered, right, "right")) / 2.0


def auroc(right: Floats, wrong: Floats) -> float:
    """How often a right step scores higher than a wrong one, in [0, 1]; ties count half. NaN if either is missing."""
    if not len(right) or not len(wrong):
        return float("nan")
    return float(wins(right, wrong).mean() / len(wrong))


class PlanBootstrap:
    """Draws whole plans with replacement, the same draws for every number, so that signals are compared on the same plans.

    The steps of a plan, damaged in several ways, are no independent observations: a plan is drawn with all its steps or not
    at all.
    """

    def __init__(self, plans: int, draws: int = 1000, seed: int = 0) -> None:
        """Draws.

        Args:
            plans: how many plans there are.
            draws: how many samples of as many plans are drawn; 0 for no intervals.
            seed: of the draws.
        """
        self.plans = plans
        shares = np.full(plans, 1.0 / plans)
        # (draws, plans): how often each plan is in each sample.
        self._weights = np.random.default_rng(seed).multinomial(plans, shares, size=draws).astype(np.float64)

    def auroc(self, right: Floats, right_plan: Ints, wrong: Floats, wrong_plan: Ints) -> Estimate:
        """`auroc` with its interval.

        Args:
            right, wrong: the scores of right and of wrong steps, (n,) and (m,).
            right_plan, wrong_plan: the number of the plan of each, in [0, plans).
        """
        # Won pairs and all pairs by the two plans: a sample's AUROC is a sum over pairs of its plans.
        won = np.zeros((self.plans, self.plans))
        for plan in np.unique(wrong_plan):
            per_step = wins(right, wrong[wrong_plan == plan])
            won[:, plan] = np.bincount(right_plan, per_step, self.plans)
        rights = np.bincount(right_plan, minlength=self.plans).astype(np.float64)
        wrongs = np.bincount(wrong_plan, minlength=self.plans).astype(np.float64)
        numerators = np.einsum("bp,bp->b", self._weights @ won, self._weights)
        return _estimate(auroc(right, wrong), numerators, (self._weights @ rights) * (self._weights @ wrongs))

    def share(self, true: Bools, plan: Ints) -> Estimate:
        """The share of steps for which something holds, with its interval.

        Args:
            true: whether it holds for a step, (n,). plan: the number of the plan of each, (n,).
        """
        value = float(true.mean()) if len(true) else float("nan")
        holds = np.bincount(plan, true, self.plans)
        counts = np.bincount(plan, minlength=self.plans).astype(np.float64)
        return _estimate(value, self._weights @ holds, self._weights @ counts)


def _estimate(value: float, numerators: Floats, denominators: Floats) -> Estimate:
    # A sample without a single step to look at says nothing.
    some = denominators > 0
    if not some.any():
        return Estimate(value, float("nan"), float("nan"))
    low, high = np.quantile(numerators[some] / denominators[some], [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def mean_and_std(values: Floats) -> tuple[float, float]:
    """The mean and the standard deviation (of the values themselves, not of a population); NaN for none."""
    if not len(values):
        return float("nan"), float("nan")
    return float(values.mean()), float(values.std())
