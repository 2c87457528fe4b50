"""Reads the steps of a plan, and where they stand, out of the text a model wrote.

Which plan counts, where a text holds several:

- Everything up to the last `</think>` outside the answer is reasoning; an unclosed `<think>` is all reasoning.
- The first complete object with a plan wins, then one that was cut off, then a bare list of steps, then a plan key
  that stands outside any object. A plan quoted inside a string (a decoy) is never read.
- In one object the least nested plan key wins, and of two equal keys the last, as in `json.loads`. Only where that
  plan was cut off and the model began again in the middle of it, the plan inside counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stepgrpo.segment.lenient_json import OPEN_ARRAY, OPEN_OBJECT, Node, read_value, unescape

Span = tuple[int, int]

MAX_ACTION_ID = 2**63 - 1  # ids travel between processes as 64-bit integers
_MAX_ENCODINGS = 3  # JSON in a string in a string: deeper is a loop, not an answer

_OPENING = re.escape(OPEN_ARRAY + OPEN_OBJECT)
_THINK_TAG = r"<(?P<end>/?)think(?:ing)?(?:\s[^<>]{0,64})?>"
_THINK = re.compile(_THINK_TAG, re.IGNORECASE)
# After an opening bracket: JSON whose own quotes are escaped.
_ESCAPED_QUOTE = re.compile(rf"(?:[\s{_OPENING}]|\\{{1,8}}[nrt]){{0,64}}\\{{1,8}}(?:[\"']|u002[27])")
_ID_TEXT = re.compile(r"\s*([+-]?[0-9]{1,24}(?:\.0*)?)\s*\Z")
_SHORT_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,24}\s*\Z")  # int() refuses long ones
_ID_AND_NAME = re.compile(r"\s*([0-9]{1,9})\s*[:.)\]-]\s*(?=[^\W\d])")
_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")
_ID_KEY = "actionid"
_NAME_KEYS = ("actionname", "actiondescription", "action", "name")  # the first that is there


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan.

    Attributes:
        action_id: the id, or None where there is none or it cannot be read as a 64-bit integer.
        action_name: the unescaped name with its blanks, or None.
        spans: half-open ranges of code points in the text, under "step", "action_id" and "action_name", where present.
            They are of the raw text (still escaped), without the quotes of a string.
    """

    action_id: int | None = None
    action_name: str | None = None
    spans: dict[str, Span] = field(default_factory=dict, compare=False)


def parse_plan(text: str, plan_key: str = "executable_plan") -> list[PlanStep] | None:
    """Reads the plan of a completion. Tolerant, linear in the length of the text, raises nothing on any text.

    Args:
        text: what the model wrote, with its fences, reasoning and special tokens.
        plan_key: the key of the plan; case and punctuation of keys do not matter.

    Returns:
        The steps in order; `[]` for a plan that is there and empty; None where there is no plan.
    """
    key = _fold(plan_key)
    # Without a plan key or a step's key there is nothing to find, and texts that ran away are long.
    if not re.search("|".join(map(_spelled, (key, _ID_KEY, *_NAME_KEYS[:2]))), text, re.IGNORECASE):
        return None
    return _parse(text, key, depth=0)


def _spelled(folded_key: str) -> str:
    """A pattern for a folded key with any punctuation between its letters."""
    return r"[\W_]*".join(map(re.escape, folded_key))


def _parse(text: str, plan_key: str, depth: int) -> list[PlanStep] | None:
    best: tuple[int, list[PlanStep]] | None = None
    for rank, steps in _candidates(text, plan_key, depth):
        if rank == _RESTART:
            best = None
        elif best is None or rank < best[0]:
            best = rank, steps
    return best[1] if best else None


# The better a candidate, the lower its rank; of equals the first wins. Unreadable steps are an echoed template.
_RESTART, _COMPLETE, _CUT, _BARE_LIST, _BARE_KEY, _ESCAPED_LIST, _UNREADABLE = -1, 0, 1, 2, 3, 4, 5


