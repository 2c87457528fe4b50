"""Rows as a `datasets.Dataset`, with pictures that are opened when they are looked at."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset, Features, Image, List, Value

logger = logging.getLogger(__name__)

_CONVERSATIONS = ("prompt", "completion")


def to_dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    """A data set of rows that may differ in their columns.

    Args:
        rows: rows. `images` holds paths, bytes, `{"bytes", "path"}` mappings or PIL pictures.

    Returns:
        A data set with every column that a row has, None where it lacks it. `images` is a list of pictures, `[]` for none, and
        left out if no row has any. `prompt` and `completion` have one form in all rows: plain texts become messages where
        others are, and texts of messages become lists of parts where others have such, with an image part per picture before
        the first user's text. Other columns whose values Arrow cannot put in one type become JSON texts, which is logged.

    Raises:
        ValueError: if there are no rows.
    """
    if not rows:
        raise ValueError("no rows to make a data set of")
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in names}
    pictures = [list(images or []) for images in columns.pop("images", [])] or [[] for _ in rows]
    for name in _CONVERSATIONS:
        if name in columns:
            columns[name] = _one_form(columns[name], pictures if name == "prompt" else [[] for _ in rows])
    for name, values in columns.items():
        columns[name] = _typed(name, values)
    features = Features(Dataset.from_dict(columns).features)
    if "action_list" in columns and not any(columns["action_list"]):
        features["action_list"] = List(Value("string"))  # else its type would depend on whether a row has any
    if any(pictures):
        columns["images"] = pictures
        features["images"] = List(Image())
    return Dataset.from_dict(columns, features=features)


def _one_form(values: list[Any], pictures: list[list[Any]]) -> list[Any]:
    given = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in given):
        return values
    role = "user" if pictures else "assistant"
    messages = [[{"role": role, "content": value}] if isinstance(value, str) else value for value in values]
    if all(isinstance(message.get("content"), (str, type(None))) for value in messages if value for message in value):
        return messages
    return [value if value is None else _in_parts(value, len(row)) for value, row in zip(messages, pictures)]


def _in_parts(messages: Sequence[Mapping[str, Any]], pictures: int) -> list[dict[str, Any]]:
    marked = any(isinstance(message.get("content"), list) for message in messages)
    result = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            first = message.get("role") == "user" and not marked
            content = [*([{"type": "image"}] * pictures if first else []), {"type": "text", "text": content}]
            marked = marked or first
        result.append({**message, "content": content})
    return result


def _typed(name: str, values: list[Any]) -> list[Any]:
    import pyarrow as pa

    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        if name in _CONVERSATIONS:
            raise ValueError(f"the column {name!r} mixes messages of different forms") from None
        logger.warning("Column %s has values of several types; it is kept as JSON texts.", name)
        return [value if value is None else json.dumps(value, ensure_ascii=False, default=str) for value in values]
    return values
