"""EB-ALFRED's action table."""

import json
from pathlib import Path

import pytest

from stepgrpo.data.eb_alfred import ACTIONS, action_id, action_name, object_name

REFERENCE = Path(__file__).parents[2] / "shared" / "data" / "eb_alfred_actions.json"


@pytest.mark.skipif(not REFERENCE.is_file(), reason="the benchmark's list of actions is not here")
def test_equals_the_benchmarks_list():
    assert list(ACTIONS) == json.loads(REFERENCE.read_text())


@pytest.mark.parametrize(
    ("index", "name"),
    [
        (0, "find a Cart"),
        (79, "find a Sink"),
        (80, "pick up the KeyChain"),
        (132, "pick up the Vase"),
        (133, "put down the object in hand"),
        (134, "drop the object in hand"),
        (139, "open the Fridge"),
        (150, "turn off the Microwave"),
        (161, "slice the Bread"),
    ],
)
def test_known_ids(index, name):
    assert action_name(index) == name and action_id(name) == index


def test_table_has_162_different_names():
    assert len(set(map(str.casefold, ACTIONS))) == len(ACTIONS) == 162


def test_ids_and_names_a_row_adds():
    own = ["find a Cabinet_2", "find a Vase_2"]
    assert action_name(163, own) == "find a Vase_2" and action_id("find a vase_2", own) == 163
    assert action_name(162) is None and action_name(164, own) is None and action_name(-1, own) is None
    assert action_id("find a Vase_2") is None


def test_names_are_folded():
    assert action_id("  Pick UP the\n keychain ") == 80
    assert action_id("pick up KeyChain") is None


@pytest.mark.parametrize(
    ("alfred", "ours"),
    [
        ("garbagecan", "GarbageCan"),
        ("sinkbasin", "Sink"),
        ("bathtubbasin", "Bathtub"),
        ("cd", "CD"),
        ("Glassbottle_1a2b3c4d", "Glassbottle"),
        ("Pot|-03.48|+01.13|+00.48", "Pot"),
        ("handtowelholder", None),
        ("", None),
    ],
)
def test_object_names(alfred, ours):
    assert object_name(alfred) == ours
