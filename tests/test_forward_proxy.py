"""The teacher as a step signal: its numbers by plain forwards, in the trainer, and its failures."""

import math

import pytest
import torch

from stepgrpo import TeacherLogpCallback
from stepgrpo.frozen.context import TeacherContexts
from stepgrpo.segment.segmenter import plan_rollout
from stepgrpo.signal.forward_proxy import ForwardProxySignal, ReferencePlans, TokenLogps
from stepgrpo.signal.rule import RuleSignal, read_ground_truth
from tests.scripted import COMPLETIONS, FIND, GROUND_TRUTH, OPEN, PICK, config, make_trainer, plan_text, rows

PROMPT = [{"role": "user", "content": "Put a tomato in the fridge."}]
ROW = {"prompt": PROMPT, "gt_action_close": [{"action_id": i, "action_name": name} for i, name in GROUND_TRUTH]}
TEXTS = [plan_text([FIND, PICK]), plan_text([OPEN, FIND, PICK]), plan_text([FIND, PICK])]


def rollout(text, tokenizer, row=ROW, fields=("action_id", "action_name"), pad=0):
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    keep = [True] * len(ids) + [False] * pad
    ids += [tokenizer.pad_token_id] * pad
    return plan_rollout(ids, keep, tokenizer, {tokenizer.eos_token_id}, row, None, fields, "executable_plan")


def signal(make_model, tokenizer, **options):
    teacher = TeacherLogpCallback(make_model(), tokenizer, on_error=options.pop("on_error", "raise"))
    return ForwardProxySignal(teacher, TeacherContexts(tokenizer), ("gt_action_close",), **options)


@torch.no_grad()
def plainly(model, tokenizer, context, ids):
    """(T, V) log-probabilities of a completion's tokens, by one forward over everything."""
    prefix = tokenizer.apply_chat_template(context.prompt, add_generation_prompt=True, return_dict=False)
    logits = model(torch.tensor([[*prefix, *ids]])).logits[0, len(prefix) - 1 : -1]
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize("squash", ["contrast", "prob", "margin"])
@pytest.mark.parametrize("aggregate", ["mean", "min", "weighted", "sum"])
def test_scores_are_the_formulas_over_plain_forwards(make_model, tiny_tokenizer, squash, aggregate):
    made = signal(make_model, tiny_tokenizer, squash=squash, aggregate=aggregate)
    rollouts = [rollout(text, tiny_tokenizer, pad=n) for n, text in enumerate(TEXTS)]
    found = made(rollouts)
    model, contexts, plan = made.teacher.model, made.contexts, read_ground_truth(ROW["gt_action_close"])
    for one, scores in zip(rollouts, found, strict=True):
        ids = list(one.completion_ids)
        t = plainly(model, tiny_tokenizer, contexts.with_reference(ROW, plan), ids)
        s = plainly(model, tiny_tokenizer, contexts.alone(ROW), ids)
        chosen = torch.tensor(ids)[:, None]
        logp_t, logp_s, best = t.gather(1, chosen)[:, 0], s.gather(1, chosen)[:, 0], t.amax(1)
        d = {"contrast": logp_t - logp_s, "prob": logp_t, "margin": logp_t - best}[squash]
        for tokens, score in zip(one.step_tokens, scores, strict=True):
            x = d[tokens]
            weighted = (x.abs() * x).sum() / x.abs().sum()
            value = {"mean": x.mean(), "min": x.min(), "weighted": weighted, "sum": x.sum()}[aggregate].item()
            wanted = math.tanh(value) if squash == "contrast" else 2 * math.exp(value) - 1
            assert score == pytest.approx(wanted, abs=1e-4)
    assert found[0] == pytest.approx(found[2], abs=1e-5) and len(found[1]) == 3
    n = sum(len(tokens) for one in rollouts for tokens in one.step_tokens)
    assert made.last["step_teacher/failed"] == 0 and made.last["step_teacher/seconds"] > 0 and n > 20
    low, mean, high = (made.last[f"step_teacher/difference_{name}"] for name in ("min", "mean", "max"))
    assert low < mean < high and made.last["step_teacher/difference_std"] > 0


