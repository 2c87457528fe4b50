"""ALFRED trajectories as training rows."""

import json
from pathlib import Path

import pytest

from stepgrpo.data.alfred import load_alfred
from stepgrpo.data.alfred_plan import NotConvertible, convert_plan
from stepgrpo.data.alfred_prompt import own_actions, scene_objects
from stepgrpo.data.eb_alfred import action_name

DATA = Path(__file__).parents[2] / "shared" / "data" / "alfred"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the ALFRED trajectories are not here")
PUT = "put down the object in hand"


def trajectory(*actions, task_type="pick_and_place_simple", instructions=("do it",), poses=()):
    entries = []
    for name, *rest in actions:
        args = [arg for arg in rest if "|" not in arg]
        ids = [arg for arg in rest if "|" in arg]
        planner = {"action": name, **({"objectId": ids[0]} if ids else {})}
        entries.append({"discrete_action": {"action": name, "args": args}, "planner_action": planner})
    return {
        "task_id": "trial_1",
        "task_type": task_type,
        "plan": {"high_pddl": entries},
        "turk_annotations": {"anns": [{"task_desc": text} for text in instructions]},
        "scene": {"object_poses": [{"objectName": f"{name}_1a2b3c4d"} for name in poses]},
    }


def names(*actions, **kwargs):
    steps, own = convert_plan(trajectory(*actions, **kwargs))
    assert [action_name(step["action_id"], own) for step in steps] == [step["action_name"] for step in steps]
    return [step["action_name"] for step in steps]


GO, PICK, PLACE = "GotoLocation", "PickupObject", "PutObject"


def test_place_simple():
    assert names((GO, "desk"), (PICK, "cd"), (GO, "garbagecan"), (PLACE, "cd", "garbagecan"), ("NoOp",)) == [
        "find a CD",
        "pick up the CD",
        "find a GarbageCan",
        PUT,
    ]


def test_doors_are_opened_and_closed_around_what_is_behind_them():
    assert names((GO, "cabinet"), (PICK, "pan"), (GO, "fridge"), (PLACE, "pan", "fridge")) == [
        "find a Cabinet",
        "open the Cabinet",
        "find a Pan",
        "pick up the Pan",
        "close the Cabinet",
        "find a Fridge",
        "open the Fridge",
        PUT,
        "close the Fridge",
    ]


def test_what_was_put_behind_a_door_is_still_there():
    plan = [(GO, "shelf"), (PICK, "apple"), (GO, "fridge"), (PLACE, "apple", "fridge"), (GO, "shelf"), (PICK, "knife")]
    assert names(*plan, (GO, "apple"), ("SliceObject", "apple"))[6:] == [
        "find a Knife",
        "pick up the Knife",
        "find a Fridge",
        "open the Fridge",
        "find a Apple",
        "slice the Apple",
        "close the Fridge",
    ]


def test_a_pot_is_not_a_potato():
    plan = [(GO, "sidetable"), (PICK, "potato"), (GO, "pot"), (PLACE, "potato", "pot"), (PICK, "pot")]
    assert names(*plan, (GO, "diningtable"), (PLACE, "pot", "diningtable")) == [
        "find a Potato",
        "pick up the Potato",
        "find a Pot",
        PUT,
        "pick up the Pot",
        "find a DiningTable",
        PUT,
    ]


def test_light():
    assert names((GO, "bed"), (PICK, "book"), (GO, "desklamp"), ("ToggleObject", "desklamp")) == [
        "find a Book",
        "pick up the Book",
        "find a DeskLamp",
        "turn on the DeskLamp",
    ]


def test_clean_knows_what_is_in_hand_without_its_name():
    assert names((GO, "shelf"), (PICK, "soapbar"), ("CleanObject", ""), (GO, "toilet"), (PLACE, "soapbar", "toilet"))[
        2:
    ] == [
        "find a Sink",
        PUT,
        "find a Faucet",
        "turn on the Faucet",
        "turn off the Faucet",
        "find a SoapBar",
        "pick up the SoapBar",
        "find a Toilet",
        PUT,
    ]


def test_heat_and_cool():
    start = [(GO, "countertop"), (PICK, "egg")]
    assert names(*start, (GO, "microwave"), ("HeatObject", "egg"))[2:] == [
        "find a Microwave",
        "open the Microwave",
        PUT,
        "close the Microwave",
        "turn on the Microwave",
        "turn off the Microwave",
        "open the Microwave",
        "find a Egg",
        "pick up the Egg",
        "close the Microwave",
    ]
    assert names(*start, (GO, "fridge"), ("CoolObject", "egg"))[2:] == [
        "find a Fridge",
        "open the Fridge",
        PUT,
        "close the Fridge",
        "open the Fridge",
        "find a Egg",
        "pick up the Egg",
        "close the Fridge",
    ]


VASE_A, VASE_B = "Vase|+01.00|+02.00|+03.00", "Vase|-01.00|+02.00|+03.00"
TWO = [
    (GO, "shelf"),
    (PICK, "vase", VASE_A),
    (GO, "desk"),
    (PLACE, "vase", "desk"),
    (GO, "shelf"),
    (PICK, "vase", VASE_B),
]


