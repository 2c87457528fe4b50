"""What a wrong step can be made of: the actions a row offers, by verb, and other words for the same action. Pure text."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stepgrpo.data.action_table import ActionTable
from stepgrpo.data.report import Unfit
from stepgrpo.data.rows import own_table, prompt_text
from stepgrpo.segment.plan import PlanStep, fold_name
from stepgrpo.vocabulary import find_vocabulary

_VERB_AND_THING = re.compile(r"(?P<verb>\S.*?)\s+(?:an?|the)\s+(?P<thing>\S.*)", re.IGNORECASE)
_OTHER_WORDS = {
    "find": ("locate", "look for"),
    "pick up": ("grab", "take hold of"),
    "put down": ("set down", "lay down"),
    "drop": ("let go of",),
    "open": ("pull open",),
    "close": ("shut",),
    "turn on": ("switch on",),
    "turn off": ("switch off",),
    "slice": ("cut up",),
}
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def verb_and_thing(name: str) -> tuple[str, str]:
    """An action's verb and what it is done to, both with case and white space folded.

    "pick up the Mug" gives ("pick up", "mug"); a name without an article is cut after its first word; the thing is empty for
    a single word.
    """
    folded = fold_name(name)
    if match := _VERB_AND_THING.fullmatch(folded):
        return match["verb"], match["thing"]
    verb, _, thing = folded.partition(" ")
    return verb, thing


def paraphrase(name: str, rng: random.Random) -> str | None:
    """The same action in other words: another verb, or a compound name taken apart; None where neither is known."""
    for verb, others in _OTHER_WORDS.items():
        if fold_name(name).startswith(f"{verb} "):
            return " ".join([rng.choice(others), *name.split()[len(verb.split()) :]])
    apart = _CAMEL.sub(" ", name.replace("_", " ")).lower()
    return None if fold_name(apart) == fold_name(name) else apart


@dataclass(frozen=True)
class Actions:
    """The actions of a row.

    Attributes:
        pool: the actions, as steps.
        words: the words of the row's prompt, folded. An action on a thing that the prompt does not name is a mistake that
            few policies make and every teacher sees.
    """

    pool: Sequence[PlanStep]
    words: frozenset[str] = frozenset()

    def named(self, step: PlanStep) -> bool:
        """Whether the prompt names what the action is done to; true where that is more than one word."""
        thing = verb_and_thing(step.action_name or "")[1]
        return " " in thing or not thing or thing in self.words

    def substitutes(
        self, avoid: Sequence[PlanStep], verb: str | None = None, not_verb: str | None = None
    ) -> list[PlanStep]:
        """The actions that could stand in a step's place: those on things that the prompt names, if any, else all.

        Args:
            avoid: steps whose id or name it must not have.
            verb: the verb it must have. not_verb: the one it must not have.
        """
        ids = {step.action_id for step in avoid} - {None}
        names = {fold_name(step.action_name) for step in avoid if step.action_name is not None}
        fitting = []
        for step in self.pool:
            if step.action_name is None or step.action_id in ids or fold_name(step.action_name) in names:
                continue
            own = verb_and_thing(step.action_name)[0]
            if (verb is None or own == verb) and own != not_verb:
                fitting.append(step)
        return [step for step in fitting if self.named(step)] or fitting

    def other_ids(self, step: PlanStep) -> list[int]:
        """The ids of the row's other actions."""
        return sorted({action.action_id for action in self.pool if action.action_id is not None} - {step.action_id})


def actions_of(rows: Sequence[Mapping[str, Any]], truths: Sequence[Sequence[PlanStep]]) -> list[Actions]:
    """The actions of each row: its own list, else the table the data is written in, else all steps of the ground truths.

    Args:
        rows: rows with a `prompt` and perhaps an `action_list`.
        truths: the ground truth of each. Where its steps have no ids, neither have the actions.
    """
    vocabulary = find_vocabulary(rows)
    default = _table_steps(ActionTable(vocabulary)) if vocabulary and vocabulary.names else _all_steps(truths)
    found = []
    for row, truth in zip(rows, truths, strict=True):
        text, table = prompt_text(row["prompt"]), None
        with suppress(Unfit):
            table = own_table(row, text)
        pool = default if table is None else _table_steps(table)
        if all(step.action_id is None for step in truth):
            pool = [PlanStep(None, step.action_name) for step in pool]
        found.append(Actions(pool, frozenset(re.findall(r"\w+", text.casefold()))))
    return found


def _table_steps(table: ActionTable) -> list[PlanStep]:
    return [PlanStep(index, name) for index, name in enumerate(table.names)]


def _all_steps(truths: Sequence[Sequence[PlanStep]]) -> list[PlanStep]:
    steps = {(step.action_id, step.action_name): step for truth in truths for step in truth}
    return list(steps.values())
