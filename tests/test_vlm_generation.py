"""Plans written by vision-language models: with pictures, without, and both in one batch."""

import pytest
import torch

from stepgrpo.generation import end_token_ids, generate_ids, generate_plans
from stepgrpo.modeling import load_model, load_processing_class
from tests.vlm import picture

SHORT, LONG = "Put a Mug on the Desk.", "Take the Tomato that lies in the Fridge and leave it on the DiningTable."


def talk(text):
    return [{"role": "user", "content": text}]


PROMPTS = [talk(SHORT), talk(LONG), talk(SHORT), talk(LONG), talk(SHORT)]


@pytest.fixture
def pictures(tmp_path):
    path = tmp_path / "blue.png"
    picture("blue", 20, 90).save(path)
    return [[picture("red")], [], [picture("yellow", 64, 64), str(path)], None, [path]]


@pytest.fixture
def model_and_processor(vlm_dir):
    model, processor = load_model(vlm_dir), load_processing_class(vlm_dir)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight *= 6  # else an untrained model repeats one token whatever it sees
    return model, processor


def test_greedy_plans_do_not_depend_on_the_batch(model_and_processor, pictures):
    model, processor = model_and_processor
    together = generate_ids(model, processor, PROMPTS, 12, temperature=0.0, batch_size=5, images=pictures)
    in_pairs = generate_ids(model, processor, PROMPTS, 12, temperature=0.0, batch_size=2, images=pictures)
    alone = [
        generate_ids(model, processor, [prompt], 12, temperature=0.0, images=[row])[0]
        for prompt, row in zip(PROMPTS, pictures, strict=True)
    ]
    assert together == in_pairs == alone
    assert together[1] == together[3]  # `[]` and None are the same
    assert len({tuple(ids) for [ids] in together}) == 4  # the pictures make a difference: three prompts are the same
    assert any(len(set(ids)) > 2 for [ids] in together)


def test_one_by_one_equals_the_models_own_way(model_and_processor, pictures):
    model, processor = model_and_processor
    model.eval()
    part = [{"type": "image", "image": image} for image in (picture("yellow", 64, 64), picture("blue", 20, 90))]
    talks = [[{"role": "user", "content": [*part, {"type": "text", "text": SHORT}]}]]
    inputs = processor.apply_chat_template(
        talks, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    banned = [model.config.image_token_id]
    expected = model.generate(**inputs, max_new_tokens=8, do_sample=False, suppress_tokens=banned)
    expected = expected[0, inputs["input_ids"].size(1) :].tolist()
    ends = end_token_ids(model, processor)
    written = generate_ids(model, processor, [PROMPTS[2]], 8, temperature=0.0, images=[pictures[2]])[0][0]
    assert written == expected[: len(written)] and (len(written) == 8 or written[-1] in ends)
    assert processor.tokenizer.eos_token_id in ends


def test_pictures_stand_where_the_conversation_has_them(model_and_processor):
    model, processor = model_and_processor
    text = {"type": "text", "text": SHORT}
    before = [{"role": "user", "content": [{"type": "image"}, text]}]
    after = [{"role": "user", "content": [text, {"type": "image"}]}]
    red = [[picture("red")]]
    plain, first, last = (
        generate_ids(model, processor, [prompt], 8, temperature=0.0, images=red)
        for prompt in (talk(SHORT), before, after)
    )
    assert plain == first != last


def test_samples_and_batches(model_and_processor, pictures):
    model, processor = model_and_processor
    seen = []
    ids = generate_ids(
        model,
        processor,
        PROMPTS,
        6,
        num_samples=2,
        batch_size=4,
        images=pictures,
        on_batch=lambda *batch: seen.append(batch),
    )
    assert [len(group) for group in ids] == [2] * 5 and sorted(i for batch, _ in seen for i in batch) == sorted(
        [*range(5)] * 2
    )
    assert model.config.image_token_id not in {token for group in ids for row in group for token in row}
    texts = generate_plans(model, processor, PROMPTS, 6, num_samples=2, batch_size=4, images=pictures)
    assert texts == [processor.batch_decode(group, skip_special_tokens=True) for group in ids]


def test_clear_refusals(qwen3_vl_dir, make_model, tiny_tokenizer):
    model, processor = load_model(qwen3_vl_dir), load_processing_class(qwen3_vl_dir)
    red = picture("red")
    with pytest.raises(ValueError, match="tokenizer only"):
        generate_ids(make_model(), tiny_tokenizer, [talk("a")], 2, images=[[red]])
    assert generate_ids(make_model(), tiny_tokenizer, [talk("a")], 2, images=[[]])
    with pytest.raises(ValueError, match="2 rows of images for 1 prompts"):
        generate_ids(model, processor, [talk("a")], 2, images=[[red], [red]])
    with pytest.raises(ValueError, match="Prompt 1 has pictures and is a text"):
        generate_ids(model, processor, ["a", "b"], 2, images=[[], [red]])
    with pytest.raises(ValueError, match=r"Prompt 0: Number of images provided \(2\) does not match"):
        generate_ids(model, processor, [[{"role": "user", "content": [{"type": "image"}]}]], 2, images=[[red, red]])
    assert len(generate_ids(model, processor, ["a", "longer text"], 2)) == 2
