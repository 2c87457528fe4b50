"""Prompts from template files, filled with what a source knows of each row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

from stepgrpo.data.answers import plan_answer
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth
from stepgrpo.template import placeholders

FOLDER = Path(__file__).parent / "prompts"
NO_HISTORY = "Nothing yet."
# What every source has: see docs/data.md.
COMMON_FIELDS = ("instruction", "actions", "last_action_id", "history", "examples", "input")


Value = str | Callable[[], str]


@dataclass(frozen=True)
class Draft:
    """A row whose prompt is still to be written.

    Attributes:
        row: the row; without a template, with its `prompt`.
        values: what a template can name, as texts or as functions that make them.
        group: rows of one group are the same task: none of them is an example for another.
    """

    row: dict[str, Any]
    values: Mapping[str, Value] = field(default_factory=dict)
    group: str = ""


@dataclass(frozen=True)
class PromptTemplate:
    """A text with `${name}` placeholders.

    Attributes:
        title: what to call it in errors.
        text: the text. names: of the placeholders.
    """

    title: str
    text: str
    names: tuple[str, ...]

    def fill(self, values: Mapping[str, Value]) -> str:
        """The text with the values in place.

        Raises:
            ValueError: if one of the names has no value.
        """
        missing = [name for name in self.names if name not in values]
        if missing:
            raise ValueError(
                f"{self.title} names ${{{missing[0]}}}, which a row has not. It has: {', '.join(sorted(values))}."
            )
        found = {name: values[name] for name in self.names}
        return Template(self.text).substitute({name: v if isinstance(v, str) else v() for name, v in found.items()})


@lru_cache(maxsize=64)
def read_prompt_template(name: str | Path) -> PromptTemplate:
    """A template by the name of one of the package's (`alfred`, `alfred_names`, `embodiedbench`) or by its path.

    The newline that ends the file is not a part of it.

    Raises:
        ValueError: if there is no such file, or a `$` in it starts no name.
    """
    packaged = sorted(file.stem for file in FOLDER.glob("*.txt"))
    path = FOLDER / f"{name}.txt" if str(name) in packaged else Path(name)
    title = f"template {str(name)!r}"
    try:
        text = path.read_text(encoding="utf-8").removesuffix("\n")
        return PromptTemplate(title, text, tuple(placeholders(text)))
    except OSError:
        raise ValueError(f"{title} is neither a readable file nor one of {', '.join(packaged)}.") from None
    except ValueError as error:
        raise ValueError(f"{title}: {error}.") from None


def check_template(template: PromptTemplate, fields: Sequence[str], source: str, examples: int = 0) -> None:
    """Compares a template with what a source can fill in.

    Raises:
        ValueError: for a placeholder that the source has nothing for, or examples that would be shown nowhere.
    """
    unknown = [name for name in template.names if name not in fields]
    if unknown:
        raise ValueError(
            f"{template.title} names ${{{unknown[0]}}}, which {source} cannot fill in. It has: {', '.join(fields)}."
        )
    if examples and "examples" not in template.names:
        raise ValueError(f"examples={examples}, but {template.title} has no ${{examples}} to show them at.")


def action_lines(names: Sequence[str]) -> str:
    """Actions as lines: `0: find a Cart`."""
    return "\n".join(f"{index}: {name}" for index, name in enumerate(names))


def action_values(names: Sequence[str]) -> dict[str, Value]:
    """The values `actions` and `last_action_id` of a list of names."""
    return {"actions": lambda: action_lines(names), "last_action_id": str(len(names) - 1)}


def write_prompts(
    drafts: Sequence[Draft], template: PromptTemplate | None, examples: int = 0, pool: Sequence[Draft] = ()
) -> list[dict[str, Any]]:
    """The rows of drafts.

    Args:
        drafts: the rows to be.
        template: of the prompts, one user message each; None for rows that have their prompts.
        examples: how many examples each prompt shows.
        pool: drafts to show as examples, in this order, see `order_examples`; those of a row's own group or with its
            instruction are passed over.

    Raises:
        ValueError: if a row lacks what the template names, or there are too few examples.
    """
    if template is None:
        return [draft.row for draft in drafts]
    rows = []
    for draft in drafts:
        values = {"history": NO_HISTORY, **draft.values}
        values["examples"] = _examples(draft, examples, pool)
        rows.append({**draft.row, "prompt": [{"role": "user", "content": template.fill(values)}]})
    return rows


def order_examples(drafts: Sequence[Draft], seed: int) -> list[Draft]:
    """Drafts with a ground truth in a random order in which the task types take turns, one of each group."""
    usable = [draft for draft in drafts if _ground_truth(draft.row)]
    random.Random(seed).shuffle(usable)
    one_each = list({draft.group: draft for draft in usable}.values())
    seen: Counter[str] = Counter()
    ranks = []
    for draft in one_each:
        kind = str(draft.row.get("task_type"))
        ranks.append(seen[kind])
        seen[kind] += 1
    return [one_each[i] for i in sorted(range(len(one_each)), key=lambda i: ranks[i])]


def _ground_truth(row: Mapping[str, Any]) -> str | None:
    try:
        return plan_answer(find_ground_truth(row, GROUND_TRUTH_FIELDS))
    except ValueError:
        return None


def _examples(draft: Draft, count: int, pool: Sequence[Draft]) -> str:
    if not count:
        return ""
    instruction = draft.values.get("instruction")
    shown = []
    for other in pool:
        if other.group != draft.group and other.values.get("instruction") != instruction:
            shown.append(f"Task: {other.values.get('instruction')}\n{_ground_truth(other.row)}")
        if len(shown) == count:
            return "Examples:\n" + "\n".join(shown) + "\n\n"
    raise ValueError(f"examples={count}, but there are only {len(shown)} other tasks to show.")
