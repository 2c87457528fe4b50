"""Starts a recipe by `accelerate launch` in one process, as a user does."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 5 * 60  # of one launch


def needs(package):
    """Skips a test where a package is not installed."""
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def recipe_options(run, model, out):
    """All options of a run's recipe, as texts."""
    saving = ["--save_strategy", "steps", "--save_steps", str(run.save_steps)]
    # A `--config` in the run's own options may come anywhere; the command line wins over the file.
    return [*run.filled(model), "--output_dir", str(out), "--max_steps", str(run.steps), *saving]


def launcher_options(run):
    """All options of `accelerate launch`, as texts; the script is not among them."""
    config = ROOT / "accelerate_configs" / f"{run.config}.yaml"
    return ["--config_file", str(config), "--num_processes", "1", "--main_process_port", "0"]


def launch(run, model, out):
    """Trains in one process.

    Args:
        run: a `Run`.
        model: directory of the model that is trained.
        out: output directory.

    Returns:
        The log, one entry an update, and what was printed.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", *launcher_options(run)]
    command += [f"recipes/{run.recipe}.py", *recipe_options(run, model, out)]
    environment = {"HF_HUB_OFFLINE": "1", **os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    state = json.loads((Path(out) / f"checkpoint-{run.steps}" / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry], done.stdout
