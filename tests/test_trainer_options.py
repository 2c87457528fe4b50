"""The options of GRPOConfig: those that take an advantage per token work, the others are refused with the reason."""

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig

from stepgrpo import StepGRPOConfig, StepGRPOTrainer
from stepgrpo.config import TOKEN_LEVEL_LOSSES
from tests.conftest import plan_text
from tests.scripted import COMPLETIONS, FIND, PICK, ScriptedRollout, config, make_trainer, rows, scripted_rewards
from tests.test_trainer import outputs_of


@pytest.mark.parametrize("loss_type", TOKEN_LEVEL_LOSSES)
def test_every_token_level_loss_trains(loss_type, make_model, tiny_tokenizer, tmp_path):
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, loss_type=loss_type, max_steps=1)
    trainer.train()
    weights = torch.cat([p.flatten() for p in trainer.model.parameters()])
    assert torch.isfinite(weights).all()
    assert trainer.state.log_history[0]["step_credit/completions"] == pytest.approx(6 / 8)
    assert any(
        not torch.equal(a, b) for a, b in zip(trainer.model.parameters(), make_model().parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"loss_type": "vespo"}, "two factors"),
        ({"loss_type": "newest"}, "newest"),
        ({"importance_sampling_level": "sequence"}, "averaged away"),
        ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, "averaged away"),
        ({"off_policy_mask_threshold": 0.5}, "only some of the tokens"),
    ],
)
def test_refused_at_start_with_the_reason(options, reason, tmp_path):
    with pytest.raises(ValueError, match=reason) as error:
        config(tmp_path, **options)
    name, value = next(
        iter(options.items() if "luspo" not in options.values() else [("importance_sampling_level", "seq")])
    )
    assert name in str(error.value) and str(value) in str(error.value)
    config(tmp_path, **options, step_advantage_w=0.0)


def test_sequence_level_ratio_would_average_step_credit_away(make_model, tiny_tokenizer, tmp_path):
    """The fact the refusal rests on: the gradient under a sequence-level ratio sees only the mean advantage."""
    gradients = []
    for credit in (torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]])):
        logits = torch.tensor([[0.3, -0.2]], requires_grad=True)  # log-probabilities of two tokens
        ratio = torch.exp((logits - logits.detach()).mean(-1, keepdim=True))
        (-(ratio * credit)).mean().backward()
        gradients.append(logits.grad)
    assert torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize(
    ("field", "value", "choice"),
    [
        ("step_reward_kind", "rules", "return"),
        ("step_reward_kind", "json.nothing", "no attribute"),
        ("step_reward_kind", "no_such_package.signal", "No module"),
        ("step_match_mode", "fuzzy", "first_error"),
        ("step_match_key", "id", "action_name"),
        ("step_segment", "word", "plan"),
        ("step_baseline", "value", "anchor"),
        ("step_scale", "max", "mean_std"),
        ("step_fields", ["name"], "action_name"),
        ("step_fields", [], "action_name"),
        ("step_advantage_w", -1.0, ">= 0"),
        ("step_advantage_w", float("nan"), ">= 0"),
        ("step_gamma", 1.5, r"\[0, 1\]"),
        ("step_on_error", "ignore", "raise, skip"),
    ],
)
def test_a_wrong_value_names_the_field_and_the_choices(field, value, choice, tmp_path):
    with pytest.raises(ValueError, match=choice) as error:
        config(tmp_path, **{field: value})
    assert field in str(error.value)


def test_scale_without_a_baseline_is_refused(tmp_path):
    with pytest.raises(ValueError, match="step_baseline"):
        config(tmp_path, step_scale="mean_std")


def test_gamma_defaults_to_what_the_signal_needs(tmp_path):
    assert config(tmp_path).step_gamma == 0.0
    assert config(tmp_path, step_reward_kind="return", step_baseline="anchor").step_gamma == 1.0
    assert config(tmp_path, step_reward_kind="return", step_baseline="anchor", step_gamma=0.5).step_gamma == 0.5


def test_yaml_through_trl_parser(tmp_path):
    from trl import TrlParser

    (tmp_path / "c.yaml").write_text(
        "output_dir: out\nstep_advantage_w: 0.5\nstep_fields: [action_name]\nstep_match_mode: lcs\n"
        "use_cpu: true\nbf16: false\n"
    )
    (args,) = TrlParser(StepGRPOConfig).parse_args_and_config(
        ["--config", str(tmp_path / "c.yaml"), "--step_match_mode", "prefix"]
    )
    assert (args.step_advantage_w, args.step_fields, args.step_match_mode) == (0.5, ["action_name"], "prefix")


