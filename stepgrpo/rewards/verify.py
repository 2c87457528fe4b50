"""The verify model: a frozen judge that looks at picture, task and plan, and says yes or no."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from transformers.image_utils import load_image

from stepgrpo.config import ON_ERROR
from stepgrpo.frozen.answers import both_answers, yes_minus_no
from stepgrpo.frozen.load import load_frozen
from stepgrpo.rewards.judge_prompt import question, read_template, without_control_tokens
from stepgrpo.rewards.text import completion_text
from stepgrpo.segment.plan import parse_plan

logger = logging.getLogger(__name__)


@dataclass
class _Question:
    """One question, and the completions that raise it."""

    text: str
    images: list[Any]
    completions: list[int] = field(default_factory=list)


class VerifyReward:
    """A reward in [-1, 1] from a frozen vision-language or text model: P(yes) - P(no), an entry of `reward_funcs`.

    `StepGRPOTrainer` puts the model on its own processes: a replica on each, or sharded under ZeRO-3 and FSDP. Elsewhere it
    runs where it is, or where the script's `accelerate` state says.

    Args:
        model: a directory, a hub id, or a loaded model. The same weights are loaded once, whoever else uses them.
        processing_class: its tokenizer or processor; read from the model's place where it is not given.
        template: the question; see `read_template`. Pictures come before it.
        yes, no: a word or words that mean yes and no; all their spellings count.
        batch_size: questions in one forward.
        no_plan: the reward of a completion without a plan, in [-1, 1]; None leaves it to the other reward functions.
        dtype: of the weights; "auto" is bfloat16 on an accelerator and the saved one on the CPU.
        offload: whether the weights wait on the CPU while nobody scores.
        on_error: what happens when a batch fails (`step_on_error` in recipes): "raise", on all processes, or "skip": no reward
            for its completions, one loud message, and a count in the logs.
        plan_key: key of the list of steps in the completion's JSON.
        chat_template_kwargs: for the judge's chat template, such as `{"enable_thinking": False}`.
        processor_kwargs: for its processor, such as `{"max_pixels": 401408}`.
        init_kwargs: for `from_pretrained`, such as `{"revision": "main"}`.

    Raises:
        ValueError: if the model cannot be loaded, the template does not show the plan, the two answers begin alike, or another
            argument is out of its range.
    """

    __name__ = "verify"  # what TRL logs it as

    def __init__(
        self,
        model: Any,
        processing_class: Any = None,
        template: str | None = None,
        yes: str | Sequence[str] = "yes",
        no: str | Sequence[str] = "no",
        batch_size: int = 8,
        no_plan: float | None = None,
        dtype: str | torch.dtype = "auto",
        offload: bool = False,
        on_error: str = "raise",
        plan_key: str = "executable_plan",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"verify_batch_size={batch_size!r} must be at least 1.")
        if no_plan is not None and not -1.0 <= no_plan <= 1.0:
            raise ValueError(f"verify_no_plan={no_plan!r} must be in [-1, 1], or not set.")
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error={on_error!r} is not a choice. Choose one of: {', '.join(ON_ERROR)}.")
        self.template = read_template(template)
        self.frozen = load_frozen(model, processing_class, dtype, offload, init_kwargs)
        words = [[answer] if isinstance(answer, str) else list(answer) for answer in (yes, no)]
        self.yes_ids, self.no_ids = both_answers(self.frozen.tokenizer, *words)
        self.batch_size, self.no_plan, self.on_error, self.plan_key = batch_size, no_plan, on_error, plan_key
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.processor_kwargs = dict(processor_kwargs or {})
        self._clean = without_control_tokens(self.frozen.tokenizer)
        self._complained = False

    def prepare(self, accelerator: Any) -> None:
        """Puts the judge on the processes of a trainer; `StepGRPOTrainer` calls it."""
        self.frozen.prepare(accelerator)

    def __call__(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        """Scores completions.

        Args:
            completions: N texts, or conversations whose last message is the completion.
            prompts: N prompts; needed where there is no column `instruction`.
            columns: the rows' columns, N values each, of which `images` (lists of pictures or paths) or `image` is shown, and
                those that the template names; TRL's `log_metric`, `log_extra` and others.

        Returns:
            N rewards in [-1, 1]; None where there is no plan and `no_plan` is not set, and where a batch was skipped.

        Raises:
            ValueError: if the template names something the rows have not.
            RuntimeError: if a batch failed, on any process, and `on_error` is "raise".
        """
        started = time.perf_counter()
        questions, planless = self._questions(completions, prompts, columns)
        rewards: list[float | None] = [None] * len(completions)
        for index in planless:
            rewards[index] = self.no_plan
        masses: list[float] = []
        failures: list[Exception] = []
        skipped = 0
        with self.frozen.in_use():
            for batch, stand_in in self._batches(questions):
                scored = self._score(batch, stand_in, failures)
                if scored is None:
                    skipped += sum(len(asked.completions) for asked in batch)
                    continue
                masses += scored[1]
                for asked, score in zip(batch, scored[0], strict=True):
                    for index in asked.completions:
                        rewards[index] = score
        self._report(failures, skipped)
        if (log_metric := columns.get("log_metric")) is not None and completions:
            log_metric("verify/no_plan", len(planless) / len(completions))
            log_metric("verify/failed", skipped / len(completions))
            log_metric("verify/seconds", time.perf_counter() - started)
            if masses:
                log_metric("verify/answer_mass", sum(masses) / len(masses))
        return rewards

    def _questions(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> tuple[list[_Question], list[int]]:
        """What to ask, each question once, and the numbers of the completions without a plan."""
        rows = {name: values for name, values in columns.items() if _is_column(values, len(completions))}
        asked: dict[tuple[Any, ...], _Question] = {}
        planless = []
        for index, completion in enumerate(completions):
            text = completion_text(completion)
            steps = parse_plan(text, self.plan_key)
            if steps is None:
                planless.append(index)
                continue
            row = {name: values[index] for name, values in rows.items()}
            asking = question(self.template, steps, text, prompts[index] if prompts else None, row, self._clean)
            images = _pictures(row) if self.frozen.is_multimodal else []
            # The completions of a group often hold the same plan, and the judge's answer to it is the same.
            key = (asking, *map(_fingerprint, images))
            asked.setdefault(key, _Question(asking, images)).completions.append(index)
        return list(asked.values()), planless

    def _batches(self, questions: list[_Question]) -> Iterator[tuple[list[_Question], _Question]]:
        """Batches of like questions, and for each a question of its kind that could stand in for them.

        Questions with and without pictures are not mixed: not every processor can, and processes that run a sharded model
        together must run the same parts of it. There every process gets as many batches of each kind as the one with the most;
        those without anything to ask are empty.
        """
        accelerator = self.frozen.accelerator
        for with_images in (True, False):
            stand_in = _Question("yes or no?", [Image.new("RGB", (56, 56))] if with_images else [])
            # The longest first: a batch too large for the memory fails at once, and little is padded.
            chosen = sorted((q for q in questions if bool(q.images) is with_images), key=lambda q: -len(q.text))
            count = -(-len(chosen) // self.batch_size)
            if self.frozen.sharded:
                count = int(accelerator.gather(torch.tensor([count], device=accelerator.device)).max())
            for start in range(0, count * self.batch_size, self.batch_size):
                yield chosen[start : start + self.batch_size], stand_in

    def _score(
        self, batch: list[_Question], stand_in: _Question, failures: list[Exception]
    ) -> tuple[list[float], list[float]] | None:
        """Scores and answer masses of a batch; None where it failed, which is added to `failures`."""
        inputs = None
        try:
            inputs = self._encode(batch) if batch else None
        except Exception as error:
            failures.append(error)
        if inputs is None and not self.frozen.sharded:
            return None
        try:
            # The other processes run a sharded model now, so this one has to, whatever became of its batch.
            logits = self.frozen.last_logits(self._encode([stand_in]) if inputs is None else inputs)
        except Exception as error:
            if self.frozen.sharded:
                raise  # in the middle of what all processes do together there is nothing to go on with
            failures.append(error)
            return None
        if inputs is None:
            return None if batch else ([], [])
        scores, mass = yes_minus_no(logits, self.yes_ids, self.no_ids)
        if not scores.isfinite().all():
            failures.append(FloatingPointError("the judge's logits are not finite"))
            return None
        return scores.tolist(), mass.tolist()

    def _encode(self, batch: Sequence[_Question]) -> Mapping[str, Any]:
        processor, tokenizer = self.frozen.processing_class, self.frozen.tokenizer
        texts = [asked.text for asked in batch]
        options: dict[str, Any] = {"padding": True, "return_tensors": "pt"}
        if getattr(processor, "chat_template", None) is None:
            return tokenizer(texts, **options)
        conversations = []
        for asked, text in zip(batch, texts, strict=True):
            content: Any = [*({"type": "image"} for _ in asked.images), {"type": "text", "text": text}]
            conversations.append([{"role": "user", "content": content if self.frozen.is_multimodal else text}])
        rendered = processor.apply_chat_template(
            conversations, add_generation_prompt=True, tokenize=False, **self.chat_template_kwargs
        )
        # What the template wrote already is not added again.
        options["add_special_tokens"] = tokenizer.bos_token is None or not rendered[0].startswith(tokenizer.bos_token)
        if not self.frozen.is_multimodal:
            return tokenizer(rendered, **options, **self.processor_kwargs)
        images = [[load_image(image).convert("RGB") for image in asked.images] for asked in batch]
        return processor(text=rendered, images=images if any(images) else None, **options, **self.processor_kwargs)

    def _report(self, failures: list[Exception], skipped: int) -> None:
        """Raises on every process if a batch failed on any, or says once that batches are skipped."""
        failed = len(failures)
        accelerator = self.frozen.accelerator
        if accelerator is not None and accelerator.num_processes > 1:
            failed = int(accelerator.reduce(torch.tensor(failed, device=accelerator.device)))
        if not failed:
            return
        here = f"The first one here: {type(failures[0]).__name__}: {failures[0]}" if failures else "None of them here."
        if self.on_error == "raise":
            raise RuntimeError(
                f"The verify model failed on {failed} batch(es). {here} step_on_error: skip goes on without their rewards."
            ) from (failures[0] if failures else None)
        if failures and not self._complained:
            self._complained = True
            logger.error(
                "The verify model failed on %d batch(es); their %d completions get no reward from it. This is said once; "
                "verify/failed in the log counts on. %s",
                len(failures),
                skipped,
                here,
            )


def _is_column(values: Any, length: int) -> bool:
    return isinstance(values, (list, tuple)) and len(values) == length


def _pictures(row: Mapping[str, Any]) -> list[Any]:
    images = row.get("images")
    if images is None:
        return [] if row.get("image") is None else [row["image"]]
    return list(images)


def _fingerprint(image: Any) -> Any:
    if isinstance(image, Image.Image):
        return image.mode, image.size, hashlib.blake2b(image.tobytes()).digest()
    return image if isinstance(image, str) else id(image)
