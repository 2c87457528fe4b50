"""Pushing to the Hub, against a server on this machine that speaks its API."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers.utils.hub
import yaml
from datasets import Dataset
from huggingface_hub import constants, hf_api
from trl import ModelConfig, SFTConfig, TrlParser

from stepgrpo import StepGRPOConfig, StepGRPOTrainer, hub_push
from stepgrpo.hub import read_metrics
from stepgrpo.hub_files import cleaned, published_files
from stepgrpo.hub_repository import open_repository
from stepgrpo.recipe import RecipeArguments
from stepgrpo.report.private import Private
from stepgrpo.rewards.plan import lcs_reward
from stepgrpo.training import train_sft, train_step_grpo
from tests.fake_hub import FakeHub

ROOT = Path(__file__).parents[1]
TOKEN, READER = "hf_QpWoEiRuTySecret", "hf_ReaderSecret"
PERSON, ACCOUNT = "zebulonqx", "quuxaccount"
COMMON = ["--report_to", "none", "--use_cpu", "true", "--bf16", "false", "--per_device_train_batch_size", "2"]
GRPO = ["--num_generations", "2", "--max_completion_length", "8"]
RUNS = """
import json, sys
from stepgrpo.launch import run

for recipe, options in json.loads(sys.argv[1]):
    run(recipe, options)
"""


def parse(kind, *options):
    return TrlParser((RecipeArguments, kind, ModelConfig)).parse_args_and_config([str(option) for option in options])


@pytest.fixture(scope="module")
def hub():
    with FakeHub({TOKEN: (ACCOUNT, "write"), READER: ("reader", "read")}) as server:
        yield server


@pytest.fixture
def online(hub, monkeypatch, tmp_path):
    """This process's client talks to the server, with no token saved."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    # Clients that were made before, by whatever test ran first.
    monkeypatch.setattr(hf_api.api, "endpoint", hub.endpoint)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    hub.broken.clear()
    return hub


@pytest.fixture(scope="module")
def pushed(hub, make_model, tiny_tokenizer, qwen2_5_vl_dir, tmp_path_factory):
    """Runs of a person with a home, a token and local folders: SFT with LoRA, StepGRPO, and LoRA on pictures, merged."""
    home = tmp_path_factory.mktemp("machine") / "home" / PERSON
    model = home / "models" / "base-planner"
    make_model().save_pretrained(model)
    tiny_tokenizer.save_pretrained(model)
    data = home / "rows.jsonl"
    rows = [{"prompt": f"find {i}", "ground_truth": [1, 2]} for i in range(4)]
    data.write_text("\n".join(map(json.dumps, rows)))
    metrics = home / "evaluated" / "metrics.json"
    metrics.parent.mkdir()
    metrics.write_text(json.dumps({"greedy/valid_json": 0.625, "rows": 8, "settings": {"model": str(model)}}))
    push = [*COMMON, "--push_to_hub", "true", "--max_steps", "2", "--logging_steps", "1", "--run_name", f"{PERSON}-7"]
    sft = [
        *push,
        "--model_name_or_path",
        model,
        "--data",
        data,
        "--use_peft",
        "true",
        "--lora_target_modules",
        "q_proj",
    ]
    sft += ["v_proj", "--output_dir", home / "planner-sft", "--hub_strategy", "end", "--save_strategy", "no"]
    rl = [
        *push,
        *GRPO,
        "--model_name_or_path",
        model,
        "--output_dir",
        home / "outputs" / "planner-rl",
        "--train_n",
        "4",
    ]
    rl += ["--hub_model_id", "lab/planner", "--hub_token", TOKEN, "--save_steps", "1", "--save_total_limit", "1"]
    rl += ["--eval_strategy", "steps", "--eval_steps", "1", "--eval_n", "2", "--reward_funcs", "household", "lcs"]
    rl += ["--per_device_eval_batch_size", "2", "--reward_weights", "1.0", "0.5", "--model_card_metrics", metrics]
    rl += ["--hub_always_push", "true"]
    vl = [*push, *GRPO, "--model_name_or_path", qwen2_5_vl_dir, "--data", "household-pictures", "--train_n", "2"]
    vl += ["--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj", "--merge_adapter", "true"]
    vl += ["--output_dir", home / "planner-vl", "--hub_strategy", "end", "--save_strategy", "no"]
    runs = [(name, [*map(str, run)]) for name, run in (("sft", sft), ("step_grpo", rl), ("step_grpo", vl))]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HOME": str(home), "USER": PERSON, "LOGNAME": PERSON, "HF_ENDPOINT": hub.endpoint}
    environment |= {"HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUNS, json.dumps(runs)],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return hub, home, done


@pytest.mark.slow
def test_what_is_pushed(pushed):
    hub, home, done = pushed
    assert set(hub.files) >= {f"{ACCOUNT}/planner-sft", "lab/planner"}
    texts = {"README.md", "run.yaml", "figures/loss.png"}
    reader = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    adapter = {"adapter_config.json", "adapter_model.safetensors", "figures/token_accuracy.png"}
    assert set(hub.files[f"{ACCOUNT}/planner-sft"]) == texts | reader | adapter
    full = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "figures/reward.png",
    }
    assert set(hub.files["lab/planner"]) == texts | reader | full
    assert f"Pushed to {hub.endpoint}/lab/planner." in done.stdout
    saved = (home / "outputs" / "planner-rl" / "model.safetensors").read_bytes()
    assert hub.files["lab/planner"]["model.safetensors"] == saved


