"""The 208 actions of the household and their ids.

The wording is EB-ALFRED's; the order is this table's own: by verb, then by name. The id is the index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepgrpo.data.household.kinds import FIXED, OPENABLE, PAIRED, PORTABLE, SLICEABLE, SWITCHED

PUT = "put down the object in hand"
DROP = "drop the object in hand"


def _table() -> tuple[tuple[str, str, str], ...]:
    rows = [("find", thing, f"find a {thing}") for thing in sorted([*PORTABLE, *FIXED])]
    rows += [("pick", kind, f"pick up the {kind}") for kind in PORTABLE]
    rows += [("put", "", PUT), ("drop", "", DROP)]
    rows += [(verb, kind, f"{verb} the {kind}") for kind in OPENABLE for verb in ("open", "close")]
    rows += [(verb, kind, f"turn {verb} the {kind}") for kind in SWITCHED for verb in ("on", "off")]
    rows += [("slice", kind, f"slice the {kind}") for kind in SLICEABLE]
    rows += [("find", f"{kind}_2", f"find a {kind}_2") for kind in PAIRED]
    return tuple(rows)


_ROWS = _table()
ACTIONS: tuple[str, ...] = tuple(name for _, _, name in _ROWS)
_ID_OF = {" ".join(name.casefold().split()): index for index, name in enumerate(ACTIONS)}


def action_id(name: str) -> int | None:
    """The id of an action's name, white space and case aside; None if there is no such action."""
    return _ID_OF.get(" ".join(name.casefold().split()))


def make_step(name: str) -> dict[str, Any]:
    """The plan step `{"action_id", "action_name"}` of an action's name. Raises KeyError on an unknown name."""
    index = action_id(name)
    if index is None:
        raise KeyError(f"no such action: {name!r}")
    return {"action_id": index, "action_name": ACTIONS[index]}


def verb_and_thing(index: int) -> tuple[str, str]:
    """What an action does: its verb (find, pick, put, drop, open, close, on, off, slice) and the thing or ""."""
    verb, thing, _ = _ROWS[index]
    return verb, thing


def resolve(step: Any) -> int | None:
    """The id of the action that a step means, or None if it means none.

    Args:
        step: a mapping or an object with `action_id` and `action_name` (either may be missing), or a bare name.
            A step whose id and name are of two different actions means none.
    """
    if isinstance(step, str):
        return action_id(step)
    if isinstance(step, Mapping):
        index, name = step.get("action_id"), step.get("action_name")
    else:
        index, name = getattr(step, "action_id", None), getattr(step, "action_name", None)
    if isinstance(index, bool) or not isinstance(index, int):
        index = None
    if index is None:
        return action_id(name) if isinstance(name, str) else None
    if not 0 <= index < len(ACTIONS):
        return None
    if isinstance(name, str) and action_id(name) != index:
        return None
    return index


def plan_names(plan: Sequence[Any]) -> list[str | None]:
    """The action names of a plan's steps, None for a step that means no action."""
    return [None if (index := resolve(step)) is None else ACTIONS[index] for step in plan]
