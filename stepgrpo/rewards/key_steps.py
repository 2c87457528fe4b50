"""The share of the ground truth's steps that a plan has, in any order; for `reward_funcs` of a TRL trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepgrpo.rewards.plan import plan_reward
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import match_steps


def key_steps_reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """The `key_step_share` of the plan, in [0, 1]; 0 where there is no plan.

    The step-wise accuracy reward of R1-VL (arXiv 2503.12937) for plans. What differs: R1-VL has a language model draw key
    steps (groups of keywords, any one of which will do) out of a worked solution, looks for them as substrings of the
    reasoning, and adds 0.1 times the share to the reward of the final answer. Here the key steps are the ground truth's
    steps, compared by id (by name where an id is missing), and each needs a step of the plan of its own, so that a step
    the ground truth has twice must be there twice. The weight is `reward_weights`'. As in R1-VL, neither the order nor
    steps that are not in the ground truth matter: a plan that lists every action has all key steps, so combine this
    reward with one that sees it, such as `lcs` or `exact_match`.

    Takes and returns what `exact_match_reward` does.
    """
    return _reward(completions, **kwargs)


def key_step_share(steps: Sequence[PlanStep], truth: Sequence[PlanStep]) -> float:
    """Share of the ground truth's steps that can be paired with a step of the plan, each with one of its own.

    1.0 for an empty ground truth.
    """
    if not truth:
        return 1.0
    pairs = [[i for i, step in enumerate(steps) if match_steps([step], [wanted]) == [1.0]] for wanted in truth]
    taken: dict[int, int] = {}  # step of the plan: the step of the ground truth it is paired with

    def pair(wanted: int, seen: set[int]) -> bool:
        # Steps without an id match by name, so a step may have to give way for two to be paired (Kuhn's algorithm).
        for i in pairs[wanted]:
            if i not in seen:
                seen.add(i)
                if i not in taken or pair(taken[i], seen):
                    taken[i] = wanted
                    return True
        return False

    return sum(pair(wanted, set()) for wanted in range(len(truth))) / len(truth)


_reward = plan_reward(key_step_share, name="key_steps_reward")
