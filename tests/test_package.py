"""What a user meets first: imports that load nothing heavy, and the command line."""

import subprocess
import sys
import time

import pytest

import stepgrpo
from stepgrpo.cli import COMMANDS, main


def python(code):
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, time.perf_counter() - start


@pytest.mark.parametrize(
    "code",
    [
        "import stepgrpo",
        "from stepgrpo import parse_plan, match_steps, token_spans, step_token_indices",
        "from stepgrpo import parse_plan; parse_plan('[]')",
        "import stepgrpo.data.household, stepgrpo.cli",
    ],
)
def test_no_torch_is_imported(code):
    loaded, _ = python(f"{code}\nimport sys\nprint(*sys.modules)")
    heavy = {"torch", "transformers", "trl", "datasets", "accelerate", "peft"}
    assert "stepgrpo" in loaded.split()
    assert not heavy & {name.partition(".")[0] for name in loaded.split()}


def test_import_time():
    bare = min(python("pass")[1] for _ in range(3))
    ours = min(python("import stepgrpo")[1] for _ in range(3))
    assert ours - bare < 0.3


def test_every_public_name_is_there():
    for name in stepgrpo.__all__:
        assert getattr(stepgrpo, name) is not None
        assert name in dir(stepgrpo)
    with pytest.raises(AttributeError, match="no_such_name"):
        stepgrpo.no_such_name  # noqa: B018


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0 and main([]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    assert main(["--version"]) == 0 and stepgrpo.__version__ in capsys.readouterr().out


def test_unknown_command_names_the_choices(capsys):
    assert main(["fly"]) == 2
    error = capsys.readouterr().err
    assert "'fly'" in error and all(command in error for command in COMMANDS)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(command):
    done = subprocess.run(
        [sys.executable, "-m", "stepgrpo", command, "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
