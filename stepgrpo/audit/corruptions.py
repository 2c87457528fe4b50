"""Ground-truth plans, damaged at one place in a known way, with a label for every step. Pure text, imports no torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stepgrpo.audit.actions import Actions, paraphrase, verb_and_thing
from stepgrpo.segment.plan import PlanStep, fold_name

Plan = Sequence[PlanStep]
Works = Callable[[Plan], bool]

NONE = "none"
# What they do is in `corrupted_plans`.
CORRUPTIONS = (
    "same_verb",
    "other_verb",
    "wrong_id",
    "insertion",
    "deletion",
    "swap",
    "repeat",
    "reordering",
    "paraphrase",
)
RIGHT_ONLY = ("reordering", "paraphrase")

# The kinds of steps. Right ones:
PLAIN, AFTER_WRONG, CHANGED = "plain", "after_wrong", "changed"
# Wrong ones:
WRONG, AFTER_GAP, SWAPPED_FIRST, SWAPPED_SECOND = "wrong", "after_gap", "swapped_first", "swapped_second"
_WRONG_KINDS = (WRONG, AFTER_GAP, SWAPPED_FIRST, SWAPPED_SECOND)


@dataclass(frozen=True)
class CorruptedPlan:
    """A plan with a label per step.

    Attributes:
        corruption: one of `CORRUPTIONS`, or "none".
        steps: the plan.
        kinds: for each step one of "plain": right, and so is the step before; "after_wrong": right, directly after a wrong
            one; "changed": right, though not what the ground truth has there; "wrong"; "after_gap": wrong, because the step
            that belongs before it was left out; "swapped_first" and "swapped_second": wrong, the two of a swap.
    """

    corruption: str
    steps: list[PlanStep]
    kinds: list[str]

    @property
    def right(self) -> list[bool]:
        """For each step whether it is right."""
        return [kind not in _WRONG_KINDS for kind in self.kinds]


def corrupted_plans(
    truth: Plan, corruption: str, actions: Actions, rng: random.Random, works: Works | None = None
) -> Iterator[CorruptedPlan]:
    """Damages a plan in one way, each time at another place, in random order.

    Args:
        truth: the ground truth, at least one step, each with a name.
        corruption: "none": nothing;
            "same_verb": another action with the step's verb in its place; "other_verb": one with another verb;
            "wrong_id": another action's id beside the right name;
            "insertion": an action too many, which is wrong, what follows is right;
            "deletion": a step is left out; the one that now comes too early is wrong, what follows is right;
            "swap": two neighbours change places, both are wrong;
            "repeat": a step twice in a row, the second is wrong;
            "reordering": two neighbouring parts of the plan change places and it still reaches the goal, all is right;
            "paraphrase": other words for the same action, id unchanged, all is right.
        actions: what substitutes are taken from.
        rng: the only source of chance.
        works: whether a plan can be carried out to the last step and reaches the goal. Where it is given, a substitution,
            deletion or swap that does no harm is not used: it would be labelled wrong and be right. There is no reordering
            without it.

    Yields:
        As many plans as there are places for this corruption; none where it is not possible.

    Raises:
        ValueError: on an unknown corruption.
    """
    if corruption == NONE:
        yield CorruptedPlan(NONE, list(truth), [PLAIN] * len(truth))
        return
    if corruption not in CORRUPTIONS:
        raise ValueError(f"Unknown corruption {corruption!r}. Choose one of: {', '.join((NONE, *CORRUPTIONS))}.")
    if corruption == "reordering":
        yield from _reordered(truth, rng, works)
        return
    places = list(range(len(truth) + 1))
    rng.shuffle(places)
    for place in places:
        for steps, kinds in _WAYS[corruption](list(truth), place, actions, rng):
            if corruption in _HARMFUL and works is not None and works(steps):
                continue
            yield CorruptedPlan(corruption, steps, _after_wrong(kinds))
            break


Candidates = Iterator[tuple[list[PlanStep], list[str]]]


def _same_verb(truth: list[PlanStep], k: int, actions: Actions, rng: random.Random) -> Candidates:
    if k < len(truth):
        verb, _ = verb_and_thing(truth[k].action_name or "")
        yield from _with_another(truth, k, actions.substitutes([truth[k]], verb=verb), rng)


def _other_verb(truth: list[PlanStep], k: int, actions: Actions, rng: random.Random) -> Candidates:
    if k < len(truth):
        verb, _ = verb_and_thing(truth[k].action_name or "")
        yield from _with_another(truth, k, actions.substitutes([truth[k]], not_verb=verb), rng)


def _with_another(truth: list[PlanStep], k: int, others: list[PlanStep], rng: random.Random) -> Candidates:
    for other in rng.sample(others, len(others)):
        yield [*truth[:k], other, *truth[k + 1 :]], _marked(len(truth), {k: WRONG})


def _wrong_id(truth: list[PlanStep], k: int, actions: Actions, rng: random.Random) -> Candidates:
    if k < len(truth) and truth[k].action_id is not None and (ids := actions.other_ids(truth[k])):
        wrong = replace(truth[k], action_id=rng.choice(ids))
        yield [*truth[:k], wrong, *truth[k + 1 :]], _marked(len(truth), {k: WRONG})


def _insertion(truth: list[PlanStep], k: int, actions: Actions, rng: random.Random) -> Candidates:
    others = actions.substitutes(truth[max(k - 1, 0) : k + 1])
    for other in rng.sample(others, len(others)):
        yield [*truth[:k], other, *truth[k:]], _marked(len(truth) + 1, {k: WRONG})


def _deletion(truth: list[PlanStep], k: int, actions: Actions, rng: random.Random) -> Candidates:
    # Without the last step there is none that comes too early, and of two equal ones either may be missing.
    if k + 1 < len(truth) and not _same(truth[k], truth[k + 1]):
        yield [*truth[:k], *truth[k + 1 :]], _marked(len(truth) - 1, {k: AFTER_GAP})


def _swap(truth: list[PlanStep], k: int, actions: Actions, rng: random.Random) -> Candidates:
    if k + 1 < len(truth) and not _same(truth[k], truth[k + 1]):
        steps = [*truth[:k], truth[k + 1], truth[k], *truth[k + 2 :]]
        yield steps, _marked(len(truth), {k: SWAPPED_FIRST, k + 1: SWAPPED_SECOND})


def _repeat(truth: list[PlanStep], k: int, actions: Actions, rng: random.Random) -> Candidates:
    if k < len(truth) and not (k + 1 < len(truth) and _same(truth[k], truth[k + 1])):
        yield [*truth[: k + 1], *truth[k:]], _marked(len(truth) + 1, {k + 1: WRONG})


def _paraphrase(truth: list[PlanStep], k: int, actions: Actions, rng: random.Random) -> Candidates:
    if k == len(truth) or (words := paraphrase(truth[k].action_name or "", rng)) is None:
        return
    known = {fold_name(action.action_name) for action in actions.pool if action.action_name is not None}
    if fold_name(words) not in known:
        renamed = replace(truth[k], action_name=words)
        yield [*truth[:k], renamed, *truth[k + 1 :]], _marked(len(truth), {k: CHANGED})


def _reordered(truth: Plan, rng: random.Random, works: Works | None) -> Iterator[CorruptedPlan]:
    if works is None:
        return
    n = len(truth)
    cuts = [(i, j, k) for i in range(n) for j in range(i + 1, n) for k in range(j + 1, n + 1)]
    rng.shuffle(cuts)
    seen: list[list[PlanStep]] = [list(truth)]
    for i, j, k in cuts:
        steps = [*truth[:i], *truth[j:k], *truth[i:j], *truth[k:]]
        if steps not in seen and works(steps):
            seen.append(steps)
            kinds = [PLAIN if _same(a, b) else CHANGED for a, b in zip(steps, truth, strict=True)]
            yield CorruptedPlan("reordering", steps, kinds)


_WAYS: dict[str, Callable[[list[PlanStep], int, Actions, random.Random], Candidates]] = {
    "same_verb": _same_verb,
    "other_verb": _other_verb,
    "wrong_id": _wrong_id,
    "insertion": _insertion,
    "deletion": _deletion,
    "swap": _swap,
    "repeat": _repeat,
    "paraphrase": _paraphrase,
}
# Harm is what makes their steps wrong; a step too many is wrong without.
_HARMFUL = ("same_verb", "other_verb", "deletion", "swap")


def _same(a: PlanStep, b: PlanStep) -> bool:
    return (a.action_id, fold_name(a.action_name or "")) == (b.action_id, fold_name(b.action_name or ""))


def _marked(n: int, special: dict[int, str]) -> list[str]:
    return [special.get(i, PLAIN) for i in range(n)]


def _after_wrong(kinds: list[str]) -> list[str]:
    """The kinds, with "after_wrong" for a plain step whose predecessor is wrong."""
    before = [PLAIN, *kinds]
    return [AFTER_WRONG if kind == PLAIN and before[i] in _WRONG_KINDS else kind for i, kind in enumerate(kinds)]
