"""Plain-English instructions for a goal, several per task type."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from stepgrpo.data.household.goals import CLEAN, COOL, HEAT, LIGHT, MOVABLE, SIMPLE, TWO

_PHRASES: dict[str, tuple[str, ...]] = {
    SIMPLE: (
        "Put a {object} {target}.",
        "Place a {object} {target}.",
        "Move the {object} so that it is {target}.",
        "Take the {object} and leave it {target}.",
    ),
    TWO: (
        "Put two {objects} {target}.",
        "Place both {objects} {target}.",
        "Move a {object} and another {object} so that they are {target}.",
        "Gather two {objects} {target}.",
    ),
    MOVABLE: (
        "Put a {object} in a {carrier} and the {carrier} {target}.",
        "Place a {carrier} with a {object} in it {target}.",
        "Move the {object} into the {carrier}, then leave the {carrier} {target}.",
    ),
    CLEAN: (
        "Put a clean {object} {target}.",
        "Wash the {object} and place it {target}.",
        "Rinse a {object}, then leave it {target}.",
    ),
    HEAT: (
        "Put a hot {object} {target}.",
        "Heat the {object} and place it {target}.",
        "Warm a {object} in the microwave, then leave it {target}.",
    ),
    COOL: (
        "Put a cold {object} {target}.",
        "Chill the {object} and place it {target}.",
        "Cool a {object} in the fridge, then leave it {target}.",
    ),
    LIGHT: (
        "Look at the {object} by the light of the {lamp}.",
        "Examine a {object} under the {lamp}.",
        "Hold the {object} and turn on the {lamp}.",
    ),
}

_IN = {"Bathtub", "Cabinet", "Drawer", "Fridge", "GarbageCan", "Microwave", "Safe", "Sink"}
_WORDS = {"CD": "cd", "ToiletPaperHanger": "toilet paper holder", "StoveBurner": "stove", "CellPhone": "phone"}
_PLURALS = {"Knife": "knives", "ButterKnife": "butter knives", "Tomato": "tomatoes", "Potato": "potatoes"}
_PLURALS |= {"Watch": "watches", "Glassbottle": "glass bottles", "TissueBox": "tissue boxes"}


def spoken(kind: str) -> str:
    """A kind as people say it: `SaltShaker` -> `salt shaker`."""
    if kind in _WORDS:
        return _WORDS[kind]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower()


def _plural(kind: str) -> str:
    return _PLURALS.get(kind, spoken(kind) + "s")


def instruction(goal: Mapping[str, Any], rng: random.Random) -> str:
    """One of the phrasings of a goal.

    Args:
        goal: `{"type", "object", "target", "carrier", "sliced"}`.
        rng: draws the phrasing.
    """
    cut = rng.choice(("sliced ", "cut ")) if goal["sliced"] else ""
    preposition = "in" if goal["target"] in _IN else "on"
    return rng.choice(_PHRASES[goal["type"]]).format(
        object=cut + spoken(goal["object"]),
        objects=cut + _plural(goal["object"]),
        carrier=spoken(goal["carrier"]) if goal["carrier"] else "",
        target=f"{preposition} the {spoken(goal['target'])}",
        lamp=spoken(goal["target"]),
    )
