"""The tolerant plan reader: hand-written cases for each policy, properties on random texts, long texts.

A case marks what is expected in the text itself: `⟦ ⟧` a step, `⟨ ⟩` its id, `⟪ ⟫` its name; the marks are taken out
before the text is read.
"""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepgrpo.segment.lenient_json import read_value, unescape
from stepgrpo.segment.plan import MAX_ACTION_ID, parse_plan

MARKS = {"⟦": ("step", 0), "⟧": ("step", 1), "⟨": ("action_id", 0), "⟩": ("action_id", 1), "⟪": ("action_name", 0)}
MARKS["⟫"] = ("action_name", 1)

A = '⟦{"action_id": ⟨35⟩, "action_name": "⟪find a Tomato⟫"}⟧'
B = '⟦{"action_id": ⟨129⟩, "action_name": "⟪pick up the Tomato⟫"}⟧'
HEAD = '{"visual_state_description": "A kitchen.", "language_plan": "1. Find it. 2. Pick it up.", '


def plan(*steps):
    return HEAD + '"executable_plan": [' + ", ".join(steps) + "]}"


def only(*steps):
    return '{"executable_plan": [' + ", ".join(steps) + "]}"


def unmark(marked):
    """The text without its marks, and the spans of each step that they stood for."""
    chars, spans = [], []
    for char in marked:
        if char not in MARKS:
            chars.append(char)
            continue
        field, end = MARKS[char]
        if field == "step" and not end:
            spans.append({})
        if end:
            spans[-1][field] = spans[-1][field][0], len(chars)
        else:
            spans[-1][field] = len(chars), len(chars)
    return "".join(chars), spans


def plain(marked):
    return unmark(marked)[0]


def check(marked):
    text, spans = unmark(marked)
    steps = parse_plan(text)
    assert steps is not None
    assert [step.spans for step in steps] == spans
    check_invariants(text, steps)
    return steps


def check_invariants(text, steps):
    """What holds for any text: fields lie in their step, steps in order, and the spans say what the fields say."""
    last = 0
    for step in steps or []:
        start, end = step.spans["step"]
        assert last <= start < end <= len(text)
        last = end
        assert ("action_name" in step.spans) == (step.action_name is not None)
        assert ("action_id" in step.spans) == (step.action_id is not None)
        for field in ("action_id", "action_name"):
            if field in step.spans:
                assert start <= step.spans[field][0] <= step.spans[field][1] <= end
        if step.action_id is not None:
            assert abs(step.action_id) <= MAX_ACTION_ID
            assert step.action_id == int(float(text[slice(*step.spans["action_id"])])) or abs(step.action_id) > 2**53
        if step.action_name is not None:
            decoded = text[slice(*step.spans["action_name"])]
            readings = []
            for _ in range(4):  # once for a string, once more for each string around it
                decoded = unescape(decoded, 0, len(decoded))[0]
                readings.append(decoded)
            assert step.action_name in readings
            step.action_name.encode("utf-8")


DECOY = json.dumps(plain(only(B)))

