"""Going on from a checkpoint as if training had never stopped.

TRL generates completions for several batches at once and keeps them between updates, and draws the order of the prompts from
a generator of its own. A checkpoint of the `transformers` trainer has neither: a run that goes on from one generates again,
counts its batches from zero, and has the first epoch's order of prompts again. The functions here save and restore both.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_YES, _NO = ("true", "yes", "last", "1"), ("", "false", "no", "none", "null", "0")
AUTO = "auto"
_STATE = "trainer_state.json"  # written last
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def find_checkpoint(value: str | bool | None, output_dir: str | os.PathLike[str]) -> str | None:
    """The folder that `resume_from_checkpoint` names.

    Args:
        value: a checkpoint's folder; `true`: the last whole checkpoint in `output_dir`; `auto`: the same if there is one, else
            a new start; `false` or nothing: a new start. Words may be in capitals and may be text, as from a command line.
        output_dir: of the run.

    Raises:
        ValueError: if there is no such checkpoint.
    """
    word = str(value).lower() if value is not None else ""
    if word in _NO:
        return None
    whole = _whole_checkpoints(Path(output_dir))
    if word in _YES or word == AUTO:
        if whole:
            return str(whole[-1])
        if word == AUTO:
            return None
        raise ValueError(
            f"resume_from_checkpoint is true, but output_dir={os.fspath(output_dir)!r} has no whole checkpoint-N folder. "
            f"Set save_strategy in the run to resume, give a checkpoint's folder, or use {AUTO!r}, which starts anew."
        )
    if not (Path(str(value)) / _STATE).is_file():
        there = ", ".join(map(str, whole)) or "none"
        raise ValueError(
            f"resume_from_checkpoint={value!r} is no checkpoint: it has no {_STATE}. Checkpoints in output_dir: {there}."
        )
    return str(value)


def _whole_checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoints in a folder that were written to their end, by their number."""
    found = [(int(match[1]), path) for path in output_dir.glob("*") if (match := _CHECKPOINT.fullmatch(path.name))]
    whole = [path for _, path in sorted(found) if (path / _STATE).is_file()]
    cut_off = [path.name for _, path in sorted(found) if path not in whole]
    if cut_off:
        logger.warning("Not written to the end, and not used: %s in %s", ", ".join(cut_off), output_dir)
    return whole


def save_rollouts(
    checkpoint: str | os.PathLike[str], rank: int, processes: int, step: int, buffer: list[Any] | None
) -> None:
    """Saves what one process has generated and not used up.

    Args:
        checkpoint: its folder; made if missing.
        rank: of the process.
        processes: how many there are.
        step: batches that were trained on since the run began.
        buffer: the batches of the last generation, or None if all were used.
    """
    import torch

    Path(checkpoint).mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "buffer": buffer}, _rollouts(checkpoint, rank, processes))


def load_rollouts(
    checkpoint: str | os.PathLike[str], rank: int, processes: int, device: Any
) -> tuple[int, list[Any] | None] | None:
    """What `save_rollouts` has saved, the tensors on a device; None where nothing was saved by as many processes.

    A process whose file is missing must not generate alone: ask all of them before one uses what it has loaded.
    """
    import torch
    from accelerate.utils import send_to_device

    file = _rollouts(checkpoint, rank, processes)
    if not file.is_file():
        return None
    saved = torch.load(file, map_location="cpu", weights_only=True)
    return saved["step"], send_to_device(saved["buffer"], device)


def _rollouts(checkpoint: str | os.PathLike[str], rank: int, processes: int) -> Path:
    # Each process's part belongs to the parts of the others: a group can straddle them.
    return Path(checkpoint) / f"rollouts_{rank}_of_{processes}.pt"


def skip_epochs(sampler: Any, epochs: int) -> None:
    """Draws the orders of the epochs that are over, so that a sampler's next order is that of the current epoch.

    Args:
        sampler: TRL's `RepeatSampler`; another one, or one that does not shuffle, is left alone.
        epochs: how many are over.
    """
    import torch

    generator = getattr(sampler, "generator", None)
    if generator is not None and getattr(sampler, "shuffle", False):
        for _ in range(epochs):
            torch.randperm(sampler.num_samples, generator=generator)
