"""Metrics of plans."""

import json
from itertools import combinations

import pytest

from stepgrpo.metrics import length_bucket, pass_at_k, plan_metrics
from stepgrpo.vocabulary import EB_ALFRED, HOUSEHOLD, find_vocabulary
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
            "prefix_share": (1 + 1 + 1 / 3 + 0) / 5,
            "lcs_share": (1 + 1 + 1 + 1 / 3) / 5,
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


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_counts_every_draw(n):
    for c in range(n + 1):
        samples = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            draws = list(combinations(samples, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_of_the_papers_size():
    # 1 - prod(1 - k / i for i in n - c + 1 ... n), the paper's numerically stable form.
    expected = 1.0
    for i in range(200 - 13 + 1, 201):
        expected *= 1 - 10 / i
    assert pass_at_k(200, 13, 10) == pytest.approx(1 - expected)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0)])
def test_pass_at_k_refuses_what_cannot_be(n, c, k):
    with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


def test_length_buckets():
    buckets = {length: length_bucket(length) for length in (1, 4, 5, 8, 9, 12, 13, 16, 17, 99)}
    assert list(buckets.values()) == ["1-4", "1-4", "5-8", "5-8", "9-12", "9-12", "13-16", "13-16", "17+", "17+"]
    assert length_bucket(None) == "unknown"


def test_ids_and_names_agree():
    names = EB_ALFRED.names
    own = row((0, names[0]), action_list=["find a Cabinet_2", "find a Cabinet_3"])
    plan = [
        (0, names[0].upper()),
        (1, names[0]),  # another action's name
        (162, "find a  cabinet_2"),
        (163, "find a Cabinet_2"),
        (164, "find a Cabinet_4"),  # no such id
        (-1, names[-1]),
    ]
    text = plan_text(plan)[:-2] + ', {"action_id": 3}, {"action_name": "find a Pan"}]}'
    assert plan_metrics([text], [own], vocabulary=EB_ALFRED)["id_name_agreement"] == pytest.approx(2 / 6)
    # Over the steps of all completions, not a mean of the completions' shares.
    both = plan_metrics([text, plan_text([(0, names[0])]), "no plan"], [own] * 3, vocabulary=EB_ALFRED)
    assert both["id_name_agreement"] == pytest.approx(3 / 7)
    assert "id_name_agreement" not in plan_metrics([text], [own])
    assert "id_name_agreement" not in plan_metrics(["no plan"], [own], vocabulary=EB_ALFRED)


def test_the_vocabulary_is_found_by_the_ground_truths():
    alfred = row((0, EB_ALFRED.names[0]), (162, "find a Vase_2"), action_list=["find a Vase_2"])
    house = row((100, HOUSEHOLD.names[100]), (0, HOUSEHOLD.names[0]))
    assert find_vocabulary([alfred]) is EB_ALFRED and find_vocabulary([house]) is HOUSEHOLD
    assert find_vocabulary([alfred] * 9 + [row((7, "?"))] * 2) is EB_ALFRED  # 18 of 20
    assert find_vocabulary([alfred] * 8 + [row((7, "?"))] * 2) is None  # 16 of 18
    assert find_vocabulary([{"ground_truth": ["Find a Vase_2"], "action_list": ["find a Vase_2"]}]) is EB_ALFRED
    assert find_vocabulary([{"ground_truth": ["goto vase"]}]) is None
    assert find_vocabulary([{"ground_truth": [1, 2]}, {"prompt": "x"}]) is None
