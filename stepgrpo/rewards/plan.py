"""Trajectory rewards from the ground-truth plan alone, for `reward_funcs` of a TRL trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from stepgrpo.rewards.text import completion_text
from stepgrpo.segment.plan import PlanStep, parse_plan
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth, match_steps

logger = logging.getLogger(__name__)

Compare = Callable[[Sequence[PlanStep], Sequence[PlanStep]], float]


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
    return _rewards(completions, kwargs, is_exact)


def lcs_reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """2 · share - 1 in [-1, 1], the share being the `step_accuracy` of the plan; -1 where there is no plan.

    Takes and returns what `exact_match_reward` does.
    """
    return _rewards(completions, kwargs, step_accuracy)


def is_exact(steps: Sequence[PlanStep], truth: Sequence[PlanStep]) -> float:
    """1.0 if both plans have the same steps in the same order, else 0.0."""
    return float(len(steps) == len(truth) and all(match_steps(steps, truth, "exact")))


def step_accuracy(steps: Sequence[PlanStep], truth: Sequence[PlanStep]) -> float:
    """Length of the plans' longest common subsequence over the longer of their two lengths; 1.0 for two empty ones."""
    if not steps and not truth:
        return 1.0
    return sum(value or 0.0 for value in match_steps(steps, truth, "lcs")) / max(len(steps), len(truth))


def _rewards(completions: Sequence[Any], kwargs: dict[str, Any], compare: Compare) -> list[float | None]:
    columns = {name: kwargs[name] for name in GROUND_TRUTH_FIELDS if kwargs.get(name) is not None}
    rewards: list[float | None] = []
    problems: list[str] = []
    for i, completion in enumerate(completions):
        try:
            truth = find_ground_truth({name: column[i] for name, column in columns.items()}, GROUND_TRUTH_FIELDS)
        except ValueError as error:
            problems.append(str(error))
            rewards.append(None)
            continue
        steps = parse_plan(completion_text(completion))
        rewards.append(-1.0 if steps is None else 2.0 * compare(steps, truth) - 1.0)
    if problems:
        logger.warning(
            "No reward for %d of %d completions; the first: %s", len(problems), len(completions), problems[0]
        )
    if completions and (log_metric := kwargs.get("log_metric")) is not None:
        log_metric("plan_reward/no_ground_truth", len(problems) / len(completions))
    return rewards
