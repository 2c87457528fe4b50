"""`stepgrpo doctor`: what is wrong with an installation, a machine and a config, before the GPUs are taken."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepgrpo.arguments import RECIPES
from stepgrpo.doctor.devices import GB
from stepgrpo.doctor.findings import Report


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report. Returns the exit status: 0 without problems, 1 with some.

    Args:
        argv: options of `stepgrpo train`, and the doctor's own; those of this process if None.

    Raises:
        SystemExit: with status 2 if the doctor's own options are wrong; with 0 after `--help`.
    """
    options, rest = _parser().parse_known_args(argv)
    report = examine(
        rest or None,
        options.recipe,
        options.config_file,
        options.num_processes,
        None if options.gpu_memory is None else options.gpu_memory * GB,
        options.rows,
    )
    print(report)
    if options.json:
        text = json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n"
        try:
            Path(options.json).write_text(text, encoding="utf-8")
        except OSError as error:
            print(f"stepgrpo doctor: --json: {error}", file=sys.stderr)
            return 2
    return 1 if report.problems else 0


def examine(
    argv: Sequence[str] | None = None,
    recipe: str = "step_grpo",
    config_file: str | None = None,
    num_processes: int | None = None,
    gpu_memory: float | None = None,
    rows: int = 8,
) -> Report:
    """Checks the installation and, where a recipe's arguments are given, the run.

    Args:
        argv: `--config FILE` and `--field value ...`; None checks the installation only.
        recipe: one of `RECIPES`.
        config_file, num_processes: see `stepgrpo.doctor.launch_file.read_launch`.
        gpu_memory: bytes of a GPU; this machine's where it is not given.
        rows: how many rows are tokenized, aligned and scored.

    Returns:
        What was found. No exception of a check gets out: it is a problem in the report.
    """
    from stepgrpo.doctor.versions import check_imports, check_versions

    report = Report()
    versions = _step(report, "versions", lambda: check_versions(report)) or {}
    if not _step(report, "imports", lambda: check_imports(report)):
        return report
    with _quiet_libraries():
        _examine_machine(report, argv, recipe, config_file, num_processes, versions, gpu_memory, rows)
    return report


def _examine_machine(
    report: Report,
    argv: Sequence[str] | None,
    recipe: str,
    config_file: str | None,
    num_processes: int | None,
    versions: dict[str, str | None],
    gpu_memory: float | None,
    rows: int,
) -> None:
    from stepgrpo.doctor.devices import check_devices
    from stepgrpo.doctor.hooks import check_hooks

    machine = _step(report, "devices", lambda: check_devices(report))
    _step(report, "hooks", lambda: check_hooks(report))
    if (argv is not None or config_file is not None or num_processes is not None) and machine is not None:
        _examine_run(report, argv or [], recipe, config_file, num_processes, machine, versions, gpu_memory, rows)


def _examine_run(
    report: Report,
    argv: Sequence[str],
    recipe: str,
    config_file: str | None,
    num_processes: int | None,
    machine: Any,
    versions: dict[str, str | None],
    gpu_memory: float | None,
    rows: int,
) -> None:
    from stepgrpo.doctor.budget import check_memory
    from stepgrpo.doctor.devices import check_launch
    from stepgrpo.doctor.launch_file import Launch, read_launch
    from stepgrpo.doctor.models import check_model
    from stepgrpo.doctor.parsing import check_batches, check_output, check_packages, parse_run
    from stepgrpo.doctor.rewards import check_judge, check_rewards
    from stepgrpo.doctor.rows import check_rows
    from stepgrpo.doctor.tokens import check_tokens

    report.section("launch")
    # A GPU is spoken of, so the run is not for this machine's CPUs.
    gpus = machine.count or int(gpu_memory is not None)
    launch = _step(report, "config_file", lambda: read_launch(config_file, num_processes, gpus)) or Launch(
        num_processes or 1, cpu=gpus == 0
    )
    _step(report, "processes", lambda: check_launch(report, launch, machine))
    report.section("config")
    run = _step(report, "fields", lambda: parse_run(report, recipe, argv, launch))
    if run is None:
        return
    _step(report, "batch", lambda: check_batches(report, run))
    _step(report, "output", lambda: check_output(report, run))
    _step(report, "packages", lambda: check_packages(report, run, versions))
    report.section("data")
    _step(report, "data", lambda: check_rows(report, run))
    report.section("model")
    _step(report, "model", lambda: check_model(report, run))
    report.section("tokens")
    _step(report, "tokens", lambda: check_tokens(report, run, rows))
    if run.name == "step_grpo":
        report.section("rewards")
        _step(report, "rewards", lambda: check_rewards(report, run, rows))
        _step(report, "verify", lambda: check_judge(report, run))
    report.section("memory")
    _step(report, "memory", lambda: check_memory(report, run, machine, gpu_memory))


def _step(report: Report, check: str, ask: Callable[[], Any]) -> Any:
    """What a check returns; None, with a problem in the report, if it raises: the checks after it go on."""
    with report.guard(check):
        return ask()
    return None


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Keeps what libraries log out of the report."""
    from datasets.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled
    from transformers.utils import logging as transformers_logging

    ours = logging.getLogger("stepgrpo")
    level, verbosity, bars = ours.level, transformers_logging.get_verbosity(), is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    disable_progress_bar()
    ours.setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        yield
    finally:
        ours.setLevel(level)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            enable_progress_bar()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stepgrpo doctor",
        description="Check the installation; with options of `stepgrpo train`, also the run that they would start. Nothing is "
        "trained, no weights are loaded. Exit status: 0 without problems, 1 with some, 2 for wrong usage.",
        epilog="Example: stepgrpo doctor --config_file accelerate_configs/single_gpu.yaml --gpu_memory 24 --config "
        "configs/eb_alfred_qwen2_5_vl_3b_lora.yaml. Options that are not listed go to the recipe.",
        allow_abbrev=False,
    )
    parser.add_argument("--recipe", choices=RECIPES, default="step_grpo", help="what would run (default: step_grpo)")
    parser.add_argument("--config_file", metavar="FILE", help="accelerate's configuration, one of accelerate_configs/")
    parser.add_argument("--num_processes", type=_at_least_one, help="instead of the configuration's")
    parser.add_argument(
        "--gpu_memory", type=_size, metavar="GB", help="of the GPU that it is meant for (default: this machine's)"
    )
    parser.add_argument(
        "--rows", type=_at_least_one, default=8, help="how many rows are aligned and scored (default: 8)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the findings as JSON")
    return parser


def _at_least_one(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value


def _size(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value
