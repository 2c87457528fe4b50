"""The tables that an evaluation prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_IN_GROUPS = ("success", "exact_match", "step_accuracy")


def format_metrics(columns: Mapping[str, Mapping[str, float]]) -> str:
    """A table of metrics in percent as text: a line per metric, a column per model.

    Args:
        columns: for each model its metrics, shares in [0, 1].
    """
    names = list(dict.fromkeys(name for metrics in columns.values() for name in metrics))
    rows = [[name, *(_percent(metrics.get(name)) for metrics in columns.values())] for name in names]
    return _table([["metric", *columns], *rows], least=7)


def format_ways(metrics: Mapping[str, float]) -> str:
    """The table of one model: a line per metric, a column for `greedy/...` and one for `sampled/...`.

    Args:
        metrics: the `metrics` of an `Evaluation`.
    """
    ways = dict.fromkeys(name.split("/")[0] for name in metrics)
    return format_metrics(
        {
            way: {name.removeprefix(f"{way}/"): value for name, value in metrics.items() if name.startswith(f"{way}/")}
            for way in ways
        }
    )


def format_groups(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """The table of groups of rows: a line per group; how many rows, then success, exact match and step accuracy by way.

    Args:
        title: what the groups are.
        groups: `by_task_type` or `by_plan_length` of an `Evaluation`.
    """
    seen = dict.fromkeys(name for metrics in groups.values() for name in metrics)
    names = [name for name in seen if name.split("/")[-1] in _IN_GROUPS]
    rows = [
        [label, f"{metrics['rows']:.0f}", *(_percent(metrics.get(name)) for name in names)]
        for label, metrics in groups.items()
    ]
    ways, heads = zip(*(name.split("/") for name in names), strict=True) if names else ((), ())
    return _table([["", "", *ways], [title, "rows", *heads], *rows], least=4)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _table(rows: Sequence[Sequence[str]], least: int) -> str:
    """Rows of cells as lines of text: the first column left, the others right, each at least so wide."""
    widths = [max(least, *(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(widths[i]) for i, cell in enumerate(row[1:], 1))])
        for row in rows
    )
