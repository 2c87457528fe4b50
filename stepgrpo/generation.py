"""Writes plans with a causal language model, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig


def generate_plans(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    num_samples: int = 1,
    batch_size: int = 64,
    seed: int = 0,
) -> list[list[str]]:
    """Writes completions.

    Args:
        model, tokenizer: a causal language model and its tokenizer. The model is left in the mode it was in.
        prompts: texts or conversations.
        max_new_tokens: at most so many tokens a completion, at least 1.
        temperature: 0.0 is greedy.
        top_p: of nucleus sampling, in (0, 1].
        num_samples: completions per prompt; a greedy one is written once and repeated.
        batch_size: completions at a time. With another batch size the same seed draws other samples.
        seed: of the sampling. The global random state is not touched.

    Returns:
        For each prompt its `num_samples` completions as text, without special tokens.
    """
    ids = generate_ids(model, tokenizer, prompts, max_new_tokens, temperature, top_p, num_samples, batch_size, seed)
    return [tokenizer.batch_decode(group, skip_special_tokens=True) for group in ids]


# Not inference_mode: a tensor the model caches in it, such as those of a dynamic RoPE, could not be trained through later.
@torch.no_grad()
def generate_ids(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    num_samples: int = 1,
    batch_size: int = 64,
    seed: int = 0,
    on_batch: Callable[[list[int], list[list[int]]], object] | None = None,
) -> list[list[list[int]]]:
    """As `generate_plans`, but token ids up to the end token, which is there unless the completion was cut off.

    Args:
        on_batch: called after each batch with the numbers of the prompts in it and the completion of each.
    """
    end_ids = end_token_ids(model, tokenizer)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(end_ids, default=0)
    options: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        options = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
    # Every value that shapes the distribution is set: what is not would come from the model's own generation config.
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        pad_token_id=pad_id,
        eos_token_id=sorted(end_ids) or None,
        repetition_penalty=1.0,
        use_cache=True,
        **options,
    )
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    copies = num_samples if temperature > 0 else 1
    # The longest first: a batch too large for the memory fails at once, and little is padded.
    order = [i for i in sorted(range(len(encoded)), key=lambda i: -len(encoded[i])) for _ in range(copies)]
    result: list[list[list[int]]] = [[] for _ in encoded]
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                input_ids, mask = _pad_left([encoded[i] for i in chosen], pad_id, device)
                written = model.generate(input_ids=input_ids, attention_mask=mask, generation_config=config)
                ended = [_until_end(row, end_ids) for row in written[:, input_ids.size(1) :].tolist()]
                for i, ids in zip(chosen, ended, strict=True):
                    result[i].append(ids)
                if on_batch is not None:
                    on_batch(chosen, ended)
    finally:
        model.train(training)
    return [group * (num_samples // copies) for group in result]


def encode_prompt(tokenizer: Any, prompt: Any) -> list[int]:
    """The ids of a prompt, a text or a conversation, ready to be continued."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def end_token_ids(model: Any, tokenizer: Any) -> set[int]:
    """The ids that end a completion, by the tokenizer and by the model's generation config."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    configured = configured if isinstance(configured, (list, tuple)) else [configured]
    return {int(i) for i in (tokenizer.eos_token_id, *configured) if i is not None}


def _pad_left(rows: Sequence[list[int]], pad_id: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = [[pad_id] * (width - len(row)) + row for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _until_end(ids: list[int], end_ids: set[int]) -> list[int]:
    end = next((i for i, token in enumerate(ids) if token in end_ids), len(ids))
    return ids[: end + 1]
