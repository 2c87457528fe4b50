"""Reads a data spec, `household`, `alfred:PATH`, `alfred-names:PATH` or a JSON-lines file, into rows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepgrpo.data.report import ReadReport
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth

Succeeded = Callable[[Mapping[str, Any], Sequence[Any]], bool]

HOUSEHOLD = "household"
ALFRED = "alfred:"
ALFRED_NAMES = "alfred-names:"


def read_rows(
    spec: str, split: str = "train", n: int | None = None, seed: int = 0, max_plan_steps: int | None = None
) -> tuple[list[dict[str, Any]], ReadReport]:
    """The rows a spec names.

    Args:
        spec: `household`; `alfred:PATH`, see `load_alfred`; `alfred-names:PATH`, the same without ids in the prompts; or the
            path of a JSON-lines file whose rows have a `prompt`.
        split: train, dev or test. A single file has no splits and gives all its rows.
        n: how many rows, if there are as many. The household makes them, 256 where `n` is not given; of the others they are
            drawn, and all are used where `n` is not given.
        seed: of the household's rows, and of the drawing.
        max_plan_steps: leaves out rows whose ground truth has more steps, before rows are drawn.

    Returns:
        The rows, in the order of the source, and a report of what was dropped and why.

    Raises:
        ValueError: if the spec names nothing that can be read, or no row is left.
    """
    prefix = next((prefix for prefix in (ALFRED, ALFRED_NAMES) if spec.startswith(prefix)), None)
    if spec == HOUSEHOLD:
        from stepgrpo.data.household import household_rows

        rows = household_rows(split, 256 if n is None else n, seed=seed)
        report = ReadReport(len(rows), len(rows))
    elif prefix is not None:
        from stepgrpo.data.alfred import load_alfred

        rows, report = load_alfred(spec[len(prefix) :], split, action_ids=prefix == ALFRED)
    else:
        rows, report = _read_json_lines(Path(spec))
    if max_plan_steps is not None:
        rows = _without_long_plans(rows, max_plan_steps, report)
    if not rows:
        raise ValueError(f"data={spec!r}, split {split!r}: no row can be used. {report}")
    if n is not None and n < len(rows):
        chosen = sorted(random.Random(seed).sample(range(len(rows)), n))
        rows, report.kept = [rows[i] for i in chosen], n
        report.not_drawn = report.read - n - sum(report.dropped.values())
    return rows, report


def _without_long_plans(rows: list[dict[str, Any]], limit: int, report: ReadReport) -> list[dict[str, Any]]:
    kept = []
    for number, row in enumerate(rows, 1):
        try:
            too_long = len(find_ground_truth(row, GROUND_TRUTH_FIELDS)) > limit
        except ValueError:
            too_long = False
        if too_long:
            report.drop(f"plan of more than {limit} steps", str(row.get("id") or f"row {number}"))
        else:
            kept.append(row)
    report.kept = len(kept)
    return kept


def success_check(spec: str) -> Succeeded | None:
    """A function that says whether a plan reaches a row's goal, for the sources that can tell; else None."""
    if spec != HOUSEHOLD:
        return None
    from stepgrpo.data.household import simulate

    return lambda row, steps: simulate(row["scene"], steps).success


def _read_json_lines(path: Path) -> tuple[list[dict[str, Any]], ReadReport]:
    if not path.is_file():
        raise ValueError(f"data={str(path)!r} is neither `household`, nor `alfred:PATH`, nor a JSON-lines file.")
    rows, report = [], ReadReport()
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            report.read += 1
            where = f"line {number}"
            try:
                row = json.loads(line)
            except ValueError:
                report.drop("not JSON", where)
                continue
            if not isinstance(row, dict):
                report.drop("not a JSON object", where)
            elif not _is_prompt(row.get("prompt")):
                report.drop("no prompt: a text or a list of messages", where)
            else:
                rows.append(row)
    report.kept = len(rows)
    return rows, report


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and "role" in message and "content" in message for message in value)
    )
