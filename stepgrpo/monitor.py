"""What the step term did to a batch: numbers for the log, and words when it did nothing.

The numbers travel between processes as one vector of sums, so that all ranks do the same collective whatever they
hold.
"""

from __future__ import annotations

import logging
from collections import Counter

import torch
from torch import Tensor

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
        A 1-D float64 tensor, whose sum over processes `StepMonitor` reads.
    """
    failures = Counter(rollout.failure for rollout in rollouts)
    flat = [(i, k, score) for i, row in enumerate(scores) for k, score in enumerate(row) if score is not None]
    scored = [(i, k, score) for i, k, score in flat if rollouts[i].failure is None]
    of_steps = [float(advantages[i, k]) for i, k, _ in scored]
    credited = [
        any(score is not None and tokens for score, tokens in zip(row, rollout.step_tokens, strict=False))
        for rollout, row in zip(rollouts, scores, strict=True)
        if rollout.failure is None
    ]
    values = {
        "completions": len(rollouts),
        "credited_completions": sum(credited),
        **{failure: failures[failure] for failure in FAILURES},
        "scored_steps": len(scored),
        "right_steps": sum(score > 0 for _, _, score in scored),
        "advantage": sum(of_steps),
        "advantage_squared": sum(value**2 for value in of_steps),
        "tokens": mask.sum().item(),
        "credited_tokens": (step_term != 0).sum().item(),
        "step_term": step_term.abs().sum().item(),
        "episode_term": (episode.abs().unsqueeze(1) * mask).sum().item(),
    }
    return torch.tensor([float(values[name]) for name in _SUMS], dtype=torch.float64)


class StepMonitor:
    """Turns the sums of a batch into metrics and says, once, when batch after batch gets no step credit."""

    def __init__(self) -> None:
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
        return {
            "step_credit/completions": share("credited_completions", "completions"),
            **{f"step_credit/failed/{failure}": share(failure, "completions") for failure in FAILURES},
            "step_credit/right_steps": share("right_steps", "scored_steps"),
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
                "and that the ground truth's column and format are right. The end of one completion: %r",
                total["completions"],
                PATIENCE,
                counts or "no step has a verdict",
                rollouts[0].text[-300:],
            )
