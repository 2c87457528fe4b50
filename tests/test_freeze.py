"""Freezing parts of a model by name."""

import pytest
from torch import nn

from stepgrpo.freeze import freeze_modules
from stepgrpo.modeling import load_model

TOWERS = {"qwen2_5_vl": "visual", "qwen3_vl": "visual", "idefics3": "vision_model"}


def trained(model):
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.fixture
def model():
    block = lambda: nn.ModuleDict({"visual": nn.Linear(2, 2), "head": nn.Linear(2, 2), "act": nn.ReLU()})  # noqa: E731
    return nn.ModuleDict({"left": block(), "right": block(), "visual_head": nn.Linear(2, 2)})


def test_a_name_stands_for_every_module_that_ends_in_it(model):
    assert freeze_modules(model, ["visual"]) == ["left.visual", "right.visual"]
    assert trained(model) == {
        f"{name}.{kind}" for name in ("left.head", "right.head", "visual_head") for kind in ("weight", "bias")
    }


def test_a_dotted_name_is_one_module_and_a_text_is_one_name(model):
    assert freeze_modules(model, "right.visual") == ["right.visual"]
    assert freeze_modules(model, ["right", "right.head"]) == ["right", "right.head"]
    assert {name.split(".")[0] for name in trained(model)} == {"left", "visual_head"}


def test_a_wrong_name_says_what_there_is(model):
    with pytest.raises(ValueError, match=r"'visuel' is no module.*Did you mean visual.*Choose from .*left\.visual"):
        freeze_modules(model, ["left", "visuel"])
    assert len(trained(model)) == 10  # nothing is frozen by half
    with pytest.raises(ValueError, match="'act' is no module"):
        freeze_modules(model, ["act"])  # it has no weights
    with pytest.raises(ValueError, match="leaves no weight to train"):
        freeze_modules(model, ["left", "right", "visual_head"])


@pytest.mark.parametrize("family", TOWERS)
def test_vision_towers_and_the_adapters_in_them(family, request):
    from peft import LoraConfig, get_peft_model

    tower = TOWERS[family]
    model = load_model(request.getfixturevalue(f"{family}_dir"))
    [path] = freeze_modules(model, [tower])
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    assert frozen and all(name.startswith(f"{path}.") for name in frozen)
    assert any("language_model" in name or "text_model" in name for name in trained(model))

    model = get_peft_model(model.requires_grad_(True), LoraConfig(r=2, target_modules="all-linear"))
    before = trained(model)
    assert any(tower in name for name in before) and all("lora_" in name for name in before)
    assert freeze_modules(model, [tower]) == [f"base_model.model.{path}"]
    assert trained(model) == {name for name in before if f".{tower}." not in name} != set()
    with pytest.raises(ValueError, match=rf"Choose from .*model\.{tower}"):
        freeze_modules(model, ["tower"])
