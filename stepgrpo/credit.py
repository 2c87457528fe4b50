"""From one score per step to one advantage per token: return, baseline, scale, spread.

    A_token = A^E + ω · A^S(step of the token)

Every signal goes through here, so that signals return scores and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

BASELINES = ("none", "position", "anchor")
SCALES = ("mean", "mean_std")

# Returns of one group that differ by less than this differ by rounding only; relative where they are larger than 1.
_ROUNDING = 1e-6


def discounted_returns(
    rewards: Tensor | Sequence[float], trajectory: Tensor | Sequence[Hashable], gamma: float
) -> Tensor:
    """R_k = r_k + γ · R_{k+1} within each trajectory (GiGPO, arXiv 2505.10978, eq. 5).

    Args:
        rewards: (N,) rewards of single steps.
        trajectory: (N,) which trajectory each belongs to. Rows of one trajectory are in time order and may interleave
            with those of others.
        gamma: γ in [0, 1].

    Returns:
        (N,) float32.
    """
    rewards = torch.as_tensor(rewards)
    ahead: dict[Hashable, float] = {}
    returns = [0.0] * len(rewards)
    keys = _as_list(trajectory)
    values = rewards.tolist()
    if len(keys) != len(values):
        raise ValueError(f"rewards has {len(values)} rows and trajectory {len(keys)}")
    for i in range(len(values) - 1, -1, -1):
        returns[i] = ahead[keys[i]] = values[i] + gamma * ahead.get(keys[i], 0.0)
    return torch.tensor(returns, dtype=torch.float32, device=rewards.device)


def anchor_advantages(
    returns: Tensor | Sequence[float],
    group: Tensor | Sequence[Hashable],
    anchor: Tensor | Sequence[Hashable],
    scale: str = "mean",
    epsilon: float = 1e-6,
) -> Tensor:
    """A step's return against the returns of the steps of its group that start in the same state (GiGPO, 2505.10978,
    eq. 7).

    Args:
        returns: (N,) one return per step; NaN for a step without one, which takes no part.
        group: (N,) the prompt each step belongs to.
        anchor: (N,) the state each step starts in: integers or any hashables.
        scale: "mean": `R - mean`; "mean_std": `(R - mean) / (std + epsilon)`, with the unbiased std.
        epsilon: keeps the division finite.

    Returns:
        (N,) float32. Exactly 0 for a step alone in its state, for states whose returns differ by rounding only, and
        for NaN.

    Raises:
        ValueError: on an unknown scale or inputs of different lengths.
    """
    if scale not in SCALES:
        raise ValueError(f"Unknown scale {scale!r}. Choose one of: {', '.join(SCALES)}.")
    values = torch.as_tensor(returns).to(torch.float64)
    keys = list(zip(_as_list(group), _as_list(anchor), strict=True))
    if len(keys) != len(values):
        raise ValueError(f"returns has {len(values)} rows, group and anchor {len(keys)}")
    valid = torch.isfinite(values)
    ids: dict[tuple[Hashable, Hashable], int] = {}
    index = torch.tensor([ids.setdefault(key, len(ids)) for key in keys], dtype=torch.long, device=values.device)
    size = max(len(ids), 1)
    zeros = values.new_zeros(size)
    x, i = values[valid], index[valid]
    count = zeros.index_add(0, i, torch.ones_like(x))
    mean = zeros.index_add(0, i, x) / count.clamp(min=1)
    centred = x - mean[i]
    largest = zeros.scatter_reduce(0, i, x.abs(), "amax")
    spread = zeros.scatter_reduce(0, i, centred.abs(), "amax")
    constant = spread <= _ROUNDING * largest.clamp(min=1.0)
    if scale == "mean_std":
        std = (zeros.index_add(0, i, centred**2) / (count - 1).clamp(min=1)).sqrt()
        centred = centred / (std[i] + epsilon)
    result = torch.zeros_like(values)
    result[valid] = torch.where(constant[i] | (count[i] < 2), torch.zeros_like(centred), centred)
    return result.to(torch.float32)


def step_advantages(
    scores: Tensor,
    group: Tensor,
    states: Tensor | None = None,
    baseline: str = "none",
    scale: str = "mean",
    gamma: float = 0.0,
) -> Tensor:
    """A^S of every step of a batch of completions.

    Args:
        scores: (B, K) float, one score per step; NaN where a completion has no k-th step or the signal gave no
            verdict.
        group: (B,) the prompt of each completion.
        states: (B, K) int64, the state each step starts in; for the baseline "anchor".
        baseline: "none": the (discounted) score itself; "position": minus the mean over the group's completions at
            step k; "anchor": minus the mean over the group's steps that start in the same state.
        scale: "mean" or "mean_std", see `anchor_advantages`; without effect on the baseline "none".
        gamma: γ of `discounted_returns`; 0 is immediate credit. A step without a verdict counts as 0 in the sums.

    Returns:
        (B, K) float32, 0 where `scores` is NaN.
    """
    rows, columns = torch.nonzero(~torch.isnan(scores), as_tuple=True)
    if gamma != 0.0:
        trajectory = torch.arange(len(scores), device=scores.device).repeat_interleave(scores.shape[1])
        scores = discounted_returns(scores.nan_to_num(0.0).flatten(), trajectory, gamma).view(scores.shape)
    flat = scores[rows, columns]
    if baseline == "position":
        flat = anchor_advantages(flat, group[rows], columns, scale)
    elif baseline == "anchor":
        if states is None:
            raise ValueError("The baseline 'anchor' needs the state each step starts in.")
        flat = anchor_advantages(flat, group[rows], states[rows, columns], scale)
    elif baseline != "none":
        raise ValueError(f"Unknown baseline {baseline!r}. Choose one of: {', '.join(BASELINES)}.")
    result = torch.zeros(scores.shape, dtype=torch.float32, device=scores.device)
    result[rows, columns] = flat.to(torch.float32)
    return result


def score_table(rows: Sequence[Sequence[float | None]], width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, width) table of rows of different lengths, None and what is missing NaN, or 0 if the dtype is an integer's."""
    padding = torch.nan if dtype.is_floating_point else 0
    filled = [
        [*(padding if value is None else value for value in row), *[padding] * (width - len(row))] for row in rows
    ]
    return torch.tensor(filled, dtype=dtype).view(len(rows), width)


