"""The data of a run: what can be read, the ground truth of every row, and the answer that it would be."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepgrpo.data.answers import PLAN_KEY, plan_answer
from stepgrpo.doctor.findings import Report
from stepgrpo.doctor.parsing import Run
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import can_compare, find_ground_truth, ground_truth_fields

_SHOWN = 12  # columns


def check_rows(report: Report, run: Run) -> None:
    """Reads the rows a run would train on, and adds what became of them and of their ground truths.

    Args:
        report: where to.
        run: gets its `rows`.
    """
    recipe = run.recipe
    rows = _read(report, recipe, "data", recipe.data, recipe.train_split, recipe.train_n, recipe.max_plan_steps)
    if rows is None:
        return
    run.rows = rows
    columns = list(dict.fromkeys(name for row in rows for name in row))
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    report.ok("columns", ", ".join(columns[:_SHOWN]) + more)
    _prompts(report, rows)
    wanted = getattr(run.args, "step_gt_field", None)
    if wanted and wanted not in columns:
        report.warn("step_gt_field", f"{wanted} is no column: others are read", "name one of the columns above")
    check_ground_truths(report, run, rows)
    if run.name == "step_grpo":
        wanted = run.args.generation_batch_size // run.args.num_generations
        if len(rows) < wanted:
            report.fail(
                "rows for a batch",
                f"{len(rows)} rows, and completions of {wanted} different prompts are generated at once: no batch is full",
                "lower the batch (per_device_train_batch_size, gradient_accumulation_steps), or give more rows",
            )
    if str(getattr(run.args.eval_strategy, "value", run.args.eval_strategy)) != "no":
        given = recipe.eval_data or recipe.data
        _read(report, recipe, "evaluation data", given, recipe.eval_split, recipe.eval_n, None)


def _read(
    report: Report, recipe: Any, check: str, data: str, split: str, n: int | None, max_steps: int | None
) -> list[dict[str, Any]] | None:
    from stepgrpo.data.sources import LONG_PLAN, read_rows

    try:
        rows, read = read_rows(data, split, n, recipe.rows_seed, max_steps, images=recipe.use_images)
    except (ValueError, OSError) as error:
        report.fail(check, " ".join(str(error).split()))
        return None
    said = f"{data}, {split}: {read}"
    asked_for = LONG_PLAN.format(max_steps)
    if set(read.dropped) - {asked_for}:
        report.warn(check, said, "mend these rows, or train without them")
    else:
        report.ok(check, said)
    return rows


def _prompts(report: Report, rows: Sequence[Mapping[str, Any]]) -> None:
    forms = Counter("plain" if isinstance(row["prompt"], str) else "conversational" for row in rows)
    pictures = [len(row.get("images") or []) for row in rows]
    said = ", ".join(f"{count} {form}" for form, count in forms.most_common())
    if any(pictures):
        said += f"; {sum(map(bool, pictures))} rows with {sum(pictures)} pictures, at most {max(pictures)} in one"
    if len(forms) > 1:
        report.warn("prompts", said, "plain ones become a user's message")
    else:
        report.ok("prompts", said)


def check_ground_truths(report: Report, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """Reads the ground truth of every row; adds how many have one and, if some have none, why.

    Args:
        report: where to.
        run: says by which columns and by which key.
        rows: not empty.
    """
    args = run.args
    needed = run.name == "sft" or (args.step_reward_kind == "rule" and args.step_advantage_w != 0)
    fields = ground_truth_fields(getattr(args, "step_gt_field", None))
    key = getattr(args, "step_match_key", "action_id")
    lengths: list[int] = []
    problems: list[str] = []
    for row in rows:
        if run.name == "sft" and row.get("completion") is not None:
            continue
        try:
            plan = find_ground_truth(row, fields)
            if needed and not can_compare([PlanStep(0, "any")], plan, key):
                raise ValueError(f"its steps have no {key}, which step_match_key compares")
            lengths.append(len(plan))
        except ValueError as error:
            problems.append(f"{row.get('id', f'row {len(lengths) + len(problems)}')}: {error}")
    if lengths:
        steps = f"{min(lengths)} to {max(lengths)} steps, median {statistics.median(lengths):g}"
        report.ok("ground truth", f"{len(lengths)} of {len(rows)} rows: {steps}")
    if not problems:
        return
    said = f"{len(problems)} of {len(rows)} rows have none that can be read; the first: {problems[0]}"
    if not needed:
        report.warn("ground truth", said, "rewards that compare with it give these rows none")
    elif lengths:
        report.warn(
            "ground truth", said, "these rows get no step credit" if run.name != "sft" else "these rows are left out"
        )
    else:
        report.fail("ground truth", said, f"it is read from {', '.join(fields)}; step_gt_field names another column")


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
            steps = find_ground_truth(row, fields)
        except ValueError:
            continue
        text = plan_answer(steps, not run.recipe.data.startswith(ALFRED_NAMES), plan_key)
        pairs.append((row, text))
    return pairs
