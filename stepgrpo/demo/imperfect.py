"""Imperfect demonstrations: ground-truth plans with plausible mistakes, as in plans distilled from a larger model."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from stepgrpo.data.household import ACTIONS, make_step
from stepgrpo.data.household.actions import DROP, PUT, verb_and_thing
from stepgrpo.data.household.kinds import OPENABLE, SLICEABLE, SWITCHED, kind_of


def _alternatives(step: Mapping[str, Any], scene: Mapping[str, Any]) -> list[str]:
    """Other actions with the step's verb that a reader of the scene could have meant."""
    verb, _ = verb_and_thing(step["action_id"])
    things = [thing for held in scene["places"].values() for thing in held]
    places = list(scene["places"])
    names = {
        "find": [f"find a {thing}" for thing in (*things, *places)],
        "pick": [f"pick up the {kind_of(thing)}" for thing in things],
        "put": [DROP],
        "drop": [PUT],
        "open": [f"{way} the {place}" for place in places if place in OPENABLE for way in ("open", "close")],
        "close": [f"{way} the {place}" for place in places if place in OPENABLE for way in ("open", "close")],
        "on": [f"turn {way} the {kind}" for kind in SWITCHED for way in ("on", "off")],
        "off": [f"turn {way} the {kind}" for kind in SWITCHED for way in ("on", "off")],
        "slice": [f"slice the {kind}" for kind in SLICEABLE],
    }[verb]
    return [name for name in names if name != ACTIONS[step["action_id"]]]


def imperfect_plan(
    plan: Sequence[Mapping[str, Any]], scene: str | Mapping[str, Any], rate: float, rng: random.Random
) -> list[dict[str, Any]]:
    """Spoils each step of a plan with some probability.

    Args:
        plan: the ground-truth steps.
        scene: the row's scene; wrong steps are about things that are there.
        rate: probability in [0, 1] that a step is spoilt: half of the time replaced by another action with the same
            verb, else skipped or written twice.
        rng: the source of chance.

    Returns:
        The steps of the demonstration; may be shorter or longer than the plan.
    """
    setting: Mapping[str, Any] = json.loads(scene) if isinstance(scene, str) else scene
    result: list[dict[str, Any]] = []
    for step in plan:
        if rng.random() >= rate:
            result.append(dict(step))
            continue
        mistake = rng.choice(("replace", "replace", "skip", "twice"))
        if mistake == "replace":
            alternatives = _alternatives(step, setting)
            result.append(make_step(rng.choice(alternatives)) if alternatives else dict(step))
        elif mistake == "twice":
            result += [dict(step), dict(step)]
    return result
