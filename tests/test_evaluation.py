"""Generation and evaluation of a model."""

import pytest
import torch

from stepgrpo import evaluation
from stepgrpo.evaluation import evaluate, measure, write_completions
from stepgrpo.generation import encode_prompt, generate_ids, generate_plans
from stepgrpo.modeling import load_model, load_processing_class
from tests.conftest import plan_text
from tests.vlm import picture

FIND, PICK, PUT, OPEN = (35, "find a Tomato"), (130, "pick up the Tomato"), (133, "put down"), (139, "open the Fridge")


def row(*steps, **columns):
    truth = [{"action_id": action_id, "action_name": name} for action_id, name in steps]
    return {"prompt": [{"role": "user", "content": "go"}], "gt_action_close": truth, **columns}


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
    names = {"valid_json", "parsed", "exact_match", "prefix_share", "lcs_share", "step_accuracy", "success", "cut_off"}
    names |= {"no_ground_truth"}
    expected = {f"{way}/{name}" for way in ("greedy", "sampled") for name in names}
    assert set(metrics) == expected | {"sampled/pass@1", "sampled/pass@2"}
    assert metrics["greedy/cut_off"] == 1.0 and metrics["greedy/parsed"] == 0.0
    assert [(item["way"], item["row"]) for item in record] == [("greedy", 0), ("greedy", 1)] + [
        ("sampled", i) for i in (0, 0, 0, 1, 1, 1)
    ]
    assert set(evaluate(make_model(), tiny_tokenizer, rows, 2)) == {f"greedy/{n}" for n in names - {"success"}}


def test_what_is_written_is_told_batch_by_batch(make_model, tiny_tokenizer, capsys):
    told, rows = [], [row(FIND, id=i) for i in range(3)]
    record = write_completions(
        make_model(), tiny_tokenizer, rows, 3, samples=2, batch_size=2, progress=True, on_written=told.append
    )
    assert [len(batch) for batch in told] == [2, 1, 2, 2, 2]
    assert sorted(map(str, (item for batch in told for item in batch))) == sorted(map(str, record))
    assert "3/3" in (bars := capsys.readouterr().err) and "6/6" in bars
    write_completions(make_model(), tiny_tokenizer, rows, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("seeing", [True, False])
def test_a_process_without_rows_takes_part(qwen2_5_vl_dir, monkeypatch, seeing):
    class Second:
        process_index, num_processes, is_main_process = 1, 2, False

    gathered = [{"row": 0, "way": "greedy", "completion": "", "cut_off": True}]
    monkeypatch.setattr(evaluation, "PartialState", Second)
    monkeypatch.setattr(evaluation, "gather_object", lambda written: gathered + written)
    model, processor = load_model(qwen2_5_vl_dir), load_processing_class(qwen2_5_vl_dir)
    rows = [row(FIND, images=[picture("red")] if seeing else [])]
    assert write_completions(model, processor, rows, 2) == gathered


def test_nothing_to_measure_is_refused(make_model, tiny_tokenizer):
    with pytest.raises(ValueError, match="No completions to measure, for 1 rows"):
        evaluate(make_model(), tiny_tokenizer, [row(FIND)], 2, greedy=False)


def items(number, way, *texts, **more):
    return [{"row": number, "way": way, "completion": text, **more} for text in texts]


def test_groups_and_pass_at_k_by_hand():
    right, wrong = plan_text([FIND]), plan_text([OPEN])
    long = [FIND, PICK, OPEN, PUT, FIND]
    rows = [row(FIND, task_type="b"), row(FIND, task_type="a"), row(*long, task_type="a"), {"prompt": "x"}]
    record = [
        *items(0, "greedy", right, cut_off=False),
        *items(1, "greedy", wrong, cut_off=True),
        *items(2, "greedy", plan_text(long)),
        *items(3, "greedy", right),
        *items(0, "sampled", right, wrong, wrong, wrong),
        *items(1, "sampled", right, right, right, wrong),
        *items(2, "sampled", *[wrong] * 4),
        *items(3, "sampled", *[right] * 4),
    ]
    result = measure(record, rows)
    assert result.metrics["greedy/exact_match"] == pytest.approx(2 / 3)
    assert result.metrics["greedy/cut_off"] == 0.5
    assert result.metrics["sampled/exact_match"] == pytest.approx(4 / 12)
    # One right of four: 1/4, 1/2, 1; three of four: 3/4, 1, 1; none: 0. The row without a ground truth is left out.
    passes = [result.metrics[f"sampled/pass@{k}"] for k in (1, 2, 4)]
    assert passes == pytest.approx([(1 / 4 + 3 / 4) / 3, (1 / 2 + 1) / 3, 2 / 3])
    assert [name for name in result.metrics if "pass@" in name] == [f"sampled/pass@{k}" for k in (1, 2, 4)]
    assert list(result.by_task_type) == ["a", "b", "unknown"]
    assert [group["rows"] for group in result.by_task_type.values()] == [2, 1, 1]
    assert result.by_task_type["a"]["greedy/exact_match"] == 0.5
    assert result.by_task_type["b"]["sampled/pass@2"] == 0.5
    assert "greedy/exact_match" not in result.by_task_type["unknown"]
    assert list(result.by_plan_length) == ["1-4", "5-8", "unknown"]
    assert result.by_plan_length["5-8"]["greedy/exact_match"] == 1.0
    assert result.by_plan_length["1-4"]["greedy/exact_match"] == 0.5
    assert result.by_plan_length["1-4"]["sampled/exact_match"] == 0.5


def test_where_there_is_a_world_its_verdict_is_what_passes():
    record = items(0, "sampled", plan_text([FIND]), plan_text([OPEN]))
    result = measure(record, [row(FIND)], succeeded=lambda _, steps: steps[0].action_id == OPEN[0])
    assert result.metrics["sampled/pass@1"] == 0.5 and result.metrics["sampled/pass@2"] == 1.0
    never = measure(record, [row(FIND)], succeeded=lambda *_: False)
    assert never.metrics["sampled/pass@2"] == 0.0 and never.metrics["sampled/exact_match"] == 0.5


def test_rows_without_a_task_type_have_no_table_of_them():
    assert measure(items(0, "greedy", "x"), [row(FIND)]).by_task_type == {}
