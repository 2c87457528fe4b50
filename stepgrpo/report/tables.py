"""Markdown tables of a run's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WAYS = ("greedy/", "sampled/")
_LOGGED = (
    "reward",
    "reward_std",
    "rewards/",
    "loss",
    "mean_token_accuracy",
    "step_credit/right_steps",
    "step_credit/completions",
    "completions/mean_length",
    "completions/clipped_ratio",
)
Log = Sequence[Mapping[str, Any]]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; the first column is left-aligned, the others right-aligned."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: Any) -> str:
    """A number with four significant digits; `-` for none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def series(log: Log, name: str) -> list[float]:
    """The values of a metric in a trainer's log, in order."""
    return [float(entry[name]) for entry in log if isinstance(entry.get(name), (int, float))]


def evaluation_table(log: Log) -> str:
    """What a trainer's log says of the held-out rows: the first evaluation and the last; empty without one."""
    entries = [entry for entry in log if any(name.startswith("eval_") for name in entry)]
    if not entries:
        return ""
    columns = entries[:1] if len(entries) == 1 else [entries[0], entries[-1]]
    names = [name for name in dict.fromkeys(key for entry in columns for key in entry) if _is_shown(name, "eval_")]
    head = ["held out", *(f"after update {entry['step']}" for entry in columns)]
    return markdown_table(
        head, [[name.removeprefix("eval_"), *(number(entry.get(name)) for entry in columns)] for name in names]
    )


def training_table(log: Log) -> str:
    """The means of a trainer's log over its first and its last fifth; empty without entries.

    Args:
        log: `trainer.state.log_history`.
    """
    names = [name for name in dict.fromkeys(key for entry in log for key in entry) if _is_shown(name, "")]
    rows = []
    for name in names:
        values = series(log, name)
        part = max(1, len(values) // 5)
        rows.append([name, *(number(sum(values[at]) / part) for at in (slice(part), slice(-part, None)))])
    return markdown_table(["in training", "first fifth", "last fifth"], rows) if rows else ""


def metrics_table(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """The metrics of `stepgrpo evaluate` in percent.

    Args:
        columns: by its label what a `metrics.json` holds.

    Raises:
        ValueError: if one has no metrics. Names it.
    """
    shown = {label: {k: v for k, v in metrics.items() if _is_metric(k, v)} for label, metrics in columns.items()}
    for label, metrics in shown.items():
        if not metrics:
            raise ValueError(f"{label!r} has no metrics: expected the metrics.json of stepgrpo evaluate.")
    names = dict.fromkeys(name for metrics in shown.values() for name in metrics)
    rows = [[name, *(_percent(metrics.get(name)) for metrics in shown.values())] for name in names]
    counts = ["rows", *(number(metrics.get("rows")) for metrics in columns.values())]
    return markdown_table(["stepgrpo evaluate", *shown], [*rows, counts])


def _is_shown(name: str, prefix: str) -> bool:
    if not name.startswith(prefix):
        return False
    name = name.removeprefix(prefix)
    if name.startswith("rewards/"):
        return name.endswith("/mean")
    return name in _LOGGED


def _is_metric(name: str, value: Any) -> bool:
    return name.startswith(_WAYS) and isinstance(value, (int, float)) and not isinstance(value, bool)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
