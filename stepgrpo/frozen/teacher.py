"""Scores the tokens of completions under a teacher's contexts, group by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from stepgrpo.frozen.context import Context, TeacherContexts
from stepgrpo.frozen.score import score_continuations

Scored = tuple[Tensor, Tensor]


class Scorer(Protocol):
    """A model that scores: a `FrozenModel`, or the policy in its place."""

    sharded: bool
    accelerator: Any

    @property
    def model(self) -> Any:
        """What `score_continuations` takes."""

    def in_use(self) -> Any:
        """The model is where it computes inside."""


class PolicyAsTeacher:
    """The policy scores its own completions, with its adapter on or off.

    Args:
        trainer: whose model it is.
        adapter: whether a LoRA adapter is on. Off, the policy is the model it was fine-tuned from, for no extra memory.

    Raises:
        ValueError: if the adapter is to be off and there is none.
    """

    def __init__(self, trainer: Any, adapter: bool) -> None:
        from stepgrpo.frozen.prepare import is_sharded

        self._trainer, self._adapter = trainer, adapter
        self.accelerator = trainer.accelerator
        self.sharded = is_sharded(trainer.accelerator)
        if not adapter and not hasattr(self._whole(), "disable_adapter"):
            raise ValueError(
                "step_teacher_path='base' is the policy without its LoRA adapter, and this policy has none. Set use_peft: "
                "true, or name a directory or hub id of a teacher."
            )

    @property
    def model(self) -> Any:
        """The policy, as the trainer has it now."""
        return self._trainer.model

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the adapter is on or off as asked."""
        if self._adapter:
            yield
        else:
            with self._whole().disable_adapter():
                yield

    def _whole(self) -> Any:
        return self.accelerator.unwrap_model(self._trainer.model)


def score_contexts(
    scorer: Scorer,
    contexts: TeacherContexts,
    asked: Sequence[tuple[Context, Sequence[int], Sequence[int]]],
    max_tokens: int = 32768,
    chunk_size: int = 1024,
) -> list[Scored | Exception]:
    """How probable a model finds tokens of completions, each after a context of its own.

    Completions after the same context share one run over it. A context that fails, because its picture cannot be read or its
    scores are not finite, takes only its own completions with it.

    Args:
        scorer: the model.
        contexts: what wrote the contexts, and encodes them.
        asked: for each of N completions its context, its token ids, and the indices of those to score.
        max_tokens, chunk_size: see `score_continuations`.

    Returns:
        For each completion log-probabilities of its tokens and of the most probable ones, float32, each (number of indices,);
        or what went wrong.

    Raises:
        Exception: whatever a sharded model's forward raises, which the other processes wait for.
    """
    groups: dict[str, list[int]] = {}
    for number, (context, _, _) in enumerate(asked):
        groups.setdefault(context.key, []).append(number)
    results: dict[int, Scored | Exception] = {}
    ready: list[tuple[list[int], Any]] = []
    for members in groups.values():
        try:
            ready.append((members, contexts.encode(asked[members[0]][0])))
        except Exception as error:
            results.update(dict.fromkeys(members, error))

    def run(some: list[tuple[list[int], Any]], **together: Any) -> None:
        logp, best = score_continuations(
            scorer.model,
            [prefix for _, prefix in some],
            [[asked[n][1] for n in members] for members, _ in some],
            [[asked[n][2] for n in members] for members, _ in some],
            max_tokens,
            chunk_size,
            **together,
        )
        found = zip((n for members, _ in some for n in members), logp, best, strict=True)
        results.update({n: (values, most) for n, values, most in found})

    with scorer.in_use():
        if scorer.sharded:
            run(ready, accelerator=scorer.accelerator, stand_in=contexts.encode(contexts.stand_in()))
        else:
            for group in ready:
                try:
                    run([group])
                except Exception as error:
                    results.update(dict.fromkeys(group[0], error))
    for members, _ in ready:
        for n in members:
            scored = results[n]
            if isinstance(scored, tuple) and not all(values.isfinite().all() for values in scored):
                results[n] = FloatingPointError("its log-probabilities are not finite")
    return [results[n] for n in range(len(asked))]