def test_only_what_the_squash_needs_is_run(make_model, tiny_tokenizer):
    runs = []
    for squash, contexts in (("margin", 1), ("prob", 1), ("contrast", 2)):
        made = signal(make_model, tiny_tokenizer, squash=squash)
        made.teacher.model.model.register_forward_hook(lambda module, args, out: runs.append(1))
        made([rollout(text, tiny_tokenizer) for text in TEXTS])
        assert len(runs) == 2 * contexts  # a prefix and its continuations
        runs.clear()


def test_the_fields_of_a_step_choose_its_tokens(make_model, tiny_tokenizer):
    made = signal(make_model, tiny_tokenizer)
    by_field = {
        field: made([rollout(TEXTS[0], tiny_tokenizer, fields=(field,))])[0] for field in ("action_id", "action_name")
    }
    both = made([rollout(TEXTS[0], tiny_tokenizer)])[0]
    assert both == pytest.approx([min(pair) for pair in zip(*by_field.values(), strict=True)], abs=1e-6)


def test_shuffled_takes_another_rows_plan_in_place_of_none(make_model, tiny_tokenizer):
    plans = ReferencePlans([read_ground_truth([FIND, PICK]), read_ground_truth(list(GROUND_TRUTH))])
    own = read_ground_truth(list(GROUND_TRUTH))
    assert plans.other(own) == read_ground_truth([FIND, PICK]) and ReferencePlans([own]).other(own) is None
    made = signal(make_model, tiny_tokenizer, squash="contrast", aggregate="mean", others=plans)
    one = rollout(TEXTS[0], tiny_tokenizer)
    (found,) = made.token_logps([one], [list(range(len(one.completion_ids)))])
    other = made.contexts.with_reference(ROW, read_ground_truth([FIND, PICK]))
    wanted = plainly(made.teacher.model, tiny_tokenizer, other, list(one.completion_ids))
    wanted = wanted.gather(1, torch.tensor(list(one.completion_ids))[:, None])[:, 0]
    assert found.other == pytest.approx(wanted.tolist(), abs=1e-4)


def test_the_rules_sign_stays_with_the_teachers_size(make_model, tiny_tokenizer):
    plain = signal(make_model, tiny_tokenizer)
    signed = signal(make_model, tiny_tokenizer, sign=RuleSignal(("gt_action_close",)))
    texts = [plan_text([FIND, OPEN])]
    (score,), (size,) = (made([rollout(text, tiny_tokenizer) for text in texts]) for made in (plain, signed))
    assert size == pytest.approx([(1 + score[0]) / 2, (-1 + score[1]) / 2]) and size[0] >= 0 >= size[1]


def test_without_a_reference_plan_a_row_fails_and_others_do_not(make_model, tiny_tokenizer):
    made = signal(make_model, tiny_tokenizer)
    batch = [rollout(TEXTS[0], tiny_tokenizer, row={"prompt": PROMPT}), rollout(TEXTS[0], tiny_tokenizer)]
    scores = made(batch)
    assert batch[0].failure == "ground_truth" and scores[0] == [None, None]
    assert batch[1].failure is None and None not in scores[1]
    assert made([]) == [] and math.isnan(made.last["step_teacher/difference_mean"])


def test_contrast_without_its_second_context_is_an_error():
    with pytest.raises(ValueError, match="second context"):
        TokenLogps([-1.0], [-0.5]).differences("contrast")


class Broken(Exception):
    pass


def break_for(made, word):
    real = made.contexts.encode

    def encode(context, begin_answer=True):
        if word in str(context.prompt):
            raise Broken("cannot read the picture")
        return real(context, begin_answer)

    made.contexts.encode = encode


def test_a_failure_says_which_batch_which_model_and_why(make_model, tiny_tokenizer):
    made = signal(make_model, tiny_tokenizer)
    break_for(made, "tomato")
    with pytest.raises(
        RuntimeError, match=r"teacher given failed on 1 batch.*Put a tomato.*Broken: cannot read"
    ) as caught:
        made([rollout(TEXTS[0], tiny_tokenizer)])
    assert isinstance(caught.value.__cause__, Broken) and caught.value.__cause__.__traceback__ is not None


