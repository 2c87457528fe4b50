"""EmbodiedBench's trajectory sets as training rows: a picture, an instruction, what was done so far, and the plan of the rest.

The layout, as its data cards describe it: a JSON list of episodes with `model_name`, `eval_set`, `episode_id`, `instruction`,
`input` (the first prompt), `success`, and `trajectory`, a list of decisions with `input_image_path`, `visual_description`,
`reasoning_and_reflection`, `language_plan`, and `executable_plan`, a list of executed actions with `step_id`, `img_path`,
`action` (`[id, name]`), `action_success` and `env_feedback`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepgrpo.data.action_table import ActionTable, action_table, fit_plan, listed_actions
from stepgrpo.data.files import read_records
from stepgrpo.data.pictures import find_pictures
from stepgrpo.data.prompts import COMMON_FIELDS, NO_HISTORY, Draft, action_values
from stepgrpo.data.report import ReadReport, Unfit
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import read_ground_truth

FIELDS = COMMON_FIELDS
# The authors advise to train on `base` and to evaluate on the others.
EVAL_SETS = {
    "train": ("base",),
    "dev": ("common_sense", "complex_instruction"),
    "test": ("spatial", "visual_appearance", "long_horizon"),
}


def embodiedbench_drafts(path: Path, split: str | None, report: ReadReport, images: bool = True) -> list[Draft]:
    """Reads a trajectory set, a row per decision.

    The ground truth of a row is the rest of the episode from its picture on: the actions of this decision and of all later
    ones, without those that failed. Only episodes that reached their goal have such a plan.

    Args:
        path: the JSON file, or a folder with one.
        split: train, dev or test, see `EVAL_SETS`, or the name of an `eval_set`; None, or episodes without one: all.
        report: what is dropped is added here, and the number of episodes.
        images: whether to look for the pictures. Without, no row has any.

    Raises:
        ValueError: if there is no such file, more than one, or no episode of the split.
    """
    file = _one_file(path)
    found = ReadReport()
    wanted = EVAL_SETS.get(split or "", (split,))
    episodes, seen = [], set()
    for where, episode in read_records(file, found):
        eval_set = episode.get("eval_set")
        if split is None or eval_set is None or eval_set in wanted:
            episodes.append((where, episode))
        seen.add(str(eval_set))
    if seen and not episodes:
        raise ValueError(
            f"{str(path)!r} has no episode of split {split!r}, eval_set {', '.join(map(str, wanted))}; it has "
            f"{', '.join(sorted(seen))}."
        )
    report.trajectories = len(episodes)
    found.read = sum(found.dropped.values())
    report.add(found)
    drafts: list[Draft] = []
    for where, episode in episodes:
        drafts += _rows_of(episode, where, (file.parent, file.parent / "images"), images, report)
    return drafts


def _one_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted([*path.glob("*.json"), *path.glob("*.jsonl")]) if path.is_dir() else []
    if len(files) != 1:
        has = ", ".join(file.name for file in files) or "no .json or .jsonl file"
        raise ValueError(
            f"embodiedbench:{path} should be one file of trajectories, or a folder with one; there is {has}."
        )
    return files[0]


def _rows_of(
    episode: Mapping[str, Any], where: str, folders: Sequence[Path], images: bool, report: ReadReport
) -> list[Draft]:
    name = "/".join(
        str(episode[key]) for key in ("model_name", "eval_set", "episode_id") if episode.get(key) is not None
    )
    where = name or where
    trajectory = episode.get("trajectory")
    decisions = trajectory if isinstance(trajectory, list) else []
    report.read += max(1, len(decisions))
    try:
        instruction, table = _checked(episode, decisions)
        done = [_Action(entry) for decision in decisions for entry in decision.get("executable_plan") or []]
    except Unfit as error:
        report.drop_unfit(error, where, max(1, len(decisions)))
        return []
    if episode.get("success") is None:
        report.note("an episode that does not say whether it succeeded", where, len(decisions))
    drafts, start = [], 0
    picture = None
    for number, decision in enumerate(decisions):
        here = f"{where}/{number}"
        count = len(decision.get("executable_plan") or [])
        picture = decision.get("input_image_path") or picture
        rest = [action.step for action in done[start:] if action.succeeded]
        if not rest:
            report.drop("no action that succeeded from here on", here)
        elif (plan := fit_plan(table, rest, here, report)) is not None:
            row = {
                "id": here,
                "prompt": None,
                "images": [],
                "instruction": instruction,
                "gt_action_close": plan,
                "task_type": episode.get("eval_set"),
                "action_list": table.column,
                "completion": [{"role": "assistant", "content": _answer(decision, plan)}],
            }
            values = {
                "instruction": instruction,
                "input": str(episode.get("input") or ""),
                "history": _history(done[:start]),
                **action_values(table.names),
            }
            if _add_picture(row, picture, folders, images, report):
                drafts.append(Draft(row, values, f"{episode.get('eval_set')}/{episode.get('episode_id')}"))
        if count:
            picture = done[start + count - 1].picture or picture
        start += count
    return drafts


def _checked(episode: Mapping[str, Any], decisions: Sequence[Any]) -> tuple[str, ActionTable]:
    """The instruction and the actions of an episode. Raises Unfit where it is of no use."""
    if not decisions:
        raise Unfit("no trajectory")
    for number, decision in enumerate(decisions):
        if not isinstance(decision, Mapping) or not isinstance(decision.get("executable_plan") or [], list):
            raise Unfit("a trajectory with a decision that has no list executable_plan", f"{number}")
    if episode.get("success") is not None and not _is_one(episode["success"]):
        raise Unfit("an episode that did not reach its goal")
    instruction = " ".join(str(episode.get("instruction") or "").split())
    if not instruction:
        raise Unfit("no instruction")
    return instruction, action_table(listed_actions(str(episode.get("input") or "")))


def _is_one(value: Any) -> bool:
    """Whether a flag says yes: the sets have 1.0 and 0.0, their copies true, "1" and "True" too."""
    return str(value).strip().lower() in ("1", "1.0", "true")


class _Action:
    """An executed action. Raises Unfit if it is none of a list of actions."""

    def __init__(self, entry: Any) -> None:
        details = entry if isinstance(entry, Mapping) else {}
        action = details.get("action", entry)
        if not isinstance(action, list) or len(action) != 2:
            raise Unfit("an action that is no [id, name]", f"{action!r:.60}")
        try:
            self.step: PlanStep = read_ground_truth([action])[0]
        except ValueError:
            raise Unfit("an action that is no [id, name]", f"{action!r:.60}") from None
        success = details.get("action_success")
        self.succeeded = success is None or _is_one(success)
        self.feedback = str(details.get("env_feedback") or "")
        self.picture = details.get("img_path")


def _history(done: Sequence[_Action]) -> str:
    lines = []
    for number, action in enumerate(done):
        said = action.feedback or ("done" if action.succeeded else "failed")
        lines.append(f"Step {number}, action id {action.step.action_id}, {action.step.action_name}: {said}")
    return "\n".join(lines) or NO_HISTORY


def _answer(decision: Mapping[str, Any], plan: Sequence[Mapping[str, Any]]) -> str:
    """The completion for supervised training: what the decision saw and thought, with the plan of the rest."""
    numbered = ", ".join(f"{number}. {step['action_name']}" for number, step in enumerate(plan, 1))
    return json.dumps(
        {
            "visual_state_description": str(decision.get("visual_description") or ""),
            "reasoning_and_reflection": str(decision.get("reasoning_and_reflection") or ""),
            "language_plan": numbered,
            "executable_plan": list(plan),
        },
        ensure_ascii=False,
    )


def _add_picture(row: dict[str, Any], picture: Any, folders: Sequence[Path], images: bool, report: ReadReport) -> bool:
    if not images:
        return True
    if not picture:
        report.drop("no input_image_path", row["id"])
        return False
    try:
        row["images"] = find_pictures([picture], folders)
    except Unfit as error:
        report.drop_unfit(error, row["id"])
        return False
    return True
