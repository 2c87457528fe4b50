"""Checks of a data set's columns before training starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import can_compare, find_ground_truth

_ROWS_READ = 256


def check_ground_truth(
    dataset: Any, fields: Sequence[str], name: str, key: str | None = "action_id", kind: str = "rule"
) -> None:
    """Looks for a readable ground-truth plan in the first rows of a data set.

    Args:
        dataset: a data set, a dict of data sets, or None.
        fields: the columns a ground truth may be in, the first that has a value counts.
        name: what to call the data set in the error.
        key: what the steps will be compared by, "action_id" or "action_name"; None for not at all.
        kind: the step signal that needs them.

    Raises:
        ValueError: if there is no such column, or none of the first rows has a ground truth that can be read. Names
            the columns seen and what was wrong with the first row.
    """
    if dataset is None:
        return
    if isinstance(dataset, Mapping):
        for part_name, part in dataset.items():
            check_ground_truth(part, fields, f"{name}[{part_name!r}]", key, kind)
        return
    rows: Iterable[Mapping[str, Any]] = list(islice(iter(dataset), _ROWS_READ))
    columns = getattr(dataset, "column_names", None) or sorted({column for row in rows for column in row})
    if columns and not any(field in columns for field in fields):
        raise ValueError(
            f"step_reward_kind={kind!r} needs a ground-truth plan, but {name} has none of the columns "
            f"{', '.join(fields)}. Columns seen: {', '.join(columns)}. Set step_gt_field to the column that holds it."
        )
    problems = []
    for row in rows:
        try:
            plan = find_ground_truth(row, fields)
            if key is None or can_compare([PlanStep(0, "any")], plan, key):
                return
            raise ValueError(f"its steps have no {key}, which step_match_key compares")
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError(
            f"step_reward_kind={kind!r} cannot read a ground-truth plan in any of the first {len(problems)} rows of "
            f"{name}. The first one: {problems[0]}. A plan is a list of steps with action_id and/or action_name, of ids "
            "or of names."
        )
