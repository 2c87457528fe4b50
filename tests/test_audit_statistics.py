"""AUROC, shares and their intervals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrpo.audit.statistics import PlanBootstrap, auroc, mean_and_std

few_values = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=12)


def array(values):
    return np.array(values, dtype=np.float64)


def by_pairs(right, wrong):
    return sum((a > b) + 0.5 * (a == b) for a in right for b in wrong) / (len(right) * len(wrong))


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ([0.5, 0.9], [0.1], 1.0),
        ([0.1], [0.5, 0.9], 0.0),
        ([0.5], [0.5], 0.5),
        ([0.0, 1.0], [0.0], 0.75),
        ([0.2, 0.4, 0.4], [0.4, 0.1], (0 + 1 + 0.5 + 1 + 0.5 + 1) / 6),
    ],
)
def test_auroc_by_hand(right, wrong, expected):
    assert auroc(array(right), array(wrong)) == pytest.approx(expected)


def test_auroc_of_nothing_is_nan():
    assert math.isnan(auroc(array([]), array([1.0]))) and math.isnan(auroc(array([1.0]), array([])))


@given(few_values, few_values)
def test_auroc_counts_pairs(right, wrong):
    assert auroc(array(right), array(wrong)) == pytest.approx(by_pairs(right, wrong))


@given(few_values, few_values, st.integers(0, 99), st.data())
def test_the_bootstrap_draws_whole_plans(right, wrong, seed, data):
    """The interval is that of AUROCs computed pair by pair on samples that repeat a plan with all its steps."""
    plans = 3
    numbers = st.integers(0, plans - 1)
    right_plan = data.draw(st.lists(numbers, min_size=len(right), max_size=len(right)))
    wrong_plan = data.draw(st.lists(numbers, min_size=len(wrong), max_size=len(wrong)))
    estimate = PlanBootstrap(plans, 20, seed).auroc(
        array(right), np.array(right_plan), array(wrong), np.array(wrong_plan)
    )
    drawn = np.random.default_rng(seed).multinomial(plans, [1 / plans] * plans, size=20)
    samples = []
    for times in drawn:
        some = [value for value, plan in zip(right, right_plan) for _ in range(times[plan])]
        others = [value for value, plan in zip(wrong, wrong_plan) for _ in range(times[plan])]
        if some and others:
            samples.append(by_pairs(some, others))
    assert estimate.value == pytest.approx(by_pairs(right, wrong))
    if samples:
        low, high = np.quantile(samples, [0.025, 0.975])
        assert (estimate.low, estimate.high) == (pytest.approx(low), pytest.approx(high))
    else:
        assert math.isnan(estimate.low) and math.isnan(estimate.high)


def test_intervals_cover_the_truth_where_steps_of_a_plan_resemble_each_other():
    """Normal scores, and a shift per plan that all its steps share: drawn step by step, intervals are too short."""
    rng = np.random.default_rng(0)
    plans, steps, spread = 40, 10, 1.0
    plan = np.repeat(np.arange(plans), steps)

    def scores(mean):
        return mean + spread * np.repeat(rng.normal(size=plans), steps) + rng.normal(size=plans * steps)

    # Right and wrong steps have shifts of their own: the difference of two is normal with variance 2 (1 + spread²).
    truth = 0.5 * (1.0 + math.erf(1.0 / math.sqrt(2.0 * (1.0 + spread**2)) / math.sqrt(2.0)))
    covered = by_step = 0
    for trial in range(200):
        right, wrong = scores(1.0), scores(0.0)
        found = PlanBootstrap(plans, 300, trial).auroc(right, plan, wrong, plan)
        covered += found.low <= truth <= found.high
        alone = np.arange(plans * steps)
        found = PlanBootstrap(plans * steps, 100, trial).auroc(right, alone, wrong, alone)
        by_step += found.low <= truth <= found.high
    assert 180 <= covered <= 200
    assert by_step < 170


def test_share_with_its_interval():
    bootstrap = PlanBootstrap(2, 500, 0)
    found = bootstrap.share(np.array([True, True, True, False]), np.array([0, 0, 0, 1]))
    assert found.value == 0.75 and (found.low, found.high) == (0.0, 1.0)
    everywhere = bootstrap.share(np.array([True, False, True, False]), np.array([0, 0, 1, 1]))
    assert (everywhere.value, everywhere.low, everywhere.high) == (0.5, 0.5, 0.5)
    nothing = bootstrap.share(np.array([], dtype=bool), np.array([], dtype=np.int64))
    assert math.isnan(nothing.value) and math.isnan(nothing.low)


def test_without_draws_there_is_no_interval():
    found = PlanBootstrap(2, 0).auroc(array([1.0]), np.array([0]), array([0.0]), np.array([1]))
    assert found.value == 1.0 and math.isnan(found.low) and math.isnan(found.high)


def test_the_seed_decides_the_interval():
    values, plan = array([0.1, 0.7, 0.3, 0.9, 0.2]), np.arange(5)
    wrong = array([0.2, 0.4, 0.1, 0.8, 0.6])
    same = [PlanBootstrap(5, 50, seed).auroc(values, plan, wrong, plan) for seed in (3, 3, 4)]
    assert same[0] == same[1] != same[2]


def test_mean_and_std():
    assert mean_and_std(array([1.0, 3.0])) == (2.0, 1.0)
    assert all(map(math.isnan, mean_and_std(array([]))))
