"""From the teacher's numbers to scores, and from scores to what the audit says."""

import math
import random

import pytest

from stepgrpo.audit.cases import FIELD_SETS, make_cases
from stepgrpo.audit.corruptions import CORRUPTIONS, NONE
from stepgrpo.audit.measure import counts, measure
from stepgrpo.audit.scores import StepScores, modulated_signals, rule_signals, score_case, teacher_signals
from stepgrpo.segment.plan import PlanStep, field_spans
from stepgrpo.signal.forward_proxy import TokenLogps

NAMES = [
    "find a Mug",
    "pick up the Mug",
    "find a Desk",
    "put down the object in hand",
    "find a Pen",
    "pick up the Pen",
]
TRUTH = [PlanStep(index, NAMES[index]) for index in range(4)]
ROW = {
    "prompt": "Bring the Mug and the Pen to the Desk.",
    "gt_action_close": [{"action_id": step.action_id, "action_name": step.action_name} for step in TRUTH],
    "action_list": dict(enumerate(NAMES)),
}


@pytest.fixture(scope="module")
def cases(tiny_tokenizer):
    made, missing = make_cases([ROW, ROW], [TRUTH, TRUTH], tiny_tokenizer, copies=2)
    assert missing == {name: 2 * (name == "reordering") for name in (NONE, *CORRUPTIONS)}
    return made


def flat(cases):
    return [case for group in cases for case in group]


def test_a_case_is_a_completion_whose_tokens_are_known(cases, tiny_tokenizer):
    assert [len(group) for group in cases] == [17, 17]  # two of eight kinds, and one whole plan
    for case in flat(cases):
        rollout = case.rollout
        assert rollout.text == tiny_tokenizer.decode(rollout.token_ids) and rollout.row is ROW
        assert rollout.steps == case.plan.steps and rollout.failure is None
        assert case.positions == sorted(set(case.positions))
        for name, fields in FIELD_SETS.items():
            for step, owned in zip(rollout.steps, case.owned[name]):
                spans = [rollout.token_spans[case.positions[i]] for i in owned]
                for start, end in field_spans(step, fields):
                    assert any(a <= start < b for a, b in spans) and any(a < end <= b for a, b in spans)
        for i, n, both in zip(case.owned["action_id"], case.owned["action_name"], case.owned["both"]):
            assert i and n and sorted([*i, *n]) == both


def test_the_same_seed_makes_the_same_plans(cases, tiny_tokenizer):
    def texts(seed):
        return [case.rollout.text for case in flat(make_cases([ROW], [TRUTH], tiny_tokenizer, seed, 2)[0])]

    assert texts(0) == texts(0) == [case.rollout.text for case in cases[0]] != texts(1)


def test_a_tokenizer_that_loses_the_plan_is_refused():
    class Forgetful:
        def __call__(self, text, **kwargs):
            return {"input_ids": [0]}

        def decode(self, ids, **kwargs):
            return '{"executable_plan": [{"action_id": 1, "action_name": "hop"}]}'

    with pytest.raises(ValueError, match="does not give a plan back"):
        make_cases([ROW], [TRUTH], Forgetful())


def test_scores_by_hand(cases):
    case = cases[0][0]
    n = len(case.positions)
    logps = TokenLogps([-0.5] * n, [-0.25] * n, [-1.5] * n)
    found = score_case(case, logps, ("gt_action_close",))
    assert list(found) == [*teacher_signals(), *modulated_signals(), *rule_signals()] and len(found) == 44
    for over in ("mean", "min", "weighted"):
        for fields in FIELD_SETS:
            for how, difference, score in (
                ("contrast", 1.0, math.tanh(1.0)),
                ("prob", -0.5, 2 * math.exp(-0.5) - 1),
                ("margin", -0.25, 2 * math.exp(-0.25) - 1),
            ):
                assert found[f"{how}/{over}/{fields}"].scores == [pytest.approx(score)] * 4
                assert found[f"{how}/{over}/{fields}"].differences == [pytest.approx(difference)] * 4
    for fields in FIELD_SETS:
        tokens = [len(owned) for owned in case.owned[fields]]
        assert found[f"prob/sum/{fields}"].differences == pytest.approx([-0.5 * k for k in tokens])
    assert all(found[name] == StepScores([1.0] * 4, [None] * 4) for name in rule_signals())
    assert found["margin/min/both, sign of rule/lcs"].scores == [pytest.approx(math.exp(-0.25))] * 4


def test_each_field_set_has_its_own_tokens(cases):
    case = cases[0][0]
    weakest = case.owned["action_name"][1][0]
    best = [-0.1] * len(case.positions)
    reference = [-2.1 if i == weakest else -0.1 for i in range(len(best))]
    found = score_case(case, TokenLogps(reference, best, reference), ("gt_action_close",))
    low = pytest.approx(2 * math.exp(-2.0) - 1)
    assert found["margin/min/action_name"].scores == found["margin/min/both"].scores == [1.0, low, 1.0, 1.0]
    assert found["margin/min/action_id"].scores == [1.0] * 4
    names = len(case.owned["action_name"][1])
    assert found["margin/mean/action_name"].differences[1] == pytest.approx(-2.0 / names)
    assert found["margin/mean/both"].differences[1] == pytest.approx(-2.0 / (names + len(case.owned["action_id"][1])))