WHICH_PLAN = {
    "whole answer": plan(A, B),
    "prose around": f'Sure, {{here}} is Tom\'s [plan] and "more":\n{plan(A, B)}\nIt {{first}} finds [it].',
    "lone brackets in prose": "A { brace, a [ bracket, a ] and a }. " + plan(A),
    "quote after a brace in prose": "The {'robot} sees it. " + plan(A),
    "role and special tokens": "<|im_start|>assistant\n" + plan(A) + "<|im_end|><|endoftext|>",
    "special tokens between steps": '{"executable_plan": [<|vision_start|>'
    + A
    + "<|im_end|>, <|image_pad|> "
    + B
    + "]}",
    "draft in a think block": "<think>" + plain(plan(B)) + "</think>" + plan(A),
    "two think blocks": "<think>" + plain(plan(B)) + "</think> hm <thinking>x</thinking>" + plan(A),
    "think tag with an attribute": '<think lang="en">' + plain(plan(B)) + "</think>" + plan(A),
    "draft cut off by the end of thinking": '<think>{"executable_plan": [{"action_id": 1, "action_name": "a </think>'
    + plan(A),
    "think tag in a string": '{"reasoning": "a </think> tag, a <think> tag", "executable_plan": [' + A + "]}",
    "first of two answers": plan(A) + "\n" + plain(plan(B)),
    "cut answer, then a whole one": '{"executable_plan": ['
    + plain(A)
    + ', {"action_id"\n```\nAgain:\n```json\n'
    + plan(B),
    "began again in a name": '{"executable_plan": [' + plain(A) + ', {"action_id": 1, "action_name": "a\n' + plan(B),
    "began again in the reasoning": '{"visual_state_description": "A kit\n' + plan(A),
    "began again after a token": '{"executable_plan": [' + plain(A) + "<|im_end|>\n<|im_start|>assistant\n" + plan(B),
    "echoed template, then the answer": '{"executable_plan": [...]}\n' + plan(A),
    "last of two equal keys": '{"executable_plan": [' + plain(B) + '], "executable_plan": [' + A + "]}",
    "null plan, then an answer": '{"executable_plan": null}\n' + plan(A),
    "bare list": "[" + A + ", " + B + "]",
    "tagged list": "<executable_plan>\n[" + A + "]\n</executable_plan>",
    "bold key without an object": '**executable_plan**: [⟦"⟪find a Tomato⟫"⟧]',
    "decoy in a string": '{"reasoning": ' + DECOY + ', "executable_plan": [' + A + "]}",
    "decoy in a single-quoted string": "{'reasoning': '" + plain(only(B)) + "', 'executable_plan': [" + A + "]}",
    "decoy in an answer in backticks": '`{"reasoning": ' + DECOY + ', "executable_plan": [' + A + "]}`",
    "decoy in a string, the brace around it lost": '"reasoning": "['
    + DECOY[1:-1]
    + ']", "executable_plan": ['
    + A
    + "]}",
    "decoy with raw quotes": '{"reasoning": "or {"executable_plan": [{"action_id": 1, "action_name": "x"}]} no", '
    + '"executable_plan": ['
    + A
    + "]}",
    "nothing but nesting after a step": '{"executable_plan": [' + A + ", " + "[{" * 300,
}

CONTAINERS = {
    "empty plan": '{"executable_plan": []}',
    "only null": '{"executable_plan": [null]}',
    "numbered steps": '{"executable_plan": {"1": ' + A + ', "2": ' + B + "}}",
    "ids": '{"executable_plan": [⟦⟨35⟩⟧, ⟦"⟨129⟩"⟧]}',
    "pairs": '{"executable_plan": [⟦[⟨35⟩, "⟪find a Tomato⟫"]⟧, ⟦[⟨129⟩, "⟪pick it up⟫"]⟧]}',
    "tuples": '{"executable_plan": [⟦(⟨35⟩, "⟪find a Tomato⟫")⟧, ⟦(⟨129⟩, \'⟪pick it up⟫\')⟧]}',
    "names": '{"executable_plan": [⟦"⟪find a "Tomato"⟫"⟧, ⟦"⟪look (up), then go⟫"⟧ ⟦"⟪stop⟫"⟧]}',
    "ellipsis": '{"executable_plan": [' + A + ", ..., " + B + ", ...]}",
    "doubled braces": '{{"executable_plan": [{' + A + "}, {" + B + "}]}}",
    "list in quotes, its own not escaped": '{"executable_plan": "[' + A + ", " + B + ']", "done": true}',
    "list in a string with Python quotes": "{'executable_plan': \"[⟦{'action_id': ⟨35⟩, 'action_name': '⟪x⟫'}⟧]\"}",
    "list missing its end": '{"executable_plan": [' + A + ", " + B + "}",
    "step missing its end": '{"executable_plan": [⟦{"action_id": ⟨35⟩, "action_name": "⟪find⟫"⟧, ' + B + "]}",
    "other lists with a wrong end": '{"k": ["a", "b"}, "executable_plan": [' + A + "]}",
    "commas": '{"executable_plan": [,' + A + ",, " + B + ",],}",
    "comments": '{"executable_plan": [\n# first, {x}\n' + A + ", /* then */ " + B + " // }\n]}",
    "odd but valid": '{"a": ["x", NaN, -Infinity], "b/c (d)": "y", ",:": "z", "executable_plan": [' + A + ', "z"]}',
}
CONTAINERS["odd but valid"] = CONTAINERS["odd but valid"].replace('"z"]', '⟦"⟪z⟫"⟧]')

