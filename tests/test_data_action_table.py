"""The check of plans by a row's actions, and lists of actions in the forms data sets have."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrpo.data.action_table import (
    ID_FROM_NAME,
    RESPELLED,
    ActionTable,
    action_table,
    fit_plan,
    listed_actions,
    read_action_list,
)
from stepgrpo.data.eb_alfred import ACTIONS
from stepgrpo.data.household import ACTIONS as HOUSEHOLD_ACTIONS
from stepgrpo.data.report import ReadReport, Unfit
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.rule import read_ground_truth
from stepgrpo.vocabulary import EB_ALFRED, HOUSEHOLD, OWN

TABLE = ActionTable(EB_ALFRED, ("find a Vase_2", "find a Cabinet_2"))


def step(action_id, name):
    return {"action_id": action_id, "action_name": name}


def test_a_step_gets_what_it_lacks():
    assert TABLE.fit([PlanStep(6, None), PlanStep(None, "find a CD"), PlanStep(163, "find a Cabinet_2")]) == (
        [step(6, "find a CD"), step(6, "find a CD"), step(163, "find a Cabinet_2")],
        [],
    )


def test_what_is_repaired_is_said_once():
    plan, changes = TABLE.fit([PlanStep(6, "Find a  cd"), PlanStep(6, "FIND A CD"), PlanStep(999, "find a vase_2")])
    assert plan == [step(6, "find a CD")] * 2 + [step(162, "find a Vase_2")]
    assert changes == [RESPELLED, ID_FROM_NAME]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (PlanStep(164, None), "an action id that the list of actions has not"),
        (PlanStep(-1, None), "an action id that the list of actions has not"),
        (PlanStep(None, "fly"), "an action name that the list of actions has not"),
        (PlanStep(6, "find a Cart"), "an action id and name that are not the same action"),
        (PlanStep(6, "fly"), "an action id and name that are not the same action"),
        (PlanStep(999, "fly"), "an action id and name that are not the same action"),
    ],
)
def test_what_is_no_action_is_dropped_with_its_place(bad, reason):
    report = ReadReport()
    assert fit_plan(TABLE, [PlanStep(0, None), bad], "row 7", report, rows=3) is None
    assert report.dropped == {reason: 3} and report.first[reason].startswith("row 7, step 1, ")


def test_the_lists_of_the_three_tables():
    whole = dict(enumerate([*ACTIONS, "find a Vase_2"]))
    assert action_table(whole) == action_table({162: "find a Vase_2"}) == ActionTable(EB_ALFRED, ("find a Vase_2",))
    assert action_table({0: "find a cart", 79: "find a Sink"}) == ActionTable(EB_ALFRED)  # a part of the fixed ones
    assert action_table(dict(enumerate(HOUSEHOLD_ACTIONS))) == ActionTable(HOUSEHOLD)
    assert action_table({0: "goto desk", 1: "pickup cd"}) == ActionTable(OWN, ("goto desk", "pickup cd"))
    for gaps in ({162: "find a Vase_2", 164: "x"}, {0: "goto desk", 2: "pickup cd"}, {1: "goto desk"}):
        with pytest.raises(Unfit, match="gaps"):
            action_table(gaps)


def test_forms_of_a_list():
    expected = {162: "find a Vase_2", 163: "find a Cabinet_2"}
    names = list(expected.values())
    for value in (
        names,
        json.dumps(names),
        expected,
        json.dumps(expected),
        [[162, names[0]], [163, names[1]]],
        [{"id": 162, "name": names[0]}, {"action_id": "163", "action_name": names[1]}],
    ):
        assert read_action_list(value) == expected
    assert read_action_list([*ACTIONS, names[0]])[162] == names[0]
    assert read_action_list(None) == read_action_list("") == read_action_list([]) == {}
    for value in (7, "find a Cart", [[1, 2, 3]], [{"id": 1}], {"one": "x"}, [[float("inf"), "x"]]):
        with pytest.raises(Unfit, match="a list of actions that cannot be read"):
            read_action_list(value)


def test_the_list_in_a_prompt_and_not_its_history():
    prompt = (
        "## The available action id (0 ~ 2) and action names are: \naction id 0: find a Cart, \naction id 1: find a Potato, "
        "\naction id 2: find a Cabinet_2.\n\nThe action history:\nStep 0, action id 1, find a Potato, env feedback: ok"
    )
    assert listed_actions(prompt) == {0: "find a Cart", 1: "find a Potato", 2: "find a Cabinet_2"}
    assert listed_actions("action id 0: a, action id 1: b.") == {0: "a", 1: "b"}
    assert listed_actions("no list") == {}


FORMS = {
    "steps": lambda plan: plan,
    "ids": lambda plan: [item["action_id"] for item in plan],
    "names": lambda plan: [item["action_name"] for item in plan],
    "pairs": lambda plan: [[item["action_id"], item["action_name"]] for item in plan],
    "json": json.dumps,
    "python": lambda plan: str([item["action_name"] for item in plan]),
    "actions": lambda plan: [{"action": [item["action_id"], item["action_name"]]} for item in plan],
    "plan": lambda plan: {"executable_plan": plan},
}


@given(st.lists(st.integers(0, len(TABLE.names) - 1), min_size=1), st.sampled_from(sorted(FORMS)))
def test_a_plan_comes_back_from_every_form(ids, form):
    plan = [step(index, TABLE.names[index]) for index in ids]
    assert TABLE.fit(read_ground_truth(FORMS[form](plan))) == (plan, [])
