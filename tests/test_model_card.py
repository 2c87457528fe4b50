"""The card and the YAML of a run, and what is kept out of both."""

import os
from dataclasses import dataclass, field

import pytest
import yaml

from stepgrpo.report.model_card import Card, model_card, with_metrics
from stepgrpo.report.private import Private, is_hub_id, public_name
from stepgrpo.report.run_card import _x_label, base_of, draw_run
from stepgrpo.report.run_file import run_settings, run_yaml
from stepgrpo.report.tables import evaluation_table, markdown_table, metrics_table, training_table

LOG = [
    {"loss": 2.0, "reward": 0.0, "rewards/lcs_reward/mean": 0.1, "rewards/lcs_reward/std": 9.0, "step": 1},
    {"eval_loss": 1.5, "eval_reward": 0.25, "eval_runtime": 3.0, "step": 1},
    {"loss": 1.0, "reward": 1.0, "rewards/lcs_reward/mean": 0.3, "step": 2},
    {"eval_loss": 1.25, "eval_reward": 0.75, "eval_runtime": 3.0, "step": 2},
    {"train_runtime": 12.0, "train_loss": 1.5, "step": 2},
]


def metadata(text):
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("---\n")[1])


def test_the_card_of_step_grpo():
    card = Card(
        name="planner",
        base="Qwen/Qwen2.5-VL-3B-Instruct",
        base_id="Qwen/Qwen2.5-VL-3B-Instruct",
        recipe="step_grpo",
        data={"training": ("lab/alfred-plans", 512), "evaluation": ("dev.jsonl", None)},
        datasets=["lab/alfred-plans"],
        rewards={"verify": 1.0, "lcs_reward": 0.5},
        step_settings={
            "step_advantage_w": 0.7,
            "step_baseline": "anchor",
            "step_fields": ["action_id", "action_name"],
        },
        settings={"updates": 60, "learning_rate": 1e-6},
        vision=True,
        log=LOG,
        figures={"reward": "figures/reward.png"},
        versions={"stepgrpo": "1.0"},
    )
    text = model_card(card)
    assert metadata(text) == {
        "base_model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "datasets": ["lab/alfred-plans"],
        "library_name": "transformers",
        "model_name": "planner",
        "pipeline_tag": "image-text-to-text",
        "tags": ["stepgrpo", "trl", "grpo"],
    }
    assert (
        "[Qwen/Qwen2.5-VL-3B-Instruct](https://huggingface.co/Qwen/Qwen2.5-VL-3B-Instruct), trained with step-level"
        in text
    )
    assert "AutoModelForImageTextToText.from_pretrained(repository)" in text and "AutoProcessor" in text
    assert "A_token = A^E + ω · A^S" in text and "ω = 0.7." in text
    assert "| `step_fields` | action_id, action_name |" in text and "| `learning_rate` | 1e-06 |" in text
    assert "| training | lab/alfred-plans | 512 |" in text and "| evaluation | dev.jsonl | - |" in text
    assert "| `lcs_reward` | 0.5 |" in text
    assert "| reward | 0.25 | 0.75 |" in text and "![reward](figures/reward.png)" in text
    assert "shao2024deepseekmath" in text and "vonwerra2020trl" in text and "2505.10978" in text
    assert "stepgrpo train --recipe step_grpo --config run.yaml" in text and "- stepgrpo 1.0" in text
    assert "$" not in text and "\n\n\n" not in text and "not finished" not in text