def test_a_skipped_batch_takes_only_its_own_completions(make_model, tiny_tokenizer, caplog):
    made = signal(make_model, tiny_tokenizer, on_error="skip")
    break_for(made, "onion")
    onion = {**ROW, "prompt": [{"role": "user", "content": "Cut an onion."}]}
    alone = made([rollout(TEXTS[0], tiny_tokenizer)])
    for _ in range(2):
        batch = [rollout(TEXTS[0], tiny_tokenizer), *(rollout(text, tiny_tokenizer, row=onion) for text in TEXTS[:2])]
        scores = made(batch)
        assert scores[0] == pytest.approx(alone[0], abs=1e-6) and scores[1] == [None, None]
        assert [one.failure for one in batch] == [None, "teacher", "teacher"]
        assert made.last["step_teacher/failed"] == pytest.approx(2 / 3)
    assert caplog.text.count("Broken: cannot read") == 2  # in the message and in its traceback, once
    assert "2 completions get no step credit" in caplog.text


@pytest.mark.parametrize("what", ["nan", "device"])
def test_a_teacher_that_cannot_compute_is_never_silent_zeros(make_model, tiny_tokenizer, what):
    """A teacher without a device once gave every step 0 for hundreds of updates."""
    made = signal(make_model, tiny_tokenizer)
    if what == "nan":
        made.teacher.model.model.norm.weight.data[0] = float("nan")
        message = "not finite"
    else:
        made.teacher.model.model.embed_tokens.to("meta")
        message = "meta"
    with pytest.raises(RuntimeError, match=message):
        made([rollout(TEXTS[0], tiny_tokenizer)])


def test_in_the_trainer(make_model, tiny_tokenizer, tmp_path):
    teacher = TeacherLogpCallback(make_model(), tiny_tokenizer)
    options = {"step_reward_kind": "forward_proxy", "step_squash": "contrast", "max_steps": 2}
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, callbacks=[teacher], **options)
    assert trainer._step_signal.teacher is teacher
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["step_credit/completions"] == pytest.approx(6 / 8) and log["step_teacher/failed"] == 0
    assert log["step_teacher/difference_std"] > 0 and log["step_teacher/picture_tokens"] == 0
    made = ForwardProxySignal(teacher, trainer._step_signal.contexts, ("gt_action_close",), "contrast", "mean")
    batch = [rollout(text, tiny_tokenizer) for text in COMPLETIONS]
    scored = [score for one in made([one for one in batch if one.steps]) for score in one]
    assert log["step_credit/advantage_mean"] == pytest.approx(sum(scored) / len(scored), abs=1e-5)
    assert teacher._scorer is not None  # loaded again, for this
    teacher.on_train_end(None, None, None)
    assert teacher._scorer is None


def test_the_teacher_of_a_path_is_loaded_when_training_begins_and_freed(make_model, tiny_tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path / "m")
    tiny_tokenizer.save_pretrained(tmp_path / "m")
    options = {"step_reward_kind": "forward_proxy", "step_teacher_path": str(tmp_path / "m"), "max_steps": 1}
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, **options)
    teacher = trainer._step_signal.teacher
    assert teacher._scorer is None
    seen = []
    real = teacher.score
    teacher.score = lambda *args: seen.append(teacher._scorer) or real(*args)
    trainer.train()
    assert seen[0] is not None and teacher._scorer is None
    assert not any(weight.requires_grad for weight in seen[0].model.parameters())
    assert trainer.state.log_history[0]["step_teacher/seconds"] > 0


def test_self_and_base_are_the_policy_with_and_without_its_adapter(make_model, tiny_tokenizer, tmp_path):
    from peft import LoraConfig

    scores = {}
    for name in ("self", "base"):
        torch.manual_seed(0)
        trainer = make_trainer(
            make_model(),
            tiny_tokenizer,
            tmp_path,
            peft_config=LoraConfig(
                r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_dropout=0.5
            ),
            step_reward_kind="forward_proxy",
            step_teacher_path=name,
            max_steps=1,
        )
        one = rollout(TEXTS[0], tiny_tokenizer)
        scores[name] = trainer._step_signal([one])[0]
        with_adapter = trainer.model
        with_adapter.eval()
        context = trainer._step_signal.contexts.with_reference(ROW, read_ground_truth(ROW["gt_action_close"]))
        model = with_adapter if name == "self" else make_model()
        t = plainly(model, tiny_tokenizer, context, list(one.completion_ids))
        margin = t.gather(1, torch.tensor(list(one.completion_ids))[:, None])[:, 0] - t.amax(1)
        wanted = [2 * math.exp(margin[tokens].min()) - 1 for tokens in one.step_tokens]
        assert scores[name] == pytest.approx(wanted, abs=1e-4)
        trainer.train()
    assert scores["self"] != pytest.approx(scores["base"], abs=1e-4)


