"""Training rows of the household: prompt, instruction, ground-truth plan, scene, and a picture for models that see."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepgrpo.data.household.actions import ACTIONS, resolve
from stepgrpo.data.household.goals import TASK_TYPES
from stepgrpo.data.household.kinds import OPENABLE
from stepgrpo.data.household.phrasing import instruction
from stepgrpo.data.household.picture import draw_scene
from stepgrpo.data.household.planner import ground_truth_plan
from stepgrpo.data.household.tasks import sample_scene

if TYPE_CHECKING:
    from datasets import Dataset

PLAN_KEY = "executable_plan"


def describe_scene(scene: Mapping[str, Any]) -> str:
    """One line per thing, with its place and whether that is open, and one line with all places."""
    places = {}
    for place in scene["places"]:
        state = ""
        if place in OPENABLE:
            state = "open " if place in scene["open"] else "closed "
        places[place] = state + place
    things = [f"{thing} in {places[place]}" for place, held in scene["places"].items() for thing in held]
    return "\n".join([*things, "Places: " + ", ".join(places.values())])


def plan_json(steps: Sequence[Any]) -> str:
    """The completion that states a plan: `{"executable_plan": [{"action_id": 35, "action_name": "find a Tomato"}]}`.

    Args:
        steps: mappings or objects with `action_id` and `action_name`, or bare action names.

    Raises:
        ValueError: a step means no action.
    """
    plan = []
    for step in steps:
        index = resolve(step)
        if index is None:
            raise ValueError(f"no such action: {step!r}")
        plan.append({"action_id": index, "action_name": ACTIONS[index]})
    return json.dumps({PLAN_KEY: plan})


def household_rows(
    split: str,
    n: int,
    seed: int = 0,
    pictures: bool = False,
    scene_in_prompt: bool = True,
    task_types: Sequence[str] = TASK_TYPES,
) -> list[dict[str, Any]]:
    """Draws rows. Row i depends on split, seed, task types and i only, so a shorter draw is a prefix of a longer one.

    Args:
        split: train, dev or test; no (task type, object, target) occurs in two of them.
        n: how many rows.
        seed: another seed, other rows.
        pictures: adds the column `images`, one PIL picture a row.
        scene_in_prompt: whether the prompt lists what is where; without it a picture is needed to plan.
        task_types: the task types to draw from, each as often as the others.

    Returns:
        Rows with `id`, `prompt` (one user message), `instruction`, `gt_action_close` (list of `{"action_id",
        "action_name"}`), `task_type`, `scene` (JSON that `simulate` reads) and perhaps `images`.

    Raises:
        ValueError: unknown split or task type.
    """
    rows = []
    for index in range(n):
        rng = random.Random(f"{split}/{seed}/{index}")
        scene = sample_scene(split, rng, rng.choice(list(task_types)))
        task = instruction(scene["goal"], rng)
        content = f"{task}\n{describe_scene(scene)}" if scene_in_prompt else task
        row: dict[str, Any] = {
            "id": f"household-{split}-{seed}-{index}",
            "prompt": [{"role": "user", "content": content}],
            "instruction": task,
            "gt_action_close": ground_truth_plan(scene),
            "task_type": scene["goal"]["type"],
            "scene": json.dumps(scene),
        }
        if pictures:
            row["images"] = [draw_scene(scene)]
        rows.append(row)
    return rows


def household_dataset(split: str, n: int, **kwargs: Any) -> Dataset:
    """The rows of `household_rows`, which takes the same arguments, as a `datasets.Dataset`."""
    from datasets import Dataset

    return Dataset.from_list(household_rows(split, n, **kwargs))
