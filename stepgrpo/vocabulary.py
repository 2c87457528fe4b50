"""Which action name belongs to which id, and which table of them a data set uses. Pure text, imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepgrpo.data import eb_alfred
from stepgrpo.data.household import ACTIONS as HOUSEHOLD_ACTIONS
from stepgrpo.segment.plan import PlanStep, fold_name
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth

# Models wrote some data sets' ground truths, and a few of their steps name another action than their id.
_FITS = 0.9


@dataclass(frozen=True)
class Vocabulary:
    """A table of actions.

    Attributes:
        title: what to call it.
        names: the names; the index is the id.
        own_column: the column with the names that are a row's own, whose ids follow those of the table; None for none.
    """

    title: str
    names: tuple[str, ...]
    own_column: str | None = None

    def name_of(self, action_id: int, row: Mapping[str, Any]) -> str | None:
        """The name of an id in a row, or None if there is no such action."""
        if 0 <= action_id < len(self.names):
            return self.names[action_id]
        own = (row.get(self.own_column) if self.own_column else None) or []
        place = action_id - len(self.names)
        return str(own[place]) if 0 <= place < len(own) else None

    def agrees(self, action_id: int, name: str, row: Mapping[str, Any]) -> bool:
        """Whether the name is the id's, case and white space aside."""
        known = self.name_of(action_id, row)
        return known is not None and fold_name(known) == fold_name(name)

    def knows(self, name: str, row: Mapping[str, Any]) -> bool:
        """Whether an action of the table, or one of the row's own, has this name."""
        own = (row.get(self.own_column) if self.own_column else None) or []
        return fold_name(name) in {fold_name(str(known)) for known in (*self.names, *own)}


EB_ALFRED = Vocabulary("EB-ALFRED", eb_alfred.ACTIONS, own_column="action_list")
HOUSEHOLD = Vocabulary("household", HOUSEHOLD_ACTIONS)
# Rows whose own list is complete and starts at id 0.
OWN = Vocabulary("the rows' own", (), own_column="action_list")


def find_vocabulary(
    rows: Sequence[Mapping[str, Any]], fields: Sequence[str] = GROUND_TRUTH_FIELDS
) -> Vocabulary | None:
    """The table that the rows' ground truths are written in, or None if they fit none or say nothing.

    Args:
        rows: rows with ground truths. The steps of up to 64 of them are looked at: nine in ten must fit, those with an id
            and a name by both, those with a name alone by the name. Ids alone say nothing.
        fields: columns the ground truth is read from, the first that has a value.
    """
    steps: list[tuple[PlanStep, Mapping[str, Any]]] = []
    for row in rows[:64]:
        try:
            steps += [(step, row) for step in find_ground_truth(row, fields) if step.action_name is not None]
        except ValueError:
            continue
    for vocabulary in (EB_ALFRED, HOUSEHOLD, OWN):
        if steps and sum(_fits(step, row, vocabulary) for step, row in steps) >= _FITS * len(steps):
            return vocabulary
    return None


def _fits(step: PlanStep, row: Mapping[str, Any], vocabulary: Vocabulary) -> bool:
    assert step.action_name is not None
    if step.action_id is None:
        return vocabulary.knows(step.action_name, row)
    return vocabulary.agrees(step.action_id, step.action_name, row)
