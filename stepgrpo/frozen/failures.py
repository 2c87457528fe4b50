"""Batches on which a frozen model failed: raised on every process, or said once and counted."""

from __future__ import annotations

import logging
from typing import Any

import torch

logger = logging.getLogger(__name__)

ON_ERROR = ("raise", "skip")


class Failures:
    """The failures of one frozen model.

    Args:
        who: the model, as messages name it: "The teacher".
        lost: what a skipped batch goes without: "step credit from it".
        counted: the name in the log of the share of completions that were skipped.
        on_error: "raise", on all processes, or "skip".

    Raises:
        ValueError: on another `on_error`.
    """

    def __init__(self, who: str, lost: str, counted: str, on_error: str) -> None:
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error={on_error!r} is not a choice. Choose one of: {', '.join(ON_ERROR)}.")
        self.who, self._lost, self._counted, self.on_error = who, lost, counted, on_error
        self._complained = False

    def settle(self, failures: list[tuple[str, Exception]], skipped: int, accelerator: Any = None) -> None:
        """Called on all processes after each batch of rollouts, whether or not anything failed there.

        Args:
            failures: of this process: which batch, and its error.
            skipped: how many completions are in those batches.
            accelerator: the trainer's.

        Raises:
            RuntimeError: if a batch failed on any process and failures are raised. The first error here is its cause.
        """
        failed = len(failures)
        if accelerator is not None and accelerator.num_processes > 1:
            failed = int(accelerator.reduce(torch.tensor(failed, device=accelerator.device)))
        if not failed:
            return
        here, cause = "None of them here.", None
        if failures:
            batch, cause = failures[0]
            here = f"The first one here, {batch}: {type(cause).__name__}: {cause}"
        if self.on_error == "raise":
            raise RuntimeError(
                f"{self.who} failed on {failed} batch(es). {here} step_on_error: skip goes on without {self._lost}."
            ) from cause
        if cause is not None and not self._complained:
            self._complained = True
            logger.error(
                "%s failed on %d batch(es); their %d completions get no %s. This is said once; %s in the log counts on. %s",
                self.who,
                len(failures),
                skipped,
                self._lost,
                self._counted,
                here,
                exc_info=cause,
            )
