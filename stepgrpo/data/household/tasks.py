"""Draws tasks: which goal, in which scene, in which split."""

from __future__ import annotations

import hashlib
import random
from functools import cache
from typing import Any

from stepgrpo.data.household.goals import CLEAN, COOL, HEAT, LIGHT, MOVABLE, SIMPLE, TASK_TYPES, TWO
from stepgrpo.data.household.kinds import KNIVES, LAMPS, MOVABLE_RECEPTACLES, OPENABLE, PAIRED, ROOMS, SLICEABLE, words
from stepgrpo.data.household.planner import ground_truth_plan

SPLITS = ("train", "dev", "test")
MAX_STEPS = 16

_PLACES_PER_SCENE = 5
_THINGS_PER_SCENE = 7
_P_SLICED = 0.5
_P_DOOR_OPEN = 0.85

_FOOD = ("Apple", "Bread", "Egg", "Lettuce", "Potato", "Tomato")
_WASHABLE = words(
    "Apple Bowl ButterKnife Cloth Cup DishSponge Fork Kettle Knife Ladle Lettuce Mug Pan Plate Pot Potato SoapBar "
    "Spatula Spoon Tomato"
)
_HEATABLE = (*_FOOD, "Cup", "Mug", "Plate")
_COOLABLE = (*_FOOD, "Bowl", "Cup", "Glassbottle", "Mug", "Pan", "Plate", "Pot", "WineBottle")
_FITS_IN_CARRIER = words(
    "Apple Bread ButterKnife CD CellPhone CreditCard DishSponge Egg Fork KeyChain Knife Ladle Lettuce Pen Pencil "
    "Potato Spatula Spoon Tomato Watch"
)

Combination = tuple[str, str, str]


def _rooms_with(thing: str, target: str) -> list[str]:
    return [room for room, (places, things) in ROOMS.items() if thing in things and target in places]


def _allowed(task_type: str, thing: str, target: str) -> bool:
    if (task_type == LIGHT) != (target in LAMPS):
        return False
    if task_type == LIGHT:
        return True
    return {
        SIMPLE: True,
        TWO: thing in PAIRED,
        MOVABLE: thing in _FITS_IN_CARRIER and target not in ("GarbageCan", "ToiletPaperHanger"),
        CLEAN: thing in _WASHABLE and target != "Sink",
        HEAT: thing in _HEATABLE and target != "Microwave",
        COOL: thing in _COOLABLE and target != "Fridge",
    }[task_type]


def _needs(task_type: str) -> list[str]:
    return {CLEAN: ["Sink"], HEAT: ["Microwave"], COOL: ["Fridge"]}.get(task_type, [])


@cache
def combinations(task_type: str, split: str) -> tuple[Combination, ...]:
    """The (task type, object, target) combinations of a split: a tenth each for dev and test, the rest for train.

    The order of a hash decides, so that a combination stays in its split on every machine.
    """
    found = {
        (task_type, thing, target)
        for places, things in ROOMS.values()
        for thing in things
        for target in places
        if _allowed(task_type, thing, target)
        and any(set(_needs(task_type)) <= set(ROOMS[room][0]) for room in _rooms_with(thing, target))
    }
    order = sorted(found, key=lambda combination: hashlib.sha256("|".join(combination).encode()).hexdigest())
    tenth = max(1, len(order) // 10)
    parts = {"dev": order[:tenth], "test": order[tenth : 2 * tenth], "train": order[2 * tenth :]}
    return tuple(parts[split])


def sample_scene(split: str, rng: random.Random, task_type: str) -> dict[str, Any]:
    """Draws a scene with its goal.

    Args:
        split: train, dev or test.
        rng: the only source of chance.
        task_type: one of `TASK_TYPES`.

    Returns:
        `{"room", "places": {place: [thing, ...]}, "open": [...], "goal": {...}}`, whose plan has at most
        `MAX_STEPS` steps.

    Raises:
        ValueError: unknown split or task type.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; choose from {', '.join(SPLITS)}")
    if task_type not in TASK_TYPES:
        raise ValueError(f"unknown task type {task_type!r}; choose from {', '.join(TASK_TYPES)}")
    while True:
        scene = _draw(rng.choice(combinations(task_type, split)), rng)
        if len(ground_truth_plan(scene)) <= MAX_STEPS:
            return scene


def _draw(combination: Combination, rng: random.Random) -> dict[str, Any]:
    task_type, thing, target = combination
    needs = _needs(task_type)
    rooms = [room for room in _rooms_with(thing, target) if set(needs) <= set(ROOMS[room][0])]
    room = rng.choice(rooms)
    places_of_room, things_of_room = ROOMS[room]
    sliced = thing in SLICEABLE and task_type != LIGHT and rng.random() < _P_SLICED
    carrier = None
    if task_type == MOVABLE:
        carrier = rng.choice([kind for kind in MOVABLE_RECEPTACLES if kind in things_of_room])

    places = list(dict.fromkeys([target, *needs]))
    others = [place for place in places_of_room if place not in places and place not in LAMPS]
    places += rng.sample(others, _PLACES_PER_SCENE - len(places) + (target in LAMPS))
    rng.shuffle(places)

    wanted = [thing] + ([f"{thing}_2"] if task_type == TWO else []) + ([carrier] if carrier else [])
    if sliced:
        wanted.append(rng.choice(KNIVES))
    extra = [kind for kind in things_of_room if kind not in wanted]
    things = wanted + rng.sample(extra, min(_THINGS_PER_SCENE - len(wanted), len(extra)))

    # A task that is done before it starts, or whose door would have to be opened to take a thing out and to put it
    # back in, is none.
    barred = {target, *needs}
    holders = [place for place in places if place not in LAMPS]
    free = [place for place in holders if place not in barred]
    where: dict[str, list[str]] = {place: [] for place in places}
    rng.shuffle(things)
    for item in things:
        where[rng.choice(free if item in wanted else holders)].append(item)
    doors = [place for place in places if place in OPENABLE]
    opened = [place for place in doors if rng.random() < _P_DOOR_OPEN]
    if "Box" in things:
        opened.append("Box")
    goal = {"type": task_type, "object": thing, "target": target, "carrier": carrier, "sliced": sliced}
    return {"room": room, "places": where, "open": opened, "goal": goal}
