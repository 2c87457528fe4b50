"""EasyR1's and REBP's rows, and rows that users wrote themselves, on rows made by hand."""

import json

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from stepgrpo.data.json_lines import UNCHECKED
from stepgrpo.data.rows import instruction_of, marked_prompt
from stepgrpo.data.sources import read_rows, success_check

CD = [{"action_id": 6, "action_name": "find a CD"}]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (2, 2)).save(tmp_path / "images" / f"{name}.png")
    return tmp_path


def write(file, *rows):
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_marks_say_where_pictures_stand():
    assert marked_prompt("<image><image>\nGo.", 2) == [{"role": "user", "content": "Go."}]
    assert marked_prompt(" Go.\n", 1) == [{"role": "user", "content": " Go.\n"}]
    assert marked_prompt("From <image> to <image>", 2) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "From "},
                {"type": "image"},
                {"type": "text", "text": " to "},
                {"type": "image"},
            ],
        }
    ]
    with pytest.raises(ValueError, match="other <image> marks than pictures: 1 for 2"):
        marked_prompt("<image>Go.", 2)


def test_where_the_instruction_is():
    benchmark = "## Now the human instruction is: Put it away. You are supposed to output in json."
    assert instruction_of({}, benchmark) == "Put it away"
    assert instruction_of({}, "the human instruction is: Go.\n\n The action history:") == "Go"
    assert instruction_of({"instruction": "Go!"}, benchmark) == "Go!"
    assert instruction_of({}, "<image>Go.") == "Go."


def easyr1(number, answer="['find a CD']", **columns):
    return {"id": number, "problem": "<image>Get it.", "images": ["a.png"], "answer": answer, **columns}


