"""Makes the signal `forward_proxy` of a trainer: its teacher, its contexts, and the checks at start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from stepgrpo.frozen.callback import TeacherLogpCallback
from stepgrpo.frozen.context import TeacherContexts
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.forward_proxy import ForwardProxySignal, ReferencePlans
from stepgrpo.signal.rule import RuleSignal, find_ground_truth


def make_forward_proxy(trainer: Any, train_dataset: Any, fields: Sequence[str]) -> ForwardProxySignal:
    """The signal of a trainer's config, with the teacher among its callbacks or a new one from `step_teacher_path`.

    Args:
        trainer: whose `args` are a `StepGRPOConfig`. Gets the teacher as a callback.
        train_dataset: whose first rows are read, to check the contexts.
        fields: columns that hold the reference plan.

    Raises:
        ValueError: if there is no teacher, it has another tokenizer, or its contexts cannot be written or end differently.
    """
    args = trainer.args
    given = [one for one in trainer.callback_handler.callbacks if isinstance(one, TeacherLogpCallback)]
    if given and args.step_teacher_path is not None:
        raise ValueError(
            f"There are two teachers: step_teacher_path={args.step_teacher_path!r} and a TeacherLogpCallback in `callbacks`. "
            "Leave one out."
        )
    if not given:
        if args.step_teacher_path is None:
            raise ValueError(
                "step_reward_kind='forward_proxy' needs a teacher: set step_teacher_path to a directory or hub id, to base (a "
                "LoRA policy without its adapter) or to self (the policy), or pass a TeacherLogpCallback in `callbacks`."
            )
        given = [
            TeacherLogpCallback(
                args.step_teacher_path,
                dtype=args.step_teacher_dtype,
                device=args.step_teacher_device,
                offload=args.step_teacher_offload,
                on_error=args.step_on_error,
                max_tokens=args.step_teacher_max_tokens,
            )
        ]
        trainer.add_callback(given[0])
    teacher = given[0]
    teacher.attach(trainer)
    contexts = TeacherContexts(
        teacher.processing_class,
        args.step_reference_template,
        args.step_alone_template,
        getattr(trainer, "chat_template", None) or getattr(trainer.processing_class, "chat_template", None),
        args.chat_template_kwargs,
        getattr(trainer, "tools", None),
        args.step_plan_key,
        teacher.processor_kwargs,
    )
    rows = _rows_with_plans(train_dataset, fields)
    for row, plan in rows[:1]:
        contexts.check(row, plan)
    others = None
    if args.step_contrast_reference == "shuffled":
        others = ReferencePlans([plan for _, plan in rows])
        if rows and others.other(rows[0][1]) is None:
            raise ValueError(
                "step_contrast_reference='shuffled' compares with another row's plan, but the first rows of train_dataset all "
                "have the same one."
            )
    sign = None
    if args.step_combine == "modulate" and args.step_sign == "rule":
        sign = RuleSignal(fields, args.step_match_mode, args.step_match_key)
    return ForwardProxySignal(teacher, contexts, fields, args.step_squash, args.step_aggregate, others, sign)


def _rows_with_plans(dataset: Any, fields: Sequence[str], rows: int = 256) -> list[tuple[Any, list[PlanStep]]]:
    """The first rows of a data set, or of the first of several, that have a plan that can be read, and it."""
    if isinstance(dataset, Mapping):
        dataset = next(iter(dataset.values()), None)
    found = []
    for row in islice(iter(dataset or ()), rows):
        with suppress(ValueError):
            found.append((row, find_ground_truth(row, fields)))
    return found
