"""Whether two tokenizers mean the same by the same ids."""

from __future__ import annotations

import json
from typing import Any


def tokenizer_difference(teacher: Any, policy: Any) -> str | None:
    """What is different between two tokenizers; None if ids of one can be read by the other.

    Vocabularies of one size with other tokens in them would score one text for another without a word, so ids, merges and
    special tokens are all compared. Padding tokens and chat templates may differ: nothing that is scored depends on them.

    Args:
        teacher, policy: tokenizers, or processors that hold one.
    """
    ours, theirs = (getattr(tokenizer, "tokenizer", tokenizer) for tokenizer in (teacher, policy))
    ids = [tokenizer.get_vocab() for tokenizer in (ours, theirs)]
    if ids[0] != ids[1]:
        odd = sorted(token for token in ids[0].keys() | ids[1].keys() if ids[0].get(token) != ids[1].get(token))
        shown = ", ".join(f"{token!r} is {ids[0].get(token)} here and {ids[1].get(token)} there" for token in odd[:3])
        return f"{len(odd)} of {len(ids[0])} and {len(ids[1])} tokens differ: {shown}"
    merges = [_merges(tokenizer) for tokenizer in (ours, theirs)]
    if merges[0] != merges[1]:
        sizes = [len(found) if found is not None else "no" for found in merges]
        return f"the merges differ ({sizes[0]} here, {sizes[1]} there)"
    special = [_special(tokenizer) for tokenizer in (ours, theirs)]
    if special[0] != special[1]:
        return f"the special tokens differ: {sorted(map(str, special[0] ^ special[1]))}"
    if ours.eos_token_id != theirs.eos_token_id:
        return f"the end token is {ours.eos_token!r} here and {theirs.eos_token!r} there"
    return None


def _merges(tokenizer: Any) -> list[Any] | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    merges = json.loads(backend.to_str())["model"].get("merges")
    # Saved as "a b" by older versions of tokenizers, as ["a", "b"] by newer ones.
    return (
        None
        if merges is None
        else [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in merges]
    )


def _special(tokenizer: Any) -> set[tuple[int, str]]:
    return {(id_, token.content) for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
