"""Cuts a sampled completion into steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stepgrpo.rollout import Rollout
from stepgrpo.segment.align import token_spans, tokens_of_spans
from stepgrpo.segment.plan import field_spans, parse_plan

END_OF_REASONING = "</think>"


def plan_rollout(
    token_ids: Sequence[int],
    keep: Sequence[bool],
    tokenizer: Any,
    eos_token_ids: Collection[int],
    row: Mapping[str, Any],
    reward: float | None,
    fields: Sequence[str],
    plan_key: str,
    reasoning_open: bool = False,
) -> Rollout:
    """A completion whose steps are the items of its JSON plan.

    Args:
        token_ids: T ids, with padding.
        keep: T flags, false on padding and on what tools wrote. The answer is what the model wrote after the last tool:
            a plan in a tool's result or in a call is not the answer.
        tokenizer: the tokenizer that decodes the ids.
        eos_token_ids: the ids that end a completion; one without is cut off.
        row: the data set's columns.
        reward: the trajectory's reward, NaN or None where there is none.
        fields: which values of a step take its credit.
        plan_key: key of the list of steps.
        reasoning_open: whether the prompt ended inside a `<think>` block, as some chat templates make it.

    Returns:
        The rollout, its `step_tokens` being indices into `token_ids`. Its `failure` says why it has no step.
    """
    places = [i for i, kept in enumerate(keep) if kept]
    completion_ids = token_ids[: places[-1] + 1] if places else []
    after_tools = next((n for n in range(len(places) - 1, 0, -1) if places[n] - places[n - 1] > 1), 0)
    places = places[after_tools:]
    ids = [token_ids[i] for i in places]
    has_reward = reward is not None and math.isfinite(reward)
    rollout = Rollout(token_ids=ids, row=row, reward=reward if has_reward else None, completion_ids=completion_ids)
    if not ids:
        rollout.failure = "masked"
        return rollout
    rollout.text, rollout.token_spans = token_spans(ids, tokenizer)
    thinking = reasoning_open and END_OF_REASONING not in rollout.text
    steps = None if thinking else parse_plan(rollout.text, plan_key)
    if not steps:
        cut_off = ids[-1] not in eos_token_ids
        rollout.failure = "empty_plan" if steps is not None else "cut_off" if cut_off else "no_plan"
        return rollout
    rollout.steps = steps
    owned = tokens_of_spans(rollout.token_spans, [field_spans(step, fields) for step in steps])
    rollout.step_tokens = [[places[i] for i in tokens] for tokens in owned]
    if not any(rollout.step_tokens):
        rollout.failure = "no_tokens"
    return rollout
