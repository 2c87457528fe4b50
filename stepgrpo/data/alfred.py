"""ALFRED's demonstrations as training rows: a human instruction, the scene's objects, and the plan in EB-ALFRED's actions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepgrpo.data.alfred_plan import NotConvertible, convert_plan
from stepgrpo.data.alfred_prompt import own_actions, plan_prompt, scene_objects
from stepgrpo.data.report import ReadReport

# What a split is called here, in ALFRED's folders and in file names.
_SPLITS = {
    "train": ("train",),
    "dev": ("dev", "valid_seen", "valid", "validation", "val"),
    "test": ("test", "valid_unseen"),
}
_TRAJECTORY = "traj_data.json"


def load_alfred(
    path: str | Path, split: str | None = None, action_ids: bool = True
) -> tuple[list[dict[str, Any]], ReadReport]:
    """Reads ALFRED trajectories.

    Args:
        path: a `traj_data.json`; a folder tree of them (ALFRED's own layout, with or without its split folders); a JSON-lines
            file with a trajectory a line; or a folder of such files, named by split.
        split: train, dev (ALFRED's valid_seen) or test (valid_unseen), or the name of a folder or file; None for all. A single
            file, and a folder without any split, gives all its rows.
        action_ids: whether the prompt lists the scene's actions with their ids and asks for both. Without them it is four
            times as short and asks for names alone.

    Returns:
        The rows, one per human instruction, and what was dropped and why. A row has `id`, `prompt` (one user message),
        `instruction`, `gt_action_close` (list of `{"action_id", "action_name"}`), `task_type`, and `action_list` (the
        scene's names beyond EB-ALFRED's 162, ids from 162 up; None where there are none).

    Raises:
        ValueError: if there is nothing at `path`, or it has splits but not this one.
    """
    rows: list[dict[str, Any]] = []
    report = ReadReport(trajectories=0)
    for where, text in _read_trajectories(_files(Path(path), split)):
        assert report.trajectories is not None
        report.trajectories += 1
        try:
            trajectory = json.loads(text)
        except ValueError:
            trajectory = None
        if not isinstance(trajectory, dict):
            report.read += 1
            report.drop("not a JSON object", where)
            continue
        rows += _rows_of(trajectory, where, action_ids, report)
    report.kept = len(rows)
    return rows, report


def _rows_of(trajectory: Mapping[str, Any], where: str, action_ids: bool, report: ReadReport) -> list[dict[str, Any]]:
    annotations = (trajectory.get("turk_annotations") or {}).get("anns") or []
    report.read += max(1, len(annotations))
    if not annotations:
        report.drop("no instruction", where)
        return []
    objects = scene_objects(trajectory)
    try:
        plan, own = convert_plan(trajectory, own_actions(objects))
    except NotConvertible as error:
        report.drop(str(error), where, len(annotations))
        return []
    rows = []
    for number, annotation in enumerate(annotations):
        instruction = " ".join(str(annotation.get("task_desc") or "").split())
        if not instruction:
            report.drop("empty instruction", where)
            continue
        rows.append(
            {
                "id": f"{trajectory.get('task_id') or where}/{number}",
                "prompt": [{"role": "user", "content": plan_prompt(instruction, objects, own, action_ids)}],
                "instruction": instruction,
                "gt_action_close": plan,
                "task_type": trajectory.get("task_type"),
                "action_list": own or None,
            }
        )
    return rows


def _read_trajectories(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Where each trajectory stands, and its JSON."""
    for file in files:
        if file.suffix == ".json":
            yield str(file), file.read_text(encoding="utf-8")
            continue
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{file.name}:{number}", line


def _files(path: Path, split: str | None) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"There is no ALFRED data at {str(path)!r}.")
    parts = {part.stem if part.is_file() else part.name: part for part in sorted(path.iterdir())}
    known = {name for names in _SPLITS.values() for name in names}
    wanted = [path]
    if split is not None and (known | {split}) & parts.keys():
        names = [name for name in (split, *_SPLITS.get(split, ())) if name in parts]
        if not names:
            raise ValueError(
                f"{str(path)!r} has no split {split!r}; it has {', '.join(sorted(known & parts.keys()))}."
            )
        wanted = [parts[name] for name in dict.fromkeys(names)]
    files = [file for part in wanted for file in ([part] if part.is_file() else _trajectory_files(part))]
    if not files:
        raise ValueError(f"{str(path)!r} has neither {_TRAJECTORY} nor .jsonl files.")
    return files


def _trajectory_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob(_TRAJECTORY)) or sorted(folder.glob("*.jsonl"))
