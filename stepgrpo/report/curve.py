"""Learning curves as a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and up to `window - 1` before it."""
    result = []
    for index in range(len(values)):
        part = values[max(0, index + 1 - window) : index + 1]
        result.append(sum(part) / len(part))
    return result


def draw_curves(
    series: Mapping[str, Sequence[float]],
    path: str | os.PathLike[str],
    xlabel: str,
    ylabel: str,
    title: str = "",
    window: int = 1,
) -> None:
    """Writes a PNG with one curve per series over 1, 2, 3, ...

    Args:
        series: the values of each curve by its label; of any lengths.
        path: of the PNG.
        xlabel, ylabel, title: texts.
        window: of the running mean that is drawn; above 1 the values themselves are drawn faintly beside it.
    """
    figure = Figure(figsize=(7.0, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, (label, values) in enumerate(series.items()):
        updates = range(1, len(values) + 1)
        if window > 1:
            axes.plot(updates, values, color=f"C{index}", alpha=0.2, lw=0.8)
        axes.plot(updates, running_mean(values, window), color=f"C{index}", label=label, lw=1.8)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if series:
        axes.legend()
    figure.savefig(os.fspath(path))
