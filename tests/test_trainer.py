"""The trainer: advantages worked out by hand, GRPO left alone where it should be, and what it logs."""

import logging

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from stepgrpo import StepGRPOConfig, StepGRPOTrainer
from tests import scripted
from tests.scripted import COMPLETIONS, FIND, FRIDGE, OPEN, PICK, config, make_trainer, rows

R, W = 1.0, -1.0
# Right and wrong by position, against [FIND, PICK, FRIDGE, OPEN].
EXACT = [[R, R, R, R], [R, R, W], [W, W], [], [R, R, R, R, W], [R, W, W, R], [], [R]]


def outputs_of(tokenizer, completions, episode, eos=True):
    encoded = [tokenizer(text, add_special_tokens=False, return_offsets_mapping=True) for text in completions]
    ids = [row["input_ids"] + [tokenizer.eos_token_id] * eos for row in encoded]
    width = max(map(len, ids)) + 2
    completion_ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    offsets = [row["offset_mapping"] for row in encoded]
    return {"completion_ids": completion_ids, "completion_mask": mask, "advantages": torch.tensor(episode)}, offsets


def values_on(text, offsets, advantages, needle, occurrence=0):
    """The distinct values on the tokens that overlap an occurrence of `needle`, found by the tokenizer's own
    offsets."""
    start = -1
    for _ in range(occurrence + 1):
        start = text.index(needle, start + 1)
    end = start + len(needle)
    return {round(advantages[i].item(), 5) for i, (a, b) in enumerate(offsets) if a < end and b > start}


@pytest.fixture(scope="module")
def trainer(make_model, tiny_tokenizer, tmp_path_factory):
    return make_trainer(make_model(), tiny_tokenizer, tmp_path_factory.mktemp("t"), step_fields=["action_name"])


def test_hand_computed_advantages(trainer, tiny_tokenizer):
    episode = [1.0, -0.5, -0.25, 0.0, 0.5, 0.25, -0.125, 0.125]
    outputs, offsets = outputs_of(tiny_tokenizer, COMPLETIONS, episode)
    trainer.args.step_advantage_w = 0.5
    advantages = trainer._compute_advantages([rows(1)[0]] * 8, outputs)
    assert advantages.shape == outputs["completion_ids"].shape and advantages.dtype == torch.float32
    plans = [
        [FIND, PICK, FRIDGE, OPEN],
        [FIND, PICK, OPEN],
        [PICK, FIND],
        [],
        None,
        [FIND, FRIDGE, PICK, OPEN],
        [],
        [FIND],
    ]
    plans[4] = [FIND, PICK, FRIDGE, OPEN, scripted.PUT]
    for i, plan in enumerate(plans):
        for (action_id, name), score in zip(plan, EXACT[i], strict=True):
            assert values_on(COMPLETIONS[i], offsets[i], advantages[i], name) == {episode[i] + 0.5 * score}
            assert values_on(COMPLETIONS[i], offsets[i], advantages[i], f'"action_id": {action_id}') == {episode[i]}
        assert values_on(COMPLETIONS[i], offsets[i], advantages[i], COMPLETIONS[i][:8]) == {episode[i]}
        padded = outputs["completion_mask"][i] == 0
        assert set(advantages[i][padded].tolist()) == {episode[i]}
    trainer.args.step_advantage_w = 1.0


def test_position_baseline_by_hand(make_model, tiny_tokenizer, tmp_path):
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, step_baseline="position")
    outputs, offsets = outputs_of(tiny_tokenizer, COMPLETIONS, [0.0] * 8)
    advantages = trainer._compute_advantages([rows(1)[0]] * 8, outputs)
    # Step 0 of the first group: +1, +1, -1, mean 1/3. Step 3: one completion alone, so 0.
    assert values_on(COMPLETIONS[0], offsets[0], advantages[0], "find a Tomato") == {round(2 / 3, 5)}
    assert values_on(COMPLETIONS[2], offsets[2], advantages[2], "pick up the Tomato") == {round(-4 / 3, 5)}
    assert values_on(COMPLETIONS[0], offsets[0], advantages[0], "open the Fridge") == {0.0}
    # Second group, step 0: +1, +1, +1 (the cut-off plan keeps its one step): nothing to tell apart.
    assert values_on(COMPLETIONS[4], offsets[4], advantages[4], "find a Tomato") == {0.0}
    # Step 1: +1, -1.
    assert values_on(COMPLETIONS[5], offsets[5], advantages[5], "find a Fridge") == {-1.0}


def test_return_on_the_plan_prefix_needs_no_ground_truth(make_model, tiny_tokenizer, tmp_path):
    data = rows(2).remove_columns("gt_action_close")
    trainer = make_trainer(
        make_model(), tiny_tokenizer, tmp_path, train_dataset=data, step_reward_kind="return", step_baseline="anchor"
    )
    seen = []
    original = trainer._compute_advantages

    def spy(inputs, outputs):
        result = original(inputs, outputs)
        seen.append((outputs["advantages"], outputs["completion_ids"], result))
        return result

    trainer._compute_advantages = spy
    trainer.train()
    episode, _completion_ids, advantages = seen[0]
    credit = advantages - episode.unsqueeze(1)
    _, offsets = outputs_of(tiny_tokenizer, COMPLETIONS, [0.0] * 8)
    value = lambda i, needle: values_on(COMPLETIONS[i], offsets[i], credit[i], needle)  # noqa: E731
    # Rewards of the first group: 1, -1, -1 (no plan: not a step). At the root the mean is -1/3; after FIND, (1 - 1) /
    # 2.
    assert value(0, "find a Tomato") == {round(4 / 3, 5)}
    assert value(1, "find a Tomato") == {round(-2 / 3, 5)}
    assert value(2, "pick up the Tomato") == {round(-2 / 3, 5)}
    assert value(0, "pick up the Tomato") == {1.0}
    assert value(1, "open the Fridge") == {-1.0}
    # After FIND, PICK, FRIDGE nobody else passed.
    assert value(0, "open the Fridge") == {0.0}
    assert credit[3].abs().max() == 0


