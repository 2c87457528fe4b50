"""Starting recipes: their arguments, and the two ways to start one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepgrpo import launch
from stepgrpo.arguments import parse_recipe

ROOT = Path(__file__).resolve().parents[1]
CPU = ROOT / "accelerate_configs" / "cpu.yaml"


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "run.yaml").write_text(text)
        return str(tmp_path / "run.yaml")

    return write


BASE = "model_name_or_path: model\nuse_cpu: true\nbf16: false\nlearning_rate: 1e-4\nstep_fields: [action_id]\nmax_steps: 7\n"


def test_the_command_line_wins_over_the_file(write):
    file = write(BASE + "reward_funcs: [lcs]\nresume_from_checkpoint: true\nlora_target_modules: [q_proj, v_proj]\n")
    recipe, args, model_args = parse_recipe("step_grpo", ["--config", file])
    assert (recipe.reward_funcs, args.step_fields, args.max_steps) == (["lcs"], ["action_id"], 7)
    assert args.learning_rate == 1e-4 and args.resume_from_checkpoint is True  # YAML reads 1e-4 as a text
    assert model_args.lora_target_modules == ["q_proj", "v_proj"]
    options = ["--max_steps", "3", "--reward_funcs", "exact_match", "lcs", "--step_fields", "step", "--lora_r", "4"]
    recipe, args, model_args = parse_recipe("step_grpo", [f"--config={file}", *options])
    assert (recipe.reward_funcs, args.step_fields, args.max_steps) == (["exact_match", "lcs"], ["step"], 3)
    assert model_args.lora_r == 4 and model_args.model_name_or_path == "model"


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("step_grpo", ["--step_advantge_w", "1"], "no such field: step_advantge_w (did you mean step_advantage_w?)"),
        ("sft", ["--num_generations", "4"], "no such field: num_generations"),
        ("sft", ["--max_step", "4"], "no such field: max_step (did you mean max_steps?)"),
        ("sft", ["stray"], "no such field: stray"),
        ("step_grpo", ["--max_steps", "many"], "--max-steps: invalid int value: 'many'"),
        ("step_grpo", ["--step_match_mode", "best"], "step_match_mode='best' is not a choice. Choose one of: exact, "),
        ("step_grpo", ["--num_generations", "3"], "must be divisible by"),
    ],
)
def test_a_wrong_option_is_one_message(recipe, options, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse_recipe(recipe, ["--use_cpu", "true", "--bf16", "false", *options])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and message in said and said.startswith(recipe) and said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            BASE + "warmup_step: 3\n",
            "the YAML file has no such field: warmup_step (did you mean warmup_steps?). All fields: --help",
        ),
        ("- a\n- b\n", "must have one `field: value` on a line"),
        ("a: [\n", "while parsing"),
    ],
)
def test_a_wrong_file_is_one_message(text, message, write, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse_recipe("step_grpo", ["--config", write(text)])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys):
    for options, message in ((["--config", "no.yaml"], "no.yaml"), (["--config"], "expected a YAML file")):
        with pytest.raises(SystemExit) as stopped:
            parse_recipe("sft", options)
        assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_train_hands_on_what_it_does_not_know(monkeypatch):
    started = []
    monkeypatch.setattr(launch, "start", lambda *given: started.append(given) or 0)
    assert launch.main(["--config_file", "a.yaml", "--config", "b.yaml", "--max_steps", "1"]) == 0
    assert launch.main(["--recipe", "sft", "--num_processes", "2"]) == 0
    assert started == [
        ("step_grpo", ["--config_file", "a.yaml"], ["--config", "b.yaml", "--max_steps", "1"]),
        ("sft", ["--num_processes", "2"], []),
    ]


def characters(completions, **_):
    return [float(sum(map(ord, completion[0]["content"])) % 7) for completion in completions]


@pytest.mark.slow
def test_stepgrpo_train_does_what_accelerate_launch_does(make_model, tiny_tokenizer, tmp_path):
    from safetensors.torch import load_file

    model = tmp_path / "model"
    make_model().save_pretrained(model)
    tiny_tokenizer.save_pretrained(model)
    config = ROOT / "configs" / "household.yaml"
    options = [
        "--config",
        config,
        "--model_name_or_path",
        model,
        "--train_n",
        4,
        "--max_steps",
        2,
        "--num_generations",
        2,
    ]
    options += ["--per_device_train_batch_size", 2, "--max_completion_length", 8]
    options += ["--reward_funcs", "tests.test_launch.characters", "--temperature", 2]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(out, *command):
        command = [sys.executable, "-m", *map(str, command), *map(str, options), "--output_dir", str(tmp_path / out)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return load_file(tmp_path / out / "model.safetensors")

    by_accelerate = run("a", "accelerate.commands.launch", "--config_file", CPU, "recipes/step_grpo.py")
    by_command = run("b", "stepgrpo", "train", "--config_file", CPU)
    start = load_file(model / "model.safetensors")
    assert all((by_accelerate[name] == by_command[name]).all() for name in start)
    assert any((by_accelerate[name] != start[name]).any() for name in start)
