"""The command line of `stepgrpo evaluate`."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from stepgrpo import evaluation, evaluation_command, launch, modeling
from stepgrpo.evaluation import main
from stepgrpo.evaluation_arguments import parse_arguments
from stepgrpo.evaluation_files import check_folder, read_completions, write_whole
from stepgrpo.evaluation_report import format_groups, format_metrics, format_ways
from stepgrpo.generation import generate_plans
from stepgrpo.modeling import load_model, load_processing_class, load_tokenizer
from tests.conftest import plan_text
from tests.vlm import picture

FIND, OPEN = (35, "find a Tomato"), (139, "open the Fridge")


def row(*steps, **columns):
    truth = [{"action_id": action_id, "action_name": name} for action_id, name in steps]
    return {"prompt": [{"role": "user", "content": "go"}], "gt_action_close": truth, **columns}


@pytest.fixture
def model_dir(make_model, tiny_tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [row(FIND, id="a", task_type="x"), row(FIND, OPEN, id="b", task_type="y"), row(*[FIND] * 5, id="c")]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_table_has_a_column_per_model():
    table = format_metrics({"before": {"greedy/parsed": 0.5}, "after": {"greedy/parsed": 1.0, "sampled/parsed": 0.25}})
    lines = [line.split() for line in table.splitlines()]
    assert lines == [
        ["metric", "before", "after"],
        ["greedy/parsed", "50.0%", "100.0%"],
        ["sampled/parsed", "-", "25.0%"],
    ]


def test_table_of_one_model_and_of_its_groups():
    ways = format_ways({"greedy/parsed": 0.5, "sampled/parsed": 0.25, "sampled/pass@2": 1.0})
    assert [line.split() for line in ways.splitlines()] == [
        ["metric", "greedy", "sampled"],
        ["parsed", "50.0%", "25.0%"],
        ["pass@2", "-", "100.0%"],
    ]
    groups = {"1-4": {"rows": 12, "greedy/exact_match": 0.5, "greedy/parsed": 1.0}, "unknown": {"rows": 3}}
    lines = format_groups("length", groups).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [line.split() for line in lines] == [
        ["greedy"],
        ["length", "rows", "exact_match"],
        ["1-4", "12", "50.0%"],
        ["unknown", "3", "-"],
    ]
    assert format_groups("length", {"unknown": {"rows": 3}}).split() == ["length", "rows", "unknown", "3"]


def test_main_writes_metrics_of_a_saved_model(model_dir, tmp_path, capsys):
    out, data = tmp_path / "out", tmp_path / "rows.jsonl"
    data.write_text("\n".join([json.dumps(row(FIND)), "{broken", json.dumps({"instruction": "x"})]))
    args = ["--model", model_dir, "--data", data, "--out", out, "--max-new-tokens", 3, "--samples", 2]
    assert main(list(map(str, args))) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["greedy/exact_match"] == 0.0 and metrics["sampled/pass@2"] == 0.0 and metrics["rows"] == 1
    assert metrics["by_plan_length"]["1-4"]["rows"] == 1 and metrics["by_task_type"] == {}
    assert "1 of 3 rows" in metrics["data_report"] and "not JSON (first: line 2)" in metrics["data_report"]
    lines = [json.loads(line) for line in (out / "completions.jsonl").read_text().splitlines()]
    assert [(line["row"], line["way"], line["cut_off"]) for line in lines] == [
        (0, "greedy", True),
        (0, "sampled", True),
        (0, "sampled", True),
    ]
    assert sorted(path.name for path in out.iterdir()) == ["completions.jsonl", "metrics.json"]
    shown = capsys.readouterr()
    assert "step_accuracy" in shown.out and "2/2" in shown.err
    assert main([*map(str, args), "--quiet"]) == 0
    assert "2/2" not in capsys.readouterr().err


def test_main_says_what_is_wrong_with_the_data(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--model", "x", "--data", str(tmp_path / "none.jsonl"), "--out", str(tmp_path)])
    assert exit_.value.code == 2 and "nor a JSON-lines file" in capsys.readouterr().err


def test_main_says_what_is_wrong_with_the_model(data, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as exit_:
        main(["--model", str(tmp_path / "empty"), "--data", str(data), "--out", str(tmp_path / "out")])
    assert exit_.value.code == 2 and "stepgrpo evaluate: " in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_is_said_before_anything_is_read(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as exit_:
        main(["--model", "none", "--data", "none", "--out", str(tmp_path / "file" / "out")])
    assert exit_.value.code == 2 and "--out" in (said := capsys.readouterr().err) and "cannot be written" in said
    check_folder(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--samples", "-1", "samples=-1 must be a whole number of at least 0"),
        ("--n", "0", "n=0 must be a whole number of at least 1"),
        ("--n", "many", "n: invalid int value: 'many'"),
        ("--temperature", "0", "temperature=0.0 must be above 0"),
        ("--top-p", "1.5", "top_p=1.5 must be in (0, 1]"),
        ("--completions", "x", "Give either model or completions, a model or what one has written; both"),
        ("--dtype", "int8", "dtype='int8' is not a choice. Choose one of: auto, bfloat16"),
        ("--split", "", "split='' must be a text"),
        ("--sample", "3", "no such field: sample (did you mean samples?)"),
        ("--config", "none.yaml", "none.yaml"),
    ],
)
def test_wrong_options_are_named(tmp_path, capsys, option, value, said):
    with pytest.raises(SystemExit) as exit_:
        main(["--model", "m", "--data", "household", "--out", str(tmp_path / "out"), option, value])
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and said in error and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("data: x\nout: y\n", "Give either model or completions, a model or what one has written; neither"),
        ("data: x\nout: y\nmodel: m\nsampels: 3\nbatch: 2", "sampels (did you mean samples?)"),
        ("data: x\nout: y\nmodel: m\nsamples: 2.5", "samples=2.5 must be a whole number"),
        ("data: x\nout: y\nmodel: m\nbatch_size: null", "batch_size=None must be a whole number"),
        ("data: x\nout: 5\nmodel: m", "out=5 must be a text"),
        ("data: x\nout: y\nmodel: m\ntemperature: [1]", "temperature=[1] must be above 0"),
        ("out: y\nmodel: m", "required: --data"),
        ("- data", "must have one `field: value` on a line"),
        ("a: [", "expected the node content"),
    ],
)
def test_wrong_yaml_is_said(tmp_path, capsys, yaml, said):
    (tmp_path / "e.yaml").write_text(yaml)
    with pytest.raises(SystemExit) as exit_:
        parse_arguments(["--config", str(tmp_path / "e.yaml")])
    assert exit_.value.code == 2 and said in capsys.readouterr().err


def test_the_command_line_goes_before_the_yaml(tmp_path):
    file = tmp_path / "e.yaml"
    file.write_text(
        "data: x.jsonl\nout: y\ncompletions: written.jsonl\nsamples: 2\ntop_p: 1e-1\nn: null\nquiet: true\n"
    )
    for given in (["--config", str(file)], [f"--config={file}"]):
        args = parse_arguments([*given, "--samples", "3", "--max_new_tokens", "7"])
        expected = {"completions": ["written.jsonl"], "samples": 3, "top_p": 0.1, "n": None, "quiet": True}
        assert {name: getattr(args, name) for name in expected} == expected
        assert args.max_new_tokens == 7 and args.data == "x.jsonl" and args.temperature == 1.0
    assert parse_arguments(["--config", str(file), "--max-new-tokens", "8", "--quiet", "false"]).quiet is False


def test_the_example_config(capsys):
    path = Path(__file__).parents[1] / "configs" / "evaluate_household.yaml"
    args = parse_arguments(["--config", str(path), "--n", "2"])
    assert args.n == 2 and args.data == "household" and args.split == "test" and args.max_new_tokens == 160


def test_started_by_accelerate_where_that_is_asked_for(monkeypatch):
    started = []
    monkeypatch.setattr(
        launch.subprocess, "run", lambda command, check: started.append(command) or SimpleNamespace(returncode=5)
    )
    assert main(["--config_file", "a.yaml", "--config", "b.yaml", "--samples", "1", "--num_processes=2"]) == 5
    assert started[0][1:] == [
        *["-m", "accelerate.commands.launch", "--quiet", "--config_file", "a.yaml", "--num_processes", "2"],
        *["-m", "stepgrpo.launch", "evaluate", "--config", "b.yaml", "--samples", "1"],
    ]


def test_main_on_the_household(model_dir, tmp_path):
    args = ["--model", model_dir, "--data", "household", "--out", tmp_path, "--n", 2, "--max-new-tokens", 2]
    assert main([*map(str, args), "--samples", "0"]) == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["greedy/success"] == 0.0 and metrics["vocabulary"] == "household"
    assert sum(group["rows"] for group in metrics["by_task_type"].values()) == 2


def written_in(out):
    return [json.loads(line)["completion"] for line in (out / "completions.jsonl").read_text().splitlines()]


def test_an_adapter_is_measured_as_it_writes(model_dir, data, tmp_path):
    from peft import LoraConfig, get_peft_model

    options = {"init_lora_weights": False, "lora_alpha": 400, "task_type": "CAUSAL_LM"}
    lora = LoraConfig(target_modules=["v_proj", "down_proj"], **options)
    get_peft_model(load_model(model_dir), lora).save_pretrained(tmp_path / "adapter")
    for model in ("model", "adapter"):
        args = ["--model", tmp_path / model, "--data", data, "--out", tmp_path / f"of_{model}", "--samples", 0]
        assert main([*map(str, args), "--max_new_tokens", "6"]) == 0
    tokenizer, prompts = load_tokenizer(model_dir), [row(FIND)["prompt"]] * 3
    expected = generate_plans(load_model(tmp_path / "adapter"), tokenizer, prompts, 6, temperature=0.0)
    assert written_in(tmp_path / "of_adapter") == [text for [text] in expected]
    assert written_in(tmp_path / "of_adapter") != written_in(tmp_path / "of_model")


def test_a_vision_language_model_sees_the_rows_pictures(qwen2_5_vl_dir, tmp_path):
    paths = [str(tmp_path / f"{colour}.png") for colour in ("red", "blue")]
    for path in paths:
        picture(Path(path).stem, 56, 56).save(path)
    images = [paths[:1], paths[1:], paths, []]
    data, loud = tmp_path / "rows.jsonl", tmp_path / "model"
    data.write_text("\n".join(json.dumps(row(FIND, images=paths)) for paths in images))
    model, processor = load_model(qwen2_5_vl_dir), load_processing_class(qwen2_5_vl_dir)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight *= 6  # else an untrained model repeats one token whatever it sees
    model.save_pretrained(loud)
    processor.save_pretrained(loud)
    args = ["--model", loud, "--data", data, "--out", tmp_path / "out", "--samples", 1, "--max-new-tokens", 6]
    assert main([*map(str, args), "--batch-size", "3"]) == 0
    prompts = [row(FIND)["prompt"]] * 4
    expected = generate_plans(model, processor, prompts, 6, temperature=0.0, images=images)
    texts = written_in(tmp_path / "out")
    assert texts[:4] == [text for [text] in expected] and len(set(texts[:4])) == 4 and len(texts) == 8


def test_pictures_for_a_model_that_cannot_see_are_refused(model_dir, data, tmp_path, capsys):
    Image.new("RGB", (8, 8)).save(data.parent / "x.png")
    data.write_text(json.dumps(row(FIND, images=["x.png"])) + "\n" + json.dumps(row(FIND)))
    with pytest.raises(SystemExit) as exit_:
        main(["--model", str(model_dir), "--data", str(data), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert exit_.value.code == 2 and "1 of the 2 rows" in said and "is no vision-language model" in said
    args = ["--data", "household-pictures", "--n", "2", "--samples", "0", "--max-new-tokens", "2", "--images", "false"]
    assert main(["--model", str(model_dir), "--out", str(tmp_path / "out"), *args]) == 0
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["greedy/success"] == 0.0


def test_prompts_that_do_not_fit_their_pictures_are_named(qwen2_5_vl_dir, data, tmp_path, capsys):
    picture("red").save(data.parent / "x.png")
    two = [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "go"}]}]
    rows = [row(FIND, images=["x.png"]), row(FIND, images=["x.png"], id="odd"), row(FIND, images=["x.png"])]
    rows[1]["prompt"], rows[2]["prompt"] = two, "go"
    data.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SystemExit) as exit_:
        main(["--model", str(qwen2_5_vl_dir), "--data", str(data), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert exit_.value.code == 2 and "2 of 3 rows do not fit their pictures; the first, odd: Number of images" in said


def test_every_process_reads_all_weights(model_dir, data, tmp_path, monkeypatch):
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    seen = []

    def load(*args):
        seen.append(os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"])
        return load_model(*args)

    monkeypatch.setattr(modeling, "load_model", load)
    args = ["--model", model_dir, "--data", data, "--out", tmp_path / "out", "--samples", 0, "--max-new-tokens", 1]
    assert main(list(map(str, args))) == 0
    assert seen == ["false"] and os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"


def test_prompts_with_examples(model_dir, tmp_path, monkeypatch):
    prompts = []

    def write(model, tokenizer, rows, *args, **kwargs):
        prompts.extend(row["prompt"][-1]["content"] for row in rows)
        return [{"row": i, "way": "greedy", "completion": "", "cut_off": False} for i in range(len(rows))]

    monkeypatch.setattr(evaluation, "write_completions", write)
    template = tmp_path / "shown.txt"
    template.write_text("${examples}Now: ${instruction}")
    args = ["--data", "household", "--n", "3", "--template", template, "--examples", "2", "--out", tmp_path / "out"]
    assert main([*map(str, args), "--model", str(model_dir)]) == 0
    assert len(prompts) == 3 and all(prompt.count("executable_plan") == 2 for prompt in prompts)


def test_another_column_and_key(data, tmp_path, capsys):
    rows = [{"prompt": "go", "steps": [1, 2]}]
    data.write_text(json.dumps(rows[0]))
    file = tmp_path / "written.jsonl"
    file.write_text(json.dumps({"row": 0, "completion": '{"todo": [{"action_id": 1}, {"action_id": 2}]}'}))
    args = ["--completions", str(file), "--data", str(data), "--out", str(tmp_path), "--plan-key", "todo"]
    assert main([*args, "--gt-field", "steps"]) == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["greedy/exact_match"] == 1.0
    with pytest.raises(SystemExit):
        main([*args, "--gt-field", "stpes"])
    assert "gt_field='stpes' is no column" in (said := capsys.readouterr().err) and "prompt, steps" in said


def test_an_interrupted_evaluation_can_be_measured(model_dir, data, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    args = ["--data", str(data), "--out", str(out), "--max-new-tokens", "3", "--batch-size", "1", "--samples", "1"]
    add = evaluation_command.PartialCompletions.add

    def interrupted(self, record):
        add(self, record)
        if self.count == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(evaluation_command.PartialCompletions, "add", interrupted)
    assert main(["--model", str(model_dir), *args]) == 130
    partial = out / "completions.partial.jsonl"
    assert f"2 completions are in {partial}" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == [partial.name]
    assert main(["--completions", str(partial), *args]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["rows"] == 2 and metrics["greedy/cut_off"] == 1.0 and "sampled/parsed" not in metrics


def test_measuring_what_was_written_gives_the_same_metrics(model_dir, data, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    shared = ["--data", str(data), "--max-new-tokens", "4", "--samples", "2"]
    assert main(["--model", str(model_dir), *shared, "--out", str(one)]) == 0
    assert main(["--completions", str(one / "completions.jsonl"), *shared, "--out", str(two)]) == 0
    first, second = (json.loads((out / "metrics.json").read_text()) for out in (one, two))
    for name in ("seconds", "settings"):
        first.pop(name), second.pop(name)
    assert first == second and first["by_task_type"].keys() == {"x", "y", "unknown"}
    assert (one / "completions.jsonl").read_bytes() == (two / "completions.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: Expecting"),
        ('{"row": 0}', "line 2: expected"),
        ('{"row": true, "completion": ""}', "line 2: expected"),
        ('{"row": 2, "completion": ""}', "there is no row 2; the data gives 2"),
        ('{"row": 1, "completion": "", "id": "a"}', "row 1 is 'b' here, not 'a'"),
        ('{"row": 1, "completion": "", "way": "beam"}', "way is 'beam'"),
    ],
)
def test_completions_that_do_not_fit_are_named(tmp_path, line, said):
    file = tmp_path / "written.jsonl"
    file.write_text('{"row": 0, "completion": "\u2028"}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=r"written\.jsonl") as error:
        read_completions([file], [{"id": "a"}, {"id": "b"}])
    assert said in str(error.value)


def test_completions_are_put_in_order(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text('{"row": 1, "way": "sampled", "completion": "s"}\n{"row": 1, "completion": "b"}\n')
    second.write_text('\n{"row": 0, "completion": "a", "cut_off": true}\n')
    record = read_completions([first, second], [{}, {}])
    assert [item["completion"] for item in record] == ["a", "b", "s"] and record[0]["cut_off"] is True
    (tmp_path / "none").write_text("\n")
    with pytest.raises(ValueError, match="no completions"):
        read_completions([tmp_path / "none"], [{}])
    with pytest.raises(ValueError, match="cannot be read"):
        read_completions([tmp_path / "missing"], [{}])


def test_a_file_is_whole_or_as_it_was(tmp_path):
    file = tmp_path / "metrics.json"
    write_whole(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "new \udc80")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_completions_written_elsewhere_are_measured(data, tmp_path, capsys):
    file = tmp_path / "written.jsonl"
    texts = [plan_text([FIND]), plan_text([FIND]), plan_text([FIND] * 5)]
    lines = [json.dumps({"row": i, "completion": text}) for i, text in enumerate(texts)]
    file.write_text("\n".join(lines))
    # What `accelerate launch` runs in each process.
    args = ["--completions", str(file), "--data", str(data), "--out", str(tmp_path / "out")]
    assert launch.run("evaluate", args) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["greedy/exact_match"] == pytest.approx(2 / 3)
    assert metrics["greedy/prefix_share"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert metrics["by_plan_length"]["5-8"]["greedy/exact_match"] == 1.0
    out = capsys.readouterr().out
    assert "task type" in out and "plan length" in out