@pytest.mark.slow
def test_a_vision_language_adapter_is_pushed_with_its_processor_and_merged(pushed, tmp_path):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    hub, _, _ = pushed
    files = hub.files[f"{ACCOUNT}/planner-vl"]
    assert {"adapter_model.safetensors", "processor_config.json", "merged/config.json"} <= set(files)
    header = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert header["pipeline_tag"] == "image-text-to-text" and header["library_name"] == "peft"
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    # What the card says to run: the merged model needs nothing that is not there.
    assert 'AutoModelForImageTextToText.from_pretrained(repository, subfolder="merged")' in files["README.md"].decode()
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged")
    processor = AutoProcessor.from_pretrained(tmp_path / "merged")
    assert model.config.model_type == "qwen2_5_vl" and processor.image_processor is not None


@pytest.mark.slow
def test_nothing_private_is_pushed(pushed):
    hub, home, _ = pushed
    private = [
        TOKEN,
        PERSON,
        ACCOUNT,
        str(home),
        str(home.parents[1]),
        "pytest-of",
        os.environ.get("HOME", "/root") + "/",
    ]
    checked = 0
    for path, content in hub.everything:
        checked += 1
        for secret in private:
            assert secret.encode() not in content, (path, secret)
    assert checked > 20
    # They are in the files that stayed.
    assert PERSON.encode() in (home / "planner-sft" / "training_args.bin").read_bytes()
    assert PERSON in (home / "planner-sft" / "adapter_config.json").read_text()
    assert TOKEN.encode() not in (home / "outputs" / "planner-rl" / "training_args.bin").read_bytes()


@pytest.mark.slow
def test_checkpoints_are_pushed_during_training(pushed):
    hub, _, _ = pushed
    messages = [message for repository, _, message, _ in hub.commits if repository == "lab/planner"]
    updates = [f"Training in progress, update {n}" for n in (1, 2)]
    assert messages == [*updates, "End of training"]
    assert "The training is not finished" not in hub.files["lab/planner"]["README.md"].decode()
    folder = pushed[1] / "outputs" / "planner-rl"
    assert not list(folder.glob(".push-*")), "the links to the checkpoints are gone"


