"""What an evaluation reads and writes: nothing half-written under its final name, nothing lost when it is interrupted."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

_WAYS = ("greedy", "sampled")
_SAME = "Use the same --data, --split, --n and --seed."


def check_folder(folder: Path) -> None:
    """Makes a folder and writes a file in it, which is removed.

    Raises:
        ValueError: if that fails. Names the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
    except OSError as error:
        raise ValueError(f"--out {str(folder)!r} cannot be written: {error.strerror or error}") from None


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that it is there either as it was or complete."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def json_lines(record: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> str:
    """Completions as JSON lines, each with the `id` of its row."""
    lines = [json.dumps({**item, "id": rows[item["row"]].get("id")}, ensure_ascii=False) for item in record]
    return "".join(f"{line}\n" for line in lines)


class PartialCompletions:
    """The completions written so far, in a file that is there until the evaluation is done.

    Attributes:
        path: `completions.partial.jsonl`, or `completions.partial.RANK.jsonl` for the other processes.
        count: how many completions are in it.
    """

    def __init__(self, folder: Path, rows: Sequence[Mapping[str, Any]], process: int = 0) -> None:
        """Begins with an empty file.

        Args:
            folder: where the file is.
            rows: the rows that the completions number.
            process: the rank.
        """
        self.path = folder / ("completions.partial.jsonl" if process == 0 else f"completions.partial.{process}.jsonl")
        self.count = 0
        self._rows = rows
        self._file: TextIO = self.path.open("w", encoding="utf-8")

    def add(self, record: Sequence[Mapping[str, Any]]) -> None:
        """Appends completions; they are in the file when this returns."""
        self._file.write(json_lines(record, self._rows))
        self._file.flush()
        self.count += len(record)

    def close(self, keep: bool) -> None:
        """Closes the file, and removes it unless it is to be kept."""
        self._file.close()
        if not keep:
            self.path.unlink(missing_ok=True)


def read_completions(paths: Sequence[Path], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Reads completions that `stepgrpo evaluate` or another program wrote.

    Args:
        paths: JSON-lines files; a line has `row`, the number of the row from 0, `completion`, and perhaps `way` ("greedy" or
            "sampled"; greedy where missing), `id`, which must be the row's, and `cut_off`.
        rows: the rows, read from the same data with the same options.

    Returns:
        The completions by way, then by row.

    Raises:
        ValueError: if a file cannot be read, a line is none of this or belongs to another row. Names the file and line.
    """
    record = []
    for path in paths:
        try:
            # Not splitlines, which also splits at characters that JSON strings may hold.
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--completions {str(path)!r} cannot be read: {error}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record.append(_completion(line, rows))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not record:
        raise ValueError("--completions has no completions.")
    return sorted(record, key=lambda item: (_WAYS.index(item["way"]), item["row"]))


def _completion(line: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    item = json.loads(line)
    if not isinstance(item, dict) or not isinstance(item.get("completion"), str) or type(item.get("row")) is not int:
        raise ValueError('expected {"row": 0, "way": "greedy", "completion": "..."}')
    if not 0 <= item["row"] < len(rows):
        raise ValueError(
            f"there is no row {item['row']}; the data gives {len(rows)}. Use the same --data, --split, --n, --seed"
        )
    expected = rows[item["row"]].get("id")
    if item.get("id") is not None and expected is not None and item["id"] != expected:
        raise ValueError(f"row {item['row']} is {expected!r} here, not {item['id']!r}. {_SAME}")
    way = item.get("way", "greedy")
    if way not in _WAYS:
        raise ValueError(f"way is {way!r}; choose one of: {', '.join(_WAYS)}")
    cut_off = {"cut_off": bool(item["cut_off"])} if "cut_off" in item else {}
    return {"row": item["row"], "way": way, "completion": item["completion"], **cut_off}
