"""The reward for EmbodiedBench's keys and types."""

import json

import pytest

from stepgrpo.rewards.format import TEXT_KEYS, make_plan_format_reward, plan_format_reward

TEXTS = dict.fromkeys(TEXT_KEYS, "words")
STEP = {"action_id": 3, "action_name": "find a Pan"}


def answer(plan, **changes):
    return json.dumps({**TEXTS, "executable_plan": plan, **changes})


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (answer([STEP, STEP]), 1.0),
        ("\n " + answer([STEP]) + "\n", 1.0),
        (answer([{**STEP, "why": 1}], more=[]), 1.0),  # more keys do no harm
        (answer([STEP, "find a Pan", STEP, [3, "find a Pan"]]), 0.5 + 0.5 * 2 / 4),
        (answer([{"action_id": "3", "action_name": "x"}, {"action_id": 3}, STEP, {**STEP, "action_name": 4}]), 0.625),
        (answer([{**STEP, "action_id": True}]), 0.5),
        (answer([{**STEP, "action_id": 3.0}]), 0.5),
        (answer([]), 0.5),
        (answer([STEP], language_plan=None), 0.5),
        (answer([STEP], language_plan=["words"]), 0.5),
        (json.dumps({"executable_plan": [STEP]}), 0.5),
        (json.dumps({"executable_plan": [STEP, 1]}), 0.25),
        (answer(STEP), 0.0),
        (json.dumps(TEXTS), 0.0),
        (json.dumps([STEP]), 0.0),
        ("```json\n" + answer([STEP]) + "\n```", 0.0),
        (answer([STEP])[:-1], 0.0),
        ("[" * 100_000, 0.0),
        ('{"executable_plan": [' + "9" * 5000, 0.0),
        ("", 0.0),
    ],
)
def test_by_hand(text, score):
    assert plan_format_reward([text]) == [score]
    assert plan_format_reward([[{"role": "assistant", "content": text}]], gt_action_close=[None]) == [score]


def test_other_keys():
    reward = make_plan_format_reward(("thought",), "todo", {"verb": str, "done": bool}, name="my_format")
    good = {"thought": "hm", "todo": [{"verb": "go", "done": True}, {"verb": "go", "done": 1}]}
    assert reward.__name__ == "my_format"
    assert reward([json.dumps(good), json.dumps({**good, "thought": 1}), answer([STEP])]) == [0.75, 0.25, 0.0]