def test_plain_grpo_config_is_refused(make_model, tiny_tokenizer, tmp_path):
    with pytest.raises(TypeError, match="StepGRPOConfig"):
        make_trainer(make_model(), tiny_tokenizer, tmp_path, args=config(tmp_path, cls=GRPOConfig))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": ["p"], "answer": ["x"]}, "Columns seen: prompt, answer"),
        ({"prompt": ["p"], "ground_truth": ["no list"]}, "neither JSON nor a Python literal"),
        ({"prompt": ["p"], "ground_truth": [None]}, "none of the columns"),
    ],
)
def test_a_data_set_without_ground_truth_is_refused(columns, message, make_model, tiny_tokenizer, tmp_path):
    data = Dataset.from_dict(columns)
    with pytest.raises(ValueError, match=message):
        make_trainer(make_model(), tiny_tokenizer, tmp_path, train_dataset=data)
    with pytest.raises(ValueError, match=r"eval_dataset\['b'\]"):
        make_trainer(make_model(), tiny_tokenizer, tmp_path, eval_dataset={"a": rows(2), "b": data})
    make_trainer(make_model(), tiny_tokenizer, tmp_path, train_dataset=data, step_advantage_w=0.0)


def test_plain_prompts_and_the_named_column(make_model, tiny_tokenizer, tmp_path):
    data = Dataset.from_list([{"prompt": "Put a tomato in the fridge.", "label": [FIND[0], PICK[0]]}] * 2)

    class Plain(ScriptedRollout):
        def __call__(self, prompts, trainer):
            return {**super().__call__([[{"role": "user", "content": p}] for p in prompts], trainer)}

    trainer = make_trainer(
        make_model(),
        tiny_tokenizer,
        tmp_path,
        train_dataset=data,
        rollout_func=Plain(tiny_tokenizer),
        reward_funcs=lambda completions, **_: [float(len(c) % 3) for c in completions],
        step_gt_field="label",
        remove_unused_columns=True,
        max_steps=1,
    )
    trainer.train()
    # Right: FIND and PICK of completions 0, 1 and 4, FIND of 5 and 7.
    assert trainer.state.log_history[0]["step_credit/right_steps"] == pytest.approx(8 / 19)


@pytest.mark.parametrize(
    "options", [{"num_iterations": 2}, {"steps_per_generation": 2, "gradient_accumulation_steps": 1}]
)
def test_advantages_stay_with_their_tokens_when_rollouts_are_reused(options, make_model, tiny_tokenizer, tmp_path):
    """Batches are shuffled and split after scoring; each slice must still hold the advantages of its own
    completions."""
    size = 8 // options.get("steps_per_generation", 1)
    trainer = make_trainer(
        make_model(), tiny_tokenizer, tmp_path, max_steps=2, per_device_train_batch_size=size, **options
    )
    seen = []
    original = trainer._compute_loss

    def spy(model, inputs):
        seen.append({key: inputs[key].clone() for key in ("completion_ids", "advantages")})
        return original(model, inputs)

    trainer._compute_loss = spy
    trainer.train()
    outputs, _ = outputs_of(tiny_tokenizer, COMPLETIONS, [0.0] * 8)
    expected = trainer._compute_advantages([rows(1)[0]] * 8, outputs)
    credit = {
        tiny_tokenizer.decode(ids, skip_special_tokens=True): row
        for ids, row in zip(outputs["completion_ids"], expected)
    }
    assert len(seen) == 2
    for batch in seen:
        for ids, advantages in zip(batch["completion_ids"], batch["advantages"], strict=True):
            want = credit[tiny_tokenizer.decode(ids, skip_special_tokens=True)]
            episode = advantages[ids != tiny_tokenizer.pad_token_id][0]
            width = min(len(want), len(advantages))
            assert torch.allclose((advantages - episode)[:width], want[:width], atol=1e-6)


def test_the_answer_is_what_follows_the_last_tool(make_model, tiny_tokenizer, tmp_path):
    """A plan in a tool call is not the answer, and a completion that ends inside a tool's result has none."""
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path)
    call, tool, answer = (
        tiny_tokenizer.encode(text, add_special_tokens=False)
        for text in (plan_text([PICK, PICK]), "found it", plan_text([FIND, PICK]))
    )
    eos = [tiny_tokenizer.eos_token_id]
    ids = torch.tensor([call + eos + tool + answer + eos] * 4)
    mask = torch.tensor([[1] * (len(call) + 1) + [0] * len(tool) + [1] * (len(answer) + 1)] * 4)
    outputs = {
        "completion_ids": ids,
        "completion_mask": torch.ones_like(ids),
        "tool_mask": mask,
        "advantages": torch.zeros(4),
    }
    advantages = trainer._compute_advantages([rows(1)[0]] * 4, outputs)
    assert advantages[:, : len(call)].abs().max() == 0
    assert set(advantages[:, len(call) + 1 + len(tool) :].unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(("start", "credited"), [("<think>", False), ("<think></think>", True), ("", True)])
def test_reasoning_that_the_prompt_opened(start, credited, make_model, tiny_tokenizer, tmp_path):
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path)
    outputs, _ = outputs_of(tiny_tokenizer, [COMPLETIONS[0]] * 4, [0.0] * 4)
    outputs["prompt_ids"] = torch.tensor([tiny_tokenizer.encode("go " + start, add_special_tokens=False)] * 4)
    advantages = trainer._compute_advantages([rows(1)[0]] * 4, outputs)
    assert bool(advantages.abs().max() == 1.0) == credited


