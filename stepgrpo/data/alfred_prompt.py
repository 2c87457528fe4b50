"""What the prompts of ALFRED tell a planner of the scene: its objects and the actions on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepgrpo.data.eb_alfred import ACTIONS, OBJECTS, PORTABLE, PUT, action_id, object_name
from stepgrpo.data.prompts import Value, action_values

_VERBS = ("find a", "pick up the", "open the", "close the", "turn on the", "turn off the", "slice the")
_PLACES = tuple(name for name in OBJECTS if name not in PORTABLE)


def scene_objects(trajectory: Mapping[str, Any]) -> dict[str, int]:
    """How many of each movable object that EB-ALFRED knows there are in a trajectory's scene; names in alphabetical order."""
    poses = (trajectory.get("scene") or {}).get("object_poses") or []
    names = (object_name(str(pose.get("objectName") or "")) for pose in poses)
    return dict(sorted(Counter(name for name in names if name is not None).items()))


def own_actions(objects: Mapping[str, int]) -> list[str]:
    """The scene's actions beyond EB-ALFRED's fixed ones: `find a Vase_2` and so on where there is more than one vase."""
    return [f"find a {name}_{number}" for name, count in objects.items() for number in range(2, count + 1)]


def prompt_values(instruction: str, objects: Mapping[str, int], own: Sequence[str]) -> dict[str, Value]:
    """What a prompt template can name.

    Args:
        instruction: the task in a person's words.
        objects: of the scene, from `scene_objects`.
        own: the row's own actions, ids from 162 up.
    """
    return {
        "instruction": instruction,
        "objects": lambda: ", ".join(name if count == 1 else f"{name} ({count})" for name, count in objects.items()),
        "scene_actions": lambda: _scene_actions(objects, own),
        "verbs": f"{', '.join(f'{verb} X' for verb in _VERBS)}, {PUT}",
        **action_values((*ACTIONS, *own)),
    }


def _scene_actions(objects: Mapping[str, int], own: Sequence[str]) -> str:
    lines = [f"{verb}: {_with_ids(verb, objects)}" for verb in _VERBS]
    lines[0] += "".join(f", {name.split()[-1]} {len(ACTIONS) + i}" for i, name in enumerate(own))
    lines.append(f"{PUT}: {action_id(PUT)}")
    return "\n".join(lines)


def _with_ids(verb: str, objects: Iterable[str]) -> str:
    """The things of the scene a verb can be used on, each with the action's id."""
    found = ((thing, action_id(f"{verb} {thing}")) for thing in (*objects, *_PLACES))
    return ", ".join(f"{thing} {index}" for thing, index in found if index is not None)
