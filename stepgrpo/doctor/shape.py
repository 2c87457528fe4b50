"""The sizes of a model, counted on the meta device: exact, without its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Shape:
    """What a model's memory depends on. Numbers of weights, unless said otherwise.

    Attributes:
        parameters: of the model without adapters; tied weights once.
        adapter: of adapters.
        trainable: of both together, that are trained.
        quantizable: of the linear layers that bitsandbytes would quantize.
        embeddings: of the token embeddings, and of the head where it is not tied to them.
        adapter_inputs: how many numbers adapters of one layer read of a token, on average over the layers.
        head_trained: of the head, if it is trained.
        largest_layer: of the largest layer of the language model.
        vision: outside the language model and its head, such as those of a vision tower.
        vision_trainable: of these, that are trained, adapters' too.
        layers, hidden, intermediate, heads, vocabulary: sizes of the language model.
        kv_width: key-value heads x size of a head.
        vision_layers, vision_hidden, vision_intermediate: sizes of the vision tower; 0 without one.
        patches_of_a_token: how many patches of a picture one token stands for.
        positions: how many tokens the model can have; None where the config does not say.
        dtype: of the saved weights, as the config says.
        modules: names of all modules with weights.
    """

    parameters: int
    adapter: int
    trainable: int
    quantizable: int
    embeddings: int
    adapter_inputs: int
    head_trained: int
    largest_layer: int
    vision: int
    vision_trainable: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    kv_width: int
    vision_layers: int = 0
    vision_hidden: int = 0
    vision_intermediate: int = 0
    patches_of_a_token: int = 4
    positions: int | None = None
    dtype: str = "float32"
    modules: tuple[str, ...] = ()

    @property
    def bytes_of_dtype(self) -> int:
        """Of a saved weight."""
        return dtype_bytes(self.dtype)

    def frozen(self) -> Shape:
        """The same model when nothing of it is trained."""
        return replace(self, trainable=0, vision_trainable=0, head_trained=0)


def dtype_bytes(name: str) -> int:
    """Bytes of one number of a type such as `bfloat16`."""
    return {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}[name]


def empty_model(path: str, gguf_file: str | None = None, **kwargs: Any) -> Any:
    """A model of the class that it would be loaded as, on the meta device: shapes without weights.

    Args:
        path: a directory of a model or of an adapter, a hub id, or `smollm2`. Only its config is read.
        gguf_file: see `stepgrpo.modeling.load_model`.
        kwargs: for `AutoConfig.from_pretrained`, such as `revision`.

    Returns:
        The model; with its adapter around it for the directory of one.
    """
    import torch
    from transformers import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
    )

    from stepgrpo.modeling import is_adapter, load_config

    if is_adapter(path):
        from peft import PeftConfig, get_peft_model

        config = PeftConfig.from_pretrained(path)
        config.inference_mode = False
        return get_peft_model(empty_model(str(config.base_model_name_or_path), gguf_file, **kwargs), config)
    config = load_config(path, gguf_file, **kwargs)
    kind = (
        AutoModelForImageTextToText if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING else AutoModelForCausalLM
    )
    with torch.device("meta"):
        return kind.from_config(config)


def shape_of(model: Any) -> Shape:
    """Counts a model's weights and reads its sizes.

    Args:
        model: a transformers model, with or without adapters, on any device.
    """
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    config = base.config
    text, vision = config.get_text_config(), getattr(config, "vision_config", None)
    own: dict[str, nn.Parameter] = {}
    adapter: dict[str, nn.Parameter] = {}
    for name, weight in model.named_parameters():
        (adapter if _of_adapter(name) else own)[name] = weight
    head = base.get_output_embeddings()
    embedding = base.get_input_embeddings()
    embeddings = {
        id(weight): weight.numel() for part in (embedding, head) if part is not None for weight in part.parameters()
    }
    language = _language_model(base)
    inside = {id(weight) for part in (language, head) if part is not None for weight in part.parameters()}
    outside = [weight for weight in [*own.values(), *adapter.values()] if id(weight) not in inside]
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return Shape(
        parameters=_count(own.values()),
        adapter=_count(adapter.values()),
        trainable=_count(weight for weight in [*own.values(), *adapter.values()] if weight.requires_grad),
        quantizable=_quantizable(base),
        embeddings=sum(embeddings.values()),
        adapter_inputs=_adapter_inputs(language) // text.num_hidden_layers,
        head_trained=_count(weight for weight in head.parameters() if weight.requires_grad) if head is not None else 0,
        largest_layer=_largest_layer(language),
        vision=_count(weight for name, weight in own.items() if id(weight) not in inside),
        vision_trainable=_count(weight for weight in outside if weight.requires_grad),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=_first(text, "intermediate_size", "ffn_dim", "n_inner") or 4 * text.hidden_size,
        heads=text.num_attention_heads,
        vocabulary=text.vocab_size,
        kv_width=kv_heads * head_size,
        vision_layers=_first(vision, "depth", "num_hidden_layers") or 0,
        vision_hidden=_first(vision, "embed_dim", "hidden_size") or 0,
        vision_intermediate=_first(vision, "intermediate_size") or 0,
        patches_of_a_token=(_first(vision, "spatial_merge_size") or _first(config, "scale_factor") or 2) ** 2,
        positions=getattr(text, "max_position_embeddings", None),
        dtype=str(getattr(config, "dtype", None) or "float32").removeprefix("torch."),
        modules=tuple(
            name for name, module in model.named_modules() if name and any(True for _ in module.parameters())
        ),
    )


def _of_adapter(name: str) -> bool:
    return ".lora_" in name or ".modules_to_save." in name


def _count(weights: Any) -> int:
    return sum(weight.numel() for weight in weights)


def _first(config: Any, *names: str) -> int | None:
    return next((value for name in names if (value := getattr(config, name, None))), None)


def _language_model(base: Any) -> Any:
    """The part that reads tokens, with its embeddings: families name it differently."""
    return next(
        (
            part
            for name in ("language_model", "text_model")
            if (part := getattr(base.base_model, name, None)) is not None
        ),
        base.base_model,
    )


def _largest_layer(language: Any) -> int:
    lists: list[nn.ModuleList] = [part for part in language.modules() if isinstance(part, nn.ModuleList)]
    layers: Any = max(lists, key=lambda part: _count(part.parameters()), default=[])
    return max(
        (_count(weight for name, weight in layer.named_parameters() if not _of_adapter(name)) for layer in layers),
        default=0,
    )


def _adapter_inputs(language: Any) -> int:
    return sum(getattr(part, "in_features", 0) for part in language.modules() if hasattr(part, "lora_A"))


def _quantizable(base: Any) -> int:
    """As bitsandbytes' integration does: linear layers, without the head and modules whose weights are tied to others."""
    from transformers.quantizers.base import get_keys_to_not_convert

    kept = get_keys_to_not_convert(base)
    total = 0
    for name, module in base.named_modules():
        linear: Any = getattr(module, "base_layer", module)
        if (
            isinstance(linear, nn.Linear)
            and not name.endswith("base_layer")
            and not _is_kept(name, kept)
            and ".lora_" not in name
        ):
            total += linear.weight.numel()
    return total


def _is_kept(name: str, kept: list[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in kept)
