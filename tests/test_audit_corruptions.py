"""Plans damaged in known ways, and the label of every step."""

import random

import pytest

from stepgrpo.audit.actions import Actions, actions_of, paraphrase, verb_and_thing
from stepgrpo.audit.corruptions import CORRUPTIONS, NONE, corrupted_plans
from stepgrpo.audit.run import works_in_household
from stepgrpo.data.household import household_rows, make_step
from stepgrpo.segment.plan import PlanStep

FIND_MUG, PICK_MUG = PlanStep(1, "find a Mug"), PlanStep(2, "pick up the Mug")
FIND_DESK, PUT = PlanStep(3, "find a Desk"), PlanStep(4, "put down the object in hand")
FIND_PEN, PICK_PEN = PlanStep(5, "find a Pen"), PlanStep(6, "pick up the Pen")
TRUTH = [FIND_MUG, PICK_MUG, FIND_DESK, PUT]
ACTIONS = Actions([*TRUTH, FIND_PEN, PICK_PEN])


def variants(corruption, truth=TRUTH, actions=ACTIONS, works=None, seed=0):
    return list(corrupted_plans(truth, corruption, actions, random.Random(seed), works))


def as_pairs(plans):
    """Plans in an order that does not depend on chance, each as (name, kind) pairs."""
    return sorted([(step.action_name, kind) for step, kind in zip(plan.steps, plan.kinds)] for plan in plans)


def test_none_is_the_plan_itself():
    (plan,) = variants(NONE)
    assert plan.steps == TRUTH and plan.right == [True] * 4 and plan.kinds == ["plain"] * 4


def test_same_verb():
    plans = variants("same_verb")
    assert len(plans) == 3  # there is no other way to put down
    for plan in plans:
        (wrong,) = [i for i, right in enumerate(plan.right) if not right]
        assert plan.steps[wrong] != TRUTH[wrong]
        assert plan.steps[wrong].action_name.split()[0] == TRUTH[wrong].action_name.split()[0]
        assert [*plan.steps[:wrong], TRUTH[wrong], *plan.steps[wrong + 1 :]] == TRUTH
        assert plan.kinds[wrong] == "wrong" and plan.kinds[wrong + 1] == "after_wrong"
        assert plan.kinds.count("plain") == 2
    assert as_pairs(variants("same_verb", [FIND_MUG, PICK_MUG]))[1] == [
        ("find a Mug", "plain"),
        ("pick up the Pen", "wrong"),
    ]


def test_other_verb():
    plans = variants("other_verb")
    assert len(plans) == 4
    for plan in plans:
        (wrong,) = [i for i, right in enumerate(plan.right) if not right]
        assert plan.steps[wrong].action_name.split()[0] != TRUTH[wrong].action_name.split()[0]


def test_wrong_id_keeps_the_name():
    plans = variants("wrong_id")
    assert len(plans) == 4
    for plan in plans:
        assert [step.action_name for step in plan.steps] == [step.action_name for step in TRUTH]
        (wrong,) = [i for i, right in enumerate(plan.right) if not right]
        assert plan.steps[wrong].action_id in {1, 2, 3, 4, 5, 6} - {TRUTH[wrong].action_id}
        assert [i for i in range(4) if plan.steps[i].action_id != TRUTH[i].action_id] == [wrong]


def test_insertion():
    plans = variants("insertion")
    assert len(plans) == 5
    for plan in plans:
        wrong = plan.right.index(False)
        assert [*plan.steps[:wrong], *plan.steps[wrong + 1 :]] == TRUTH and plan.right.count(False) == 1
        assert plan.steps[wrong] not in TRUTH[max(wrong - 1, 0) : wrong + 1]  # that would be a repeated step
        assert plan.kinds[wrong + 1 : wrong + 2] in (["after_wrong"], [])