def test_easyr1(folder):
    file = write(
        folder / "a.jsonl",
        easyr1(1),
        easyr1(2, answer=json.dumps({"executable_plan": CD}), images=[], problem="Get it."),
        easyr1(3, answer=[[6, "Find a CD"]]),
        easyr1(4, answer=["find a CD_2"], action_list=["find a CD_2"]),
        easyr1(5, answer="[fly"),
        easyr1(6, answer=["fly"]),
        easyr1(7, images=["c.png"]),
        easyr1(8, images=["a.png", "b.png"]),
        {"id": 9, "answer": "[]"},
        easyr1(10, action_list="x"),
    )
    rows, report = read_rows(f"easyr1:{file}")
    assert [row["id"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[0] == {
        "id": "1",
        "prompt": [{"role": "user", "content": "Get it."}],
        "images": [str(folder / "images" / "a.png")],
        "instruction": "Get it.",
        "task_type": None,
        "gt_action_close": CD,
        "action_list": None,
    }
    assert rows[1]["images"] == [] and rows[2]["gt_action_close"] == CD
    assert rows[3]["gt_action_close"][0]["action_id"] == 162 and rows[3]["action_list"] == ["find a CD_2"]
    assert report.noted == {"an action's name written as in the list of actions": 1}
    assert dict(report.dropped) == {
        "a plan that cannot be read": 1,
        "an action name that the list of actions has not": 1,
        "a picture that is not there": 1,
        "other <image> marks than pictures": 1,
        "no problem: a text": 1,
        "a list of actions that cannot be read": 1,
    }
    text_only, _ = read_rows(f"easyr1:{file}", images=False)
    assert text_only[0]["images"] == [] and text_only[0]["prompt"] == rows[0]["prompt"]


def test_easyr1_parquet_with_the_pictures_inside(folder):
    picture = {"bytes": (folder / "images" / "a.png").read_bytes(), "path": None}
    parquet.write_table(pa.Table.from_pylist([easyr1("p", images=[picture])]), folder / "train-0.parquet")
    ((row,), _) = read_rows(f"easyr1:{folder}", "train")
    assert row["images"][0].size == (2, 2) and row["gt_action_close"] == CD


def test_ids_alone_need_a_list_of_actions(folder):
    listed = easyr1(2, answer=[6], problem="<image>action id 5: find a Candle, action id 6: find a CD")
    rows, report = read_rows(f"easyr1:{write(folder / 'a.jsonl', easyr1(1, answer=[6]), listed)}")
    assert [row["gt_action_close"] for row in rows] == [CD]
    assert report.first == {"ids without names, and no list of actions that says what they are": "1"}


def rebp(number, answer="['Goto desk', 'Pickup cd']", **columns):
    messages = [{"role": "system", "content": "You are a robot."}, {"role": "user", "content": "Get the cd."}]
    return {"id": number, "conversations": messages, "image_urls": ["file://a.png"], "answer": answer, **columns}


def test_rebp_with_its_action_map(folder):
    (folder / "alfred_action_map.json").write_text(json.dumps({"0": "goto desk", "1": "pickup cd"}))
    inline = [{"role": "user", "content": [{"type": "image", "image": "b.png"}, {"type": "text", "text": "Go."}]}]
    file = write(
        folder / "train.jsonl",
        rebp(1),
        rebp(2, conversations=json.dumps(inline), image_urls=None),
        rebp(3, answer="['Goto moon']"),
        rebp(4, answer="__import__('os').getcwd()"),
        rebp(5, conversations=[{"role": "assistant", "content": "Hi"}]),
        rebp(6, conversations=7),
        rebp(7, answer="[]"),
    )
    rows, report = read_rows(f"rebp:{file}")
    assert [row["id"] for row in rows] == ["1", "2"]
    assert rows[0]["prompt"] == rebp(1)["conversations"] and rows[0]["images"] == [str(folder / "images" / "a.png")]
    assert rows[0]["gt_action_close"] == [
        {"action_id": 0, "action_name": "goto desk"},
        {"action_id": 1, "action_name": "pickup cd"},
    ]
    assert rows[0]["action_list"] == ["goto desk", "pickup cd"]
    assert rows[1]["prompt"] == [{"role": "user", "content": "Go."}] and rows[1]["instruction"] == "Go."
    assert rows[1]["images"] == [str(folder / "images" / "b.png")]
    assert dict(report.dropped) == {
        "an action name that the list of actions has not": 1,
        "a plan that cannot be read": 2,
        "conversations that do not end with the user": 1,
        "no conversations: a list of messages": 1,
    }


def test_rebp_names_of_the_benchmark_need_no_map(folder):
    file = write(folder / "a.jsonl", rebp(1, answer="['find a CD']"), rebp(2))
    rows, report = read_rows(f"rebp:{file}")
    assert [row["gt_action_close"] for row in rows] == [CD]
    assert report.first == {"an action name that the list of actions has not": "2, step 0, 'Goto desk'"}


def test_a_map_that_cannot_be_read_is_an_error(folder):
    (folder / "my_action_map.json").write_text("[")
    with pytest.raises(ValueError, match=r"my_action_map\.json' cannot be read as a list of actions"):
        read_rows(f"rebp:{write(folder / 'a.jsonl', rebp(1))}")


def test_own_rows_keep_their_columns_and_find_their_pictures(folder):
    file = write(
        folder / "images" / "own.jsonl",
        {"prompt": "p", "plan": CD, "extra": 1, "images": ["a.png"]},
        {"prompt": [{"role": "user", "content": "p"}], "ground_truth": CD, "image": str(folder / "images" / "b.png")},
        {"prompt": "p", "images": ["c.png"]},
        {"prompt": "p"},
    )
    rows, report = read_rows(str(file))
    assert rows[0]["gt_action_close"] == CD and rows[0]["extra"] == 1
    assert rows[0]["images"] == [str(folder / "images" / "a.png")]
    assert rows[1]["images"] == [str(folder / "images" / "b.png")] and "image" not in rows[1]
    assert rows[2] == {"prompt": "p"}
    assert dict(report.dropped) == {"a picture that is not there": 1} and not report.noted


def test_own_rows_without_pictures_have_no_place_for_them(folder):
    parts = [{"type": "image"}, {"type": "text", "text": "go"}]
    file = write(folder / "a.jsonl", {"prompt": [{"role": "user", "content": parts}], "images": ["images/a.png"]})
    ((row,), _) = read_rows(str(file), images=False)
    assert row == {"prompt": [{"role": "user", "content": parts[1:]}], "images": []}


def test_own_rows_are_compared_with_the_table_that_most_of_them_fit(tmp_path):
    good = [{"prompt": "p", "gt_action_close": CD} for _ in range(20)]
    respelled = {"id": "r", "prompt": "p", "gt_action_close": [[6, "find a cd"]]}
    wrong = {"id": "w", "prompt": "p", "gt_action_close": [[6, "find a Cart"]]}
    own = {"prompt": "p", "gt_action_close": ["find a CD_2"], "action_list": json.dumps([[162, "find a CD_2"]])}
    rows, report = read_rows(str(write(tmp_path / "a.jsonl", *good, respelled, wrong, own)))
    assert len(rows) == 22 and rows[20]["gt_action_close"] == CD and rows[21]["action_list"] == ["find a CD_2"]
    assert report.first == {
        "an action's name written as in the list of actions": "r",
        "an action id and name that are not the same action": "w, step 0, 6 'find a Cart'",
    }


def test_own_rows_of_an_unknown_world_are_used_as_they_are_and_that_is_said(tmp_path):
    file = write(
        tmp_path / "a.jsonl", {"prompt": "p", "ground_truth": ["jump"]}, {"prompt": "p", "ground_truth": "[jump"}
    )
    rows, report = read_rows(str(file))
    assert [row["ground_truth"] for row in rows] == [["jump"]] and report.noted == {UNCHECKED: 1}
    assert dict(report.dropped) == {"a plan that cannot be read": 1}


def test_household_pictures_tell_what_the_prompt_does_not():
    (row,), _ = read_rows("household-pictures", "dev", 1, seed=3)
    (plain,), _ = read_rows("household", "dev", 1, seed=3)
    assert row["prompt"][0]["content"] == row["instruction"] and len(row["images"]) == 1
    assert plain["images"] == [] and plain["scene"] == row["scene"]
    succeeded = success_check("household-pictures")
    assert succeeded(row, row["gt_action_close"]) and not succeeded(row, [])
