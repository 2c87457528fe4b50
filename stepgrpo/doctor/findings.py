"""What was checked, what came out, and what to do about it. Pure text, imports no torch."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

OK, WARN, FAIL = "ok", "warn", "FAIL"

_WIDTH = 118
_INDENT = 6  # of the lines below a finding


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        section: the group of checks.
        status: `ok`, `warn`, or `FAIL`.
        check: what was checked.
        value: what was found.
        advice: what to do, where something is to be done.
    """

    section: str
    status: str
    check: str
    value: str
    advice: str = ""


@dataclass
class Report:
    """Findings in order, in sections.

    Attributes:
        findings: what was found.
        tables: texts that are printed below a section, by the section's name.
    """

    findings: list[Finding] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    _section: str = ""

    def section(self, name: str) -> None:
        """Begins a section."""
        self._section = name

    def ok(self, check: str, value: object, advice: str = "") -> None:
        """Adds what is as it should be."""
        self._add(OK, check, value, advice)

    def warn(self, check: str, value: object, advice: str = "") -> None:
        """Adds what may go wrong, or could not be checked."""
        self._add(WARN, check, value, advice)

    def fail(self, check: str, value: object, advice: str = "") -> None:
        """Adds what will go wrong."""
        self._add(FAIL, check, value, advice)

    def table(self, text: str) -> None:
        """Adds a text below the current section."""
        self.tables[self._section] = text

    @contextlib.contextmanager
    def guard(self, check: str, advice: str = "") -> Iterator[None]:
        """An exception inside becomes a `FAIL` of this check, and the report goes on."""
        try:
            yield
        except Exception as error:
            self.fail(check, describe(error), advice)

    @property
    def problems(self) -> int:
        """How many findings are `FAIL`."""
        return sum(finding.status == FAIL for finding in self.findings)

    @property
    def warnings(self) -> int:
        """How many findings are `warn`."""
        return sum(finding.status == WARN for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The findings, the tables and the counts as plain values."""
        return {
            "problems": self.problems,
            "warnings": self.warnings,
            "findings": [asdict(finding) for finding in self.findings],
            "tables": dict(self.tables),
        }

    def __str__(self) -> str:
        lines: list[str] = []
        for name in dict.fromkeys(finding.section for finding in self.findings):
            lines += ["", name] if lines else [name]
            of_section = [finding for finding in self.findings if finding.section == name]
            width = max(len(finding.check) for finding in of_section)
            for finding in of_section:
                lines += _wrapped(f"{finding.status:<4}  {finding.check:<{width}}  ", finding.value)
                lines += _wrapped(" " * (8 + width) + "-> ", finding.advice) if finding.advice else []
            if name in self.tables:
                lines += ["", textwrap.indent(self.tables[name], " " * _INDENT)]
        checks = f"{len(self.findings)} checks"
        lines += ["", f"{checks}: {_count(self.problems, 'problem')}, {_count(self.warnings, 'warning')}."]
        return "\n".join(lines)

    def _add(self, status: str, check: str, value: object, advice: str) -> None:
        self.findings.append(Finding(self._section, status, check, str(value), advice))


def describe(error: BaseException) -> str:
    """An exception in one line, with its kind unless it is a plain ValueError, whose text says all."""
    text = " ".join(str(error).split())
    if type(error) is ValueError and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [start.rstrip()]


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
