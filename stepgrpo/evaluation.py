"""Held-out metrics of a planner, greedy and sampled; `stepgrpo evaluate`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm

from stepgrpo.evaluation_report import format_metrics
from stepgrpo.generation import end_token_ids, generate_ids, generate_plans
from stepgrpo.metrics import (
    UNKNOWN,
    PlanScore,
    Succeeded,
    length_bucket,
    mean_metrics,
    pass_metrics,
    plan_metrics,
    score_plan,
    warn_of_missing_truths,
)
from stepgrpo.rewards.plan import PLAN_KEY
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS
from stepgrpo.vocabulary import Vocabulary, find_vocabulary

__all__ = [
    "Evaluation",
    "evaluate",
    "format_metrics",
    "generate_plans",
    "main",
    "measure",
    "plan_metrics",
    "write_completions",
]

logger = logging.getLogger(__name__)

GREEDY, SAMPLED = "greedy", "sampled"

Record = dict[str, Any]


@dataclass
class Evaluation:
    """What came out of an evaluation; all values in [0, 1].

    Attributes:
        metrics: `greedy/NAME` and `sampled/NAME`: the metrics of `plan_metrics`, `cut_off`, and of the samples `pass@1`,
            `pass@2`, `pass@4`, ... up to their number.
        by_task_type: the same for the rows of each `task_type`, and `rows`, how many there are; empty where no row has a type.
        by_plan_length: the same by the length of the ground truth, in the ranges of `length_bucket`.
        vocabulary: the table of actions that ids and names were compared with, if any.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    by_task_type: dict[str, dict[str, float]] = field(default_factory=dict)
    by_plan_length: dict[str, dict[str, float]] = field(default_factory=dict)
    vocabulary: str | None = None


def evaluate(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    max_new_tokens: int,
    greedy: bool = True,
    samples: int = 0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch_size: int = 64,
    seed: int = 0,
    succeeded: Succeeded | None = None,
    plan_key: str = PLAN_KEY,
    record: list[Record] | None = None,
    fields: Sequence[str] = GROUND_TRUTH_FIELDS,
) -> dict[str, float]:
    """Measures a planner on rows with a `prompt` and a ground truth; on several processes, each writes a part of the plans.

    `write_completions` and `measure` are its two halves.

    Args:
        model, tokenizer: the planner.
        rows: at least one.
        max_new_tokens, greedy, samples, temperature, top_p, batch_size, seed: see `write_completions`.
        succeeded, plan_key, fields: see `plan_metrics`.
        record: a list that every completion is added to, as `write_completions` returns them.

    Returns:
        The `metrics` of `Evaluation`, on every process.

    Raises:
        ValueError: if there are no rows, or nothing is to be written.
    """
    written = write_completions(
        model, tokenizer, rows, max_new_tokens, greedy, samples, temperature, top_p, batch_size, seed
    )
    if record is not None:
        record += written
    return measure(written, rows, succeeded, plan_key, fields).metrics


def write_completions(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    max_new_tokens: int,
    greedy: bool = True,
    samples: int = 0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
    on_written: Callable[[list[Record]], object] | None = None,
) -> list[Record]:
    """Writes the plans of an evaluation; on several processes, each writes a part.

    Args:
        model, tokenizer: the planner; for a vision-language model the processor, which gets the rows' `images`.
        rows: rows with a `prompt`.
        max_new_tokens: at most so many tokens a completion.
        greedy: whether to write the greedy completion of each row.
        samples: sampled completions per row; 0 for none.
        temperature, top_p, batch_size, seed: of the sampling; see `generate_plans`.
        progress: whether the main process shows a bar on stderr.
        on_written: called after each batch with the completions that this process wrote in it.

    Returns:
        All completions on every process: `row` (its number), `way` ("greedy" or "sampled"), `completion` (the text) and
        `cut_off` (whether it reached `max_new_tokens` without an end); by way, then by row.
    """
    end_ids = end_token_ids(model, tokenizer)
    state = PartialState()
    mine = list(range(state.process_index, len(rows), state.num_processes))
    images = [row.get("images") or [] for row in rows]
    pictures = {"images": [images[i] for i in mine]} if any(images) else {}
    record: list[Record] = []
    for way, heat, count in [(GREEDY, 0.0, 1)] * greedy + [(SAMPLED, temperature, samples)] * (samples > 0):
        bar = tqdm(total=len(mine) * count, desc=way, unit="plan", disable=not (progress and state.is_main_process))

        def items(number: int, completions: Sequence[list[int]], way: str = way) -> list[Record]:
            texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
            return [
                {"row": number, "way": way, "completion": text, "cut_off": not ids or ids[-1] not in end_ids}
                for ids, text in zip(completions, texts, strict=True)
            ]

        def batch_done(numbers: list[int], completions: list[list[int]], bar: Any = bar, items: Any = items) -> None:
            bar.update(len(numbers))
            if on_written is not None:
                done = [items(mine[i], [ids]) for i, ids in zip(numbers, completions, strict=True)]
                on_written([item for one in done for item in one])

        with bar:
            groups = (
                generate_ids(
                    model,
                    tokenizer,
                    [rows[i]["prompt"] for i in mine],
                    max_new_tokens=max_new_tokens,
                    temperature=heat,
                    top_p=top_p,
                    num_samples=count,
                    batch_size=batch_size,
                    # Otherwise all processes would draw the same samples.
                    seed=seed + 1000 * state.process_index,
                    on_batch=batch_done,
                    **pictures,
                )
                if mine  # there may be fewer rows than processes
                else []
            )
        written = [item for i, group in zip(mine, groups, strict=True) for item in items(i, group)]
        if state.num_processes > 1:
            written = sorted(gather_object(written), key=lambda item: item["row"])
        record += written
    return record


