"""The shared collection of plan texts as models write them."""

import json
from pathlib import Path

import pytest

from stepgrpo.segment.plan import parse_plan

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "plan_cases.jsonl"


def load_cases():
    if not CASES.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="../shared/cases/plan_cases.jsonl is not here"))]
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [pytest.param(case, id=case["id"]) for case in cases]


@pytest.mark.parametrize("case", load_cases())
def test_shared_case(case):
    steps = parse_plan(case["response_text"])
    expected = case["expected_steps"]
    if expected is None:
        assert steps is None
        return
    assert steps is not None
    assert [(s.action_id, s.action_name) for s in steps] == [(s["action_id"], s["action_name"]) for s in expected]
    for key, field in (("step_spans", "step"), ("id_spans", "action_id"), ("name_spans", "action_name")):
        assert [s.spans.get(field) for s in steps] == [None if x is None else tuple(x) for x in case[key]], field
