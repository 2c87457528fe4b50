"""Whatever a record holds, a conversion goes on to the next one and counts it."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepgrpo.data.report import ReadReport
from stepgrpo.data.sources import JSON_LINES, SOURCES
from tests.test_alfred import trajectory
from tests.test_data_embodiedbench import TWO

CD = [{"action_id": 6, "action_name": "find a CD"}]
GOOD = {
    "alfred:": trajectory(("PickupObject", "cd"), poses=["CD", "Pen"]),
    "embodiedbench:": TWO,
    "easyr1:": {"id": 1, "problem": "Get it.", "images": [], "answer": CD, "action_list": ["find a CD_2"]},
    "rebp:": {"id": 1, "conversations": [{"role": "user", "content": "Get it."}], "answer": "['find a CD']"},
    "file": {
        "prompt": [{"role": "user", "content": [{"type": "text", "text": "go"}]}],
        "ground_truth": CD,
        "images": [],
        "action_list": [[162, "find a CD_2"]],
    },
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """Every place in a record."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_a_record_with_anything_in_any_place(kind, tmp_path):
    source, good = SOURCES.get(kind, JSON_LINES), GOOD[kind]
    file = tmp_path / "a.jsonl"

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(places(good), key=str)), json_values)
    def check(path, new):
        file.write_text(json.dumps(replaced(good, path, new)) + "\n" + json.dumps(good) + "\n")
        report = ReadReport()
        drafts = source.load(file, None, report, kind != "embodiedbench:")  # whose pictures are not here
        assert drafts
        assert len(drafts) + sum(report.dropped.values()) == report.read

    check()
