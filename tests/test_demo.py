"""The demo's parts, and a very short run from end to end."""

import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2ForCausalLM

from stepgrpo.data.household import household_rows, make_step, plan_json
from stepgrpo.data.sources import success_check
from stepgrpo.demo.credit_picture import token_credit
from stepgrpo.demo.imperfect import imperfect_plan
from stepgrpo.demo.reinforce import reinforce
from stepgrpo.demo.run import format_table, main, run_demo
from stepgrpo.demo.settings import PlannerSize, Rollouts, Settings
from stepgrpo.demo.tokenizer import train_tokenizer
from stepgrpo.demo.warmstart import build_planner, demonstrations
from stepgrpo.evaluation import evaluate
from stepgrpo.modeling import load_tokenizer

TINY = PlannerSize(hidden=32, layers=1, heads=2, feed_forward=64)


@pytest.fixture(scope="module")
def tokenizer():
    rows = household_rows("train", 2000)
    return train_tokenizer(
        text for row in rows for text in (row["prompt"][0]["content"], plan_json(row["gt_action_close"]))
    )


def test_a_step_is_about_eight_tokens(tokenizer):
    rows = household_rows("dev", 100)
    tokens = sum(len(tokenizer(plan_json(row["gt_action_close"]))["input_ids"]) for row in rows)
    assert 7 <= tokens / sum(len(row["gt_action_close"]) for row in rows) <= 9


def test_the_scaffolding_and_the_id_are_single_tokens(tokenizer):
    text = plan_json(["find a Tomato", "find a Mug_2"])
    pieces = [tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]]
    ids = [str(make_step(name)["action_id"]) for name in ("find a Tomato", "find a Mug_2")]
    assert pieces[:8] == [
        '{"executable_plan": [',
        '{"action_id": ',
        ids[0],
        ', "action_name": "',
        "find",
        " a",
        " Tomato",
        '"}, ',
    ]
    assert pieces[9] == ids[1]
    assert pieces[-1] == '"}]}'


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_no_text_is_lost(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_tokenizer_is_the_same_after_saving(tokenizer, tmp_path):
    build_planner(tokenizer, TINY, seed=0).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    for row in household_rows("dev", 20):
        messages = [*row["prompt"], {"role": "assistant", "content": plan_json(row["gt_action_close"])}]
        asked = tokenizer.apply_chat_template(messages, tokenize=False)
        assert loaded.apply_chat_template(messages, tokenize=False) == asked
        assert loaded(asked)["input_ids"] == tokenizer(asked)["input_ids"]
    assert (loaded.pad_token, loaded.eos_token, loaded.padding_side) == ("<|pad|>", "<|end|>", "left")


def test_imperfect_plans_are_wrong_as_often_as_asked():
    rows = household_rows("train", 300)
    rng = random.Random(0)
    for rate in (0.0, 0.2, 1.0):
        kept = total = 0
        for row in rows:
            plan = row["gt_action_close"]
            spoilt = imperfect_plan(plan, row["scene"], rate, rng)
            if rate == 0.0:
                assert spoilt == plan
            # Each mistake either replaces, drops or adds one step, so the lengths tell the share of the last two.
            kept += len(spoilt) - len(plan)
            total += len(plan)
        assert abs(kept / total) < 0.05  # as many steps are skipped as are written twice


def test_a_wrong_step_has_the_right_ones_verb_or_its_opposite():
    rng = random.Random(1)
    verbs = {"find": {"find"}, "pick": {"pick"}, "put": {"put", "drop"}, "slice": {"slice"}}
    verbs |= {"open": {"open", "close"}, "close": {"open", "close"}, "turn": {"turn"}}
    replaced = 0
    for row in household_rows("train", 200):
        for step in row["gt_action_close"]:
            for wrong in imperfect_plan([step], row["scene"], 1.0, rng):
                assert wrong["action_name"].split()[0] in verbs[step["action_name"].split()[0]]
                replaced += wrong["action_name"] != step["action_name"]
    assert replaced > 0


def test_clean_demonstrations_are_the_ground_truth():
    rows = household_rows("train", 5)
    for example, row in zip(demonstrations(rows, 0.0, seed=0), rows, strict=True):
        assert example["prompt"] == row["prompt"]
        assert json.loads(example["completion"][0]["content"])["executable_plan"] == row["gt_action_close"]


def test_credit_is_on_the_ids_and_names_of_the_steps_up_to_the_first_wrong_one(tokenizer):
    (row,) = household_rows("dev", 1)
    right, *rest = row["gt_action_close"]
    wrong = make_step("find a ToiletPaperHanger")
    ids = [*tokenizer(plan_json([right, wrong, *rest]))["input_ids"], tokenizer.eos_token_id]
    texts, values = token_credit(ids, tokenizer, row)
    assert len(texts) == len(values) == len(ids)
    assert set(values) == {1.0, 0.0, -1.0}
    for step, credit in ((right, 1.0), (wrong, -1.0)):
        credited = "".join(text for text, value in zip(texts, values, strict=True) if value == credit)
        assert credited == f"{step['action_id']}{step['action_name']}"


def test_an_unknown_trainer_is_named(tokenizer):
    with pytest.raises(ValueError, match="unknown trainer 'PPO'"):
        reinforce("PPO", None, tokenizer, [], Rollouts(), "", 0, 1e-3)


def test_help_needs_no_model(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "--fast" in capsys.readouterr().out


@pytest.mark.slow
def test_a_short_run_writes_everything_it_says(tmp_path):
    rollouts = Rollouts(updates=2, prompts=2, completions=2, max_tokens=24)
    results = run_demo(Settings(examples=96, rollouts=rollouts, test_prompts=4, samples=2), tmp_path, TINY)
    assert json.loads((tmp_path / "results.json").read_text())["rows"] == results["rows"]
    assert list(results["rows"]) == ["before", "GRPO", "StepGRPO"]
    for metrics in results["rows"].values():
        assert all(0.0 <= value <= 1.0 for value in metrics.values())
    assert format_table(results["rows"]).count("%") == 15
    assert [len(curve) for curve in results["curves"].values()] == [2, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "curve.png", "heatmap.png", "models"}
    for name in ("curve.png", "heatmap.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    rows = household_rows("test", 4)
    for label, name in (("before", "start"), ("GRPO", "grpo"), ("StepGRPO", "stepgrpo")):
        model = Qwen2ForCausalLM.from_pretrained(tmp_path / "models" / name)
        tokenizer = load_tokenizer(tmp_path / "models" / name)
        again = evaluate(
            model, tokenizer, rows, 24, samples=2, batch_size=100, seed=0, succeeded=success_check("household")
        )
        assert again == results["rows"][label]
    fresh = build_planner(tokenizer, TINY, seed=0).state_dict()
    trained = Qwen2ForCausalLM.from_pretrained(tmp_path / "models" / "start").state_dict()
    assert not any(torch.equal(fresh[name], weights) for name, weights in trained.items() if "proj.weight" in name)
