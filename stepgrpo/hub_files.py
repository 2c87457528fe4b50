"""Which files of a trained model's folder are published, and what is cleaned in them."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepgrpo.report.private import Private, is_local, public_name

# What a model is loaded from. Everything else in the folder stays: training_args.bin pickles paths and tokens, optimizer
# states are larger than the model, logged completions hold the data.
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
_MODEL = (
    *WEIGHTS,
    "*.safetensors.index.json",
    "pytorch_model*.bin.index.json",
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "configuration_*.py",
    "modeling_*.py",
)
_PROCESSOR = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template.jinja",
    "chat_template.json",
    "*processor_config.json",
    "tokenization_*.py",
    "processing_*.py",
    "image_processing_*.py",
)
_FOLDERS = ("additional_chat_templates",)
MERGED = "merged"
CARD, RUN, FIGURES = "README.md", "run.yaml", "figures"
# Large, and of no path: tokens and their merges.
_NO_PATHS = ("tokenizer.json", "vocab.json", "added_tokens.json")


def model_files(folder: Path) -> dict[str, Path]:
    """The files of a folder that a model, its tokenizer or processor are loaded from, by their names in it."""
    found = _matching(folder, (*_MODEL, *_PROCESSOR))
    for name in _FOLDERS:
        inner = _matching(folder / name, ("*.jinja",))
        found.update({f"{name}/{key}": path for key, path in inner.items()})
    return found


def published_files(folder: Path, merged: bool = False) -> dict[str, Path]:
    """The files of a folder to publish, by their names in the repository.

    Args:
        folder: a trained model's, perhaps with a card, the run's YAML and figures.
        merged: whether to publish the merged model in its folder `merged` too.

    Raises:
        ValueError: if there are no weights.
    """
    files = model_files(folder)
    if not any(fnmatch.fnmatch(name, pattern) for name in files for pattern in WEIGHTS):
        raise ValueError(f"{str(folder)!r} has no weights to push: none of {', '.join(WEIGHTS)}.")
    if merged:
        files.update({f"{MERGED}/{name}": path for name, path in model_files(folder / MERGED).items()})
    files.update(_matching(folder, (CARD, RUN)))
    files.update({f"{FIGURES}/{name}": path for name, path in _matching(folder / FIGURES, ("*.png",)).items()})
    return dict(sorted(files.items()))


def cleaned(name: str, path: Path, private: Private, bases: Mapping[str, str] | None = None) -> bytes | None:
    """The bytes to publish in place of a file; `None` where the file can go as it is.

    Args:
        name: of the file in the repository.
        path: of the file.
        private: what must not be in it.
        bases: hub ids of local base models.
    """
    if not name.endswith(".json") or Path(name).name in _NO_PATHS:
        return None
    before = json.loads(path.read_text(encoding="utf-8"))
    after = _clean(before, private, bases or {}, "")
    return None if after == before else (json.dumps(after, indent=2, ensure_ascii=False) + "\n").encode()


def _matching(folder: Path, patterns: Iterable[str]) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    names = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    return {path.name: path for path in names if any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)}


def _clean(value: Any, private: Private, bases: Mapping[str, str], key: str) -> Any:
    if isinstance(value, dict):
        return {name: _clean(item, private, bases, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, private, bases, key) for item in value]
    if not isinstance(value, str):
        return value
    if key.endswith(("name_or_path", "_file", "_path")):
        return bases.get(value) or public_name(value)
    # Elsewhere a leading slash may be a token's, as in </s>; only what lies in a private folder is a path.
    text = Private(private.tokens, set(), private.folders).clean(value)
    return public_name(text) if text != value and is_local(text) else text
