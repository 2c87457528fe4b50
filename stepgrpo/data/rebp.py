"""REBP's rows (arXiv 2505.22050): `conversations`, `image_urls`, and an `answer` that is a string with a list of names.

Its plans are written in ALFRED's own high-level actions (`Goto desk`, `Pickup cd`), which an `alfred_action_map.json` lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepgrpo.data.action_table import ActionTable, action_table, read_action_list
from stepgrpo.data.files import data_files, parse_json, read_records
from stepgrpo.data.pictures import find_pictures
from stepgrpo.data.prompts import COMMON_FIELDS, Draft
from stepgrpo.data.report import ReadReport, Unfit
from stepgrpo.data.rows import (
    MARK,
    Checked,
    checked_drafts,
    instruction_of,
    marked_prompt,
    own_table,
    prompt_text,
    read_plan,
)

FIELDS = COMMON_FIELDS
_MAPS = "*action_map*.json"


def rebp_drafts(path: Path, split: str | None, report: ReadReport, images: bool = True) -> list[Draft]:
    """Reads REBP's rows.

    Args:
        path: a JSON, JSON-lines or Parquet file, or a folder of them, named by split. An `*action_map*.json` beside it, names
            by id, is the list of actions of all rows that have none of their own.
        split: see `data_files`.
        report: what is dropped is added here.
        images: whether to keep the pictures.

    Raises:
        ValueError: if there is nothing to read, or the action map cannot be read.
    """
    files = data_files(path, split)
    rows: list[Checked] = []
    for file in files:
        for where, record in read_records(file, report):
            name = str(record.get("id", where))
            try:
                rows.append((name, *_row_of(record, name, file, images)))
            except Unfit as error:
                report.drop_unfit(error, name)
    return checked_drafts(rows, report, _action_map(files[0].parent))


def _action_map(folder: Path) -> ActionTable | None:
    maps = sorted(folder.glob(_MAPS))
    if not maps:
        return None
    try:
        return action_table(read_action_list(json.loads(maps[0].read_bytes())))
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(maps[0])!r} cannot be read as a list of actions: {error}") from None


def _row_of(record: Mapping[str, Any], name: str, file: Path, images: bool) -> tuple[dict[str, Any], Any, Any]:
    messages = record.get("conversations", record.get("messages", record.get("prompt")))
    if isinstance(messages, str):
        parsed = parse_json(messages)
        messages = parsed if isinstance(parsed, list) else [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not messages or not all(_is_message(message) for message in messages):
        raise Unfit("no conversations: a list of messages")
    if messages[-1]["role"] != "user":
        raise Unfit("conversations that do not end with the user", messages[-1]["role"])
    values = record.get("image_urls", record.get("images")) or _inline_pictures(messages)
    pictures = find_pictures(values if isinstance(values, list) else [values], (file.parent, file.parent / "images"))
    text = prompt_text(messages)
    # Pictures are shown before the text, as REBP's prompts have them, unless the text marks other places.
    last = marked_prompt(text, len(pictures)) if images else marked_prompt(text.replace(MARK, ""), 0)
    earlier = [{"role": m["role"], "content": prompt_text([m])} for m in messages[:-1]]
    if images and pictures and any(message["role"] == "user" for message in earlier):
        raise Unfit("pictures in a conversation of several turns")
    prompt = earlier + last
    row = {
        "id": name,
        "prompt": prompt,
        "images": pictures if images else [],
        "instruction": instruction_of(record, text),
        "task_type": record.get("task_type"),
    }
    return row, read_plan(record.get("answer", record.get("label"))), own_table(record, text)


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, Mapping)
        and message.get("role") in ("system", "user", "assistant")
        and isinstance(message.get("content"), (str, list))
    )


def _inline_pictures(messages: list[Any]) -> list[Any]:
    parts = [
        part for m in messages if isinstance(m["content"], list) for part in m["content"] if isinstance(part, Mapping)
    ]
    return [part[key] for part in parts for key in ("image", "image_url") if part.get(key)]
