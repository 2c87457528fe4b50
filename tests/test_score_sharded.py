"""Scoring with a model that is spread over processes: all run it equally often, with pictures where others have them."""

import copy
import os
import socket

import pytest
import torch

from stepgrpo.frozen import score_continuations
from stepgrpo.modeling import load_model, load_processing_class
from tests.gpu.starting import needs
from tests.test_score_continuations import CONTINUATIONS, PREFIXES, expected, make, prefix_of, same

SIZES = ((48, 16), "red")


class AmongOthers:
    """The accelerator of one of several processes; `others` say what they would have run."""

    device = torch.device("cpu")

    def __init__(self, *others):
        self.others, self.asked = others, []

    def gather(self, mine):
        self.asked.append(mine.tolist()[0])
        return torch.cat([mine, torch.tensor([[*other, *[0] * (4 - len(other))] for other in self.others])])


def kinds(model):
    """What each forward from now on runs: "picture" or "text"."""
    ran = []

    def record(module, args, inputs):
        ran.append("picture" if inputs.get("pixel_values") is not None else "text")

    model.register_forward_pre_hook(record, with_kwargs=True)
    return ran


@pytest.mark.parametrize(("other", "forwards"), [((0, 0, 0), 4), ((0, 0, 9), 9), ((0, 0, 4), 4)])
def test_processes_run_equally_often(other, forwards):
    model = make("qwen2")
    wanted = expected(model)
    ran, accelerator = kinds(model), AmongOthers(other, (0, 0, 2))
    same(score_continuations(model, PREFIXES, CONTINUATIONS, accelerator=accelerator), wanted)
    assert ran == ["text"] * forwards
    assert accelerator.asked == [
        [0, 0, 4, 1]
    ]  # one gather: no pictures, two prefixes with one batch each, nothing to show


def test_a_process_with_nothing_to_score_takes_part():
    model = make("qwen2")
    ran = kinds(model)
    assert score_continuations(model, [], [], accelerator=AmongOthers((0, 0, 3))) == ([], [])
    assert score_continuations(model, [[5]], [[[]]], accelerator=AmongOthers((0, 0, 1)))[0][0].shape == (0,)
    assert ran == ["text"] * 4


def test_pictures_are_run_where_others_have_them(vlm_dir):
    model, processor = load_model(vlm_dir).eval(), load_processing_class(vlm_dir)
    prefixes = [prefix_of(processor, []), prefix_of(processor, [SIZES])]
    texts = [[[9, 8, 7], [6]], [[9, 8, 7], [4, 3], [21, 22]]]
    wanted = score_continuations(model, prefixes, texts)
    wanted = [torch.stack(pair) for pair in zip(*wanted, strict=True)]
    ran, accelerator = kinds(model), AmongOthers((3, 2, 5))
    stand_in = prefix_of(processor, [((16, 16), "blue")])
    same(score_continuations(model, prefixes, texts, accelerator=accelerator, stand_in=stand_in, max_rows=1), wanted)
    # Mine: one prefix with a picture and three rows, two forwards of the other. So each of three pictures has three after it.
    assert accelerator.asked == [[1, 3, 2, 0]]
    assert ran == ["picture", "text", "text", "text"] * 3 + ["text"] * 5
    ran.clear()
    score_continuations(model, [], [], accelerator=AmongOthers((1, 1, 0)), stand_in=stand_in)
    assert ran == ["picture", "text"]
    ran.clear()  # a process's own picture does as well
    score_continuations(model, prefixes[1:], texts[1:], accelerator=AmongOthers((2, 1, 0)))
    assert ran == ["picture", "text"] * 2


@pytest.mark.parametrize("blind", [0, 1])
def test_pictures_without_anything_to_stand_in_for_them_are_refused_everywhere(blind):
    model = make("qwen2")
    ran = kinds(model)
    with pytest.raises(ValueError, match="pass one as `stand_in`"):
        score_continuations(model, PREFIXES, CONTINUATIONS, accelerator=AmongOthers((1, 1, 0, blind)))
    assert ran == []


class Engine(torch.nn.DataParallel):
    """As DeepSpeed's: the model inside, its attributes passed through, and a `config` that is not the model's."""

    config = "ds_config.json"

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def test_an_engine_around_the_model():
    model = make("gemma2")
    wanted = expected(model)
    accelerator = AmongOthers((0, 0, 0))
    same(score_continuations(Engine(model), PREFIXES, CONTINUATIONS, accelerator=accelerator), wanted)


def fsdp2(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def zero3(model):
    import deepspeed

    deepspeed.init_distributed("gloo")
    # No weight is small enough to stay whole.
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    engine, *_ = deepspeed.initialize(
        model=model, config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    )
    assert all(parameter.numel() == 0 for parameter in engine.parameters())
    return engine


def score_half(rank, shard, port, out):
    """One of two processes that hold half of each weight and score different numbers of prefixes."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu"}
    from accelerate import Accelerator

    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = make("gemma2").requires_grad_(False)
    wanted = expected(copy.deepcopy(model))
    model = shard(model)
    mine = slice(0, 2) if rank else slice(0, 0)  # the first process has nothing, the second six forwards
    for _ in range(2):  # ZeRO-3 follows the order of modules that it saw the first time
        found = score_continuations(model, PREFIXES[mine], CONTINUATIONS[mine], max_rows=1, accelerator=accelerator)
        same(found, wanted if rank else [])
    torch.save(len(found[0]), f"{out}/{rank}")
    accelerator.end_training()


@pytest.mark.slow
@pytest.mark.parametrize("shard", [fsdp2, pytest.param(zero3, marks=needs("deepspeed"))])
def test_two_processes_with_half_of_each_weight(shard, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(score_half, (shard, port, tmp_path), nprocs=2)
    assert [torch.load(tmp_path / str(rank)) for rank in range(2)] == [0, 5]
