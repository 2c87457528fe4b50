"""The actions a row can name, and the check that every converted plan goes through. Pure text, imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from stepgrpo.data.files import parse_json
from stepgrpo.data.report import ReadReport, Unfit
from stepgrpo.segment.plan import PlanStep, fold_name
from stepgrpo.vocabulary import EB_ALFRED, HOUSEHOLD, OWN, Vocabulary

RESPELLED = "an action's name written as in the list of actions"
ID_FROM_NAME = "an id beyond the list of actions, taken from the name"
# As the benchmark's prompts list them; the history in the same prompts has a comma after the id.
_LISTED = re.compile(r"action id (\d+):[ \t]*(.*?)[ \t]*(?=,?\s*action id \d+:|\n|$)")


@dataclass(frozen=True)
class ActionTable:
    """The actions of a row.

    Attributes:
        vocabulary: the table that comes first.
        own: the row's own names, whose ids follow.
    """

    vocabulary: Vocabulary
    own: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names; the index is the id."""
        return (*self.vocabulary.names, *self.own)

    @cached_property
    def _ids(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        for index, name in enumerate(self.names):
            ids.setdefault(fold_name(name), index)
        return ids

    @property
    def column(self) -> list[str] | None:
        """The value of the column `action_list`."""
        return list(self.own) or None

    def fit(self, steps: Sequence[PlanStep]) -> tuple[list[dict[str, Any]], list[str]]:
        """A plan with the id and name of each step, as the table has them.

        A step with an id or a name alone gets the other. Where both are there they have to be one action; a name of the table
        beside an id beyond it gets its id.

        Args:
            steps: the plan.

        Returns:
            The steps, `{"action_id", "action_name"}`, and what was changed about them, each once.

        Raises:
            Unfit: for a step that is no action of the table, or two.
        """
        plan, changes = [], []
        for number, step in enumerate(steps):
            index, name = step.action_id, step.action_name
            in_table = index is not None and 0 <= index < len(self.names)
            known = None if name is None else self._ids.get(fold_name(name))
            detail = f"step {number}, {index} {name!r}" if index is not None else f"step {number}, {name!r}"
            if name is None:
                if not in_table:
                    raise Unfit("an action id that the list of actions has not", detail)
            elif index is None:
                if known is None:
                    raise Unfit("an action name that the list of actions has not", detail)
                index = known
            elif in_table and fold_name(self.names[index]) == fold_name(name):
                pass
            elif in_table or known is None:
                raise Unfit("an action id and name that are not the same action", detail)
            else:
                index = known
                changes.append(ID_FROM_NAME)
            assert index is not None
            if name is not None and self.names[index] != name:
                changes.append(RESPELLED)
            plan.append({"action_id": index, "action_name": self.names[index]})
        return plan, list(dict.fromkeys(changes))


def fit_plan(
    table: ActionTable, steps: Sequence[PlanStep], where: str, report: ReadReport, rows: int = 1
) -> list[dict[str, Any]] | None:
    """`ActionTable.fit` with a report: None for a plan that is dropped, with the `rows` that have it."""
    try:
        plan, changes = table.fit(steps)
    except Unfit as error:
        report.drop_unfit(error, where, rows)
        return None
    for change in changes:
        report.note(change, where, rows)
    return plan


def action_table(listed: Mapping[int, str]) -> ActionTable:
    """The table that a row's list of actions stands for.

    Args:
        listed: names by id. Where those below 162 are EB-ALFRED's (all, some or none of them are listed), the others are the
            row's own and follow them without a gap; likewise for the household. Any other list starts at 0 and is complete.

    Raises:
        Unfit: if it has gaps.
    """
    return _table(tuple(sorted(listed.items())))


@lru_cache(maxsize=1024)
def _table(listed: tuple[tuple[int, str], ...]) -> ActionTable:
    for vocabulary in (EB_ALFRED, HOUSEHOLD):
        fixed = vocabulary.names
        below = [(index, name) for index, name in listed if index < len(fixed)]
        beyond = [(index, name) for index, name in listed if index >= len(fixed)]
        if any(index < 0 or fold_name(fixed[index]) != fold_name(name) for index, name in below):
            continue
        if [index for index, _ in beyond] != list(range(len(fixed), len(fixed) + len(beyond))):
            break
        if not beyond or vocabulary.own_column:
            return ActionTable(vocabulary, tuple(name for _, name in beyond))
    if [index for index, _ in listed] != list(range(len(listed))):
        raise Unfit("a list of actions with gaps", f"{len(listed)} ids, {listed[0][0]} to {listed[-1][0]}")
    return ActionTable(OWN, tuple(name for _, name in listed))


def read_action_list(value: Any) -> dict[int, str]:
    """Names by id from a column `action_list` in any of the forms data sets have.

    Args:
        value: names by id; `{"id" or "action_id", "name" or "action_name"}` mappings or `[id, name]` pairs; names alone, all
            of the table from id 0 on where the first ones are EB-ALFRED's, else those from id 162 on; any of these as JSON;
            or None.

    Raises:
        Unfit: if it is none of these.
    """
    if isinstance(value, str):
        value = parse_json(value) if value.strip() else None
    if value is None or (isinstance(value, (list, tuple)) and not value):
        return {}
    try:
        if isinstance(value, Mapping):
            return {int(index): str(name) for index, name in value.items()}
        if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
            fixed = [fold_name(name) for name in EB_ALFRED.names]
            whole = [fold_name(name) for name in value[: len(fixed)]] == fixed
            return dict(enumerate(value, 0 if whole else len(fixed)))
        if isinstance(value, (list, tuple)):
            return dict(_pair(item) for item in value)
    except (ValueError, TypeError, KeyError, OverflowError):  # the last: an id that is Infinity
        pass
    raise Unfit("a list of actions that cannot be read", f"{value!r:.80}")


def _pair(item: Any) -> tuple[int, str]:
    if isinstance(item, Mapping):
        index = item["action_id"] if "action_id" in item else item["id"]
        name = item["action_name"] if "action_name" in item else item["name"]
    else:
        index, name = item
    return int(index), str(name)


def listed_actions(text: str) -> dict[int, str]:
    """The actions that a prompt of the benchmark lists: `action id 0: find a Cart, action id 1: ...`; {} for none."""
    return {int(index): name.rstrip(" ,.") for index, name in _LISTED.findall(text)}