def measure(
    record: Sequence[Record],
    rows: Sequence[Mapping[str, Any]],
    succeeded: Succeeded | None = None,
    plan_key: str = PLAN_KEY,
    fields: Sequence[str] = GROUND_TRUTH_FIELDS,
    vocabulary: Vocabulary | None = None,
) -> Evaluation:
    """Measures completions, all together and by groups of rows.

    Args:
        record: completions as `write_completions` returns them, at least one; `cut_off` may be missing.
        rows: the rows that they number.
        succeeded, plan_key, fields: see `plan_metrics`.
        vocabulary: which name belongs to which id; where not given, the table that the rows' ground truths are written in.

    Raises:
        ValueError: if there are no completions.
    """
    if not record:
        raise ValueError(f"No completions to measure, for {len(rows)} rows.")
    vocabulary = vocabulary or find_vocabulary(rows, fields)
    scores = []
    for item in record:
        score = score_plan(item["completion"], rows[item["row"]], succeeded, plan_key, fields, vocabulary)
        if "cut_off" in item:
            score.values["cut_off"] = float(item["cut_off"])
        scores.append(score)
    warn_of_missing_truths(scores)
    scored = list(zip(record, scores, strict=True))
    types = {number: str(row.get("task_type") or UNKNOWN) for number, row in enumerate(rows)}
    lengths = {item["row"]: length_bucket(score.length) for item, score in scored}
    typed = set(types.values()) != {UNKNOWN}
    return Evaluation(
        metrics=_by_way(scored),
        by_task_type=_by_group(scored, types) if typed else {},
        by_plan_length=_by_group(scored, lengths),
        vocabulary=vocabulary.title if vocabulary else None,
    )


Scored = Sequence[tuple[Record, PlanScore]]


def _by_way(scored: Scored) -> dict[str, float]:
    result: dict[str, float] = {}
    for way in dict.fromkeys(item["way"] for item, _ in scored):
        groups: dict[int, list[PlanScore]] = {}
        for item, score in scored:
            if item["way"] == way:
                groups.setdefault(item["row"], []).append(score)
        means = mean_metrics([score for group in groups.values() for score in group])
        if way == SAMPLED:
            means |= pass_metrics(list(groups.values()))
        result |= {f"{way}/{name}": value for name, value in means.items()}
    return result


def _by_group(scored: Scored, labels: Mapping[int, str]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[tuple[Record, PlanScore]]] = {}
    for item, score in scored:
        groups.setdefault(labels[item["row"]], []).append((item, score))
    return {
        label: {"rows": len({item["row"] for item, _ in group}), **_by_way(group)}
        for label, group in sorted(groups.items(), key=lambda pair: _order(pair[0]))
    }


def _order(label: str) -> tuple[bool, int, str]:
    """Ranges of numbers by number, names by name, the unknown last."""
    digits = label.split("-")[0].rstrip("+")
    return label == UNKNOWN, int(digits) if digits.isdecimal() else 0, label


def main(argv: Sequence[str] | None = None) -> int:
    """`stepgrpo evaluate`: writes `metrics.json` and `completions.jsonl` and prints tables; returns the exit status."""
    from stepgrpo.evaluation_command import main as command

    return command(argv)


if __name__ == "__main__":
    raise SystemExit(main())