def train(cls, make_model, tokenizer, path, config_cls, **overrides):
    trainer = make_trainer(make_model(), tokenizer, path, cls=cls, args=config(path, cls=config_cls, **overrides))
    trainer.train()
    return trainer


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("options", [{}, {"importance_sampling_level": "sequence"}, {"loss_type": "vespo"}])
def test_weight_zero_is_grpo_bit_for_bit(options, make_model, tiny_tokenizer, tmp_path):
    ours = train(
        StepGRPOTrainer, make_model, tiny_tokenizer, tmp_path, StepGRPOConfig, step_advantage_w=0.0, **options
    )
    theirs = train(GRPOTrainer, make_model, tiny_tokenizer, tmp_path, GRPOConfig, **options)
    assert same_weights(ours.model, theirs.model)
    assert not same_weights(ours.model, make_model())


def test_a_batch_in_which_nothing_parses_is_grpo_bit_for_bit(make_model, tiny_tokenizer, tmp_path):
    """The untrained model samples noise: its own generation, no plan in it, full weight on the step term."""
    ours = make_trainer(make_model(), tiny_tokenizer, tmp_path, scripted=False)
    ours.train()
    theirs = make_trainer(
        make_model(), tiny_tokenizer, tmp_path, cls=GRPOTrainer, args=config(tmp_path, cls=GRPOConfig), scripted=False
    )
    theirs.train()
    assert ours.state.log_history[0]["step_credit/completions"] == 0.0
    assert same_weights(ours.model, theirs.model)
    assert not same_weights(ours.model, make_model())


def test_step_credit_changes_the_weights(make_model, tiny_tokenizer, tmp_path):
    ours = train(StepGRPOTrainer, make_model, tiny_tokenizer, tmp_path, StepGRPOConfig)
    theirs = train(GRPOTrainer, make_model, tiny_tokenizer, tmp_path, GRPOConfig)
    assert not same_weights(ours.model, theirs.model)


def test_metrics_arrive_with_their_batch(make_model, tiny_tokenizer, tmp_path):
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, max_steps=1)
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["step"] == 1
    assert log["step_credit/completions"] == pytest.approx(6 / 8)
    assert log["step_credit/failed/no_plan"] == pytest.approx(1 / 8)
    assert log["step_credit/failed/empty_plan"] == pytest.approx(1 / 8)
    assert log["step_credit/failed/cut_off"] == 0.0
    right = sum(score > 0 for row in EXACT for score in row)
    scored = sum(map(len, EXACT))
    assert log["step_credit/right_steps"] == pytest.approx(right / scored)
    mean = (2 * right - scored) / scored
    assert log["step_credit/advantage_mean"] == pytest.approx(mean)
    assert log["step_credit/advantage_std"] == pytest.approx((1 - mean**2) ** 0.5)
    assert 0 < log["step_credit/tokens"] < 1 and log["step_credit/seconds"] > 0
    assert log["step_credit/step_to_episode"] > 0


def test_self_check_line_and_warning_after_five_empty_batches(make_model, tiny_tokenizer, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="stepgrpo"):
        trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, scripted=False, max_steps=6)
        trainer.train()
    lines = [record for record in caplog.records if record.name == "stepgrpo.monitor"]
    assert sum(record.getMessage() == "0/8 completions got step credit" for record in lines) == 6
    warnings = [record.getMessage() for record in lines if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "5 batches in a row" in warnings[0] and "max_completion_length" in warnings[0]


def test_evaluation(make_model, tiny_tokenizer, tmp_path):
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, eval_dataset=rows(2), max_steps=1)
    metrics = trainer.evaluate()
    assert metrics["eval_step_credit/completions"] == pytest.approx(6 / 8)
    assert metrics["eval_step_credit/right_steps"] > 0


def test_a_bad_row_is_counted_and_reported_once(make_model, tiny_tokenizer, tmp_path, caplog):
    data = [rows(1)[0], {**rows(1)[0], "gt_action_close": "[{'action_id': "}]
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path)
    outputs, _ = outputs_of(tiny_tokenizer, COMPLETIONS, [0.0] * 8)
    inputs = [data[0]] * 4 + [data[1]] * 4
    with caplog.at_level(logging.WARNING, logger="stepgrpo"):
        advantages = trainer._compute_advantages(inputs, outputs)
        trainer._compute_advantages(inputs, outputs)
    assert advantages[:4].abs().max() == 1.0 and advantages[4:].abs().max() == 0.0
    assert trainer._metrics["train"]["step_credit/failed/ground_truth"][0] == pytest.approx(3 / 8)
    messages = [r.getMessage() for r in caplog.records if "gt_action_close" in r.getMessage()]
    assert len(messages) == 1
