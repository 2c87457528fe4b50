"""StepGRPO with pictures: rows with several, one and none, of three model families."""

import json

import pytest
import torch
from datasets import Dataset, Image, List
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from stepgrpo import StepGRPOConfig, StepGRPOTrainer
from stepgrpo.modeling import load_model, load_processing_class
from stepgrpo.segment.align import token_spans
from tests.conftest import plan_text
from tests.scripted import FIND, FRIDGE, GROUND_TRUTH, OPEN, PICK, config
from tests.vlm import picture

TRUTH = json.dumps([{"action_id": number, "action_name": name} for number, name in GROUND_TRUTH])
ROWS = {
    "one": [picture("red")],
    "none": [],
    "two": [picture("blue", 64, 64), picture("green", 20, 90)],
    "three": [picture("white", 96, 40)] * 3,
}
PLANS = [plan_text([FIND, PICK, OPEN]), plan_text([FIND, FRIDGE]), "I cannot see it.", plan_text(GROUND_TRUTH)]
PICTURES = ("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "mm_token_type_ids")
RIGHT = [[1, 1, -1], [1, -1], [], [1, 1, 1, 1]]  # by position, against GROUND_TRUTH


def data_set(names, column="images"):
    rows = [ROWS[name] for name in names]
    values = rows if column == "images" else [row[0] if row else None for row in rows]
    prompts = [[{"role": "user", "content": f"Put the Tomato {i} in the Fridge."}] for i in range(len(names))]
    data = Dataset.from_dict({"prompt": prompts, column: values, "gt_action_close": [TRUTH] * len(names)})
    return data.cast_column(column, List(Image()) if column == "images" else Image())


def length_reward(completions, **_):
    return [float(len(completion[0]["content"]) % 5) for completion in completions]


def make(folder, path, data, cls=StepGRPOTrainer, reward=length_reward, peft_config=None, **options):
    model, processor = load_model(folder), load_processing_class(folder)
    args = config(
        path, cls=StepGRPOConfig if cls is StepGRPOTrainer else GRPOConfig, **{"num_generations": 2, **options}
    )
    return cls(model, reward, args, data, processing_class=processor, peft_config=peft_config)


def script(trainer):
    """Makes a trainer hand out the plans above in the place of what its model writes."""
    tokenizer, end = trainer._tokenizer, trainer._tokenizer.eos_token_id
    ids = [[*tokenizer.encode(text, add_special_tokens=False), end] for text in PLANS]
    trainer._generate_single_turn = lambda prompt_ids, *_, **__: ([ids[i % 4] for i in range(len(prompt_ids))], None)


def catch(trainer):
    """The outputs of each `_generate_and_score_completions` of a trainer, filled while it trains."""
    seen, original = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: seen.append((inputs, original(inputs))) or seen[-1][1]
    return seen


def test_step_credit_lands_on_the_text_of_the_steps(vlm_dir, tmp_path):
    trainer = make(vlm_dir, tmp_path, data_set(["two", "none", "one", "three"]), max_steps=1, num_generations=4)
    script(trainer)
    seen, before = catch(trainer), [weight.clone() for weight in trainer.model.parameters()]
    trainer.train()
    [(inputs, outputs)] = seen
    assert {len(row["images"]) for row in inputs} == {0, 2}
    rewards = torch.tensor([float(len(text) % 5) for text in PLANS])
    episode = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    for i in range(8):
        ids = outputs["completion_ids"][i][outputs["completion_mask"][i].bool()].tolist()
        text, spans = token_spans(ids[:-1], trainer._tokenizer)
        assert text == PLANS[i % 4]
        term = (outputs["advantages"][i][: len(spans)] - episode[i % 4]).tolist()
        expected, cursor = {}, 0
        for score, step in zip(
            RIGHT[i % 4], json.loads(text)["executable_plan"] if text[0] == "{" else [], strict=True
        ):
            for needle in (str(step["action_id"]), step["action_name"]):
                start = text.index(needle, cursor)
                cursor = start + len(needle)
                expected |= {n: score for n, (a, b) in enumerate(spans) if a < cursor and b > start}
        assert term == pytest.approx([expected.get(n, 0) for n in range(len(spans))], abs=1e-4)
        assert len(set(expected.values())) == (2, 2, 0, 1)[i % 4]
    named = {
        name
        for (name, weight), old in zip(trainer.model.named_parameters(), before, strict=True)
        if not torch.equal(weight, old)
    }
    assert any("vis" in name for name in named) and any("layers" in name and "vis" not in name for name in named)


@pytest.fixture
def seeing_dir(vlm_dir, tmp_path):
    """A model whose weights are large enough that its pictures make a difference."""
    model = load_model(vlm_dir)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight *= 4
    model.save_pretrained(tmp_path / "seeing")
    load_processing_class(vlm_dir).save_pretrained(tmp_path / "seeing")
    return tmp_path / "seeing"


def logps_alone(model, processor, row, images, ids):
    """Log-probabilities of a completion by the model's own way, one row at a time and without padding."""
    content = [{"type": "image"}] * len(images) + [{"type": "text", "text": row["prompt"][0]["content"]}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    encoded = processor(text=[text], images=[images] if images else None, return_tensors="pt")
    prompt = encoded.pop("input_ids")
    encoded["attention_mask"] = torch.ones(1, prompt.size(1) + len(ids), dtype=torch.long)
    if "mm_token_type_ids" in encoded:
        encoded["mm_token_type_ids"] = torch.nn.functional.pad(encoded["mm_token_type_ids"], (0, len(ids)))
    with torch.no_grad():
        logits = model(input_ids=torch.cat([prompt[0], ids])[None], **encoded).logits[0, prompt.size(1) - 1 : -1]
    return logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]


@pytest.mark.parametrize("names", [["two", "none", "none", "two"], ["none", "one", "three", "none"], ["none"] * 4])
def test_pictures_stay_with_their_rows(seeing_dir, tmp_path, names):
    """A completion's probability is the same in a mixed batch, in the small ones of the loss, and alone."""
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "beta": 0.1, "learning_rate": 0.0}
    trainer = make(seeing_dir, tmp_path, data_set(names), max_steps=1, **options)
    script(trainer)
    seen, parts, loss = catch(trainer), [], trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: parts.append(inputs) or loss(model, inputs)
    trainer.train()
    [(inputs, outputs)] = seen
    assert [len(row["images"]) for row in inputs] == [len(ROWS[name]) for name in names for _ in range(2)]
    model, processor = load_model(seeing_dir).eval(), trainer.processing_class
    for i, row in enumerate(inputs):
        ids = outputs["completion_ids"][i][outputs["completion_mask"][i].bool()]
        alone = logps_alone(model, processor, row, row["images"], ids)
        assert torch.allclose(outputs["ref_per_token_logps"][i, : len(ids)], alone, atol=1e-4)
        if row["images"]:
            black = [picture("black", *image.size) for image in row["images"]]
            assert (alone - logps_alone(model, processor, row, black, ids)).abs().max() > 1e-3
    assert len(parts) == 4
    for part in parts:  # of two rows each, in another order
        given = {name: part[name] for name in PICTURES if name in part}
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
        written = part["completion_mask"]
        mask = torch.cat([part["prompt_mask"], written], 1)
        with torch.no_grad():
            logps = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, written.size(1), **given)[0]
        assert torch.allclose(logps * written, part["ref_per_token_logps"] * written, atol=1e-4)


