"""Tells a model that cannot be had here from one that is broken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_ASKED: dict[str, Unreachable] = {}


class Unreachable(OSError):
    """A model of the hub that is not in the cache, while the hub cannot be reached."""


@contextlib.contextmanager
def reached(name: str) -> Iterator[None]:
    """Around calls that read a model's files.

    Args:
        name: a directory or a hub id.

    Raises:
        Unreachable: where the name may be one of the hub's, and the hub could not be asked.
        FileNotFoundError: where it is neither a directory nor a name of the hub.
    """
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils import validate_repo_id

    if name in _ASKED:
        raise _ASKED[name]  # the client's attempts take half a minute
    try:
        yield
    except OSError as error:
        if Path(name).exists():
            raise
        try:
            validate_repo_id(name)
        except HFValidationError:
            raise FileNotFoundError(f"{name!r} is no directory here, and no name the hub could have") from error
        if isinstance(error.__cause__, RepositoryNotFoundError) or "valid model identifier" in str(error):
            raise FileNotFoundError(f"{name!r} is no directory here, and the hub does not show it to you") from error
        _ASKED[name] = Unreachable(
            f"{name!r} is no directory here, and the hub cannot be reached; is it what a run before this one writes?"
        )
        raise _ASKED[name] from error
