"""Rows as a data set: pictures that open late, and columns that differ from row to row."""

from io import BytesIO

import pytest
from datasets import Image as ImageFeature
from datasets import List, load_from_disk
from PIL import Image

from stepgrpo.data.dataset import to_dataset
from stepgrpo.data.sources import read_rows


def row(number, **columns):
    return {"id": str(number), "prompt": [{"role": "user", "content": f"p{number}"}], **columns}


def picture(tmp_path, name, size):
    Image.new("RGB", size, "red").save(tmp_path / name)
    return str(tmp_path / name)


def test_pictures_of_every_kind_and_none_survive_saving(tmp_path):
    file = BytesIO()
    Image.new("RGB", (5, 6)).save(file, "PNG")
    rows = [
        row(0, images=[picture(tmp_path, "a.png", (1, 2)), picture(tmp_path, "b.jpg", (3, 4))]),
        row(1),
        row(2, images=[]),
        row(3, images=[{"bytes": file.getvalue(), "path": None}, Image.new("RGB", (7, 8))]),
    ]
    made = to_dataset(rows)
    made.save_to_disk(tmp_path / "saved")
    for dataset in (made, load_from_disk(tmp_path / "saved")):
        assert dataset.features["images"] == List(ImageFeature())
        sizes = [[image.size for image in one["images"]] for one in dataset]
        assert sizes == [[(1, 2), (3, 4)], [], [], [(5, 6), (7, 8)]]
        assert dataset[0]["prompt"] == [{"role": "user", "content": "p0"}]


def test_files_are_opened_when_they_are_looked_at(tmp_path):
    dataset = to_dataset([row(0, images=[picture(tmp_path, "a.png", (1, 1))]), row(1)])
    (tmp_path / "a.png").unlink()
    assert dataset[1]["images"] == [] and dataset["id"][0] == "0"
    with pytest.raises(FileNotFoundError):
        dataset[0]


def test_no_pictures_no_column():
    assert to_dataset([row(0, images=[]), row(1)]).column_names == ["id", "prompt"]
    with pytest.raises(ValueError, match="no rows"):
        to_dataset([])


def test_lists_of_actions_have_one_type_whoever_has_one():
    some = to_dataset([row(0, action_list=None), row(1, action_list=["find a CD_2"])])
    none = to_dataset([row(0, action_list=None), row(1)])
    assert some.features["action_list"] == List(some.features["id"])
    assert none.features["action_list"] == some.features["action_list"]
    assert some["action_list"][:] == [None, ["find a CD_2"]]


def test_columns_of_several_types_become_json(caplog):
    rows = [row(0, gt_action_close=[6, 7], note=1), row(1, gt_action_close=["find a CD"], note=None), row(2, note="x")]
    dataset = to_dataset(rows)
    assert dataset["gt_action_close"][:] == ["[6, 7]", '["find a CD"]', None] and dataset["note"][:] == [
        "1",
        None,
        '"x"',
    ]
    assert "Column gt_action_close has values of several types" in caplog.text


def test_prompts_get_one_form():
    parts = [{"type": "text", "text": "from"}, {"type": "image"}]
    system = {"role": "system", "content": "s"}
    red = Image.new("RGB", (1, 1))
    rows = [
        row(0, images=[red]) | {"prompt": [{"role": "user", "content": parts}]},
        row(1, images=[red, red])
        | {"prompt": [system, {"role": "user", "content": "go"}, {"role": "user", "content": "on"}]},
        {"prompt": "plain"},
    ]
    prompts = [
        [(m["role"], [(part["type"], part.get("text")) for part in m["content"]]) for m in one["prompt"]]
        for one in to_dataset(rows)
    ]
    assert prompts == [
        [("user", [("text", "from"), ("image", None)])],
        [
            ("system", [("text", "s")]),
            ("user", [("image", None), ("image", None), ("text", "go")]),
            ("user", [("text", "on")]),
        ],
        [("user", [("text", "plain")])],
    ]
    assert to_dataset([row(0), {"prompt": "plain"}])[1]["prompt"] == [{"role": "user", "content": "plain"}]
    assert to_dataset([{"prompt": "a", "completion": "b"}])[0] == {"prompt": "a", "completion": "b"}


def test_the_households_pictures(tmp_path):
    rows, _ = read_rows("household-pictures", n=2)
    dataset = to_dataset(rows)
    assert dataset[1]["images"][0].tobytes() == rows[1]["images"][0].tobytes()
    assert dataset[1]["gt_action_close"] == rows[1]["gt_action_close"]
