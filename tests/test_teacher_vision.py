"""A teacher that sees: the same numbers as plain forwards, and a policy that writes picture tokens harms nobody."""

import math

import pytest
import torch

from stepgrpo import StepGRPOTrainer, TeacherLogpCallback
from stepgrpo.frozen.context import TeacherContexts
from stepgrpo.modeling import load_model, load_processing_class
from stepgrpo.segment.segmenter import plan_rollout
from stepgrpo.signal.forward_proxy import ForwardProxySignal
from stepgrpo.signal.rule import read_ground_truth
from tests.conftest import plan_text
from tests.scripted import FIND, GROUND_TRUTH, OPEN, PICK, config
from tests.test_vlm_training import data_set, length_reward, script
from tests.vlm import picture

ROW = {
    "prompt": [{"role": "user", "content": "Put the Tomato in the Fridge."}],
    "images": [picture("red", 64, 64)],
    "gt_action_close": [{"action_id": i, "action_name": name} for i, name in GROUND_TRUTH],
}


def rollout(ids, tokenizer, row=ROW):
    ids = [*ids, tokenizer.eos_token_id]
    fields = ("action_id", "action_name")
    return plan_rollout(ids, [True] * len(ids), tokenizer, {ids[-1]}, row, None, fields, "executable_plan")


@pytest.fixture
def signal(vlm_dir):
    processor = load_processing_class(vlm_dir)
    teacher = TeacherLogpCallback(str(vlm_dir))
    teacher.processing_class = processor
    return ForwardProxySignal(teacher, TeacherContexts(processor), ("gt_action_close",))


def test_scores_equal_plain_forwards(signal):
    tokenizer = signal.contexts.processing_class.tokenizer
    texts = [plan_text([FIND, PICK]), plan_text([OPEN])]
    rollouts = [rollout(tokenizer.encode(text, add_special_tokens=False), tokenizer) for text in texts]
    scores = signal(rollouts)
    context = signal.contexts.with_reference(ROW, read_ground_truth(ROW["gt_action_close"]))
    model = signal.teacher.load().model
    for one, found in zip(rollouts, scores, strict=True):
        inputs = dict(signal.contexts.encode(context))
        ids, start = torch.tensor([list(one.completion_ids)]), inputs["input_ids"].shape[1]
        whole = torch.cat([inputs["input_ids"], ids], 1)
        same_shape = {
            name for name, value in inputs.items() if getattr(value, "shape", None) == inputs["input_ids"].shape
        }
        padding = {
            name: torch.nn.functional.pad(inputs[name], (0, ids.size(1)), value=int(name == "attention_mask"))
            for name in same_shape
        }
        with torch.no_grad():
            logits = model(**{**inputs, **padding, "input_ids": whole}).logits
        logp = logits[0, start - 1 : -1].log_softmax(-1)
        margin = logp.gather(1, ids[0][:, None])[:, 0] - logp.amax(1)
        assert found == pytest.approx([2 * math.exp(margin[t].min()) - 1 for t in one.step_tokens], abs=1e-4)


def test_a_completion_with_picture_tokens_is_scored_and_counted(signal):
    tokenizer = signal.contexts.processing_class.tokenizer
    image = signal.contexts.processing_class.image_token_id
    plain = [tokenizer.encode(plan_text(steps), add_special_tokens=False) for steps in ([FIND, PICK], [OPEN, FIND])]
    # Inside the name of the second step, where a sampler can put it.
    odd = [*plain[0][:-8], image, image, *plain[0][-8:]]
    alone = signal([rollout(ids, tokenizer) for ids in plain])
    assert signal.last["step_teacher/picture_tokens"] == 0
    batch = [rollout(ids, tokenizer) for ids in (plain[0], odd, plain[1])]
    together = signal(batch)
    assert [one.failure for one in batch] == [None] * 3 and signal.last["step_teacher/failed"] == 0
    assert signal.last["step_teacher/picture_tokens"] == pytest.approx(1 / 3)
    assert together[0] == pytest.approx(alone[0], abs=1e-5) and together[2] == pytest.approx(alone[1], abs=1e-5)
    assert together[1][0] == pytest.approx(alone[0][0], abs=1e-5) and together[1][1] is not None


def test_in_the_trainer_with_rows_with_and_without_pictures(vlm_dir, tmp_path):
    args = config(
        tmp_path,
        num_generations=2,
        max_steps=1,
        step_reward_kind="forward_proxy",
        step_teacher_path=str(vlm_dir),
        step_squash="contrast",
    )
    model, processor = load_model(vlm_dir), load_processing_class(vlm_dir)
    trainer = StepGRPOTrainer(
        model, length_reward, args, data_set(["two", "none", "one", "three"]), processing_class=processor
    )
    script(trainer)
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["step_teacher/failed"] == 0 and log["step_teacher/difference_std"] > 0
    assert log["step_credit/completions"] == pytest.approx(6 / 8)
