"""What the sources of finished rows share: EasyR1's, REBP's and plain JSON lines bring their prompts along."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stepgrpo.data.action_table import ActionTable, action_table, fit_plan, listed_actions, read_action_list
from stepgrpo.data.prompts import Draft, Value, action_values
from stepgrpo.data.report import ReadReport, Unfit
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import read_ground_truth
from stepgrpo.vocabulary import EB_ALFRED, find_vocabulary

MARK = "<image>"
# The benchmark's prompts: "## Now the human instruction is: Put it away. You are supposed to output in json. ..."
_INSTRUCTION = re.compile(r"human instruction is:\s*(.+?)\s*(?:\. You are supposed|\n|$)", re.IGNORECASE)


def marked_prompt(text: str, pictures: int) -> list[dict[str, Any]]:
    """One user message from a text with `<image>` marks.

    Pictures that come first need no mark: they are shown before the text. Where marks stand elsewhere, the message is a list
    of parts.

    Args:
        text: the text.
        pictures: how many pictures the row has; without any mark they come first.

    Raises:
        Unfit: for another number of marks than pictures.
    """
    marks = text.count(MARK)
    if marks not in (0, pictures):
        raise Unfit("other <image> marks than pictures", f"{marks} for {pictures}")
    bare = text.lstrip()
    while bare.startswith(MARK):
        bare = bare.removeprefix(MARK).lstrip()
    if MARK not in bare:
        return [{"role": "user", "content": bare if marks else text}]
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(text.split(MARK)):
        parts += [{"type": "image"}] * (number > 0)
        if part:
            parts.append({"type": "text", "text": part})
    return [{"role": "user", "content": parts}]


def prompt_text(prompt: Any) -> str:
    """The text of the last user message of a prompt."""
    if isinstance(prompt, str):
        return prompt
    message = next((m for m in reversed(prompt) if m.get("role") == "user"), prompt[-1])
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))


def instruction_of(row: Mapping[str, Any], text: str) -> str:
    """The row's `instruction`, else the one in a prompt of the benchmark, else the whole text."""
    given = str(row.get("instruction") or "").strip()
    found = None if given else _INSTRUCTION.search(text)
    return given or (found[1].rstrip(".") if found else text.replace(MARK, "").strip())


def own_table(row: Mapping[str, Any], text: str) -> ActionTable | None:
    """The actions of a row by its column `action_list`, else by the list in its prompt; None where it has none.

    Raises:
        Unfit: if the list cannot be read.
    """
    listed = read_action_list(row.get("action_list")) or listed_actions(text)
    return action_table(listed) if listed else None


def read_plan(value: Any) -> list[PlanStep]:
    """`read_ground_truth` that raises Unfit."""
    try:
        return read_ground_truth(value)
    except ValueError as error:
        raise Unfit("a plan that cannot be read", str(error)) from None


Checked = tuple[str, dict[str, Any], list[PlanStep], ActionTable | None]


def checked_drafts(rows: Sequence[Checked], report: ReadReport, default: ActionTable | None = None) -> list[Draft]:
    """Drafts of the rows whose plans fit their actions.

    Args:
        rows: where each stands, the row with its prompt, its plan, and its own actions.
        report: what is dropped is added here.
        default: the actions of rows without their own; where it is not given, the table that most of these rows fit.
    """
    if default is None:
        unlisted = [_as_row(steps) for _, _, steps, table in rows if table is None]
        vocabulary = find_vocabulary(unlisted) or (EB_ALFRED if _any_named(rows) else None)
        default = ActionTable(vocabulary) if vocabulary else None
    drafts = []
    for where, row, steps, own in rows:
        table = own or default
        if table is None:
            report.drop("ids without names, and no list of actions that says what they are", where)
        elif (plan := fit_plan(table, steps, where, report)) is not None:
            row = {**row, "gt_action_close": plan, "action_list": table.column}
            drafts.append(draft_of(row, where, table.names))
    return drafts


def _as_row(steps: Sequence[PlanStep]) -> dict[str, Any]:
    return {"gt_action_close": list(steps)}


def _any_named(rows: Sequence[Checked]) -> bool:
    return any(step.action_name is not None for _, _, steps, _ in rows for step in steps)


def draft_of(row: dict[str, Any], where: str, names: Sequence[str] = ()) -> Draft:
    """A draft of a row that has its prompt; `names` are its actions."""
    text = prompt_text(row["prompt"])
    instruction = instruction_of(row, text)
    values: dict[str, Value] = {"instruction": instruction, "input": text.replace(MARK, "")}
    if names:
        values |= action_values(names)
    return Draft(row, values, str(row.get("id", where)))
