"""A teacher that reads other ids than the policy writes is refused."""

import copy
import json

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from stepgrpo.frozen.same_tokenizer import tokenizer_difference


def changed(tokenizer, change):
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    change(state)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), eos_token="<|end|>", pad_token="<|pad|>"
    )
    return fast


def swap_two(state):
    vocab = state["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]


def swap_merges(state):
    merges = state["model"]["merges"]
    merges[0], merges[-1] = merges[-1], merges[0]


def unspecial(state):
    state["added_tokens"][2]["special"] = False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (swap_two, "2 of .* tokens differ: 'A' is"),
        (swap_merges, "the merges differ"),
        (unspecial, r"the special tokens differ: .*<\|user\|>"),
    ],
)
def test_what_differs_is_said(tiny_tokenizer, change, said):
    import re

    other = changed(tiny_tokenizer, change)
    assert len(other) == len(tiny_tokenizer)  # a comparison of sizes would see nothing
    assert re.search(said, tokenizer_difference(other, tiny_tokenizer))


def test_a_copy_is_the_same_whatever_pads_and_however_it_chats(tiny_tokenizer):
    other = changed(tiny_tokenizer, lambda state: None)
    assert tokenizer_difference(other, tiny_tokenizer) is None
    other = copy.deepcopy(tiny_tokenizer)
    other.pad_token, other.chat_template = "<|end|>", None
    assert tokenizer_difference(other, tiny_tokenizer) is None
    other.eos_token = "<|user|>"
    assert "the end token is '<|user|>' here" in tokenizer_difference(other, tiny_tokenizer)


def test_added_tokens_count(tiny_tokenizer):
    other = copy.deepcopy(tiny_tokenizer)
    other.add_tokens(["<extra>"])
    assert "1 of" in tokenizer_difference(tiny_tokenizer, other) and "<extra>" in tokenizer_difference(
        tiny_tokenizer, other
    )


def test_processors_are_compared_by_their_tokenizers(qwen2_5_vl_dir, qwen3_vl_dir):
    from stepgrpo.modeling import load_processing_class

    ours = load_processing_class(qwen2_5_vl_dir)
    assert tokenizer_difference(ours, ours.tokenizer) is None
    assert tokenizer_difference(ours, load_processing_class(qwen3_vl_dir)) is None
