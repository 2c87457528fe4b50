"""Freezing parts of a model by name."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from torch import nn

from stepgrpo.arguments import parse_recipe
from stepgrpo.freeze import freeze_modules
from stepgrpo.modeling import load_model
from stepgrpo.training import train_sft, train_step_grpo

TOWERS = {"qwen2_5_vl": "visual", "qwen3_vl": "visual", "idefics3": "vision_model"}
RECIPE = {
    "data": "household-pictures",
    "train_n": 2,
    "max_steps": 1,
    "per_device_train_batch_size": 2,
    "learning_rate": 0.05,
    "lr_scheduler_type": "constant",
    "bf16": False,
    "use_cpu": True,
    "save_strategy": "no",
    "report_to": "none",
}


def places(completions, **_):
    """A reward that differs within every group, so that every update has a gradient."""
    return [float(place) for place in range(len(completions))]


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


@pytest.mark.parametrize("family", TOWERS)
@pytest.mark.parametrize("stage", [train_sft, train_step_grpo])
@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
def test_a_recipe_freezes_the_tower_by_its_yaml(family, stage, adapter, request, tmp_path):
    folder, tower = request.getfixturevalue(f"{family}_dir"), TOWERS[family]
    settings = {**RECIPE, "model_name_or_path": str(folder), "output_dir": str(tmp_path / "out")}
    if adapter:
        settings |= {"use_peft": True, "lora_r": 2, "lora_target_modules": ["all-linear"]}
    if stage is train_sft:
        settings["max_length"] = None
    else:
        settings |= {"num_generations": 2, "max_completion_length": 8, "reward_funcs": [f"{__name__}.places"]}
    changed = {}
    for name, frozen in (("frozen", [tower]), ("free", None)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump({**settings, "freeze_modules": frozen}))
        trainer = stage(*parse_recipe(stage.__name__.removeprefix("train_"), ["--config", str(file)]))
        start = get_peft_model(load_model(folder), trainer.model.peft_config["default"]) if adapter else None
        start = dict((start or load_model(folder)).named_parameters())
        # The first matrix of an adapter starts at random, the second at zero.
        changed[name] = {
            path
            for path, weight in trainer.model.named_parameters()
            if "lora_A" not in path and not torch.equal(weight, start[path])
        }
        optimized = {id(weight) for group in trainer.optimizer.param_groups for weight in group["params"]}
        inside = [id(weight) in optimized for path, weight in trainer.model.named_parameters() if f".{tower}." in path]
        assert any(inside) is (name == "free")
    assert not any(f".{tower}." in path for path in changed["frozen"])
    assert any(f".{tower}." in path for path in changed["free"])
    assert changed["frozen"] and all(("lora_B" in path) is adapter for path in changed["frozen"] | changed["free"])


@pytest.mark.parametrize("family", TOWERS)
def test_the_names_in_the_docs_freeze_what_they_say(family, request):
    text = (Path(__file__).parents[1] / "docs" / "vision.md").read_text(encoding="utf-8")
    documented = [cell.split(", ") for cell in re.findall(r"^\| `\[(.+?)\]` \|", text, re.MULTILINE)]
    towers = {"qwen2_5_vl": ["visual"], "qwen3_vl": ["visual"], "idefics3": ["vision_model", "connector"]}
    languages = {"qwen2_5_vl": "language_model", "qwen3_vl": "language_model", "idefics3": "text_model"}
    folder, kept = request.getfixturevalue(f"{family}_dir"), []
    for names in documented:
        if names[0].split(".")[0] in (*towers[family], languages[family]):
            model = load_model(folder)
            freeze_modules(model, names)
            kept.append({path.split(".")[1] for path in trained(model)})
    language, tower = {languages[family]}, set(towers[family])
    if family == "idefics3":
        assert kept == [language | {"connector"}, language]
    else:  # the parts beside patches and blocks bring features to the language model's width
        assert kept == [language, language | tower, tower]
