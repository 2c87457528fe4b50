"""One progress bar per stage of the demo."""

from __future__ import annotations

from collections.abc import Callable

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback


class StageBar(TrainerCallback):
    """A bar over the updates of one stage, with a number beside it.

    Args:
        title: left of the bar.
        number: what to show to the right, or None for nothing; asked after each update.
    """

    def __init__(self, title: str, number: Callable[[], str | None] = lambda: None) -> None:
        self.title = title
        self.number = number
        self.loss: float | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.bar = tqdm(total=state.max_steps, desc=self.title, dynamic_ncols=True, mininterval=0.5)

    def on_step_end(self, args, state, control, **kwargs):
        text = self.number() or (f"loss {self.loss:.3f}" if self.loss is not None else None)
        if text:
            self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(1)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.loss = float(logs["loss"])

    def on_train_end(self, args, state, control, **kwargs):
        self.bar.close()


def with_bar(trainer: Trainer, bar: StageBar) -> Trainer:
    """Puts a stage's bar in the place of the trainer's own bar and of its printed logs."""
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(bar)
    return trainer
