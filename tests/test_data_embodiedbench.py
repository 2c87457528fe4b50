"""EmbodiedBench's trajectory sets, on episodes made by hand."""

import json

import pytest
from PIL import Image

from stepgrpo.data.eb_alfred import ACTIONS
from stepgrpo.data.embodiedbench import embodiedbench_drafts
from stepgrpo.data.report import ReadReport
from stepgrpo.data.sources import read_rows

NAMES = [*ACTIONS, "find a Cabinet_2"]
INPUT = "The actions are: " + "".join(f"\naction id {i}: {name}, " for i, name in enumerate(NAMES)) + "\n\nGo."
FIND_CD, PICK_CD, CABINET = [6, "find a CD"], [85, "pick up the CD"], [162, "find a Cabinet_2"]
PUT = [133, "put down the object in hand"]


def act(action, success=1.0, picture=None):
    feedback = "Last action executed successfully." if success else "Cannot reach it."
    return {"step_id": 1, "action": action, "action_success": success, "env_feedback": feedback, "img_path": picture}


def decision(*actions, picture="m/0.png", **columns):
    return {"visual_description": "a desk", "reasoning_and_reflection": "so", "language_plan": "1. x"} | {
        "input_image_path": picture,
        "executable_plan": list(actions),
        **columns,
    }


def episode(*decisions, **columns):
    return {
        "model_name": "m",
        "eval_set": "base",
        "episode_id": 1,
        "instruction": " Put the disc\naway. ",
        "input": INPUT,
        "success": 1.0,
        "trajectory": list(decisions),
        **columns,
    }


TWO = episode(
    decision(act(FIND_CD), act(PICK_CD, 0.0)), decision(act(PICK_CD), act(CABINET), act(PUT), picture="m/1.png")
)


@pytest.fixture
def write(tmp_path):
    (tmp_path / "images" / "m").mkdir(parents=True)
    for number in range(2):
        Image.new("RGB", (4, 4)).save(tmp_path / "images" / "m" / f"{number}.png")

    def write_episodes(*episodes):
        file = tmp_path / "set.json"
        file.write_text(json.dumps(list(episodes)))
        return f"embodiedbench:{file}"

    return write_episodes


def names(row):
    return [step["action_name"] for step in row["gt_action_close"]]


def test_a_row_per_decision_with_the_plan_of_the_rest_and_without_what_failed(write, tmp_path):
    (first, second), report = read_rows(write(TWO))
    assert names(first) == ["find a CD", "pick up the CD", "find a Cabinet_2", "put down the object in hand"]
    assert names(second) == names(first)[1:] and second["gt_action_close"][1]["action_id"] == 162
    assert (first["id"], second["id"]) == ("m/base/1/0", "m/base/1/1")
    assert first["instruction"] == "Put the disc away." and first["action_list"] == ["find a Cabinet_2"]
    assert second["images"] == [str(tmp_path / "images" / "m" / "1.png")]
    assert str(report) == "2 of 2 rows from 1 trajectories"


def test_the_prompt_has_the_schema_the_actions_and_what_was_done(write):
    (first, second), _ = read_rows(write(TWO))
    text = first["prompt"][0]["content"]
    keys = ["visual_state_description", "reasoning_and_reflection", "language_plan", "executable_plan"]
    assert [text.index(key) for key in keys] == sorted(text.index(key) for key in keys)
    assert "\n0: find a Cart\n" in text and "\n162: find a Cabinet_2\n" in text and "(0 to 162)" in text
    assert "Nothing yet." in text and "Task: Put the disc away." in text
    later = second["prompt"][0]["content"]
    assert "Step 0, action id 6, find a CD: Last action executed successfully.\n" in later
    assert "Step 1, action id 85, pick up the CD: Cannot reach it.\n" in later and "Step 2" not in later


