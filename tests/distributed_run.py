"""Trains the scripted trainer and writes its weights and log; started by tests/test_distributed.py."""

import sys

import torch

from stepgrpo import TeacherLogpCallback, VerifyReward
from stepgrpo.rewards.plan import exact_match_reward
from tests import conftest
from tests.scripted import COMPLETIONS, ScriptedRollout, make_trainer, rows


def main(out, variant, processes):
    tokenizer = conftest.tiny_tokenizer.__wrapped__()
    model = conftest.make_model.__wrapped__(tokenizer)()
    options = {
        "none": {},
        "position": {"step_baseline": "position", "step_scale": "mean_std"},
        "anchor": {"step_reward_kind": "return", "step_baseline": "anchor"},
        "unparsed": {"step_baseline": "position"},
        "verify": {"step_baseline": "position"},
        "failing": {},
        "teacher": {"step_reward_kind": "forward_proxy", "step_squash": "contrast"},
        "teacher_unparsed": {"step_reward_kind": "forward_proxy"},
        "teacher_failing": {"step_reward_kind": "forward_proxy"},
    }[variant]
    completions = COMPLETIONS if "unparsed" not in variant else [*COMPLETIONS[:4], *["no plan here."] * 4]
    rewards = [lambda completions, **_: [float(len(c[0]["content"]) % 7) for c in completions]]
    if variant in ("verify", "failing"):
        judge = conftest.make_model.__wrapped__(tokenizer)()
        rewards = [
            VerifyReward(judge, tokenizer, template="Is this right?\n${plan}", batch_size=2),
            exact_match_reward,
        ]
    teacher = TeacherLogpCallback(conftest.make_model.__wrapped__(tokenizer)(), tokenizer)
    if variant.startswith("teacher"):
        options["callbacks"] = [teacher]
    processes = int(processes)
    trainer = make_trainer(
        model,
        tokenizer,
        out,
        train_dataset=rows(2),
        rollout_func=ScriptedRollout(tokenizer, completions),
        reward_funcs=rewards,
        num_generations=8,  # one group, which straddles the processes
        per_device_train_batch_size=8 // processes,
        max_steps=3,
        optim="sgd",
        learning_rate=0.1,
        **options,
    )
    assert trainer.accelerator.num_processes == processes, trainer.accelerator.num_processes
    if variant == "failing" and trainer.accelerator.process_index == 1:
        rewards[0].frozen.last_logits = None
    if variant == "teacher_failing" and trainer.accelerator.process_index == 1:
        teacher.load().model.model.norm.weight.data[0] = float("nan")
    trainer.train()
    if trainer.accelerator.is_main_process:
        model = trainer.accelerator.unwrap_model(trainer.model)
        torch.save({"weights": model.state_dict(), "log": trainer.state.log_history}, f"{out}/result.pt")
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
