"""Tiny models and tokenizers, made from configs once a session."""

import json
import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from tests.vlm import idefics3_dir, qwen2_5_vl_dir, qwen3_vl_dir, vlm_dir  # noqa: F401

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def plan_text(steps):
    """A completion in the benchmark's form; steps are (id, name) pairs."""
    plan = [{"action_id": action_id, "action_name": name} for action_id, name in steps]
    return json.dumps({"language_plan": "go", "executable_plan": plan})


@pytest.fixture(scope="session")
def tiny_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    names = ["find a Tomato", "pick up the Tomato", "find a Fridge", "open the Fridge", "put down the object in hand"]
    tokenizer.train_from_iterator([plan_text(list(enumerate(names)))] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.padding_side = "left"
    return fast


@pytest.fixture(scope="session")
def make_model(tiny_tokenizer):
    """A function that makes the same tiny model each time it is called."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def make():
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=len(tiny_tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=1024,
            eos_token_id=tiny_tokenizer.eos_token_id,
            pad_token_id=tiny_tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
        return Qwen2ForCausalLM(config)

    return make
