"""`stepgrpo prepare`: files that are read back as they were, and what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from stepgrpo.cli import main as stepgrpo
from stepgrpo.data.sources import read_rows
from tests.test_data_embodiedbench import TWO, episode


@pytest.fixture
def trajectories(tmp_path):
    (tmp_path / "in" / "m").mkdir(parents=True)
    for number in range(2):
        Image.new("RGB", (4, 4)).save(tmp_path / "in" / "m" / f"{number}.png")
    (tmp_path / "in" / "set.json").write_text(json.dumps([TWO, episode(), {"eval_set": "base"}]))
    return f"embodiedbench:{tmp_path / 'in'}"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_come_back_as_they_were_wherever_they_are_read_from(trajectories, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out" / "rows.jsonl"
    assert stepgrpo(["prepare", "--source", trajectories, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 4 rows from 3 trajectories; 2 dropped: no trajectory (first: m/base/1)" in printed
    assert f"2 rows, 2 of them with pictures, in {out}" in printed
    assert lines(out)[0]["images"] == ["../in/m/0.png"]
    monkeypatch.chdir("/")
    rows, report = read_rows(str(out))
    assert [{**row, "images": [os.path.realpath(image) for image in row["images"]]} for row in rows] == read_rows(
        trajectories
    )[0]
    assert str(report) == "2 of 2 rows"


def test_pictures_by_absolute_path_or_not_at_all(trajectories, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert stepgrpo(["prepare", "--source", trajectories, "--out", str(out), "--absolute-images"]) == 0
    assert lines(out)[1]["images"] == [str(tmp_path / "in" / "m" / "1.png")]
    assert (
        stepgrpo(["prepare", "--source", trajectories, "--out", str(out), "--no-images", "--max-plan-steps", "3"]) == 0
    )
    assert [(row["id"], row["images"]) for row in lines(out)] == [("m/base/1/1", [])]


def test_pictures_that_are_no_files_become_files(tmp_path):
    out = tmp_path / "rows.jsonl"
    assert (
        stepgrpo(["prepare", "--source", "household-pictures", "--n", "2", "--split", "dev", "--out", str(out)]) == 0
    )
    (drawn, _), (read, _) = read_rows("household-pictures", "dev", 2)[0], read_rows(str(out))[0]
    assert (
        lines(out)[0]["images"][0].startswith("rows_images/") and len(list((tmp_path / "rows_images").iterdir())) == 2
    )
    assert Image.open(read["images"][0]).tobytes() == drawn["images"][0].tobytes()
    assert read["gt_action_close"] == drawn["gt_action_close"] and read["scene"] == drawn["scene"]


def test_nothing_kept_is_a_failure_that_leaves_no_file(tmp_path, capsys):
    (tmp_path / "set.json").write_text(json.dumps([episode()]))
    out = tmp_path / "rows.jsonl"
    assert stepgrpo(["prepare", "--source", f"embodiedbench:{tmp_path}", "--out", str(out)]) == 1
    assert "no row can be used. 0 of 1 rows from 1 trajectories; 1 dropped: no trajectory" in capsys.readouterr().err
    assert stepgrpo(["prepare", "--source", "household", "--out", str(out), "--template", "none"]) == 1
    assert "template 'none' is neither a readable file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        stepgrpo(["prepare", "--source", "household", "--out", str(out), "--n", "0"])
    assert not out.exists() and not list(tmp_path.glob("*.part"))


def test_the_recipe_does_the_same_with_template_and_examples(trajectories, tmp_path):
    (tmp_path / "t.txt").write_text("${examples}${instruction} (of ${last_action_id})")
    recipe = Path(__file__).parents[1] / "recipes" / "prepare_data.py"
    options = [
        "--source",
        "household",
        "--split",
        "dev",
        "--n",
        "3",
        "--examples",
        "1",
        "--template",
        str(tmp_path / "t.txt"),
    ]
    done = subprocess.run(
        [sys.executable, recipe, *options, "--out", tmp_path / "rows.jsonl"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("household, dev: 3 of 3 rows\n3 rows, 0 of them with pictures, in ")
    contents = [row["prompt"][0]["content"] for row in lines(tmp_path / "rows.jsonl")]
    assert all(text.startswith("Examples:\nTask: ") and text.endswith(" (of 207)") for text in contents)