def _candidates(text: str, plan_key: str, depth: int) -> Iterator[tuple[int, list[PlanStep]]]:
    """Every plan that stands at the top level of the text, with its rank; `_RESTART` where reasoning ended."""
    bare_key = rf"(?<!\\)\b{_spelled(plan_key)}[^\w\s\[\{{:\\]{{0,3}}\s*[:\uff1a]\s*(?=[{_OPENING}])"
    landmark = re.compile(rf"(?P<think>{_THINK_TAG})|(?P<key>{bare_key})|[{_OPENING}]", re.IGNORECASE)
    pos, may_be_escaped = 0, depth < _MAX_ENCODINGS
    while match := landmark.search(text, pos):
        pos = match.end()
        if match["think"]:
            if match["end"]:
                yield _RESTART, []
                continue
            closing = next((tag for tag in _THINK.finditer(text, pos) if tag["end"]), None)
            if closing is None:
                return
            pos = closing.start()
            continue
        start = pos if match["key"] else match.start()
        if may_be_escaped and _ESCAPED_QUOTE.match(text, start + 1):
            may_be_escaped = False  # one try: the whole rest of the text is decoded
            steps = _decoded(text, (start, len(text)), plan_key, depth)
            if steps is not None and text[start] in OPEN_OBJECT:
                yield _COMPLETE, steps
                return
            if steps is not None:  # the answer without its object, or a decoy that lost the string around it
                yield _ESCAPED_LIST, steps
        node, pos = read_value(text, start)
        found = _plan_of(node, text, plan_key, depth, bare_key=bool(match["key"]))
        if found is not None:
            yield found
        elif ends := [tag.end() for tag in _THINK.finditer(text, start, pos) if tag["end"]]:
            # No plan, and reasoning ends inside: the braces were prose, and the answer may have been read as a string.
            yield _RESTART, []
            pos = ends[-1]


def _plan_of(node: Node, text: str, plan_key: str, depth: int, bare_key: bool) -> tuple[int, list[PlanStep]] | None:
    """The plan in one top-level value and its rank."""
    if bare_key:
        steps = _steps_of(node, text, plan_key, depth)
        rank = _BARE_KEY
    else:
        plan = _find_plan(node, plan_key)
        rank = _COMPLETE if node.closed else _CUT
        if plan is None and node.kind == "array":
            if not any(_is_step(item) for item in node.items):
                return None
            plan, rank = node, _BARE_LIST
        if plan is None:
            return None
        steps = _steps_of(plan, text, plan_key, depth)
    if steps is None:
        return None
    if steps and all(step.action_id is None and step.action_name is None for step in steps):
        rank = _UNREADABLE
    return rank, steps


def _find_plan(root: Node, plan_key: str) -> Node | None:
    """The value of the least nested plan key that was not cut off, else of the least nested; in an object the last."""
    level, cut = [root], None
    while level:
        for node in level:
            plans = [value for key, value in node.entries if key is not None and _fold(key) == plan_key]
            if plans and plans[-1].closed:
                return plans[-1]
            cut = cut or (plans[-1] if plans else None)
        level = [child for node in level for _, child in node.entries if child.entries]
    return cut


def _steps_of(plan: Node, text: str, plan_key: str, depth: int) -> list[PlanStep] | None:
    """The steps of a plan's value: a list, one step, an object with the list or numbered steps, or any as a string."""
    if plan.kind == "string":
        if depth < _MAX_ENCODINGS and _opens(text, plan, OPEN_ARRAY + OPEN_OBJECT):
            return _decoded(text, plan.content, plan_key, depth, whole=True)
        return None
    if plan.kind == "array":
        items = plan.items
    elif _is_step(plan):
        items = [plan]
    else:
        lists = [value for _, value in plan.entries if value.kind == "array"]
        items = lists[0].items if lists else [value for _, value in plan.entries if _is_step(value)]
        if not lists and not items:
            return None
    result: list[PlanStep] = []
    for item in items:
        nested = item.kind == "array" and not _is_pair(item)
        inner_items = [inner for inner in item.items if item.closed or inner.kind == "object"] if nested else [item]
        result.extend(step for inner in inner_items if (step := _step(inner, text, plan_key, depth)) is not None)
    if not result and (not plan.closed or any(_is_unreadable(item, text) for item in items)):
        return None  # no empty plan: the text ended before the first step, or a template such as `[...]` was echoed
    return result


