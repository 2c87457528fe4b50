"""A trained LoRA adapter merged into its base: a plain model that loads without PEFT."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepgrpo.modeling import is_adapter, load_model

MERGED = "merged"  # folder in the output directory


def merge_adapter(
    adapter: str | os.PathLike[str],
    out: str | os.PathLike[str],
    processing_class: Any,
    dtype: Any = "auto",
    gguf_file: str | None = None,
) -> Path:
    """Merges a saved adapter into its base and saves the model with its tokenizer or processor.

    The base is loaded anew, on the CPU: a trained model may be spread over GPUs (ZeRO-3, FSDP) or quantized (QLoRA), and a
    quantized base would round the adapter away. The adapter is what the trainer has saved, gathered from all processes.

    Args:
        adapter: directory of a saved adapter.
        out: directory to save in; made if missing.
        processing_class: tokenizer or processor, saved beside the model.
        dtype: of the merged weights. In a half precision each is rounded once.
        gguf_file: of the base, see `load_model`.

    Returns:
        `out`.

    Raises:
        ValueError: if there is no adapter.
    """
    if not is_adapter(adapter):
        raise ValueError(f"{os.fspath(adapter)!r} holds no adapter to merge: it has no adapter_config.json.")
    with _unsharded():
        model = load_model(adapter, gguf_file, dtype).merge_and_unload(safe_merge=True)
    model.save_pretrained(out)
    processing_class.save_pretrained(out)
    return Path(out)


def merged_dtype(model_args: Any) -> Any:
    """The type of merged weights: the recipe's, and bfloat16 where the base was quantized.

    Args:
        model_args: TRL's `ModelConfig`.
    """
    quantized = model_args.load_in_4bit or model_args.load_in_8bit
    return "bfloat16" if quantized else model_args.dtype or "auto"


@contextlib.contextmanager
def _unsharded() -> Iterator[None]:
    """Loads a model whole on the process that calls, where ZeRO-3 would have all processes load it in parts."""
    from transformers.integrations import deepspeed

    config = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = config
