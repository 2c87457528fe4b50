"""Held-out metrics of a planner, greedy and sampled; `stepgrpo evaluate`."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object

from stepgrpo.data.sources import Succeeded, read_rows, success_check
from stepgrpo.generation import end_token_ids, generate_ids, generate_plans
from stepgrpo.rewards.plan import is_exact, step_accuracy
from stepgrpo.segment.plan import parse_plan
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS, find_ground_truth

__all__ = ["evaluate", "format_metrics", "generate_plans", "main", "plan_metrics"]

logger = logging.getLogger(__name__)

PLAN_KEY = "executable_plan"


def plan_metrics(
    completions: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    succeeded: Succeeded | None = None,
    plan_key: str = PLAN_KEY,
    fields: Sequence[str] = GROUND_TRUTH_FIELDS,
) -> dict[str, float]:
    """How good plans are, as means over the completions; all in [0, 1].

    Args:
        completions: texts, at least one.
        rows: the row of each completion.
        succeeded: says whether a row's goal is reached by a list of steps; not asked where there is no plan.
        plan_key: key of the list of steps.
        fields: columns the ground truth is read from, the first that has a value.

    Returns:
        `valid_json`: the text is, as a whole, a JSON object with a list under `plan_key`.
        `parsed`: the tolerant reader finds a plan.
        `exact_match`: the plan has the ground truth's steps, all and in order, compared by id, by name where an id is missing.
        `step_accuracy`: length of the longest common subsequence with the ground truth over the longer of the two lengths; 0
            without a plan. One step skipped, added or replaced costs one step, wherever it is.
        `success`: of `succeeded`, where given.
        `no_ground_truth`: share without a readable ground truth. They are left out of `exact_match` and `step_accuracy`, which
            are missing if there are no others.

    Raises:
        ValueError: if there are no completions, or not as many as rows.
    """
    if not completions or len(completions) != len(rows):
        raise ValueError(
            f"{len(completions)} completions for {len(rows)} rows; there must be one or more, and as many."
        )
    values: dict[str, list[float]] = {"valid_json": [], "parsed": [], "exact_match": [], "step_accuracy": []}
    if succeeded is not None:
        values["success"] = []
    problems = []
    for text, row in zip(completions, rows, strict=True):
        steps = parse_plan(text, plan_key)
        values["valid_json"].append(_is_strict_json(text, plan_key))
        values["parsed"].append(steps is not None)
        if succeeded is not None:
            values["success"].append(steps is not None and bool(succeeded(row, steps)))
        try:
            truth = find_ground_truth(row, fields)
        except ValueError as error:
            problems.append(str(error))
            continue
        values["exact_match"].append(0.0 if steps is None else is_exact(steps, truth))
        values["step_accuracy"].append(0.0 if steps is None else step_accuracy(steps, truth))
    if problems:
        logger.warning(
            "No ground truth for %d of %d completions; the first: %s", len(problems), len(rows), problems[0]
        )
    means = {name: sum(map(float, column)) / len(column) for name, column in values.items() if column}
    return {**means, "no_ground_truth": len(problems) / len(rows)}


def _is_strict_json(text: str, plan_key: str) -> bool:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and isinstance(answer.get(plan_key), list)


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
    record: list[dict[str, Any]] | None = None,
) -> dict[str, float]:
    """Measures a planner on rows with a `prompt` and a ground truth; on several processes, each writes a part of the plans.

    Args:
        model, tokenizer: the planner.
        rows: at least one.
        max_new_tokens: at most so many tokens a completion.
        greedy: whether to measure the greedy completion of each row.
        samples: sampled completions per row; 0 for none.
        temperature, top_p, batch_size, seed: of the sampling; see `generate_plans`.
        succeeded, plan_key: see `plan_metrics`.
        record: a list that every completion is added to, as `{"row", "way", "completion"}`.

    Returns:
        The metrics of `plan_metrics` and `cut_off` (share that reached `max_new_tokens` without an end), on every process, as
        `greedy/NAME` and `sampled/NAME`.

    Raises:
        ValueError: if there are no rows.
    """
    result: dict[str, float] = {}
    end_ids = end_token_ids(model, tokenizer)
    prompts = [row["prompt"] for row in rows]
    ways = [("greedy", 0.0, 1)] * greedy + [("sampled", temperature, samples)] * (samples > 0)
    for way, heat, count in ways:
        write = partial(
            generate_ids,
            model,
            tokenizer,
            max_new_tokens=max_new_tokens,
            temperature=heat,
            top_p=top_p,
            num_samples=count,
            batch_size=batch_size,
            # Otherwise all processes would draw the same samples.
            seed=seed + 1000 * PartialState().process_index,
        )
        groups = _share_out(prompts, write)
        ids = [completion for group in groups for completion in group]
        numbers = [i for i in range(len(rows)) for _ in range(count)]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        metrics = plan_metrics(texts, [rows[i] for i in numbers], succeeded, plan_key)
        metrics["cut_off"] = sum(not completion or completion[-1] not in end_ids for completion in ids) / len(ids)
        result |= {f"{way}/{name}": value for name, value in metrics.items()}
        if record is not None:
            record += [{"row": i, "way": way, "completion": text} for i, text in zip(numbers, texts, strict=True)]
    return result


def _share_out(prompts: Sequence[Any], write: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
    """What `write` returns for the prompts, each process writing every n-th."""
    state = PartialState()
    mine = range(state.process_index, len(prompts), state.num_processes)
    written = list(zip(mine, write([prompts[i] for i in mine]), strict=True))
    by_number = dict(gather_object(written)) if state.num_processes > 1 else dict(written)
    return [by_number[i] for i in range(len(prompts))]


def format_metrics(columns: Mapping[str, Mapping[str, float]]) -> str:
    """A table of metrics in percent as text: a line per metric, a column per model."""
    names = list(dict.fromkeys(name for metrics in columns.values() for name in metrics))
    first = max([len(name) for name in names] + [6])
    width = max([len(label) for label in columns] + [7])
    lines = ["metric".ljust(first) + "".join(f"  {label:>{width}}" for label in columns)]
    for name in names:
        cells = [f"{100 * metrics[name]:.1f}%" if name in metrics else "-" for metrics in columns.values()]
        lines.append(name.ljust(first) + "".join(f"  {cell:>{width}}" for cell in cells))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """`stepgrpo evaluate`: writes `metrics.json` and `completions.jsonl` and prints a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="stepgrpo evaluate", description=__doc__)
    parser.add_argument("--model", required=True, help="directory of a model or of a LoRA adapter, or a hub id")
    parser.add_argument(
        "--gguf-file", help="name of the GGUF file in the directory of the model, or of an adapter's base"
    )
    parser.add_argument("--data", required=True, help="household, alfred:PATH or a JSON-lines file")
    parser.add_argument("--out", required=True, type=Path, help="directory to write to")
    parser.add_argument("--split", default="dev", help="train, dev or test")
    parser.add_argument("--n", type=int, default=64, help="how many rows")
    parser.add_argument("--samples", type=int, default=4, help="sampled completions per row, besides the greedy one")
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; the process's GPU, if any")
    args = parser.parse_args(argv)

    import torch

    from stepgrpo.modeling import load_model, load_tokenizer

    try:
        rows, report = read_rows(args.data, args.split, args.n, args.seed)
        tokenizer = load_tokenizer(args.model, args.gguf_file)
        model = load_model(args.model, args.gguf_file)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    # Without `cpu`, processes on a machine without an accelerator would not know of each other.
    state = PartialState(cpu=not torch.accelerator.is_available())
    state.print(f"{args.data}: {report}")
    if hasattr(model, "merge_and_unload") and model.dtype == torch.float32:
        # Faster; in half precision the sum would round the adapter away.
        model = model.merge_and_unload()
    model = model.to(args.device or state.device)
    started = time.perf_counter()
    record: list[dict[str, Any]] = []
    metrics = evaluate(
        model,
        tokenizer,
        rows,
        args.max_new_tokens,
        samples=args.samples,
        temperature=args.temperature,
        top_p=args.top_p,
        batch_size=args.batch_size,
        seed=args.seed,
        succeeded=success_check(args.data),
        record=record,
    )
    if not state.is_main_process:
        return 0
    seconds = round(time.perf_counter() - started, 1)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    summary = {**metrics, "rows": len(rows), "seconds": seconds, "data_report": str(report), "settings": settings}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "metrics.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    lines = [json.dumps({**item, "id": rows[item["row"]].get("id")}, ensure_ascii=False) for item in record]
    (args.out / "completions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(format_metrics({"value": metrics}))
    print(f"{len(rows)} rows, {seconds} s; in {args.out}: metrics.json, completions.jsonl")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
