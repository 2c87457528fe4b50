"""The answers that a run's ground truths would be, in the form that its step term reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stepgrpo.data.answers import PLAN_KEY, plan_answer
from stepgrpo.doctor.parsing import Run
from stepgrpo.signal.rule import find_ground_truth, ground_truth_fields


def true_answers(run: Run, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    """The rows that have an answer, and it: the row's `completion`, or its ground truth as the JSON of a plan.

    Args:
        run: whose plan key, ground-truth column and data source count.
        rows: rows of its data.
    """
    from stepgrpo.data.sources import ALFRED_NAMES
    from stepgrpo.rewards.text import completion_text

    fields = ground_truth_fields(getattr(run.args, "step_gt_field", None))
    plan_key = getattr(run.args, "step_plan_key", PLAN_KEY)
    pairs = []
    for row in rows:
        if run.name == "sft" and row.get("completion") is not None:
            pairs.append((row, completion_text(row["completion"])))
            continue
        try:
            text = plan_answer(find_ground_truth(row, fields), not run.recipe.data.startswith(ALFRED_NAMES))
        except ValueError:
            continue
        if plan_key != PLAN_KEY:
            text = json.dumps({plan_key: json.loads(text)[PLAN_KEY]}, ensure_ascii=False)
        pairs.append((row, text))
    return pairs
