"""Turns an ALFRED demonstration's high-level actions into a plan of EB-ALFRED's actions.

ALFRED goes to places (`GotoLocation countertop`, `PickupObject pot`), EB-ALFRED finds things (`find a Pot`, `pick up the
Pot`). So a `GotoLocation` writes nothing by itself: each action finds what it needs, unless it was found just before, and the
place last gone to only says whether a door has to be opened first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepgrpo.data.eb_alfred import PUT, action_id, object_name

# A Box and a Laptop can be opened too, but ALFRED leaves them as they are.
_DOORS = frozenset({"Fridge", "Microwave", "Cabinet", "Drawer", "Safe"})
_TWO_OBJECTS = "pick_two_obj_and_place"


class NotConvertible(ValueError):
    """A demonstration that cannot be written with EB-ALFRED's actions; the message is the reason."""


def convert_plan(trajectory: Mapping[str, Any], own: Sequence[str] = ()) -> tuple[list[dict[str, Any]], list[str]]:
    """Converts `plan.high_pddl` of a trajectory.

    Args:
        trajectory: the content of a `traj_data.json`.
        own: the scene's names beyond the 162 fixed ones, ids from 162 up.

    Returns:
        The steps, `{"action_id", "action_name"}`, and `own` with what the plan needs and it lacked: "find a Vase_2" where two
        vases are picked up.

    Raises:
        NotConvertible: where there is no plan, or an action of it has no counterpart.
    """
    plan = trajectory.get("plan")
    actions = plan.get("high_pddl") if isinstance(plan, Mapping) else None
    if not actions:
        raise NotConvertible("no plan.high_pddl")
    writer = _Writer(trajectory.get("task_type") == _TWO_OBJECTS, own)
    for entry in actions:
        writer.add(entry)
    if not writer.steps:
        raise NotConvertible("the plan has no step but NoOp and GotoLocation")
    return writer.steps, writer.own


class _Writer:
    def __init__(self, two_objects: bool, own: Sequence[str]) -> None:
        self.steps: list[dict[str, Any]] = []
        self.own = list(own)
        self.two_objects = two_objects
        self.went_to: str | None = None
        self.at: str | None = None
        self.held: str | None = None
        self.inside: dict[str, str] = {}
        self.instances: dict[str, list[str]] = {}

    def add(self, entry: Mapping[str, Any]) -> None:
        discrete = entry.get("discrete_action") or {}
        action, args = discrete.get("action"), list(discrete.get("args") or [])
        handler = getattr(self, f"_{action}", None) if isinstance(action, str) else None
        if handler is None:
            raise NotConvertible(f"unknown action {action}")
        details = entry.get("planner_action") or {}
        handler(args, str(details.get("objectId") or ""))

    def _GotoLocation(self, args: Sequence[str], object_id: str) -> None:
        # Places that cannot be found (a handtowelholder) matter only if something is done there.
        self.went_to = object_name(args[0]) if args else None

    def _NoOp(self, args: Sequence[str], object_id: str) -> None:
        pass

    def _PickupObject(self, args: Sequence[str], object_id: str) -> None:
        kind = _known(args, 0)
        if self.held is not None:
            raise NotConvertible("PickupObject with something in hand already")
        if self.two_objects and not object_id:
            raise NotConvertible("two objects and no objectId that tells them apart")
        thing = self._instance(kind, object_id)
        door = self._reach(thing)
        self._write(f"pick up the {kind}")
        self._close(door)
        self.held = thing

    def _PutObject(self, args: Sequence[str], object_id: str) -> None:
        place = _known(args, 1)
        held = self._need_held("PutObject")
        self._put_in(place)
        self._close(place)
        self.inside.pop(held, None)
        if place in _DOORS:
            self.inside[held] = place
        self.held = None

    def _SliceObject(self, args: Sequence[str], object_id: str) -> None:
        kind = _known(args, 0)
        door = self._reach(self._instance(kind, object_id))
        self._write(f"slice the {kind}")
        self._close(door)

    def _ToggleObject(self, args: Sequence[str], object_id: str) -> None:
        lamp = _known(args, 0)
        self._find(lamp)
        self._write(f"turn on the {lamp}")

    # The three below name what is in hand by their argument, which some trajectories leave empty.

    def _CleanObject(self, args: Sequence[str], object_id: str) -> None:
        held = self._need_held("CleanObject")
        self._put_in("Bathtub" if self.went_to == "Bathtub" else "Sink")
        self._find("Faucet")
        self._write("turn on the Faucet", "turn off the Faucet")
        self._take_again(held)

    def _HeatObject(self, args: Sequence[str], object_id: str) -> None:
        held = self._need_held("HeatObject")
        self._put_in("Microwave")
        self._write("close the Microwave", "turn on the Microwave", "turn off the Microwave", "open the Microwave")
        self._take_again(held)
        self._close("Microwave")

    def _CoolObject(self, args: Sequence[str], object_id: str) -> None:
        held = self._need_held("CoolObject")
        self._put_in("Fridge")
        self._write("close the Fridge", "open the Fridge")
        self._take_again(held)
        self._close("Fridge")

    def _write(self, *names: str) -> None:
        for name in names:
            index = action_id(name, self.own)
            if index is None:
                raise NotConvertible(f"no action {name!r}")
            self.steps.append({"action_id": index, "action_name": name})

    def _find(self, thing: str) -> None:
        if self.at == thing:
            return
        name = f"find a {thing}"
        if "_" in thing and name not in self.own:
            self.own.append(name)
        self._write(name)
        self.at = thing

    def _reach(self, thing: str) -> str | None:
        """Finds a thing, first opening what it is in; returns the place to close again."""
        place = self.inside.get(thing) or (self.went_to if self.went_to in _DOORS else None)
        if place is not None:
            self._find(place)
            self._write(f"open the {place}")
        self._find(thing)
        return place

    def _put_in(self, place: str) -> None:
        self._find(place)
        if place in _DOORS:
            self._write(f"open the {place}")
        self._write(PUT)
        self.went_to = place

    def _take_again(self, held: str) -> None:
        self._find(held)
        self._write(f"pick up the {held.split('_')[0]}")

    def _close(self, place: str | None) -> None:
        if place in _DOORS:
            self._write(f"close the {place}")

    def _need_held(self, action: str) -> str:
        if self.held is None:
            raise NotConvertible(f"{action} with nothing in hand")
        return self.held

    def _instance(self, kind: str, object_id: str) -> str:
        """The name to find a thing by: its kind, with `_2` and up for the second and further ones of the plan."""
        # The slices of one loaf are "Bread|x|y|z|BreadSliced_1" and so on: one thing.
        thing = "|".join(object_id.split("|")[:4])
        seen = self.instances.setdefault(kind, [])
        if thing not in seen:
            seen.append(thing)
        number = seen.index(thing) + 1
        return kind if number == 1 else f"{kind}_{number}"


def _known(args: Sequence[str], index: int) -> str:
    name = str(args[index]) if index < len(args) else ""
    known = object_name(name)
    if known is None:
        raise NotConvertible(f"no object {name!r}" if name else "an action without its object")
    return known
