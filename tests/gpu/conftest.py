"""The models that tests on a GPU start from, made once."""

import pytest

from tests.gpu.models import save_planner, save_vlm
from tests.gpu.runs import PLANNER
from tests.gpu.starting import launch


@pytest.fixture(scope="session")
def planner(tmp_path_factory):
    """A planner that was trained on one GPU until it writes plans, some of them right."""
    start, out = (tmp_path_factory.mktemp(name) for name in ("start", "planner"))
    log, _ = launch(PLANNER, save_planner(start), out)
    assert log[-1]["loss"] < 0.5 * log[0]["loss"]
    return out


@pytest.fixture(scope="session")
def large_vlm(tmp_path_factory):
    """Qwen2.5-VL-3B's shape with random weights."""
    import torch

    from tests.test_configs import sizes

    path = save_vlm(tmp_path_factory.mktemp("large_vlm"), sizes(2048, 36, 11008, 16, 2, 151936, True))
    torch.cuda.empty_cache()  # training has the GPU to itself
    return path
