"""The settings of a run as YAML that another machine can train with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import yaml

from stepgrpo.report.private import Private, is_hub_id, public_name

# Of one machine, one person or one moment; or set by the trainer's configuration from other fields.
_LEFT_OUT = {
    "accelerator_config",
    "activation_checkpointing",
    "dataloader_pin_memory",
    "debug",
    "disable_tqdm",
    "do_eval",
    "do_predict",
    "do_train",
    "generation_batch_size",
    "hub_always_push",
    "hub_model_id",
    "hub_private_repo",
    "hub_revision",
    "hub_strategy",
    "hub_token",
    "local_rank",
    "log_level",
    "log_level_replica",
    "logging_dir",
    "model_card_metrics",
    "project",
    "push_to_hub",
    "report_to",
    "resume_from_checkpoint",
    "trackio_bucket_id",
    "trackio_space_id",
    "trackio_static_space_id",
    "use_cpu",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
}
_ALWAYS = ("model_name_or_path", "output_dir", "data")
_HEAD = """\
# The settings of this run that are not defaults. Local paths are reduced to their last name: set them to yours.
# stepgrpo train --recipe {recipe} --config run.yaml
"""
_HEAD_IN_PYTHON = """\
# The fields of this run's StepGRPOConfig that are not defaults. Local paths are reduced to their last name.
"""


def run_settings(parts: Sequence[Any], private: Private) -> tuple[dict[str, Any], list[str]]:
    """The fields of dataclasses that differ from their defaults.

    Args:
        parts: the arguments of the recipe, the trainer and the model.
        private: what must not be in it.

    Returns:
        The fields, with local paths reduced to their last name, and the names of those left out for what they hold.
    """
    settings: dict[str, Any] = {}
    omitted = []
    for part in parts:
        for item in dataclasses.fields(part):
            if not item.init or item.name in _LEFT_OUT:
                continue
            value, default = _plain(getattr(part, item.name)), _plain(_default(item))
            if item.name not in _ALWAYS and value == default:
                continue
            value = _public(value)
            if item.name == "output_dir":
                value = str(value).replace("\\", "/").rstrip("/").split("/")[-1]
            if _tells(value, private):
                omitted.append(item.name)
            else:
                settings[item.name] = value
    return settings, omitted


def run_yaml(parts: Sequence[Any], recipe: str | None, private: Private) -> str:
    """The text of `run.yaml`; see `run_settings`.

    Args:
        parts, private: as for `run_settings`.
        recipe: its name, for the command in the first lines; `None` for a user's script.
    """
    settings, omitted = run_settings(parts, private)
    head = _HEAD.format(recipe=recipe) if recipe else _HEAD_IN_PYTHON
    if omitted:
        head += f"# Left out, because they name a user or a machine: {', '.join(omitted)}.\n"
    return head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=110)


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return None if item.default is dataclasses.MISSING else item.default


def _plain(value: Any) -> Any:
    """A value of what YAML has."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value).removeprefix("torch.")


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _public(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_public(item) for item in value]
    return public_name(value) if isinstance(value, str) else value


def _tells(value: Any, private: Private) -> bool:
    if isinstance(value, dict):
        return any(_tells(item, private) for item in value.values())
    if isinstance(value, list):
        return any(_tells(item, private) for item in value)
    if not isinstance(value, str):
        return False
    # A model or data set of the Hub is found by its namespace, even if that is a user's name.
    return Private(private.tokens).found_in(value) if is_hub_id(value) else private.found_in(value)
