"""Reward functions by name, for YAML recipes."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

_HOME = {
    "household": "stepgrpo.rewards.household:household_reward",
    "household_progress": "stepgrpo.rewards.household:household_progress_reward",
    "exact_match": "stepgrpo.rewards.plan:exact_match_reward",
    "lcs": "stepgrpo.rewards.plan:lcs_reward",
    "prefix": "stepgrpo.rewards.plan:prefix_reward",
    "key_steps": "stepgrpo.rewards.key_steps:key_steps_reward",
    "plan_format": "stepgrpo.rewards.format:plan_format_reward",
}


def load_rewards(names: Sequence[str]) -> list[Callable[..., Any]]:
    """The reward functions of these names.

    Args:
        names: names of the registry, or dotted paths: `package.module.function` or `package.module:function`.

    Raises:
        ValueError: if there is no such function. Says what was tried and what the choices are.
    """
    return [_load(name) for name in names]


def _load(name: str) -> Callable[..., Any]:
    try:
        reward = pkgutil.resolve_name(_HOME.get(name, name))
        if callable(reward):
            return reward
        problem = f"it is a {type(reward).__name__}"
    except (ImportError, AttributeError, ValueError) as error:
        problem = str(error)
    choices = ", ".join(sorted(_HOME))
    raise ValueError(
        f"reward_funcs: {name!r} is no function ({problem}). Choose from {choices}, or give a dotted path."
    )
