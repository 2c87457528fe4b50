"""Finds and opens the pictures that rows name."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from stepgrpo.data.report import Unfit


def find_pictures(values: Iterable[Any], folders: Sequence[Path]) -> list[str | Image.Image]:
    """The pictures of a row, each as an absolute path or, where it is no file, as a PIL picture.

    Args:
        values: paths (with or without `file://`), `data:` URLs, bytes, `{"bytes", "path"}` mappings as in Parquet files, or
            PIL pictures.
        folders: where relative paths may start, the first that has the file.

    Raises:
        Unfit: for a picture that is not there or cannot be opened; only the headers are read.
    """
    return [_find(value, folders) for value in values]


def _find(value: Any, folders: Sequence[Path]) -> str | Image.Image:
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, (bytes, bytearray)):
        return _opened(BytesIO(value), f"{len(value)} bytes")
    if not isinstance(value, (str, Path)) or not str(value):
        raise Unfit("a picture that is neither a path nor bytes", f"{type(value).__name__}")
    text = str(value)
    if text.startswith("data:"):
        try:
            return _opened(BytesIO(base64.b64decode(text.partition(",")[2])), text[:30])
        except ValueError:
            raise Unfit("a picture that cannot be opened", text[:30]) from None
    if text.startswith(("http://", "https://")):
        raise Unfit("a picture on the web; download it first", text)
    path = Path(text.removeprefix("file://"))
    for folder in folders:
        file = folder / path  # an absolute path stays what it is
        if file.is_file():
            _opened(file, str(path)).close()
            return str(file.absolute())
    raise Unfit("a picture that is not there", str(path))


def _opened(file: BytesIO | Path, name: str) -> Image.Image:
    try:
        return Image.open(file)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # Pillow's readers raise each of them
        raise Unfit("a picture that cannot be opened", name) from None
