"""What is measured of a plan, and means over many plans. Pure text, imports no torch."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepgrpo.rewards.plan import PLAN_KEY, is_exact, lcs_share, prefix_share, step_accuracy
from stepgrpo.segment.plan import parse_plan
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth
from stepgrpo.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

Succeeded = Callable[[Mapping[str, Any], Sequence[Any]], bool]

# The last upper end is open.
_LENGTHS = (4, 8, 12, 16)
UNKNOWN = "unknown"


@dataclass
class PlanScore:
    """What is measured of one completion.

    Attributes:
        values: shares in [0, 1] by name, as `plan_metrics` lists them, without those that do not apply.
        named: how many steps have an id and a name. agreeing: how many of them have the name that is the id's; both 0
            without a vocabulary.
        length: of the ground truth, in steps; None where there is none that can be read.
        problem: why not.
    """

    values: dict[str, float] = field(default_factory=dict)
    named: int = 0
    agreeing: int = 0
    length: int | None = None
    problem: str = ""

    @property
    def solved(self) -> bool | None:
        """Whether the task is done: `success` where there is a world, else `exact_match`; None if neither applies."""
        value = self.values.get("success", self.values.get("exact_match"))
        return None if value is None else value == 1.0


def score_plan(
    text: str,
    row: Mapping[str, Any],
    succeeded: Succeeded | None = None,
    plan_key: str = PLAN_KEY,
    fields: Sequence[str] = GROUND_TRUTH_FIELDS,
    vocabulary: Vocabulary | None = None,
) -> PlanScore:
    """Measures one completion; see `plan_metrics` for the arguments and the names."""
    steps = parse_plan(text, plan_key)
    values = {"valid_json": float(_is_strict_json(text, plan_key)), "parsed": float(steps is not None)}
    score = PlanScore(values)
    if succeeded is not None:
        values["success"] = float(steps is not None and bool(succeeded(row, steps)))
    if vocabulary is not None:
        pairs = [(step.action_id, step.action_name) for step in steps or []]
        both = [(action_id, name) for action_id, name in pairs if action_id is not None and name is not None]
        score.named = len(both)
        score.agreeing = sum(vocabulary.agrees(action_id, name, row) for action_id, name in both)
    try:
        truth = find_ground_truth(row, fields)
    except ValueError as error:
        score.problem = str(error)
        return score
    score.length = len(truth)
    measures = {
        "exact_match": is_exact,
        "prefix_share": prefix_share,
        "lcs_share": lcs_share,
        "step_accuracy": step_accuracy,
    }
    values.update({name: 0.0 if steps is None else measure(steps, truth) for name, measure in measures.items()})
    return score


def plan_metrics(
    completions: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    succeeded: Succeeded | None = None,
    plan_key: str = PLAN_KEY,
    fields: Sequence[str] = GROUND_TRUTH_FIELDS,
    vocabulary: Vocabulary | None = None,
) -> dict[str, float]:
    """How good plans are, as means over the completions; all in [0, 1].

    Args:
        completions: texts, at least one.
        rows: the row of each completion.
        succeeded: says whether a row's goal is reached by a list of steps; not asked where there is no plan.
        plan_key: key of the list of steps.
        fields: columns the ground truth is read from, the first that has a value.
        vocabulary: which name belongs to which id.

    Returns:
        `valid_json`: the text is, as a whole, a JSON object with a list under `plan_key`.
        `parsed`: the tolerant reader finds a plan.
        `exact_match`: the plan has the ground truth's steps, all and in order, compared by id, by name where an id is missing.
        `prefix_share`: right steps before the first wrong one, over the ground truth's length; 0 without a plan.
        `lcs_share`: length of the longest common subsequence with the ground truth over the ground truth's length; 0 without
            a plan. Steps too many cost nothing.
        `step_accuracy`: the same length over the longer of the two plans' lengths. One step skipped, added or replaced costs
            one step, wherever it is.
        `success`: of `succeeded`, where given.
        `id_name_agreement`: share of the steps with both an id and a name whose name is the id's in `vocabulary`, over the
            steps of all completions; missing without a vocabulary or such steps.
        `no_ground_truth`: share without a readable ground truth. They are left out of the four that compare with it, which
            are missing if there are no others.

    Raises:
        ValueError: if there are no completions, or not as many as rows.
    """
    if not completions or len(completions) != len(rows):
        raise ValueError(
            f"{len(completions)} completions for {len(rows)} rows; there must be one or more, and as many."
        )
    scores = [
        score_plan(text, row, succeeded, plan_key, fields, vocabulary)
        for text, row in zip(completions, rows, strict=True)
    ]
    warn_of_missing_truths(scores)
    return mean_metrics(scores)


def warn_of_missing_truths(scores: Sequence[PlanScore]) -> None:
    """Logs how many completions have no ground truth, and why the first has none."""
    problems = [score.problem for score in scores if score.length is None]
    if problems:
        logger.warning(
            "No ground truth for %d of %d completions; the first: %s", len(problems), len(scores), problems[0]
        )


def mean_metrics(scores: Sequence[PlanScore]) -> dict[str, float]:
    """The metrics of `plan_metrics` of completions that are measured already, at least one."""
    names = dict.fromkeys(name for score in scores for name in score.values)
    means = {}
    for name in names:
        column = [score.values[name] for score in scores if name in score.values]
        means[name] = sum(column) / len(column)
    if named := sum(score.named for score in scores):
        means["id_name_agreement"] = sum(score.agreeing for score in scores) / named
    return {**means, "no_ground_truth": sum(score.length is None for score in scores) / len(scores)}


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased estimate of pass@k, 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).

    Args:
        n: how many samples there are. c: how many of them are right. k: how many one may draw.

    Returns:
        The probability that k samples drawn from the n without replacement have a right one among them.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n; got n={n}, c={c}, k={k}.")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_metrics(groups: Sequence[Sequence[PlanScore]]) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4`, ... up to the number of samples: means of `pass_at_k` over the rows.

    Args:
        groups: for each row the scores of its samples.

    Returns:
        A value for every power of two up to the fewest samples that a row has; nothing for rows where `solved` says nothing.
    """
    counts = [
        (len(group), sum(map(bool, (score.solved for score in group)))) for group in groups if _can_be_solved(group)
    ]
    if not counts:
        return {}
    fewest = min(n for n, _ in counts)
    ks = [2**i for i in range(fewest.bit_length())]
    return {f"pass@{k}": sum(pass_at_k(n, c, k) for n, c in counts) / len(counts) for k in ks}


def _can_be_solved(group: Sequence[PlanScore]) -> bool:
    return bool(group) and all(score.solved is not None for score in group)


def length_bucket(length: int | None) -> str:
    """The range of plan lengths that a ground truth of this many steps is counted under, such as "5-8" or "17+"."""
    if length is None:
        return UNKNOWN
    first = 1
    for last in _LENGTHS:
        if length <= last:
            return f"{first}-{last}"
        first = last + 1
    return f"{first}+"


def _is_strict_json(text: str, plan_key: str) -> bool:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and isinstance(answer.get(plan_key), list)
