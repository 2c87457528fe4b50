"""Whether an answer has EmbodiedBench's keys and types, for `reward_funcs` of a TRL trainer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepgrpo.rewards.plan import PLAN_KEY
from stepgrpo.rewards.text import completion_text

TEXT_KEYS = ("visual_state_description", "reasoning_and_reflection", "language_plan")
STEP_TYPES: Mapping[str, type] = {"action_id": int, "action_name": str}


def plan_format_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """The `plan_format_score` of the completions: 1 for EmbodiedBench's form to the letter, 0 where it is not JSON.

    Needs no ground truth and does not look at what the plan says.

    Args:
        completions: texts, or conversations whose last message is the completion.
        kwargs: the rows' columns; not used.
    """
    return [plan_format_score(completion_text(completion)) for completion in completions]


def plan_format_score(
    text: str,
    text_keys: Sequence[str] = TEXT_KEYS,
    plan_key: str = PLAN_KEY,
    step_types: Mapping[str, type] = STEP_TYPES,
) -> float:
    """How much of the form an answer has, in [0, 1].

    One half if the text, as a whole and without fences, is a JSON object with a string under each of `text_keys` and a list
    under `plan_key`; and one half times the share of the list's items that are objects with every key of `step_types`, of its
    type (true and false are no ids). An empty list has no such items.

    These are the first two terms of the format reward in the code of REBP (arXiv 2505.22050), scaled to 1 (there 0.125
    each), with the types of the strings checked too. Its third term, whether names belong to their ids, is `id_name_agreement`
    of `stepgrpo evaluate`.

    Args:
        text: what the model wrote.
        text_keys: keys that must hold strings.
        plan_key: key of the list of steps.
        step_types: keys of a step and the types of their values.
    """
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(answer, dict) or not isinstance(plan := answer.get(plan_key), list):
        return 0.0
    complete = all(isinstance(answer.get(key), str) for key in text_keys)
    right = sum(_has_types(item, step_types) for item in plan)
    return 0.5 * complete + 0.5 * right / max(len(plan), 1)


def make_plan_format_reward(
    text_keys: Sequence[str] = TEXT_KEYS,
    plan_key: str = PLAN_KEY,
    step_types: Mapping[str, type] = STEP_TYPES,
    name: str = "plan_format_reward",
) -> Callable[..., list[float]]:
    """A `plan_format_reward` for answers with other keys: assign it in a module and give its dotted path in `reward_funcs`.

    Args:
        text_keys, plan_key, step_types: see `plan_format_score`.
        name: what TRL logs it under.
    """

    def reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
        texts = map(completion_text, completions)
        return [plan_format_score(text, text_keys, plan_key, step_types) for text in texts]

    reward.__name__ = reward.__qualname__ = name
    return reward


def _has_types(item: Any, step_types: Mapping[str, type]) -> bool:
    return isinstance(item, dict) and all(
        isinstance(item.get(key), kind) and not (kind is not bool and isinstance(item[key], bool))
        for key, kind in step_types.items()
    )
