"""The rewards by REBP's prefix and R1-VL's key steps."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrpo.rewards.key_steps import key_step_share, key_steps_reward
from stepgrpo.rewards.plan import exact_match_reward, lcs_share, plan_reward, prefix_reward, prefix_share
from stepgrpo.rewards.registry import load_rewards
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import match_steps
from tests.conftest import plan_text

A, B, C, D, X = (
    (1, "find a Potato"),
    (81, "pick up the Potato"),
    (79, "find a Sink"),
    (133, "put down"),
    (9, "find a Pan"),
)
TRUTH = [{"action_id": action_id, "action_name": name} for action_id, name in (A, B, C, D)]


@pytest.mark.parametrize(
    ("steps", "prefix", "key_steps"),
    [
        ([A, B, C, D], 1.0, 1.0),
        ([A, B, C, D, X], 1.0, 1.0),  # steps after the last cost nothing
        ([A, B, X, D], 2 * 3 / (4 * 5), 3 / 4),
        ([A], 1 * 2 / (4 * 5), 1 / 4),
        ([A, B, C], 3 * 4 / (4 * 5), 3 / 4),
        ([D, C, B, A], 0.0, 1.0),
        ([A, A, A, A], 1 * 2 / (4 * 5), 1 / 4),
        ([X, A, B, C, D], 0.0, 1.0),
        ([], 0.0, 0.0),
    ],
)
def test_by_hand(steps, prefix, key_steps):
    assert prefix_reward([plan_text(steps)], gt_action_close=[TRUTH]) == [pytest.approx(prefix)]
    assert key_steps_reward([plan_text(steps)], gt_action_close=[TRUTH]) == [pytest.approx(key_steps)]


def test_without_a_plan_or_a_truth():
    for reward in (prefix_reward, key_steps_reward):
        assert reward(["no plan", plan_text([A])], gt_action_close=[TRUTH, None]) == [0.0, None]


def test_a_step_the_truth_has_twice_is_needed_twice():
    twice = [TRUTH[0], TRUTH[1], TRUTH[0]]
    assert key_steps_reward([plan_text([A, B])], gt_action_close=[twice]) == [pytest.approx(2 / 3)]
    assert key_steps_reward([plan_text([A, A, B])], gt_action_close=[twice]) == [1.0]


def test_a_step_makes_way_so_that_two_are_paired():
    # The nameless truth step could take either Potato, the one with an id only the first.
    plan = [PlanStep(5, "find a Potato"), PlanStep(6, "find a Potato")]
    assert key_step_share(plan, [PlanStep(None, "find a Potato"), PlanStep(5, "find a Potato")]) == 1.0


STEPS = st.lists(st.builds(PlanStep, st.sampled_from([None, 1, 2]), st.sampled_from(["a", "b"])), max_size=5)


@given(STEPS, STEPS.filter(len))
def test_key_steps_against_all_assignments(plan, truth):
    padded = plan + [None] * len(truth)
    best = max(
        sum(step is not None and match_steps([step], [t]) == [1.0] for step, t in zip(order, truth, strict=True))
        for order in permutations(padded[: max(len(plan), len(truth))], len(truth))
    )
    assert key_step_share(plan, truth) == pytest.approx(best / len(truth))


def test_shares_for_metrics():
    plan, truth = [PlanStep(i) for i in (1, 9, 2, 3, 8)], [PlanStep(i) for i in (1, 2, 3, 4)]
    assert prefix_share(plan, truth) == 1 / 4 and lcs_share(plan, truth) == 3 / 4
    assert prefix_share(truth, truth) == lcs_share(truth, truth) == 1.0


def test_names_in_yaml():
    names = ["exact_match", "lcs", "prefix", "key_steps", "plan_format"]
    assert [reward.__name__ for reward in load_rewards(names)] == [f"{name}_reward" for name in names]


def test_a_reward_for_other_columns_and_keys():
    reward = plan_reward(lcs_share, gt_field="steps", plan_key="todo", without_plan=-0.5, name="mine")
    texts = ['{"todo": [{"action_id": 1}]}', '{"executable_plan": [{"action_id": 1}]}']
    assert reward.__name__ == "mine"
    assert reward(texts, steps=[[1, 2], [1, 2]], gt_action_close=[[7], [7]]) == [0.5, -0.5]
    assert reward(texts[:1], gt_action_close=[[1]]) == [1.0]
    assert exact_match_reward(texts[:1], gt_action_close=[[1]]) == [-1.0]