def test_deletion_blames_the_step_that_comes_too_early():
    assert as_pairs(variants("deletion")) == [
        [("find a Mug", "plain"), ("find a Desk", "after_gap"), ("put down the object in hand", "after_wrong")],
        [("find a Mug", "plain"), ("pick up the Mug", "plain"), ("put down the object in hand", "after_gap")],
        [("pick up the Mug", "after_gap"), ("find a Desk", "after_wrong"), ("put down the object in hand", "plain")],
    ]
    assert [plan.right for plan in variants("deletion", [FIND_MUG, PICK_MUG])] == [[False]]
    assert variants("deletion", [FIND_MUG]) == [] and variants("deletion", [FIND_MUG, FIND_MUG]) == []


def test_swap_blames_both():
    first, second = "swapped_first", "swapped_second"
    assert as_pairs(variants("swap", TRUTH[:3])) == [
        [("find a Mug", "plain"), ("find a Desk", first), ("pick up the Mug", second)],
        [("pick up the Mug", first), ("find a Mug", second), ("find a Desk", "after_wrong")],
    ]
    assert all(plan.right.count(False) == 2 for plan in variants("swap"))
    assert variants("swap", [PUT, PUT]) == []


def test_repeat_blames_the_second():
    assert as_pairs(variants("repeat", TRUTH[:2])) == [
        [("find a Mug", "plain"), ("find a Mug", "wrong"), ("pick up the Mug", "after_wrong")],
        [("find a Mug", "plain"), ("pick up the Mug", "plain"), ("pick up the Mug", "wrong")],
    ]


def test_paraphrase_keeps_the_id_and_is_right():
    plans = variants("paraphrase")
    assert len(plans) == 4
    for plan in plans:
        assert [step.action_id for step in plan.steps] == [1, 2, 3, 4] and all(plan.right)
        assert plan.kinds.count("changed") == 1 and plan.kinds.count("plain") == 3
        changed = plan.kinds.index("changed")
        assert plan.steps[changed].action_name not in {step.action_name for step in ACTIONS.pool}


def test_a_reordering_is_right_only_where_something_says_that_it_works():
    assert variants("reordering") == []

    def works(steps):
        return [step.action_id for step in steps] == [1, 3, 2, 4]

    (plan,) = variants("reordering", works=works)
    assert plan.steps == [FIND_MUG, FIND_DESK, PICK_MUG, PUT]
    assert plan.kinds == ["plain", "changed", "changed", "plain"] and all(plan.right)


def test_what_does_no_harm_is_not_called_wrong():
    harmless = [FIND_MUG, FIND_DESK, PICK_MUG, PUT]
    swaps = variants("swap", works=lambda steps: list(steps) == harmless)
    assert len(swaps) == 2 and harmless not in [plan.steps for plan in swaps]
    assert variants("swap", works=lambda steps: True) == [] and variants("deletion", works=lambda steps: True) == []
    # A step too many is wrong even where it does no harm.
    assert len(variants("repeat", works=lambda steps: True)) == 4


def test_the_household_proves_reorderings_and_mistakes():
    reordered = 0
    for number, row in enumerate(household_rows("train", 40)):
        truth = [PlanStep(**step) for step in row["gt_action_close"]]
        (actions,) = actions_of([row], [truth])

        def works(steps, row=row):
            return works_in_household(row, steps)

        assert works(truth)
        for plan in variants("reordering", truth, actions, works, number):
            reordered += 1
            assert works(plan.steps) and plan.steps != truth
            assert sorted(map(repr, plan.steps)) == sorted(map(repr, truth))
            assert plan.kinds == ["plain" if a == b else "changed" for a, b in zip(plan.steps, truth)]
        for corruption in ("same_verb", "other_verb", "wrong_id", "deletion", "swap"):
            assert not any(works(plan.steps) for plan in variants(corruption, truth, actions, works, number))
    assert reordered > 10


