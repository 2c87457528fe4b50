"""A lenient JSON reader that keeps the position of every value.

`json` gives no positions, and the repairing parsers return a repaired copy whose offsets no longer fit the text the model
wrote. Step credit needs both: what a value says and which characters say it. So this reader walks the original text once
and returns a tree of `Node`s, each with its half-open range of code points, and never changes or copies the text.

What it forgives: single, curly and full-width quotes, full-width punctuation, missing or surplus commas, comments, Python
literals, unescaped quotes inside a string, a key with one quote missing, brackets closed in the wrong order or not at all.
It runs in time linear in the text, without recursion, and raises nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_DEPTH = 64

CLOSING_QUOTE = {
    '"': '"',
    "'": "'",
    "`": "`",
    "\u201c": "\u201d\u201c",  # curly quotes are also written the wrong way round
    "\u201d": "\u201d\u201c",
    "\u201e": '\u201c\u201d"',
    "\u2018": "\u2019\u2018",
    "\u2019": "\u2019\u2018",
    "\uff02": "\uff02",
    "\u00ab": "\u00bb",
    "\u300c": "\u300d",
}
OPEN_OBJECT, CLOSE_OBJECT = "{\uff5b", "}\uff5d"
OPEN_ARRAY, CLOSE_ARRAY = "[\uff3b\u3010", "]\uff3d\u3011"
_Q = "".join(CLOSING_QUOTE)
_BRACKETS = re.escape(OPEN_OBJECT + CLOSE_OBJECT + OPEN_ARRAY + CLOSE_ARRAY)
_COLON = ":\uff1a"
_COMMA = ",;\uff0c\u3001"

_BLANK = re.compile(r"(?:[\s\ufeff\u200b]+|//[^\n]*|\#[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/|\Z))+")
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(rf"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?(?=[\s{_BRACKETS}{_Q}{_COMMA}/#]|\Z)")
_WORD = re.compile(rf"[^\s{_BRACKETS}{_COMMA}{_COLON}{_Q}][^\s{_BRACKETS}{_COMMA}{_COLON}]*")
# A key is short; the bound keeps the search for its end from rescanning the whole text at every stray quote.
_QUOTED_KEY = {
    opening: re.compile(rf"{opening}((?:[^{closing}\\]|\\.){{0,128}}?)[{closing}]\s*[{_COLON}]", re.DOTALL)
    for opening, closing in CLOSING_QUOTE.items()
}
_HALF_QUOTED_KEY = re.compile(rf"[{_Q}]?([\w$-]{{1,64}})[{_Q}]?\s*[{_COLON}]")
_KEY_TEXT = r"[\w$-]{1,64}(?: [\w$-]{1,64}){0,4}"
_KEY_AHEAD = re.compile(rf"[{_Q}]?{_KEY_TEXT}[{_Q}]?\s*[{_COLON}]")
_QUOTED_KEY_AHEAD = re.compile(rf"[{_Q}]{_KEY_TEXT}[{_Q}]?\s*[{_COLON}]")
_ITEM_AHEAD = re.compile(rf"[{_Q}{_BRACKETS}0-9-]|null\b|true\b|false\b|None\b|True\b|False\b|//|/\*|\#|\Z")
_STRING_ENDS_BEFORE = re.compile(rf"[{re.escape(CLOSE_OBJECT + CLOSE_ARRAY)}]|//|/\*|\#|<[|/]|```|\Z")
_STRING_PARTS = {
    closing: re.compile(rf"\\.|[{closing}]", re.DOTALL) for closing in set(CLOSING_QUOTE.values())
}


@dataclass(slots=True)
class Node:
    """One value of the text.

    Attributes:
        kind: "object", "array", "string", "number" or "word" (a literal such as `null`, or anything unreadable).
        start, end: half-open range of code points; a string's includes its quotes.
        closed: False if the text ended before the value did.
        entries: of an object, `(key, value)` pairs in order. The key is None for a value that had none.
        items: of an array, its values.
    """

    kind: str
    start: int
    end: int
    closed: bool = True
    entries: list[tuple[str | None, Node]] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)


def read_value(text: str, pos: int) -> tuple[Node | None, int]:
    """Reads the object or array that opens at `text[pos]`.

    Args:
        text: the whole text.
        pos: index of an opening brace or bracket.

    Returns:
        The value and the position after it. The value is None where it nests deeper than `MAX_DEPTH`; reading can go on
        at the position returned, so that a text made of brackets is still read in linear time.
    """
    root = _open(text, pos)
    stack = [root]
    keys: list[str | None] = [None]  # the key an open object is waiting for a value for
    pos += 1

    def close(count: int, end: int) -> None:
        for _ in range(count):
            node = stack.pop()
            keys.pop()
            node.end, node.closed = end, True

    def attach(node: Node) -> None:
        top = stack[-1]
        if top.kind == "array":
            top.items.append(node)
        else:
            top.entries.append((keys[-1], node))
            keys[-1] = None

    last = pos  # end of the last thing read: where a value that nobody closed ends
    while stack:
        blank = _BLANK.match(text, pos)
        if blank:
            pos = blank.end()
        if pos >= len(text):
            for node in stack:
                node.end, node.closed = last, False
            return root, len(text)
        char, top = text[pos], stack[-1]
        in_object = top.kind == "object"

        if char in CLOSE_OBJECT or char in CLOSE_ARRAY:
            kind = "object" if char in CLOSE_OBJECT else "array"
            above = next((i for i in range(len(stack) - 1, -1, -1) if stack[i].kind == kind), None)
            pos += 1
            if above is not None:  # otherwise a surplus bracket
                close(len(stack) - above - 1, last)
                close(1, pos)
                last = pos
        elif char in OPEN_OBJECT or char in OPEN_ARRAY:
            nested = len(stack) > 1 and stack[-2].kind == "array"
            if in_object and keys[-1] is None and nested and char in OPEN_OBJECT:
                close(1, last)  # an item of a list that was not closed before the next one
            if len(stack) >= MAX_DEPTH:
                return None, pos
            node = _open(text, pos)
            attach(node)
            stack.append(node)
            keys.append(None)
            pos += 1
            last = pos
        elif in_object and (key := _key_at(text, pos, loose=keys[-1] is None)) is not None:
            keys[-1], pos = key
            last = pos
        elif char in CLOSING_QUOTE:
            if not in_object and (key := _key_at(text, pos, loose=False)) is not None:
                # `"a", "key": ...`: the list was not closed before the next key of the object around it
                above = next((i for i in range(len(stack) - 1, -1, -1) if stack[i].kind == "object"), None)
                if above is None:
                    pos = key[1]
                else:
                    close(len(stack) - above - 1, last)
                    keys[-1], pos = key
                last = pos
                continue
            stray = in_object and keys[-1] is None
            end, closed = _string_end(text, pos, in_object, stray)
            if not stray:
                attach(Node("string", pos, end, closed))
            last = pos = end
        else:
            number = _NUMBER.match(text, pos)
            word = number or _WORD.match(text, pos)
            end = word.end() if word else pos + 1
            if word and not (in_object and keys[-1] is None):
                # A number that ends the text may have been cut: 12 may be 129.
                attach(Node("number" if number and end < len(text) else "word", pos, end, end < len(text)))
            if word:
                last = end
            pos = end
    return root, pos


def _open(text: str, pos: int) -> Node:
    return Node("object" if text[pos] in OPEN_OBJECT else "array", pos, pos, closed=False)


def _key_at(text: str, pos: int, loose: bool) -> tuple[str, int] | None:
    """A key with its colon at `pos`: the key and the position after the colon. Loose: one without all its quotes too."""
    quoted = _QUOTED_KEY.get(text[pos])
    match = (quoted and quoted.match(text, pos)) or (_HALF_QUOTED_KEY.match(text, pos) if loose else None)
    return (match.group(1), match.end()) if match else None


def _string_end(text: str, pos: int, in_object: bool, stray: bool) -> tuple[int, bool]:
    """End of the string that opens at `pos`, and whether it was closed.

    A closing quote counts only if what follows can follow a string, since models write quotes inside strings unescaped.
    """
    for match in _STRING_PARTS[CLOSING_QUOTE[text[pos]]].finditer(text, pos + 1):
        if text[match.start()] != "\\" and (stray or _can_end(text, match.end(), in_object)):
            return match.end(), True
    return len(text), False


def _can_end(text: str, pos: int, in_object: bool) -> bool:
    pos = _SPACE.match(text, pos).end()  # type: ignore[union-attr]
    if _STRING_ENDS_BEFORE.match(text, pos):
        return True
    if text[pos] in _COMMA:
        pos = _SPACE.match(text, pos + 1).end()  # type: ignore[union-attr]
        if _STRING_ENDS_BEFORE.match(text, pos) or text[pos] in OPEN_OBJECT:
            return True
        return bool((_KEY_AHEAD if in_object else _ITEM_AHEAD).match(text, pos))
    if in_object:
        return bool(_QUOTED_KEY_AHEAD.match(text, pos))
    return text[pos] in CLOSING_QUOTE or text[pos] in OPEN_OBJECT or text[pos] in OPEN_ARRAY


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|$)", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def unescape(text: str, start: int, end: int) -> tuple[str, list[int] | range]:
    r"""Undoes the escapes of `text[start:end]`, keeping positions.

    Surrogate pairs become one character, lone surrogates U+FFFD, and an unknown escape such as `\_` its character.

    Returns:
        The characters, and for each of them (and for the end) the position in `text` where it begins.
    """
    if text.find("\\", start, end) < 0:
        return text[start:end], range(start, end + 1)
    chars: list[str] = []
    starts: list[int] = []
    pos = start
    for match in _ESCAPE.finditer(text, start, end):
        chars.extend(text[pos : match.start()])
        starts.extend(range(pos, match.start()))
        pos = match.end()
        if match.group(1):
            code = int(match.group(1), 16)
            if 0xDC00 <= code < 0xE000 and chars and starts[-1] == match.start() - 6 and "\ud800" <= chars[-1] < "\udc00":
                high = ord(chars.pop())
                chars.append(chr(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00)))
                continue
            chars.append(chr(code))
        else:
            chars.append(_SIMPLE.get(match.group(2), match.group(2)) if match.group(2) else "\ufffd")
        starts.append(match.start())
    chars.extend(text[pos:end])
    starts.extend(range(pos, end + 1))
    return "".join("\ufffd" if "\ud800" <= char < "\ue000" else char for char in chars), starts
