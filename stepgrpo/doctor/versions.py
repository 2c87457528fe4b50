"""Installed packages against the ranges that the package states. Imports none of them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from importlib import import_module, metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from stepgrpo._version import __version__
from stepgrpo.doctor.findings import Report

# Without these nothing runs.
REQUIRED = ("torch", "trl", "transformers", "accelerate", "peft", "datasets")
# Without these something does not: what.
OPTIONAL = {
    "deepspeed": "ZeRO",
    "vllm": "use_vllm",
    "bitsandbytes": "load_in_4bit, load_in_8bit and 8-bit optimizers",
    "flash-attn": "attn_implementation: flash_attention_2",
    "torchvision": "processors of vision-language models",
    "wandb": "report_to: wandb",
}
# TRL's name for what this package has no range of its own for.
_STATED_BY = ("stepgrpo", "trl")
# Each is imported for itself, so that the one that is broken is named.
MODULES = ("torch", "transformers", "accelerate", "peft", "datasets", "trl", "stepgrpo.trainer")

VersionOf = Callable[[str], str]


def stated_ranges(packages: Iterable[str] = _STATED_BY) -> dict[str, SpecifierSet]:
    """The ranges that installed packages state for others, those of extras too.

    Args:
        packages: distributions, the first that names another one counts.

    Returns:
        By name in lower case. Empty for a distribution that is not installed.
    """
    ranges: dict[str, SpecifierSet] = {}
    for package in packages:
        try:
            stated = metadata.requires(package) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, stated):
            if requirement.specifier or requirement.name.lower() not in ranges:
                ranges.setdefault(requirement.name.lower(), requirement.specifier)
    return ranges


def check_versions(report: Report, version_of: VersionOf = metadata.version) -> dict[str, str | None]:
    """Adds a finding per package: its version, and the range it should be in.

    Args:
        report: where to.
        version_of: tells a distribution's version.

    Returns:
        The versions, None for what is not installed.
    """
    report.section("versions")
    report.ok("stepgrpo", __version__)
    report.ok("python", platform.python_version())
    ranges = stated_ranges()
    versions: dict[str, str | None] = {}
    for name in (*REQUIRED, *OPTIONAL):
        wanted = ranges.get(name, SpecifierSet())
        said = f" ({wanted})" if wanted else ""
        try:
            version = versions[name] = version_of(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
            if name in REQUIRED:
                report.fail(name, f"not installed{said}", f"pip install '{name}{wanted}'")
            else:
                report.ok(name, f"not installed{said}; needed for {OPTIONAL[name]}")
            continue
        if wanted.contains(Version(version), prereleases=True):
            report.ok(name, f"{version}{said}")
        elif name in REQUIRED:
            report.fail(name, f"{version} is out of the range {wanted}", f"pip install '{name}{wanted}'")
        else:
            report.warn(name, f"{version} is out of the range {wanted}", f"pip install '{name}{wanted}'")
    return versions


def check_imports(report: Report, modules: Iterable[str] = MODULES) -> bool:
    """Imports what training imports, and adds what fails. Returns whether all can be imported."""
    broken = []
    for name in modules:
        try:
            import_module(name)
        except Exception as error:
            text = " ".join(str(error).split())
            broken.append(name)
            report.fail(f"import {name}", f"{type(error).__name__}: {text}", "reinstall it with what it needs")
    if not broken:
        report.ok("imports", ", ".join(modules))
    return not broken
