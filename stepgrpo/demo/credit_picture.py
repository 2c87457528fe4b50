"""The step heatmap of the demo: A^S on the tokens of one real completion."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from stepgrpo.credit import spread_on_tokens, step_advantages
from stepgrpo.demo.settings import step_settings
from stepgrpo.report.heatmap import draw_heatmap
from stepgrpo.segment.segmenter import plan_rollout
from stepgrpo.signal import score_rollouts
from stepgrpo.signal.rule import RuleSignal, ground_truth_fields


def token_credit(
    token_ids: Sequence[int], tokenizer: PreTrainedTokenizerFast, row: Mapping[str, Any]
) -> tuple[list[str], list[float]]:
    """The text and A^S of each token of a completion, under the demo's step settings.

    Args:
        token_ids: T ids, without padding.
        tokenizer: that wrote them.
        row: the row of `household_rows` that the completion answers.

    Returns:
        Both of length T; 0.0 on every token that belongs to no step.
    """
    settings = step_settings()
    ids = list(token_ids)
    rollout = plan_rollout(
        ids,
        [True] * len(ids),
        tokenizer,
        {tokenizer.eos_token_id},
        row,
        None,
        settings["step_fields"],
        "executable_plan",
    )
    signal = RuleSignal(ground_truth_fields(None), settings["step_match_mode"], "action_id")
    scores = score_rollouts(signal, [rollout])[0]
    values = torch.tensor([[float("nan") if score is None else score for score in scores]])
    credit = spread_on_tokens(step_advantages(values, torch.zeros(1)), [rollout.step_tokens], len(ids))
    texts = [rollout.text[start:end] for start, end in rollout.token_spans]
    return texts, credit[0].tolist()


def pick_and_draw(
    completions: Sequence[Sequence[int]],
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerFast,
    path: str | os.PathLike[str],
) -> None:
    """Draws the completion that shows most: the one whose right and wrong steps are most balanced."""
    credits = [token_credit(ids, tokenizer, row) for ids, row in zip(completions, rows, strict=True)]

    def balance(index: int) -> int:
        values = credits[index][1]
        return min(sum(value > 0 for value in values), sum(value < 0 for value in values))

    best = max(range(len(credits)), key=balance)
    texts, values = credits[best]
    draw_heatmap(texts, values, path, title=f"A^S per token: {rows[best]['instruction']}")
