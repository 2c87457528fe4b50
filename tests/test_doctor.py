"""`stepgrpo doctor`: each broken config is named, none stops the report, and the command says so by its status."""

import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from stepgrpo.cli import main as stepgrpo
from stepgrpo.doctor.command import examine, main
from stepgrpo.doctor.findings import Report
from stepgrpo.doctor.launch_file import read_launch
from stepgrpo.doctor.versions import check_imports, check_versions, stated_ranges

ROOT = Path(__file__).resolve().parents[1]
PLAN = [[1, "find a Tomato"], [2, "pick up the Tomato"]]
ROW = {"prompt": [{"role": "user", "content": "cook"}], "gt_action_close": PLAN, "instruction": "cook"}
GB = 10**9


@pytest.fixture(scope="module")
def model_dir(make_model, tiny_tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("doctor") / "model"
    make_model().save_pretrained(path)
    tiny_tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def write(tmp_path):
    def write(rows, name="rows.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
        return str(tmp_path / name)

    return write


@pytest.fixture
def options(model_dir, write):
    """Of a run that has nothing wrong."""
    given = {"model_name_or_path": model_dir, "data": write([ROW] * 8), "use_cpu": "true", "bf16": "false"}
    given |= {"report_to": "none", "max_completion_length": 128, "per_device_train_batch_size": 8}
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


def found(report, status):
    return {finding.check: finding.value for finding in report.findings if finding.status == status}


def test_a_run_with_nothing_wrong(options):
    report = examine(options)
    assert report.problems == 0, report
    said = found(report, "ok")
    assert said["ground truth"] == "8 of 8 rows: 2 to 2 steps, median 2"
    assert said["batch"] == "8 rows x 1 process(es) x 1 accumulated = 8 completions an update"
    assert said["generated at once"] == "8 = 1 prompts x 8 completions; 8 a process"
    assert said["tokens of steps"].startswith("16 steps of 8 true plans")
    assert said["credit of true steps"] == "+1 for all 16"
    assert said["reward exact_match"] == "1 for the ground truth of 8 rows"
    assert {"hooks", "model", "memory", "tokens of a prompt"} <= set(said)


BROKEN = [
    (["--max_step", "3"], "fields", "max_step (did you mean max_steps?)"),
    (["--config", "no.yaml"], "fields", "no.yaml"),
    (["--num_generations", "3"], "fields", "must be divisible by num_generations (3)"),
    (["--step_reward_kind", "no.such"], "fields", "step_reward_kind='no.such' is not a choice"),
    (["--max_length", "5"], "fields", "no such field: max_length"),
    (["--data", "no.jsonl"], "data", "data='no.jsonl' is neither"),
    (
        ["--eval_strategy", "steps", "--eval_steps", "1", "--eval_data", "no"],
        "evaluation data",
        "data='no' is neither",
    ),
    (["--per_device_train_batch_size", "80"], "rows for a batch", "completions of 10 different prompts"),
    (["--reward_funcs", "lsc"], "reward_funcs", "'lsc' is no function"),
    (["--reward_funcs", "household"], "reward household", "needs the column scene"),
    (["--reward_funcs", "lcs", "--reward_weights", "1", "2"], "reward_weights", "2 weights for 1 reward functions"),
    (["--reward_funcs", "tests.test_doctor.broken"], "reward tests.test_doctor.broken", "KeyError: 'scene'"),
    (["--reward_funcs", "tests.test_doctor.short"], "reward tests.test_doctor.short", "1 rewards for 8 completions"),
    (["--model_name_or_path", "/no/model"], "model", "is no directory here, and no name the hub could have"),
    (["--model_name_or_path", ""], "model", "is not set"),
    (["--use_peft", "true", "--lora_target_modules", "qq_proj"], "adapter", "qq_proj"),
    (["--freeze_modules", "visual"], "freeze_modules", "'visual' is no module of this model"),
    (["--merge_adapter", "true"], "adapter fields", "there is no adapter to merge"),
    (["--load_in_4bit", "true"], "adapter fields", "quantized weights cannot be trained"),
    (["--attn_implementation", "fast"], "attn_implementation", "'fast' is not known"),
    (["--max_completion_length", "8"], "tokens of a true plan", "none fits max_completion_length=8"),
    (["--max_completion_length", "1020"], "positions", "and the model has 1024"),
    (["--reward_funcs", "verify"], "verify", "verify_model_path is not set"),
    (["--resume_from_checkpoint", "true", "--output_dir", "no"], "resume_from_checkpoint", "has no whole checkpoint"),
    (["--push_to_hub", "true"], "push_to_hub", "there is no token"),
    (["--optim", "adamw_bnb_8bit"], "packages", "bitsandbytes is not installed, and load_in_4bit"),
]


def broken(scene=None, **_):
    raise KeyError("scene")


def short(**_):
    return [1.0]


@pytest.mark.parametrize(("change", "check", "said"), BROKEN, ids=[" ".join(change) for change, _, _ in BROKEN])
def test_a_broken_config_is_named(change, check, said, options, monkeypatch):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    if check == "packages":
        monkeypatch.setattr("stepgrpo.doctor.versions.check_versions", lambda report: {})
    report = examine([*options, *change])
    assert said in found(report, "FAIL")[check]


ROWS = [
    ([{"prompt": "x"}] * 8, "ground truth", "8 of 8 rows have none that can be read"),
    ([{"action": 1}] * 8, "data", "8 dropped: no prompt"),
    ([], "data", "no row can be used"),
    ([{**ROW, "images": ["none.png"]}] * 8, "data", "8 dropped: a picture that is not there"),
    ([{**ROW, "images": ["there.png"]}] * 8, "pictures", "is no vision-language model"),
]


@pytest.mark.parametrize(("rows", "check", "said"), ROWS, ids=[check + " " + said[:20] for _, check, said in ROWS])
def test_broken_rows_are_named(rows, check, said, options, write, tmp_path):
    Image.new("RGB", (32, 32)).save(tmp_path / "there.png")
    report = examine([*options, "--data", write(rows, "broken.jsonl")])
    assert said in found(report, "FAIL")[check]


def test_pictures_can_be_left_out(options, write, tmp_path):
    Image.new("RGB", (32, 32)).save(tmp_path / "there.png")
    data = write([{**ROW, "images": ["there.png"]}] * 8, "pictured.jsonl")
    assert examine([*options, "--data", data, "--use_images", "false"]).problems == 0


def test_rows_without_a_ground_truth_are_counted(options, write):
    data = write([{"prompt": "x", "id": "first"}, *[ROW] * 7], "some.jsonl")
    said = found(examine([*options, "--data", data]), "warn")["ground truth"]
    assert said.startswith("1 of 8 rows have none that can be read; the first: first: ")


def test_rows_that_were_asked_to_be_left_out_are_no_warning(options, write):
    data = write([{**ROW, "gt_action_close": PLAN * 3}, *[ROW] * 8], "long.jsonl")
    report = examine([*options, "--data", data, "--max_plan_steps", "2"])
    assert "1 dropped: plan of more than 2 steps" in found(report, "ok")["data"]


def test_a_column_that_is_not_there(options):
    assert "nope is no column" in found(examine([*options, "--step_gt_field", "nope"]), "warn")["step_gt_field"]


@pytest.mark.parametrize(("field", "check"), [("model_name_or_path", "model"), ("verify_model_path", "verify")])
def test_a_model_that_cannot_be_reached_is_a_warning(field, check, options):
    report = examine([*options, "--reward_funcs", "verify", "lcs", "--verify_model_path", "a/b", f"--{field}", "a/b"])
    assert "the hub cannot be reached" in found(report, "warn")[check] and report.problems == 0


def test_a_model_without_its_tokenizer_or_chat_template(options, model_dir, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(model_dir, bare)
    (bare / "chat_template.jinja").unlink()
    report = examine([*options, "--model_name_or_path", str(bare)])
    assert "the tokenizer has none" in found(report, "FAIL")["chat template"]
    assert found(report, "warn")["memory"].endswith("without prompts: their tokens are not known")
    for file in bare.glob("token*"):
        file.unlink()
    assert "tokenizer" in found(examine([*options, "--model_name_or_path", str(bare)]), "FAIL")
    (bare / "config.json").write_text("{")
    assert "cannot be read" in found(examine([*options, "--model_name_or_path", str(bare)]), "FAIL")["model"]


def test_the_other_recipe_is_offered(options):
    (problem,) = (f for f in examine([*options, "--max_length", "64"]).findings if f.status == "FAIL")
    assert problem.advice == ""
    supervised = [part for part in options if part not in ("--max_completion_length", "128")]
    (problem,) = (f for f in examine([*supervised, "--max_length", "64"]).findings if f.status == "FAIL")
    assert problem.advice == "the arguments are those of --recipe sft"


def test_supervised_training(options):
    keep = [part for part in options if part not in ("--max_completion_length", "128")]
    report = examine([*keep, "--max_length", "10"], "sft")
    assert report.problems == 0
    assert "its end, the plan, is cut off" in found(report, "warn")["max_length"]


def test_the_judges_question_and_answers(options, model_dir):
    judge = ["--reward_funcs", "verify", "--verify_model_path", str(model_dir)]
    report = examine([*options, *judge])
    assert "token(s) that begin yes" in found(report, "ok")["verify"]
    assert "no worse than a mean one" in found(report, "warn")["verify_no_plan"]
    said = found(examine([*options, *judge, "--verify_template", "${room}: ${plan}?"]), "FAIL")
    assert said["verify_template"] == "names room, which are no columns of the data"
    assert "verify_batch_size" in found(examine([*options, *judge, "--verify_batch_size", "0"]), "FAIL")


def test_a_check_that_breaks_is_a_problem_and_the_others_go_on(options, monkeypatch):
    def breaks(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr("stepgrpo.doctor.rows.check_rows", breaks)
    monkeypatch.setattr("stepgrpo.doctor.hooks.check_hooks", breaks)
    report = examine(options)
    assert found(report, "FAIL") == {"data": "RuntimeError: out of order", "hooks": "RuntimeError: out of order"}
    assert "model" in found(report, "ok")


def test_the_installation_alone(capsys):
    assert stepgrpo(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "\nTRL\n" in said and "\nconfig\n" not in said and said.endswith("no problems, no warnings.\n")


def test_status_and_json(options, tmp_path, capsys):
    file = tmp_path / "report.json"
    assert main([*options, "--json", str(file)]) == 0
    assert json.loads(file.read_text())["problems"] == 0
    assert main([*options, "--data", "no.jsonl", "--json", str(file)]) == 1
    said, saved = capsys.readouterr().out, json.loads(file.read_text())
    assert saved["problems"] == 1 and "checks: 1 problem, " in said
    (problem,) = [finding for finding in saved["findings"] if finding["status"] == "FAIL"]
    assert (problem["section"], problem["check"]) == ("data", "data") and problem["value"].startswith(
        "data='no.jsonl'"
    )
    assert set(saved["tables"]) == {"memory"}
    assert main(["--json", str(tmp_path / "no" / "report.json")]) == 2


@pytest.mark.parametrize(
    "wrong", [["--rows", "0"], ["--gpu_memory", "big"], ["--gpu_memory", "-1"], ["--recipe", "ppo"]]
)
def test_wrong_usage(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(wrong)
    assert stopped.value.code == 2 and wrong[0] in capsys.readouterr().err


LAUNCHES = {
    "cpu": (1, "none", True, 1),
    "cpu_2proc": (2, "ddp", True, 1),
    "single_gpu": (1, "none", False, 1),
    "ddp": (8, "ddp", False, 1),
    "zero2": (8, "zero2", False, 1),
    "zero3": (8, "zero3", False, 8),
    "fsdp2": (8, "fsdp", False, 8),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launch_files(name):
    launch = read_launch(str(ROOT / "accelerate_configs" / f"{name}.yaml"))
    assert (launch.processes, launch.spread, launch.cpu, launch.shards) == LAUNCHES[name]


def test_batches_are_those_of_the_launch(options):
    launch = str(ROOT / "accelerate_configs" / "cpu_2proc.yaml")
    said = found(examine(options, config_file=launch), "ok")
    assert said["batch"] == "8 rows x 2 process(es) x 1 accumulated = 16 completions an update"
    said = found(examine(options, config_file=launch, num_processes=3), "ok")
    assert said["batch"].startswith("8 rows x 3 process(es)")
    assert "config_file" in found(examine(options, config_file="no.yaml"), "FAIL")


def test_versions_out_of_range_or_missing():
    from importlib.metadata import PackageNotFoundError

    def version_of(name):
        if name in ("peft", "vllm"):
            raise PackageNotFoundError(name)
        return "1.15.0" if name == "trl" else "99"

    report = Report()
    versions = check_versions(report, version_of)
    said = found(report, "FAIL")
    assert re.fullmatch(r"1\.15\.0 is out of the range .*!=1\.15\.0.*", said["trl"])
    assert said["peft"].startswith("not installed (>=0.") and versions["peft"] is None
    assert "needed for use_vllm" in found(report, "ok")["vllm"]
    assert "trl" in stated_ranges() and not stated_ranges(["no-such-package"])


def test_an_import_that_breaks_is_named():
    report = Report()
    assert not check_imports(report, ["json", "no_such_module"])
    assert "ModuleNotFoundError" in found(report, "FAIL")["import no_such_module"]


def test_an_adapter_is_trained_on(options, model_dir, make_model, tmp_path):
    from peft import LoraConfig, get_peft_model

    model = make_model()
    model.name_or_path = model.config._name_or_path = str(model_dir)
    get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    report = examine([*options, "--model_name_or_path", str(tmp_path / "adapter"), "--merge_adapter", "true"])
    assert report.problems == 0
    assert found(report, "ok")["trained"].startswith(f"{2 * 4 * (32 + 32):,} (")


def test_an_adapter_that_cannot_be_made_leaves_the_memory_open(options):
    report = examine([*options, "--use_peft", "true", "--lora_target_modules", "qq_proj"])
    assert found(report, "warn")["memory"] == "not worked out: what is trained is not known"
    assert "trained" not in found(report, "ok") and "tokens of steps" in found(report, "ok")


def test_pictures_are_counted_as_tokens(vlm_dir, options):
    data = ["--data", "household-pictures", "--train_n", "8", "--model_name_or_path", str(vlm_dir)]
    length = ["--max_completion_length", "400"]
    report = examine([*options, *data, *length])
    said = found(report, "ok")
    assert "8 rows with 8 pictures" in said["prompts"] and "for pictures" in said["model"]
    assert int(re.search(r"up to (\d+) of them are pictures'", said["tokens of a prompt"])[1]) > 0
    assert {finding.check for finding in report.findings if finding.status == "FAIL"} <= {"positions"}
    frozen = found(examine([*options, *data, *length, "--freeze_modules", "lm_head"]), "ok")
    assert "freeze_modules" in frozen