QUOTES = {
    "curly": "{“executable_plan”: [⟦{“action_id”: ⟨35⟩, ”action_name“: ‘⟪find a Tomato⟫’}⟧]}",
    "curly and straight": '{"executable_plan”: [⟦{"action_id”: ⟨35⟩, "action_name”: “⟪find a Tomato⟫"}⟧, ' + B + "]}",
    "closed by a curly one": '{"executable_plan": [⟦{"action_id": ⟨35⟩, "action_name": "⟪find⟫”}⟧, ' + B + "]}",
    "apostrophes": "{'r': 'It's ok', 'executable_plan': [⟦{'action_id': ⟨35⟩, 'action_name': '⟪find Tom's mug⟫'}⟧]}",
    "quotes in a string": '{"r": "He said "go", "wait" and left", "executable_plan": [' + A + "]}",
    "escaped everywhere": '{\\"executable_plan\\": [⟦{\\"action_id\\": ⟨35⟩, \\"action_name\\": \\"⟪find⟫\\"}⟧]}',
    "escaped with line breaks": '{\\n \\"executable_plan\\": [\\n⟦{\\"action_id\\": ⟨35⟩}⟧\\n]\\n}',
    "escaped list": '[⟦{\\"action_id\\": ⟨35⟩, \\"action_name\\": \\"⟪find⟫\\"}⟧]',
    "escaped as code points": "{\\u0022executable_plan\\u0022: [⟦{\\u0022action_id\\u0022: ⟨35⟩}⟧]}",
    "escaped twice": '{\\\\"executable_plan\\\\": [⟦{\\\\"action_id\\\\": ⟨35⟩}⟧, ⟦\\\\"⟪stop⟫\\\\"⟧]}',
    "escaped line breaks only": '{\\n"executable_plan": [\\n⟦{"action_id": ⟨35⟩,\\n"action_name": "⟪find⟫"\\n}⟧,\\n'
    + B
    + "]}",
    "name not closed": '{"executable_plan": [⟦{"action_id": ⟨35⟩, "action_name": "⟪find a Tomato⟫}⟧, ' + B + "]}",
    "last name not closed": '{"executable_plan": [' + A + ', ⟦{"action_id": ⟨129⟩, "action_name": "⟪pick⟫}⟧]}',
    "name closed by an escaped quote": '{"executable_plan": [⟦{"action_id": ⟨35⟩, "action_name": "⟪find⟫\\"}⟧, '
    + B
    + "]}",
    "name not opened": '{"executable_plan": [⟦{"action_id": ⟨35⟩, "action_name": ⟪find a Tomato⟫"}⟧, ' + B + "]}",
    "id not closed": '{"executable_plan": [⟦{"action_id": "⟨35⟩, "action_name": "⟪find⟫"}⟧, ' + B + "]}",
    "id not opened": '{"executable_plan": [⟦{"action_id": ⟨35⟩", "action_name": "⟪find⟫"}⟧, ' + B + "]}",
    "reasoning not closed": '{"r": "I need it, "p": "1. find\n  "executable_plan": [' + A + "]}",
    "reasoning not opened": '{"r": I need it, "executable_plan": [' + A + "]}",
    "keys not closed": '{"executable_plan: [⟦{"action_id: ⟨35⟩, "action_name: "⟪find⟫"}⟧, ⟦{action_id": ⟨1⟩}⟧]}',
    "no quotes at keys": '{executable_plan: [⟦{action_id: ⟨35⟩, action_name: "⟪find⟫"}⟧]}',
    "invisible white space": "\ufeff{\u200b“executable_plan”\u2060:\xa0[⟦{“name”:\u200d“⟪x⟫”\u200c}⟧]}",
    "full-width in strings": '{"r": "先｛番茄，"刀"：｝［1］", "executable_plan": [⟦{"action_name": "⟪找，：｝⟫"}⟧]}',
}

