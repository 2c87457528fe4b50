"""One completion as the step term sees it: ids, text, steps and the tokens of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepgrpo.segment.plan import PlanStep

# Why a completion got no step credit.
FAILURES = ("masked", "cut_off", "no_plan", "empty_plan", "no_tokens", "ground_truth", "no_reward", "teacher")


@dataclass(slots=True)
class Rollout:
    """One completion, cut into steps.

    Attributes:
        token_ids: the ids the model sampled, without padding and without what tools wrote.
        text: those ids as text.
        token_spans: of each id, its half-open range of code points in `text`.
        completion_ids: all ids of the completion, those of tools too, without the padding after them.
        steps: the steps in order; empty where there is none.
        step_tokens: of each step, the indices into the completion's ids, padded or not, that take its credit.
        row: the data set's columns for this completion.
        reward: the trajectory's total reward; None where no reward function gave one.
        failure: one of `FAILURES`, or None.
        reason: more about the failure, where there is more to say.
    """

    token_ids: Sequence[int]
    text: str = ""
    token_spans: Sequence[tuple[int, int]] = ()
    completion_ids: Sequence[int] = ()
    steps: list[PlanStep] = field(default_factory=list)
    step_tokens: list[list[int]] = field(default_factory=list)
    row: Mapping[str, Any] = field(default_factory=dict)
    reward: float | None = None
    failure: str | None = None
    reason: str = ""
