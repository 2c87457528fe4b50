"""A lenient JSON reader that keeps the position of every value.

`json` gives no positions, and the repairing parsers return a repaired copy whose offsets no longer fit the text the
model wrote. Step credit needs both: what a value says and which characters say it. So this reader walks the original
text once and returns a tree of `Node`s, each with its half-open range of code points, and changes or copies nothing.

It reads valid JSON as what it says. What it forgives: single, curly and full-width quotes, full-width punctuation,
missing or surplus commas, comments, Python literals and tuples, unescaped quotes inside a string, a key or a string
with one quote missing, escaped line breaks outside strings, brackets doubled, closed in the wrong order or not at all.
It runs in time linear in the text, without recursion, and raises nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_DEPTH = 64

CLOSING_QUOTE = {
    '"': '"',
    "'": "'",
    "`": "`",
    "\u201c": '\u201d\u201c"',  # curly quotes are also written the wrong way round, or closed by a straight one
    "\u201d": '\u201d\u201c"',
    "\u201e": '\u201c\u201d"',
    "\u2018": "\u2019\u2018'",
    "\u2019": "\u2019\u2018'",
    "\uff02": "\uff02",
    "\u00ab": "\u00bb",
    "\u300c": "\u300d",
}
OPEN_OBJECT, CLOSE_OBJECT = "{\uff5b", "}\uff5d"
OPEN_ARRAY, CLOSE_ARRAY = "[\uff3b\u3010", "]\uff3d\u3011"
_OPEN, _CLOSE = OPEN_OBJECT + OPEN_ARRAY, CLOSE_OBJECT + CLOSE_ARRAY
_Q = "".join(CLOSING_QUOTE)
_BRACKETS = re.escape(_OPEN + _CLOSE)
_COLON = ":\uff1a"
_COMMA = ",;\uff0c\u3001"

_WHITE = r"\s\ufeff\u200b-\u200d\u2060"
_S = rf"(?:[{_WHITE}]|\\[nrt])*"  # white space, also where it was escaped although it stands outside a string

_BLANK = re.compile(rf"(?:[{_WHITE}]+|\\[nrt]|```\w*|//[^\n]*|\#(?![0-9])[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/|\Z))+")
_NUMBER = re.compile(rf"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?(?=[{_WHITE}{_BRACKETS}{_Q}{_COMMA})/#\\]|\Z)")
_WORD = re.compile(rf"[^{_WHITE}{_BRACKETS}{_COMMA}{_COLON}{_Q}][^{_WHITE}{_BRACKETS}{_COMMA}{_COLON}]*")
_RUN = re.compile(r"(.)\1*", re.DOTALL)
_TUPLE = re.compile(rf"\({_S}[{_Q}0-9-]")

# A key is short; the bound keeps the search for its end from rescanning the whole text at every stray quote.
_QUOTED_KEY = {
    opening: re.compile(rf"{opening}((?:[^{closing}\\]|\\.){{0,128}}?)[{closing}]{_S}[{_COLON}]", re.DOTALL)
    for opening, closing in CLOSING_QUOTE.items()
}
_HALF_QUOTED_KEY = re.compile(rf"[{_Q}]?([\w$-]{{1,64}}(?:[{_Q}][\w$-]{{1,64}})?)[{_Q}]?{_S}[{_COLON}]")

# A closing quote counts only if what follows can follow a string, since models write quotes inside strings unescaped.
_STRING_PARTS = {closing: re.compile(rf"\\.|[{closing}]", re.DOTALL) for closing in set(CLOSING_QUOTE.values())}
_KEY_AHEAD = rf"[\w$-]{{1,64}}(?: [\w$-]{{1,64}}){{0,4}}[{_Q}]?{_S}[{_COLON}]"
_STRICT_KEY_AHEAD = rf'"(?:[^"\\]|\\.){{0,128}}"{_S}[{_COLON}]'
_END_AHEAD = rf"[{re.escape(_CLOSE)}]|//|/\*|\#|<[|/]|```|\Z"
_LITERAL = r"(?:null|true|false|None|True|False|NaN|Infinity)\b"
_AFTER_STRING_IN_OBJECT = re.compile(
    rf"{_S}(?:{_END_AHEAD}|[{_Q}]{_KEY_AHEAD}"
    rf"|[{_COMMA}]{_S}(?:{_END_AHEAD}|[{OPEN_OBJECT}]|[{_Q}]?{_KEY_AHEAD}|{_STRICT_KEY_AHEAD}))",
    re.DOTALL,
)
_AFTER_STRING_IN_ARRAY = re.compile(
    rf"[{_WHITE}]+[{_Q}]|{_S}(?:{_END_AHEAD}|[{re.escape(_OPEN)})]"
    rf"|[{_COMMA}]{_S}(?:{_END_AHEAD}|[{_Q}{re.escape(_OPEN)}0-9-]|{_LITERAL}|{_TUPLE.pattern}))"
)
# A value without its opening quote; a list or an object in quotes whose own quotes are not escaped.
_HALF_QUOTED_STRING = re.compile(rf'(?!{_LITERAL}{_S}[{_COMMA}])([^\W\d][^"{_BRACKETS}\n]{{0,256}})"')
_QUOTED_BRACKET = re.compile(rf"([{_Q}]){_S}[{re.escape(_OPEN)}](?:\s|[{_BRACKETS}]){{0,8}}\1\w")
# What stands between a string without its closing quote (or with a wrong one) and the key that shows it has ended.
_LOST_QUOTE = re.compile(rf"(?:\\?[{_Q}])?{_S}(?:(?:[}}\]]{_S})+(?:,{_S}\{{?|\{{)|,|\n{_S}\{{?){_S}\Z")
_LOST_QUOTE_AT_END = re.compile(
    rf"[^{_BRACKETS}\n]{{0,256}}?(?P<end>(?:\\?[{_Q}])?{_S}\}}{_S}\]{_S}\}}(?:\s|```|<[|/][^<>]{{0,64}}>){{0,64}}\Z)"
)
_LOST_QUOTE_WINDOW, _LOST_QUOTE_AT_END_WINDOW = 64, 512
_KEY_OF_LOST_QUOTE = re.compile(rf"[{_Q}]{_KEY_AHEAD}")


@dataclass(slots=True)
class Node:
    """One value of the text.

    Attributes:
        kind: "object", "array", "string", "number" or "word" (a literal such as `null`, or anything unreadable).
        start, end: half-open range of code points; a string's includes its quotes.
        closed: False if the text ended before the value did.
        content: of a string, its range without the quotes.
        entries: of an object or an array, `(key, value)` pairs in order. The key is None for a value that has none.
    """

    kind: str
    start: int
    end: int
    closed: bool = True
    content: tuple[int, int] = (0, 0)
    entries: list[tuple[str | None, Node]] | tuple[()] = ()

    @property
    def items(self) -> list[Node]:
        """The values, without their keys."""
        return [value for _, value in self.entries]


def read_value(text: str, pos: int) -> tuple[Node, int]:
    """Reads the object or array that opens at `text[pos]`.

    Args:
        text: the whole text.
        pos: index of an opening brace or bracket.

    Returns:
        The value and the position after it. A value that nests deeper than `MAX_DEPTH` is given up there, not closed;
        reading can go on at the position returned, so that a text made of brackets is still read in linear time.
    """
    reader = _Reader(text, pos)
    while reader.stack and reader.read_next():
        pass
    return reader.root, reader.pos


class _Reader:
    """Reads one value. The stack holds the objects and arrays that are open, the innermost last."""

    def __init__(self, text: str, pos: int) -> None:
        self.text = text
        self.stack: list[Node] = []
        self.keys: list[str | None] = []  # for each of the stack, the key that waits for its value
        self.pos = self.last = pos  # last: the end of the last thing read, where a value that nobody closed ends
        self.open_bracket()
        self.root = self.stack[0]

    def read_next(self) -> bool:
        """Reads the next mark, key or value. False if the text has ended or nests too deep."""
        text = self.text
        if blank := _BLANK.match(text, self.pos):
            self.pos = blank.end()
        pos = self.pos
        if pos >= len(text):
            return self.give_up()
        char = text[pos]
        top = self.stack[-1]
        in_object = top.kind == "object"
        wants_key = in_object and self.keys[-1] is None
        if char in _CLOSE or (char == ")" and text[top.start] == "("):
            self.close_bracket("object" if char in CLOSE_OBJECT else "array")
        elif char in _OPEN or (char == "(" and _TUPLE.match(text, pos)):
            in_list = [node.kind for node in self.stack[-2:-1]] == ["array"]
            if wants_key and top.entries and char in OPEN_OBJECT and in_list:
                self.close(1, self.last)  # an item of a list that was not closed before the next one
            if len(self.stack) >= MAX_DEPTH:
                self.pos = _RUN.match(text, pos).end() - 1  # type: ignore[union-attr]
                return self.give_up()
            self.open_bracket()
        elif in_object and (key := _key_at(text, pos, loose=wants_key)) is not None:
            self.keys[-1], self.pos = key
            self.last = self.pos
        elif char in CLOSING_QUOTE:
            if wants_key:
                self.last = self.pos = pos + 1  # a stray quote
            elif not in_object and (key := _key_at(text, pos, loose=False)) is not None:
                self.leave_array(key)
            elif _QUOTED_BRACKET.match(text, pos):
                self.pos += 1
            else:
                self.attach(_string(text, pos, in_object))
        elif in_object and not wants_key and (node := _half_quoted_string(text, pos)) is not None:
            self.attach(node)
        else:
            number = _NUMBER.match(text, pos)
            word = number or _WORD.match(text, pos)
            if word is None:
                self.pos += 1
            elif wants_key:
                self.last = self.pos = word.end()
            else:  # a number that ends the text may have been cut: 12 may be 129
                end, cut = word.end(), word.end() == len(text)
                self.attach(Node("number" if number and not cut else "word", pos, end, closed=not cut))
        return True

    def open_bracket(self) -> None:
        kind = "object" if self.text[self.pos] in OPEN_OBJECT else "array"
        node = Node(kind, self.pos, self.pos + 1, closed=False, entries=[])
        if self.stack:
            self.attach(node)
        self.stack.append(node)
        self.keys.append(None)
        self.last = self.pos = node.end

    def close_bracket(self, kind: str) -> None:
        """Closes the innermost object or array with all that is open inside; a surplus bracket closes nothing."""
        self.pos += 1
        count = self.depth_of(kind)
        if count:
            self.close(count - 1, self.last)
            self.close(1, self.pos)
            self.last = self.pos

    def leave_array(self, key: tuple[str, int]) -> None:
        """`"a", "key": ...`: the list was not closed before the next key of the object around it."""
        count = self.depth_of("object")
        if count:
            self.close(count - 1, self.last)
            self.keys[-1] = key[0]
        self.last = self.pos = key[1]

    def attach(self, node: Node) -> None:
        self.stack[-1].entries.append((self.keys[-1], node))  # type: ignore[union-attr]
        self.keys[-1] = None
        self.last = self.pos = node.end

    def close(self, count: int, end: int) -> None:
        for _ in range(count):
            node = self.stack.pop()
            self.keys.pop()
            node.end, node.closed = end, True

    def give_up(self) -> bool:
        for node in self.stack:
            node.end = self.last
        return False

    def depth_of(self, kind: str) -> int:
        """How many values to close for the innermost of a kind to be closed; 0 if none is open."""
        return next((n for n, node in enumerate(reversed(self.stack), start=1) if node.kind == kind), 0)


def _key_at(text: str, pos: int, loose: bool) -> tuple[str, int] | None:
    """A key with its colon at `pos`: the key and the position after it. Loose: one without all its quotes too."""
    quoted = _QUOTED_KEY.get(text[pos])
    match = (quoted and quoted.match(text, pos)) or (_HALF_QUOTED_KEY.match(text, pos) if loose else None)
    return (match.group(1), match.end()) if match else None


def _string(text: str, pos: int, in_object: bool) -> Node:
    """The string that opens at `pos`. Where its closing quote is missing, a key that follows shows it."""
    start = pos + 1
    can_end = _AFTER_STRING_IN_OBJECT if in_object else _AFTER_STRING_IN_ARRAY
    for match in _STRING_PARTS[CLOSING_QUOTE[text[pos]]].finditer(text, start):
        quote = match.start()
        if text[quote] == "\\":
            continue
        if can_end.match(text, match.end()):
            return Node("string", pos, match.end(), content=(start, quote))
        if _KEY_OF_LOST_QUOTE.match(text, quote):
            lost = _LOST_QUOTE.search(text, max(start, quote - _LOST_QUOTE_WINDOW), quote)
            if lost:
                return Node("string", pos, lost.start(), content=(start, lost.start()))
    if len(text) - start <= _LOST_QUOTE_AT_END_WINDOW and (lost := _LOST_QUOTE_AT_END.match(text, start)):
        return Node("string", pos, lost.start("end"), content=(start, lost.start("end")))
    return Node("string", pos, len(text), closed=False, content=(start, len(text)))


def _half_quoted_string(text: str, pos: int) -> Node | None:
    match = _HALF_QUOTED_STRING.match(text, pos)
    if match and _AFTER_STRING_IN_OBJECT.match(text, match.end()):
        return Node("string", pos, match.end(), content=match.span(1))
    return None


_ESCAPE = re.compile(r"\\(?:u(d[89ab]..)\\u(d[c-f]..)|u([0-9a-f]{4})|(.)|$)".replace("..", "[0-9a-f]{2}"), re.I | re.S)
_SURROGATE = re.compile("[\ud800-\udfff]")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def unescape(text: str, start: int, end: int) -> tuple[str, list[int] | range]:
    r"""Undoes the escapes of `text[start:end]`, keeping positions.

    Surrogate pairs become one character, lone surrogates U+FFFD, and an unknown escape such as `\_` its character.

    Returns:
        The characters, and for each of them (and for the end) the position in `text` where it begins.
    """
    if text.find("\\", start, end) < 0:
        return _SURROGATE.sub("\ufffd", text[start:end]), range(start, end + 1)
    chars: list[str] = []
    starts: list[int] = []
    pos = start
    for match in _ESCAPE.finditer(text, start, end):
        chars.extend(text[pos : match.start()])
        starts.extend(range(pos, match.start()))
        pos = match.end()
        high, low, code, other = match.groups()
        if high:
            chars.append(chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00))
        elif code:
            chars.append(chr(int(code, 16)))
        else:
            chars.append(_SIMPLE.get(other, other) if other else "\ufffd")
        starts.append(match.start())
    chars.extend(text[pos:end])
    starts.extend(range(pos, end + 1))
    return _SURROGATE.sub("\ufffd", "".join(chars)), starts
