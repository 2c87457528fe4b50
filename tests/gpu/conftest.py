"""Tests that need a GPU: each starts a recipe by `accelerate launch`, as a user does. `make test-gpu` runs them.

They skip, with the reason, where there is no GPU or a package is missing.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 10 * 60
SFT = ["--max_steps", 200, "--per_device_train_batch_size", 32, "--learning_rate", 2e-3, "--train_n", 6400]
COMMON = ["--report_to", "none", "--gradient_checkpointing", "false", "--disable_tqdm", "true", "--logging_steps", 1]
GRPO = ["--data", "household", "--train_n", 64, "--step_match_mode", "first_error", "--learning_rate", 1e-4]
GRPO += ["--per_device_train_batch_size", 16, "--num_generations", 8, "--max_completion_length", 160, "--bf16", "true"]


def pytest_collection_modifyitems(items):
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    if not mine:
        return
    import torch

    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def needs(package):
    """Skips a test where a package is not installed."""
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def launch(recipe, config, out, *options, steps=3):
    """Runs a recipe in one process, and gives back its log: one entry an update, and what it printed.

    Args:
        recipe: `sft` or `step_grpo`.
        config: name of a file in accelerate_configs.
        out: output directory.
        options: of the recipe.
        steps: updates; a checkpoint is saved after the last.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1", "--main_process_port", "0"]
    command += ["--config_file", str(ROOT / "accelerate_configs" / f"{config}.yaml"), f"recipes/{recipe}.py"]
    command += ["--output_dir", out, "--max_steps", steps, "--save_strategy", "steps", "--save_steps", steps, *options]
    environment = {"HF_HUB_OFFLINE": "1", **os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=MINUTES
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    state = json.loads((Path(out) / f"checkpoint-{steps}" / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry], done.stdout


def save_planner(path):
    """An untrained planner and its tokenizer, as of the demo."""
    from stepgrpo.data.household import household_rows, plan_json
    from stepgrpo.demo.settings import PlannerSize
    from stepgrpo.demo.tokenizer import train_tokenizer
    from stepgrpo.demo.warmstart import build_planner

    rows = household_rows("train", 400, seed=0)
    texts = [row["prompt"][0]["content"] for row in rows] + [plan_json(row["gt_action_close"]) for row in rows]
    tokenizer = train_tokenizer(texts)
    build_planner(tokenizer, PlannerSize(), seed=0).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def planner(tmp_path_factory):
    """A planner that was trained on one GPU until it writes plans, some of them right."""
    start, out = (tmp_path_factory.mktemp(name) for name in ("start", "planner"))
    save_planner(start)
    options = [*COMMON, *SFT, "--model_name_or_path", start, "--data", "household", "--max_length", 512]
    log, _ = launch("sft", "single_gpu", out, *options, steps=200)
    assert log[-1]["loss"] < 0.5 * log[0]["loss"]
    return out
