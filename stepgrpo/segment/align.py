"""Which characters of the decoded text each token wrote, and so which tokens wrote a step.

Exact for any sequence of ids, also those that no text encodes to: a sampled completion is seldom the canonical
tokenization of its own text, and one that was skipped for that would train on nothing. Tokens are never re-encoded.

Two families of decoders are read here token by token, byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM2) and SentencePiece
with byte fallback (Llama 2, Gemma). Any other has to decode every prefix: as right, but quadratic in the length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

from stepgrpo.segment.plan import PlanStep, Span, field_spans, parse_plan

FIELDS = ("step", "action_id", "action_name")

_INVALID = "\N{REPLACEMENT CHARACTER}"
# GPT-2's printable stand-in for each byte.
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = sorted(set(range(0x100)).difference(_PRINTABLE))
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + n): byte for n, byte in enumerate(_OTHERS)}
# The modules that define decoding where it is plain: nothing is done to the text that the Rust decoder returns.
_PLAIN_DECODING = ("transformers.tokenization_utils_tokenizers", "transformers.tokenization_utils_base")
_FORCED_CLEAN_UP = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
_FALLBACK_DECODERS = re.compile(r"(Replace )*ByteFallback( Fuse( Strip)?)?")
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")  # Rust's integer parser takes a plus sign


def step_token_indices(
    token_ids: Iterable[int], tokenizer: Any, fields: Sequence[str] = ("action_name",)
) -> tuple[list[PlanStep], list[list[int]]]:
    """Reads the plan of a completion and finds the tokens that wrote it.

    Args:
        token_ids: the ids of one completion, (T,), without padding; a list, an array or a tensor.
        tokenizer: a transformers tokenizer, or a processor that holds one.
        fields: which values of a step count, of "step" (the whole object), "action_id" and "action_name".

    Returns:
        The steps, and for each the ascending indices into `token_ids` of the tokens that overlap a character of its
        fields; a token that overlaps two steps belongs to the earlier. Both are empty where there is no plan.

    Raises:
        ValueError: a field is not one of the three.
    """
    unknown = [field for field in fields if field not in FIELDS]
    if unknown:
        raise ValueError(f"fields has {unknown[0]!r}; the choices are {', '.join(FIELDS)}")
    text, spans = token_spans(token_ids, tokenizer)
    steps = parse_plan(text) or []
    return steps, tokens_of_spans(spans, [field_spans(step, fields) for step in steps])


def tokens_of_spans(token_spans: Sequence[Span], char_spans_per_step: Sequence[Sequence[Span]]) -> list[list[int]]:
    """The tokens that overlap at least one character of a step's ranges. Linear in the number of tokens and ranges.

    Args:
        token_spans: (T,) half-open ranges of characters whose starts do not descend, as `token_spans` gives them.
        char_spans_per_step: for each step its ranges of characters. Those of different steps do not overlap.

    Returns:
        For each step the ascending indices of its tokens. A token is in one step: the first range it overlaps has it.
    """
    tokens: list[list[int]] = [[] for _ in char_spans_per_step]
    ranges = sorted((a, b, k) for k, spans in enumerate(char_spans_per_step) for a, b in spans if a < b)
    current = 0
    for i, (start, end) in enumerate(token_spans):
        while current < len(ranges) and ranges[current][1] <= start:
            current += 1
        if start < end and current < len(ranges) and ranges[current][0] < end:
            tokens[ranges[current][2]].append(i)
    return tokens


def token_spans(token_ids: Iterable[int], tokenizer: Any) -> tuple[str, list[Span]]:
    """Decodes a completion and says which characters each token wrote.

    Args:
        token_ids: any ids, (T,): special ones, ones beyond the vocabulary and ones that are no valid text together.
        tokenizer: a transformers tokenizer, or a processor that holds one.

    Returns:
        The text, equal to `tokenizer.decode(token_ids)`, and T half-open ranges of its characters (code points). Their
        starts do not descend and together they cover the text. All tokens that share a character have it in their
        range; a token that writes nothing has an empty range.

    Raises:
        TypeError, OverflowError: an id is not an integer, or is negative or longer than 32 bits (as in `decode`).
    """
    as_list: Callable[[], Iterable[int]] | None = getattr(token_ids, "tolist", None)
    ids = [index(token_id) for token_id in (as_list() if as_list else token_ids)]
    if _home_of(tokenizer, "decode") == "transformers.processing_utils":
        tokenizer = tokenizer.tokenizer
    if (reader := _reader_of(tokenizer)) is not None:
        with suppress(_UnreadableToken):
            return reader.spans(ids)
    return _spans_by_prefixes(ids, tokenizer.decode)


class _UnreadableToken(Exception):
    """The tokenizer decodes a token otherwise than its decoder's settings and the token's name say."""


class _Reader:
    """Reads tokens one by one and keeps what each stands for.

    A token stands for a text of its own, for bytes whose meaning depends on the bytes around them, or for nothing.
    Bytes are decoded run by run; tokens that stand for nothing do not end a run.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        # Ids that stand for nothing are left out: a token may be added for them later.
        self._known: dict[int, str | bytes] = {}

    def spans(self, ids: list[int]) -> tuple[str, list[Span]]:
        for token_id in set(ids):
            if token_id not in self._known and (meaning := self._read(token_id)) is not None:
                self._known[token_id] = meaning
        return self._align([self._known.get(token_id) for token_id in ids])

    def _read(self, token_id: int) -> str | bytes | None:
        raise NotImplementedError

    def _decode_run(self, data: bytes) -> tuple[str, list[int]]:
        """The text of some bytes, and for each byte the index of its character."""
        raise NotImplementedError

    def _align(self, meanings: list[str | bytes | None]) -> tuple[str, list[Span]]:
        parts: list[str] = []
        spans: list[Span] = []
        run: list[bytes] = []
        pos = 0
        for meaning in meanings:
            if isinstance(meaning, str):
                if run:
                    parts.append(self._end_run(run, pos, spans))
                    pos += len(parts[-1])
                    run = []
                end = pos + len(meaning)
                spans.append((pos, end))
                parts.append(meaning)
                pos = end
            elif meaning is not None:
                run.append(meaning)
            elif run:
                run.append(b"")
            else:
                spans.append((pos, pos))
        if run:
            parts.append(self._end_run(run, pos, spans))
        return "".join(parts), spans

    def _end_run(self, run: list[bytes], pos: int, spans: list[Span]) -> str:
        text, owners = self._decode_run(b"".join(run))
        owners.append(len(text))
        offset = 0
        for part in run:
            start = pos + owners[offset]
            spans.append((start, pos + owners[offset + len(part) - 1] + 1 if part else start))
            offset += len(part)
        return text


