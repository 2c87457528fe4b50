"""ALFRED's demonstrations as training rows: a human instruction, the scene's objects, and the plan in EB-ALFRED's actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepgrpo.data.action_table import ActionTable, fit_plan
from stepgrpo.data.alfred_plan import NotConvertible, convert_plan
from stepgrpo.data.alfred_prompt import own_actions, prompt_values, scene_objects
from stepgrpo.data.files import SPLITS, parse_json
from stepgrpo.data.prompts import COMMON_FIELDS, Draft, read_prompt_template, write_prompts
from stepgrpo.data.report import ReadReport
from stepgrpo.segment.plan import PlanStep
from stepgrpo.vocabulary import EB_ALFRED

_TRAJECTORY = "traj_data.json"
_PICTURES = "raw_images"
FIELDS = (*(name for name in COMMON_FIELDS if name != "input"), "objects", "scene_actions", "verbs")


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
        `images` (the first frame, where `raw_images` is next to the `traj_data.json`), `instruction`, `gt_action_close` (list
        of `{"action_id", "action_name"}`), `task_type`, and `action_list` (the scene's names beyond EB-ALFRED's 162, ids from
        162 up; None where there are none).

    Raises:
        ValueError: if there is nothing at `path`, or it has splits but not this one.
    """
    report = ReadReport()
    drafts = alfred_drafts(Path(path), split, report)
    report.kept = len(drafts)
    return write_prompts(drafts, read_prompt_template("alfred" if action_ids else "alfred_names")), report


def alfred_drafts(path: Path, split: str | None, report: ReadReport, images: bool = True) -> list[Draft]:
    """As `load_alfred`, with the prompts still to be written; `images` is whether to look for pictures."""
    drafts: list[Draft] = []
    report.trajectories = 0
    for where, folder, trajectory in _read_trajectories(_files(path, split), report):
        report.trajectories += 1
        if not isinstance(trajectory, Mapping):
            report.read += 1
            report.drop("not a JSON object", where)
            continue
        found = ReadReport()
        try:
            rows = _rows_of(trajectory, where, found)
        except (AttributeError, TypeError, LookupError) as error:
            report.read += 1
            report.drop("not laid out as ALFRED's trajectories", f"{where}: {error}")
            continue
        report.add(found)
        picture = first_frame(trajectory, folder / _PICTURES) if images and folder else None
        if images and folder and picture is None and (folder / _PICTURES).is_dir():
            report.note(f"{_PICTURES} without the first frame", where, len(rows))
        for draft in rows:
            draft.row["images"] = [picture] if picture else []
        drafts += rows
    return drafts


def first_frame(trajectory: Mapping[str, Any], pictures: Path) -> str | None:
    """The path of the first picture of a demonstration in its `raw_images`, whatever its format; None if it is not there."""
    images = trajectory.get("images")
    first = images[0] if isinstance(images, list) and images else None
    stem = Path(str(first.get("image_name"))).stem if isinstance(first, Mapping) else "000000000"
    # The data set names .png what it stores as .jpg.
    files = (pictures / f"{stem}{suffix}" for suffix in (".jpg", ".png", ".jpeg"))
    return next((str(file.absolute()) for file in files if file.is_file()), None)


def _rows_of(trajectory: Mapping[str, Any], where: str, report: ReadReport) -> list[Draft]:
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
    steps = [PlanStep(**step) for step in plan]
    checked = fit_plan(ActionTable(EB_ALFRED, tuple(own)), steps, where, report, len(annotations))
    if checked is None:
        return []
    task = str(trajectory.get("task_id") or where)
    drafts = []
    for number, annotation in enumerate(annotations):
        instruction = " ".join(str(annotation.get("task_desc") or "").split())
        if not instruction:
            report.drop("empty instruction", where)
            continue
        row = {
            "id": f"{task}/{number}",
            "prompt": None,
            "images": [],
            "instruction": instruction,
            "gt_action_close": checked,
            "task_type": trajectory.get("task_type"),
            "action_list": own or None,
        }
        drafts.append(Draft(row, prompt_values(instruction, objects, own), task))
    return drafts


def _read_trajectories(files: Sequence[Path], report: ReadReport) -> Iterator[tuple[str, Path | None, Any]]:
    """Where each trajectory stands, its folder if it has one of its own, and its content or the error in its JSON."""
    for file in files:
        try:
            if file.suffix == ".json":
                yield str(file), file.parent, parse_json(file.read_bytes())
                continue
            with file.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield f"{file.name}:{number}", None, parse_json(line)
        except OSError as error:
            report.read += 1
            report.drop("unreadable file", f"{file}: {error.strerror}")


def _files(path: Path, split: str | None) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"There is no ALFRED data at {str(path)!r}.")
    parts = {part.stem if part.is_file() else part.name: part for part in sorted(path.iterdir())}
    known = {name for names in SPLITS.values() for name in names}
    wanted = [path]
    if split is not None and (known | {split}) & parts.keys():
        names = [name for name in (split, *SPLITS.get(split, ())) if name in parts]
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
