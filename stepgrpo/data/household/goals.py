"""What each of ALFRED's seven task types asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepgrpo.data.household.kinds import kind_of

if TYPE_CHECKING:
    from stepgrpo.data.household.world import World

SIMPLE = "pick_and_place_simple"
TWO = "pick_two_obj_and_place"
MOVABLE = "pick_and_place_with_movable_recep"
CLEAN = "pick_clean_then_place_in_recep"
HEAT = "pick_heat_then_place_in_recep"
COOL = "pick_cool_then_place_in_recep"
LIGHT = "look_at_obj_in_light"
TASK_TYPES = (SIMPLE, TWO, MOVABLE, CLEAN, HEAT, COOL, LIGHT)


def goal_conditions(world: World, goal: Mapping[str, Any]) -> list[bool]:
    """Which conditions of a goal hold.

    Args:
        world: the state to judge.
        goal: `{"type", "object", "target", "carrier", "sliced"}`; `carrier` is the movable receptacle or None.

    Returns:
        One truth value per condition. Where several things of the kind could meet the goal, the best of them count.

    Raises:
        ValueError: the type is not one of `TASK_TYPES`.
    """
    kind, target = goal["object"], goal["target"]
    things = [thing for thing in world.where if kind_of(thing) == kind]
    if goal["type"] == TWO:
        candidates = sorted((_single(world, goal, thing) for thing in things), key=sum, reverse=True)
        return [condition for conditions in candidates[:2] for condition in conditions]
    if goal["type"] == MOVABLE:
        carriers = [thing for thing in world.where if kind_of(thing) == goal["carrier"]]
        pairs = [
            [world.where[thing] == carrier, world.where[carrier] == target, *_sliced(world, goal, thing)]
            for thing in things
            for carrier in carriers
        ]
        return max(pairs, key=sum)
    if goal["type"] not in TASK_TYPES:
        raise ValueError(f"unknown task type {goal['type']!r}; choose from {', '.join(TASK_TYPES)}")
    return max((_single(world, goal, thing) for thing in things), key=sum)


def _sliced(world: World, goal: Mapping[str, Any], thing: str) -> list[bool]:
    return [thing in world.sliced] if goal["sliced"] else []


def _single(world: World, goal: Mapping[str, Any], thing: str) -> list[bool]:
    if goal["type"] == LIGHT:
        return [world.held == thing, world.lamp_here() == goal["target"]]
    conditions = [world.root(thing) == goal["target"]]
    states = {CLEAN: world.clean, HEAT: world.hot, COOL: world.cool}
    if goal["type"] in states:
        conditions.append(thing in states[goal["type"]])
    return conditions + _sliced(world, goal, thing)