def _step(node: Node, text: str, plan_key: str, depth: int) -> PlanStep | None:
    """One item of the list as a step, or None if it is not one (null) or was cut off before its id and name ended."""
    if node.kind == "number":
        return _make_step(text, node, node, None)
    if node.kind == "string" and node.closed:
        if depth < _MAX_ENCODINGS and _opens(text, node, OPEN_OBJECT):
            inner = _decoded(text, node.content, plan_key, depth, whole=True)
            if inner:
                return inner[0]
        is_id = _ID_TEXT.match(text[slice(*node.content)])
        return _make_step(text, node, node, None) if is_id else _make_step(text, node, None, node)
    if _is_pair(node):
        return _make_step(text, node, *node.items)
    while len(node.entries) == 1 and node.entries[0][0] is None and node.entries[0][1].kind == "object":
        node = node.entries[0][1]  # doubled braces
    if node.kind != "object":
        return None
    values = {_fold(key): value for key, value in node.entries if key is not None}
    action_id = values.get(_ID_KEY)
    name = next((values[key] for key in _NAME_KEYS if key in values), None)
    if not node.closed and not (action_id and action_id.closed and name and name.kind == "string" and name.closed):
        return None
    return _make_step(text, node, action_id, name)


def _make_step(text: str, node: Node, id_node: Node | None, name_node: Node | None) -> PlanStep:
    spans: dict[str, Span] = {"step": (node.start, node.end)}
    action_id: int | None = None
    if name_node is not None and name_node.kind == "string":
        spans["action_name"] = name_node.content
    if id_node is not None and id_node.kind in ("number", "string"):
        start, end = id_node.content if id_node.kind == "string" else (id_node.start, id_node.end)
        digits = text[start:end]
        if (match := _ID_AND_NAME.match(digits)) and id_node.kind == "string":
            spans.setdefault("action_name", (start + match.end(), end))
            digits, start, end = match[1], start + match.start(1), start + match.end(1)
        elif id_node.kind == "string" and not _ID_TEXT.match(digits):
            digits = ""
        action_id = _as_id(digits)
        if action_id is not None:
            spans["action_id"] = start, end
    name = unescape(text, *spans["action_name"])[0] if "action_name" in spans else None
    return PlanStep(action_id, name, spans)


def _as_id(digits: str) -> int | None:
    try:
        value = int(digits) if _SHORT_INTEGER.match(digits) else float(digits)
    except ValueError:
        return None
    return int(value) if abs(value) <= MAX_ACTION_ID and value % 1 == 0 else None


def _decoded(text: str, span: Span, plan_key: str, depth: int, whole: bool = False) -> list[PlanStep] | None:
    """The plan in escaped JSON, its spans mapped back on `text`. Whole: the JSON is the plan itself, not around it."""
    inner, starts = unescape(text, *span)
    steps: list[PlanStep] | None
    if whole:
        node, _ = read_value(inner, len(inner) - len(inner.lstrip()))
        steps = _steps_of(node, inner, plan_key, depth + 1)
        if steps is None and (plan := _find_plan(node, plan_key)) is not None:
            steps = _steps_of(plan, inner, plan_key, depth + 1)
    else:
        steps = _parse(inner, plan_key, depth + 1)
    if steps is None:
        return None
    return [
        PlanStep(step.action_id, step.action_name, {key: (starts[a], starts[b]) for key, (a, b) in step.spans.items()})
        for step in steps
    ]


def _opens(text: str, string: Node, brackets: str) -> bool:
    """Whether the content of a string begins with one of the brackets."""
    first = text[string.content[0] : string.content[1]].lstrip()[:1]
    return bool(first) and first in brackets


def _is_unreadable(item: Node, text: str) -> bool:
    return item.kind == "word" and text[item.start : item.end] not in ("null", "None")


def _is_step(node: Node) -> bool:
    return node.kind == "object" and any(
        key is not None and _fold(key) in (_ID_KEY, *_NAME_KEYS[:2]) for key, _ in node.entries
    )


def _is_pair(node: Node) -> bool:
    return node.kind == "array" and node.closed and [item.kind for item in node.items] == ["number", "string"]


def _fold(key: str) -> str:
    return _NOT_ALPHANUMERIC.sub("", key).casefold()


def fold_name(name: str) -> str:
    """A name as it is compared: case and white space folded."""
    return " ".join(name.casefold().split())


def step_keys(steps: Iterable[PlanStep]) -> list[str]:
    """One comparable string per step: its id, its folded name where the id is missing, else the empty string."""
    return [
        f"#{step.action_id}" if step.action_id is not None else fold_name(step.action_name or "") for step in steps
    ]


def field_spans(step: PlanStep, fields: Sequence[str]) -> list[Span]:
    """The ranges of the step's chosen fields that are there, in the order of the text."""
    return sorted(step.spans[name] for name in fields if name in step.spans)
