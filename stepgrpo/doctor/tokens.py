"""A run's prompts and plans as tokens: whether they fit, and whether each step's tokens are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepgrpo.doctor.findings import Report, describe
from stepgrpo.doctor.parsing import Run
from stepgrpo.doctor.rows import true_answers

MOST_TEXTS, MOST_PICTURED = 2000, 64  # rows that are measured, evenly spread over the data


def check_tokens(report: Report, run: Run, rows: int) -> None:
    """Adds lengths in tokens, and aligns plans with their tokens.

    Args:
        report: where to.
        run: with rows and a processing class; gets its `longest_prompt`.
        rows: how many plans are aligned.
    """
    from stepgrpo.modeling import has_chat_template

    if run.processing_class is None or not run.rows:
        return
    conversational = any(not isinstance(row["prompt"], str) for row in run.rows)
    template = has_chat_template(run.processing_class)
    if conversational and not template:
        report.fail(
            "chat template",
            "the prompts are conversations, and the tokenizer has none",
            "take an instruction-tuned model, or save a chat_template with the tokenizer",
        )
        return
    report.ok("chat template", "there" if template else "none, and the prompts are plain texts")
    if run.tokenizer.eos_token_id is None:
        report.fail("end token", "the tokenizer has none: no completion would ever end")
        return
    if not check_prompts(report, run):
        return
    check_lengths(report, run)
    if run.name == "step_grpo":
        check_alignment(report, run, run.rows[:rows])


def check_prompts(report: Report, run: Run) -> bool:
    """Adds the prompts' lengths, pictures and all. Returns whether they can be encoded."""
    pictured = hasattr(run.processing_class, "image_processor")
    chosen = spread(run.rows, MOST_PICTURED if pictured else MOST_TEXTS)
    lengths, of_pictures = [], []
    for row in chosen:
        try:
            length, pictures = prompt_length(run.processing_class, row)
        except Exception as error:
            report.fail("prompts", f"{row.get('id', 'a row')} cannot be encoded: {describe(error)}")
            return False
        lengths.append(length)
        of_pictures.append(pictures)
    run.longest_prompt, run.longest_pictures = max(lengths), max(of_pictures)
    measured = "" if len(chosen) == len(run.rows) else f" ({len(chosen)} of {len(run.rows)} rows measured)"
    said = f"p50 {percentile(lengths, 50)}, p95 {percentile(lengths, 95)}, max {max(lengths)}{measured}"
    if any(of_pictures):
        said += f"; up to {max(of_pictures)} of them are pictures'"
    report.ok("tokens of a prompt", said)
    return True


def prompt_length(processing_class: Any, row: Mapping[str, Any]) -> tuple[int, int]:
    """How many tokens a row's prompt has, and how many of them stand for pictures."""
    from stepgrpo.generation import encode_prompt

    if not hasattr(processing_class, "image_processor"):
        return len(encode_prompt(processing_class, row["prompt"])), 0
    from transformers.image_utils import load_image
    from trl import prepare_multimodal_messages

    images = [load_image(image) if isinstance(image, str) else image for image in row.get("images") or []]
    text = row["prompt"]
    if not isinstance(text, str):
        messages = prepare_multimodal_messages(text, images=images)
        text = processing_class.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    encoded = processing_class(text=[text], images=[images] if images else None, add_special_tokens=False)
    ids = list(encoded["input_ids"][0])
    token = getattr(processing_class, "image_token_id", None)
    return len(ids), ids.count(token) if images else 0


def check_lengths(report: Report, run: Run) -> None:
    """Adds how many true plans the run would cut off, and whether the longest text fits the model."""
    tokenizer, args = run.tokenizer, run.args
    assert run.longest_prompt is not None
    pairs = true_answers(run, spread(run.rows, MOST_TEXTS))
    plans = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for _, text in pairs]
    limit = args.max_completion_length if run.name == "step_grpo" else None
    if plans:
        run.longest_answer = max(plans)
        said = f"p50 {percentile(plans, 50)}, p95 {percentile(plans, 95)}, max {max(plans)}, with the end token"
        cut = sum(length > limit for length in plans) if limit is not None else 0
        if cut == len(plans):
            report.fail(
                "tokens of a true plan",
                f"{said}; none fits max_completion_length={limit}",
                "raise max_completion_length: no completion could be right",
            )
        elif cut:
            report.warn(
                "tokens of a true plan",
                f"{said}; {cut} of {len(plans)} are longer than max_completion_length={limit}",
                "raise max_completion_length, or set max_plan_steps: what is cut off cannot be right",
            )
        else:
            fits = f", all within max_completion_length={limit}" if limit is not None else ""
            report.ok("tokens of a true plan", said + fits)
    longest = run.longest_prompt + (limit if limit is not None else max(plans, default=0))
    what = f"{longest} tokens with the longest prompt"
    if run.name == "sft" and getattr(args, "max_length", None) and longest > args.max_length:
        report.warn(
            "max_length",
            f"{args.max_length}, and a row has up to {longest} tokens: its end, the plan, is cut off",
            "set max_length: null, or higher",
        )
    window = getattr(args, "vllm_max_model_length", None) if getattr(args, "use_vllm", False) else None
    if window and longest > window:
        report.fail("vllm_max_model_length", f"{window}, and {what} may come up", "raise it")
    positions = run.shape.positions if run.shape is not None else None
    if positions is None:
        report.ok("positions", f"{what}; the model's config names no limit")
    elif longest > positions:
        report.fail("positions", f"{what}, and the model has {positions}", "shorten prompts or max_completion_length")
    else:
        report.ok("positions", f"{what}, of {positions}")


