"""Tiny vision-language models of three families, made from configs and saved as users have them: model and processor.

Each has the family's own tokenizer class, trained on household text, its special tokens and its chat template's form. Tests
get them by the session fixtures `qwen2_5_vl_dir`, `qwen3_vl_dir`, `idefics3_dir` and `vlm_dir` (each family in turn).
"""

import contextlib
import functools
import io
from pathlib import Path

import pytest

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "idefics3")

QWEN_SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IDEFICS_SPECIAL = ["<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>"]
IDEFICS_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}"
)

PATCH = 8
QWEN_PIXELS = {"shortest_edge": (2 * PATCH) ** 2, "longest_edge": 8 * (2 * PATCH) ** 2}  # 1 to 8 tokens a picture
IDEFICS_SIDE = 32


@functools.cache
def _texts():
    from stepgrpo.data.household import household_rows, plan_json

    rows = household_rows("train", 48, seed=5)
    return [row["prompt"][0]["content"] for row in rows] + [plan_json(row["gt_action_close"]) for row in rows]


def _trained(tokenizer_class, vocab_size=600, texts=None):
    with contextlib.redirect_stdout(io.StringIO()):  # the trainer prints blank lines
        return tokenizer_class().train_new_from_iterator(texts or _texts(), vocab_size, show_progress=False)


def _qwen_tokenizer(texts=None):
    from transformers import Qwen2Tokenizer

    tokenizer = _trained(Qwen2Tokenizer, texts=texts)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": QWEN_SPECIAL})
    return tokenizer


def _idefics_tokenizer(texts=None):
    from transformers import GPT2Tokenizer

    tokenizer = _trained(GPT2Tokenizer, texts=texts)
    special = ["<|im_start|>", *IDEFICS_SPECIAL, *(f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2))]
    tokenizer.add_special_tokens(
        {"eos_token": "<end_of_utterance>", "pad_token": "<|im_end|>", "additional_special_tokens": special}
    )
    return tokenizer


def _text_config(tokenizer, hidden, layers, **more):
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **more,
    }


def _qwen_ids(tokenizer):
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    tokens = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    return dict(zip(names, tokenizer.convert_tokens_to_ids(list(tokens)), strict=True))


def _qwen2_5_vl(texts, hidden, layers, patch, spread):
    import transformers as t

    tokenizer = _qwen_tokenizer(texts)
    space = (
        3 * hidden // 32
    )  # of a head's hidden / 4 rotary pairs: height and width take three eighths each, as in Qwen's
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [hidden // 4 - 2 * space, space, space]}
    config = t.Qwen2_5_VLConfig(
        text_config=_text_config(tokenizer, hidden, layers, rope_parameters=rope, initializer_range=spread),
        vision_config={
            "depth": 2,
            "hidden_size": hidden,
            "initializer_range": spread,
            "intermediate_size": 2 * hidden,
            "num_heads": 2,
            "patch_size": patch,
            "window_size": 4 * patch,
            "fullatt_block_indexes": [1],
            "out_hidden_size": hidden,
        },
        tie_word_embeddings=True,
        **_qwen_ids(tokenizer),
    )
    pictures = t.Qwen2VLImageProcessor(size=dict(QWEN_PIXELS), patch_size=patch)
    videos = t.Qwen2VLVideoProcessor(size=dict(QWEN_PIXELS), patch_size=patch)
    processor = t.Qwen2_5_VLProcessor(pictures, tokenizer, videos, chat_template=QWEN_TEMPLATE)
    return t.Qwen2_5_VLForConditionalGeneration(config), processor


def _qwen3_vl(texts, hidden, layers, patch, spread):
    import transformers as t

    tokenizer = _qwen_tokenizer(texts)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_interleaved": True}
    rope["mrope_section"] = [hidden // 4 - 2 * (hidden // 12), hidden // 12, hidden // 12]
    config = t.Qwen3VLConfig(
        text_config=_text_config(
            tokenizer, hidden, layers, head_dim=hidden // 2, rope_parameters=rope, initializer_range=spread
        ),
        vision_config={
            "depth": 2,
            "hidden_size": hidden,
            "initializer_range": spread,
            "intermediate_size": 2 * hidden,
            "num_heads": 2,
            "patch_size": patch,
            "out_hidden_size": hidden,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        tie_word_embeddings=True,
        **_qwen_ids(tokenizer),
    )
    pictures = t.Qwen2VLImageProcessor(size=dict(QWEN_PIXELS), patch_size=patch)
    videos = t.Qwen3VLVideoProcessor(size=dict(QWEN_PIXELS), patch_size=patch)
    processor = t.Qwen3VLProcessor(pictures, tokenizer, videos, chat_template=QWEN_TEMPLATE)
    return t.Qwen3VLForConditionalGeneration(config), processor


def _idefics3(texts, hidden, layers, patch, spread):
    import transformers as t

    tokenizer = _idefics_tokenizer(texts)
    config = t.Idefics3Config(
        text_config={"model_type": "llama", **_text_config(tokenizer, hidden, layers, initializer_range=spread)},
        vision_config={
            "hidden_size": hidden,
            "initializer_range": spread,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": IDEFICS_SIDE,
            "patch_size": patch,
        },
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    pictures = t.Idefics3ImageProcessor(
        size={"longest_edge": IDEFICS_SIDE}, max_image_size={"longest_edge": IDEFICS_SIDE}
    )
    length = (IDEFICS_SIDE // patch) ** 2 // 4
    processor = t.Idefics3Processor(pictures, tokenizer, image_seq_len=length, chat_template=IDEFICS_TEMPLATE)
    return t.Idefics3ForConditionalGeneration(config), processor


def build_vlm(family, directory, texts=None, hidden=32, layers=2, patch=PATCH, seed=0, spread=0.02):
    """Saves an untrained model and its processor in a directory, and returns the directory.

    Args:
        family: one of `FAMILIES`.
        directory: where to save; made if missing.
        texts: what the tokenizer is trained on; household prompts and plans where not given.
        hidden: width of the language model and of the vision tower, a multiple of 16.
        layers: of the language model.
        patch: side of a patch in pixels.
        seed: of the weights.
        spread: their standard deviation.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build = {"qwen2_5_vl": _qwen2_5_vl, "qwen3_vl": _qwen3_vl, "idefics3": _idefics3}[family]
        model, processor = build(texts, hidden, layers, patch, spread)
    end, pad = processor.tokenizer.eos_token_id, processor.tokenizer.pad_token_id
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = end, pad
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    return Path(directory)


def picture(colour, width=48, height=32):
    """A picture of one colour."""
    from PIL import Image

    return Image.new("RGB", (width, height), colour)


@pytest.fixture(scope="session")
def qwen2_5_vl_dir(tmp_path_factory):
    return build_vlm("qwen2_5_vl", tmp_path_factory.mktemp("qwen2_5_vl"))


@pytest.fixture(scope="session")
def qwen3_vl_dir(tmp_path_factory):
    return build_vlm("qwen3_vl", tmp_path_factory.mktemp("qwen3_vl"))


@pytest.fixture(scope="session")
def idefics3_dir(tmp_path_factory):
    return build_vlm("idefics3", tmp_path_factory.mktemp("idefics3"))


@pytest.fixture(scope="session", params=FAMILIES)
def vlm_dir(request):
    return request.getfixturevalue(f"{request.param}_dir")
