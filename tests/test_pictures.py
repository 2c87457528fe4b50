"""Heatmap and curves: colours, line breaks and means worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stepgrpo.report.curve import draw_curves, running_mean
from stepgrpo.report.heatmap import colour, draw_heatmap, lay_out


def test_red_is_positive_white_is_zero_blue_is_negative():
    assert colour(0.0, 1.0) == colour(float("nan"), 1.0) == colour(0.5, 0.0) == (1.0, 1.0, 1.0)
    assert colour(1.0, 1.0) == (1.0, 0.25, 0.25)
    assert colour(-1.0, 2.0) == (0.625, 0.625, 1.0)
    assert colour(-9.0, 2.0) == (0.25, 0.25, 1.0)


def test_lines_break_where_they_are_full_and_after_a_step():
    assert lay_out(["ab", "cd", "ef"], columns=4) == [[(0, "ab", 0), (2, "cd", 1)], [(0, "ef", 2)]]
    assert lay_out(['"}, ', "x"], columns=9) == [[(0, '"}, ', 0)], [(0, "x", 1)]]
    assert lay_out(["abcdefg"], columns=3) == [[(0, "abc", 0)], [(0, "def", 0)], [(0, "g", 0)]]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30)), st.integers(1, 12))
def test_every_character_of_every_token_is_shown_once_and_no_line_is_too_long(tokens, columns):
    shown = [""] * len(tokens)
    for line in lay_out(tokens, columns):
        end = 0
        for column, text, index in line:
            assert column == end
            end += len(text)
            shown[index] += text
        assert 0 < end <= columns
    assert [len(text) for text in shown] == [len(token) for token in tokens]


def test_the_heatmap_shows_the_colours_of_its_values(tmp_path):
    draw_heatmap(["ok", "meh$", "bad\n"], [1.0, 0.0, -1.0], tmp_path / "a.png", title="a $ b")
    colours = {value for _, value in Image.open(tmp_path / "a.png").convert("RGB").getcolors(10**6)}
    red, blue = ((255, 64, 64), (64, 64, 255))
    assert any(max(abs(a - b) for a, b in zip(red, seen)) <= 1 for seen in colours)
    assert any(max(abs(a - b) for a, b in zip(blue, seen)) <= 1 for seen in colours)


def test_the_heatmap_needs_one_value_per_token(tmp_path):
    with pytest.raises(ValueError, match="2 tokens but 1 values"):
        draw_heatmap(["a", "b"], [1.0], tmp_path / "a.png")


def test_the_running_mean_looks_back_only():
    assert running_mean([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]
    assert running_mean([], 3) == []


def test_curves_of_different_lengths_are_drawn(tmp_path):
    draw_curves({"a": [0.0, 1.0], "b": [0.5]}, tmp_path / "c.png", "update", "success", window=2)
    assert Image.open(tmp_path / "c.png").size[0] > 300