def check_alignment(report: Report, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """Takes true plans as completions and adds whether the segmenter finds each step and its tokens, and credits it."""
    from stepgrpo.signal import score_rollouts
    from stepgrpo.signal.rule import RuleSignal, ground_truth_fields

    args = run.args
    pairs = true_answers(run, rows)
    if not pairs:
        report.warn("tokens of steps", "not checked: none of the first rows has a ground truth")
        return
    rollouts = []
    for row, text in pairs:
        rollout, problem = align(run, row, text)
        if problem:
            report.fail(
                "tokens of steps", f"{row.get('id', 'a row')}: {problem}", "step_fields and step_plan_key decide"
            )
            return
        rollouts.append(rollout)
    steps = sum(len(rollout.steps) for rollout in rollouts)
    tokens = sum(len(owned) for rollout in rollouts for owned in rollout.step_tokens)
    total = sum(len(rollout.token_ids) for rollout in rollouts)
    report.ok(
        "tokens of steps",
        f"{steps} steps of {len(rollouts)} true plans; {tokens} of {total} tokens take credit and decode to their steps",
    )
    if args.step_reward_kind != "rule" or args.step_advantage_w == 0:
        return
    signal = RuleSignal(ground_truth_fields(args.step_gt_field), args.step_match_mode, args.step_match_key)
    scores = [score for row in score_rollouts(signal, rollouts) for score in row]
    if all(score == 1.0 for score in scores):
        report.ok("credit of true steps", f"+1 for all {len(scores)}")
    else:
        wrong = sum(score != 1.0 for score in scores)
        report.fail("credit of true steps", f"not +1 for {wrong} of {len(scores)}", "step_match_key decides")


def align(run: Run, row: Mapping[str, Any], text: str) -> tuple[Any, str | None]:
    """A text as a sampled completion, and what is wrong with the tokens of its steps, None if nothing is."""
    from stepgrpo.segment.plan import field_spans, parse_plan
    from stepgrpo.segment.segmenter import plan_rollout

    args, tokenizer = run.args, run.tokenizer
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    rollout = plan_rollout(
        ids, [True] * len(ids), tokenizer, {tokenizer.eos_token_id}, row, None, args.step_fields, args.step_plan_key
    )
    if rollout.failure:
        return rollout, f"{rollout.failure} {rollout.reason}".strip() + f" in {rollout.text[:80]!r}"
    if rollout.text != tokenizer.decode(ids):
        return rollout, f"the text of the tokens is not what they decode to: {rollout.text[:80]!r}"
    expected = len(parse_plan(text, args.step_plan_key) or [])
    if len(rollout.steps) != expected:
        return rollout, f"{len(rollout.steps)} steps of {expected} are found in what the tokenizer makes of it"
    taken = 0  # characters up to here were written by a token of an earlier step
    for number, (step, owned) in enumerate(zip(rollout.steps, rollout.step_tokens, strict=True), 1):
        for start, end in field_spans(step, args.step_fields):
            run_of = [i for i in owned if rollout.token_spans[i][0] < end and rollout.token_spans[i][1] > start]
            wanted = rollout.text[max(start, taken) : end].strip()
            found = tokenizer.decode([ids[i] for i in run_of])
            if wanted not in found:
                return rollout, f"the tokens of step {number} decode to {found!r}, without {wanted!r}"
        taken = max([taken, *(rollout.token_spans[i][1] for i in owned)])
    return rollout, None


def spread(rows: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the rows, evenly spread."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i * len(rows) // most] for i in range(most)]


def percentile(values: Sequence[int], share: int) -> int:
    """The least value that `share` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(-(-share * len(ordered) // 100) - 1, 0)]
