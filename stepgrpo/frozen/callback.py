"""The teacher on the trainer's processes: loaded when training begins, freed at its end."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from transformers import TrainerCallback

from stepgrpo.frozen.context import Context, TeacherContexts
from stepgrpo.frozen.failures import Failures
from stepgrpo.frozen.load import load_frozen
from stepgrpo.frozen.same_tokenizer import tokenizer_difference
from stepgrpo.frozen.teacher import PolicyAsTeacher, Scored, Scorer, score_contexts
from stepgrpo.modeling import load_processing_class

logger = logging.getLogger(__name__)

SELF, BASE = "self", "base"


class TeacherLogpCallback(TrainerCallback):
    """A frozen teacher that scores the tokens of completions for `StepGRPOTrainer`.

    The trainer makes one from `step_teacher_path`; pass one in `callbacks` to set what has no field in the config. The teacher
    is put on the trainer's processes as TRL puts its reference model there: a replica on each, or sharded under ZeRO-3 and
    FSDP. Weights that the verify model has, too, are loaded once.

    Args:
        model: a directory or hub id; a loaded model; "self": the policy as it is; "base": the policy without its LoRA adapter.
        processing_class: the teacher's tokenizer or processor; read from the model's place where it is not given. The policy's
            for "self" and "base".
        dtype: of the weights; "auto" is bfloat16 on an accelerator and the saved one on the CPU.
        device: where a teacher computes, such as "cpu" or "cuda:1"; "auto" is the trainer's device.
        offload: whether the weights wait on the CPU between uses. Not for a teacher that is sharded.
        on_error: "raise" stops all processes when a batch fails; "skip" leaves it out, says so once and counts it.
        max_tokens: cached and new tokens in one forward.
        chunk_size: positions whose logits are held at once.
        processor_kwargs: for the teacher's processor, such as `{"max_pixels": 401408}`.
        init_kwargs: for `from_pretrained`, such as `{"revision": "main"}`.

    Raises:
        ValueError: on an argument that is not a choice.
    """

    def __init__(
        self,
        model: Any = SELF,
        processing_class: Any = None,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        offload: bool = False,
        on_error: str = "raise",
        max_tokens: int = 32768,
        chunk_size: int = 1024,
        processor_kwargs: dict[str, Any] | None = None,
        init_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.processing_class, self.dtype, self.device = model, processing_class, dtype, device
        self.offload, self.max_tokens, self.chunk_size = offload, max_tokens, chunk_size
        self.processor_kwargs, self.init_kwargs = dict(processor_kwargs or {}), dict(init_kwargs or {})
        named = (
            model if isinstance(model, (str, os.PathLike)) else getattr(model.config, "_name_or_path", "") or "given"
        )
        self.failures = Failures(f"The teacher {named!s}", "step credit from it", "step_teacher/failed", on_error)
        self.is_policy = isinstance(model, str) and model in (SELF, BASE)
        if self.is_policy and (offload or device != "auto"):
            raise ValueError(
                f"The teacher {model!r} is the policy: it cannot be offloaded or put on a device of its own."
            )
        self._trainer: Any = None
        self._scorer: Scorer | None = None

    def attach(self, trainer: Any) -> None:
        """Names the trainer; `StepGRPOTrainer` calls it when it is made.

        Raises:
            ValueError: if the teacher's tokenizer is not the policy's, which says what differs; if "base" has no adapter.
        """
        self._trainer = trainer
        if self.is_policy:
            self.processing_class = trainer.processing_class
            self._scorer = PolicyAsTeacher(trainer, adapter=self.model == SELF)
            return
        if self.processing_class is None:
            named = isinstance(self.model, (str, os.PathLike))
            place = self.model if named else getattr(self.model.config, "_name_or_path", "")
            if not place:
                raise ValueError(
                    "A teacher that was made in memory needs its tokenizer or processor: pass `processing_class`."
                )
            self.processing_class = load_processing_class(place)
        difference = tokenizer_difference(self.processing_class, trainer.processing_class)
        if difference:
            raise ValueError(
                f"step_teacher_path: {self.failures.who} has another tokenizer than the policy, so it cannot read its "
                f"token ids: {difference}. Take a teacher of the policy's family, or self or base."
            )

    @property
    def accelerator(self) -> Any:
        """The trainer's; None outside one."""
        return None if self._trainer is None else self._trainer.accelerator

    @property
    def picture_tokens(self) -> frozenset[int]:
        """The ids that stand for pictures and films in the teacher's inputs."""
        names = ("image_token_id", "video_token_id")
        places = (self.processing_class, getattr(self.processing_class, "tokenizer", None), *self._configs())
        found = (getattr(place, name, None) for place in places for name in names)
        return frozenset(value for value in found if isinstance(value, int))

    def on_train_begin(self, args, state, control, **kwargs):
        """Loads the teacher, on all processes."""
        self.load()

    def on_train_end(self, args, state, control, **kwargs):
        """Frees it."""
        if not self.is_policy:
            self._scorer = None
            clear_device_cache(garbage_collection=True)

    def load(self) -> Scorer:
        """The teacher on its device, loaded where it is not: evaluation needs it without any training."""
        if self._scorer is None:
            frozen = load_frozen(
                self.model, self.processing_class, self.dtype, self.offload, self.init_kwargs, self.device
            )
            if self.accelerator is not None:
                frozen.prepare(self.accelerator)
            self._scorer = frozen
        return self._scorer

    def score(
        self, contexts: TeacherContexts, asked: Sequence[tuple[Context, Sequence[int], Sequence[int]]]
    ) -> list[Scored | Exception]:
        """Scores completions, each after its context; see `score_contexts`. Every process has to call it."""
        return score_contexts(self.load(), contexts, asked, self.max_tokens, self.chunk_size)

    def _configs(self) -> list[Any]:
        return [] if self._scorer is None else [getattr(self._scorer.model, "config", None)]
