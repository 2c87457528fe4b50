"""Pictures of rows, and batches of a vision-language model of which some rows have pictures and some have none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from PIL import Image
from torch import nn

# What processors make of pictures, and models take.
_PICTURES = (
    "pixel_values",
    "pixel_attention_mask",
    "image_grid_thw",
    "image_sizes",
    "image_position_ids",
    "spatial_shapes",
)


def skip_absent_pictures(model: nn.Module) -> None:
    """Makes a model leave out its vision tower for a batch whose texts have no place for a picture.

    TRL cuts a batch of completions into smaller ones. One whose rows have no pictures is left with an empty tensor of them, or
    with padding in their place, on which models fail.

    Args:
        model: a model, also with adapters around it (PEFT). Without an `image_token_id` in its config it is left as it is.
    """
    token = getattr(getattr(model, "config", None), "image_token_id", None)
    if token is None:
        return

    def leave_out(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if kwargs.get("pixel_values") is None or kwargs.get("input_ids") is None:
            return None
        if (kwargs["input_ids"] == token).any():
            return None
        return args, {name: value for name, value in kwargs.items() if name not in _PICTURES}

    model.register_forward_pre_hook(leave_out, with_kwargs=True)


def padded_by_row(inputs: Mapping[str, Any]) -> bool:
    """Whether pictures come padded to as many in every row, as from Idefics and SmolVLM, and not one after the other.

    TRL goes by the count, and takes padded rows for single pictures if a batch has as many pictures as rows.
    """
    return inputs.get("pixel_attention_mask") is not None and inputs.get("spatial_shapes") is None


def row_pictures(row: Mapping[str, Any]) -> list[Any]:
    """The pictures of a row: its `images`, or its one `image`."""
    images = row.get("images")
    if images is None:
        return [] if row.get("image") is None else [row["image"]]
    return list(images)


def picture_key(image: Any) -> Any:
    """The same for pictures with the same pixels, or the same path."""
    if isinstance(image, Image.Image):
        return image.mode, image.size, hashlib.blake2b(image.tobytes()).digest()
    return image if isinstance(image, str) else id(image)