def test_the_second_of_two_has_a_number_and_an_id_of_its_own():
    steps, own = convert_plan(trajectory(*TWO, task_type="pick_two_obj_and_place"), ["find a Pen_2"])
    assert own == ["find a Pen_2", "find a Vase_2"]
    assert [(s["action_id"], s["action_name"]) for s in steps[-2:]] == [
        (163, "find a Vase_2"),
        (132, "pick up the Vase"),
    ]


def test_slices_of_one_loaf_are_one_thing():
    loaf = "Bread|+01.00|+02.00|+03.00"
    plan = [
        (PICK, "bread", f"{loaf}|BreadSliced_1"),
        (PLACE, "bread", "shelf"),
        (PICK, "bread", f"{loaf}|BreadSliced_2"),
    ]
    assert names(*plan, task_type="pick_two_obj_and_place")[-2:] == ["find a Bread", "pick up the Bread"]


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([(PICK, "teddybear")], "no object 'teddybear'"),
        ([(PICK, "fridge")], "no action 'pick up the Fridge'"),
        ([(PICK, "")], "an action without its object"),
        ([(PICK, "cd"), (PICK, "pen")], "PickupObject with something in hand already"),
        ([(PLACE, "cd", "desk")], "PutObject with nothing in hand"),
        ([("HeatObject", "egg")], "HeatObject with nothing in hand"),
        ([("Dance", "egg")], "unknown action Dance"),
        ([(GO, "desk"), ("NoOp",)], "no step but NoOp and GotoLocation"),
        ([], "no plan.high_pddl"),
    ],
)
def test_not_convertible(actions, reason):
    with pytest.raises(NotConvertible, match=reason):
        convert_plan(trajectory(*actions))


def test_two_objects_need_their_ids():
    with pytest.raises(NotConvertible, match="tells them apart"):
        convert_plan(trajectory((PICK, "vase"), task_type="pick_two_obj_and_place"))


def test_scene_objects_and_the_scenes_own_actions():
    objects = scene_objects(trajectory(poses=["Vase", "CD", "Vase", "TeddyBear", "Vase"]))
    assert objects == {"CD": 1, "Vase": 3}
    assert own_actions(objects) == ["find a Vase_2", "find a Vase_3"]


def write_tree(root):
    good = trajectory((GO, "desk"), (PICK, "cd"), instructions=["Take the CD.", " Get \n a disc "], poses=["CD", "CD"])
    bad = trajectory((PICK, "teddybear"), instructions=["a", "b", "c"])
    blank = trajectory((GO, "desk"), (PICK, "cd"), instructions=["", "Take it."])
    texts = {
        "train/t/a": good,
        "train/t/b": bad,
        "valid_seen/t/c": blank,
        "valid_unseen/t/d": trajectory(instructions=()),
    }
    for name, content in texts.items():
        (root / name).mkdir(parents=True)
        (root / name / "traj_data.json").write_text(json.dumps(content))
    (root / "train" / "t" / "e").mkdir()
    (root / "train" / "t" / "e" / "traj_data.json").write_text("{cut")


def test_alfreds_own_folders(tmp_path):
    write_tree(tmp_path)
    rows, report = load_alfred(tmp_path, "train")
    assert [row["instruction"] for row in rows] == ["Take the CD.", "Get a disc"]
    assert [row["id"] for row in rows] == ["trial_1/0", "trial_1/1"]
    assert rows[0]["action_list"] == ["find a CD_2"] and rows[0]["task_type"] == "pick_and_place_simple"
    assert rows[0]["gt_action_close"] == [
        {"action_id": 6, "action_name": "find a CD"},
        {"action_id": 85, "action_name": "pick up the CD"},
    ]
    assert (report.trajectories, report.read, report.kept) == (3, 6, 2)
    assert report.dropped == {"no object 'teddybear'": 3, "not a JSON object": 1}
    assert "2 of 6 rows from 3 trajectories; 3 dropped: no object 'teddybear' (first: " in str(report)
    dev, report = load_alfred(tmp_path, "dev")
    assert [row["instruction"] for row in dev] == ["Take it."] and report.dropped == {"empty instruction": 1}
    assert load_alfred(tmp_path, "valid_unseen")[1].dropped == {"no instruction": 1}
    assert load_alfred(tmp_path)[1].trajectories == 5
    assert len(load_alfred(tmp_path / "train" / "t" / "a" / "traj_data.json", "dev")[0]) == 2


def test_a_missing_split_is_not_replaced_by_another(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps(trajectory((GO, "desk"), (PICK, "cd"))) + "\n\n")
    assert len(load_alfred(tmp_path, "train")[0]) == 1
    with pytest.raises(ValueError, match=r"no split 'dev'; it has train"):
        load_alfred(tmp_path, "dev")
    with pytest.raises(ValueError, match="no ALFRED data at"):
        load_alfred(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"neither traj_data\.json nor \.jsonl"):
        load_alfred(tmp_path / "empty", "train")


