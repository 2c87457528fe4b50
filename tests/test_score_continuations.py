"""Scoring continuations of shared prefixes: the same numbers as one full forward for each pair."""

import pytest
import torch
import transformers as t
from PIL import Image

from stepgrpo.frozen import score_continuations
from stepgrpo.modeling import load_model, load_processing_class

SIZE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
CONFIGS = {
    "qwen2": lambda: t.Qwen2Config(**{k: v for k, v in SIZE.items() if k != "head_dim"}),
    "gemma2": lambda: t.Gemma2Config(**SIZE, sliding_window=6, final_logit_softcapping=5.0),
    "granite": lambda: t.GraniteConfig(**{k: v for k, v in SIZE.items() if k != "head_dim"}, logits_scaling=3.0),
    "cohere": lambda: t.CohereConfig(**{k: v for k, v in SIZE.items() if k != "head_dim"}, logit_scale=0.3),
    "lfm2": lambda: t.Lfm2Config(
        **{k: v for k, v in SIZE.items() if k != "head_dim"}, layer_types=["conv", "full_attention", "conv"]
    ),
}
PREFIXES = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [20], [30, 31, 32]]
CONTINUATIONS = [[[40, 41, 42, 43], [44], [], [45, 46]], [[50, 51, 52]], []]


def make(name):
    torch.manual_seed(0)
    return t.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()


@torch.no_grad()
def one_by_one(model, prefix, text):
    """(2, R): log-probabilities by a forward over the whole, with all logits."""
    logits = model(input_ids=torch.tensor([[*prefix, *text]])).logits[0, len(prefix) - 1 : -1].float()
    logp = logits.log_softmax(-1)
    return torch.stack([logp[range(len(text)), text], logp.amax(-1)]) if text else torch.empty(2, 0)


def expected(model):
    return [one_by_one(model, p, c) for p, texts in zip(PREFIXES, CONTINUATIONS, strict=True) for c in texts]


def same(found, wanted):
    assert len(found[0]) == len(found[1]) == len(wanted)
    for logp, best, pair in zip(*found, wanted, strict=True):
        torch.testing.assert_close(torch.stack([logp, best]), pair, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_numbers_are_those_of_a_forward_for_each_pair(name):
    model = make(name)
    wanted = expected(model)
    assert any((pair[1] - pair[0] > 0.5).any() for pair in wanted)  # the scored tokens are not just the best ones
    same(score_continuations(model, PREFIXES, CONTINUATIONS), wanted)
    # In batches of one continuation, and with logits of two positions at a time.
    same(score_continuations(model, PREFIXES, CONTINUATIONS, max_tokens=1, chunk_size=2), wanted)


def test_only_the_tokens_that_are_asked_for_in_their_order():
    model = make("qwen2")
    all_of_them = [one_by_one(model, PREFIXES[0], text) for text in CONTINUATIONS[0]]
    positions = [[3, 0], [0], [], []]
    wanted = [pair[:, places] for pair, places in zip(all_of_them, positions, strict=True)]
    same(score_continuations(model, PREFIXES[:1], CONTINUATIONS[:1], [positions]), wanted)
    same(
        score_continuations(model, PREFIXES[:1], CONTINUATIONS[:1], [[None, [0], None, []]]),
        all_of_them[:3] + wanted[3:],
    )


def test_the_head_sees_scored_positions_only_and_each_prefix_is_read_once():
    model, seen, read = make("qwen2"), [], []
    project, embed = model.lm_head.forward, model.get_input_embeddings()
    model.lm_head.forward = lambda hidden: (seen.append(hidden.shape), project(hidden))[1]
    embed.register_forward_hook(lambda _, inputs, __: read.append(tuple(inputs[0].shape)))
    score_continuations(model, PREFIXES[:1], [[[1, 2, 3, 4, 5, 6], [7, 8, 9]]], [[[0, 2], [1]]], chunk_size=2)
    assert [tuple(shape) for shape in seen] == [(1, 32), (2, 32)]
    assert read == [(1, 10), (2, 2)]  # nothing after the last scored token but one
    assert "forward" in vars(model.lm_head) and model.lm_head(torch.zeros(1, 32)).shape == (1, 97)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_a_prefix_is_left_out(side):
    model = make("qwen2")
    zeros, ids = [0, 0, 0], PREFIXES[0]
    row = torch.tensor([zeros + ids if side == "left" else ids + zeros])
    prefix = {"input_ids": row, "attention_mask": (row != 0).long()}
    wanted = [one_by_one(model, ids, text) for text in CONTINUATIONS[0]]
    same(score_continuations(model, [prefix], CONTINUATIONS[:1]), wanted)


def test_a_model_in_training_is_left_in_training_and_scored_without_dropout():
    model = make("qwen2")
    wanted = expected(model)
    model.model.layers[0].self_attn.attention_dropout = 0.9
    model.train()
    model.model.layers[1].eval()
    model.gradient_checkpointing_enable()
    same(score_continuations(model, PREFIXES, CONTINUATIONS), wanted)
    assert model.training and not model.model.layers[1].training and model.model.layers[2].mlp.training
    assert "forward" not in vars(model.lm_head)


def test_with_an_adapter():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(make("qwen2"), LoraConfig(r=2, init_lora_weights=False, target_modules=["q_proj"])).eval()
    with_it = expected(model)
    same(score_continuations(model, PREFIXES, CONTINUATIONS), with_it)
    with model.disable_adapter():
        same(score_continuations(model, PREFIXES, CONTINUATIONS), expected(model))
    assert not torch.allclose(with_it[0], expected(make("qwen2"))[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1]], []), "1 prefixes, continuations of 0"),
        (([[1]], [[[2]]], []), "positions for 0"),
        (([[1]], [[[2]]], [[]]), "1 continuations and positions for 0"),
        (([[1]], [[[2, 3]]], [[[2]]]), "2 tokens has no position 2"),
        (([[1]], [[[2, 3]]], [[[-1]]]), "2 tokens has no position -1"),
        (([[]], [[[2]]]), "prefix 0 has no token"),
        (([{"input_ids": torch.ones(2, 3, dtype=torch.long)}], [[[2]]]), "a batch of 2"),
    ],
)
def test_arguments_that_do_not_belong_together(arguments, message):
    with pytest.raises(ValueError, match=message):
        score_continuations(make("qwen2"), *arguments)


