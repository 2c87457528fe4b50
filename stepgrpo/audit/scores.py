"""From the teacher's log-probabilities to the scores of every signal. Plain numbers, imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from stepgrpo.audit.cases import FIELD_SETS, Case
from stepgrpo.signal.rule import MATCH_MODES, RuleSignal
from stepgrpo.signal.squash import AGGREGATES, SQUASHES, aggregate, modulate, squash

_MODULATED = ("margin/min/both", "prob/sum/both")
_SIGNS = ("rule/exact", "rule/lcs")


class Logps(Protocol):
    """What a teacher says about the asked tokens, such as `stepgrpo.signal.forward_proxy.TokenLogps`."""

    def differences(self, how: str) -> list[float]:
        """What a squash is made of, one number per token."""
        ...


@dataclass(frozen=True)
class StepScores:
    """One signal on one plan.

    Attributes:
        scores: for each step its score in [-1, 1], None without a verdict or a token.
        differences: for each step what was squashed, None where that is nothing.
    """

    scores: list[float | None]
    differences: list[float | None]


def teacher_signals() -> list[str]:
    """The names of the signals made of the teacher's numbers, `SQUASH/AGGREGATE/FIELDS` such as "margin/min/both"."""
    return [f"{how}/{over}/{fields}" for how in SQUASHES for over in AGGREGATES for fields in FIELD_SETS]


def rule_signals() -> list[str]:
    """The names of the rule's signals, `rule/MODE`."""
    return [f"rule/{mode}" for mode in MATCH_MODES]


def modulated_signals() -> list[str]:
    """The names of `step_combine: modulate`, "SIGNAL, sign of RULE": the teacher's size and the rule's sign."""
    return [f"{signal}, sign of {rule}" for signal in _MODULATED for rule in _SIGNS]


def score_case(case: Case, logps: Logps, gt_fields: Sequence[str]) -> dict[str, StepScores]:
    """The scores of every signal on a plan.

    Args:
        case: the plan.
        logps: the teacher's numbers, one per entry of `case.positions`.
        gt_fields: columns the rule reads the ground truth from.

    Raises:
        ValueError: for another number of log-probabilities than positions.
    """
    by_squash = {how: logps.differences(how) for how in SQUASHES}
    for how, values in by_squash.items():
        if len(values) != len(case.positions):
            raise ValueError(f"The teacher gave {len(values)} numbers for {how!r} of {len(case.positions)} tokens.")
    found: dict[str, StepScores] = {}
    for name in teacher_signals():
        how, over, fields = name.split("/")
        steps = [[by_squash[how][i] for i in owned] for owned in case.owned[fields]]
        found[name] = _step_scores(steps, how, over)
    rules = _rule_scores(case, gt_fields)
    for name in modulated_signals():
        signal, rule = name.split(", sign of ")
        found[name] = _modulated(found[signal], rules[rule])
    return {**found, **rules}


def _step_scores(steps: Sequence[Sequence[float]], how: str, over: str) -> StepScores:
    differences = [aggregate(values, over) if values else None for values in steps]
    return StepScores([None if d is None else squash(d, how) for d in differences], differences)


def _modulated(teacher: StepScores, rule: StepScores) -> StepScores:
    pairs = zip(teacher.scores, rule.scores, strict=True)
    scores = [None if a is None or b is None else modulate(a, b) for a, b in pairs]
    return StepScores(scores, [None] * len(scores))


def _rule_scores(case: Case, gt_fields: Sequence[str]) -> Mapping[str, StepScores]:
    found = {}
    for name, mode in zip(rule_signals(), MATCH_MODES, strict=True):
        (scores,) = RuleSignal(gt_fields, mode)([replace(case.rollout)])
        found[name] = StepScores(scores, [None] * len(scores))
    return found