def test_prompts_with_and_without_ids(tmp_path):
    write_tree(tmp_path)
    with_ids = load_alfred(tmp_path, "train")[0][0]["prompt"][0]["content"]
    assert "Take the CD." in with_ids and "find a: CD 6, Cart 0, " in with_ids and ", Sink 79, CD_2 162\n" in with_ids
    assert "pick up the: CD 85\n" in with_ids and "put down the object in hand: 133\n" in with_ids
    without = load_alfred(tmp_path, "train", action_ids=False)[0][0]["prompt"][0]["content"]
    assert "Objects: CD (2)\n" in without and "85" not in without and len(without) < len(with_ids)


@needs_data
def test_every_real_trajectory_is_converted():
    train, report = load_alfred(DATA, "train")
    assert (report.trajectories, report.read, report.kept, dict(report.dropped)) == (288, 982, 982, {})
    dev, report = load_alfred(DATA, "dev")
    assert (report.trajectories, report.kept) == (34, 126)
    for row in train + dev:
        own = row["action_list"] or []
        for step in row["gt_action_close"]:
            assert action_name(step["action_id"], own) == step["action_name"]


# By hand from the first trajectory of each type in the file, "Sliced" ones aside.
REAL = {
    "look_at_obj_in_light": "find a Pillow, pick up the Pillow, find a FloorLamp, turn on the FloorLamp",
    "pick_and_place_simple": "find a Cabinet, open the Cabinet, find a Cloth, pick up the Cloth, close the Cabinet, "
    "find a Bathtub, put",
    "pick_and_place_with_movable_recep": "find a Spatula, pick up the Spatula, find a Pan, put, pick up the Pan, "
    "find a CounterTop, put",
    "pick_two_obj_and_place": "find a Vase, pick up the Vase, find a Desk, put, find a Vase_2, pick up the Vase, "
    "find a Desk, put",
    "pick_clean_then_place_in_recep": "find a SoapBar, pick up the SoapBar, find a Sink, put, find a Faucet, "
    "turn on the Faucet, turn off the Faucet, find a SoapBar, pick up the SoapBar, find a Toilet, put",
    "pick_heat_then_place_in_recep": "find a Knife, pick up the Knife, find a Apple, slice the Apple, find a GarbageCan, put, "
    "find a Apple, pick up the Apple, find a Microwave, open the Microwave, put, close the Microwave, turn on the Microwave, "
    "turn off the Microwave, open the Microwave, find a Apple, pick up the Apple, close the Microwave, find a GarbageCan, put",
    "pick_cool_then_place_in_recep": "find a ButterKnife, pick up the ButterKnife, find a Tomato, slice the Tomato, "
    "find a DiningTable, put, find a Tomato, pick up the Tomato, find a Fridge, open the Fridge, put, close the Fridge, "
    "open the Fridge, find a Tomato, pick up the Tomato, close the Fridge, find a Sink, put",
}


@needs_data
@pytest.mark.parametrize("task_type", REAL)
def test_a_real_trajectory_of_each_type(task_type):
    rows = load_alfred(DATA, "train")[0]
    plan = next(row["gt_action_close"] for row in rows if row["task_type"] == task_type)
    assert [s["action_name"] for s in plan] == [PUT if name == "put" else name for name in REAL[task_type].split(", ")]


def test_the_first_frame_where_there_are_pictures(tmp_path):
    content = trajectory((GO, "desk"), (PICK, "cd"), instructions=["a", "b"])
    for name, images in (("a", [{"image_name": "000000004.png"}]), ("b", None), ("c", None)):
        (tmp_path / name / "raw_images").mkdir(parents=True)
        (tmp_path / name / "traj_data.json").write_text(json.dumps({**content, "task_id": name, "images": images}))
    (tmp_path / "a" / "raw_images" / "000000004.jpg").touch()  # the data set names it .png
    (tmp_path / "b" / "raw_images" / "000000000.png").touch()
    rows, report = load_alfred(tmp_path)
    first = {row["id"]: [Path(image).name for image in row["images"]] for row in rows}
    assert first == {
        "a/0": ["000000004.jpg"],
        "a/1": ["000000004.jpg"],
        "b/0": ["000000000.png"],
        "b/1": ["000000000.png"],
        "c/0": [],
        "c/1": [],
    }
    assert report.noted == {"raw_images without the first frame": 2}


def test_what_is_laid_out_otherwise_is_dropped(tmp_path):
    good = trajectory((GO, "desk"), (PICK, "cd"))
    bad = [
        {**good, "turk_annotations": [1]},
        {**good, "plan": {"high_pddl": 7}},
        {**good, "scene": {"object_poses": [1]}},
    ]
    (tmp_path / "a.jsonl").write_bytes("\n".join(map(json.dumps, [*bad, good])).encode() + b"\n\xff")
    rows, report = load_alfred(tmp_path / "a.jsonl")
    assert len(rows) == 1 and rows[0]["images"] == []
    assert dict(report.dropped) == {"not laid out as ALFRED's trajectories": 3, "not a JSON object": 1}
    (tmp_path / "t" / "traj_data.json").mkdir(parents=True)
    assert load_alfred(tmp_path / "t")[1].dropped == {"unreadable file": 1}
