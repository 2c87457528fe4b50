"""Frozen models that score what the policy wrote: loaded once, shared, on the trainer's own processes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepgrpo.frozen.score import score_continuations as score_continuations

__all__ = ["score_continuations"]


def __getattr__(name: str):
    if name in __all__:
        from stepgrpo.frozen import score

        return getattr(score, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
