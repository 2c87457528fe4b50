"""Generation and held-out metrics."""

import json

import pytest
import torch

from stepgrpo.evaluation import evaluate, format_metrics, generate_plans, main, plan_metrics
from stepgrpo.generation import encode_prompt, generate_ids
from tests.conftest import plan_text

FIND, PICK, PUT, OPEN = (35, "find a Tomato"), (130, "pick up the Tomato"), (133, "put down"), (139, "open the Fridge")


def row(*steps, **columns):
    truth = [{"action_id": action_id, "action_name": name} for action_id, name in steps]
    return {"prompt": [{"role": "user", "content": "go"}], "gt_action_close": truth, **columns}


def test_metrics_by_hand():
    truth = row(FIND, PICK, PUT)
    completions = [
        plan_text([FIND, PICK, PUT]),
        "Sure: " + plan_text([FIND, PICK, PUT]),  # exact, but not strict JSON
        plan_text([FIND, OPEN, PICK, PUT]),  # one too many: 3 of 4
        plan_text([PICK, FIND]),  # order: 1 of 3
        "no plan",
    ]
    metrics = plan_metrics(completions, [truth] * 5)
    assert metrics == pytest.approx(
        {
            "valid_json": 3 / 5,
            "parsed": 4 / 5,
            "exact_match": 2 / 5,
            "step_accuracy": (1 + 1 + 3 / 4 + 1 / 3) / 5,
            "no_ground_truth": 0.0,
        }
    )


def test_names_count_only_where_an_id_is_missing():
    by_name = json.dumps({"executable_plan": [{"action_name": " Find a TOMATO"}]})
    wrong_id = plan_text([(36, "find a Tomato")])
    assert plan_metrics([by_name], [row(FIND)])["exact_match"] == 1.0
    assert plan_metrics([wrong_id], [row(FIND)])["exact_match"] == 0.0


@pytest.mark.parametrize("text", ['["executable_plan"]', '{"executable_plan": {}}', '{"plan": []}', "[" * 100_000])
def test_not_strict_json(text):
    assert plan_metrics([text], [row(FIND)])["valid_json"] == 0.0


def test_empty_plan_is_valid_json_and_wrong():
    metrics = plan_metrics(['{"executable_plan": []}'], [row(FIND)])
    assert (metrics["valid_json"], metrics["parsed"], metrics["exact_match"], metrics["step_accuracy"]) == (1, 1, 0, 0)


def test_success_is_asked_only_for_plans():
    asked = []

    def succeeded(given, steps):
        asked.append((given["id"], [step.action_id for step in steps]))
        return True

    metrics = plan_metrics([plan_text([FIND]), "no plan"], [row(PICK, id=1), row(PICK, id=2)], succeeded)
    assert metrics["success"] == 0.5 and asked == [(1, [35])]


def test_unreadable_ground_truth_is_counted_and_said(caplog):
    rows = [row(FIND), {"prompt": "x", "gt_action_close": "find it"}, {"prompt": "x"}]
    metrics = plan_metrics([plan_text([FIND])] * 3, rows)
    assert metrics["exact_match"] == 1.0 and metrics["no_ground_truth"] == pytest.approx(2 / 3)
    assert "2 of 3" in caplog.text and "neither JSON nor a Python literal" in caplog.text
    assert "exact_match" not in plan_metrics(["x"], rows[2:])


def test_wrong_lengths_are_refused():
    with pytest.raises(ValueError, match="0 completions for 0 rows"):
        plan_metrics([], [])
    with pytest.raises(ValueError, match="1 completions for 2 rows"):
        plan_metrics(["x"], [row(FIND)] * 2)


PROMPTS = ["find", [{"role": "user", "content": "find a Tomato and open the Fridge, please"}], "open the Fridge now"]


def test_greedy_does_not_depend_on_batch_or_order(make_model, tiny_tokenizer):
    model = make_model()
    together = generate_plans(model, tiny_tokenizer, PROMPTS, 12, temperature=0.0)
    alone = [generate_plans(model, tiny_tokenizer, [prompt], 12, temperature=0.0)[0] for prompt in PROMPTS]
    assert together == alone and [len(group) for group in together] == [1, 1, 1]
    twice = generate_plans(model, tiny_tokenizer, PROMPTS, 12, temperature=0.0, num_samples=2, batch_size=2)
    assert twice == [group * 2 for group in together]


def test_greedy_is_the_argmax_of_one_forward(make_model, tiny_tokenizer):
    model = make_model().eval()
    prompt = encode_prompt(tiny_tokenizer, PROMPTS[1])
    (ids,) = generate_ids(model, tiny_tokenizer, PROMPTS, 5, temperature=0.0)[1]
    logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    assert ids == logits.argmax(-1).tolist()