@pytest.mark.slow
def test_the_card_tells_the_run(pushed):
    hub, _, _ = pushed
    card = hub.files["lab/planner"]["README.md"].decode()
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["tags"] == ["stepgrpo", "trl", "grpo"] and header["library_name"] == "transformers"
    assert header["pipeline_tag"] == "text-generation" and "base_model" not in header
    assert "| training | household | 4 |" in card and "| evaluation | household | 2 |" in card
    assert "| `lcs_reward` | 0.5 |" in card and "| `household_reward` | 1 |" in card
    assert "| `step_match_mode` | exact |" in card and "ω = 1." in card
    assert "| `updates` | 2 |" in card
    # AutoTokenizer would put the pre-tokenizer of the model's family in the place of this one's.
    assert "tokenizer = PreTrainedTokenizerFast.from_pretrained(repository)" in card
    assert "| greedy/valid_json | 62.5% |" in card
    assert re.search(r"\| held out \| after update 1 \| after update 2 \|\n\| --- \| ---: \| ---: \|\n", card)
    assert re.search(r"\n\| reward \| -?\d[\d.e-]* \| -?\d[\d.e-]* \|\n", card)
    assert "![reward](figures/reward.png)" in card
    sft = hub.files[f"{ACCOUNT}/planner-sft"]["README.md"].decode()
    header = yaml.safe_load(sft.split("---\n")[1])
    assert header["library_name"] == "peft" and header["tags"] == ["stepgrpo", "trl", "sft", "lora"]
    assert "`base-planner` was a folder of the machine that trained. The adapter cannot be loaded without it." in sft
    adapter = json.loads(hub.files[f"{ACCOUNT}/planner-sft"]["adapter_config.json"])
    assert adapter["base_model_name_or_path"] == "base-planner"