def test_the_answer_for_supervised_training_has_the_schema(write):
    (_, second), _ = read_rows(write(TWO))
    answer = json.loads(second["completion"][0]["content"])
    assert answer == {
        "visual_state_description": "a desk",
        "reasoning_and_reflection": "so",
        "language_plan": "1. pick up the CD, 2. find a Cabinet_2, 3. put down the object in hand",
        "executable_plan": second["gt_action_close"],
    }


def test_bad_episodes_are_counted_and_do_not_stop_the_rest(write):
    bad = [
        episode(decision(act(FIND_CD)), success=0.0),
        episode(),
        episode(decision(act(FIND_CD)), instruction=""),
        episode(decision(act([1, 2, 3, 4, 5, 6, 7]))),
        episode(decision(act([{}, None]))),
        episode("text"),
        episode(decision(act([6, "find a Cart"]))),
        episode(decision(act([163, "find a Cabinet_3"]))),
        episode(decision(act(FIND_CD), picture="m/9.png")),
        episode(decision(act(FIND_CD), picture=None)),
        episode(decision(act(FIND_CD)), input="action id 0: go, action id 2: stop"),
        "text",
    ]
    rows, report = read_rows(write(*bad, episode(decision(act(FIND_CD)), decision(act(PICK_CD, 0)), success=None)))
    assert [row["id"] for row in rows] == ["m/base/1/0"]
    assert dict(report.dropped) == {
        "an episode that did not reach its goal": 1,
        "no trajectory": 1,
        "no instruction": 1,
        "an action that is no [id, name]": 2,
        "a trajectory with a decision that has no list executable_plan": 1,
        "an action id and name that are not the same action": 2,
        "a picture that is not there": 1,
        "no input_image_path": 1,
        "a list of actions with gaps": 1,
        "not a JSON object": 1,
        "no action that succeeded from here on": 1,
    }
    assert (report.read, report.kept) == (14, 1)
    assert report.first["a picture that is not there"] == "m/base/1/0, m/9.png"
    assert report.noted == {"an episode that does not say whether it succeeded": 2}


def test_the_picture_after_the_last_action_stands_in_for_a_missing_one(write, tmp_path):
    (_, second), _ = read_rows(
        write(episode(decision(act(FIND_CD, picture="m/1.png")), decision(act(PICK_CD), picture="")))
    )
    assert second["images"] == [str(tmp_path / "images" / "m" / "1.png")]


def test_splits_are_eval_sets(write):
    sets = ("base", "common_sense", "long_horizon")
    data = write(*(episode(decision(act(FIND_CD)), eval_set=name) for name in sets))
    found = {
        split: [row["task_type"] for row in read_rows(data, split)[0]] for split in ("train", "dev", "test", "base")
    }
    assert found == {"train": ["base"], "dev": ["common_sense"], "test": ["long_horizon"], "base": ["base"]}
    with pytest.raises(ValueError, match=r"no episode of split 'spatial'.*it has base, common_sense, long_horizon"):
        read_rows(data, "spatial")


def test_another_environment_has_a_list_of_its_own(write):
    own = ["Move forward by 0.25", "Rotate to the left by 90"]
    text = "".join(f"\naction id {i}: {name}, " for i, name in enumerate(own))
    (row,), _ = read_rows(write(episode(decision(act([1, own[1]])), input=text)))
    assert row["action_list"] == own and row["gt_action_close"] == [{"action_id": 1, "action_name": own[1]}]


def test_without_images_no_file_is_looked_for(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([TWO]))
    (first, _), _ = read_rows(f"embodiedbench:{tmp_path}", images=False)
    assert first["images"] == []
    with pytest.raises(ValueError, match=r"no row can be used. 0 of 2 rows.*2 dropped: a picture that is not there"):
        read_rows(f"embodiedbench:{tmp_path}")


def test_a_folder_with_two_sets_is_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text("[]")
    with pytest.raises(ValueError, match=r"one file of trajectories, or a folder with one; there is a\.json, b\.json"):
        embodiedbench_drafts(tmp_path, None, ReadReport())
