"""The completions that state the ground-truth plans, for supervised training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stepgrpo.data.report import ReadReport
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth

PLAN_KEY = "executable_plan"


def plan_answer(steps: Sequence[PlanStep], action_ids: bool = True, plan_key: str = PLAN_KEY) -> str:
    """A plan as JSON: `{"executable_plan": [{"action_id": 6, "action_name": "find a CD"}]}`.

    Args:
        steps: the plan.
        action_ids: whether to write the ids; a step without a name keeps its id all the same.
        plan_key: key of the list of steps.
    """
    plan: list[dict[str, Any]] = []
    for step in steps:
        item: dict[str, Any] = {}
        if step.action_id is not None and (action_ids or step.action_name is None):
            item["action_id"] = step.action_id
        if step.action_name is not None:
            item["action_name"] = step.action_name
        plan.append(item)
    return json.dumps({plan_key: plan}, ensure_ascii=False)


def with_completions(
    rows: Sequence[Mapping[str, Any]], report: ReadReport, action_ids: bool = True
) -> list[dict[str, Any]]:
    """Rows for supervised training: `prompt`, `completion`, and `images` where a row has any.

    Args:
        rows: rows with a `prompt` and a `completion` or a ground truth. One with neither is dropped.
        report: what was dropped is added here.
        action_ids: see `plan_answer`.

    Raises:
        ValueError: if no row is left.
    """
    result: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        completion = row.get("completion")
        if completion is None:
            try:
                answer = plan_answer(find_ground_truth(row, GROUND_TRUTH_FIELDS), action_ids)
            except ValueError as error:
                report.drop(f"no completion, and {error}", str(row.get("id") or f"row {number}"))
                continue
            conversational = not isinstance(row["prompt"], str)
            completion = [{"role": "assistant", "content": answer}] if conversational else answer
        result.append({"prompt": row["prompt"], "completion": completion})
        if row.get("images"):
            result[-1]["images"] = row["images"]
    report.kept = len(result)
    if not result:
        raise ValueError(f"No row can be used for supervised training. {report}")
    return result