def test_the_card_of_an_adapter_on_a_local_base():
    card = Card(
        name="p", base="sft", recipe="sft", adapter={"rank": 8}, data={"training": ("household", 4)}, finished=False
    )
    text = model_card(card)
    assert metadata(text)["library_name"] == "peft" and metadata(text)["tags"] == ["stepgrpo", "trl", "sft", "lora"]
    assert "base_model" not in metadata(text) and "datasets" not in metadata(text)
    assert "A LoRA adapter for `sft`, trained with supervised training (SFT)" in text
    assert "The adapter cannot be loaded without it." in text and "The training is not finished" in text
    assert "PeftModel.from_pretrained(base, repository)" in text
    assert "no evaluation (`eval_strategy: no`)" in text and "Too few logged values" in text
    assert "shao2024" not in text and "step setting" not in text and "reward function" not in text
    card.merged, card.base_id = True, "HuggingFaceTB/SmolLM2-135M-Instruct"
    text = model_card(card)
    assert 'from_pretrained(repository, subfolder="merged")' in text and "cannot be loaded" not in text
    assert "comes from [HuggingFaceTB/SmolLM2-135M-Instruct]" in text
    assert metadata(text)["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_plain_grpo_is_called_so():
    text = model_card(Card(name="p", base="b", recipe="step_grpo", data={"training": ("household", 4)}))
    assert "trained with GRPO" in text and "step-level GRPO" not in text and "step_advantage_w: 0" in text


def test_metrics_come_first_and_replace_those_before():
    card = Card(name="p", base="b", recipe="sft", data={"training": ("household", 4)})
    text = with_metrics(model_card(card), {"before": {"greedy/exact_match": 0.5, "rows": 8}})
    table = "| stepgrpo evaluate | before |\n| --- | ---: |\n| greedy/exact_match | 50.0% |\n| rows | 8 |"
    assert f"<!-- evaluation -->\n{table}\n<!-- end of evaluation -->" in text and "no evaluation" not in text
    again = with_metrics(text, {"after": {"greedy/exact_match": 0.75}})
    assert "| stepgrpo evaluate | after |" in again and "before" not in again and "50.0%" not in again
    card.log = LOG
    mixed = with_metrics(model_card(card), {"x": {"greedy/exact_match": 0.5}})
    assert mixed.index("| stepgrpo evaluate | x |") < mixed.index("| held out |") < mixed.index("| in training |")
    with pytest.raises(ValueError, match="not written by stepgrpo"):
        with_metrics("# A card\n", {"x": {"greedy/exact_match": 0.5}})


def test_tables():
    assert evaluation_table(LOG) == (
        "| held out | after update 1 | after update 2 |\n| --- | ---: | ---: |\n"
        "| loss | 1.5 | 1.25 |\n| reward | 0.25 | 0.75 |"
    )
    assert evaluation_table(LOG[:2]).startswith("| held out | after update 1 |\n")
    assert evaluation_table(LOG[:1]) == ""
    log = [{"reward": float(i)} for i in range(10)]
    assert training_table(log).split("\n")[-1] == "| reward | 0.5 | 8.5 |"  # (0 + 1) / 2 and (8 + 9) / 2
    assert "lcs_reward/std" not in training_table(LOG) and "| rewards/lcs_reward/mean | 0.1 | 0.3 |" in training_table(
        LOG
    )
    assert training_table([]) == ""
    assert markdown_table(["a"], [["x|y"]]).endswith("| x\\|y |")
    two = metrics_table({"a": {"greedy/success": 0.125, "rows": 3}, "b": {"sampled/pass@4": 1.0, "seconds": 3}})
    assert two.split("\n")[2:] == [
        "| greedy/success | 12.5% | - |",
        "| sampled/pass@4 | - | 100.0% |",
        "| rows | 3 | - |",
    ]
    with pytest.raises(ValueError, match="'a' has no metrics"):
        metrics_table({"a": {"seconds": 3}})


def test_curves_are_drawn_of_what_was_logged_twice(tmp_path):
    assert draw_run(LOG, tmp_path / "figures") == {"loss": "figures/loss.png", "reward": "figures/reward.png"}
    assert (tmp_path / "figures" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert draw_run(LOG[:1], tmp_path / "none") == {} and not (tmp_path / "none").exists()


def test_what_a_curve_is_drawn_over():
    assert _x_label(LOG, "loss") == "update"
    assert _x_label([{"loss": 1, "step": 5}, {"loss": 1, "step": 10}], "loss") == "log entry, one every 5 updates"
    assert _x_label([{"loss": 1, "step": 5}, {"loss": 1, "step": 6}], "loss") == "log entry"


@pytest.mark.parametrize(
    "value, public",
    [
        ("/home/zoe/models/planner/", "planner"),
        ("~/planner", "planner"),
        ("../planner", "planner"),
        ("C:\\Users\\zoe\\planner", "planner"),
        ("alfred:/data/zoe/alfred", "alfred:alfred"),
        ("Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct"),
        ("/home/zoe/.cache/hub/models--Qwen--Qwen2.5-3B/snapshots/abc123", "Qwen/Qwen2.5-3B"),
        ("household", "household"),
        ("my_package.my_module:my_signal", "my_package.my_module:my_signal"),
        ("a text\n/with lines", "a text\n/with lines"),
        ("/", "."),
    ],
)
def test_public_names(value, public):
    assert public_name(value) == public


def test_a_folder_that_is_there_is_local(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("outputs/planner")
    os.makedirs("outputs/planner")
    assert not is_hub_id("outputs/planner") and public_name("outputs/planner") == "planner"


def test_private_texts():
    private = Private({"hf_abc"}, {"zoe"}, {"/home/zoe", "/home/zoe/out"})
    assert private.clean("in /home/zoe/out/run-1, by zoe with hf_abc") == "in run-1, by [removed] with [removed]"
    assert private.clean("[zoe/base](x)", keep=["zoe/base"]) == "[zoe/base](x)"
    assert private.clean("zoetrope /home/zoetrope") == "zoetrope /home/zoetrope"
    assert private.found_in("zoe-run") and not private.found_in("zoetrope")


def test_root_is_nobody(monkeypatch):
    monkeypatch.setenv("LOGNAME", "root")
    monkeypatch.setenv("HOME", "/root")
    private = Private.of_this_machine(names=["lab"])
    assert private.names == {"lab"} and "/root" in private.folders and "/" not in private.folders


@dataclass
class Settings:
    output_dir: str | None = None
    data: str = "household"
    run_name: str | None = None
    hub_token: str | None = None
    learning_rate: float = 1e-3
    fields: list[str] = field(default_factory=lambda: ["a"])
    options: dict | None = None
    start: str | None = None


def test_the_settings_of_a_run():
    private = Private({"hf_abc"}, {"zoe"}, {"/home/zoe"})
    given = Settings("/home/zoe/out/run-1/", run_name="zoe-7", hub_token="hf_abc", fields=["b"], start="zoe/base")
    given.options = {"cache": "/srv/x/y", "n": 2}
    settings, omitted = run_settings([given], private)
    assert omitted == ["run_name"]
    assert settings == {
        "output_dir": "run-1",
        "data": "household",
        "fields": ["b"],
        "options": {"cache": "y", "n": 2},
        "start": "zoe/base",
    }
    text = run_yaml([given], "sft", private)
    assert yaml.safe_load(text) == settings and "# stepgrpo train --recipe sft --config run.yaml" in text
    assert "# Left out, because they name a user or a machine: run_name." in text


def test_where_a_model_comes_from(tmp_path):
    assert base_of("Qwen/Qwen2.5-3B") == ("Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-3B")
    assert base_of("smollm2") == ("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct")
    folder = tmp_path / "sft"
    folder.mkdir()
    assert base_of(str(folder)) == ("sft", None)
    (folder / "README.md").write_text("# no metadata\n")
    assert base_of(str(folder)) == ("sft", None)
    (folder / "README.md").write_text("---\nbase_model: Qwen/Qwen2.5-3B\n---\n")
    assert base_of(str(folder)) == ("sft", "Qwen/Qwen2.5-3B")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "smollm2"}')
    assert base_of(str(folder)) == ("sft", "HuggingFaceTB/SmolLM2-135M-Instruct")
