"""Matching with the ground truth, by hand and for any plans."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepgrpo import PlanStep, match_steps
from stepgrpo.rollout import Rollout
from stepgrpo.signal.rule import RuleSignal, find_ground_truth, read_ground_truth


def plan(text):
    return [PlanStep(ord(char), char) for char in text]


@pytest.mark.parametrize(
    ("pred", "gt", "exact", "prefix", "lcs", "first_error"),
    [
        ("abcd", "abcd", [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]),
        ("acd", "abcd", [1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 0, None]),  # one step left out
        ("axbcd", "abcd", [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 1, 1, 1], [1, 0, None, None, None]),  # one too many
        ("abxd", "abcd", [1, 1, 0, 1], [1, 1, 0, 0], [1, 1, 0, 1], [1, 1, 0, None]),
        (
            "bacd",
            "abcd",
            [0, 0, 1, 1],
            [0, 0, 0, 0],
            [1, 0, 1, 1],
            [0, None, None, None],
        ),  # swapped: the later is blamed
        ("aa", "a", [1, 0], [1, 0], [1, 0], [1, 0]),  # repeated
        ("abcde", "abcd", [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0]),
        ("", "ab", [], [], [], []),
        ("ab", "", [0, 0], [0, 0], [0, 0], [0, None]),
    ],
)
def test_modes(pred, gt, exact, prefix, lcs, first_error):
    for mode, expected in {"exact": exact, "prefix": prefix, "lcs": lcs, "first_error": first_error}.items():
        assert match_steps(plan(pred), plan(gt), mode) == expected, mode


def test_keys():
    gt = [{"action_id": 35, "action_name": "find a Tomato"}, {"action_id": 7, "action_name": "wait"}]
    renamed = [{"action_id": 35, "action_name": "go to the Tomato"}, {"action_id": None, "action_name": " WAIT "}]
    assert match_steps(renamed, gt, key="action_id") == [1.0, 1.0]
    assert match_steps(renamed, gt, key="action_name") == [0.0, 1.0]
    assert match_steps([PlanStep(35, "wait")], [PlanStep(None, "Wait")]) == [1.0]
    assert match_steps([PlanStep(None, None)], [PlanStep(None, None)]) == [0.0]
    assert match_steps([PlanStep(3, "find  a\ttomato")], gt, key="action_name") == [1.0]
    for bad in ({"mode": "Exact"}, {"key": "name"}):
        with pytest.raises(ValueError, match="Choose one of"):
            match_steps(gt, gt, **bad)


def brute_force_lcs(a, b):
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + brute_force_lcs(a[1:], b[1:])
    return max(brute_force_lcs(a[1:], b), brute_force_lcs(a, b[1:]))


@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
@settings(max_examples=300, deadline=None)
def test_lcs_is_longest_and_in_order(pred, gt):
    right = match_steps(plan(pred), plan(gt), "lcs")
    assert sum(right) == brute_force_lcs(pred, gt)
    rest = iter(gt)
    assert all(char in rest for char, value in zip(pred, right, strict=True) if value)
    strict = match_steps(plan(pred), plan(gt), "prefix")
    assert all(a <= b for a, b in zip(strict, match_steps(plan(pred), plan(gt)), strict=True))


STEPS = [PlanStep(35, "find a Tomato"), PlanStep(129, None), PlanStep(None, "wait")]


@pytest.mark.parametrize(
    "value",
    [
        [{"action_id": 35, "action_name": "find a Tomato"}, {"action_id": 129}, {"action_name": "wait"}],
        [[35, "find a Tomato"], 129, "wait"],
        ({"action": [35, "find a Tomato"]}, "129", "wait"),
        {"trajectory_actions": [[35, "find a Tomato"], 129.0, "wait"]},
        {"executable_plan": '[[35, "find a Tomato"], 129, "wait"]'},
        "[[35, 'find a Tomato'], 129, 'wait']",
        '{"trajectory_actions": [{"action_id": "35", "action_name": "find a Tomato"}, 129, "wait"]}',
        {"action_id": [35, 129, None], "action_name": ["find a Tomato", None, "wait"]},
    ],
)
def test_ground_truth_in_every_form(value):
    assert read_ground_truth(value) == STEPS


@pytest.mark.parametrize(
    "value", [[], "[]", "", "find a Tomato", 7, None, {}, {"plan": [1]}, [None], [[1, 2, 3]], [1.5], [True]]
)
def test_unreadable_ground_truth(value):
    with pytest.raises(ValueError):
        read_ground_truth(value)


def test_order_of_the_columns():
    row = {"gt_action_close": [1], "ground_truth": [2], "mine": [3]}
    assert find_ground_truth(row, ("mine", "gt_action_close")) == [PlanStep(3)]
    assert find_ground_truth({**row, "mine": None}, ("mine", "gt_action_close", "ground_truth")) == [PlanStep(1)]
    assert find_ground_truth({**row, "gt_action_close": []}, ("gt_action_close", "ground_truth")) == [PlanStep(2)]
    with pytest.raises(ValueError, match="'gt_action_close': a string that is neither"):
        find_ground_truth({"gt_action_close": "[" * 100_000}, ("gt_action_close",))


def test_what_cannot_be_compared_gets_no_verdict():
    ids, names = [PlanStep(1), PlanStep(2)], [PlanStep(None, "a"), PlanStep(None, "b")]
    for steps, gt, key in (
        (plan("ab"), [97, 98], "action_name"),
        (ids, ["a", "b"], "action_id"),
        (names, [1], "action_id"),
    ):
        rollout = Rollout([], steps=steps, row={"ground_truth": gt})
        assert RuleSignal(key=key)([rollout]) == [[None] * len(steps)]
        assert rollout.failure == "ground_truth" and key in rollout.reason


def test_ids_in_other_forms():
    assert match_steps([{"action_id": "35"}, {"action_id": 36.0}], [{"action_id": 35}, {"action_id": 36}]) == [
        1.0,
        1.0,
    ]


def test_signal_scores_and_counts_bad_rows():
    good = Rollout([], steps=plan("ab"), row={"ground_truth": [97, 99]})
    bad = Rollout([], steps=plan("ab"), row={"ground_truth": "?"})
    assert RuleSignal(mode="first_error")([good, bad]) == [[1.0, -1.0], [None, None]]
    assert good.failure is None and bad.failure == "ground_truth" and "ground_truth" in bad.reason