def prefix_states(step_keys: Sequence[str]) -> list[int]:
    """For each step of a plan the state it starts in, the steps written so far, as a 64-bit integer.

    The same on every process, unlike Python's own `hash`.
    """
    digest = hashlib.blake2b(digest_size=8)
    states = []
    for key in step_keys:
        states.append(int.from_bytes(digest.digest(), "big", signed=True))
        name = key.encode("utf-8", "surrogatepass")
        digest.update(len(name).to_bytes(8, "big") + name)
    return states


def spread_on_tokens(advantages: Tensor, step_tokens: Sequence[Sequence[Sequence[int]]], length: int) -> Tensor:
    """Gives every token of a step the step's advantage, and 0 to all others.

    Args:
        advantages: (B, K) A^S of each step.
        step_tokens: for each completion and step, the indices of the tokens that take its credit.
        length: T, the padded length of the completions.

    Returns:
        (B, T) float32.
    """
    places = [
        (row, token, k) for row, steps in enumerate(step_tokens) for k, tokens in enumerate(steps) for token in tokens
    ]
    result = torch.zeros(len(step_tokens), length, dtype=torch.float32, device=advantages.device)
    if places:
        rows, tokens, steps = torch.tensor(places, device=advantages.device).unbind(1)
        result[rows, tokens] = advantages[rows, steps].to(torch.float32)
    return result


def _as_list(values: Tensor | Sequence[Hashable]) -> list:
    return values.tolist() if isinstance(values, Tensor) else list(values)
