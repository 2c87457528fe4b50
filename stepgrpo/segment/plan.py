"""Reads the steps of a plan, and where they stand, out of the text a model wrote.

Which plan counts, where a text holds several:

- Everything up to the last `</think>` outside the answer is reasoning; an unclosed `<think>` is all reasoning.
- The first complete object with a plan wins, then one that was cut off, then a bare list of steps, then a plan key that
  stands outside any object. A plan quoted inside a string (a decoy) is never read.
- In one object the least nested plan key wins, and of two equal keys the last, as in `json.loads`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stepgrpo.segment.lenient_json import CLOSING_QUOTE, OPEN_ARRAY, OPEN_OBJECT, Node, read_value, unescape

Span = tuple[int, int]

MAX_ACTION_ID = 2**63 - 1  # ids travel between processes as 64-bit integers
_MAX_ENCODINGS = 3  # JSON in a string in a string: deeper is a loop, not an answer

_THINK = re.compile(r"</?think(?:ing)?>", re.IGNORECASE)
_ID_TEXT = re.compile(r"\s*([+-]?[0-9]{1,24}(?:\.0*)?)\s*\Z")
_ID_AND_NAME = re.compile(r"\s*([0-9]{1,9})\s*[:.)\]-]\s*(?=\S)")
_ESCAPED_QUOTE = re.compile(r"\s*\\[\"']")
_RUN = re.compile(r"(.)\1*", re.DOTALL)
_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")
_ID_KEYS = ("actionid",)
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
    if not re.search("|".join(map(_spelled, (key, *_ID_KEYS, *_NAME_KEYS[:2]))), text, re.IGNORECASE):
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


# The better a candidate, the lower its rank; of equals the first wins. Unreadable steps are a template that was echoed.
_RESTART, _COMPLETE, _CUT, _BARE_LIST, _BARE_KEY, _UNREADABLE = -1, 0, 1, 2, 3, 4


def _candidates(text: str, plan_key: str, depth: int) -> Iterator[tuple[int, list[PlanStep]]]:
    """Every plan that stands at the top level of the text, with its rank; `_RESTART` where reasoning ended."""
    bare_key = rf"(?<!\\)\b{_spelled(plan_key)}(?<!\\)[^\w\s\[\{{:]?\s*[:\uff1a]\s*(?=[{re.escape(OPEN_ARRAY + OPEN_OBJECT)}])"
    landmark = re.compile(
        rf"(?P<think></?think(?:ing)?>)|(?P<key>{bare_key})|[{re.escape(OPEN_ARRAY + OPEN_OBJECT)}]", re.IGNORECASE
    )
    start = len(text) - len(text.lstrip())
    if text[start : start + 1] in CLOSING_QUOTE and depth < _MAX_ENCODINGS:
        if re.match(rf"\s*(?:\\.\s*)*[{re.escape(OPEN_ARRAY + OPEN_OBJECT)}]", text[start + 1 : start + 64]):
            end = text.rfind(text[start])
            steps = _decoded(text, start + 1, end if end > start else len(text), plan_key, depth)
            if steps is not None:
                yield _COMPLETE, steps
                return
    pos, may_be_escaped = 0, depth < _MAX_ENCODINGS
    while match := landmark.search(text, pos):
        pos = match.end()
        if match.group("think"):
            if not match.group("think").startswith("</"):
                closing = text.find("</", pos)
                while closing >= 0 and not _THINK.match(text, closing):
                    closing = text.find("</", closing + 2)
                if closing < 0:
                    return
                pos = closing
            else:
                yield _RESTART, []
            continue
        start = pos if match.group("key") else match.start()
        if may_be_escaped and not match.group("key") and _ESCAPED_QUOTE.match(text, start + 1):
            may_be_escaped = False  # one try: the whole rest of the text is decoded
            steps = _decoded(text, start, len(text), plan_key, depth)
            if steps is not None:
                yield _COMPLETE, steps
                return
        node, pos = read_value(text, start)
        if node is None:
            pos = max(pos, _RUN.match(text, pos).end() - 1)  # type: ignore[union-attr]
            continue
        found = _plan_of(node, text, plan_key, depth, bare_key=bool(match.group("key")))
        if found is None:
            # No plan, and reasoning ends inside: the braces were prose, and the answer may have been taken for a string.
            ends = [m.end() for m in _THINK.finditer(text, start, pos) if m.group().startswith("</")]
            if ends:
                yield _RESTART, []
                pos = ends[-1]
            continue
        yield found


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
    """The value of the least nested plan key; of those of one object the last."""
    level = [root]
    while level:
        for node in level:
            plans = [value for key, value in node.entries if key is not None and _fold(key) == plan_key]
            if plans:
                return plans[-1]
        level = [
            child
            for node in level
            for child in (*node.items, *(value for _, value in node.entries))
            if child.kind in ("object", "array")
        ]
    return None


def _steps_of(plan: Node, text: str, plan_key: str, depth: int) -> list[PlanStep] | None:
    """The steps of a plan's value: a list, one step, an object that holds the list or numbered steps, or any as a string."""
    if plan.kind == "string" and depth < _MAX_ENCODINGS:
        opening = text[plan.start + 1 : plan.start + 64].lstrip()[:1]
        if opening and opening in OPEN_ARRAY + OPEN_OBJECT:
            return _decoded(text, plan.start + 1, plan.end - plan.closed, plan_key, depth, whole=True)
        return None
    if plan.kind == "object":
        if _is_step(plan):
            items = [plan]
        else:
            lists = [value for _, value in plan.entries if value.kind == "array"]
            steps = [value for _, value in plan.entries if _is_step(value)]
            if not lists and not steps:
                return None
            items = lists[0].items if lists else steps
    elif plan.kind == "array":
        items = plan.items
    else:
        return None
    result: list[PlanStep] = []
    for item in items:
        if item.kind == "array" and not _is_pair(item):
            result.extend(filter(None, (_step(inner, text, plan_key, depth) for inner in item.items)))
        elif (step := _step(item, text, plan_key, depth)) is not None:
            result.append(step)
    if not result and not plan.closed:
        return None  # the text ended before the first step: not an empty plan
    return result


