"""The recipes: training from a data spec."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stepgrpo.arguments import parse_recipe
from stepgrpo.evaluation_command import main
from stepgrpo.modeling import load_model
from stepgrpo.rewards.plan import lcs_reward
from stepgrpo.rewards.registry import load_rewards
from stepgrpo.training import train_sft, train_step_grpo

ROOT = Path(__file__).parents[1]
COMMON = ["--report_to", "none", "--max_steps", "1", "--save_strategy", "no", "--use_cpu", "true", "--bf16", "false"]
GRPO = ["--per_device_train_batch_size", "2", "--num_generations", "2", "--max_completion_length", "8"]


def parse(recipe, *options):
    return parse_recipe(recipe, [str(option) for option in options])


@pytest.fixture
def model_dir(make_model, tiny_tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_reward_names():
    assert (
        load_rewards(["lcs", "stepgrpo.rewards.plan.lcs_reward", "stepgrpo.rewards.plan:lcs_reward"])
        == [lcs_reward] * 3
    )
    for wrong in ("lsc", "stepgrpo.rewards.plan.lsc_reward", "stepgrpo.rewards.plan", "no.such.module"):
        with pytest.raises(ValueError, match=r"reward_funcs: '.*' is no function.*Choose from exact_match, household"):
            load_rewards([wrong])


def test_supervised_training_on_the_household(model_dir, tmp_path):
    out = tmp_path / "out"
    options = ["--model_name_or_path", model_dir, "--output_dir", out, "--train_n", 4, "--learning_rate", 1e-2]
    trainer = train_sft(*parse("sft", *options, *COMMON, "--per_device_train_batch_size", 2))
    assert trainer.state.global_step == 1 and trainer.state.log_history[-1]["train_loss"] > 1
    before, after = (load_model(path).model.embed_tokens.weight for path in (model_dir, out))
    assert not torch.equal(before, after)


def test_an_adapter_is_trained_on_by_the_next_stage(model_dir, tmp_path, caplog):
    rows = [{"prompt": "find", "ground_truth": [1, 2]}, {"prompt": "open", "ground_truth": [1] * 9}, {"no": "prompt"}]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    lora = ["--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj", "--data", data, "--max_plan_steps", 3]
    sft, rl = tmp_path / "sft", tmp_path / "rl"
    with caplog.at_level("INFO", "stepgrpo.training"):
        train_sft(*parse("sft", *COMMON, *lora, "--model_name_or_path", model_dir, "--output_dir", sft))
    assert "1 of 3 rows" in caplog.text and "plan of more than 3 steps" in caplog.text and "no prompt" in caplog.text
    options = ["--model_name_or_path", sft, "--output_dir", rl, "--reward_funcs", "exact_match", "lcs"]
    trainer = train_step_grpo(*parse("step_grpo", *COMMON, *GRPO, *lora, *options))
    assert trainer.reward_func_names == ["exact_match_reward", "lcs_reward"]
    first, second = ((path / "adapter_config.json").read_text() for path in (sft, rl))
    assert (
        json.loads(first)["base_model_name_or_path"] == json.loads(second)["base_model_name_or_path"] == str(model_dir)
    )


def test_the_default_reward_goes_by_the_data(model_dir, tmp_path):
    options = [*COMMON, *GRPO, "--model_name_or_path", model_dir, "--output_dir", tmp_path / "out", "--train_n", 4]
    assert train_step_grpo(*parse("step_grpo", *options)).reward_func_names == ["household_reward"]


def test_the_alfred_recipe_says_where_the_data_is():
    done = subprocess.run(
        [sys.executable, "recipes/alfred_smollm2.py"], cwd=ROOT, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 2 and "askforalfred.com" in done.stderr and "json_2.1.0" in done.stderr


def launch(*command):
    start = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate_configs/cpu_2proc.yaml"]
    command = [*start, "--main_process_port", "0", *map(str, command)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_processes_that_do_not_know_of_each_other_are_refused(model_dir, tmp_path, monkeypatch):
    options = [*COMMON, "--model_name_or_path", model_dir, "--output_dir", tmp_path / "out"]
    for recipe, train in (("sft", train_sft), ("step_grpo", train_step_grpo)):
        arguments = parse(recipe, *options)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ValueError, match="2 processes were started, but this one knows of no other"):
            train(*arguments)
        monkeypatch.delenv("WORLD_SIZE")


def test_a_model_without_a_chat_template_is_refused(model_dir, tmp_path, capsys):
    (model_dir / "chat_template.jinja").unlink()
    options = [*COMMON, "--model_name_or_path", model_dir, "--output_dir", tmp_path / "out", "--train_n", "2"]
    for recipe, train in (("sft", train_sft), ("step_grpo", train_step_grpo)):
        more = GRPO if recipe == "step_grpo" else []
        with pytest.raises(ValueError, match=f"{model_dir}' has no chat template"):
            train(*parse(recipe, *options, *more))
    with pytest.raises(SystemExit, match="2"):
        main(["--model", str(model_dir), "--data", "household", "--n", "1", "--out", str(tmp_path / "eval")])
    assert "has no chat template" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_train(model_dir, tmp_path):
    out = tmp_path / "out"
    options = [*COMMON, *GRPO, "--output_dir", out, "--train_n", "8", "--step_baseline", "position"]
    if not torch.accelerator.is_available():
        options = [option for option in options if option not in ("--use_cpu", "true")]  # then the recipe sets it
    assert launch("recipes/step_grpo.py", "--model_name_or_path", model_dir, *options).count("Saved in") == 1
    assert (out / "model.safetensors").is_file()


@pytest.mark.slow
def test_two_processes_evaluate_as_one_does(model_dir, tmp_path):
    options = ["--model", model_dir, "--data", "household", "--n", 3, "--samples", 2, "--max-new-tokens", 8]
    assert launch("recipes/evaluate.py", *options, "--out", tmp_path / "two").count("metrics.json") == 1
    assert main([*map(str, options), "--out", str(tmp_path / "one"), "--device", "cpu"]) == 0
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "completions.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert len(one) == 9 and one[:3] == two[:3] and [item["row"] for item in one] == [item["row"] for item in two]
    samples = [item["completion"] for item in two[3:]]
    assert len(set(samples)) == len(samples)


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
