"""What a run of the demo does. Imports no torch, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KINDS = ("GRPO", "StepGRPO")


@dataclass(frozen=True)
class PlannerSize:
    """The planner's shape; the default has about 0.8 million weights.

    The spread of the first weights matters at this size: with Qwen2's 0.02 the attention is nearly flat at the start
    and 200 updates do not teach the planner to look at the scene; with 0.06 they do.
    """

    hidden: int = 128
    layers: int = 3
    heads: int = 4
    feed_forward: int = 384
    positions: int = 512
    spread: float = 0.06


@dataclass(frozen=True)
class Rollouts:
    """What both trainers have in common.

    Attributes:
        updates: how many weight updates.
        prompts: prompts per update.
        completions: completions per prompt.
        max_tokens: of a completion; a 16-step plan takes about 130.
    """

    updates: int = 80
    prompts: int = 4
    completions: int = 8
    max_tokens: int = 160


@dataclass(frozen=True)
class Settings:
    """One run.

    Attributes:
        examples: demonstrations for the supervised start, each seen once.
        rate: how often a step of a demonstration is wrong.
        rollouts: of each of the two trainers.
        learning_rates: of each trainer, its own best on the dev split (docs/demo.md).
        test_prompts: held-out prompts.
        samples: sampled completions of each, besides the greedy one.
        seed: of everything.
    """

    examples: int = 12800
    rate: float = 0.2
    rollouts: Rollouts = field(default_factory=Rollouts)
    learning_rates: tuple[float, float] = (1e-4, 1e-4)
    test_prompts: int = 200
    samples: int = 4
    seed: int = 0


FAST = Settings(examples=2400, rollouts=Rollouts(updates=8), test_prompts=60, samples=1)


def step_settings() -> dict[str, Any]:
    """The step term of the demo, fields of `StepGRPOConfig`.

    The planner's mistakes are steps that are replaced, skipped or repeated. A comparison by position would blame every
    step after a skipped one, and the longest common subsequence would not blame the skip at all; so the first wrong
    step takes the blame and the steps after it have no verdict.
    """
    return {
        "step_reward_kind": "rule",
        "step_match_mode": "first_error",
        "step_fields": ["action_id", "action_name"],
    }
