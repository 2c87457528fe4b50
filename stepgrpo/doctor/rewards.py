"""The rewards of a run: what they give for the ground truth; the verify model as far as it goes without weights."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepgrpo.doctor.findings import Report, describe
from stepgrpo.doctor.models import Unreachable, reached
from stepgrpo.doctor.parsing import Run
from stepgrpo.doctor.rows import true_answers

# What TRL passes besides the columns.
_BY_TRL = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")


def check_rewards(report: Report, run: Run, rows: int) -> None:
    """Loads the reward functions, and has them score the ground truths of the first rows.

    `verify` is left to `check_judge`: loading its weights takes what this is meant to save.

    Args:
        report: where to.
        run: with its rows.
        rows: how many are scored.
    """
    from stepgrpo.data.sources import WORLDS
    from stepgrpo.rewards.registry import VERIFY, load_rewards

    names = run.recipe.reward_funcs or ["household" if run.recipe.data in WORLDS else "exact_match"]
    weights = run.args.reward_weights
    if weights is not None and len(weights) != len(names):
        report.fail("reward_weights", f"{len(weights)} weights for {len(names)} reward functions: {', '.join(names)}")
    for name in names:
        if name == VERIFY:
            continue
        try:
            (function,) = load_rewards([name])
        except ValueError as error:
            report.fail("reward_funcs", str(error))
            continue
        missing = missing_columns(function, run.rows)
        if missing and run.rows:
            report.fail(
                f"reward {name}",
                f"needs the column {', '.join(missing)}, which the rows have not",
                "choose another reward",
            )
        elif run.rows:
            _score(report, name, function, run, run.rows[:rows])
        else:
            report.ok(f"reward {name}", "loads")


def missing_columns(function: Callable[..., Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The parameters of a reward function that have to be columns and are none."""
    have = {name for row in rows for name in row}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in kinds
        and parameter.default is parameter.empty
        and name not in _BY_TRL
        and name not in have
    ]


def _score(
    report: Report, name: str, function: Callable[..., Any], run: Run, rows: Sequence[Mapping[str, Any]]
) -> None:
    pairs = true_answers(run, rows)
    if not pairs:
        report.warn(f"reward {name}", "loads; not tried, as no row has a ground truth")
        return
    used = [row for row, _ in pairs]
    columns = {key: [row.get(key) for row in used] for key in dict.fromkeys(key for row in used for key in row)}
    prompts = columns.pop("prompt")
    texts = [text for _, text in pairs]
    completions = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    ids = [[0]] * len(pairs)
    if run.tokenizer is not None:
        ids = [run.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    logged: list[Any] = []
    given = {"log_metric": lambda *_: logged.append(_), "log_extra": lambda *_: logged.append(_)}
    try:
        # A reward function says in the log what it could not score, which the count below does too.
        logging.disable(logging.WARNING)
        try:
            result = function(prompts=prompts, completions=completions, completion_ids=ids, **columns, **given)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        finally:
            logging.disable(logging.NOTSET)
        scores = [None if value is None else float(value) for value in result]
    except Exception as error:
        report.fail(f"reward {name}", f"fails on the ground truth of the first rows: {describe(error)}")
        return
    if len(scores) != len(pairs):
        report.fail(f"reward {name}", f"returned {len(scores)} rewards for {len(pairs)} completions")
        return
    numbers = [score for score in scores if score is not None]
    without = f", none for {len(scores) - len(numbers)}" if len(numbers) < len(scores) else ""
    if numbers:
        low, high = f"{min(numbers):g}", f"{max(numbers):g}"
        span = low if low == high else f"{low} to {high}"
        report.ok(f"reward {name}", f"{span} for the ground truth of {len(numbers)} rows{without}")
    else:
        report.warn(f"reward {name}", f"no reward for the ground truth of {len(scores)} rows", "it decides nothing")


def uses_judge(run: Run) -> bool:
    """Whether `verify` is among the rewards."""
    return run.name == "step_grpo" and "verify" in (run.recipe.reward_funcs or [])


def check_judge(report: Report, run: Run) -> None:
    """Adds whether the judge is named, its question can be put together, and its answers differ."""
    from stepgrpo.rewards.judge_prompt import OWN_FIELDS, read_template
    from stepgrpo.template import placeholders

    recipe = run.recipe
    if not uses_judge(run):
        if run.name == "step_grpo" and recipe.verify_model_path:
            report.warn("verify", "verify_model_path is set, but reward_funcs has no verify: it is not used")
        return
    if not recipe.verify_model_path:
        report.fail("verify", "reward_funcs has verify, but verify_model_path is not set", "name the judge")
        return
    with report.guard("verify_template"):
        template = read_template(recipe.verify_template)
        names = [name for name in placeholders(template.template) if name not in OWN_FIELDS]
        columns = {name for row in run.rows for name in row}
        missing = [name for name in names if name not in columns]
        if missing and run.rows:
            report.fail("verify_template", f"names {', '.join(missing)}, which are no columns of the data")
    for name, low, high in (("verify_batch_size", 1, None), ("verify_no_plan", -1.0, 1.0)):
        value = getattr(recipe, name)
        if value is not None and (value < low or (high is not None and value > high)):
            report.fail(name, f"{value!r} must be {'at least 1' if high is None else 'in [-1, 1]'}")
    if recipe.verify_offload and run.launch.shards > 1:
        report.fail(
            "verify_offload", f"a judge that is spread ({run.launch.spread}) cannot be offloaded", "turn it off"
        )
    if recipe.reward_funcs == ["verify"] and recipe.verify_no_plan is None:
        report.warn(
            "verify_no_plan",
            "not set, and verify is the only reward: a completion without a plan is no worse than a mean one",
            "set it to -1, or add plan_format",
        )
    _check_answers(report, recipe)


def _check_answers(report: Report, recipe: Any) -> None:
    from stepgrpo.frozen.answers import both_answers
    from stepgrpo.modeling import load_processing_class

    try:
        with reached(recipe.verify_model_path):
            processor = load_processing_class(recipe.verify_model_path)
    except Unreachable as error:
        report.warn("verify", str(error), "it was not checked")
        return
    except Exception as error:
        report.fail("verify", describe(error))
        return
    with report.guard("verify"):
        tokenizer = getattr(processor, "tokenizer", processor)
        yes, no = both_answers(tokenizer, recipe.verify_yes, recipe.verify_no)
        spellings = (
            f"{len(ids)} token(s) that begin {'/'.join(words)}"
            for ids, words in ((yes, recipe.verify_yes), (no, recipe.verify_no))
        )
        report.ok("verify", f"{recipe.verify_model_path}: {', '.join(spellings)}")