@pytest.mark.slow
def test_the_pushed_yaml_trains_the_same(pushed, tmp_path, monkeypatch):
    hub, _, _ = pushed
    text = hub.files["lab/planner"]["run.yaml"].decode()
    assert "# Left out, because they name a user or a machine: run_name." in text
    settings = yaml.safe_load(text)
    assert settings["model_name_or_path"] == "base-planner" and settings["output_dir"] == "planner-rl"
    assert settings["reward_weights"] == [1.0, 0.5] and "hub_token" not in text and "push_to_hub" not in text
    (tmp_path / "run.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    recipe, args, model_args = parse(StepGRPOConfig, "--config", "run.yaml", "--use_cpu", "true")
    assert recipe.train_n == 4 and recipe.reward_funcs == ["household", "lcs"]
    assert args.num_generations == 2 and args.max_steps == 2 and args.eval_steps == 1 and args.bf16 is False
    assert model_args.model_name_or_path == "base-planner"


@pytest.mark.parametrize("train, kind", [(train_sft, SFTConfig), (train_step_grpo, StepGRPOConfig)])
def test_no_token_stops_before_anything_is_loaded(online, train, kind, tmp_path):
    count = len(online.requests)
    given = ["--push_to_hub", "true", "--output_dir", tmp_path / "out", "--data", tmp_path / "no.jsonl"]
    with pytest.raises(ValueError, match=r"push_to_hub: true, but there is no token. Set .*HF_TOKEN.*`hf auth login`"):
        train(
            *parse(
                kind,
                *COMMON,
                *given,
                *(GRPO if kind is StepGRPOConfig else []),
                "--model_name_or_path",
                tmp_path / "no_model",
            )
        )
    assert len(online.requests) == count


def test_a_token_that_is_refused_or_may_only_read(online):
    with pytest.raises(ValueError, match=rf"token was not accepted \({online.endpoint}\)") as failed:
        open_repository("planner", "hf_wrongsecret")
    assert "hf_wrongsecret" not in str(failed.value)
    with pytest.raises(ValueError, match="the token may only read"):
        open_repository("planner", READER)


def test_the_hub_cannot_be_reached(online, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        open_repository("planner", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9"):
        open_repository("planner", TOKEN)


@pytest.mark.parametrize("name", ["a/b/c", "spa ce", "two--dashes", "/abs/path", "-x"])
def test_a_name_the_hub_does_not_take(online, name):
    with pytest.raises(ValueError, match=r"hub_model_id=.* Set it to a name, or to namespace/name"):
        open_repository(name, TOKEN)


def test_a_namespace_that_is_not_yours(online):
    with pytest.raises(ValueError, match=r"hub_model_id='google/planner' cannot be written"):
        open_repository("google/planner", TOKEN)


def test_repositories_and_branches_are_made_or_found(online):
    assert open_repository("lab/private-one", TOKEN, private=True, revision="dev").id == "lab/private-one"
    assert open_repository("lab/private-one", TOKEN).user == ACCOUNT
    assert online.visibility["lab/private-one"] == "private"
    assert online.branches["lab/private-one"] == {"main", "dev"}
    assert open_repository("mine", TOKEN).id == f"{ACCOUNT}/mine"


def test_the_token_of_the_environment(online, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    repository = open_repository("mine", None)
    assert repository.token == TOKEN and TOKEN not in repr(repository)


@pytest.mark.parametrize("strategy", ["checkpoint", "all_checkpoints"])
def test_strategies_that_push_pickles_are_refused(online, strategy, tmp_path):
    given = [
        "--push_to_hub",
        "true",
        "--output_dir",
        tmp_path / "out",
        "--hub_strategy",
        strategy,
        "--hub_token",
        TOKEN,
    ]
    with pytest.raises(ValueError, match=rf"hub_strategy='{strategy}' pushes .* Choose one of: end, every_save"):
        train_sft(*parse(SFTConfig, *COMMON, *given, "--model_name_or_path", "no_model"))


def test_a_push_that_fails_leaves_the_model_and_says_how_to_push_it(
    online, make_model, tiny_tokenizer, tmp_path, capsys, monkeypatch
):
    make_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    online.broken.add("/commit/")
    given = ["--push_to_hub", "true", "--output_dir", tmp_path / "out", "--hub_token", TOKEN, "--max_steps", "1"]
    given += ["--model_name_or_path", tmp_path / "model", "--train_n", "2"]
    with pytest.raises(ValueError, match=r"the push failed .*500.* model is saved in .*stepgrpo.hub_push") as failed:
        train_sft(*parse(SFTConfig, *COMMON, *given))
    assert TOKEN not in str(failed.value) and "\n" not in str(failed.value)
    assert all(repository != f"{ACCOUNT}/out" for repository, *_ in online.commits)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    again = str(failed.value).split("python -m stepgrpo.hub_push ")[1].split()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(SystemExit, match="2"):  # still broken
        hub_push.main(again)
    assert "the push failed" in capsys.readouterr().err
    online.broken.clear()
    metrics = tmp_path / "metrics.json"
    metrics.write_text('{"greedy/exact_match": 0.25, "sampled/pass@4": 0.5, "rows": 4}')
    assert hub_push.main([*again, "--metrics", f"after={metrics}"]) == 0
    card = online.files[f"{ACCOUNT}/out"]["README.md"].decode()
    assert "| stepgrpo evaluate | after |" in card and "| greedy/exact_match | 25.0% |" in card
    assert "model.safetensors" in online.files[f"{ACCOUNT}/out"]


def test_only_what_a_model_is_loaded_from(tmp_path):
    kept = ["config.json", "model.safetensors", "tokenizer.json", "README.md", "run.yaml", "figures/loss.png"]
    kept += ["processor_config.json", "preprocessor_config.json", "additional_chat_templates/tool.jinja"]
    left = ["training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", ".env"]
    left += ["checkpoint-5/model.safetensors", "completions/completions_00001.parquet", "runs/events", "notes.txt"]
    merged = ["merged/model.safetensors", "merged/config.json"]
    for name in [*kept, *left, *merged]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert sorted(published_files(tmp_path)) == sorted(kept)
    assert sorted(published_files(tmp_path, merged=True)) == sorted([*kept, *merged])
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="has no weights to push"):
        published_files(tmp_path)


def test_configs_are_cleaned_and_tokens_of_the_vocabulary_are_not(tmp_path):
    config = {
        "_name_or_path": "/home/zoe/models/base",
        "base_model_name_or_path": "Qwen/Qwen2.5-3B",
        "cache": "/home/zoe/.cache/x",
        "eos_token": "</s>",
        "stop": ["/think", "/home/zoe"],
        "layers": 2,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    private = Private({"hf_abc"}, {"zoe"}, {"/home/zoe"})
    assert json.loads(cleaned("config.json", file, private)) == {
        "_name_or_path": "base",
        "base_model_name_or_path": "Qwen/Qwen2.5-3B",
        "cache": "x",
        "eos_token": "</s>",
        "stop": ["/think", "zoe"],
        "layers": 2,
    }
    file.write_text(json.dumps({"eos_token": "</s>", "stop": ["/think"]}))
    assert cleaned("config.json", file, private) is None


def test_metrics_for_the_card(tmp_path):
    good, bad = tmp_path / "run" / "metrics.json", tmp_path / "bad.json"
    good.parent.mkdir()
    good.write_text('{"greedy/exact_match": 0.5, "rows": 4}')
    bad.write_text('{"rows": 4}')
    assert read_metrics([f"before={good}", str(good)]) == {
        "before": {"greedy/exact_match": 0.5, "rows": 4},
        "run": {"greedy/exact_match": 0.5, "rows": 4},
    }
    with pytest.raises(ValueError, match=r"model_card_metrics: 'x' has no metrics"):
        read_metrics([f"x={bad}"])
    with pytest.raises(ValueError, match=r"model_card_metrics: .*none.json' cannot be read"):
        read_metrics([str(tmp_path / "none.json")])


def own_trainer(make_model, tiny_tokenizer, folder, **more):
    rows = [{"prompt": f"find {i}", "ground_truth": [1, 2]} for i in range(4)]
    args = StepGRPOConfig(
        output_dir=str(folder / "planner"),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=4,
        max_steps=2,
        save_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        **more,
    )
    dataset = Dataset.from_list(rows)
    return StepGRPOTrainer(make_model(), lcs_reward, args, dataset, processing_class=tiny_tokenizer)


def test_a_script_with_its_own_trainer_pushes_the_same_way(online, make_model, tiny_tokenizer, tmp_path):
    repository = f"{ACCOUNT}/own-planner"
    more = {"push_to_hub": True, "hub_model_id": "own-planner", "hub_token": TOKEN, "hub_always_push": True}
    trainer = own_trainer(make_model, tiny_tokenizer, tmp_path, **more)
    trainer.train()
    trainer.save_model()  # as in transformers, this pushes
    commit = trainer.push_to_hub()
    assert commit.repo_url.repo_id == repository
    messages = [message for name, _, message, _ in online.commits if name == repository]
    assert messages[:3] == [*(f"Training in progress, update {n}" for n in (1, 2)), "Model save"]
    files = online.files[repository]
    assert {"model.safetensors", "run.yaml", "README.md"} <= set(files) and "training_args.bin" not in files
    for path, content in files.items():
        assert str(tmp_path).encode() not in content and TOKEN.encode() not in content, path
    card = files["README.md"].decode()
    assert "| training | given in Python | 4 |" in card and "stepgrpo train" not in card
    assert yaml.safe_load(files["run.yaml"])["num_generations"] == 2 and trainer.args.push_to_hub


def test_a_script_without_a_token_stops_before_the_model_is_used(online, make_model, tiny_tokenizer, tmp_path):
    with pytest.raises(ValueError, match="push_to_hub: true, but there is no token"):
        own_trainer(make_model, tiny_tokenizer, tmp_path, push_to_hub=True)
    trainer = own_trainer(make_model, tiny_tokenizer, tmp_path)
    with pytest.raises(ValueError, match="there is no token"):
        trainer.push_to_hub()
    assert trainer.push_to_hub(token=TOKEN, revision="try").repo_url.repo_id == f"{ACCOUNT}/planner"
    assert online.commits[-1][1] == "try" and "try" in online.branches[f"{ACCOUNT}/planner"]


def test_pushing_again_needs_a_run(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        hub_push.main([str(tmp_path)])
    assert "has no README.md: it is not the output directory of a run with push_to_hub" in capsys.readouterr().err


TWO = """
import sys
from accelerate import PartialState
from stepgrpo.launch import run

try:
    run("sft", [*sys.argv[1:], "--hub_token", "hf_wrong"])
except ValueError as error:
    print(f"rank {PartialState().process_index}: {error}", flush=True)
run("sft", sys.argv[1:])
"""


@pytest.mark.slow
def test_two_processes_fail_together_and_push_once(hub, make_model, tiny_tokenizer, tmp_path):
    hub.broken.clear()
    make_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "two.py").write_text(TWO)
    config = ROOT / "accelerate_configs" / "cpu_2proc.yaml"
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config, "--main_process_port", "0"]
    command += [tmp_path / "two.py", *COMMON, "--push_to_hub", "true", "--hub_model_id", "lab/two", "--max_steps", "1"]
    command += ["--model_name_or_path", tmp_path / "model", "--train_n", "4", "--output_dir", tmp_path / "out"]
    command += ["--hub_strategy", "end"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        assert f"rank {rank}: push_to_hub: the token was not accepted" in done.stdout
    assert [message for repository, _, message, _ in hub.commits if repository == "lab/two"] == ["End of training"]
    assert done.stdout.count("Pushed to ") == 1
