"""Two processes (gloo) through `accelerate launch` give what one process gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "accelerate_configs/cpu_2proc.yaml"


def start(out, variant, two):
    out.mkdir()
    script = [str(ROOT / "tests" / "distributed_run.py"), str(out), variant, "2" if two else "1"]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", CONFIG]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_LOG_LEVEL": "warning"}
    port = ["--main_process_port", "0"]
    command = [*launch, *port, *script] if two else [sys.executable, *script]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def run(out, variant, two):
    done = start(out, variant, two)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(out / "result.pt", weights_only=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", ["none", "position", "anchor", "unparsed", "verify", "teacher", "teacher_unparsed"]
)
def test_two_processes_equal_one(variant, tmp_path):
    one, two = run(tmp_path / "one", variant, False), run(tmp_path / "two", variant, True)
    for name, weight in one["weights"].items():
        assert torch.allclose(weight, two["weights"][name], atol=1e-6), name
    for mine, theirs in zip(one["log"][:-1], two["log"][:-1], strict=True):
        counted = ("step_credit/", "step_teacher/", "verify/", "rewards/")
        keys = {key for key in mine if key.startswith(counted) and not key.endswith("seconds")}
        assert ("verify/answer_mass" in keys) is (variant == "verify")
        assert ("step_teacher/difference_std" in keys) is variant.startswith("teacher")
        assert len(keys) > 10
        for key in keys:
            assert mine[key] == pytest.approx(theirs[key], abs=1e-5), key


@pytest.mark.slow
def test_a_teacher_that_fails_on_one_process_stops_both_with_the_reason(tmp_path):
    done = start(tmp_path / "out", "teacher_failing", True)
    assert done.returncode != 0
    assert "not finite" in done.stderr and "None of them here" in done.stderr and "step_on_error: skip" in done.stderr


@pytest.mark.slow
def test_a_judge_that_fails_on_one_process_stops_both_with_the_reason(tmp_path):
    done = start(tmp_path / "out", "failing", True)
    assert done.returncode != 0
    assert "NoneType" in done.stderr and "None of them here" in done.stderr and "step_on_error: skip" in done.stderr
