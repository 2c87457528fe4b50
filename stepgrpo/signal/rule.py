"""Step signal `rule`: a step is right if the ground-truth plan has it. Pure text, imports no torch."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stepgrpo.rollout import Rollout
from stepgrpo.segment.plan import PlanStep, fold_name

MATCH_MODES = ("exact", "prefix", "lcs", "first_error")
MATCH_KEYS = ("action_id", "action_name")
GROUND_TRUTH_FIELDS = ("gt_action_close", "ground_truth")

StepLike = PlanStep | Mapping[str, Any]


def match_steps(
    pred: Sequence[StepLike], gt: Sequence[StepLike], mode: str = "exact", key: str = "action_id"
) -> list[float | None]:
    """Compares a plan with the ground truth, step by step.

    Args:
        pred: the plan's steps: `PlanStep`s, or mappings with "action_id" and "action_name".
        gt: the ground truth's steps, likewise.
        mode: "exact": right if the ground truth has the same step at the same position;
            "prefix": right if it and all steps before it are;
            "lcs": right if it is on the longest common subsequence; of several, the one with the earliest steps of
                `pred`;
            "first_error": as "prefix", but only the first wrong step is blamed and those after it get no verdict.
        key: what is compared. "action_id" falls back to the name where either id is missing; names are compared with
            case and white space folded.

    Returns:
        One value per step of `pred`: 1.0 right, 0.0 wrong, None no verdict.

    Raises:
        ValueError: on an unknown mode or key.
    """
    if mode not in MATCH_MODES:
        raise ValueError(f"Unknown mode {mode!r}. Choose one of: {', '.join(MATCH_MODES)}.")
    if key not in MATCH_KEYS:
        raise ValueError(f"Unknown key {key!r}. Choose one of: {', '.join(MATCH_KEYS)}.")
    ours, theirs = [_comparable(step) for step in pred], [_comparable(step) for step in gt]

    def same(i: int, j: int) -> bool:
        (id_a, name_a), (id_b, name_b) = ours[i], theirs[j]
        if key == "action_id" and id_a is not None and id_b is not None:
            return id_a == id_b
        return name_a is not None and name_a == name_b

    if mode == "lcs":
        on_path = _longest_common_subsequence(len(ours), len(theirs), same)
        return [float(i in on_path) for i in range(len(ours))]
    right = [i < len(theirs) and same(i, i) for i in range(len(ours))]
    if mode == "exact":
        return [float(value) for value in right]
    first_wrong = right.index(False) if False in right else len(right)
    after: float | None = 0.0 if mode == "prefix" else None
    return [1.0 if i < first_wrong else 0.0 if i == first_wrong else after for i in range(len(right))]


def _comparable(step: StepLike) -> tuple[int | None, str | None]:
    if isinstance(step, PlanStep):
        action_id, name = step.action_id, step.action_name
    else:
        action_id, name = _as_int(step.get("action_id")), step.get("action_name")
    return action_id, None if name is None else fold_name(str(name))


def _longest_common_subsequence(n: int, m: int, same) -> set[int]:
    """Indices of the first sequence that are on the longest common subsequence, as early as possible."""
    equal = [[same(i, j) for j in range(m)] for i in range(n)]
    length = [[0] * (m + 1) for _ in range(n + 1)]  # of the two tails from i and from j
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            length[i][j] = 1 + length[i + 1][j + 1] if equal[i][j] else max(length[i + 1][j], length[i][j + 1])
    path, i, j = set(), 0, 0
    while i < n and j < m:
        if equal[i][j]:
            path.add(i)
            i, j = i + 1, j + 1
        elif length[i][j + 1] == length[i][j]:
            j += 1
        else:
            i += 1
    return path


def read_ground_truth(value: Any) -> list[PlanStep]:
    """Reads a ground-truth plan in any of the forms data sets have.

    Args:
        value: a list of steps, each a mapping with "action_id" and/or "action_name", an id, a name, or an `[id,
            name]` pair; a mapping that holds such a list under "trajectory_actions" or "executable_plan", or columns
            of equal length under "action_id" and "action_name"; or any of these as a JSON or Python-literal string.

    Returns:
        The steps, at least one, without spans.

    Raises:
        ValueError: if the value is none of these, or empty. The message says what was found.
    """
    if isinstance(value, str):
        value = _literal(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        for name in ("trajectory_actions", "executable_plan"):
            if value.get(name) is not None:
                return read_ground_truth(value[name])
        columns = [value.get("action_id"), value.get("action_name")]
        if all(column is None or isinstance(column, (list, tuple)) for column in columns) and any(columns):
            length = max(len(column) for column in columns if column)
            ids, names = (column or [None] * length for column in columns)
            value = [{"action_id": i, "action_name": n} for i, n in zip(ids, names, strict=True)]
        else:
            raise ValueError(
                f"a mapping without trajectory_actions or executable_plan (keys: {sorted(map(str, value))})"
            )
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"expected a list of steps, got {type(value).__name__}")
    if not value:
        raise ValueError("the list of steps is empty")
    return [_read_step(step) for step in value]


def _literal(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"a string that is neither JSON nor a Python literal: {text[:80]!r}") from None


def _read_step(step: Any) -> PlanStep:
    if isinstance(step, PlanStep):
        return step
    if isinstance(step, Mapping):
        action_id, name = step.get("action_id"), step.get("action_name")
        if action_id is None and name is None and isinstance(step.get("action"), (list, tuple)):
            action_id, name = [*step["action"], None, None][:2]
    elif isinstance(step, (list, tuple)) and len(step) == 2:
        action_id, name = step
    elif isinstance(step, str) and not step.strip().lstrip("+-").isdecimal():
        action_id, name = None, step
    else:
        action_id, name = step, None
    action_id = _as_int(action_id)
    id_ok = action_id is None or (isinstance(action_id, int) and not isinstance(action_id, bool))
    if not id_ok or not (name is None or isinstance(name, str)) or (action_id is None and name is None):
        raise ValueError(f"not a step: {step!r:.80}")
    return PlanStep(action_id, name)


def _as_int(value: Any) -> Any:
    """An id as an int where it is one in another form ("35", 35.0, a NumPy integer), else unchanged."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, str) and len(value) < 20 and value.strip().lstrip("+-").isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def find_ground_truth(row: Mapping[str, Any], fields: Sequence[str]) -> list[PlanStep]:
    """The ground truth of a row: the first of the fields that is there and not None or empty.

    Raises:
        ValueError: if no field is there or the one found cannot be read. The message names the field.
    """
    for name in fields:
        value = row.get(name)
        if value is not None and not (isinstance(value, (list, tuple, str)) and not value):
            try:
                return read_ground_truth(value)
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None
    raise ValueError(f"none of the columns {', '.join(fields)} has a value")


