"""The household's rules: what an action needs and what it changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepgrpo.data.household.actions import resolve, verb_and_thing
from stepgrpo.data.household.goals import goal_conditions
from stepgrpo.data.household.kinds import FLOOR, KNIVES, LAMPS, MOVABLE_RECEPTACLES, OPENABLE, RECEPTACLES, kind_of

HAND = "hand"


class InvalidAction(Exception):
    """An action whose preconditions do not hold."""


@dataclass
class World:
    """The state of a household.

    Attributes:
        places: the fixed things of the scene (receptacles and lamps); a scene with a Sink has a Faucet.
        where: for each portable thing the place, the movable receptacle, "Floor" or "hand" that holds it.
        open: what is open. on: what is switched on.
        sliced, clean, hot, cool: the portable things that are so.
        at: where the agent stands (a place or "Floor"), or None at the start. focus: what was found or used last.
        found: the portable things found so far.
    """

    places: tuple[str, ...]
    where: dict[str, str]
    open: set[str] = field(default_factory=set)
    on: set[str] = field(default_factory=set)
    sliced: set[str] = field(default_factory=set)
    clean: set[str] = field(default_factory=set)
    hot: set[str] = field(default_factory=set)
    cool: set[str] = field(default_factory=set)
    at: str | None = None
    focus: str | None = None
    found: set[str] = field(default_factory=set)

    @classmethod
    def from_scene(cls, scene: Mapping[str, Any]) -> World:
        """The start state of a scene: `{"places": {place: [thing, ...]}, "open": [...], "goal": {...}}`."""
        where = {thing: place for place, things in scene["places"].items() for thing in things}
        world = cls(places=tuple(scene["places"]), where=where, open=set(scene["open"]))
        if "Fridge" in world.places and "Fridge" not in world.open:
            world.cool.update(world.inside("Fridge"))
        return world

    @property
    def held(self) -> str | None:
        """The thing in hand."""
        return next((thing for thing, holder in self.where.items() if holder == HAND), None)

    def root(self, thing: str) -> str:
        """The place, "Floor" or "hand" that a thing is in, through the movable receptacles it may lie in."""
        holder = self.where[thing]
        while holder in self.where:
            holder = self.where[holder]
        return holder

    def inside(self, place: str) -> list[str]:
        """The things in a place, those in movable receptacles too."""
        return [thing for thing in self.where if self.root(thing) == place]

    def shut(self, holder: str) -> bool:
        """Whether a holder has a door and it is closed."""
        return kind_of(holder) in OPENABLE and holder not in self.open

    def hidden_in(self, thing: str) -> str | None:
        """The closed holder that a thing lies in, if any."""
        holder = self.where[thing]
        while holder not in (HAND, FLOOR):
            if self.shut(holder):
                return holder
            if holder not in self.where:
                break
            holder = self.where[holder]
        return None

    def apply(self, index: int) -> None:
        """Carries out the action of an id.

        Raises:
            InvalidAction: a precondition does not hold; the state is as before.
        """
        verb, thing = verb_and_thing(index)
        getattr(self, f"_{verb}")(thing)

    def _find(self, thing: str) -> None:
        if thing == "Faucet" and "Sink" in self.places:
            self.at = self.focus = "Sink"
        elif thing in self.places:
            self.at = self.focus = thing
        elif thing not in self.where:
            raise InvalidAction(f"there is no {thing}")
        elif self.root(thing) == HAND:
            raise InvalidAction(f"the {thing} is in hand")
        elif (holder := self.hidden_in(thing)) is not None:
            raise InvalidAction(f"the {thing} is not in sight: the {holder} is closed")
        else:
            self.at, self.focus = self.root(thing), thing
            self.found.add(thing)

    def reachable(self, kind: str) -> str:
        """The found thing of a kind within reach; the one found last comes first.

        Raises:
            InvalidAction: there is none, or it is behind a closed door.
        """
        things = sorted(self.found, key=lambda thing: (thing != self.focus, thing))
        near = [thing for thing in things if kind_of(thing) == kind and self.root(thing) == self.at]
        if self.at == FLOOR:  # the floor is everywhere: only what was just found there is near
            near = [thing for thing in near if thing == self.focus]
        if not near:
            raise InvalidAction(f"no {kind} was found here")
        if (holder := self.hidden_in(near[0])) is not None:
            raise InvalidAction(f"the {holder} is closed")
        return near[0]

    def _pick(self, kind: str) -> None:
        if self.held is not None:
            raise InvalidAction(f"the hand holds the {self.held}")
        thing = self.reachable(kind)
        self.where[thing] = HAND

    def _put(self, _: str) -> None:
        if (thing := self.held) is None:
            raise InvalidAction("the hand is empty")
        holder, focus = self.at, self.focus
        if focus in self.where and kind_of(focus) in MOVABLE_RECEPTACLES and self.root(focus) == self.at:
            holder = focus
            if kind_of(thing) in MOVABLE_RECEPTACLES:
                raise InvalidAction(f"the {thing} does not go into the {holder}")
        elif holder not in RECEPTACLES:
            raise InvalidAction("there is nothing here to put it in or on")
        assert holder is not None
        if self.shut(holder):
            raise InvalidAction(f"the {holder} is closed")
        self.where[thing] = holder

    def _drop(self, _: str) -> None:
        if (thing := self.held) is None:
            raise InvalidAction("the hand is empty")
        self.where[thing] = FLOOR

    def _door(self, kind: str) -> str:
        if kind in self.places:
            if self.at != kind:
                raise InvalidAction(f"the {kind} was not found")
            if kind in self.on:
                raise InvalidAction(f"the {kind} is on")
            return kind
        return self.reachable(kind)

    def _open(self, kind: str) -> None:
        thing = self._door(kind)
        if thing in self.open:
            raise InvalidAction(f"the {thing} is open already")
        self.open.add(thing)

    def _close(self, kind: str) -> None:
        thing = self._door(kind)
        if thing not in self.open:
            raise InvalidAction(f"the {thing} is closed already")
        self.open.remove(thing)
        if thing == "Fridge":
            self.cool.update(self.inside(thing))
            self.hot.difference_update(self.inside(thing))

    def _on(self, kind: str) -> None:
        self._switch(kind)
        if kind in self.on:
            raise InvalidAction(f"the {kind} is on already")
        if kind == "Microwave" and not self.shut(kind):
            raise InvalidAction("the Microwave is open")
        self.on.add(kind)
        if kind == "Microwave":
            self.hot.update(self.inside(kind))
            self.cool.difference_update(self.inside(kind))
        elif kind == "Faucet":
            self.clean.update(self.inside("Sink"))

    def _off(self, kind: str) -> None:
        self._switch(kind)
        if kind not in self.on:
            raise InvalidAction(f"the {kind} is off already")
        self.on.remove(kind)

    def _switch(self, kind: str) -> None:
        place = "Sink" if kind == "Faucet" else kind
        if place not in self.places or self.at != place:
            raise InvalidAction(f"the {kind} was not found")

    def _slice(self, kind: str) -> None:
        if self.held is None or kind_of(self.held) not in KNIVES:
            raise InvalidAction("there is no knife in hand")
        thing = self.reachable(kind)
        if thing in self.sliced:
            raise InvalidAction(f"the {thing} is sliced already")
        self.sliced.add(thing)

    def lamp_here(self) -> str | None:
        """The lamp the agent stands at, if it is on."""
        return self.at if self.at in LAMPS and self.at in self.on else None


@dataclass(frozen=True)
class Outcome:
    """What came of a plan.

    Attributes:
        success: whether every goal condition holds after the last step.
        conditions_met, conditions_total: how many of how many goal conditions hold then.
        valid: for each step whether it could be carried out; one that could not changed nothing.
        reasons: for each step why it could not, or None.
    """

    success: bool
    conditions_met: int
    conditions_total: int
    valid: list[bool]
    reasons: list[str | None]


def run(world: World, plan: Sequence[Any]) -> Iterator[str | None]:
    """Carries out a plan step by step and yields, for each step, why it was invalid, or None."""
    for step in plan:
        index = resolve(step)
        if index is None:
            yield "there is no such action"
            continue
        try:
            world.apply(index)
        except InvalidAction as error:
            yield str(error)
        else:
            yield None


def simulate(scene: str | Mapping[str, Any], plan: Sequence[Any]) -> Outcome:
    """Carries out a plan in a scene and judges the end state.

    Args:
        scene: the `scene` column of a row (JSON), or the mapping it stands for.
        plan: steps as mappings or objects with `action_id` and `action_name`, or bare action names.

    Returns:
        The outcome. Steps after an invalid one are still carried out.

    Raises:
        KeyError, ValueError: the scene is not a household scene.
    """
    setting: Mapping[str, Any] = json.loads(scene) if isinstance(scene, str) else scene
    world = World.from_scene(setting)
    reasons = list(run(world, plan))
    conditions = goal_conditions(world, setting["goal"])
    return Outcome(
        success=all(conditions),
        conditions_met=sum(conditions),
        conditions_total=len(conditions),
        valid=[reason is None for reason in reasons],
        reasons=reasons,
    )