def _step(node: Node, text: str, plan_key: str, depth: int) -> PlanStep | None:
    """One item of the list as a step, or None if it is not one (null) or was cut off before its name ended."""
    if node.kind == "string":
        if not node.closed:
            return None
        opening = text[node.start + 1 : node.end].lstrip()[:1]
        if opening and opening in OPEN_OBJECT and depth < _MAX_ENCODINGS:
            inner = _decoded(text, node.start + 1, node.end - 1, plan_key, depth, whole=True)
            if inner:
                return inner[0]
        return _make_step(text, node, None, node)
    if node.kind == "number":
        return _make_step(text, node, node, None)
    if node.kind == "array":
        return _make_step(text, node, *node.items) if _is_pair(node) else None
    if node.kind != "object":
        return None
    values = {_fold(key): value for key, value in node.entries if key is not None}
    name = next((values[key] for key in _NAME_KEYS if key in values), None)
    if not node.closed and (name is None or name.kind != "string" or not name.closed):
        return None
    return _make_step(text, node, next((values[key] for key in _ID_KEYS if key in values), None), name)


def _make_step(text: str, node: Node, id_node: Node | None, name_node: Node | None) -> PlanStep:
    spans: dict[str, Span] = {"step": (node.start, node.end)}
    action_id: int | None = None
    name: str | None = None
    if name_node is not None and name_node.kind == "string":
        spans["action_name"] = name_node.start + 1, name_node.end - 1
        name = unescape(text, *spans["action_name"])[0]
    if id_node is not None and id_node.kind == "number":
        action_id = _as_id(text[id_node.start : id_node.end])
        span = id_node.start, id_node.end
    elif id_node is not None and id_node.kind == "string":
        content = text[id_node.start + 1 : id_node.end - 1]
        match = _ID_TEXT.match(content)
        if match is None and name is None and (match := _ID_AND_NAME.match(content)):
            spans["action_name"] = id_node.start + 1 + match.end(), id_node.end - 1
            name = unescape(text, *spans["action_name"])[0]
        if match is not None:
            action_id = _as_id(match.group(1))
            span = id_node.start + 1 + match.start(1), id_node.start + 1 + match.end(1)
    if action_id is not None:
        spans["action_id"] = span
    return PlanStep(action_id, name, spans)


def _as_id(digits: str) -> int | None:
    try:
        value = float(digits)  # first, so that no text is too long to convert
        if abs(value) > MAX_ACTION_ID or not value.is_integer():
            return None
        return int(digits) if digits.lstrip("+-").isdigit() else int(value)
    except (ValueError, OverflowError):
        return None


def _decoded(
    text: str, start: int, end: int, plan_key: str, depth: int, whole: bool = False
) -> list[PlanStep] | None:
    """The plan in escaped JSON, its spans mapped back on `text`. Whole: the JSON is the plan itself, not around it."""
    inner, starts = unescape(text, start, end)
    steps: list[PlanStep] | None
    if whole:
        node, _ = read_value(inner, len(inner) - len(inner.lstrip()))
        steps = None if node is None else _steps_of(node, inner, plan_key, depth + 1)
        if steps is None and node is not None and (plan := _find_plan(node, plan_key)) is not None:
            steps = _steps_of(plan, inner, plan_key, depth + 1)
    else:
        steps = _parse(inner, plan_key, depth + 1)
    if steps is None:
        return None
    back: Callable[[Span], Span] = lambda span: (starts[span[0]], starts[span[1]])  # noqa: E731
    return [
        PlanStep(step.action_id, step.action_name, {key: back(span) for key, span in step.spans.items()})
        for step in steps
    ]


def _is_step(node: Node) -> bool:
    return node.kind == "object" and any(
        key is not None and _fold(key) in ("actionid", "actionname", "actiondescription") for key, _ in node.entries
    )


def _is_pair(node: Node) -> bool:
    return [item.kind for item in node.items] == ["number", "string"] and node.closed


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
