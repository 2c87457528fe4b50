"""The ground-truth plan of a scene: the shortest a careful person would write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepgrpo.data.household.actions import PUT, make_step
from stepgrpo.data.household.goals import CLEAN, COOL, HEAT, LIGHT, MOVABLE, TWO
from stepgrpo.data.household.kinds import KNIVES, kind_of
from stepgrpo.data.household.world import InvalidAction, World


class _Planner:
    """Writes steps and carries them out as it goes, so that it knows what is open and where things are."""

    def __init__(self, scene: Mapping[str, Any]) -> None:
        self.world = World.from_scene(scene)
        self.steps: list[dict[str, Any]] = []

    def do(self, *names: str) -> None:
        for name in names:
            step = make_step(name)
            self.world.apply(step["action_id"])
            self.steps.append(step)

    def find(self, thing: str) -> None:
        holder = self.world.hidden_in(thing)
        if holder is not None:
            self.do(f"find a {holder}", f"open the {holder}")
        self.do(f"find a {thing}")

    def take(self, thing: str) -> None:
        """Picks a thing up; looks for it first unless it is the one at hand."""
        try:
            at_hand = self.world.reachable(kind_of(thing)) == thing
        except InvalidAction:
            at_hand = False
        if not at_hand:
            self.find(thing)
        self.do(f"pick up the {kind_of(thing)}")

    def put_in(self, place: str) -> None:
        self.do(f"find a {place}")
        if self.world.shut(place):
            self.do(f"open the {place}")
        self.do(PUT)

    def slice_all(self, things: list[str]) -> None:
        knife = next(thing for thing in self.world.where if kind_of(thing) in KNIVES)
        self.find(knife)
        self.do(f"pick up the {knife}")
        for thing in things:
            self.find(thing)
            self.do(f"slice the {kind_of(thing)}")
        self.do(PUT)

    def clean(self) -> None:
        self.put_in("Sink")
        self.do("turn on the Faucet", "turn off the Faucet")

    def heat(self) -> None:
        self.put_in("Microwave")
        self.do("close the Microwave", "turn on the Microwave", "turn off the Microwave", "open the Microwave")

    def cool(self) -> None:
        self.put_in("Fridge")
        self.do("close the Fridge", "open the Fridge")


def ground_truth_plan(scene: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps `{"action_id", "action_name"}` that reach a scene's goal, each of them valid.

    Raises:
        InvalidAction, StopIteration: the scene cannot meet its goal (no knife to slice with, no fridge to cool in).
    """
    goal = scene["goal"]
    planner = _Planner(scene)
    things = sorted(thing for thing in planner.world.where if kind_of(thing) == goal["object"])
    things = things[: 2 if goal["type"] == TWO else 1]
    if goal["sliced"]:
        planner.slice_all(things)
    for thing in things:
        planner.take(thing)
        prepare = {CLEAN: planner.clean, HEAT: planner.heat, COOL: planner.cool}.get(goal["type"])
        if prepare is not None:
            prepare()
            planner.take(thing)
        if goal["type"] == LIGHT:
            planner.do(f"find a {goal['target']}", f"turn on the {goal['target']}")
        elif goal["type"] == MOVABLE:
            planner.find(goal["carrier"])
            planner.do(PUT, f"pick up the {goal['carrier']}")
            planner.put_in(goal["target"])
        else:
            planner.put_in(goal["target"])
    return planner.steps
