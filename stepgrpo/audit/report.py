"""The tables of an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepgrpo.audit.corruptions import CORRUPTIONS, NONE
from stepgrpo.audit.measure import ALL, HARD_CASES
from stepgrpo.audit.scores import modulated_signals, teacher_signals
from stepgrpo.report.tables import markdown_table, number

# What the tables and the plot show of some forty signals; audit.json has all.
SHOWN = (
    "contrast/mean/action_id",
    "contrast/mean/action_name",
    "contrast/mean/both",
    "prob/mean/action_id",
    "prob/mean/action_name",
    "prob/mean/both",
    "prob/sum/action_id",
    "prob/sum/action_name",
    "prob/sum/both",
    "margin/min/action_id",
    "margin/min/action_name",
    "margin/min/both",
    *modulated_signals(),
    "rule/exact",
    "rule/lcs",
)


def report_text(summary: Mapping[str, Any]) -> str:
    """What an audit says, as Markdown.

    Args:
        summary: the content of `audit.json`.
    """
    signals: Mapping[str, Any] = summary["signals"]
    shown = [name for name in SHOWN if name in signals]
    columns = [name for name in (*CORRUPTIONS, ALL) if any(name in signals[one]["auroc"] for one in shown)]
    parts = [
        f"# Audit of {summary['model']} on {summary['data']}",
        f"{summary['plans']} plans, {summary['steps']} steps in {summary['cases']} damaged and whole copies of them; "
        f"{summary['seconds']} s. {_notes(summary)}",
        "AUROC: how often a right step scores higher than a wrong one (0.5: no better than chance).",
        _table("signal", shown, columns, lambda name: signals[name]["auroc"]),
        _comparison(summary),
        "95% intervals of the same, over resampled plans.",
        _table("signal", shown, columns, lambda name: signals[name]["auroc_interval"]),
        f"Wrong steps with a score above 0, right steps with one below 0 ({NONE}: of plans without any mistake; after_wrong: "
        "right steps directly after a wrong one), and how much scores and what is squashed vary.",
        _shares(signals, shown),
        "AUROC of the hard cases: right steps directly after a wrong one against all wrong steps; and against the right steps "
        "of their plans the step after a gap, the first and the second of two that were swapped.",
        _table("signal", shown, HARD_CASES, lambda name: signals[name]["hard_cases"]),
        "The teacher's signals with the best AUROC over all steps:",
        _best(signals),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(title: str, names: Sequence[str], columns: Sequence[str], values: Any) -> str:
    return markdown_table(
        [title, *columns], [[name, *(_cell(values(name).get(key)) for key in columns)] for name in names]
    )


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "-" if None in value else f"{value[0]:.2f}–{value[1]:.2f}"
    return "-" if value is None else f"{value:.3f}"


def _shares(signals: Mapping[str, Any], shown: Sequence[str]) -> str:
    head = ["signal", "wrong > 0", "right < 0", f"{NONE} < 0", "after_wrong < 0", "std of score", "std of difference"]
    rows = []
    for name in shown:
        entry = signals[name]
        by = entry["right_punished_by"]
        shares = [entry["wrong_rewarded"], entry["right_punished"], by.get(NONE), by.get("after_wrong")]
        percent = ["-" if share is None else f"{100 * share:.1f}%" for share in shares]
        rows.append([name, *percent, number(entry["score"]["std"]), number(entry["difference"]["std"])])
    return markdown_table(head, rows)


def _best(signals: Mapping[str, Any], count: int = 8) -> str:
    names = [name for name in teacher_signals() if name in signals]
    order = sorted(names, key=lambda name: -signals[name]["auroc"][ALL])[:count]
    return _table("signal", order, (ALL, "swap", "deletion"), lambda name: signals[name]["auroc"])


def _comparison(summary: Mapping[str, Any]) -> str:
    if not any(summary["corruptions"][name]["plans"] for name in ("reordering", "paraphrase")):
        return ""
    return (
        "reordering and paraphrase have no wrong step: theirs is how often a changed step, which is right, scores higher than "
        "a wrong one of same_verb."
    )


def _notes(summary: Mapping[str, Any]) -> str:
    said = []
    for name in CORRUPTIONS:
        missing = summary["corruptions"][name]["missing"]
        if name == "reordering" and not summary["simulated"]:
            said.append(
                "reordering is left out: nothing here says whether another order reaches the goal, and a swap that is "
                "harmless counts as wrong"
            )
        elif missing:
            said.append(f"{name} is not possible on {missing} of {summary['plans']} plans")
    if summary["failed"]:
        said.append(f"{summary['failed']} copies could not be scored, the first: {summary['first_failure']}")
    return "; ".join(said)[:1].upper() + "; ".join(said)[1:] + "." if said else ""
