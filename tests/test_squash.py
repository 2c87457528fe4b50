"""The teacher's formulas, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrpo.signal.squash import AGGREGATES, SQUASHES, aggregate, modulate, squash


def test_aggregates_by_hand():
    assert aggregate([-1.0, 3.0, 1.0], "mean") == pytest.approx(1.0)
    assert aggregate([-1.0, 3.0, 1.0], "min") == -1.0
    # (-1 + 9 + 1) / 5
    assert aggregate([-1.0, 3.0, 1.0], "weighted") == pytest.approx(9 / 5)
    assert aggregate([0.0, 0.0], "weighted") == 0.0
    assert aggregate([-1.0, 3.0, 1.0], "sum") == 3.0


def test_filler_tokens_thin_out_a_mean_but_not_a_weighted_mean_nor_a_minimum():
    decided, filler = [-4.0], [-0.001] * 9
    assert aggregate(decided + filler, "mean") == pytest.approx(-0.4009)
    assert aggregate(decided + filler, "weighted") < -3.98
    assert aggregate(decided + filler, "min") == -4.0
    assert aggregate(decided + filler, "sum") == pytest.approx(-4.009)


def test_squashes_by_hand():
    assert squash(0.5, "contrast") == pytest.approx(math.tanh(0.5))
    assert squash(math.log(0.75), "prob") == pytest.approx(0.5)
    assert squash(0.0, "margin") == 1.0 and squash(math.log(0.5), "margin") == pytest.approx(0.0)
    assert squash(1e-7, "margin") == 1.0  # rounding above 0


@given(st.lists(st.floats(-1e4, 0), min_size=1, max_size=30), st.sampled_from(AGGREGATES), st.sampled_from(SQUASHES))
def test_scores_are_in_range(differences, how, form):
    assert -1.0 <= squash(aggregate(differences, how), form) <= 1.0


@given(st.floats(-1, 1), st.sampled_from([-1.0, 1.0]))
def test_the_verdict_keeps_its_sign_whatever_the_teacher_says(score, verdict):
    value = modulate(score, verdict)
    assert abs(value) <= 1.0 and value * verdict >= 0.0
    assert value == pytest.approx((verdict + score) / 2)


def test_unknown_names_are_refused():
    for call in (lambda: aggregate([1.0], "max"), lambda: squash(0.0, "tanh")):
        with pytest.raises(ValueError, match="Choose one of"):
            call()
    with pytest.raises(ValueError, match="without a token"):
        aggregate([], "mean")