def test_the_episodes_sign_stays(make_model, tiny_tokenizer, tmp_path):
    options = {
        "step_combine": "modulate",
        "step_sign": "episode",
        "step_advantage_w": 0.5,
        "step_teacher_path": "self",
    }
    trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path, step_reward_kind="forward_proxy", **options)
    ids = [rollout(text, tiny_tokenizer).completion_ids for text in TEXTS[:2]]
    width = max(map(len, ids))
    completion_ids = torch.tensor([list(row) + [tiny_tokenizer.pad_token_id] * (width - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    episode = torch.tensor([2.0, -0.5])
    outputs = {"advantages": episode, "completion_ids": completion_ids, "completion_mask": mask}
    advantages = trainer._compute_advantages([ROW, ROW], outputs)
    one = rollout(TEXTS[0], tiny_tokenizer)
    scores = trainer._step_signal([one])[0]
    for tokens, score in zip(one.step_tokens, scores, strict=True):
        assert advantages[0, tokens[0]].item() == pytest.approx(2.0 + 0.5 * 2.0 * score, abs=1e-5)
    assert (advantages[0][mask[0].bool()] > 0).all() and (advantages[1][mask[1].bool()] < 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a teacher: set step_teacher_path"),
        ({"step_teacher_path": "base"}, "this policy has none"),
        ({"step_teacher_path": "self", "step_teacher_offload": True}, "is the policy: it cannot be offloaded"),
        (
            {"step_teacher_path": "self", "step_contrast_reference": "shuffled", "step_squash": "contrast"},
            "the same one",
        ),
        (
            {"step_teacher_path": "self", "train_dataset": rows(2).remove_columns("gt_action_close")},
            "'forward_proxy' needs",
        ),
    ],
)
def test_what_cannot_work_is_said_at_start(make_model, tiny_tokenizer, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(make_model(), tiny_tokenizer, tmp_path, step_reward_kind="forward_proxy", **options)


def test_two_teachers_are_refused(make_model, tiny_tokenizer, tmp_path):
    options = {"callbacks": [TeacherLogpCallback("self")], "step_teacher_path": "self"}
    with pytest.raises(ValueError, match="two teachers"):
        make_trainer(make_model(), tiny_tokenizer, tmp_path, step_reward_kind="forward_proxy", **options)


def test_another_tokenizer_is_refused_at_start(make_model, tiny_tokenizer, qwen2_5_vl_dir, tmp_path):
    options = {"step_reward_kind": "forward_proxy", "step_teacher_path": str(qwen2_5_vl_dir)}
    with pytest.raises(ValueError, match=r"another tokenizer than the policy.*tokens differ"):
        make_trainer(make_model(), tiny_tokenizer, tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_squash": "tanh"}, "step_squash='tanh' is not a choice. Choose one of: contrast, prob, margin"),
        ({"step_aggregate": "max"}, "step_aggregate='max'.*mean, min, weighted"),
        ({"step_reference_template": "${problem}"}, "step_reference_template has no"),
        ({"step_contrast_reference": "shuffled"}, "is for step_squash='contrast'; it is 'margin'"),
        ({"step_combine": "modulate", "step_reward_kind": "rule"}, "it is 'rule'"),
        ({"step_combine": "modulate", "step_baseline": "position"}, "Set step_baseline to none"),
        ({"step_combine": "modulate", "step_gamma": 0.5}, "step_gamma to 0"),
        ({"step_combine": "modulate", "step_sign": "episode", "step_advantage_w": 2.0}, "<= 1; it is 2.0"),
        ({"step_teacher_max_tokens": 0}, "must be at least 1"),
    ],
)
def test_settings_that_contradict_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **{"step_reward_kind": "forward_proxy", "step_teacher_path": "self", **options})
    assert config(tmp_path).step_aggregate == "min" and config(tmp_path, step_squash="prob").step_aggregate == "mean"
