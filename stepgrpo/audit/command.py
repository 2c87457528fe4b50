"""The command line of `stepgrpo audit`: can this teacher tell right steps from wrong ones on this data?"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepgrpo.audit.corruptions import Plan
from stepgrpo.audit.plot import draw_audit
from stepgrpo.audit.report import report_text
from stepgrpo.audit.run import Teacher, audit, usable_plans, works_in_household
from stepgrpo.data.sources import ALFRED_NAMES, WORLDS, read_rows
from stepgrpo.evaluation_arguments import DTYPES
from stepgrpo.evaluation_files import check_folder, write_whole
from stepgrpo.signal.rule import find_ground_truth, ground_truth_fields
from stepgrpo.signal.squash import CONTRAST_REFERENCES

PROG = "stepgrpo audit"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Damages ground-truth plans in known ways, scores every step with a teacher that reads the plan, and "
        "says how well each signal tells right steps from wrong ones. See docs/teacher.md.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", required=True, help="directory of a model or of a LoRA adapter, a hub id, or smollm2")
    add("--data", required=True, help="household, alfred:PATH, another source of docs/data.md, or a JSON-lines file")
    add("--out", required=True, type=Path, metavar="DIR", help="directory for audit.json, audit.md and audit.png")
    add(
        "--gguf-file",
        metavar="FILE",
        help="name of the GGUF file in the directory of the model, or of an adapter's base",
    )
    add("--dtype", choices=DTYPES, default="auto", help="of the weights (default: auto, the saved one)")
    add("--device", help="cpu, cuda, cuda:1, ... (default: the GPU, if any)")
    add("--split", default="train", help="train, dev or test (default: train)")
    add("--n", type=_positive, default=64, help="how many plans (default: 64)")
    add("--max-plan-steps", type=_positive, metavar="N", help="leave out rows with longer ground truths")
    add("--template", help="of the policy's prompts, a name or a file, instead of the data's own")
    add("--no-images", dest="images", action="store_false", help="leave the pictures out")
    add("--gt-field", metavar="COLUMN", help="of the ground truth (default: gt_action_close, else ground_truth)")
    add("--reference-template", metavar="FILE", help="of what the teacher reads with the reference plan")
    add("--alone-template", metavar="FILE", help="of what it reads without, for contrast")
    add(
        "--contrast-reference",
        choices=CONTRAST_REFERENCES,
        default="none",
        help="what contrast compares with: the problem alone (default), or another row's plan",
    )
    add("--max-tokens", type=_positive, default=32768, metavar="N", help="tokens in one forward (default: 32768)")
    add("--copies", type=_positive, default=1, metavar="N", help="damaged copies of each kind and plan (default: 1)")
    add("--bootstrap", type=_count, default=1000, metavar="N", help="samples for the intervals (default: 1000)")
    add("--seed", type=int, default=0, help="of rows, damages and intervals (default: 0)")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Writes `audit.json`, `audit.md` and `audit.png`, and prints the tables.

    Args:
        argv: the options; those of this process if None.

    Returns:
        The exit status: 0, 1 if no plan could be scored, or 130 if interrupted.

    Raises:
        SystemExit: with status 2 and one message on stderr if something is wrong with the options, the data or the model.
    """
    args = _parser().parse_args(argv)
    started = time.perf_counter()
    fields = ground_truth_fields(args.gt_field)
    try:
        check_folder(args.out)
        rows, report = read_rows(
            args.data,
            args.split,
            args.n,
            args.seed,
            args.max_plan_steps,
            template=args.template,
            images=args.images,
        )
        usable, truths = usable_plans(rows, fields, action_ids=not args.data.startswith(ALFRED_NAMES))
        left_out = len(rows) - len(usable)
        said = f"{report}; {left_out} without a ground truth with names" if left_out else str(report)
        print(f"{args.data}: {said}", flush=True)
        teacher, processor = _load(args, usable, truths, fields)
    except (ValueError, OSError, ImportError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    try:
        summary = audit(
            usable,
            truths,
            processor,
            teacher,
            fields,
            works=works_in_household if args.data in WORLDS else None,
            copies=args.copies,
            draws=args.bootstrap,
            seed=args.seed,
            progress=not args.quiet,
        )
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, ValueError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    _write(args, summary, said, started)
    return 0


def _load(
    args: argparse.Namespace, rows: Sequence[Mapping[str, Any]], truths: Sequence[Plan], fields: Sequence[str]
) -> tuple[Teacher, Any]:
    """What scores completions, and the model's tokenizer or processor."""
    import torch
    import transformers

    from stepgrpo.frozen.callback import TeacherLogpCallback
    from stepgrpo.frozen.context import TeacherContexts
    from stepgrpo.modeling import check_chat_template, load_model, load_processing_class
    from stepgrpo.signal.forward_proxy import ForwardProxySignal, ReferencePlans

    others = None
    if args.contrast_reference == "shuffled":
        plans = [find_ground_truth(row, fields) for row in rows]
        others = ReferencePlans(plans)
        if others.other(plans[0]) is None:
            raise ValueError("--contrast-reference shuffled needs rows with different plans; these all have the same.")
    if args.quiet:
        transformers.logging.disable_progress_bar()
    with _named(args.model):
        processor = load_processing_class(args.model, args.gguf_file)
    check_chat_template(processor, rows[0]["prompt"], args.model)
    contexts = TeacherContexts(processor, args.reference_template, args.alone_template)
    contexts.check(rows[0], truths[0])
    with _named(args.model):
        model = load_model(args.model, args.gguf_file, args.dtype)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    teacher = TeacherLogpCallback(model.to(args.device or device), processor, max_tokens=args.max_tokens)
    return ForwardProxySignal(teacher, contexts, fields, others=others).token_logps, processor


@contextmanager
def _named(model: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        raise ValueError(f"The model {model!r} cannot be loaded. {error}") from error


def _write(args: argparse.Namespace, summary: Mapping[str, Any], report: str, started: float) -> None:
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    whole = {
        "model": args.model,
        "data": args.data,
        **summary,
        "seconds": round(time.perf_counter() - started, 1),
        "data_report": report,
        "settings": settings,
    }
    write_whole(args.out / "audit.json", json.dumps(whole, indent=1) + "\n")
    text = report_text(whole)
    write_whole(args.out / "audit.md", text)
    draw_audit(whole, args.out / "audit.png")
    print(text)
    print(
        f"{whole['plans']} plans, {whole['cases']} copies, {whole['steps']} steps, {whole['seconds']} s; in {args.out}: "
        "audit.json, audit.md, audit.png"
    )


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _positive(text: str) -> int:
    if _count(text) == 0:
        raise argparse.ArgumentTypeError("0 is less than 1")
    return int(text)
