"""Reads a yes or a no off the next token's logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def answer_token_ids(tokenizer: Any, words: Sequence[str]) -> list[int]:
    """The first token of an answer, in all its spellings.

    Args:
        tokenizer: the judge's.
        words: the words that mean the answer, such as `["yes"]`; each also in lower case, in upper case and with a capital,
            and all of these after a space.

    Returns:
        Sorted ids, at least one. Spellings of one token count; where no spelling is one token, the first tokens of all, except
        those that are only white space.

    Raises:
        ValueError: if there is no word, or one is empty.
    """
    if not words or any(not word.strip() for word in words):
        raise ValueError(f"An answer needs one or more words, none of them empty; got {list(words)!r}.")
    spellings = {form for word in words for form in (word, word.lower(), word.upper(), word.capitalize())}
    encoded = [
        tokenizer.encode(space + form, add_special_tokens=False) for form in sorted(spellings) for space in ("", " ")
    ]
    single = {ids[0] for ids in encoded if len(ids) == 1}
    return sorted(single or {ids[0] for ids in encoded if ids and tokenizer.decode(ids[:1]).strip()})


def both_answers(tokenizer: Any, yes: Sequence[str], no: Sequence[str]) -> tuple[list[int], list[int]]:
    """The ids of two opposite answers.

    Raises:
        ValueError: if a token could begin both, so that the judge's answer could not be told from it.
    """
    yes_ids, no_ids = answer_token_ids(tokenizer, yes), answer_token_ids(tokenizer, no)
    if common := sorted(set(yes_ids) & set(no_ids)):
        raise ValueError(
            f"The answers {list(yes)!r} and {list(no)!r} begin with the same token for this tokenizer: "
            f"{tokenizer.convert_ids_to_tokens(common)}. Choose words that do not (verify_yes, verify_no)."
        )
    return yes_ids, no_ids


def yes_minus_no(logits: Tensor, yes_ids: Sequence[int], no_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """P(yes) - P(no), the two sharing all the probability.

    Args:
        logits: (B, V) float32, of the next token.
        yes_ids, no_ids: of the answers.

    Returns:
        (B,) scores in [-1, 1], `tanh((logsumexp(yes) - logsumexp(no)) / 2)`; and (B,) the share in [0, 1] of the whole
        probability that the two answers have. Where that is small, the judge wants to say something else.
    """
    yes, no = logits[:, list(yes_ids)].logsumexp(1), logits[:, list(no_ids)].logsumexp(1)
    return torch.tanh((yes - no) / 2), (torch.logaddexp(yes, no) - logits.logsumexp(1)).exp()
