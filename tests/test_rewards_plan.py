"""Rewards from the ground-truth plan."""

import json

import pytest

from stepgrpo.rewards.plan import exact_match_reward, lcs_reward
from stepgrpo.rewards.text import completion_text
from tests.conftest import plan_text

A, B, C, D = (
    (1, "find a Potato"),
    (81, "pick up the Potato"),
    (79, "find a Sink"),
    (133, "put down the object in hand"),
)
TRUTH = [{"action_id": action_id, "action_name": name} for action_id, name in (A, B, C, D)]


@pytest.mark.parametrize(
    ("text", "exact", "lcs"),
    [
        (plan_text([A, B, C, D]), 1.0, 1.0),
        (plan_text([A, B, D]), -1.0, 0.5),  # 3 of 4
        (plan_text([A, A, B, C, D]), -1.0, 0.6),  # 4 of 5
        (plan_text([D, C, B, A]), -1.0, -0.5),  # 1 of 4
        (plan_text([]), -1.0, -1.0),
        ("I cannot do that.", -1.0, -1.0),
    ],
)
def test_by_hand(text, exact, lcs):
    assert exact_match_reward([text], gt_action_close=[TRUTH]) == [exact]
    assert lcs_reward([[{"role": "assistant", "content": text}]], gt_action_close=[TRUTH]) == [pytest.approx(lcs)]


def test_each_completion_has_its_own_row():
    texts = [plan_text([A]), plan_text([A])]
    assert exact_match_reward(texts, gt_action_close=[TRUTH[:1], TRUTH[1:2]]) == [1.0, -1.0]


def test_falls_back_to_the_other_column():
    columns = {"gt_action_close": [None, TRUTH[1:2]], "ground_truth": [json.dumps([1]), TRUTH[:1]]}
    assert exact_match_reward([plan_text([A])] * 2, **columns) == [1.0, -1.0]


def test_unreadable_ground_truth_is_no_verdict_and_is_counted(caplog):
    logged = []
    columns = {"gt_action_close": [TRUTH[:1], "find it", None, []]}
    rewards = lcs_reward([plan_text([A])] * 4, **columns, log_metric=lambda *metric: logged.append(metric))
    assert rewards == [1.0, None, None, None]
    assert logged == [("plan_reward/no_ground_truth", 0.75)] and "No reward for 3 of 4" in caplog.text
    assert exact_match_reward([plan_text([A])]) == [None]


def test_the_share_is_logged_when_it_is_zero():
    logged = []
    exact_match_reward([plan_text([A])], gt_action_close=[TRUTH], log_metric=lambda *metric: logged.append(metric))
    assert logged == [("plan_reward/no_ground_truth", 0.0)]


def test_completion_text():
    assert completion_text("x") == "x"
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert completion_text([{"content": "no"}, {"role": "assistant", "content": parts}]) == "ab"
    assert completion_text([]) == "" and completion_text([{"role": "assistant", "content": None}]) == ""
