"""The recipes' limit on the size of pictures."""

import pytest

from stepgrpo.arguments import parse_recipe
from stepgrpo.modeling import load_processing_class, load_processor
from stepgrpo.policy import policy_arguments
from tests.vlm import PATCH

TOKEN = (2 * PATCH) ** 2  # pixels


def arguments(path, limit):
    options = ["--model_name_or_path", str(path), "--max_pixels", str(limit), "--use_cpu", "true", "--bf16", "false"]
    recipe, args, model_args = parse_recipe("sft", options)
    return policy_arguments(recipe, args, model_args)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_pictures_are_made_smaller_and_the_limit_is_saved(family, request, tmp_path):
    from PIL import Image

    path = request.getfixturevalue(f"{family}_dir")
    picture = Image.new("RGB", (8 * PATCH, 4 * PATCH))

    def tokens(processor):
        return int(processor.image_processor([picture], return_tensors="pt")["image_grid_thw"].prod()) // 4

    assert tokens(load_processing_class(path)) == 8
    processor = arguments(path, 4 * TOKEN)["processing_class"]
    assert processor.tokenizer.padding_side == "left" and 1 <= tokens(processor) <= 4
    processor.save_pretrained(tmp_path)
    assert load_processor(tmp_path).image_processor.size["longest_edge"] == 4 * TOKEN


def test_where_there_is_no_such_limit(idefics3_dir, qwen2_5_vl_dir, make_model, tiny_tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"max_pixels=512: .*Idefics3.* has none"):
        arguments(idefics3_dir, 512)
    with pytest.raises(ValueError, match=f"max_pixels=7 is less than the {TOKEN}"):
        arguments(qwen2_5_vl_dir, 7)
    make_model().save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"max_pixels=512: .* sees no pictures"):
        arguments(tmp_path, 512)
