"""Reads the records of JSON, JSON-lines and Parquet files; a bad record or file is counted and does not stop the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepgrpo.data.report import ReadReport

# What a split is called here, in ALFRED's folders and in file names.
SPLITS = {
    "train": ("train",),
    "dev": ("dev", "valid_seen", "valid", "validation", "val"),
    "test": ("test", "valid_unseen"),
}
SUFFIXES = (".json", ".jsonl", ".parquet")


def data_files(path: Path, split: str | None) -> list[Path]:
    """The data files of a split.

    Args:
        path: a file, which stands for itself whatever the split; or a folder of files named by split (`train.jsonl`,
            `train-00000-of-00002.parquet`), or with no split in any name.
        split: train, dev or test, or what the names begin with; None for all.

    Raises:
        ValueError: if there is nothing to read, or there are splits but not this one.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"There is no file or folder {str(path)!r}.")
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and "action_map" not in file.stem)
    if not files:
        raise ValueError(f"{str(path)!r} has no {', '.join(SUFFIXES)} files.")
    known = [name for names in SPLITS.values() for name in names]
    if split is None or not any(_is_of(file, name) for file in files for name in (split, *known)):
        return files
    wanted = [file for file in files if any(_is_of(file, name) for name in (split, *SPLITS.get(split, ())))]
    if not wanted:
        raise ValueError(f"{str(path)!r} has no split {split!r}; its files: {', '.join(file.name for file in files)}.")
    return wanted


def _is_of(file: Path, split: str) -> bool:
    return file.stem == split or file.stem.startswith((f"{split}-", f"{split}_", f"{split}."))


def read_records(file: Path, report: ReadReport) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a file, each with where it stands.

    Args:
        file: JSON lines; JSON with a list of records or with one; or Parquet.
        report: each record is counted as read, and what is no record as dropped.
    """
    rows: Iterator[tuple[str, Any]]
    try:
        rows = _parquet_rows(file) if file.suffix == ".parquet" else _json_rows(file)
        for where, value in rows:
            report.read += 1
            if isinstance(value, ValueError):
                report.drop("not JSON", where)
            elif not isinstance(value, dict):
                report.drop("not a JSON object", where)
            else:
                yield where, value
    except (OSError, ValueError) as error:
        report.read += 1
        report.drop("unreadable file", f"{file.name}: {error}")


def _json_rows(file: Path) -> Iterator[tuple[str, Any]]:
    if file.suffix == ".json":
        content = file.read_bytes()
        whole = parse_json(content)
        if isinstance(whole, list):
            yield from ((f"{file.name}[{number}]", value) for number, value in enumerate(whole))
            return
        # Some tools name JSON lines .json.
        if not (isinstance(whole, ValueError) and b"\n" in content.strip()):
            yield file.name, whole
            return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"line {number}", parse_json(line)


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text, or the ValueError that says why it is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        return error
    except RecursionError:
        return ValueError("nested too deeply")


def _parquet_rows(file: Path) -> Iterator[tuple[str, Any]]:
    from pyarrow.parquet import ParquetFile

    number = 0
    with ParquetFile(file) as table:
        for batch in table.iter_batches(batch_size=64):
            for value in batch.to_pylist():
                yield f"{file.name}[{number}]", value
                number += 1