class _ByteLevelReader(_Reader):
    """Every token is bytes; only the bytes of tokens that hold part of a character wait for their neighbours."""

    def _read(self, token_id: int) -> str | bytes | None:
        text: str = self._backend.decode([token_id], skip_special_tokens=False)
        if _INVALID not in text:
            return text or None
        piece: str = self._backend.id_to_token(token_id)
        data = bytes(map(_BYTE_OF.__getitem__, piece)) if _BYTE_OF.keys() >= set(piece) else piece.encode()
        if data.decode(errors="replace") != text:
            raise _UnreadableToken(token_id)
        return data

    def _decode_run(self, data: bytes) -> tuple[str, list[int]]:
        # Not an incremental decoder: CPython's holds ED A0 back (half a surrogate), where Rust sees two errors.
        text, owners = "", []
        while data:
            try:
                good, bad = data.decode(), 0
            except UnicodeDecodeError as error:
                good, bad = data[: error.start].decode(), error.end - error.start
            owners += [i for i, char in enumerate(good, len(text)) for _ in char.encode()]
            text += good + _INVALID * bool(bad)
            owners += [len(text) - 1] * bad
            data = data[len(good.encode()) + bad :]
        return text, owners


class _ByteFallbackReader(_Reader):
    """Tokens are texts, but those named like `<0xE4>` are bytes. One bad byte spoils the whole run it stands in."""

    def __init__(self, backend: Any, decoders: list[dict[str, Any]]) -> None:
        super().__init__(backend)
        self._replacements = [(d["pattern"]["String"], d["content"]) for d in decoders if d["type"] == "Replace"]
        self._strips = [(d["content"], d["start"]) for d in decoders if d["type"] == "Strip"]

    def _read(self, token_id: int) -> str | bytes | None:
        meaning: str | bytes | None = self._backend.id_to_token(token_id)
        if not isinstance(meaning, str):
            return None
        for old, new in self._replacements:
            meaning = meaning.replace(old, new)
        if match := _BYTE_PIECE.fullmatch(meaning):
            meaning = bytes([int(match[1], 16)])
        # Releases of tokenizers differ in what they decode an added token to. Twice, as the first may be stripped.
        if self._align([meaning, meaning])[0] != self._backend.decode([token_id] * 2, skip_special_tokens=False):
            raise _UnreadableToken(token_id)
        return meaning

    def _decode_run(self, data: bytes) -> tuple[str, list[int]]:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return _INVALID * len(data), list(range(len(data)))
        return text, [i for i, char in enumerate(text) for _ in char.encode()]

    def _align(self, meanings: list[str | bytes | None]) -> tuple[str, list[Span]]:
        text, spans = super()._align(meanings)
        for content, most in self._strips:
            cut = min(most, len(text) - len(text.lstrip(content)))
            if cut:
                text = text[cut:]
                spans = [(max(start - cut, 0), max(end - cut, 0)) for start, end in spans]
        return text, spans


