"""Step signal `forward_proxy`: what a teacher that reads the reference plan thinks of each step.

With `T` for the teacher after the problem and the reference plan, `S` for the same model after the problem alone, and x_t for
the tokens of a step, a step's score is, in [-1, 1],

    contrast:  tanh(aggregate_t [log T(x_t) - log S(x_t)])              (the gap of OPSD, arXiv 2601.18734)
    prob:      2 · exp(aggregate_t [log T(x_t)]) - 1
    margin:    2 · exp(aggregate_t [log T(x_t) - max_v log T(v)]) - 1

`contrast` asks whether the reference makes the step more probable, which it does for a fluent wrong step, too. `margin` asks
what the teacher gives up by taking the student's token for its own favourite, and needs one forward instead of two.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stepgrpo.frozen.callback import TeacherLogpCallback
from stepgrpo.frozen.context import TeacherContexts
from stepgrpo.rollout import Rollout
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import RuleSignal, find_ground_truth
from stepgrpo.signal.squash import aggregate, modulate, squash


@dataclass(frozen=True)
class TokenLogps:
    """Log-probabilities of tokens of one completion, each list with one number <= 0 per token.

    Attributes:
        reference: of the tokens, with the reference plan in the context.
        best: of the most probable token in the place of each, in that context.
        other: of the tokens in the context that is compared with: the problem alone, or another row's plan; None where it was
            not asked for.
    """

    reference: list[float]
    best: list[float]
    other: list[float] | None = None

    def differences(self, how: str) -> list[float]:
        """What is aggregated, one number per token; `how` is one of `SQUASHES`."""
        if how == "prob":
            return self.reference
        if how == "margin":
            return [a - b for a, b in zip(self.reference, self.best, strict=True)]
        if self.other is None:
            raise ValueError("contrast needs the log-probabilities of a second context.")
        return [a - b for a, b in zip(self.reference, self.other, strict=True)]


class ReferencePlans:
    """The plans of a data set, one of which stands in for a row's own.

    RLCSD's idea: what any plan in the context does to a step, such as teaching its form, is not the row's own plan's doing.

    Args:
        plans: of the data set's rows. The same on all processes.
    """

    def __init__(self, plans: Sequence[Sequence[PlanStep]]) -> None:
        self._plans = [list(plan) for plan in plans]

    def other(self, plan: Sequence[PlanStep]) -> list[PlanStep] | None:
        """Another plan than this one, always the same for the same plan; None if there is none."""
        own = _names(plan)
        start = zlib.crc32(repr(own).encode("utf-8", "surrogatepass"))
        for n in range(len(self._plans)):
            candidate = self._plans[(start + n) % len(self._plans)]
            if _names(candidate) != own:
                return candidate
        return None


@dataclass
class ForwardProxySignal:
    """The signal `forward_proxy`: a score in [-1, 1] from a teacher's log-probabilities.

    Attributes:
        teacher: scores on the trainer's processes.
        contexts: what the teacher reads.
        fields: columns to look for the reference plan in, first match wins.
        squash, aggregate: how log-probabilities become a score.
        others: for `contrast`, the plans of which another row's takes the place of no plan in the second context, so that
            `contrast` is `tanh(aggregate[(log T - log S) - (log T' - log S)])`, where S cancels out. None: the problem alone.
        sign: with a rule, its verdict decides the sign of a score and the teacher its size; see `modulate`.
        last: what the last call did, for the log, over all processes.
    """

    teacher: TeacherLogpCallback
    contexts: TeacherContexts
    fields: Sequence[str]
    squash: str = "margin"
    aggregate: str = "min"
    others: ReferencePlans | None = None
    sign: RuleSignal | None = None
    last: dict[str, float] = field(default_factory=dict)

    def __call__(self, rollouts: list[Rollout]) -> list[list[float | None]]:
        """Scores each rollout, on all processes.

        One whose row has no readable reference plan fails with "ground_truth", one of a batch that was skipped with "teacher".

        Raises:
            RuntimeError: if the teacher failed on a batch, on any process, and failures are raised.
        """
        started = time.perf_counter()
        verdicts = self.sign(rollouts) if self.sign is not None else None
        scorable = [n for n, rollout in enumerate(rollouts) if rollout.failure is None and self._has_plan(rollout)]
        asked = [sorted({t for tokens in rollouts[n].step_tokens for t in tokens}) for n in scorable]
        found = self.token_logps([rollouts[n] for n in scorable], asked, self.squash == "contrast")
        scores: list[list[float | None]] = [[None] * len(rollout.steps) for rollout in rollouts]
        differences: list[float] = []
        failures: dict[int, tuple[str, Exception]] = {}
        for n, tokens, logps in zip(scorable, asked, found, strict=True):
            if isinstance(logps, Exception):
                rollouts[n].failure, rollouts[n].reason = "teacher", ""
                failures.setdefault(id(logps), (_batch_name(rollouts[n]), logps))
                continue
            by_token = dict(zip(tokens, logps.differences(self.squash), strict=True))
            differences += by_token.values()
            scores[n] = [self._score([by_token[t] for t in step]) for step in rollouts[n].step_tokens]
            if verdicts is not None:
                scores[n] = [_signed(score, verdict) for score, verdict in zip(scores[n], verdicts[n], strict=True)]
        skipped = sum(rollout.failure == "teacher" for rollout in rollouts)
        pictures = sum(not self.teacher.picture_tokens.isdisjoint(rollout.completion_ids) for rollout in rollouts)
        counts = [len(rollouts), skipped, pictures, time.perf_counter() - started]
        self.last = _statistics(differences, counts, self.teacher.accelerator)
        self.teacher.failures.settle(list(failures.values()), skipped, self.teacher.accelerator)
        return scores

    def token_logps(
        self, rollouts: Sequence[Rollout], positions: Sequence[Sequence[int]], second_context: bool = True
    ) -> list[TokenLogps | Exception]:
        """Log-probabilities of chosen tokens, for every completion or what went wrong with it.

        Args:
            rollouts: N completions whose rows have a reference plan.
            positions: for each the indices into its `completion_ids` of the tokens to score.
            second_context: whether the second context is asked as well, for `contrast`.

        Returns:
            N results, whose lists are in the order of `positions`. Every process has to call it.
        """
        asked, problems = [], {}
        per_rollout = 1 + second_context
        for n, (rollout, places) in enumerate(zip(rollouts, positions, strict=True)):
            plan = find_ground_truth(rollout.row, self.fields)
            # The reference is written as the student writes: a data set may ask for names without ids.
            ids = any(step.action_id is not None for step in rollout.steps)
            try:
                read = [self.contexts.with_reference(rollout.row, plan, ids)]
                if second_context and self.others is None:
                    read.append(self.contexts.alone(rollout.row))
                elif second_context and self.others is not None:
                    other = self.others.other(plan)
                    if other is None:
                        raise ValueError("step_contrast_reference='shuffled' needs rows with different plans.")
                    read.append(self.contexts.with_reference(rollout.row, other, ids))
            except Exception as problem:
                problems[n] = problem
                continue
            asked += [(context, rollout.completion_ids, places) for context in read]
        scored = iter(self.teacher.score(self.contexts, asked))
        results: list[TokenLogps | Exception] = []
        for n in range(len(rollouts)):
            mine = [problems[n]] if n in problems else [next(scored) for _ in range(per_rollout)]
            error = next((one for one in mine if isinstance(one, Exception)), None)
            results.append(error if error is not None else _token_logps(mine))
        return results

    def _has_plan(self, rollout: Rollout) -> bool:
        try:
            find_ground_truth(rollout.row, self.fields)
        except ValueError as error:
            rollout.failure, rollout.reason = "ground_truth", str(error)
            return False
        return True

    def _score(self, differences: list[float]) -> float | None:
        return squash(aggregate(differences, self.aggregate), self.squash) if differences else None


def _token_logps(scored: Sequence[Any]) -> TokenLogps:
    (reference, best), *rest = scored
    return TokenLogps(reference.tolist(), best.tolist(), rest[0][0].tolist() if rest else None)


def _signed(score: float | None, verdict: float | None) -> float | None:
    return None if score is None or verdict is None else modulate(score, verdict)


def _names(plan: Sequence[PlanStep]) -> list[tuple[int | None, str | None]]:
    return [(step.action_id, step.action_name) for step in plan]


def _batch_name(rollout: Rollout) -> str:
    prompt = rollout.row.get("prompt")
    asked = prompt if isinstance(prompt, str) or not prompt else prompt[-1].get("content")
    return f"the completions of the prompt {asked!r:.120}"


def _statistics(differences: list[float], counts: list[float], accelerator: Any) -> dict[str, float]:
    """Metrics over the tokens and completions of all processes; NaN, which the log leaves out, where there are none."""
    values = torch.tensor(differences, dtype=torch.float64)
    low, high = (values.min(), values.max()) if differences else (torch.inf, -torch.inf)
    mine = torch.tensor([len(values), values.sum(), (values**2).sum(), low, high, *counts], dtype=torch.float32)
    table: Tensor = mine[None]
    if accelerator is not None:
        table = accelerator.gather(mine[None].to(accelerator.device)).cpu()
    n, total, squares = table[:, :3].double().sum(0).tolist()
    completions, skipped, pictures = table[:, 5:8].sum(0).tolist()
    nothing = float("nan")
    mean = total / n if n else nothing
    return {
        "step_teacher/difference_mean": mean,
        "step_teacher/difference_std": max(squares / n - mean**2, 0.0) ** 0.5 if n else nothing,
        "step_teacher/difference_min": table[:, 3].min().item() if n else nothing,
        "step_teacher/difference_max": table[:, 4].max().item() if n else nothing,
        "step_teacher/failed": skipped / completions if completions else nothing,
        "step_teacher/picture_tokens": pictures / completions if completions else nothing,
        "step_teacher/seconds": table[:, 8].max().item(),
    }
