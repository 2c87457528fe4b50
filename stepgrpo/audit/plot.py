"""The AUROC of each signal and corruption as a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stepgrpo.audit.corruptions import CORRUPTIONS
from stepgrpo.audit.measure import ALL
from stepgrpo.audit.report import SHOWN

_SHARES = {"wrong_rewarded": "wrong > 0", "right_punished": "right < 0"}


def draw_audit(summary: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a PNG: a row per signal, a column per corruption, each AUROC with its interval; then the two shares.

    Args:
        summary: the content of `audit.json`.
        path: of the PNG.
    """
    signals = summary["signals"]
    rows = [name for name in SHOWN if name in signals]
    columns = [name for name in (*CORRUPTIONS, ALL) if any(name in signals[row]["auroc"] for row in rows)]
    figure = Figure(figsize=(3.0 + 0.95 * (len(columns) + 2.3), 1.6 + 0.45 * len(rows)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for y, row in enumerate(rows):
        entry = signals[row]
        for x, column in enumerate(columns):
            if column in entry["auroc"]:
                value, interval = entry["auroc"][column], entry["auroc_interval"][column]
                # Chance is white: red is worse than it.
                _cell(axes, x, y, colormaps["RdYlGn"](value), f"{value:.2f}", interval, "{:.2f}")
        for x, name in enumerate(_SHARES, len(columns)):
            value, interval = entry[name], entry[f"{name}_interval"]
            percents = [None if end is None else 100 * end for end in interval]
            _cell(axes, x + 0.3, y, colormaps["Reds"](0.7 * value), f"{100 * value:.0f}%", percents, "{:.0f}")
    places = [*range(len(columns)), *(len(columns) + 0.3 + n for n in range(len(_SHARES)))]
    labels = [name.replace("_", "\n") for name in columns] + [text.replace(" ", "\n", 1) for text in _SHARES.values()]
    axes.set_xticks([place + 0.5 for place in places], labels, fontsize=9)
    axes.set_yticks([y + 0.5 for y in range(len(rows))], rows, fontsize=9)
    axes.set_xlim(0, len(columns) + 2.3)
    axes.set_ylim(len(rows), 0)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(
        f"{summary['model']} on {summary['data']}, {summary['plans']} plans: AUROC of right against wrong steps, 95% interval",
        fontsize=10,
        parse_math=False,
    )
    figure.savefig(os.fspath(path))


def _cell(axes: Any, x: float, y: int, colour: Any, text: str, interval: Any, form: str) -> None:
    axes.add_patch(Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=colour, alpha=0.75, lw=0))
    axes.text(x + 0.5, y + 0.4, text, ha="center", va="center", fontsize=9.5)
    if None not in interval:
        axes.text(
            x + 0.5,
            y + 0.76,
            "–".join(map(form.format, interval)),
            ha="center",
            va="center",
            fontsize=6.5,
            color="0.25",
        )
