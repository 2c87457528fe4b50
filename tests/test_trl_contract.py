"""The private surface of TRL that `trainer.py` stands on. When TRL moves, this says where."""

import inspect

import pytest
import torch
import trl
from trl import GRPOTrainer

MOVED = f"TRL {trl.__version__} has moved {{}}; adapt stepgrpo/trainer.py and the range in setup.cfg."


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        ("_set_signature_columns_if_needed", ["self"]),
    ],
)
def test_overridden_methods(name, parameters):
    method = getattr(GRPOTrainer, name, None)
    assert method is not None, MOVED.format(f"GRPOTrainer.{name}")
    assert list(inspect.signature(method).parameters) == parameters, MOVED.format(f"the arguments of {name}")


def test_our_hook_is_not_taken():
    assert not hasattr(GRPOTrainer, "_compute_advantages"), MOVED.format("in: it has its own _compute_advantages now")


def test_loss_takes_an_advantage_per_token():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    assert "advantages.dim() == 1" in source, MOVED.format("the (B, T) advantages of _compute_loss")


def test_generation_returns_what_the_step_term_reads():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    for key in ("advantages", "completion_ids", "completion_mask", "tool_mask"):
        assert f'"{key}"' in source, MOVED.format(f"the output {key!r}")
    order = source.index("_calculate_rewards(") < source.index("output = {")
    assert order, MOVED.format("the rewards behind the outputs")


def test_batches_keep_token_advantages():
    from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

    batch = {"advantages": torch.arange(8.0).view(4, 2), "completion_ids": torch.arange(8).view(4, 2)}
    shuffled = shuffle_sequence_dict(batch)
    assert torch.equal(shuffled["advantages"].long(), shuffled["completion_ids"]), MOVED.format(
        "shuffle_sequence_dict"
    )
    for part in split_tensor_dict(shuffled, 2):
        assert torch.equal(part["advantages"].long(), part["completion_ids"]), MOVED.format("split_tensor_dict")
