"""A trajectory reward from the household simulator, for `reward_funcs` of a TRL trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepgrpo.data.household.world import simulate
from stepgrpo.rewards.text import completion_text
from stepgrpo.segment.plan import parse_plan


def household_reward(completions: Sequence[Any], scene: Sequence[str], **kwargs: Any) -> list[float]:
    """The simulator's verdict: +1 where the plan reaches the goal, -1 where it does not or there is no plan.

    Args:
        completions: texts, or conversations whose last message is the completion.
        scene: the rows' `scene` column, one per completion.
        kwargs: the other columns; not used.
    """
    return [1.0 if score == 1.0 else -1.0 for score in _shares_met(completions, scene)]


def household_progress_reward(completions: Sequence[Any], scene: Sequence[str], **kwargs: Any) -> list[float]:
    """The graded verdict: from -1 (no goal condition holds, or there is no plan) to +1 (all hold).

    Args:
        completions: texts, or conversations whose last message is the completion.
        scene: the rows' `scene` column, one per completion.
        kwargs: the other columns; not used.
    """
    return [2.0 * score - 1.0 for score in _shares_met(completions, scene)]


def _shares_met(completions: Sequence[Any], scene: Sequence[str]) -> list[float]:
    """For each completion the share of goal conditions that hold after its plan."""
    shares = []
    for completion, setting in zip(completions, scene, strict=True):
        plan = parse_plan(completion_text(completion))
        if plan is None:
            shares.append(0.0)
            continue
        outcome = simulate(setting, plan)
        shares.append(outcome.conditions_met / outcome.conditions_total)
    return shares