def prefix_of(processor, pictures):
    content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": "Put the Apple on the table."}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    images = [[Image.new("RGB", size, colour) for size, colour in pictures]] if pictures else None
    return dict(processor(text=[text], images=images, return_tensors="pt"))


@torch.no_grad()
def full(model, prefix, text):
    ids = torch.tensor([text])
    inputs = {**prefix, "input_ids": torch.cat([prefix["input_ids"], ids], 1)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in prefix:
            inputs[name] = torch.cat([prefix[name], torch.zeros_like(ids)], 1)
    logp = model(**inputs).logits[0, prefix["input_ids"].size(1) - 1 : -1].float().log_softmax(-1)
    return torch.stack([logp[range(len(text)), text], logp.amax(-1)])


def test_vision_language_models(vlm_dir):
    model, processor = load_model(vlm_dir).eval(), load_processing_class(vlm_dir)
    # Pictures of different sizes, then none: the positions after one prefix are not those after another.
    pictures = [[((48, 16), "red")], [((16, 16), "blue"), ((32, 32), "green")], []]
    prefixes = [prefix_of(processor, shown) for shown in pictures]
    texts = [[[9, 8, 7, 6, 5], [4, 3]], [[12, 13, 14]], [[21, 22, 23], [24]]]
    wanted = [full(model, p, c) for p, group in zip(prefixes, texts, strict=True) for c in group]
    same(score_continuations(model, prefixes, texts), wanted)
    same(score_continuations(model, prefixes[::-1], texts[::-1]), wanted[3:] + wanted[2:3] + wanted[:2])


def test_a_picture_token_that_the_policy_wrote_harms_nobody(vlm_dir):
    model, processor = load_model(vlm_dir).eval(), load_processing_class(vlm_dir)
    prefix = prefix_of(processor, [((48, 16), "red")])
    image = model.config.image_token_id
    found = score_continuations(model, [prefix], [[[9, image, 7], [9, 8, 7]]])
    alone = score_continuations(model, [prefix], [[[9, 8, 7]]])
    same(([found[0][1]], [found[1][1]]), [torch.stack([alone[0][0], alone[1][0]])])
    assert torch.isfinite(found[0][0]).all() and found[0][0][0] == pytest.approx(found[0][1][0])


def forwards(model):
    """Shapes of the ids of each forward from now on."""
    shapes = []
    model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: shapes.append(tuple(inputs[0].shape)))
    return shapes


def test_continuations_that_another_begins_with_run_with_it():
    model = make("qwen2")
    texts = [[40, 41, 42], [40, 41, 42], [40, 41, 9], [40, 41, 9, 8, 7, 6], [40], [5, 6, 7], [40, 41, 9, 8]]
    wanted = [one_by_one(model, PREFIXES[0], text) for text in texts]
    shapes, heads = forwards(model), []
    project = model.lm_head.forward
    model.lm_head.forward = lambda hidden: (heads.append(len(hidden)), project(hidden))[1]
    same(score_continuations(model, PREFIXES[:1], [texts]), wanted)
    # Read are [40, 41, 9, 8, 7], which all but one begin, and [5, 6]; each position is projected once.
    assert shapes == [(1, 10), (2, 5)] and heads == [1, 5 + 2]


def test_candidates_that_differ_in_the_last_token_are_one_row():
    model = make("qwen2")
    texts = [[40, 41, token] for token in range(3, 60)]
    wanted = [one_by_one(model, PREFIXES[0], text)[:, [2]] for text in texts]
    shapes = forwards(model)
    same(score_continuations(model, PREFIXES[:1], [texts], [[[2]] * len(texts)]), wanted)
    assert shapes == [(1, 10), (1, 2)]


def test_nothing_to_score_runs_nothing():
    model = make("qwen2")
    shapes = forwards(model)
    logp, best = score_continuations(model, PREFIXES[:2], [[[], [5, 6]], []], [[[], []], []])
    assert [len(values) for values in (*logp, *best)] == [0] * 4 and shapes == []


def test_as_many_rows_in_a_forward_as_allowed():
    model = make("qwen2")
    wanted = expected(model)
    shapes = forwards(model)
    same(score_continuations(model, PREFIXES, CONTINUATIONS, max_rows=1), wanted)
    assert shapes == [(1, 10), (1, 3), (1, 1), (1, 1), (1, 2)]


def test_a_position_that_is_asked_for_twice():
    model = make("qwen2")
    wanted = one_by_one(model, PREFIXES[0], [40, 41])[:, [1, 1, 0, 0]]
    same(score_continuations(model, PREFIXES[:1], [[[40, 41]]], [[[1, 1, 0, 0]]]), [wanted])
