"""Credit arithmetic: by hand, against the published cases of GiGPO, and for any numbers."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepgrpo.credit import (
    anchor_advantages,
    discounted_returns,
    prefix_states,
    spread_on_tokens,
    step_advantages,
)

GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "cases" / "gigpo_golden.json"
NAN = float("nan")


def test_discounted_returns_interleaved():
    # a: 1, 0, 4 and b: 2, 3 with γ = 0.5
    returns = discounted_returns([1.0, 2.0, 0.0, 3.0, 4.0], ["a", "b", "a", "b", "a"], 0.5)
    assert returns.tolist() == [2.0, 3.5, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError):
        discounted_returns([1.0], [0, 1], 0.5)


def test_anchor_advantages_by_hand():
    returns = [1.0, 0.0, 5.0, 2.0, NAN, 4.0]
    group = [0, 0, 0, 1, 1, 1]
    anchor = ["s", "s", "t", "s", "s", "s"]
    assert anchor_advantages(returns, group, anchor).tolist() == [0.5, -0.5, 0.0, -1.0, 0.0, 1.0]
    scaled = anchor_advantages(returns, group, anchor, scale="mean_std", epsilon=0.0)
    assert scaled.tolist() == pytest.approx([0.5**0.5, -(0.5**0.5), 0.0, -(0.5**0.5), 0.0, 0.5**0.5])
    with pytest.raises(ValueError, match="mean_std"):
        anchor_advantages(returns, group, anchor, scale="std")


@pytest.mark.parametrize("scale", ["mean", "mean_std"])
def test_rounding_is_not_a_difference(scale):
    returns = torch.tensor([0.1 + 0.2, 0.3, 0.3], dtype=torch.float64)
    assert anchor_advantages(returns, [0, 0, 0], [0, 0, 0], scale).tolist() == [0.0, 0.0, 0.0]
    large = torch.tensor([1e6, 1e6 + 0.125, 1e6])
    assert anchor_advantages(large, [0, 0, 0], [0, 0, 0], scale).tolist() == [0.0, 0.0, 0.0]


def golden_cases():
    if not GOLDEN.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="../shared/cases/gigpo_golden.json is not here"))]
    return [pytest.param(case, id=case["case"]) for case in json.loads(GOLDEN.read_text())]


@pytest.mark.parametrize("case", golden_cases())
def test_gigpo_reference(case):
    returns = discounted_returns(torch.tensor(case["step_reward"]), case["traj"], case["gamma"])
    assert torch.allclose(returns, torch.tensor(case["step_return"]), atol=1e-5)
    scale = {"mean_norm": "mean", "mean_std_norm": "mean_std"}[case["mode"]]
    advantages = anchor_advantages(returns, case["group"], case["anchor"], scale, case["epsilon"])
    spread = advantages.unsqueeze(1) * torch.tensor(case["response_mask"])
    assert torch.allclose(spread, torch.tensor(case["A_S"]), atol=1e-5)
    total = torch.tensor(case["A_E"]) + case["step_advantage_w"] * spread
    assert torch.allclose(total, torch.tensor(case["A"]), atol=1e-5)


def test_step_advantages_by_hand():
    scores = torch.tensor([[1.0, -1.0, NAN], [1.0, 1.0, 1.0], [-1.0, NAN, NAN]])
    group = torch.zeros(3, dtype=torch.long)
    assert step_advantages(scores, group).tolist() == [[1, -1, 0], [1, 1, 1], [-1, 0, 0]]
    position = step_advantages(scores, group, baseline="position")
    assert position[:, 0].tolist() == pytest.approx([2 / 3, 2 / 3, -4 / 3])
    assert position[:, 1:].tolist() == [[-1, 0], [1, 0], [0, 0]]
    # γ = 0.5: 1 - 0.5, then -1; 1 + 0.5 + 0.25, 1.5, 1
    returns = step_advantages(scores, group, gamma=0.5)
    assert returns.tolist() == [[0.5, -1.0, 0.0], [1.75, 1.5, 1.0], [-1.0, 0.0, 0.0]]


def test_a_step_without_a_verdict_is_zero_in_the_return_and_takes_its_time():
    scores = torch.tensor([[1.0, NAN, 1.0]])
    assert step_advantages(scores, torch.zeros(1), gamma=0.5).tolist() == [[1.25, 0.0, 1.0]]


def test_prefix_states_tell_plans_apart_as_long_as_they_differ():
    a, b, c = prefix_states(["x", "y", "z"]), prefix_states(["x", "q", "z"]), prefix_states(["xy", "", "z"])
    assert a[0] == b[0] == c[0] and a[1] == b[1] != c[1]
    assert a[2] != b[2]
    assert all(-(2**63) <= state < 2**63 for state in a)
    assert prefix_states(["a\0b", "c"])[1] != prefix_states(["a", "b", "c"])[2]
    assert prefix_states(["a", "b"])[1] == prefix_states(["a", "c"])[1]


def test_spread_on_tokens():
    advantages = torch.tensor([[1.0, -2.0], [3.0, 0.0]])
    result = spread_on_tokens(advantages, [[[0, 1], [3]], [[2]]], 5)
    assert result.tolist() == [[1, 1, 0, -2, 0], [0, 0, 3, 0, 0]]
    assert spread_on_tokens(advantages, [[], []], 3).tolist() == [[0, 0, 0]] * 2


values = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(values | st.just(NAN), st.integers(0, 2), st.integers(0, 2)), max_size=40), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_returns_give_finite_centred_advantages(steps, scaled):
    returns = torch.tensor([s[0] for s in steps], dtype=torch.float64)
    group, anchor = [s[1] for s in steps], [s[2] for s in steps]
    advantages = anchor_advantages(returns, group, anchor, "mean_std" if scaled else "mean")
    assert torch.isfinite(advantages).all()
    for key in set(zip(group, anchor, strict=True)):
        mine = [
            i for i, other in enumerate(zip(group, anchor, strict=True)) if other == key and returns[i] == returns[i]
        ]
        total = sum(advantages[i].item() for i in mine)
        assert abs(total) <= 1e-4 * max([1.0, *(abs(advantages[i].item()) for i in mine)]) * max(len(mine), 1)
        if len(mine) == 1:
            assert advantages[mine[0]] == 0.0
