"""The tests that need a GPU, as far as a CPU can tell: their options exist, and the models they train can be made."""

import json
import subprocess
import sys

import pytest
import torch

from stepgrpo.arguments import parse_recipe
from stepgrpo.policy import lora_config
from stepgrpo.rewards.registry import load_rewards
from tests.gpu.models import ids_modulo_seven, save_vlm
from tests.gpu.runs import RUNS
from tests.gpu.starting import ROOT, launcher_options, recipe_options
from tests.test_configs import sizes


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_options_that_exist_and_fit_together(name, monkeypatch, tmp_path):
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    monkeypatch.chdir(ROOT)
    run = RUNS[name]
    # A CPU refuses bf16 through CUDA; the last of an option's values counts.
    options = [*recipe_options(run, tmp_path / "model", tmp_path / "out"), "--use_cpu", "true"]
    recipe, args, model_args = parse_recipe(run.recipe, options)
    assert (args.max_steps, args.save_steps, args.output_dir) == (run.steps, run.save_steps, str(tmp_path / "out"))
    assert args.bf16 and run.steps % run.save_steps == 0  # the log is read from the last checkpoint
    assert model_args.model_name_or_path == str(tmp_path / "model")
    lora_config(model_args)
    for reward in recipe.reward_funcs or []:
        assert reward == "verify" or load_rewards([reward])
    assert recipe.verify_model_path in (None, str(tmp_path / "model"))
    launcher = launch_command_parser().parse_args([*launcher_options(run), "recipe.py"])
    assert _validate_launch_command(launcher)[0].num_processes == 1


@pytest.mark.slow
def test_they_are_left_out_unless_they_are_named():
    def collected(*paths):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *paths]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120).stdout

    assert "test_gpu.py::test_qlora" in collected("tests/gpu")
    assert "test_gpu.py" not in collected("tests", "--ignore-glob=tests/test_*.py")


def test_the_reward_of_untrained_models_tells_completions_apart():
    assert ids_modulo_seven(completion_ids=[[1, 2], [7], []]) == [3.0, 0.0, 0.0]


@pytest.mark.slow
def test_a_model_of_the_large_ones_form_is_trained_by_its_options(monkeypatch, tmp_path):
    """Qwen2.5-VL-3B's options and configuration with fewer and narrower layers."""
    from stepgrpo.training import train_step_grpo

    config = sizes(256, 2, 512, 2, 1, 1000, True)
    config.vision_config.depth, config.vision_config.hidden_size, config.vision_config.intermediate_size = 2, 64, 128
    config.vision_config.num_heads, config.vision_config.fullatt_block_indexes = 2, [1]
    monkeypatch.chdir(ROOT)
    model = save_vlm(tmp_path / "model", config, "cpu")
    options = [*recipe_options(RUNS["large"], model, tmp_path / "out"), "--use_cpu", "true", "--bf16", "false"]
    options += ["--dtype", "float32", "--gradient_accumulation_steps", "4", "--max_completion_length", "8"]
    trainer = train_step_grpo(*parse_recipe("step_grpo", options))
    log = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert [entry["step"] for entry in log] == [1, 2] and all(entry["grad_norm"] > 0 for entry in log)
    saved = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert saved["r"] == 16 and torch.isfinite(torch.tensor([entry["loss"] for entry in log])).all()
