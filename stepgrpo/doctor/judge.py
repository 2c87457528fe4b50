"""The verify model of a run, as far as it can be checked without its weights."""

from __future__ import annotations

from typing import Any

from stepgrpo.doctor.findings import Report, describe
from stepgrpo.doctor.parsing import Run
from stepgrpo.doctor.reach import Unreachable, reached


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
