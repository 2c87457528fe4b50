"""Trajectory rewards from the ground-truth plan alone, for `reward_funcs` of a TRL trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from stepgrpo.rewards.text import completion_text
from stepgrpo.segment.plan import PlanStep, parse_plan
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth, ground_truth_fields, match_steps

logger = logging.getLogger(__name__)

PLAN_KEY = "executable_plan"

Compare = Callable[[Sequence[PlanStep], Sequence[PlanStep]], float]
Reward = Callable[..., list[float | None]]


def exact_match_reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """+1 where the plan has the ground truth's steps, all and in order; -1 where it has not or there is no plan.

    Steps are compared by id, and by name where an id is missing.

    Args:
        completions: texts, or conversations whose last message is the completion.
        kwargs: the rows' columns, of which `gt_action_close` is read, then `ground_truth`; and TRL's `log_metric`.

    Returns:
        One value per completion; None where the row has no ground truth that can be read, which is logged as
        `plan_reward/no_ground_truth` (a share).
    """
    return _rewards(completions, kwargs, lambda steps, truth: 2.0 * is_exact(steps, truth) - 1.0, -1.0)


def lcs_reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """2 · share - 1 in [-1, 1], the share being the `step_accuracy` of the plan; -1 where there is no plan.

    Takes and returns what `exact_match_reward` does.
    """
    return _rewards(completions, kwargs, lambda steps, truth: 2.0 * step_accuracy(steps, truth) - 1.0, -1.0)


def prefix_reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """The `prefix_progress` of the plan, c(c + 1) / (L(L + 1)), in [0, 1]; 0 where there is no plan.

    The multi-step reward of "Reinforced Reasoning for Embodied Planning" (REBP, arXiv 2505.22050). Its code compares names
    in lower case; here steps are compared by id, and by name where an id is missing. Its code also takes 0.25 off where
    L = 1 and the plan has more steps; here nothing is taken off for steps after the ground truth's last.

    Takes and returns what `exact_match_reward` does.
    """
    return _rewards(completions, kwargs, prefix_progress, 0.0)


def plan_reward(
    compare: Compare,
    gt_field: str | None = None,
    plan_key: str = PLAN_KEY,
    without_plan: float = 0.0,
    name: str = "plan_reward",
) -> Reward:
    """Makes a reward function for a data set with another ground-truth column, plan key or comparison.

    Args:
        compare: the reward of a plan, from its steps and the ground truth's, such as `prefix_progress`.
        gt_field: the column that is read first; then `gt_action_close`, then `ground_truth`.
        plan_key: key of the list of steps in the completion.
        without_plan: the reward where there is no plan.
        name: what TRL logs it under.

    Returns:
        A function that takes and returns what `exact_match_reward` does.
    """
    fields = ground_truth_fields(gt_field)

    def reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
        return _rewards(completions, kwargs, compare, without_plan, fields, plan_key)

    reward.__name__ = reward.__qualname__ = name
    return reward


def is_exact(steps: Sequence[PlanStep], truth: Sequence[PlanStep]) -> float:
    """1.0 if both plans have the same steps in the same order, else 0.0."""
    return float(len(steps) == len(truth) and all(match_steps(steps, truth, "exact")))


def step_accuracy(steps: Sequence[PlanStep], truth: Sequence[PlanStep]) -> float:
    """Length of the plans' longest common subsequence over the longer of their two lengths; 1.0 for two empty ones."""
    if not steps and not truth:
        return 1.0
    return sum(value or 0.0 for value in match_steps(steps, truth, "lcs")) / max(len(steps), len(truth))


def lcs_share(steps: Sequence[PlanStep], truth: Sequence[PlanStep]) -> float:
    """Length of the longest common subsequence over the ground truth's length; 1.0 for an empty ground truth.

    Unlike in `step_accuracy`, steps too many cost nothing.
    """
    return sum(value or 0.0 for value in match_steps(steps, truth, "lcs")) / len(truth) if truth else 1.0


def leading_right_steps(steps: Sequence[PlanStep], truth: Sequence[PlanStep]) -> int:
    """How many steps the plan gets right, in their places, before its first wrong one."""
    return int(sum(value or 0.0 for value in match_steps(steps, truth, "prefix")))


def prefix_share(steps: Sequence[PlanStep], truth: Sequence[PlanStep]) -> float:
    """c / L: c of `leading_right_steps`, L the ground truth's length; 1.0 for an empty ground truth."""
    return leading_right_steps(steps, truth) / len(truth) if truth else 1.0


def prefix_progress(steps: Sequence[PlanStep], truth: Sequence[PlanStep]) -> float:
    """c(c + 1) / (L(L + 1)) of REBP (arXiv 2505.22050), c and L as in `prefix_share`: a later right step adds more."""
    if not truth:
        return 1.0
    right, length = leading_right_steps(steps, truth), len(truth)
    return right * (right + 1) / (length * (length + 1))


def _rewards(
    completions: Sequence[Any],
    kwargs: dict[str, Any],
    compare: Compare,
    without_plan: float,
    fields: Sequence[str] = GROUND_TRUTH_FIELDS,
    plan_key: str = PLAN_KEY,
) -> list[float | None]:
    columns = {name: kwargs[name] for name in fields if kwargs.get(name) is not None}
    rewards: list[float | None] = []
    problems: list[str] = []
    for i, completion in enumerate(completions):
        try:
            truth = find_ground_truth({name: column[i] for name, column in columns.items()}, fields)
        except ValueError as error:
            problems.append(str(error))
            rewards.append(None)
            continue
        steps = parse_plan(completion_text(completion), plan_key)
        rewards.append(without_plan if steps is None else compare(steps, truth))
    if problems:
        logger.warning(
            "No reward for %d of %d completions; the first: %s", len(problems), len(completions), problems[0]
        )
    if completions and (log_metric := kwargs.get("log_metric")) is not None:
        log_metric("plan_reward/no_ground_truth", len(problems) / len(completions))
    return rewards