FIELDS = {
    "id in a string": only(
        '⟦{"action_id": "⟨17⟩"}⟧',
        '⟦{"action_id": "⟨ 17 ⟩"}⟧',
        '⟦{"action_id": "⟨17.0⟩"}⟧',
    ),
    "signs": '{"executable_plan": [⟦{"action_id": ⟨-1⟩}⟧, ⟦{"action_id": ⟨+7⟩}⟧]}',
    "id and name in one": only(
        '⟦{"action_id": "⟨35⟩ - ⟪find⟫"}⟧',
        '⟦{"action_id": "⟨3⟩: x", "action_name": "⟪x⟫"}⟧',
    ),
    "name only": '{"executable_plan": [⟦{"action_name": "⟪35: find⟫"}⟧, ⟦{"action": "⟪stop⟫"}⟧]}',
    "empty name": '{"executable_plan": [⟦{"action_id": ⟨35⟩, "action_name": "⟪⟫"}⟧]}',
    "name is no string": only(
        '⟦{"action_id": ⟨35⟩, "action_name": 12}⟧',
        '⟦{"action_id": ⟨1⟩, "action_name": ["a"]}⟧',
    ),
    "name first": '{"executable_plan": [⟦{"action_name": "⟪find⟫", "action_id": ⟨35⟩}⟧, ⟦{}⟧]}',
    "other ids": only(
        '⟦{"id": 1, "action_id": ⟨35⟩, "a": {"action_id": 7}}⟧',
        '⟦{"id": 1, "name": "⟪find⟫"}⟧',
    ),
    "last of equal fields": only('⟦{"action_id": 1, "action_id": ⟨35⟩, "action_name": "a", "action_name": "⟪b⟫"}⟧'),
    "key spelling": '{"executablePlan": [⟦{"actionId": ⟨35⟩, "action-name": "⟪find⟫"}⟧, ⟦{"action\\_id": ⟨1⟩}⟧]}',
    "escapes": '{"executable_plan": [⟦{"action_name": "⟪a\\/b\\n\\"c\\" \\u00e9 \\ud83c\\udf45 \\_⟫"}⟧]}',
}

CUT = {
    "in the name": '{"executable_plan": [' + A + ', {"action_id": 129, "action_name": "pick',
    "in an escape": '{"executable_plan": [' + A + ', {"action_id": 129, "action_name": "pick\\',
    "after the name": '{"executable_plan": [' + A + ', ⟦{"action_id": ⟨129⟩, "action_name": "⟪pick⟫"⟧',
    "after the id": '{"executable_plan": [' + A + ', {"action_id": 129, ',
    "in the id": '{"executable_plan": [' + A + ', {"action_id": 12<|im_end|>',
    "in the id after the name": '{"executable_plan": [' + A + ', {"action_name": "pick", "action_id": "12',
    "between": '{"executable_plan": [' + A + ", ",
    "after the list": '{"executable_plan": [' + A + "]",
    "in a list of ids": '{"executable_plan": [⟦⟨35⟩⟧, 12',
    "in a pair": '{"executable_plan": [⟦[⟨35⟩, "⟪find⟫"]⟧, [129, "pick',
    "in a list of names": '{"executable_plan": [⟦"⟪find⟫"⟧, "pick',
    "in a fence": '```json\n{"executable_plan": [' + A + ', {"action_id": 129, "action_name": "pick\n```',
    "in a string": '{"executable_plan": "[⟦{\\"action_id\\": ⟨35⟩}⟧, {\\"action_id\\": 1',
}

CASES = {**WHICH_PLAN, **CONTAINERS, **QUOTES, **FIELDS, **{f"cut {name}": case for name, case in CUT.items()}}


@pytest.mark.parametrize("marked", CASES.values(), ids=CASES.keys())
def test_case(marked):
    check(marked)


NO_PLAN = {
    "nothing": " \n ",
    "prose": "1. find a Tomato (35)",
    "thinking that never ends": "<think>Maybe " + plain(plan(A)),
    "only thinking": "<think>" + plain(plan(A)) + "</think> done",
    "cut before the plan": HEAD + '"executable_plan',
    "cut at the plan": HEAD + '"executable_plan": [',
    "cut in the first step": HEAD + '"executable_plan": [{"action_id": 35, "action_name": "find',
    "no list": '{"executable_plan": true}',
    "number": '{"executable_plan": 35}',
    "prose in a string": '{"executable_plan": "1. find a Tomato"}',
    "template": '{"executable_plan": [...]}',
    "answer in another string": '{"answer": "{\\"executable_plan\\": [{\\"action_id\\": 35}]}"}',
    "cut after a decoy": '{"reasoning": ' + DECOY + ', "execut',
    "one step": '{"action_id": 35, "action_name": "find"}',
    "lines of steps": '{"action_id": 35}\n{"action_id": 36}',
    "one action": "[63, 'find a DeskLamp']",
}


@pytest.mark.parametrize("text", NO_PLAN.values(), ids=NO_PLAN.keys())
def test_no_plan(text):
    assert parse_plan(text) is None


@pytest.mark.parametrize(
    "written",
    ["17.5", '"17.5"', "1e400", "null", "[17]", '{"id": 17}', '"#17"', "#17", '"id: 17"', "true", "NaN", '""', "0x11"],
)
def test_unreadable_id_keeps_its_step(written):
    steps = check(f'{{"executable_plan": [⟦{{"action_id": {written}, "action_name": "⟪find⟫"}}⟧, {B}]}}')
    assert [step.action_id for step in steps] == [None, 129]


