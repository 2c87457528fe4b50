"""Every way to train on GPUs, with one of them and one process. `make test-gpu` runs these; the runs are in runs.py.

They skip, with the reason, where there is no GPU or a package is missing.
"""

import math
import shutil

import pytest
import torch

from tests.gpu import runs
from tests.gpu.checks import check_log, check_merged, check_weights
from tests.gpu.starting import launch, needs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_one_gpu(planner, tmp_path):
    log, _ = launch(runs.ONE_GPU, planner, tmp_path)
    check_log(log, 3)
    check_weights(planner, tmp_path)


@pytest.mark.parametrize(
    "config",
    [pytest.param("zero2", marks=needs("deepspeed")), pytest.param("zero3", marks=needs("deepspeed")), "fsdp2"],
)
def test_spread_over_gpus_with_a_judge(config, planner, tmp_path):
    log, _ = launch(runs.SPREAD[config], planner, tmp_path)
    check_log(log, 3)
    assert all(math.isfinite(entry["verify/answer_mass"]) for entry in log)
    check_weights(planner, tmp_path)


@needs("deepspeed")
def test_resuming_under_zero2(planner, tmp_path):
    whole, _ = launch(runs.WHOLE, planner, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "resumed" / "checkpoint-2")
    resumed, _ = launch(runs.RESUMED, planner, tmp_path / "resumed")
    assert [entry["step"] for entry in resumed] == [1, 2, 3, 4]
    # The third update's rollouts come from the weights and random numbers of the checkpoint. The fourth's come after a
    # backward pass, which a GPU need not repeat bit for bit.
    assert resumed[2]["reward"] == pytest.approx(whole[2]["reward"], abs=1e-3)
    assert resumed[2]["completions/mean_length"] == whole[2]["completions/mean_length"]
    assert math.isfinite(resumed[3]["loss"])


@needs("deepspeed")
def test_an_adapter_under_zero3_is_trained_on_and_merged(planner, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    launch(runs.ADAPTER, planner, first)
    log, printed = launch(runs.ADAPTER_AGAIN, first, second)
    check_log(log, 3)
    assert "Merged in" in printed
    check_merged(planner, second)


@needs("bitsandbytes")
def test_qlora(planner, tmp_path):
    log, printed = launch(runs.QLORA, planner, tmp_path)
    check_log(log, 3, credited=False)  # four bits are few for a model this small: it may write no plan
    assert "Merged in" in printed
    check_merged(planner, tmp_path)


@needs("vllm")
def test_vllm_on_the_same_gpu(planner, tmp_path):
    log, _ = launch(runs.COLOCATED, planner, tmp_path)
    check_log(log, 3)
    check_weights(planner, tmp_path)


@needs("torchvision")
@pytest.mark.parametrize("quantized", [False, pytest.param(True, marks=needs("bitsandbytes"))])
def test_a_vision_language_model_of_three_billion_weights(quantized, large_vlm, tmp_path):
    log, _ = launch(runs.LARGE[quantized], large_vlm, tmp_path)
    check_log(log, 2, credited=False)  # untrained: it writes no plan
