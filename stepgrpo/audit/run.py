"""An audit: damages plans, asks the teacher, measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from stepgrpo.audit.cases import Case, make_cases
from stepgrpo.audit.corruptions import Plan
from stepgrpo.audit.measure import Scored, counts, measure
from stepgrpo.audit.scores import Logps, score_case
from stepgrpo.data.household.world import simulate
from stepgrpo.rollout import Rollout
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth

# For each completion its numbers at the asked positions, or what went wrong with it.
Teacher = Callable[[list[Rollout], list[list[int]]], Sequence[Logps | Exception]]


def usable_plans(
    rows: Sequence[Mapping[str, Any]], fields: Sequence[str], action_ids: bool = True
) -> tuple[list[Mapping[str, Any]], list[list[PlanStep]]]:
    """The rows whose ground truth can be damaged, and these ground truths.

    Args:
        rows: rows with a `prompt`.
        fields: columns the ground truth is read from.
        action_ids: whether the policy writes ids.

    Raises:
        ValueError: if no row is left. Says what is wrong with the last one.
    """
    usable, truths, problem = [], [], "there is none"
    for number, row in enumerate(rows):
        try:
            truth = find_ground_truth(row, fields)
        except ValueError as error:
            problem = f"row {number}: {error}"
            continue
        if any(step.action_name is None for step in truth):
            problem = f"row {number}: a step without a name"
            continue
        usable.append(row)
        truths.append(truth if action_ids else [replace(step, action_id=None) for step in truth])
    if not usable:
        raise ValueError(f"No row has a ground truth with names: {problem}.")
    return usable, truths


def works_in_household(row: Mapping[str, Any], steps: Plan) -> bool:
    """Whether every step of a plan is possible in the household and the goal is reached."""
    outcome = simulate(row["scene"], steps)
    return outcome.success and all(outcome.valid)


def audit(
    rows: Sequence[Mapping[str, Any]],
    truths: Sequence[Sequence[PlanStep]],
    tokenizer: Any,
    teacher: Teacher,
    fields: Sequence[str] = GROUND_TRUTH_FIELDS,
    *,
    works: Callable[[Mapping[str, Any], Plan], bool] | None = None,
    copies: int = 1,
    draws: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """How well each signal tells right steps from wrong ones.

    Args:
        rows, truths: see `usable_plans`.
        tokenizer: the model's, or a processor that holds it.
        teacher: called with all completions of a row and the positions of their tokens; see `ForwardProxySignal.token_logps`.
        fields: columns the rule reads the ground truth from.
        works: whether a plan of a row reaches its goal, for data with a world; see `corrupted_plans`.
        copies: damaged plans of each kind from each row.
        draws: samples of the bootstrap.
        seed: of the damages and of the bootstrap.
        progress: whether to show a bar on stderr.

    Returns:
        "signals", see `measure`; "plans", "cases" and "steps", how many there are; "corruptions": by name `plans`, `steps`,
        `wrong` and `missing`, on how many rows it is not possible; "simulated": whether there was a world; "failed" and
        "first_failure": completions the teacher could not score.

    Raises:
        RuntimeError: if none could be scored, or no step of them is wrong. The first failure is its cause.
        ValueError: if the tokenizer does not give a plan back.
    """
    cases, missing = make_cases(rows, truths, tokenizer, seed, copies, works)
    scored: list[tuple[Case, Any]] = []
    failures: list[Exception] = []
    for group in tqdm(cases, desc="audit", unit="plan", disable=not progress):
        for case, logps in zip(group, teacher([c.rollout for c in group], [c.positions for c in group]), strict=True):
            if isinstance(logps, Exception):
                failures.append(logps)
            else:
                scored.append((case, score_case(case, logps, fields)))
    if not scored:
        raise RuntimeError(f"No plan could be scored: {type(failures[0]).__name__}: {failures[0]}") from failures[0]
    return {
        "signals": _measured(scored, draws, seed),
        "plans": len({case.row for case, _ in scored}),
        "cases": len(scored),
        "steps": sum(len(case.plan.steps) for case, _ in scored),
        "corruptions": {
            name: {**entry, "missing": missing[name]} for name, entry in counts([case for case, _ in scored]).items()
        },
        "simulated": works is not None,
        "failed": len(failures),
        "first_failure": f"{type(failures[0]).__name__}: {failures[0]}" if failures else None,
    }


def _measured(scored: Scored, draws: int, seed: int) -> dict[str, Any]:
    signals = measure(scored, draws, seed)
    if not signals:
        raise RuntimeError(
            "No step of the damaged plans is wrong: their rows offer no other action, and one step alone."
        )
    return signals
