"""Step signal `return`: what the whole trajectory earned, as the score of its last step."""

from __future__ import annotations

from stepgrpo.rollout import Rollout


def return_signal(rollouts: list[Rollout]) -> list[list[float | None]]:
    """0 for every step but the last, which has the trajectory's reward; `step_gamma` carries it back to the others.

    A rollout that no reward function scored fails with "no_reward".
    """
    scores: list[list[float | None]] = []
    for rollout in rollouts:
        if rollout.reward is None:
            rollout.failure = "no_reward"
            scores.append([None] * len(rollout.steps))
        else:
            scores.append([*[0.0] * (len(rollout.steps) - 1), rollout.reward])
    return scores
