"""docs/rewards.md says what the code does."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from stepgrpo.recipe import VerifyArguments
from stepgrpo.rewards.format import TEXT_KEYS, make_plan_format_reward
from stepgrpo.rewards.plan import lcs_share, plan_reward
from stepgrpo.rewards.registry import _HOME, VERIFY, load_rewards

TEXT = (Path(__file__).parents[1] / "docs" / "rewards.md").read_text(encoding="utf-8")
STEPS = [
    {"action_id": i, "action_name": n}
    for i, n in ((1, "find a Potato"), (81, "pick up the Potato"), (79, "find a Sink"))
]


def table(first):
    """The rows of the table whose header begins with this cell, as lists of cells."""
    lines = TEXT.split(f"\n| {first} |", 1)[1].splitlines()
    rows = [
        line.strip("| ").split(" | ") for line in lines[1:][: next(i for i, line in enumerate(lines[1:]) if not line)]
    ]
    return [[cell.strip("` ") for cell in row] for row in rows[1:]]


def test_every_reward_and_setting_is_described():
    assert {row[0] for row in table("name")} == {*_HOME, VERIFY}
    settings = {name for row in table("field") for name in re.findall("verify_[a-z_]+", row[0])}
    assert settings == {field.name for field in dataclasses.fields(VerifyArguments)}


def test_the_numbers_of_the_example():
    plans = [
        json.dumps({**dict.fromkeys(TEXT_KEYS, ""), "executable_plan": STEPS}),
        json.dumps({"executable_plan": [STEPS[0], STEPS[2]]}),
        "```json\n" + json.dumps({"executable_plan": [{"action_id": step["action_id"]} for step in STEPS]}) + "\n```",
        "I cannot do that.",
    ]
    names = ["exact_match", "lcs", "prefix", "key_steps", "plan_format"]
    rows = TEXT.split("| | `exact_match` | `lcs` |", 1)[1].splitlines()[2:6]
    said = [list(map(float, row.strip("| ").split(" | ")[1:])) for row in rows]
    columns = [reward(plans, gt_action_close=[STEPS] * 4) for reward in load_rewards(names)]
    assert said == [[pytest.approx(value, abs=0.005) for value in row] for row in zip(*columns, strict=True)]


def test_the_code_of_the_examples():
    space = {}
    exec(re.search(r"```python\n(from stepgrpo import parse_plan.*?)```", TEXT, re.DOTALL)[1], space)
    assert space["short_plans"](['{"executable_plan": [1, 2]}', "no"], gt_action_close=[]) == [-0.1, None]
    share = plan_reward(lcs_share, gt_field="steps", plan_key="todo", name="share")
    form = make_plan_format_reward(("thought",), "todo", {"verb": str}, name="form")
    exec(re.search(r"```python\n(from stepgrpo.rewards.format.*?)```", TEXT, re.DOTALL)[1], space)
    text = '{"thought": "", "todo": [{"verb": "go"}, {"action_id": 4}]}'
    assert space["share"]([text], steps=[[4, 5]]) == share([text], steps=[[4, 5]]) == [0.5]
    assert space["form"]([text]) == form([text]) == [0.75]
