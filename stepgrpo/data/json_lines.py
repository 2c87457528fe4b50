"""Rows that users wrote themselves, or that `stepgrpo prepare` wrote: a file of rows with a `prompt`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepgrpo.data.action_table import ActionTable, action_table, fit_plan, read_action_list
from stepgrpo.data.files import read_records
from stepgrpo.data.pictures import find_pictures
from stepgrpo.data.prompts import COMMON_FIELDS, Draft
from stepgrpo.data.report import ReadReport, Unfit
from stepgrpo.data.rows import draft_of, read_plan
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS
from stepgrpo.vocabulary import Vocabulary, find_vocabulary

FIELDS = COMMON_FIELDS
UNCHECKED = "a ground truth without names or in no list of actions known here, which is used as it is"
_PLAN = "plan"


def json_lines_drafts(path: Path, split: str | None, report: ReadReport, images: bool = True) -> list[Draft]:
    """Reads rows with a `prompt`, plain or conversational; all other columns are kept.

    Args:
        path: a file of JSON lines, JSON or Parquet.
        split: not looked at; a file is one split.
        report: what is dropped is added here.
        images: whether to keep `images` (or `image`). Relative paths start in the folder of the file.

    Raises:
        ValueError: if there is no such file.
    """
    if not path.is_file():
        raise ValueError(f"There is no file {str(path)!r}.")
    rows: list[tuple[str, dict[str, Any]]] = []
    for where, record in read_records(path, report):
        try:
            rows.append((where, _row_of(record, path.parent, images)))
        except Unfit as error:
            report.drop_unfit(error, where)
    vocabulary = find_vocabulary([row for _, row in rows])
    drafts = []
    for where, row in rows:
        name = str(row.get("id", where))
        table = _table(row, vocabulary)
        if _checked(row, table, name, report):
            drafts.append(draft_of(row, where, table.names if table else ()))
    return drafts


def _row_of(record: Mapping[str, Any], folder: Path, images: bool) -> dict[str, Any]:
    row = dict(record)
    if not _is_prompt(row.get("prompt")):
        raise Unfit("no prompt: a text or a list of messages")
    values = row.pop("images", None) or row.pop("image", None) or []
    row.pop("image", None)
    if values and images:
        row["images"] = find_pictures(values if isinstance(values, list) else [values], (folder,))
    elif "images" in record:
        row["images"] = []
    if not images and isinstance(row["prompt"], list):
        row["prompt"] = [_without_pictures(message) for message in row["prompt"]]
    if row.get(_PLAN) and not any(row.get(name) for name in GROUND_TRUTH_FIELDS):
        row["gt_action_close"] = row[_PLAN]
    listed = row.get("action_list")
    if listed and not _is_names(listed):
        row["action_list"] = action_table(read_action_list(listed)).column
    return row


def _table(row: Mapping[str, Any], vocabulary: Vocabulary | None) -> ActionTable | None:
    if vocabulary is None:
        return None
    return ActionTable(vocabulary, tuple(row.get("action_list") or ()) if vocabulary.own_column else ())


def _checked(row: dict[str, Any], table: ActionTable | None, name: str, report: ReadReport) -> bool:
    """Whether a row's ground truth, if it has one, can be used; puts repaired steps in its place."""
    column = next((field for field in GROUND_TRUTH_FIELDS if row.get(field)), None)
    if column is None:
        return True
    try:
        steps = read_plan(row[column])
    except Unfit as error:
        report.drop_unfit(error, f"{name}, column {column!r}")
        return False
    if table is None:
        report.note(UNCHECKED, name)
        return True
    noted = sum(report.noted.values())
    plan = fit_plan(table, steps, name, report)
    if plan is not None and sum(report.noted.values()) > noted:
        row[column] = plan
    return plan is not None


def _without_pictures(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, list):
        content = [part for part in content if not (isinstance(part, Mapping) and part.get("type") == "image")]
    return {**message, "content": content}


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str) or "content" not in value:
        return False
    content = value["content"]  # None in a message that calls a tool
    parts = content if isinstance(content, list) else []
    return isinstance(content, (str, list, type(None))) and all(isinstance(part, dict) for part in parts)
