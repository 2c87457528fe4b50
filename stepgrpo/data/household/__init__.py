"""The built-in household: ALFRED's seven task types as a symbolic world that needs no download.

A row's plan can be replayed with `simulate(row["scene"], plan)`.
"""

from stepgrpo.data.household.actions import ACTIONS, action_id, make_step, plan_names
from stepgrpo.data.household.dataset import describe_scene, household_dataset, household_rows, plan_json
from stepgrpo.data.household.goals import TASK_TYPES
from stepgrpo.data.household.kinds import kind_of
from stepgrpo.data.household.picture import draw_scene
from stepgrpo.data.household.planner import ground_truth_plan
from stepgrpo.data.household.tasks import SPLITS, combinations, sample_scene
from stepgrpo.data.household.world import InvalidAction, Outcome, World, simulate

__all__ = [
    "ACTIONS",
    "SPLITS",
    "TASK_TYPES",
    "InvalidAction",
    "Outcome",
    "World",
    "action_id",
    "combinations",
    "describe_scene",
    "draw_scene",
    "ground_truth_plan",
    "household_dataset",
    "household_rows",
    "kind_of",
    "make_step",
    "plan_json",
    "plan_names",
    "sample_scene",
    "simulate",
]
