"""The private surface of TRL that `trainer.py` stands on, `stepgrpo.doctor.hooks`. When TRL moves, this says where."""

import re
from pathlib import Path

import pytest
import trl
from trl import GRPOTrainer

import stepgrpo.trainer
from stepgrpo.doctor.findings import Report
from stepgrpo.doctor.hooks import ATTRIBUTES, BEGINNINGS, CARD, HOOKS, IMPORTED, OVERRIDDEN, Hook, check_hooks
from stepgrpo.trainer import StepGRPOTrainer

MOVED = f"TRL {trl.__version__} has moved {{}}: {{}}; adapt stepgrpo/trainer.py and the range in setup.cfg."
SOURCE = Path(stepgrpo.trainer.__file__).read_text()
OF_ANY_CLASS = {"__annotations__", "__doc__", "__module__"}


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.name)
def test_hook(hook):
    problem = hook.moved()
    assert problem is None, MOVED.format(hook.name, problem)


def test_the_list_has_all_that_the_trainer_overrides_or_calls():
    overridden = {name for name in vars(StepGRPOTrainer) if hasattr(GRPOTrainer, name) and name not in OF_ANY_CLASS}
    called = set(re.findall(r"super\(\)\.(\w+)\(", SOURCE)) | {"_get_output_dir"}
    assert overridden | called == {*OVERRIDDEN, *BEGINNINGS, *CARD}


def test_the_list_has_all_attributes_that_the_trainer_reads():
    read = set(re.findall(r"self\.(_\w+)\b(?!\()", SOURCE))
    ours = {name for name in read if not any(name in vars(kind) for kind in GRPOTrainer.__mro__)} - set(ATTRIBUTES)
    assert ours == {
        "_hub_run",
        "_mode",
        "_step_signal",
        "_step_monitor",
        "_trajectory_rewards",
        "_prompt_sampler",
    }
    assert read - ours == {name for name in ATTRIBUTES if name.startswith("_")}


def test_the_list_has_all_private_modules_that_the_package_imports_from():
    package = Path(stepgrpo.trainer.__file__).parent
    files = [path for path in package.rglob("*.py") if "doctor" not in path.parts]
    imported = set()
    for path in files:
        for module, names in re.findall(r"from (trl\.[\w.]+) import ([\w, ]+)", path.read_text()):
            imported |= {(module, name.strip()) for name in names.split(",")}
    assert imported and imported <= set(IMPORTED)


@pytest.mark.parametrize(
    ("name", "replacement", "said"),
    [
        (
            "_generate",
            lambda self, prompts, images: None,
            "its parameters are (self, prompts, images), not (self, prompts)",
        ),
        ("_calculate_rewards", None, "it is not there"),
        ("_compute_advantages", lambda self: None, "TRL has a _compute_advantages of its own now"),
    ],
)
def test_a_moved_hook_is_named(monkeypatch, name, replacement, said):
    if replacement is None:
        monkeypatch.delattr(GRPOTrainer, name)
    else:
        monkeypatch.setattr(GRPOTrainer, name, replacement, raising=False)
    report = Report()
    check_hooks(report)
    assert said in [finding.value for finding in report.findings] and report.problems


def test_a_hook_that_cannot_be_looked_at_is_a_problem():
    def broken():
        raise OSError("could not get source code")

    report = Report()
    check_hooks(report, [Hook("anything", broken)])
    (finding,) = report.findings
    assert finding.status == "FAIL" and "could not get source code" in finding.value
