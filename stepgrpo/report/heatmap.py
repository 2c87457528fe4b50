"""One completion as a picture: its tokens as text, coloured by a value per token."""

from __future__ import annotations

import os
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

_COLUMNS = 100
_FONT_SIZE = 9.0
_EM_SHARE = 0.602  # width of a DejaVu Sans Mono character as a share of the font size
_LINE_HEIGHT = 1.9  # in font sizes
_SHOWN = str.maketrans({"\n": "\u23ce", "\t": "\u21e5", "\r": "\u240d"})


def colour(value: float, largest: float) -> tuple[float, float, float]:
    """White at 0, red towards `largest`, blue towards `-largest`; NaN is white. RGB in [0, 1]."""
    if value != value or largest <= 0.0:
        return 1.0, 1.0, 1.0
    share = min(abs(value) / largest, 1.0)
    faded = 1.0 - 0.75 * share
    return (1.0, faded, faded) if value > 0 else (faded, faded, 1.0)


def lay_out(tokens: Sequence[str], columns: int = _COLUMNS) -> list[list[tuple[int, str, int]]]:
    """Breaks tokens into lines of at most `columns` characters.

    Args:
        tokens: the text of each token; one that is longer than a line is cut into pieces.
        columns: characters in a line, at least 1.

    Returns:
        Per line its pieces as (first column, text, index of the token). A line ends after a line break and after `},`.
    """
    lines: list[list[tuple[int, str, int]]] = [[]]
    used = 0
    for index, token in enumerate(tokens):
        rest = "".join(sign if sign.isprintable() else "\u00b7" for sign in token.translate(_SHOWN))
        while rest:
            if used + len(rest) > columns and used > 0 and len(rest) <= columns:
                lines.append([])
                used = 0
            piece, rest = rest[: columns - used], rest[columns - used :]
            lines[-1].append((used, piece, index))
            used += len(piece)
            if rest:
                lines.append([])
                used = 0
        if token.endswith("\n") or token.rstrip().endswith("},"):
            lines.append([])
            used = 0
    return [line for line in lines if line]


def draw_heatmap(
    tokens: Sequence[str],
    values: Sequence[float],
    path: str | os.PathLike[str],
    title: str = "",
    largest: float | None = None,
) -> None:
    """Writes a PNG of a completion's tokens on red (positive), white (zero) or blue (negative).

    Args:
        tokens: the text of each token, (T,).
        values: one number per token, (T,), such as A^S.
        path: of the PNG.
        title: above the tokens.
        largest: the value of full colour; the largest magnitude among `values` if None.

    Raises:
        ValueError: `tokens` and `values` have different lengths.
    """
    if len(tokens) != len(values):
        raise ValueError(f"{len(tokens)} tokens but {len(values)} values")
    if largest is None:
        largest = max((abs(value) for value in values if value == value), default=0.0)
    lines = lay_out(tokens)
    rows = max(len(lines), 1)
    heading = 3.2
    width = (_COLUMNS + 2) * _FONT_SIZE * _EM_SHARE / 72
    height = (rows + heading) * _FONT_SIZE * _LINE_HEIGHT / 72
    figure = Figure(figsize=(width, height), dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-1, _COLUMNS + 1)
    axes.set_ylim(rows + 0.4, 0.4 - heading)
    axes.axis("off")
    axes.text(0, -2.0, title, fontsize=_FONT_SIZE + 1, va="center", parse_math=False)
    legend = f"red: positive (up to +{largest:.3g})   white: 0   blue: negative (down to -{largest:.3g})"
    axes.text(0, -0.7, legend, fontsize=_FONT_SIZE - 1, va="center", color="dimgray", parse_math=False)
    for row, line in enumerate(lines):
        for column, text, index in line:
            box = Rectangle(
                (column, row + 0.05),
                len(text),
                0.9,
                facecolor=colour(values[index], largest),
                edgecolor="0.85",
                lw=0.4,
            )
            axes.add_patch(box)
            axes.text(
                column, row + 0.5, text, family="DejaVu Sans Mono", fontsize=_FONT_SIZE, va="center", parse_math=False
            )
    figure.savefig(os.fspath(path))
