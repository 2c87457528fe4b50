"""A byte-level tokenizer for the demo's plans, about eight tokens a step.

A general tokenizer would spend most of a small model's tokens on the JSON around the actions. Here the pre-tokenizer
keeps each piece of that scaffolding together, so that training makes one token of it, and the digits of an id as well.
Every byte has a token of its own, so no text is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"

_PIECES = "|".join(
    (
        r'\{"executable_plan": \[',
        r'\{"action_id": ',
        r', "action_name": "',
        r'"\}, ',
        r'"\}\]\}',
        r" ?[A-Za-z]+(?:_2)?",
        r" ?\d+",
        r"\s",
        r"[^\sA-Za-z\d]",
    )
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "<|assistant|>{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1280) -> PreTrainedTokenizerFast:
    """Trains the tokenizer.

    Args:
        texts: prompts and completions as the planner will see them.
        vocab_size: at least 260 (the bytes and the four special tokens).

    Returns:
        A tokenizer with a chat template whose assistant part is marked for assistant-only losses. Once saved, load it
        with `stepgrpo.modeling.load_tokenizer`: `AutoTokenizer` would put Qwen2's pre-tokenizer in the place of its own.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
