"""A picture of a scene: one labelled box per receptacle, with the things in it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from stepgrpo.data.household.kinds import LAMPS, OPENABLE, kind_of

_COLUMNS = 3
_CELL = (168, 150)
_MARGIN = 8
_LINE = 18


def _colour(name: str) -> tuple[int, int, int]:
    """A light colour that depends on the kind only; `hash` would change from run to run."""
    value = zlib.crc32(kind_of(name).encode())
    return (160 + value % 80, 160 + (value >> 8) % 80, 160 + (value >> 16) % 80)


def draw_scene(scene: str | Mapping[str, Any]) -> Image.Image:
    """Draws a scene at its start. The same scene gives the same pixels.

    Args:
        scene: the `scene` column of a row (JSON), or the mapping it stands for.

    Returns:
        An RGB picture, 3 boxes wide. A closed door is a thick dark frame and the word "closed".
    """
    setting: Mapping[str, Any] = json.loads(scene) if isinstance(scene, str) else scene
    places = list(setting["places"].items())
    rows = (len(places) + _COLUMNS - 1) // _COLUMNS
    width = _COLUMNS * _CELL[0] + (_COLUMNS + 1) * _MARGIN
    image = Image.new("RGB", (width, rows * _CELL[1] + (rows + 1) * _MARGIN), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default()
    for index, (place, things) in enumerate(places):
        left = _MARGIN + (index % _COLUMNS) * (_CELL[0] + _MARGIN)
        top = _MARGIN + (index // _COLUMNS) * (_CELL[1] + _MARGIN)
        closed = place in OPENABLE and place not in setting["open"]
        state = " (closed)" if closed else " (open)" if place in OPENABLE else " (off)" if place in LAMPS else ""
        box = (left, top, left + _CELL[0], top + _CELL[1])
        draw.rectangle(box, fill=(235, 235, 235), outline="black", width=5 if closed else 1)
        draw.rectangle((left, top, left + _CELL[0], top + _LINE + 2), fill=(60, 60, 60))
        draw.text((left + 8, top + 4), place + state, fill="white", font=font)
        x, y = left + 10, top + _LINE + 10
        for thing in things:
            length = int(draw.textlength(thing, font=font)) + 10
            if x + length > left + _CELL[0] - 6 and x > left + 10:
                x, y = left + 10, y + _LINE + 4
            draw.rectangle((x, y, x + length, y + _LINE), fill=_colour(thing), outline="black")
            draw.text((x + 5, y + 3), thing, fill="black", font=font)
            x += length + 5
    return image
