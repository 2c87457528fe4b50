"""Keeps what belongs to one machine or one person out of files that are published: local paths, tokens, user names."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Of nobody in particular; as words they also appear in texts.
_NOBODY = ("root", "user", "admin", "ubuntu", "nobody", "runner", "docker", "app")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# A data spec such as alfred:PATH; one letter would be a Windows drive.
_SPEC = re.compile(r"([a-z][a-z0-9_-]+):(?!//)(.+)", re.DOTALL)
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_CACHED = re.compile(r"(?:models|datasets)--([^/\\]+?)--([^/\\]+)(?:[/\\]snapshots|$)")
_REMOVED = "[removed]"


def is_hub_id(value: str) -> bool:
    """Whether a name has the form `namespace/name` and is no local path."""
    return bool(_HUB_ID.fullmatch(value)) and not is_local(value)


def is_local(value: str) -> bool:
    """Whether a text is a path: one that is there, or one of a form that only paths have."""
    if not value or "\n" in value or len(value) > 1024:
        return False
    if value.startswith(("/", "~", "./", "../", "\\\\")) or _DRIVE.match(value):
        return True
    try:
        return os.path.exists(value)
    except ValueError:
        return False


def public_name(value: str) -> str:
    """A path without its folders; a folder of the Hub's cache as the id it was loaded from; anything else as it is.

    Args:
        value: a path, a hub id, or either after a prefix, as in `alfred:PATH`.
    """
    if spec := _SPEC.fullmatch(value):
        return f"{spec[1]}:{public_name(spec[2])}"
    if not is_local(value):
        return value
    if cached := _CACHED.search(value):
        return f"{cached[1]}/{cached[2]}"
    return re.split(r"[\\/]", value.rstrip("\\/"))[-1] or "."


@dataclass
class Private:
    """What must not be published.

    Attributes:
        tokens: secrets, found anywhere.
        names: user names, found as whole words; names that mean nobody, such as root, do not count.
        folders: absolute paths; the system's root does not count.
    """

    tokens: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)

    @classmethod
    def of_this_machine(
        cls, tokens: Iterable[str | None] = (), names: Iterable[str | None] = (), folders: Iterable[str | None] = ()
    ) -> Private:
        """What is private here: the given, and this user's name, home, temporary and working directory."""
        try:
            user: str | None = getpass.getuser()
        except (KeyError, OSError, ImportError):  # a container's user may have no name
            user = None
        home = os.path.expanduser("~")
        places = [home, tempfile.gettempdir(), os.getcwd(), *folders]
        absolute = {os.path.abspath(place) for place in places if place}
        absolute |= {os.path.realpath(place) for place in absolute}
        people = {name for name in (user, Path(home).name, *names) if name and len(name) > 1}
        return cls(
            {token for token in tokens if token},
            {name for name in people if name.lower() not in _NOBODY and name not in ("home", "Users")},
            {place for place in absolute if len(Path(place).parts) > 1},
        )

    def found_in(self, text: str) -> bool:
        """Whether a text holds any of it."""
        return any(pattern.search(text) for pattern, _ in self._patterns(self.names))

    def clean(self, text: str, keep: Iterable[str | None] = ()) -> str:
        """A text without it: a path keeps its last name, a token or a name becomes `[removed]`.

        Args:
            text: any.
            keep: hub ids; a namespace of one is public, also where it is a user's name.
        """
        public = {identifier.split("/")[0] for identifier in keep if identifier}
        for pattern, replacement in self._patterns(self.names - public):
            text = pattern.sub(replacement, text)
        return text

    def _patterns(self, names: Iterable[str]) -> list[tuple[re.Pattern[str], Any]]:
        def last(found: re.Match[str]) -> str:
            return found[0].rstrip("/\\").replace("\\", "/").split("/")[-1]

        folders = sorted(self.folders, key=len, reverse=True)
        return [
            *((re.compile(re.escape(token)), _REMOVED) for token in self.tokens),
            *((re.compile(re.escape(folder) + r"(?![\w.-])[^\s\"'`<>|)\],:]*"), last) for folder in folders),
            *((re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"), _REMOVED) for name in names),
        ]
