"""Rows, splits, plans, pictures and the reward of the household."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepgrpo.data.household import (
    SPLITS,
    TASK_TYPES,
    combinations,
    draw_scene,
    household_dataset,
    household_rows,
    plan_json,
    simulate,
)
from stepgrpo.rewards.household import household_progress_reward, household_reward


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPLITS), st.sampled_from(TASK_TYPES), st.integers(0, 10**6))
def test_the_plan_reaches_the_goal_and_needs_every_step_but_the_tidying(split, task_type, seed):
    (row,) = household_rows(split, 1, seed=seed, task_types=[task_type])
    plan = row["gt_action_close"]
    outcome = simulate(row["scene"], plan)
    assert outcome.success
    assert all(outcome.valid)
    assert not simulate(row["scene"], []).success
    assert 4 <= len(plan) <= 16
    for position, step in enumerate(plan):
        # Only the faucet may stay on; every other step that is left out costs the goal or a later step.
        shorter = simulate(row["scene"], plan[:position] + plan[position + 1 :])
        assert step["action_name"] == "turn off the Faucet" or not (shorter.success and all(shorter.valid))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_every_task_type_occurs_in_every_split(split, task_type):
    rows = household_rows(split, 5, task_types=[task_type])
    for row in rows:
        scene = json.loads(row["scene"])
        assert row["task_type"] == task_type
        assert (task_type, scene["goal"]["object"], scene["goal"]["target"]) in combinations(task_type, split)


def test_no_combination_is_in_two_splits():
    parts = [{c for task_type in TASK_TYPES for c in combinations(task_type, split)} for split in SPLITS]
    assert all(parts)
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])


def test_a_closed_door_matters_for_the_plan():
    row = next(
        row
        for row in household_rows("train", 50, task_types=["pick_and_place_simple"])
        if row["gt_action_close"][1]["action_name"].startswith("open")
    )
    scene = json.loads(row["scene"])
    place = row["gt_action_close"][1]["action_name"].removeprefix("open the ")
    assert f"closed {place}" in row["prompt"][0]["content"]
    assert not simulate(scene, row["gt_action_close"][2:]).success
    assert simulate({**scene, "open": [*scene["open"], place]}, row["gt_action_close"][2:]).success


def test_rows_are_seeded_and_a_short_draw_is_a_prefix_of_a_long_one():
    assert household_rows("dev", 3, seed=5) == household_rows("dev", 6, seed=5)[:3]
    assert household_rows("dev", 3, seed=5) != household_rows("dev", 3, seed=6)


def test_plans_are_as_long_as_they_were_meant_to_be():
    lengths = [len(row["gt_action_close"]) for row in household_rows("train", 500)]
    assert 7.5 <= sum(lengths) / len(lengths) <= 10


def test_without_the_listing_the_prompt_is_the_instruction():
    (row,) = household_rows("train", 1, scene_in_prompt=False)
    assert row["prompt"] == [{"role": "user", "content": row["instruction"]}]


def test_unknown_split_and_task_type_are_named():
    with pytest.raises(ValueError, match=r"unknown split 'validation'.*train, dev, test"):
        household_rows("validation", 1)
    with pytest.raises(ValueError, match=r"unknown task type 'dance'.*look_at_obj_in_light"):
        household_rows("train", 1, task_types=["dance"])


def test_the_picture_is_the_scenes_and_shows_where_things_are():
    scene = {
        "places": {"Desk": ["Book"], "Shelf": [], "Drawer": ["Pen"]},
        "open": [],
        "goal": {},
    }
    moved = {**scene, "places": {"Desk": [], "Shelf": ["Book"], "Drawer": ["Pen"]}}
    opened = {**scene, "open": ["Drawer"]}
    pixels = [draw_scene(s).tobytes() for s in (scene, json.dumps(scene), moved, opened)]
    assert pixels[0] == pixels[1]
    assert len(set(pixels)) == 3


def test_plan_json_reads_as_json_and_rejects_an_unknown_action():
    (row,) = household_rows("train", 1)
    assert json.loads(plan_json(row["gt_action_close"])) == {"executable_plan": row["gt_action_close"]}
    with pytest.raises(ValueError, match="no such action: 'dance'"):
        plan_json(["dance"])


def test_a_dataset_keeps_the_columns_and_the_picture():
    dataset = household_dataset("test", 2, pictures=True)
    (row, _) = household_rows("test", 2, pictures=True)
    assert dataset[0]["gt_action_close"] == row["gt_action_close"]
    assert dataset[0]["prompt"] == row["prompt"]
    assert dataset[0]["images"][0].convert("RGB").tobytes() == row["images"][0].tobytes()


def test_the_household_imports_neither_torch_nor_transformers():
    code = "import sys, stepgrpo.data.household; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "stepgrpo.data.household" in modules
    assert not {"torch", "transformers", "datasets"} & set(modules)


def test_the_reward_is_the_simulators_verdict():
    (row,) = household_rows("train", 1, task_types=["pick_two_obj_and_place"], seed=1)
    plan = row["gt_action_close"]
    half = next(n for n, step in enumerate(plan) if step["action_name"].startswith("put down")) + 1
    unknown = '{"executable_plan": [{"action_id": 999}]}'
    texts = [plan_json(plan), plan_json(plan[:half]), plan_json([]), "I cannot.", unknown]
    for completions in (texts, [[{"role": "assistant", "content": text}] for text in texts]):
        scenes = [row["scene"]] * len(texts)
        assert household_reward(completions, scenes, prompts=None) == [1.0, -1.0, -1.0, -1.0, -1.0]
        assert household_progress_reward(completions, scenes)[::4] == [1.0, -1.0]
    simple = {**json.loads(row["scene"])}
    simple["goal"] = {**simple["goal"], "sliced": False}
    assert household_progress_reward(texts[:3], [json.dumps(simple)] * 3) == [1.0, 0.0, -1.0]