@pytest.mark.parametrize("written", ["9223372036854775808", "-9223372036854775808", "9" * 5000, "1e19"])
def test_ids_of_more_than_64_bits_are_unreadable(written):
    test_unreadable_id_keeps_its_step(written)


@pytest.mark.parametrize("written", ['"17 or 18"', '"35-36"', "1_000", '"３５"'])
def test_ids_that_are_not_one_number_are_unreadable(written):
    test_unreadable_id_keeps_its_step(written)


def test_names_are_unescaped():
    assert check(FIELDS["escapes"])[0].action_name == 'a/b\n"c" é 🍅 _'
    assert parse_plan('{"executable_plan": ["a\ud83c", "b\\ud83c"]}')[0].action_name == "a\ufffd"
    inner = json.dumps(plain(plan(A)))
    assert [step.action_name for step in check_strings(json.dumps(inner))] == ["find a Tomato"]


def check_strings(text):
    steps = parse_plan(text)
    check_invariants(text, steps)
    return steps


def test_plan_key():
    text = '{"executable_plan": [1], "plan": [2]}'
    assert [step.action_id for step in parse_plan(text, plan_key="Plan")] == [2]
    assert parse_plan(text, plan_key="other") is None


# Properties

PLAN_KEYS = {"executableplan", "actionid", "actionname", "actiondescription", "action", "name"}
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="{}[]｛｝［］【】"), max_size=12).filter(
    lambda key: "".join(char for char in key if char.isalnum()).casefold() not in PLAN_KEYS
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
decoys = st.sampled_from([plain(plan(B)), '"executable_plan": [1]', "</think>", "<think>", "```", "}]}", '", "a": ['])
names = st.text(max_size=20) | st.sampled_from(
    ["find a Tomato", "Tom's", '"x"', "a\\", "}, {", "]}", "//", "{", "<|x|>"]
)
steps_of_plan = st.lists(
    st.tuples(
        st.integers(-MAX_ACTION_ID, MAX_ACTION_ID),
        names,
        st.dictionaries(keys, values, max_size=2),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def as_objects(steps):
    objects = []
    for action_id, name, extra, name_first in steps:
        fields = [("action_id", action_id), ("action_name", name)]
        objects.append({**extra, **dict(reversed(fields) if name_first else fields)})
    return objects


def expected(steps):
    return [(action_id, name) for action_id, name, _, _ in steps]


def found(steps):
    return [(step.action_id, step.action_name) for step in steps or []]


@settings(max_examples=150, deadline=None)
@given(
    steps=steps_of_plan,
    extra=st.dictionaries(keys, values | decoys, max_size=3),
    after=st.dictionaries(keys, values | decoys, max_size=2),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 0, 2, "\t"]),
    compact=st.booleans(),
    wrapper=st.sampled_from(
        ["{}", "Here it is: {}", "```json\n{}\n```", "<think>{{x</think>{}", "<answer>{}</answer>\n{{"]
    ),
    encodings=st.integers(0, 2),
)
def test_round_trip(steps, extra, after, ascii_only, indent, compact, wrapper, encodings):
    answer = {**extra, "executable_plan": as_objects(steps), **after}
    separators = (",", ":") if compact else None
    text = json.dumps(answer, ensure_ascii=ascii_only, indent=indent, separators=separators)
    for _ in range(encodings):
        text = json.dumps(text, ensure_ascii=ascii_only)
    text = wrapper.format(text)
    result = parse_plan(text)
    assert found(result) == expected(steps)
    check_invariants(text, result)
    if not encodings:
        assert [json.loads(text[slice(*step.spans["step"])]) for step in result] == as_objects(steps)


simple_names = st.text(
    st.characters(categories=["L", "N", "P", "Zs"], exclude_characters="\"'\\`{}[]:,;#/<>"), max_size=15
)


@settings(max_examples=100, deadline=None)
@given(
    names=st.lists(simple_names.filter(lambda name: name.isprintable()), min_size=1, max_size=4),
    quotes=st.sampled_from(["''", "``", "“”", "””", "‘’", "«»", "「」", "＂＂"]),
)
def test_round_trip_with_other_quotes(names, quotes):
    opening, closing = quotes
    names = [name for name in names if opening not in name and closing not in name and '"' not in name]
    strict = json.dumps({"executable_plan": [{"action_id": i, "action_name": name} for i, name in enumerate(names)]})
    strict = json.dumps(json.loads(strict), ensure_ascii=False)
    parts = strict.split('"')
    text = "".join(part + (opening if i % 2 == 0 else closing) for i, part in enumerate(parts[:-1])) + parts[-1]
    result = parse_plan(text)
    assert found(result) == list(enumerate(names))
    check_invariants(text, result)


@settings(max_examples=150, deadline=None)
@given(steps=steps_of_plan, encoded=st.booleans(), data=st.data())
def test_a_cut_answer_yields_the_first_steps(steps, encoded, data):
    plan_value = as_objects(steps)
    text = json.dumps(
        {"reasoning": "It's {here}.", "executable_plan": json.dumps(plan_value) if encoded else plan_value}
    )
    cut = data.draw(st.integers(0, len(text)))
    result = parse_plan(text[:cut])
    assert found(result) == expected(steps)[: len(result or [])]
    check_invariants(text[:cut], result)


PIECES = ['"', "'", "\\", '\\"', "{", "}", "[", "]", ",", ":", "\n", "“", "”", "</think>", "<think>", "```", "("]
PIECES += ['"executable_plan": [', '{"action_id": ', '"action_name": "', "}, {", "\\u00", "\ud83c", "\u200b", "#"]
PIECES += ["//", "12", "null"]


@settings(max_examples=300, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.sampled_from(PIECES)), max_size=8))
def test_damaged_answers_keep_the_invariants(edits):
    text = plain(
        plan(A, B, '{"action_id": "7", "action_name": "turn \\"on\\" the Caf\\u00e9Lamp"}', '"stop"', '[1, "go"]')
    )
    for at, deleted, inserted in edits:
        text = text[:at] + inserted + text[at + deleted :]
    check_invariants(text, parse_plan(text))
    check_invariants(json.dumps(text), parse_plan(json.dumps(text)))


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=40), key=st.text(max_size=5))
def test_any_text_is_read(pieces, key):
    text = "".join(pieces)
    check_invariants(text, parse_plan(text))
    parse_plan(text, plan_key=key)


