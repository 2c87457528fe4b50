"""The two trainers of the demo: one checkpoint, the same prompts, the same seed and number of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from stepgrpo.demo.progress import StageBar, with_bar
from stepgrpo.demo.settings import KINDS, Rollouts, step_settings
from stepgrpo.rewards.household import household_reward


class RecordedReward:
    """`household_reward`, with the share of successes in each batch kept."""

    __name__ = "household_reward"

    def __init__(self) -> None:
        self.success: list[float] = []

    def __call__(self, completions: Sequence[Any], scene: Sequence[str], **kwargs: Any) -> list[float | None]:
        rewards: list[float | None] = [*household_reward(completions, scene)]
        self.success.append(rewards.count(1.0) / len(rewards))
        return rewards

    def recent(self, window: int = 10) -> str:
        """The mean of the last batches, in words."""
        part = self.success[-window:]
        return f"success {sum(part) / len(part):.0%} of the last {len(part)} batches" if part else ""


def reinforce(
    kind: str,
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: Sequence[dict[str, Any]],
    rollouts: Rollouts,
    output_dir: str,
    seed: int,
    learning_rate: float,
    **step_fields: Any,
) -> list[float]:
    """Trains a planner by reinforcement, in place.

    Args:
        kind: "GRPO" for TRL's trainer, "StepGRPO" for this package's.
        model, tokenizer: the start, from the supervised stage.
        rows: rows of `household_rows`.
        rollouts: how much.
        output_dir: where TRL may write; nothing is saved there.
        seed: of the order of the prompts and of the sampling.
        learning_rate: constant.
        step_fields: fields of `StepGRPOConfig` on top of `step_settings()`; StepGRPO only.

    Returns:
        For each update the share of its rollouts that reached the goal.

    Raises:
        ValueError: unknown kind.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from stepgrpo import StepGRPOConfig, StepGRPOTrainer

    if kind not in KINDS:
        raise ValueError(f"unknown trainer {kind!r}; choose from {', '.join(KINDS)}")
    common: dict[str, Any] = {
        "output_dir": output_dir,
        "max_steps": rollouts.updates,
        "per_device_train_batch_size": rollouts.prompts * rollouts.completions,
        "num_generations": rollouts.completions,
        "max_completion_length": rollouts.max_tokens,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "seed": seed,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    reward = RecordedReward()
    dataset = Dataset.from_list(list(rows))
    trainer: GRPOTrainer
    if kind == "GRPO":
        trainer = GRPOTrainer(
            model, reward, args=GRPOConfig(**common), train_dataset=dataset, processing_class=tokenizer
        )
    else:
        config = StepGRPOConfig(**common, **{**step_settings(), **step_fields})
        trainer = StepGRPOTrainer(model, reward, args=config, train_dataset=dataset, processing_class=tokenizer)
    with_bar(trainer, StageBar(kind, reward.recent)).train()
    return reward.success
