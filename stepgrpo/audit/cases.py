"""The plans of an audit as completions: damaged, written as the policy writes them, tokenized."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from stepgrpo.audit.actions import actions_of
from stepgrpo.audit.corruptions import CORRUPTIONS, NONE, CorruptedPlan, Plan, Works, corrupted_plans
from stepgrpo.data.answers import PLAN_KEY, plan_answer
from stepgrpo.rollout import Rollout
from stepgrpo.segment.align import tokens_of_spans
from stepgrpo.segment.plan import PlanStep, field_spans
from stepgrpo.segment.segmenter import plan_rollout

# By the name of a set of fields: the values of a step that are scored.
FIELD_SETS: dict[str, tuple[str, ...]] = {
    "action_id": ("action_id",),
    "action_name": ("action_name",),
    "both": ("action_id", "action_name"),
}


@dataclass(frozen=True)
class Case:
    """One plan to score.

    Attributes:
        row: the number of the row whose ground truth it comes from.
        plan: the steps and their labels.
        rollout: the same as a completion.
        positions: the ascending indices of the completion's tokens that write ids and names.
        owned: by the name of a field set, for each step the indices into `positions` of its tokens.
    """

    row: int
    plan: CorruptedPlan
    rollout: Rollout
    positions: list[int]
    owned: Mapping[str, list[list[int]]]


def make_cases(
    rows: Sequence[Mapping[str, Any]],
    truths: Sequence[Sequence[PlanStep]],
    tokenizer: Any,
    seed: int = 0,
    copies: int = 1,
    works: Callable[[Mapping[str, Any], Plan], bool] | None = None,
) -> tuple[list[list[Case]], Counter[str]]:
    """Damages each plan in every way.

    Args:
        rows: the rows.
        truths: the ground truth of each, with names.
        tokenizer: the model's.
        seed: of all that is drawn. What is done to a row depends on the seed, its number and its actions alone.
        copies: how many plans of each kind, at different places, as far as there are so many.
        works: whether a plan of a row reaches its goal with every step possible; see `corrupted_plans`.

    Returns:
        For each row its cases, the undamaged plan first; and by corruption how many rows have none.

    Raises:
        ValueError: if the tokenizer does not give a plan back.
    """
    cases: list[list[Case]] = []
    missing: Counter[str] = Counter()
    for number, (truth, actions) in enumerate(zip(truths, actions_of(rows, truths), strict=True)):
        row = rows[number]
        check = _bound(works, row)
        mine: list[Case] = []
        for corruption in (NONE, *CORRUPTIONS):
            rng = random.Random(f"{seed}/{number}/{corruption}")
            plans = list(islice(corrupted_plans(truth, corruption, actions, rng, check), copies))
            missing[corruption] += not plans
            mine += [_case(number, plan, row, tokenizer) for plan in plans]
        cases.append(mine)
    return cases, missing


def _bound(works: Callable[[Mapping[str, Any], Plan], bool] | None, row: Mapping[str, Any]) -> Works | None:
    return None if works is None else lambda steps: works(row, steps)


def _case(number: int, plan: CorruptedPlan, row: Mapping[str, Any], tokenizer: Any) -> Case:
    text = plan_answer(plan.steps)
    ids = getattr(tokenizer, "tokenizer", tokenizer)(text, add_special_tokens=False)["input_ids"]
    rollout = plan_rollout(ids, [True] * len(ids), tokenizer, (), row, None, FIELD_SETS["both"], PLAN_KEY)
    if rollout.steps != plan.steps:
        raise ValueError(f"The tokenizer does not give a plan back: {text[:200]!r} became {rollout.text[:200]!r}.")
    tokens = {
        name: tokens_of_spans(rollout.token_spans, [field_spans(step, fields) for step in rollout.steps])
        for name, fields in FIELD_SETS.items()
    }
    positions = sorted({i for owned in tokens.values() for step in owned for i in step})
    place = {token: index for index, token in enumerate(positions)}
    owned = {name: [[place[i] for i in step] for step in steps] for name, steps in tokens.items()}
    return Case(number, plan, rollout, positions, owned)