@dataclass(frozen=True)
class RuleSignal:
    """The signal `rule`: +1 for a right step, -1 for a wrong one, None for no verdict.

    Attributes:
        fields: columns to look for the ground truth in, first match wins.
        mode, key: see `match_steps`.
    """

    fields: Sequence[str] = GROUND_TRUTH_FIELDS
    mode: str = "exact"
    key: str = "action_id"

    def __call__(self, rollouts: list[Rollout]) -> list[list[float | None]]:
        """Scores each rollout; one whose row has no readable ground truth fails with "ground_truth"."""
        return [self._score(rollout) for rollout in rollouts]

    def _score(self, rollout: Rollout) -> list[float | None]:
        try:
            ground_truth = find_ground_truth(rollout.row, self.fields)
        except ValueError as error:
            rollout.failure, rollout.reason = "ground_truth", str(error)
            return [None] * len(rollout.steps)
        if not can_compare(rollout.steps, ground_truth, self.key):
            rollout.failure = "ground_truth"
            rollout.reason = f"step_match_key={self.key!r} finds nothing to compare in the plan and its ground truth"
            return [None] * len(rollout.steps)
        verdicts = match_steps(rollout.steps, ground_truth, self.mode, self.key)
        return [None if verdict is None else 2.0 * verdict - 1.0 for verdict in verdicts]


def can_compare(pred: Sequence[PlanStep], gt: Sequence[PlanStep], key: str) -> bool:
    """Whether both plans have ids, or both have names, that the key compares. If not, no step is right or wrong."""
    names = any(step.action_name is not None for step in pred) and any(step.action_name is not None for step in gt)
    ids = any(step.action_id is not None for step in pred) and any(step.action_id is not None for step in gt)
    return names or (ids and key == "action_id")


def ground_truth_fields(field: str | None) -> tuple[str, ...]:
    """The columns a ground truth is read from, the configured one first."""
    return tuple(dict.fromkeys([field, *GROUND_TRUTH_FIELDS] if field else GROUND_TRUTH_FIELDS))
