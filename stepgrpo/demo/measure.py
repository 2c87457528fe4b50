"""Held-out metrics of a planner, greedy and sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from stepgrpo.rewards.household import household_reward
from stepgrpo.segment.plan import parse_plan
from stepgrpo.signal.rule import match_steps

NAMES = ("success", "exact_match", "step_accuracy", "valid_json")
METRICS = ("success_sampled", "success_greedy", "exact_match_sampled", "step_accuracy_sampled", "valid_json_sampled")

_BATCH = 200


@dataclass(frozen=True)
class Measured:
    """Metrics by name, each of `NAMES` with `_sampled` and `_greedy`; and the sampled completions with their rows."""

    metrics: dict[str, float]
    sampled_ids: list[list[int]]
    sampled_rows: list[Mapping[str, Any]]


@torch.no_grad()
def generate_ids(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: Sequence[Mapping[str, Any]],
    max_tokens: int,
    sample: bool,
) -> list[list[int]]:
    """One completion per row as ids up to and with the end token, at temperature 1 or greedy."""
    result: list[list[int]] = []
    model.eval()
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0} if sample else {"do_sample": False}
    for first in range(0, len(rows), _BATCH):
        conversations = [row["prompt"] for row in rows[first : first + _BATCH]]
        texts = [
            tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=False) for one in conversations
        ]
        inputs = tokenizer(texts, padding=True, return_tensors="pt", add_special_tokens=False)
        written = model.generate(**inputs, max_new_tokens=max_tokens, **options)[:, inputs["input_ids"].shape[1] :]
        for ids in written.tolist():
            end = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
            result.append(ids[:end])
    return result


def _metrics(texts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    rewards = household_reward(texts, [row["scene"] for row in rows])
    exact = valid = accuracy = 0.0
    for text, row in zip(texts, rows, strict=True):
        plan, truth = parse_plan(text), row["gt_action_close"]
        if plan is None:
            continue
        valid += 1
        right = sum(value or 0.0 for value in match_steps(plan, truth))
        accuracy += right / max(len(plan), len(truth))
        exact += right == len(plan) == len(truth)
    values = (sum(reward > 0 for reward in rewards), exact, accuracy, valid)
    return {name: value / len(texts) for name, value in zip(NAMES, values, strict=True)}


def measure(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: Sequence[Mapping[str, Any]],
    max_tokens: int,
    samples: int,
    seed: int,
) -> Measured:
    """Measures a planner on held-out rows.

    Args:
        model, tokenizer: the planner.
        rows: rows of `household_rows`.
        max_tokens: of a completion.
        samples: sampled completions per row; the greedy one is written once.
        seed: of the sampling.
    """
    repeated = [row for row in rows for _ in range(samples)]
    metrics: dict[str, float] = {}
    sampled_ids: list[list[int]] = []
    for way, asked in (("greedy", list(rows)), ("sampled", repeated)):
        torch.manual_seed(seed)
        ids = generate_ids(model, tokenizer, asked, max_tokens, sample=way == "sampled")
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        metrics |= {f"{name}_{way}": value for name, value in _metrics(texts, asked).items()}
        sampled_ids = ids
    return Measured(metrics, sampled_ids, repeated)
