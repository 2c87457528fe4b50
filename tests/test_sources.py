"""Data specs, and completions for supervised training."""

import json
import subprocess
import sys

import pytest

from stepgrpo.data.answers import plan_answer, with_completions
from stepgrpo.data.household import plan_json
from stepgrpo.data.report import ReadReport
from stepgrpo.data.sources import read_rows, success_check
from stepgrpo.segment.plan import PlanStep, parse_plan


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def row(number, steps=1, **columns):
    return {"id": number, "prompt": f"p{number}", "ground_truth": [1] * steps, **columns}


def test_json_lines_with_bad_rows(tmp_path):
    bad = ["{", "[1]", {"id": 9}, {"prompt": []}, {"prompt": [{"role": "user"}]}, {"prompt": ""}]
    data = write(tmp_path / "a.jsonl", row(1), *bad, "", row(2))
    rows, report = read_rows(data)
    assert [r["id"] for r in rows] == [1, 2]
    assert (report.read, report.kept, sum(report.dropped.values())) == (8, 2, 6)
    assert report.dropped["no prompt: a text or a list of messages"] == 4
    assert report.first["not JSON"] == "line 2" and report.first["not a JSON object"] == "line 3"


def test_rows_are_drawn_by_seed_from_those_that_can_be_used(tmp_path):
    data = write(tmp_path / "a.jsonl", *(row(i, steps=1 + i % 2) for i in range(40)), "{")
    rows, report = read_rows(data, n=5, seed=3, max_plan_steps=1)
    ids = [r["id"] for r in rows]
    assert len(ids) == 5 and ids == sorted(ids) and all(i % 2 == 0 for i in ids)
    assert ids == [r["id"] for r in read_rows(data, n=5, seed=3, max_plan_steps=1)[0]]
    assert ids != [r["id"] for r in read_rows(data, n=5, seed=4, max_plan_steps=1)[0]]
    assert (report.read, report.kept, report.not_drawn) == (41, 5, 15)
    assert dict(report.dropped) == {"not JSON": 1, "plan of more than 1 steps": 20}
    assert "5 of 41 rows; 15 not drawn; 20 dropped: plan of more than 1 steps (first: 1)" in str(report)


def test_nothing_left_is_an_error_that_says_why(tmp_path):
    with pytest.raises(ValueError, match=r"no row can be used. 0 of 1 rows; 1 dropped: not JSON"):
        read_rows(write(tmp_path / "a.jsonl", "{"))
    with pytest.raises(ValueError, match="neither `household`"):
        read_rows("alfredo:x")


def test_household_and_its_success():
    rows, report = read_rows("household", "dev", 3, seed=1)
    assert (len(rows), report.kept) == (3, 3)
    succeeded = success_check("household")
    assert succeeded(rows[0], rows[0]["gt_action_close"]) and not succeeded(rows[0], [])
    assert success_check("alfred:x") is None


def test_answers():
    steps = [PlanStep(6, "find a CD"), PlanStep(None, "open the Fridge"), PlanStep(3, None)]
    assert parse_plan(plan_answer(steps)) == steps
    assert parse_plan(plan_answer(steps, action_ids=False)) == [PlanStep(None, "find a CD"), *steps[1:]]


def test_the_households_answer_is_the_households_form():
    (household,), _ = read_rows("household", n=1)
    (made,) = with_completions([household], ReadReport())
    assert made["completion"] == [{"role": "assistant", "content": plan_json(household["gt_action_close"])}]


def test_completions_keep_what_is_there_and_drop_what_cannot_be_made():
    report = ReadReport(read=3, kept=3)
    rows = [row(1), {"prompt": "p2", "completion": "done"}, {"prompt": "p3", "ground_truth": "find it", "id": 3}]
    made = with_completions(rows, report)
    assert made == [
        {"prompt": "p1", "completion": '{"executable_plan": [{"action_id": 1}]}'},
        {"prompt": "p2", "completion": "done"},
    ]
    assert report.kept == 2 and list(report.first.values()) == ["3"]
    with pytest.raises(ValueError, match="No row can be used for supervised training"):
        with_completions(rows[2:], ReadReport())


def test_data_imports_neither_torch_nor_transformers():
    code = (
        "import sys, stepgrpo.data.sources, stepgrpo.data.alfred, stepgrpo.data.answers, stepgrpo.rewards.plan;"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
