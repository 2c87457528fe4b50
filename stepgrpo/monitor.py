"""What the step term did to a batch: numbers for the log, and words when it did nothing.

The numbers travel between processes as one vector of sums, so that all ranks do the same collective whatever they
hold.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from stepgrpo.credit import score_table
from stepgrpo.rollout import FAILURES, Rollout
from stepgrpo.signal import Scores

logger = logging.getLogger(__name__)

PATIENCE = 5  # batches without any step credit before a warning
MAX_REASONS = 20  # of bad rows that are spelled out; all are counted

_SUMS = (
    "completions",
    "credited_completions",
    *FAILURES,
    "scored_steps",
    "right_steps",
    "advantage",
    "advantage_squared",
    "tokens",
    "credited_tokens",
    "step_term",
    "episode_term",
)


def batch_statistics(
    rollouts: list[Rollout], scores: list[Scores], advantages: Tensor, step_term: Tensor, episode: Tensor, mask: Tensor
) -> Tensor:
    """Sums over this process's completions, to be added up over processes.

    Args:
        rollouts, scores: the B completions and the scores of their steps.
        advantages: (B, K) A^S of each step.
        step_term: (B, T) ω · A^S on the tokens.
        episode: (B,) A^E.
        mask: (B, T), 1 on the tokens that are trained.

    Returns:
        A 1-D float32 tensor, whose sum over processes `StepMonitor` reads. All tensors are on the CPU.
    """
    failures = Counter(rollout.failure for rollout in rollouts)
    table = score_table(scores, advantages.shape[1])
    of_steps = advantages[~table.isnan()].double()
    values: dict[str, Any] = {
        "completions": len(rollouts),
        "credited_completions": (step_term != 0).any(dim=1).sum(),
        **{failure: failures[failure] for failure in FAILURES},
        "scored_steps": len(of_steps),
        "right_steps": (table > 0).sum(),
        "advantage": of_steps.sum(),
        "advantage_squared": (of_steps**2).sum(),
        "tokens": mask.sum(),
        "credited_tokens": (step_term != 0).sum(),
        "step_term": step_term.abs().sum(),
        "episode_term": (episode.abs().unsqueeze(1) * mask).sum(),
    }
    return torch.tensor([float(values[name]) for name in _SUMS])


class StepMonitor:
    """Turns the sums of a batch into metrics and says when batch after batch gets no step credit."""

    def __init__(self, judges_steps: bool = True) -> None:
        self._judges_steps = judges_steps  # whether a score above 0 says that a step is right
        self._empty_batches = 0
        self._seen_reasons: set[str] = set()

    def metrics(self, totals: Tensor) -> dict[str, float]:
        """Metrics of one batch by name. Shares are in [0, 1]; a share of nothing is NaN, which TRL leaves out of its
        mean."""
        total = dict(zip(_SUMS, totals.tolist(), strict=True))

        def share(part: str, whole: str) -> float:
            return total[part] / total[whole] if total[whole] else float("nan")

        mean = share("advantage", "scored_steps")
        variance = share("advantage_squared", "scored_steps") - mean**2
        right = {"step_credit/right_steps": share("right_steps", "scored_steps")} if self._judges_steps else {}
        return {
            "step_credit/completions": share("credited_completions", "completions"),
            **{f"step_credit/failed/{failure}": share(failure, "completions") for failure in FAILURES},
            **right,
            "step_credit/advantage_mean": mean,
            "step_credit/advantage_std": max(variance, 0.0) ** 0.5 if variance == variance else variance,
            "step_credit/tokens": share("credited_tokens", "tokens"),
            "step_credit/step_to_episode": share("step_term", "episode_term"),
        }

    def report(self, totals: Tensor, rollouts: list[Rollout], main_process: bool, training: bool) -> None:
        """Logs `N/M completions got step credit`, and every new reason for a row that could not be scored.

        Args:
            totals: sums of the batch over all processes.
            rollouts: this process's completions.
            main_process: whether this process speaks for all; reasons are logged by the process that has the row.
            training: whether the batch counts for the warning after `PATIENCE` batches without credit.
        """
        total = dict(zip(_SUMS, totals.tolist(), strict=True))
        for rollout in rollouts:
            if rollout.reason and rollout.reason not in self._seen_reasons and len(self._seen_reasons) < MAX_REASONS:
                self._seen_reasons.add(rollout.reason)
                logger.warning("A row gets no step credit: %s", rollout.reason)
        if not main_process:
            return
        logger.info("%d/%d completions got step credit", total["credited_completions"], total["completions"])
        if not training:
            return
        self._empty_batches = 0 if total["credited_completions"] else self._empty_batches + 1
        if self._empty_batches == PATIENCE:
            counts = ", ".join(f"{failure}: {total[failure]:.0f}" for failure in FAILURES if total[failure])
            logger.warning(
                "0/%d completions got step credit in %d batches in a row (%s). Check that completions are not cut off "
                "(max_completion_length), that they hold a plan under step_plan_key, that step_fields are in its steps, "
                "that the ground truth's column and format are right, and, with a step_baseline, that the completions of a "
                "group differ. The end of one completion: %r",
                total["completions"],
                PATIENCE,
                counts or "no step has a verdict",
                rollouts[0].text[-300:],
            )
