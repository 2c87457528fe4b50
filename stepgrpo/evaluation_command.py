"""The command line of `stepgrpo evaluate`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepgrpo.data.sources import read_rows, success_check
from stepgrpo.evaluation_files import PartialCompletions, check_folder, json_lines, read_completions, write_whole
from stepgrpo.evaluation_report import format_groups, format_ways
from stepgrpo.rewards.plan import PLAN_KEY
from stepgrpo.signal.rule import ground_truth_fields

Rows = Sequence[Mapping[str, Any]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stepgrpo evaluate",
        description="Writes plans with a trained model and measures them; see docs/evaluate.md.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", help="directory of a model or of a LoRA adapter, a hub id, or smollm2")
    what.add_argument(
        "--completions", nargs="+", type=Path, metavar="FILE", help="measure these completions instead of writing some"
    )
    parser.add_argument(
        "--gguf-file", help="name of the GGUF file in the directory of the model, or of an adapter's base"
    )
    parser.add_argument("--data", required=True, help="household, alfred:PATH, another source, or a JSON-lines file")
    parser.add_argument("--out", required=True, type=Path, help="directory to write to")
    parser.add_argument("--split", default="dev", help="train, dev or test")
    parser.add_argument("--n", type=_at_least(1), default=64, help="how many rows (default: 64)")
    parser.add_argument(
        "--samples",
        type=_at_least(0),
        default=4,
        help="sampled completions per row, besides the greedy one (default: 4)",
    )
    parser.add_argument("--max-new-tokens", type=_at_least(1), default=512)
    parser.add_argument("--batch-size", type=_at_least(1), default=64, help="completions at a time (default: 64)")
    parser.add_argument("--temperature", type=_above_zero, default=1.0, help="of the samples (default: 1)")
    parser.add_argument("--top-p", type=_share, default=1.0, help="of the samples (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples, and of drawing rows (default: 0)")
    parser.add_argument("--plan-key", default=PLAN_KEY, help=f"key of the list of steps (default: {PLAN_KEY})")
    parser.add_argument("--gt-field", help="column of the ground truth; else gt_action_close, else ground_truth")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; the process's GPU, if any")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Writes `metrics.json` and `completions.jsonl` and prints tables; returns the exit status: 0, or 130 if interrupted."""
    parser = _parser()
    args = parser.parse_args(argv)
    started = time.perf_counter()
    try:
        check_folder(args.out)
        rows, report = read_rows(args.data, args.split, args.n, args.seed)
        if args.gt_field and not any(args.gt_field in row for row in rows):
            columns = ", ".join(sorted({name for row in rows for name in row}))
            raise ValueError(f"--gt-field {args.gt_field!r} is no column of {args.data}. Columns: {columns}.")
        record = read_completions(args.completions, rows) if args.completions else None
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if record is None:
        try:
            model, tokenizer, state = _load(args)
        except (ValueError, OSError, ImportError) as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        if state.is_main_process:
            print(f"{args.data}: {report}", flush=True)
        try:
            record = _write(args, model, tokenizer, rows, state.process_index)
        except KeyboardInterrupt:
            return 130
        if not state.is_main_process:
            return 0
    else:
        print(f"{args.data}: {report}")
    _finish(args, record, rows, str(report), started)
    return 0


def _load(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The model on its device, its tokenizer, and the state of the processes."""
    import torch
    import transformers
    from accelerate import PartialState

    from stepgrpo.modeling import load_model, load_processing_class

    # Without `cpu`, processes on a machine without an accelerator would not know of each other.
    state = PartialState(cpu=not torch.accelerator.is_available())
    if args.quiet or not state.is_main_process:
        transformers.logging.disable_progress_bar()
    tokenizer = load_processing_class(args.model, args.gguf_file)
    model = load_model(args.model, args.gguf_file)
    if hasattr(model, "merge_and_unload") and model.dtype == torch.float32:
        # Faster; in half precision the sum would round the adapter away.
        model = model.merge_and_unload()
    return model.to(args.device or state.device), tokenizer, state


def _write(args: argparse.Namespace, model: Any, tokenizer: Any, rows: Rows, process: int) -> list[dict[str, Any]]:
    from stepgrpo.evaluation import write_completions

    partial = PartialCompletions(args.out, rows, process)
    done = False
    try:
        record = write_completions(
            model,
            tokenizer,
            rows,
            args.max_new_tokens,
            samples=args.samples,
            temperature=args.temperature,
            top_p=args.top_p,
            batch_size=args.batch_size,
            seed=args.seed,
            progress=not args.quiet,
            on_written=partial.add,
        )
        if process == 0:
            # Before anything is measured: the plans are what took the time.
            write_whole(args.out / "completions.jsonl", json_lines(record, rows))
        done = True
        return record
    finally:
        partial.close(keep=not done and partial.count > 0)
        if not done and partial.count:
            print(
                f"Stopped early. {partial.count} completions are in {partial.path}; the same command with --completions "
                f"{partial.path} in place of --model measures them.",
                file=sys.stderr,
            )


def _finish(args: argparse.Namespace, record: list[dict[str, Any]], rows: Rows, report: str, started: float) -> None:
    from stepgrpo.evaluation import measure

    result = measure(record, rows, success_check(args.data), args.plan_key, ground_truth_fields(args.gt_field))
    seconds = round(time.perf_counter() - started, 1)
    parts = asdict(result)
    summary = {
        **parts.pop("metrics"),
        "rows": len({item["row"] for item in record}),
        "seconds": seconds,
        "data_report": report,
        "settings": {key: _plain(value) for key, value in vars(args).items()},
        **parts,
    }
    write_whole(args.out / "completions.jsonl", json_lines(record, rows))
    write_whole(args.out / "metrics.json", json.dumps(summary, indent=1) + "\n")
    print(format_ways(result.metrics))
    for title, groups in (("task type", result.by_task_type), ("plan length", result.by_plan_length)):
        if len(groups) > 1:
            print(f"\n{format_groups(title, groups)}")
    print(f"\n{summary['rows']} rows, {seconds} s; in {args.out}: metrics.json, completions.jsonl")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _at_least(least: int) -> Any:
    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    read.__name__ = "whole number"
    return read


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0; the greedy plans are written anyway")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not in (0, 1]")
    return value