@pytest.mark.parametrize("names", [["one", "one"], ["two", "three"]])
def test_without_step_term_it_is_trl(vlm_dir, tmp_path, names):
    runs = []
    for cls in (GRPOTrainer, StepGRPOTrainer):
        options = {} if cls is GRPOTrainer else {"step_advantage_w": 0.0}
        trainer = make(vlm_dir, tmp_path, data_set(names * 2), cls=cls, num_generations=4, **options)
        trainer.processing_class.tokenizer.padding_side = "left"
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        runs.append((losses, trainer.model.state_dict()))
    (expected, theirs), (losses, mine) = runs
    assert losses == expected and len(losses) == 2
    assert theirs.keys() == mine.keys() and all(torch.equal(theirs[name], mine[name]) for name in mine)
    start = load_model(vlm_dir).state_dict()
    assert any(not torch.equal(start[name], mine[name]) for name in mine)


@pytest.mark.parametrize("names", [["two", "none", "one", "none"], ["none"] * 4])
def test_a_warm_start_takes_rows_with_pictures_and_without(vlm_dir, tmp_path, names):
    data = data_set(names).remove_columns("gt_action_close")
    data = data.add_column("completion", [[{"role": "assistant", "content": PLANS[0]}]] * 4)
    model, before = load_model(vlm_dir), load_model(vlm_dir).state_dict()
    options = {"max_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "max_length": None}
    quiet = {"use_cpu": True, "bf16": False, "save_strategy": "no", "report_to": "none"}
    args = SFTConfig(str(tmp_path), **options, **quiet)
    SFTTrainer(model, args, train_dataset=data, processing_class=load_processing_class(vlm_dir)).train()
    changed = [name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])]
    assert any("layers" in name and "vis" not in name for name in changed)
    assert any("vis" in name for name in changed) is ("two" in names)


def test_a_single_picture_column_with_rows_without(qwen3_vl_dir, tmp_path):
    trainer = make(
        qwen3_vl_dir, tmp_path, data_set(["one", "none", "none", "none"], "image"), per_device_train_batch_size=2
    )
    seen = catch(trainer)
    trainer.train()
    assert [[row["image"] is not None for row in inputs] for inputs, _ in seen] == [[True] * 2, [False] * 2]
    assert ["pixel_values" in outputs for _, outputs in seen] == [True, False]


def test_a_picture_token_is_never_sampled(vlm_dir, tmp_path):
    trainer = make(vlm_dir, tmp_path, data_set(["one", "none", "one", "none"]), max_steps=1)
    token, other = trainer.model.config.image_token_id, 7
    bonus = torch.zeros(trainer.model.get_output_embeddings().weight.size(0))
    bonus[token], bonus[other] = 200.0, 100.0
    trainer.model.get_output_embeddings().register_forward_hook(lambda *call: call[-1] + bonus)
    seen = catch(trainer)
    trainer.train()
    assert set(seen[0][1]["completion_ids"].flatten().tolist()) == {other}
