"""Reads a data spec, such as `household`, `alfred:PATH` or a JSON-lines file, into rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from stepgrpo.data.prompts import (
    COMMON_FIELDS,
    Draft,
    check_template,
    order_examples,
    read_prompt_template,
    write_prompts,
)
from stepgrpo.data.report import ReadReport
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth

Succeeded = Callable[[Mapping[str, Any], Sequence[Any]], bool]

HOUSEHOLD = "household"
HOUSEHOLD_PICTURES = "household-pictures"
ALFRED = "alfred:"
ALFRED_NAMES = "alfred-names:"
LONG_PLAN = "plan of more than {} steps"  # why `max_plan_steps` leaves a row out
# What says whether a plan reaches the goal.
WORLDS = (HOUSEHOLD, HOUSEHOLD_PICTURES)


@dataclass(frozen=True)
class Source:
    """A kind of files.

    Attributes:
        module: has the fields that its prompt templates can name, `FIELDS`, and `loader`.
        loader: a function `(path, split, report, images)` that returns drafts.
        template: of its prompts; None where the rows bring theirs.
    """

    module: str
    loader: str
    template: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """What a prompt template can name."""
        return import_module(self.module).FIELDS

    def load(self, path: Path, split: str | None, report: ReadReport, images: bool) -> list[Draft]:
        """The rows of a split, with prompts to be written where there is a template."""
        return getattr(import_module(self.module), self.loader)(path, split, report, images)


SOURCES = {
    ALFRED: Source("stepgrpo.data.alfred", "alfred_drafts", "alfred"),
    ALFRED_NAMES: Source("stepgrpo.data.alfred", "alfred_drafts", "alfred_names"),
    "embodiedbench:": Source("stepgrpo.data.embodiedbench", "embodiedbench_drafts", "embodiedbench"),
    "easyr1:": Source("stepgrpo.data.easyr1", "easyr1_drafts"),
    "rebp:": Source("stepgrpo.data.rebp", "rebp_drafts"),
}
JSON_LINES = Source("stepgrpo.data.json_lines", "json_lines_drafts")


def read_rows(
    spec: str,
    split: str = "train",
    n: int | None = None,
    seed: int = 0,
    max_plan_steps: int | None = None,
    *,
    template: str | Path | None = None,
    examples: int = 0,
    images: bool = True,
) -> tuple[list[dict[str, Any]], ReadReport]:
    """The rows a spec names.

    Args:
        spec: `household`, or `household-pictures`, where only the picture tells what is where; `alfred:PATH`, see
            `load_alfred`; `alfred-names:PATH`, the same without ids in the prompts; `embodiedbench:PATH`, `easyr1:PATH`,
            `rebp:PATH`, see their modules; or the path of a JSON-lines, JSON or Parquet file whose rows have a `prompt`.
        split: train, dev or test. A single file has no splits and gives all its rows (but see `embodiedbench_drafts`).
        n: how many rows, if there are as many. The household makes them, 256 where `n` is not given; of the others they are
            drawn, and all are used where `n` is not given.
        seed: of the household's rows, of the drawing, and of the examples.
        max_plan_steps: leaves out rows whose ground truth has more steps, before rows are drawn.
        template: of the prompts, see `read_prompt_template`, instead of the source's own.
        examples: how many tasks of the split train the prompts show, each with its plan.
        images: whether to keep pictures.

    Returns:
        The rows, in the order of the source, and a report of what was dropped and why.

    Raises:
        ValueError: if the spec names nothing that can be read, the template does not fit it, or no row is left.
    """
    source, _ = _source(spec)
    name = template or (source.template if source else None)
    if examples and name is None:
        raise ValueError(
            f"examples={examples}: the rows of {spec!r} bring their prompts; a template has to show examples."
        )
    layout = None if name is None else read_prompt_template(name)
    if layout is not None:
        check_template(layout, source.fields if source else COMMON_FIELDS, repr(spec), examples)
    drafts, report = _drafts(spec, split, 256 if n is None else n, seed, images)
    pool: list[Draft] = []
    if examples:
        train = drafts if split == "train" else _drafts(spec, "train", 256, seed, images)[0]
        pool = order_examples(train, seed)
    if max_plan_steps is not None:
        drafts = _without_long_plans(drafts, max_plan_steps, report)
    if not drafts:
        raise ValueError(f"data={spec!r}, split {split!r}: no row can be used. {report}")
    if n is not None and n < len(drafts):
        chosen = sorted(random.Random(seed).sample(range(len(drafts)), n))
        drafts, report.kept = [drafts[i] for i in chosen], n
        report.not_drawn = report.read - n - sum(report.dropped.values())
    return write_prompts(drafts, layout, examples, pool), report


def _source(spec: str) -> tuple[Source | None, Path]:
    """What reads a spec, None for the household, and its path. Raises ValueError if it names nothing."""
    if spec in WORLDS:
        return None, Path()
    for prefix, source in SOURCES.items():
        if spec.startswith(prefix):
            return source, Path(spec[len(prefix) :])
    if not Path(spec).is_file():
        kinds = ", ".join([*(f"`{world}`" for world in WORLDS), *(f"`{prefix}PATH`" for prefix in SOURCES)])
        raise ValueError(f"data={spec!r} is neither {kinds}, nor a JSON-lines file.")
    return JSON_LINES, Path(spec)


def _drafts(spec: str, split: str, n: int, seed: int, images: bool) -> tuple[list[Draft], ReadReport]:
    source, path = _source(spec)
    report = ReadReport()
    if source is not None:
        drafts = source.load(path, split, report, images)
    else:
        drafts = _household_drafts(spec, split, n, seed, images)
        report.read = len(drafts)
    report.kept = len(drafts)
    return drafts, report


def _household_drafts(spec: str, split: str, n: int, seed: int, images: bool) -> list[Draft]:
    from stepgrpo.data.household import ACTIONS, household_rows
    from stepgrpo.data.rows import draft_of

    pictures = spec == HOUSEHOLD_PICTURES
    rows = household_rows(split, n, seed=seed, pictures=pictures and images, scene_in_prompt=not pictures)
    return [draft_of({**row, "images": row.get("images", [])}, row["id"], ACTIONS) for row in rows]


def _without_long_plans(drafts: list[Draft], limit: int, report: ReadReport) -> list[Draft]:
    kept = []
    for number, draft in enumerate(drafts, 1):
        try:
            too_long = len(find_ground_truth(draft.row, GROUND_TRUTH_FIELDS)) > limit
        except ValueError:
            too_long = False
        if too_long:
            report.drop(LONG_PLAN.format(limit), str(draft.row.get("id") or f"row {number}"))
        else:
            kept.append(draft)
    report.kept = len(kept)
    return kept


def success_check(spec: str) -> Succeeded | None:
    """A function that says whether a plan reaches a row's goal, for the sources that can tell; else None."""
    if spec not in WORLDS:
        return None
    from stepgrpo.data.household import simulate

    return lambda row, steps: simulate(row["scene"], steps).success