@settings(max_examples=150, deadline=None)
@given(value=st.dictionaries(st.text(max_size=12), values | decoys, max_size=4), indent=st.sampled_from([None, 1]))
def test_the_reader_reads_valid_json(value, indent):
    text = json.dumps(value, indent=indent, ensure_ascii=False)

    def rebuild(node):
        if node.kind == "object":
            return {unescape(key, 0, len(key))[0]: rebuild(item) for key, item in node.entries}
        if node.kind == "array":
            return [rebuild(item) for item in node.items]
        if node.kind == "string":
            return unescape(text, *node.content)[0]
        return json.loads(text[node.start : node.end])

    node, end = read_value(text, 0)
    assert node.closed and end == len(text)
    assert rebuild(node) == value


# Long texts. A wrong growth with the length shows as minutes; a machine that others use says nothing finer.

STEP = '{"action_id": 35, "action_name": "find a Tomato"}, '
START = '{"executable_plan": [' + STEP
UNITS = ["[", "{", "{ ", '{"a":', '"', '",', "'", "\\", '\\"', "“", "`", "(", "[}", "</think>", "<think>"]
UNITS += [" ", "\n", "9", "e_", "/*", "#", "```", "\\n", '{\\"', '"a}, {"key": ', '"a b"', "<|im_end|>"]
UNITS += ["executable_plan: [", '{"</think>']


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("start", ["", START, '{"executable_plan": "[', '{"executable_plan": {"k": "'])
def test_long_texts_take_linear_time(start, unit):
    def read(size):
        text = start + unit * (size // len(unit)) + " executable_plan"
        began = time.process_time()
        steps = parse_plan(text)
        return time.process_time() - began, steps

    small, _ = read(4_000)
    large, steps = read(64_000)
    assert large < 16 * 8 * max(small, 0.002)
    if start == START and "think" not in unit:  # all before `</think>` is reasoning
        assert steps and (steps[0].action_id, steps[0].action_name) == (35, "find a Tomato")


@pytest.mark.parametrize("unit", ["[", "{", '{"a":', '"', "\\", " ", STEP], ids=repr)
def test_a_megabyte(unit):
    text = START + unit * (1_000_000 // len(unit))
    steps = parse_plan(text)
    assert steps is not None and steps[0].spans["action_name"] == (55, 68)
    assert len(steps) == {STEP: 1 + 1_000_000 // len(STEP), '"': 2}.get(unit, 1)