_readers: WeakKeyDictionary[Any, tuple[object, _Reader | None]] = WeakKeyDictionary()


def _reader_of(tokenizer: Any) -> _Reader | None:
    """The reader of the tokenizer, made at its first use and again if its decoder changed; None: no family fits."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if getattr(backend, "decoder", None) is None or not _decodes_plainly(tokenizer, backend):
        return None
    try:
        state: bytes = backend.decoder.__getstate__()
    except Exception:  # what tokenizers raises for a decoder written in Python
        return None
    cached = _readers.get(tokenizer)
    if cached is None or cached[0] != (id(backend), state):
        cached = _readers[tokenizer] = (id(backend), state), _make_reader(backend, json.loads(state))
    return cached[1]


def _decodes_plainly(tokenizer: Any, backend: Any) -> bool:
    """Whether the tokenizer's `decode` is that of the Rust tokenizer, with nothing done to the text afterwards."""
    if not all(_home_of(tokenizer, name) in _PLAIN_DECODING for name in ("decode", "_decode")):
        return False
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return True
    # transformers ignores the setting for BPE (Llama 3 has it) unless forced; old releases know no such exception.
    return type(backend.model).__name__ == "BPE" and not getattr(tokenizer, _FORCED_CLEAN_UP, True)


def _make_reader(backend: Any, config: dict[str, Any]) -> _Reader | None:
    decoders: list[dict[str, Any]] = config["decoders"] if config["type"] == "Sequence" else [config]
    kinds = " ".join(decoder["type"] for decoder in decoders)
    if kinds == "ByteLevel":
        return _ByteLevelReader(backend)
    readable = (d["pattern"].get("String") if d["type"] == "Replace" else not d.get("stop") for d in decoders)
    return _ByteFallbackReader(backend, decoders) if _FALLBACK_DECODERS.fullmatch(kinds) and all(readable) else None


def _home_of(thing: Any, method: str) -> str | None:
    """The module of the class that defines the method."""
    return next((cls.__module__ for cls in type(thing).__mro__ if method in vars(cls)), None)


def _spans_by_prefixes(ids: list[int], decode: Callable[[list[int]], str]) -> tuple[str, list[Span]]:
    """The spans of a tokenizer that is a black box: what each token adds to the text decoded so far.

    Characters that change as later tokens come (a half character, a blank that is cleaned up) belong to both sides.
    """
    text = decode(ids)
    starts, ends = [0], [0]
    spans: list[Span] = []
    for n, token_id in enumerate(ids, 1):
        prefix = decode(ids[:n]) if n < len(ids) else text
        same = min(len(prefix), len(text))
        if not text.startswith(prefix):
            same = next((i for i, (a, b) in enumerate(zip(prefix, text, strict=False)) if a != b), same)
        start = min(starts[-1], ends[-1])
        ends.append(max(ends[-1], min(same + (same < len(prefix)), len(text))))
        starts.append(max(starts[-1], same))
        if spans and start == ends[-1] and decode([token_id]):
            start = max(start - 1, spans[-1][0])  # it wrote something, so it has a part in the character before
        spans.append((start, ends[-1]))
    return text, spans
