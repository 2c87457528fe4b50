"""The command line of `stepgrpo evaluate`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from stepgrpo import launch
from stepgrpo.data.sources import read_rows, success_check
from stepgrpo.evaluation_arguments import PROG, EvaluateArguments, parse_arguments
from stepgrpo.evaluation_files import PartialCompletions, check_folder, json_lines, read_completions, write_whole
from stepgrpo.evaluation_report import format_groups, format_ways
from stepgrpo.signal.rule import ground_truth_fields

Rows = Sequence[Mapping[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """`stepgrpo evaluate`: `run` here, or by `accelerate launch` if `--config_file` or `--num_processes` is given.

    Returns:
        The exit status.
    """
    options = list(sys.argv[1:] if argv is None else argv)
    launcher, rest = launch.split_options(options)
    return launch.start("evaluate", launcher, rest) if launcher else run(rest)


def run(argv: Sequence[str] | None = None) -> int:
    """Writes `metrics.json` and `completions.jsonl` and prints tables.

    Args:
        argv: options of `EvaluateArguments`, and `--config` with a YAML file of them; those of this process if None.

    Returns:
        The exit status: 0, or 130 if interrupted.

    Raises:
        SystemExit: with status 2 and one message on stderr if something is wrong with the options, the data or the model.
    """
    args = parse_arguments(sys.argv[1:] if argv is None else argv)
    started = time.perf_counter()
    try:
        check_folder(Path(args.out))
        rows, report = read_rows(
            args.data,
            args.split,
            args.n,
            args.seed,
            args.max_plan_steps,
            template=args.template,
            examples=args.examples,
            images=args.images,
        )
        if args.gt_field and not any(args.gt_field in row for row in rows):
            columns = ", ".join(sorted({name for row in rows for name in row}))
            raise ValueError(f"gt_field={args.gt_field!r} is no column of {args.data}. Columns: {columns}.")
        record = read_completions(list(map(Path, args.completions)), rows) if args.completions else None
    except (ValueError, OSError) as error:
        _stop(error)
    if record is None:
        try:
            from stepgrpo.modeling import check_chat_template

            model, tokenizer, state = _load(args)
            _check_pictures(args, rows, tokenizer)
            check_chat_template(tokenizer, rows[0]["prompt"], args.model)
        except (ValueError, OSError, ImportError) as error:
            _stop(error)
        if state.is_main_process:
            print(f"{args.data}: {report}", flush=True)
        try:
            record = _write(args, model, tokenizer, rows, state.process_index)
        except KeyboardInterrupt:
            return 130
        state.wait_for_everyone()  # a rank that leaves early takes the others' process group with it
        state.destroy_process_group()
        if not state.is_main_process:
            return 0
    else:
        print(f"{args.data}: {report}")
    _finish(args, record, rows, str(report), started)
    return 0


def _stop(error: Exception) -> NoReturn:
    print(f"{PROG}: {error}", file=sys.stderr)
    raise SystemExit(2)


def _load(args: EvaluateArguments) -> tuple[Any, Any, Any]:
    """The model on its device, its tokenizer, and the state of the processes."""
    import torch
    import transformers
    from accelerate import PartialState
    from accelerate.utils import patch_environment

    from stepgrpo.modeling import load_model, load_processing_class

    # Without `cpu`, processes on a machine without an accelerator would not know of each other.
    state = PartialState(cpu=not torch.accelerator.is_available())
    if args.quiet or not state.is_main_process:
        transformers.logging.disable_progress_bar()
    assert args.model is not None
    tokenizer = load_processing_class(args.model, args.gguf_file)
    # With FSDP's efficient loading, all processes but one would get empty weights: nothing here sends them the others.
    with patch_environment(FSDP_CPU_RAM_EFFICIENT_LOADING="false"):
        model = load_model(args.model, args.gguf_file, args.dtype)
    if hasattr(model, "merge_and_unload") and model.dtype == torch.float32:
        # Faster; in half precision the sum would round the adapter away.
        model = model.merge_and_unload()
    return model.to(args.device or state.device), tokenizer, state


def _check_pictures(args: EvaluateArguments, rows: Rows, processor: Any) -> None:
    pictures = sum(bool(row.get("images")) for row in rows)
    if pictures and not hasattr(processor, "image_processor"):
        raise ValueError(
            f"{pictures} of the {len(rows)} rows of {args.data} have pictures, and model={args.model!r} is no vision-language "
            "model. Give one that is, or images=false to leave them out."
        )
    if not hasattr(processor, "image_processor"):
        return
    from trl import prepare_multimodal_messages

    problems = []
    for number, row in enumerate(rows):
        images = list(row.get("images") or [])
        try:
            if not isinstance(row["prompt"], str):
                prepare_multimodal_messages(row["prompt"], images=images)
            elif images:
                raise ValueError("there are pictures, and the prompt is a text; make it a list of messages.")
        except ValueError as error:
            problems.append(f"{row.get('id') or f'row {number}'}: {error}")
    if problems:
        raise ValueError(
            f"The prompts of {len(problems)} of {len(rows)} rows do not fit their pictures; the first, {problems[0]}"
        )


def _write(args: EvaluateArguments, model: Any, tokenizer: Any, rows: Rows, process: int) -> list[dict[str, Any]]:
    from stepgrpo.evaluation import write_completions

    out = Path(args.out)
    partial = PartialCompletions(out, rows, process)
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
            write_whole(out / "completions.jsonl", json_lines(record, rows))
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


def _finish(args: EvaluateArguments, record: list[dict[str, Any]], rows: Rows, report: str, started: float) -> None:
    from stepgrpo.evaluation import measure

    result = measure(record, rows, success_check(args.data), args.plan_key, ground_truth_fields(args.gt_field))
    seconds = round(time.perf_counter() - started, 1)
    parts = asdict(result)
    summary = {
        **parts.pop("metrics"),
        "rows": len({item["row"] for item in record}),
        "seconds": seconds,
        "data_report": report,
        "settings": asdict(args),
        **parts,
    }
    out = Path(args.out)
    write_whole(out / "completions.jsonl", json_lines(record, rows))
    write_whole(out / "metrics.json", json.dumps(summary, indent=1) + "\n")
    print(format_ways(result.metrics))
    for title, groups in (("task type", result.by_task_type), ("plan length", result.by_plan_length)):
        if len(groups) > 1:
            print(f"\n{format_groups(title, groups)}")
    print(f"\n{summary['rows']} rows, {seconds} s; in {args.out}: metrics.json, completions.jsonl")