def test_return_without_a_baseline_warns(tmp_path):
    with pytest.warns(UserWarning, match="uncentred"):
        config(tmp_path, step_reward_kind="return")


def test_identical_completions_get_no_credit_and_are_counted_so(make_model, tiny_tokenizer, tmp_path):
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, step_baseline="position")
    outputs, _ = outputs_of(tiny_tokenizer, [COMPLETIONS[0]] * 4, [0.0] * 4)
    assert trainer._compute_advantages([rows(1)[0]] * 4, outputs).abs().max() == 0
    assert trainer._metrics["train"]["step_credit/completions"] == [0.0]


def test_tool_tokens_get_no_credit_and_their_plans_are_not_read(make_model, tiny_tokenizer, tmp_path):
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path)
    tool = plan_text([PICK, PICK, PICK])
    answer = plan_text([FIND, PICK])
    tool_ids = tiny_tokenizer.encode(tool, add_special_tokens=False)
    answer_ids = tiny_tokenizer.encode(answer, add_special_tokens=False)
    ids = torch.tensor([tool_ids + answer_ids + [tiny_tokenizer.eos_token_id]] * 4)
    outputs = {
        "completion_ids": ids,
        "completion_mask": torch.ones_like(ids),
        "tool_mask": torch.tensor([[0] * len(tool_ids) + [1] * (len(answer_ids) + 1)] * 4),
        "advantages": torch.zeros(4),
    }
    advantages = trainer._compute_advantages([rows(1)[0]] * 4, outputs)
    assert advantages[:, : len(tool_ids)].abs().max() == 0
    assert set(advantages[:, len(tool_ids) :].unique().tolist()) == {0.0, 1.0}


def test_masked_truncated_completions_get_no_credit(make_model, tiny_tokenizer, tmp_path):
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, mask_truncated_completions=True, max_steps=1)
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["step_credit/failed/masked"] == pytest.approx(1 / 8)
    assert log["step_credit/completions"] == pytest.approx(5 / 8)


def test_lora(make_model, tiny_tokenizer, tmp_path):
    from peft import LoraConfig

    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, peft_config=lora, max_steps=1)
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    changed = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed and all("lora_" in name for name in changed)
    assert trainer.state.log_history[0]["step_credit/completions"] == pytest.approx(6 / 8)


def one_per_step(rollouts):
    return [[float(k) for k in range(len(rollout.steps))] for rollout in rollouts]


def not_finite(rollouts):
    return [[float("inf")] * len(rollout.steps) for rollout in rollouts]


def gives_up(rollouts):
    for rollout in rollouts:
        rollout.failure = "ground_truth"
    return [None for _ in rollouts]


def too_few(rollouts):
    return [[1.0] for _ in rollouts]


def test_a_signal_of_the_users_own(make_model, tiny_tokenizer, tmp_path):
    data = rows(2).remove_columns("gt_action_close")
    kind = "tests.test_trainer_options.one_per_step"
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, train_dataset=data, step_reward_kind=kind)
    outputs, _ = outputs_of(tiny_tokenizer, COMPLETIONS[:4], [0.0] * 4)
    advantages = trainer._compute_advantages([data[0]] * 4, outputs)
    assert set(advantages[0].unique().tolist()) == {0.0, 1.0, 2.0, 3.0}
    for bad, message in (("not_finite", "not finite"), ("too_few", "one per step")):
        trainer = make_trainer(
            make_model(),
            tiny_tokenizer,
            tmp_path,
            train_dataset=data,
            step_reward_kind=f"tests.test_trainer_options:{bad}",
        )
        with pytest.raises(ValueError, match=message):
            trainer._compute_advantages([data[0]] * 4, outputs)


def test_a_signal_that_cannot_score_says_so(make_model, tiny_tokenizer, tmp_path):
    kind = "tests.test_trainer_options.gives_up"
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, step_reward_kind=kind)
    outputs, _ = outputs_of(tiny_tokenizer, COMPLETIONS[:4], [0.0] * 4)
    assert trainer._compute_advantages([rows(1)[0]] * 4, outputs).abs().max() == 0
    assert trainer._metrics["train"]["step_credit/failed/ground_truth"] == [0.75]


def test_return_without_any_reward_is_counted(make_model, tiny_tokenizer, tmp_path):
    def some(completions, **kwargs):
        return [None if i == 0 else reward for i, reward in enumerate(scripted_rewards(completions))]

    trainer = make_trainer(
        make_model(),
        tiny_tokenizer,
        tmp_path,
        reward_funcs=some,
        step_reward_kind="return",
        step_baseline="anchor",
        max_steps=1,
    )
    trainer.train()
    assert trainer.state.log_history[0]["step_credit/failed/no_reward"] == pytest.approx(1 / 8)
    assert isinstance(trainer, StepGRPOTrainer)
