"""Writes plans with a language or vision-language model, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import GenerationConfig, ProcessorMixin
from transformers.image_utils import load_image
from trl import prepare_multimodal_messages

PIXELS_OF_A_TOKEN = 28 * 28  # of Qwen2.5-VL; only the order of the batches depends on it


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
    images: Sequence[Sequence[Any] | None] | None = None,
) -> list[list[str]]:
    """Writes completions.

    Args:
        model, tokenizer: a language model and its tokenizer, or a vision-language model and its processor. The model is left
            in the mode it was in.
        prompts: texts or conversations.
        max_new_tokens: at most so many tokens a completion, at least 1.
        temperature: 0.0 is greedy.
        top_p: of nucleus sampling, in (0, 1].
        num_samples: completions per prompt; a greedy one is written once and repeated.
        batch_size: completions at a time. With another batch size the same seed draws other samples.
        seed: of the sampling. The global random state is not touched.
        images: for each prompt its pictures, PIL pictures or paths; `[]` or None for none. They stand where the conversation
            has `{"type": "image"}` parts, else before the text of the first user message, as in training.

    Returns:
        For each prompt its `num_samples` completions as text, without special tokens.

    Raises:
        ValueError: pictures for a model without a processor or for a prompt that is no conversation, not as many rows of
            pictures as prompts, or a prompt with more or fewer image parts than pictures.
    """
    ids = generate_ids(
        model, tokenizer, prompts, max_new_tokens, temperature, top_p, num_samples, batch_size, seed, images=images
    )
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
    images: Sequence[Sequence[Any] | None] | None = None,
) -> list[list[list[int]]]:
    """As `generate_plans`, but token ids up to the end token, which is there unless the completion was cut off.

    Args:
        on_batch: called after each batch with the numbers of the prompts in it and the completion of each.
    """
    end_ids = end_token_ids(model, tokenizer)
    text_tokenizer = _text_tokenizer(tokenizer)
    pad_id = text_tokenizer.pad_token_id if text_tokenizer.pad_token_id is not None else min(end_ids, default=0)
    options: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        options = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
    if isinstance(tokenizer, ProcessorMixin):
        # As in TRL's rollouts: a picture's placeholder is nothing to write.
        options["suppress_tokens"] = [model.config.image_token_id]
    # Every value that shapes the distribution is set: what is not would come from the model's own generation config.
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        pad_token_id=pad_id,
        eos_token_id=sorted(end_ids) or None,
        repetition_penalty=1.0,
        use_cache=True,
        **options,
    )
    encoded = _encoded(tokenizer, prompts, images, pad_id)
    copies = num_samples if temperature > 0 else 1
    # The longest first: a batch too large for the memory fails at once, and little is padded.
    order = [i for i in sorted(range(len(prompts)), key=lambda i: -encoded.sizes[i]) for _ in range(copies)]
    result: list[list[list[int]]] = [[] for _ in prompts]
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                inputs = encoded.batch(chosen)
                inputs = {name: _placed(value, device, model.dtype) for name, value in inputs.items()}
                written = model.generate(**inputs, generation_config=config)
                ended = [_until_end(row, end_ids) for row in written[:, inputs["input_ids"].size(1) :].tolist()]
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
    """The ids that end a completion, by the tokenizer or processor and by the model's generation config."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    configured = configured if isinstance(configured, (list, tuple)) else [configured]
    return {int(i) for i in (_text_tokenizer(tokenizer).eos_token_id, *configured) if i is not None}


class _TextPrompts:
    """Prompts of a language model."""

    def __init__(self, tokenizer: Any, prompts: Sequence[Any], pad_id: int) -> None:
        self._ids = [encode_prompt(tokenizer, prompt) for prompt in prompts]
        self._pad_id = pad_id
        self.sizes = [len(ids) for ids in self._ids]

    def batch(self, numbers: Sequence[int]) -> dict[str, torch.Tensor]:
        rows = [self._ids[i] for i in numbers]
        width = max(map(len, rows))
        ids = [[self._pad_id] * (width - len(row)) + row for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


class _PicturePrompts:
    """Prompts of a vision-language model, with and without pictures. Pictures are read when their batch is made."""

    def __init__(self, processor: Any, prompts: Sequence[Any], images: Sequence[Sequence[Any]]) -> None:
        self._processor, self._images = processor, images
        # Conversations have their special tokens from the chat template.
        self._special = all(isinstance(prompt, str) for prompt in prompts)
        self._texts = [self._text(prompt, images[i], i) for i, prompt in enumerate(prompts)]
        self.sizes = [
            len(ids) + sum(_pixels(image) for image in row) // PIXELS_OF_A_TOKEN
            for ids, row in zip(_text_tokenizer(processor)(self._texts)["input_ids"], images, strict=True)
        ]

    def _text(self, prompt: Any, images: Sequence[Any], number: int) -> str:
        if isinstance(prompt, str):
            if images:
                raise ValueError(
                    f"Prompt {number} has pictures and is a text; make it a conversation: a list of messages."
                )
            return prompt
        try:
            messages = prepare_multimodal_messages(prompt, images=list(images))
        except ValueError as error:
            raise ValueError(f"Prompt {number}: {error}") from error
        return self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    def batch(self, numbers: Sequence[int]) -> dict[str, Any]:
        rows = [[_opened(image) for image in self._images[i]] for i in numbers]
        return dict(
            self._processor(
                text=[self._texts[i] for i in numbers],
                images=rows if any(rows) else None,
                padding=True,
                padding_side="left",
                add_special_tokens=self._special,
                return_tensors="pt",
            )
        )


def _encoded(
    tokenizer: Any, prompts: Sequence[Any], images: Sequence[Sequence[Any] | None] | None, pad_id: int
) -> _TextPrompts | _PicturePrompts:
    rows = [list(row or []) for row in images] if images is not None else [[] for _ in prompts]
    if len(rows) != len(prompts):
        raise ValueError(f"{len(rows)} rows of images for {len(prompts)} prompts; there must be as many.")
    if isinstance(tokenizer, ProcessorMixin):
        return _PicturePrompts(tokenizer, prompts, rows)
    if any(rows):
        raise ValueError("There are pictures, and the model has a tokenizer only: it is no vision-language model.")
    return _TextPrompts(tokenizer, prompts, pad_id)


def _text_tokenizer(processing_class: Any) -> Any:
    return processing_class.tokenizer if isinstance(processing_class, ProcessorMixin) else processing_class


def _pixels(image: Any) -> int:
    if isinstance(image, (str, Path)):
        with Image.open(image) as opened:  # reads the header only
            return opened.width * opened.height
    return image.width * image.height


def _opened(image: Any) -> Any:
    return load_image(str(image)) if isinstance(image, (str, Path)) else image


def _placed(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


def _until_end(ids: list[int], end_ids: set[int]) -> list[int]:
    end = next((i for i, token in enumerate(ids) if token in end_ids), len(ids))
    return ids[: end + 1]
