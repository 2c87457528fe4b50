"""The command line of `stepgrpo audit`."""

import json

import pytest
from PIL import Image

from stepgrpo.audit import command
from stepgrpo.audit.report import SHOWN
from stepgrpo.audit.run import audit, usable_plans
from stepgrpo.cli import main
from stepgrpo.signal.forward_proxy import TokenLogps

MUG = [(0, "find a Mug"), (1, "pick up the Mug"), (2, "find a Desk"), (3, "put down the object in hand")]
PEN = [(4, "find a Pen"), (5, "pick up the Pen"), (2, "find a Desk"), (3, "put down the object in hand")]


def row(steps, **columns):
    truth = [{"action_id": action_id, "action_name": name} for action_id, name in steps]
    return {"prompt": [{"role": "user", "content": "Desk Mug Pen"}], "gt_action_close": truth, **columns}


@pytest.fixture(scope="module")
def model_dir(make_model, tiny_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    table = dict([*MUG, *PEN])
    path.write_text("".join(json.dumps(row(steps, action_list=table)) + "\n" for steps in (MUG, PEN)))
    return path


def run(*args):
    return main(["audit", "--quiet", "--bootstrap", "20", *map(str, args)])


def test_audit_of_a_file(model_dir, data, tmp_path, capsys):
    out = tmp_path / "out"
    assert run("--model", model_dir, "--data", data, "--out", out) == 0
    found = json.loads((out / "audit.json").read_text())
    assert len(found["signals"]) == 44 and set(SHOWN) < set(found["signals"])
    for entry in found["signals"].values():
        assert 0.0 <= entry["wrong_rewarded"] <= 1.0 and 0.0 <= entry["right_punished"] <= 1.0
        assert {"same_verb", "other_verb", "wrong_id", "insertion", "repeat", "all"} <= set(entry["auroc"])
        assert all(0.0 <= value <= 1.0 for value in entry["auroc"].values())
        assert all(low <= high for low, high in entry["auroc_interval"].values())
    assert found["plans"] == 2 and found["simulated"] is False and found["failed"] == 0
    assert found["signals"]["rule/prefix"]["wrong_rewarded"] < 1.0
    assert found["signals"]["rule/first_error"]["auroc"]["same_verb"] == 1.0
    assert found["corruptions"]["reordering"] == {"plans": 0, "steps": 0, "wrong": 0, "missing": 2}
    assert found["corruptions"]["none"] == {"plans": 2, "steps": 8, "wrong": 0, "missing": 0}
    assert found["corruptions"]["swap"] == {"plans": 2, "steps": 8, "wrong": 4, "missing": 0}
    assert found["settings"]["seed"] == 0 and found["data_report"] == "2 of 2 rows"
    text = (out / "audit.md").read_text()
    printed = capsys.readouterr().out
    assert text in printed and "Reordering is left out" in text and "2 plans" in printed
    assert all(f"| {name} |" in text for name in SHOWN)
    with Image.open(out / "audit.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 200


def test_audit_of_the_household(model_dir, tmp_path):
    options = ["--data", "household", "--n", 6, "--max-plan-steps", 8, "--max-tokens", 4096]
    for name in ("a", "b"):
        assert run("--model", model_dir, *options, "--out", tmp_path / name) == 0
    found, again = (json.loads((tmp_path / name / "audit.json").read_text()) for name in ("a", "b"))
    assert found["simulated"] is True and 0 < found["plans"] <= 6
    assert found["signals"] == again["signals"]


def test_the_reference_in_the_context_matters(model_dir, data, tmp_path):
    template = tmp_path / "reference.txt"
    template.write_text("${reference}${reference}\n${problem}")
    options = ["--model", model_dir, "--data", data, "--out"]
    assert run(*options, tmp_path / "own") == 0
    assert run(*options, tmp_path / "other", "--reference-template", template) == 0
    own, other = (json.loads((tmp_path / name / "audit.json").read_text())["signals"] for name in ("own", "other"))
    assert own["prob/mean/both"]["difference"] != other["prob/mean/both"]["difference"]
    assert own["rule/exact"] == other["rule/exact"]


def test_contrast_with_the_plan_of_another_row(model_dir, data, tmp_path, capsys):
    options = ["--model", model_dir, "--data", data]
    assert run(*options, "--out", tmp_path / "none") == 0
    assert run(*options, "--out", tmp_path / "shuffled", "--contrast-reference", "shuffled") == 0
    none, other = (
        json.loads((tmp_path / name / "audit.json").read_text())["signals"] for name in ("none", "shuffled")
    )
    assert none["margin/min/both"] == other["margin/min/both"]
    assert none["contrast/mean/both"]["difference"] != other["contrast/mean/both"]["difference"]
    data.write_text(data.read_text().splitlines()[0])
    with pytest.raises(SystemExit):
        run(*options, "--out", tmp_path / "alike", "--contrast-reference", "shuffled")
    assert "needs rows with different plans" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nowhere"], "neither `household`"),
        (["--model", "nowhere"], "nowhere"),
        (["--reference-template", "nowhere.txt"], "nowhere.txt"),
        (["--gt-field", "nowhere"], "gt_action_close"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model_dir, tmp_path, capsys, options, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": [{"role": "user", "content": "go"}], "completion": "{}"}))
    defaults = {"--model": model_dir, "--data": path, "--out": tmp_path / "out"}
    if options[0] != "--gt-field":
        path.write_text(json.dumps(row(MUG)))
    for name, value in zip(options[::2], options[1::2]):
        defaults[name] = value
    with pytest.raises(SystemExit) as stopped:
        run(*(part for pair in defaults.items() for part in pair))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("stepgrpo audit: ") and message in error and "Traceback" not in error
    assert not (tmp_path / "out" / "audit.json").exists()


@pytest.mark.parametrize("option", [["--n", "0"], ["--copies", "0"], ["--bootstrap", "-1"], ["--dtype", "int3"]])
def test_impossible_numbers_are_refused(option, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--model", "m", "--data", "d", "--out", "o", *option])
    assert stopped.value.code == 2 and option[0] in capsys.readouterr().err


def flat_teacher(rollouts, positions):
    return [TokenLogps(*([-1.0] * len(tokens) for _ in range(3))) for tokens in positions]


def test_completions_that_fail_are_left_out_and_counted(tiny_tokenizer):
    rows = [row(MUG), row(PEN)]
    usable, truths = usable_plans(rows, ("gt_action_close",))

    def teacher(rollouts, positions):
        found = flat_teacher(rollouts, positions)
        return [RuntimeError("no picture")] * len(found) if rollouts[0].row is rows[0] else found

    found = audit(usable, truths, tiny_tokenizer, teacher, ("gt_action_close",), draws=5)
    assert found["plans"] == 1 and found["failed"] > 5 and found["first_failure"] == "RuntimeError: no picture"
    assert found["signals"]["margin/min/both"]["auroc"]["all"] == 0.5


def test_a_teacher_that_always_fails_is_an_error(tiny_tokenizer):
    def teacher(rollouts, positions):
        return [RuntimeError("no device") for _ in rollouts]

    usable, truths = usable_plans([row(MUG)], ("gt_action_close",))
    with pytest.raises(RuntimeError, match="No plan could be scored: RuntimeError: no device") as raised:
        audit(usable, truths, tiny_tokenizer, teacher)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_plan_of_one_step_alone_can_still_be_repeated(tiny_tokenizer):
    usable, truths = usable_plans([row([(0, "hop")])], ("gt_action_close",))
    found = audit(usable, truths, tiny_tokenizer, flat_teacher, ("gt_action_close",), draws=5)
    assert found["corruptions"]["repeat"]["wrong"] == 1 and found["corruptions"]["same_verb"]["missing"] == 1
    assert set(found["signals"]["prob/mean/both"]["auroc"]) == {"repeat", "all"}


def test_plans_that_cannot_be_damaged():
    rows = [row(MUG), {"prompt": "go"}, {"prompt": "go", "gt_action_close": [3, 4]}]
    usable, truths = usable_plans(rows, ("gt_action_close",), action_ids=False)
    assert usable == [rows[0]] and [step.action_id for step in truths[0]] == [None] * 4
    with pytest.raises(ValueError, match="row 1: a step without a name"):
        usable_plans(rows[1:], ("gt_action_close",))
