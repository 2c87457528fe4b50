"""Reward functions by name, for YAML recipes."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

logger = logging.getLogger(__name__)

VERIFY = "verify"
_HOME = {
    "household": "stepgrpo.rewards.household:household_reward",
    "household_progress": "stepgrpo.rewards.household:household_progress_reward",
    "exact_match": "stepgrpo.rewards.plan:exact_match_reward",
    "lcs": "stepgrpo.rewards.plan:lcs_reward",
    "prefix": "stepgrpo.rewards.plan:prefix_reward",
    "key_steps": "stepgrpo.rewards.key_steps:key_steps_reward",
    "plan_format": "stepgrpo.rewards.format:plan_format_reward",
}


def load_rewards(
    names: Sequence[str], verify: Any = None, plan_key: str = "executable_plan", on_error: str = "raise"
) -> list[Callable[..., Any]]:
    """The reward functions of these names.

    Args:
        names: names of the registry, or dotted paths: `package.module.function` or `package.module:function`.
        verify: `VerifyArguments`, for the name `verify`.
        plan_key: key of the list of steps in a completion's JSON, for `verify`.
        on_error: "raise" or "skip" a batch on which the verify model fails.

    Raises:
        ValueError: if there is no such function, which says what was tried and what the choices are; or if the verify model is
            not named or cannot be used.
    """
    if getattr(verify, "verify_model_path", None) and VERIFY not in names:
        logger.warning("verify_model_path is set, but reward_funcs %s has no `verify`: it is not used.", list(names))
    alone = len(names) == 1
    return [make_verify(verify, plan_key, on_error, alone) if name == VERIFY else _load(name) for name in names]


def make_verify(
    arguments: Any, plan_key: str = "executable_plan", on_error: str = "raise", alone: bool = False
) -> Callable[..., Any]:
    """The verify model of `VerifyArguments` as a reward function.

    Args:
        arguments: `VerifyArguments`.
        plan_key: key of the list of steps in a completion's JSON.
        on_error: "raise" or "skip" a batch that fails.
        alone: whether there is no other reward function.

    Raises:
        ValueError: see `VerifyReward`; or if no model is named.
    """
    if not getattr(arguments, "verify_model_path", None):
        raise ValueError(
            "reward_funcs has `verify`, but verify_model_path is not set: the directory or hub id of a vision-language or "
            "text model that judges the plans."
        )
    from stepgrpo.rewards.verify import VerifyReward

    if alone and arguments.verify_no_plan is None:
        logger.warning(
            "verify is the only reward and verify_no_plan is not set: a completion without a plan has no reward and advantage "
            "0, better than a bad plan's. Set verify_no_plan: -1, or add plan_format to reward_funcs."
        )
    pixels = arguments.verify_max_pixels
    return VerifyReward(
        arguments.verify_model_path,
        template=arguments.verify_template,
        yes=arguments.verify_yes,
        no=arguments.verify_no,
        batch_size=arguments.verify_batch_size,
        no_plan=arguments.verify_no_plan,
        dtype=arguments.verify_dtype,
        offload=arguments.verify_offload,
        on_error=on_error,
        plan_key=plan_key,
        processor_kwargs={"max_pixels": pixels} if pixels else None,
    )


def _load(name: str) -> Callable[..., Any]:
    try:
        reward = pkgutil.resolve_name(_HOME.get(name, name))
        if callable(reward):
            return reward
        problem = f"it is a {type(reward).__name__}"
    except (ImportError, AttributeError, ValueError) as error:
        problem = str(error)
    choices = ", ".join(sorted([*_HOME, VERIFY]))
    raise ValueError(
        f"reward_funcs: {name!r} is no function ({problem}). Choose from {choices}, or give a dotted path."
    )
