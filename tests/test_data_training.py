"""Prepared rows in training: with pictures for a model that sees, without for one that does not."""

import json
import math

import pytest
from PIL import Image

from stepgrpo.arguments import parse_recipe
from stepgrpo.data.convert import main as prepare
from stepgrpo.training import train_sft, train_step_grpo
from tests.test_data_embodiedbench import TWO

COMMON = ["--report_to", "none", "--max_steps", "1", "--save_strategy", "no", "--use_cpu", "true", "--bf16", "false"]
GRPO = ["--per_device_train_batch_size", "2", "--num_generations", "2", "--max_completion_length", "8"]


def parse(recipe, *options):
    return parse_recipe(recipe, [str(option) for option in options])


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "in" / "m").mkdir(parents=True)
    for number in range(2):
        Image.new("RGB", (40 + 8 * number, 32), "red").save(tmp_path / "in" / "m" / f"{number}.png")
    (tmp_path / "in" / "set.json").write_text(json.dumps([TWO]))
    (tmp_path / "t.txt").write_text("${instruction}")
    options = ["--source", f"embodiedbench:{tmp_path / 'in'}", "--template", str(tmp_path / "t.txt")]
    assert prepare([*options, "--out", str(tmp_path / "rows.jsonl")]) == 0
    return tmp_path / "rows.jsonl"


def test_a_model_that_sees_is_warmed_up_and_trained_on_rows_with_pictures(rows, qwen2_5_vl_dir, tmp_path):
    options = [*COMMON, "--data", rows, "--model_name_or_path", qwen2_5_vl_dir]
    trainer = train_sft(*parse("sft", *options, "--output_dir", tmp_path / "sft", "--per_device_train_batch_size", 2))
    assert sorted(trainer.train_dataset.column_names)[:2] == ["completion", "images"]
    assert math.isfinite(trainer.state.log_history[-1]["train_loss"])
    trainer = train_step_grpo(*parse("step_grpo", *options, *GRPO, "--output_dir", tmp_path / "rl"))
    assert trainer.train_dataset[1]["images"][0].size == (48, 32) and trainer.state.global_step == 1


def test_a_model_that_does_not_see_gets_one_clear_error_and_trains_without(rows, make_model, tiny_tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    options = [
        *COMMON,
        *GRPO,
        "--data",
        rows,
        "--model_name_or_path",
        tmp_path / "model",
        "--output_dir",
        tmp_path / "out",
    ]
    with pytest.raises(ValueError, match=r"has pictures, and .* is no vision-language model\. Set use_images: false"):
        train_step_grpo(*parse("step_grpo", *options))
    trainer = train_step_grpo(*parse("step_grpo", *options, "--use_images", "false"))
    assert "images" not in trainer.train_dataset.column_names and trainer.state.global_step == 1