def test_a_substitution_that_means_the_same_place_is_not_used():
    """The household's sink has the faucet: looking for either ends at the same place."""
    names = ["find a Mug", "pick up the Mug", "find a Sink", "put down the object in hand"]
    scene = {"places": {"Desk": ["Mug"], "Sink": []}, "open": []}
    goal = {"type": "pick_and_place_simple", "object": "Mug", "target": "Sink", "carrier": None, "sliced": False}
    row = {"scene": {**scene, "goal": goal}}
    truth = [PlanStep(**make_step(name)) for name in names]
    assert works_in_household(row, truth)
    actions = Actions([PlanStep(**make_step("find a Faucet"))])
    assert [plan.kinds.index("wrong") for plan in variants("same_verb", truth, actions)] in ([0, 2], [2, 0])
    (plan,) = variants("same_verb", truth, actions, lambda steps: works_in_household(row, steps))
    assert plan.kinds.index("wrong") == 0


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_the_seed_decides(corruption):
    def works(steps):
        return corruption == "reordering"

    def orders(seed):
        return [plan.steps for plan in variants(corruption, works=works, seed=seed)]

    assert orders(1) == orders(1)
    assert any(orders(seed) != orders(1) for seed in range(2, 20))


def test_an_unknown_corruption_names_the_choices():
    with pytest.raises(ValueError, match=r"'typo'.*none, same_verb"):
        variants("typo")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("find a Mug", ("find", "mug")),
        ("pick up  the Mug", ("pick up", "mug")),
        ("turn on the DeskLamp", ("turn on", "desklamp")),
        ("put down the object in hand", ("put down", "object in hand")),
        ("goto fridge 1", ("goto", "fridge 1")),
        ("Stop", ("stop", "")),
    ],
)
def test_verb_and_thing(name, expected):
    assert verb_and_thing(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("find a Mug", {"locate a Mug", "look for a Mug"}),
        ("Pick  up the Mug", {"grab the Mug", "take hold of the Mug"}),
        ("turn off the DeskLamp", {"switch off the DeskLamp"}),
        ("visit the DeskLamp", {"visit the desk lamp"}),
        ("go_to fridge", {"go to fridge"}),
        ("finder", {None}),
    ],
)
def test_paraphrases(name, expected):
    assert {paraphrase(name, random.Random(seed)) for seed in range(20)} == expected


def test_substitutes_are_things_that_the_prompt_names():
    pool = [FIND_MUG, FIND_PEN, FIND_DESK, PUT]
    assert Actions(pool, frozenset({"pen", "put"})).substitutes([FIND_MUG], verb="find") == [FIND_PEN]
    assert Actions(pool, frozenset({"sofa"})).substitutes([FIND_MUG], verb="find") == [FIND_PEN, FIND_DESK]
    # What is more than one word is nothing that a scene would list.
    assert Actions(pool, frozenset({"pen"})).substitutes([FIND_MUG]) == [FIND_PEN, PUT]
    assert Actions(pool).substitutes([PlanStep(None, "FIND a pen"), PlanStep(1, "other")], verb="find") == [FIND_DESK]


def test_where_a_rows_actions_come_from():
    prompt = [{"role": "user", "content": "Get the Mug to the Desk."}]
    listed = {"prompt": prompt, "action_list": {str(n): name for n, name in enumerate(["hop", "skip", "jump"])}}
    hop = [PlanStep(0, "hop")]
    assert [step.action_name for step in actions_of([listed], [hop])[0].pool] == ["hop", "skip", "jump"]

    known = {"prompt": prompt, "gt_action_close": [make_step("find a Mug")]}
    truth = [PlanStep(**make_step("find a Mug"))]
    (actions,) = actions_of([known], [truth])
    assert len(actions.pool) == 208 and {"get", "mug", "desk"} <= actions.words

    odd = [{"prompt": "go", "gt_action_close": [{"action_id": 7, "action_name": name}]} for name in ("hop", "skip")]
    truths = [[PlanStep(7, "hop")], [PlanStep(7, "skip"), PlanStep(7, "hop")]]
    assert [step.action_name for step in actions_of(odd, truths)[0].pool] == ["hop", "skip"]

    bare = [PlanStep(None, "find a Mug")]
    assert {step.action_id for step in actions_of([known], [bare])[0].pool} == {None}
