"""Two processes (gloo) through `accelerate launch` give what one process gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "accelerate_configs/cpu_2proc.yaml"


def run(out, variant, two):
    out.mkdir()
    script = [str(ROOT / "tests" / "distributed_run.py"), str(out), variant, "2" if two else "1"]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", CONFIG]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_LOG_LEVEL": "warning"}
    port = ["--main_process_port", "0"]
    command = [*launch, *port, *script] if two else [sys.executable, *script]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(out / "result.pt", weights_only=False)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["none", "position", "anchor", "unparsed"])
def test_two_processes_equal_one(variant, tmp_path):
    one, two = run(tmp_path / "one", variant, False), run(tmp_path / "two", variant, True)
    for name, weight in one["weights"].items():
        assert torch.allclose(weight, two["weights"][name], atol=1e-6), name
    for mine, theirs in zip(one["log"][:-1], two["log"][:-1], strict=True):
        keys = {key for key in mine if key.startswith("step_credit/") and not key.endswith("seconds")}
        assert len(keys) > 10
        for key in keys:
            assert mine[key] == pytest.approx(theirs[key], abs=1e-5), key
