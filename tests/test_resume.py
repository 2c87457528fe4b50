"""A run that goes on from a checkpoint equals one that never stopped, to the last bit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from stepgrpo.arguments import parse_recipe
from stepgrpo.resume import AUTO, find_checkpoint, load_rollouts, save_rollouts, skip_epochs
from stepgrpo.training import train_step_grpo
from tests.scripted import COMPLETIONS, GROUND_TRUTH, ScriptedRollout, make_trainer, scripted_rewards

PROMPTS = (
    "Put a tomato in the fridge.",
    "Find it.",
    "Open the fridge.",
    "Pick up the tomato.",
    "Go.",
    "Find a fridge.",
)


def prompts():
    gt = [{"action_id": i, "action_name": name} for i, name in GROUND_TRUTH]
    rows = [{"prompt": [{"role": "user", "content": text}], "gt_action_close": gt} for text in PROMPTS]
    return Dataset.from_list(rows)


class DrawnRollout(ScriptedRollout):
    """Completions drawn from those of the scripted trainer, among them right, wrong and broken plans."""

    def __call__(self, prompts, trainer):
        self.completions = [COMPLETIONS[i] for i in torch.randint(len(COMPLETIONS), (len(prompts),))]
        return super().__call__(prompts, trainer)


def train(make_model, tokenizer, path, resume=None, sampled=False, **options):
    """Eight updates of two prompts each, three an epoch; on completions that are drawn, or sampled from the model."""
    if not sampled:
        options |= {"rollout_func": DrawnRollout(tokenizer), "reward_funcs": scripted_rewards}
    trainer = make_trainer(
        make_model(),
        tokenizer,
        path,
        scripted=False,
        train_dataset=prompts(),
        shuffle_dataset=True,
        **{
            "num_generations": 2,
            "per_device_train_batch_size": 4,
            "max_completion_length": 6,
            "max_steps": 8,
            "learning_rate": 1e-3,
            "save_strategy": "steps",
            "save_steps": 1,
            **options,
        },
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer):
    return {name: weight.clone() for name, weight in trainer.model.named_parameters() if weight.requires_grad}


VARIANTS = {
    # (options, checkpoints to go on from)
    "sampled": ({"sampled": True}, (2, 3)),  # within the first epoch and at its end
    "drawn": ({}, (2, 3, 5)),  # in the second too
    "accumulated": ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, (4,)),
    # Two updates on each of two batches that were generated at once: 4 updates a generation.
    "reused": ({"per_device_train_batch_size": 2, "steps_per_generation": 2, "num_iterations": 2}, (2, 5, 7)),
    "two epochs a generation": ({"num_iterations": 2, "step_baseline": "position"}, (7,)),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_equals_an_uninterrupted_one(variant, make_model, tiny_tokenizer, tmp_path):
    options, steps = VARIANTS[variant]
    whole = train(make_model, tiny_tokenizer, tmp_path / "whole", **options)
    for step in steps:
        checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
        resumed = train(make_model, tiny_tokenizer, tmp_path / f"resumed-{step}", checkpoint, **options)
        assert resumed.state.global_step == 8
        for name, weight in weights(whole).items():
            assert torch.equal(weight, weights(resumed)[name]), (step, name)
        mine, theirs = (
            [{k: v for k, v in entry.items() if "time" not in k and "seconds" not in k} for entry in log[:-1]]
            for log in (whole.state.log_history, resumed.state.log_history)
        )
        assert len(mine) == 8 and mine == theirs
    credited = [entry["step_credit/tokens"] for entry in mine if "step_credit/tokens" in entry]
    assert (max(credited) > 0.1) is not options.get("sampled", False)


def test_without_its_rollouts_a_run_differs_and_says_so(make_model, tiny_tokenizer, tmp_path, caplog):
    whole = train(make_model, tiny_tokenizer, tmp_path / "whole", **VARIANTS["reused"][0])
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    (checkpoint / "rollouts_0_of_1.pt").unlink()
    resumed = train(make_model, tiny_tokenizer, tmp_path / "resumed", str(checkpoint), **VARIANTS["reused"][0])
    assert "no rollouts of this many processes, 1" in caplog.text and resumed.state.global_step == 8
    assert any(not torch.equal(weight, weights(resumed)[name]) for name, weight in weights(whole).items())


def test_an_adapter_with_dropout_is_resumed_exactly(make_model, tiny_tokenizer, tmp_path):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.2, task_type="CAUSAL_LM")
    whole = train(make_model, tiny_tokenizer, tmp_path / "whole", peft_config=lora)
    checkpoint = str(tmp_path / "whole" / "checkpoint-4")
    resumed = train(make_model, tiny_tokenizer, tmp_path / "resumed", checkpoint, peft_config=lora)
    assert len(weights(whole)) == 8 and all("lora_" in name for name in weights(whole))
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(resumed)[name]), name


def test_supervised_training_is_resumed_exactly(make_model, tiny_tokenizer, tmp_path):
    data = Dataset.from_list([{"prompt": text, "completion": text[::-1]} for text in PROMPTS])

    def sft(path, resume=None):
        args = SFTConfig(
            str(path),
            per_device_train_batch_size=2,
            max_steps=5,
            save_steps=1,
            report_to="none",
            use_cpu=True,
            bf16=False,
        )
        trainer = SFTTrainer(make_model(), args, train_dataset=data, processing_class=tiny_tokenizer)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = sft(tmp_path / "whole")
    for step in (2, 4):
        resumed = sft(tmp_path / f"resumed-{step}", str(tmp_path / "whole" / f"checkpoint-{step}"))
        for name, weight in weights(whole).items():
            assert torch.equal(weight, weights(resumed)[name]), (step, name)


def checkpoint(folder, whole=True):
    folder.mkdir()
    if whole:
        (folder / "trainer_state.json").write_text("{}")
    return str(folder)


def test_the_checkpoint_is_found(tmp_path, caplog):
    for value in (None, False, "false", "No", "none", ""):
        assert find_checkpoint(value, tmp_path) is None
    assert find_checkpoint(AUTO, tmp_path) is None and find_checkpoint("auto", tmp_path / "no such folder") is None
    with pytest.raises(
        ValueError, match=r"resume_from_checkpoint is true, but output_dir=.* has no whole checkpoint-N folder"
    ):
        find_checkpoint(True, tmp_path)
    ninth, tenth = (checkpoint(tmp_path / f"checkpoint-{n}") for n in (9, 10))
    checkpoint(tmp_path / "checkpoint-11", whole=False)
    for value in (True, "true", "True", "last", "auto"):
        assert find_checkpoint(value, tmp_path) == tenth
    assert "checkpoint-11" in caplog.text
    assert find_checkpoint(ninth, tmp_path) == ninth
    with pytest.raises(ValueError, match=r"'nowhere' is no checkpoint.*checkpoint-9, .*checkpoint-10"):
        find_checkpoint("nowhere", tmp_path)


def test_rollouts_are_saved_a_process(tmp_path):
    assert load_rollouts(tmp_path, 0, 2, "cpu") is None
    batch = {"advantages": torch.arange(4.0), "num_images": [1, 0], "old_per_token_logps": None}
    save_rollouts(tmp_path / "new", 0, 2, 3, [batch])
    save_rollouts(tmp_path / "new", 1, 2, 4, None)
    step, (loaded,) = load_rollouts(tmp_path / "new", 0, 2, torch.device("cpu:0"))
    assert step == 3 and torch.equal(loaded.pop("advantages"), batch.pop("advantages")) and loaded == batch
    assert load_rollouts(tmp_path / "new", 1, 2, "cpu") == (4, None)
    assert load_rollouts(tmp_path / "new", 0, 1, "cpu") is None  # of another number of processes


def test_epochs_that_are_over_are_skipped():
    from trl.trainer.utils import RepeatSampler

    def sampler(**options):
        return RepeatSampler(range(7), 1, seed=3, **options)

    steady = sampler()
    epochs = [list(steady) for _ in range(3)]
    late = sampler()
    skip_epochs(late, 2)
    assert list(late) == epochs[2] != epochs[0]
    in_order = sampler(shuffle=False)
    skip_epochs(in_order, 2)
    assert list(in_order) == list(range(7))
    skip_epochs(None, 2)


RECIPE = [
    *("--use_cpu", "true", "--bf16", "false", "--report_to", "none", "--train_n", "4", "--save_steps", "1"),
    *("--per_device_train_batch_size", "2", "--num_generations", "2", "--max_completion_length", "8"),
    *("--reward_funcs", "tests.test_launch.characters", "--lr_scheduler_type", "constant", "--learning_rate", "1e-3"),
    # Two updates a generation; a checkpoint in between has rollouts that are not used up.
    *("--steps_per_generation", "2", "--temperature", "2", "--logging_steps", "1"),
]


@pytest.fixture
def model_dir(make_model, tiny_tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_recipe_resumes_from_the_last_checkpoint_in_its_folder(model_dir, tmp_path):
    def run(out, *options):
        given = [*RECIPE, "--model_name_or_path", model_dir, "--output_dir", tmp_path / out, *options]
        return train_step_grpo(*parse_recipe("step_grpo", [str(option) for option in given]))

    whole = run("whole", "--max_steps", 3)
    run("stopped", "--max_steps", 1)
    (tmp_path / "stopped" / "checkpoint-9").mkdir()  # a run that was stopped while it wrote
    resumed = run("stopped", "--max_steps", 3, "--resume_from_checkpoint", "true")
    assert [entry["step"] for entry in resumed.state.log_history[:-1]] == [1, 2, 3]
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(resumed)[name]), name


@pytest.mark.slow
def test_two_processes_resume_each_its_own_rollouts(model_dir, tmp_path):
    from safetensors.torch import load_file

    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}

    def run(out, *options):
        command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file"]
        command += ["accelerate_configs/cpu_2proc.yaml", "recipes/step_grpo.py", *RECIPE, "--max_steps", "4"]
        command += ["--model_name_or_path", str(model_dir), "--output_dir", str(tmp_path / out), *options]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return load_file(tmp_path / out / "model.safetensors")

    whole = run("whole")
    checkpoint = tmp_path / "whole" / "checkpoint-1"
    rollouts = [load_rollouts(checkpoint, rank, 2, "cpu")[1][1]["completion_ids"] for rank in (0, 1)]
    assert rollouts[0].shape != rollouts[1].shape or not torch.equal(*rollouts)
    resumed = run("resumed", "--resume_from_checkpoint", str(checkpoint))
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())
    (
        checkpoint / "rollouts_1_of_2.pt"
    ).unlink()  # now one process has rollouts: it must not train while the other generates
    run("one_left", "--resume_from_checkpoint", str(checkpoint))
    start = load_file(checkpoint / "model.safetensors")
    assert any(not torch.equal(weight, start[name]) for name, weight in whole.items())


def test_a_copied_checkpoint_goes_on(make_model, tiny_tokenizer, tmp_path):
    """`true` from YAML or the command line finds the last one in output_dir."""
    train(make_model, tiny_tokenizer, tmp_path / "first", max_steps=2)
    shutil.copytree(tmp_path / "first" / "checkpoint-2", tmp_path / "second" / "checkpoint-2")
    found = find_checkpoint("true", tmp_path / "second")
    trainer = train(make_model, tiny_tokenizer, tmp_path / "second", found, max_steps=3)
    assert trainer.state.global_step == 3
    state = json.loads((tmp_path / "second" / "checkpoint-3" / "trainer_state.json").read_text())
    assert [entry["step"] for entry in state["log_history"]] == [1, 2, 3]
