"""Reads a data spec, `household`, `alfred:PATH`, `alfred-names:PATH` or a JSON-lines file, into rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepgrpo.data.report import ReadReport

if TYPE_CHECKING:
    from datasets import Dataset

Succeeded = Callable[[Mapping[str, Any], Sequence[Any]], bool]

HOUSEHOLD = "household"
ALFRED = "alfred:"
ALFRED_NAMES = "alfred-names:"


def read_rows(
    spec: str, split: str = "train", n: int | None = None, seed: int = 0
) -> tuple[list[dict[str, Any]], ReadReport]:
    """The rows a spec names.

    Args:
        spec: `household`; `alfred:PATH`, see `load_alfred`; `alfred-names:PATH`, the same without ids in the prompts; or the
            path of a JSON-lines file whose rows have a `prompt`.
        split: train, dev or test. A single file has no splits and gives all its rows.
        n: at most so many rows, the first of the source; 256 for the household where it is not given, else all.
        seed: of the household's rows.

    Returns:
        The rows and a report of what was dropped and why.

    Raises:
        ValueError: if the spec names nothing that can be read, or no row is left.
    """
    if spec == HOUSEHOLD:
        from stepgrpo.data.household import household_rows

        rows = household_rows(split, 256 if n is None else n, seed=seed)
        return rows, ReadReport(len(rows), len(rows))
    prefix = next((prefix for prefix in (ALFRED, ALFRED_NAMES) if spec.startswith(prefix)), None)
    if prefix is not None:
        from stepgrpo.data.alfred import load_alfred

        rows, report = load_alfred(spec[len(prefix) :], split, action_ids=prefix == ALFRED)
    else:
        path = Path(spec)
        if not path.is_file():
            raise ValueError(f"data={spec!r} is neither `household`, nor `alfred:PATH`, nor a JSON-lines file.")
        rows, report = _read_json_lines(path)
    if not rows:
        raise ValueError(f"data={spec!r}, split {split!r}: no row can be used. {report}")
    return rows[:n], report


def read_dataset(spec: str, split: str = "train", n: int | None = None, seed: int = 0) -> tuple[Dataset, ReadReport]:
    """The rows of `read_rows`, which takes the same arguments and raises the same errors, as a `datasets.Dataset`."""
    from datasets import Dataset

    rows, report = read_rows(spec, split, n, seed)
    return Dataset.from_list(rows), report


def success_check(spec: str) -> Succeeded | None:
    """A function that says whether a plan reaches a row's goal, for the sources that can tell; else None."""
    if spec != HOUSEHOLD:
        return None
    from stepgrpo.data.household import simulate

    return lambda row, steps: simulate(row["scene"], steps).success


def _read_json_lines(path: Path) -> tuple[list[dict[str, Any]], ReadReport]:
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
