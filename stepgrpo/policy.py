"""The model that a recipe trains: a whole model, one with a new LoRA adapter, or an adapter that is trained further."""

from __future__ import annotations

import re
from typing import Any

from trl import ModelConfig, get_peft_config, get_quantization_config

from stepgrpo.modeling import is_adapter, load_model, load_processing_class, needs_own_loading
from stepgrpo.recipe import RecipeArguments

_NAME = re.compile(r"\w+(\.\w+)*")


def policy_arguments(recipe: RecipeArguments, args: Any, model_args: ModelConfig, model: Any = None) -> dict[str, Any]:
    """The trainer's arguments `model`, `processing_class`, `peft_config` and `quantization_config`.

    Args:
        recipe, model_args: which model, and how.
        args: the trainer's config. Its `model_init_kwargs` are set where the trainer loads the model.
        model: the model of `model_args`, if it is loaded already.

    Raises:
        ValueError: if no model is named, or the fields contradict each other.
    """
    path = model_args.model_name_or_path
    if not path:
        raise ValueError("model_name_or_path is not set: a directory, a hub id, or smollm2.")
    adapter = is_adapter(path) or hasattr(model, "peft_config")
    check_adapter_fields(recipe, model_args, adapter)
    options: dict[str, Any] = (
        {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    )
    peft_config, quantization = lora_config(model_args), get_quantization_config(model_args)
    if model is None and not needs_own_loading(path, recipe.gguf_file):
        # TRL's own way also knows vision-language models and their processors.
        given = {"revision": model_args.model_revision, "dtype": model_args.dtype, **options}
        args.model_init_kwargs = {**given, **(args.model_init_kwargs or {})}
        arguments = {"model": path, "peft_config": peft_config, "quantization_config": quantization}
        if recipe.max_pixels is not None:
            arguments["processing_class"] = policy_processing_class(recipe, model_args)
        return arguments
    if model is None:
        if quantization is not None:
            options["quantization_config"] = quantization
        model = load_model(path, recipe.gguf_file, model_args.dtype or "auto", trainable=True, **options)
        if adapter and _zero_stage(args) == 3 and quantization is None:
            # As TRL does for a new adapter: ZeRO-3 gathers weights of one type only (trl#6089).
            for weight in model.parameters():
                if weight.requires_grad:
                    weight.data = weight.data.to(model.dtype)
    return {
        "model": model,
        "processing_class": policy_processing_class(recipe, model_args),
        # Training goes on with the adapter that is there.
        "peft_config": None if hasattr(model, "peft_config") else peft_config,
    }


def policy_processing_class(recipe: RecipeArguments, model_args: ModelConfig) -> Any:
    """The tokenizer or processor of the policy, which pads on the left and limits pictures to `max_pixels`.

    Raises:
        ValueError: if `max_pixels` is set, and the model sees nothing, has a processor without that limit, or needs more.
    """
    path = str(model_args.model_name_or_path)
    limit = recipe.max_pixels
    options: dict[str, Any] = {} if limit is None else {"max_pixels": limit}
    if model_args.model_revision != "main":
        options["revision"] = model_args.model_revision
    loaded = load_processing_class(path, recipe.gguf_file, padding_side="left", **options)
    if limit is not None:
        pictures = getattr(loaded, "image_processor", None)
        size = dict(getattr(pictures, "size", None) or {})
        if size.get("longest_edge") != limit or "shortest_edge" not in size:
            what = (
                f"{type(loaded).__name__} sees no pictures"
                if pictures is None
                else f"{type(pictures).__name__} has none"
            )
            raise ValueError(
                f"max_pixels={limit}: {what}. It is for processors such as Qwen's; for others set the size in the processor "
                "that is saved with the model."
            )
        if limit < size["shortest_edge"]:
            raise ValueError(
                f"max_pixels={limit} is less than the {size['shortest_edge']} that {type(pictures).__name__} scales to."
            )
    return loaded


def lora_config(model_args: ModelConfig) -> Any:
    """The LoRA configuration of `lora_*` fields; None without `use_peft`.

    TRL makes one `lora_target_modules` a text, which PEFT reads as a regular expression of the whole dotted name. One that is
    a plain name is a list of one again here; an expression such as `.*language_model.*_proj` and `all-linear` stay.
    """
    config = get_peft_config(model_args)
    targets = model_args.lora_target_modules
    if config is not None and isinstance(targets, str) and _NAME.fullmatch(targets):
        config.target_modules = {targets}
    return config


def check_adapter_fields(recipe: RecipeArguments, model_args: ModelConfig, adapter: bool) -> None:
    """Refuses fields that need an adapter where there is none.

    Args:
        recipe, model_args: the fields.
        adapter: whether the model comes with an adapter.

    Raises:
        ValueError: if there is none and it is needed, which says by which field.
    """
    if model_args.load_in_4bit or model_args.load_in_8bit:
        name = "load_in_4bit" if model_args.load_in_4bit else "load_in_8bit"
        if not (adapter or model_args.use_peft):
            raise ValueError(
                f"{name} is set: quantized weights cannot be trained. Train an adapter on them: use_peft: true."
            )
        if recipe.gguf_file or model_args.model_name_or_path == "smollm2":
            raise ValueError(f"{name} is set, but weights of a GGUF file are not quantized again. Leave out {name}.")
    if recipe.merge_adapter and not (adapter or model_args.use_peft):
        raise ValueError(
            "merge_adapter is set, but there is no adapter to merge. Set use_peft: true, or leave it out."
        )


def _zero_stage(args: Any) -> int:
    plugin = getattr(args, "deepspeed_plugin", None)
    return 0 if plugin is None else plugin.zero_stage