def test_sampling_has_its_own_seed_and_leaves_no_trace(make_model, tiny_tokenizer):
    model = make_model().train()
    tiny_tokenizer.padding_side = "right"
    try:
        torch.manual_seed(7)
        state = torch.get_rng_state()
        first = generate_plans(model, tiny_tokenizer, PROMPTS, 8, num_samples=3, seed=1)
        assert torch.equal(torch.get_rng_state(), state)
        assert model.training and tiny_tokenizer.padding_side == "right"
        assert generate_plans(model, tiny_tokenizer, PROMPTS, 8, num_samples=3, seed=1) == first
        assert generate_plans(model, tiny_tokenizer, PROMPTS, 8, num_samples=3, seed=2) != first
        assert [len(group) for group in first] == [3, 3, 3] and len(set(first[0])) > 1
    finally:
        tiny_tokenizer.padding_side = "left"


def test_the_models_own_sampling_defaults_do_not_leak_in(make_model, tiny_tokenizer):
    plain, odd = make_model(), make_model()
    odd.generation_config.update(top_k=1, repetition_penalty=50.0, min_new_tokens=0, temperature=0.01)
    for heat in (0.0, 1.0):
        expected = generate_plans(plain, tiny_tokenizer, PROMPTS, 8, temperature=heat)
        assert generate_plans(odd, tiny_tokenizer, PROMPTS, 8, temperature=heat) == expected


def test_ends_at_the_end_token(make_model, tiny_tokenizer):
    model = make_model()
    free = generate_ids(model, tiny_tokenizer, PROMPTS[:1], 6, temperature=0.0)[0][0]
    model.generation_config.eos_token_id = [tiny_tokenizer.eos_token_id, free[2]]
    stopped = generate_ids(model, tiny_tokenizer, PROMPTS[:1], 6, temperature=0.0)[0][0]
    assert stopped == free[: free.index(free[2]) + 1]


def test_evaluate_both_ways(make_model, tiny_tokenizer):
    record = []
    rows = [row(FIND, id=i) for i in range(2)]
    metrics = evaluate(make_model(), tiny_tokenizer, rows, 4, samples=3, succeeded=lambda *_: True, record=record)
    names = ("valid_json", "parsed", "exact_match", "step_accuracy", "success", "no_ground_truth", "cut_off")
    assert set(metrics) == {f"{way}/{name}" for way in ("greedy", "sampled") for name in names}
    assert metrics["greedy/cut_off"] == 1.0 and metrics["greedy/parsed"] == 0.0
    assert [(item["way"], item["row"]) for item in record] == [("greedy", 0), ("greedy", 1)] + [
        ("sampled", i) for i in (0, 0, 0, 1, 1, 1)
    ]
    assert set(evaluate(make_model(), tiny_tokenizer, rows, 2)) == {f"greedy/{n}" for n in names if n != "success"}


def test_table_has_a_column_per_model():
    table = format_metrics({"before": {"greedy/parsed": 0.5}, "after": {"greedy/parsed": 1.0, "sampled/parsed": 0.25}})
    lines = [line.split() for line in table.splitlines()]
    assert lines == [
        ["metric", "before", "after"],
        ["greedy/parsed", "50.0%", "100.0%"],
        ["sampled/parsed", "-", "25.0%"],
    ]


def test_main_writes_metrics_of_a_saved_model(make_model, tiny_tokenizer, tmp_path, capsys):
    model_dir, out = tmp_path / "model", tmp_path / "out"
    make_model().save_pretrained(model_dir)
    tiny_tokenizer.save_pretrained(model_dir)
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join([json.dumps(row(FIND)), "{broken", json.dumps({"instruction": "x"})]))
    args = [
        "--model",
        str(model_dir),
        "--data",
        str(data),
        "--out",
        str(out),
        "--max-new-tokens",
        "3",
        "--samples",
        "2",
    ]
    assert main(args) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["greedy/exact_match"] == 0.0 and metrics["rows"] == 1
    assert "1 of 3 rows" in metrics["data_report"] and "not JSON (first: line 2)" in metrics["data_report"]
    assert len((out / "completions.jsonl").read_text().splitlines()) == 3
    assert "sampled/step_accuracy" in capsys.readouterr().out


def test_main_says_what_is_wrong_with_the_data(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--model", "x", "--data", str(tmp_path / "none.jsonl"), "--out", str(tmp_path)])
    assert exit_.value.code == 2 and "nor a JSON-lines file" in capsys.readouterr().err


def test_main_on_the_household(make_model, tiny_tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    args = [
        "--model",
        str(tmp_path),
        "--data",
        "household",
        "--out",
        str(tmp_path),
        "--n",
        "2",
        "--max-new-tokens",
        "2",
    ]
    assert main([*args, "--samples", "0"]) == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["greedy/success"] == 0.0