def test_the_rule_in_its_modes(cases):
    (deleted,) = [case for case in cases[0] if case.plan.corruption == "deletion" and case.plan.kinds[0] == "plain"][
        :1
    ]
    gap = deleted.plan.kinds.index("after_gap")
    zeros = [0.0] * len(deleted.positions)
    found = score_case(deleted, TokenLogps(zeros, zeros, zeros), ("gt_action_close",))
    assert found["rule/lcs"].scores == [1.0, 1.0, 1.0]
    # The teacher gives no number that is not its favourite's here, so it agrees with each step and takes no blame away.
    assert found["margin/min/both, sign of rule/exact"].scores == [1.0] * gap + [0.0] * (3 - gap)
    assert found["rule/exact"].scores == [1.0] * gap + [-1.0] * (3 - gap)
    assert found["rule/first_error"].scores == [1.0] * gap + [-1.0] + [None] * (2 - gap)


def test_another_number_of_numbers_is_refused(cases):
    with pytest.raises(ValueError, match=r"3 numbers for 'contrast'"):
        score_case(cases[0][0], TokenLogps([-1.0] * 3, [0.0] * 3, [-1.0] * 3), ("gt_action_close",))


def test_without_ids_their_signals_have_no_score(tiny_tokenizer):
    bare = [PlanStep(None, step.action_name) for step in TRUTH]
    (group,), missing = make_cases([ROW], [bare], tiny_tokenizer)
    assert missing["wrong_id"] == 1 and '"action_id"' not in group[0].rollout.text
    scored = []
    for case in group:
        values = [-random.Random(t).random() for t in case.positions]
        scored.append((case, score_case(case, TokenLogps(values, [0.0] * len(values), values), ("gt_action_close",))))
    assert scored[0][1]["margin/min/action_id"].scores == [None] * 4
    found = measure(scored, 10)
    assert "margin/min/action_id" not in found and "margin/min/both" in found
    assert found["margin/min/both"]["auroc"] == found["margin/min/action_name"]["auroc"]


def by_label(case, right=1.0, wrong=-1.0, **kinds):
    scores = [kinds.get(kind, right if ok else wrong) for kind, ok in zip(case.plan.kinds, case.plan.right)]
    return {"signal": StepScores(scores, [10 * score for score in scores])}


def test_a_signal_that_knows_everything(cases):
    entry = measure([(case, by_label(case)) for case in flat(cases)], 50)["signal"]
    assert set(entry["auroc"]) == {*CORRUPTIONS, "all"} - {"reordering"}
    assert set(entry["auroc"].values()) == {1.0} and set(entry["hard_cases"].values()) == {1.0}
    assert entry["wrong_rewarded"] == entry["right_punished"] == 0.0
    assert entry["auroc_interval"]["swap"] == [1.0, 1.0] and entry["wrong_rewarded_interval"] == [0.0, 0.0]
    steps = counts(flat(cases))
    share = 1 - sum(part["wrong"] for part in steps.values()) / sum(part["steps"] for part in steps.values())
    assert entry["score"]["mean"] == pytest.approx(2 * share - 1)
    assert entry["difference"]["std"] == pytest.approx(10 * entry["score"]["std"])


def test_a_signal_that_is_constant_is_chance(cases):
    entry = measure([(case, by_label(case, 0.5, 0.5)) for case in flat(cases)], 10)["signal"]
    assert set(entry["auroc"].values()) == {0.5}
    assert entry["wrong_rewarded"] == 1.0 and entry["right_punished"] == 0.0 and entry["score"]["std"] == 0.0


def test_changed_steps_are_compared_with_wrong_substitutes(cases):
    """A signal that takes every other word for a mistake: right steps that were not changed do not hide it."""
    scored = [(case, by_label(case, changed=-2.0)) for case in flat(cases)]
    entry = measure(scored, 10)["signal"]
    assert entry["auroc"]["paraphrase"] == 0.0 and entry["auroc"]["same_verb"] == 1.0
    assert entry["right_punished_by"]["paraphrase"] == 1.0 and entry["right_punished_by"]["none"] == 0.0
    assert "paraphrase" not in entry["wrong_rewarded_by"]


def test_hard_cases_are_those_steps_alone(cases):
    scored = [(case, by_label(case, after_wrong=-1.0, after_gap=1.0, swapped_second=2.0)) for case in flat(cases)]
    entry = measure(scored, 10)["signal"]
    hard = entry["hard_cases"]
    kinds = [kind for case in flat(cases) for kind in case.plan.kinds]
    wrong = [kinds.count(kind) for kind in ("wrong", "swapped_first", "after_gap", "swapped_second")]
    assert hard["after_wrong"] == pytest.approx(0.5 * (wrong[0] + wrong[1]) / sum(wrong), abs=1e-6)
    plain = {name: [k for c in flat(cases) if c.plan.corruption == name for k in c.plan.kinds] for name in CORRUPTIONS}
    gap = plain["deletion"].count("plain"), plain["deletion"].count("after_wrong")
    assert hard["after_gap"] == pytest.approx(0.5 * gap[0] / sum(gap), abs=1e-6)
    swap = plain["swap"].count("plain"), plain["swap"].count("after_wrong")
    assert hard["swapped_first"] == pytest.approx((swap[0] + 0.5 * swap[1]) / sum(swap), abs=1e-6)
    assert hard["swapped_second"] == 0.0
    assert entry["right_punished_by"]["after_wrong"] == 1.0
    assert entry["wrong_rewarded_by"]["swap"] == 0.5 and entry["wrong_rewarded_by"]["deletion"] == 1.0
