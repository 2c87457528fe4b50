"""The model of a run: that it can be read, what would be trained of it, and its sizes."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepgrpo.doctor.findings import Report, describe
from stepgrpo.doctor.parsing import Run
from stepgrpo.doctor.shape import Shape, empty_model, shape_of

_ASKED: dict[str, Unreachable] = {}


class Unreachable(OSError):
    """A model of the hub that is not in the cache, while the hub cannot be reached."""


@contextlib.contextmanager
def reached(name: str) -> Iterator[None]:
    """Around calls that read a model's files.

    Args:
        name: a directory or a hub id.

    Raises:
        Unreachable: where the name may be one of the hub's, and the hub could not be asked.
        FileNotFoundError: where it is neither a directory nor a name of the hub.
    """
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils import validate_repo_id

    if name in _ASKED:
        raise _ASKED[name]  # the client's attempts take half a minute
    try:
        yield
    except OSError as error:
        if Path(name).exists():
            raise
        try:
            validate_repo_id(name)
        except HFValidationError:
            raise FileNotFoundError(f"{name!r} is no directory here, and no name the hub could have") from error
        if isinstance(error.__cause__, RepositoryNotFoundError) or "valid model identifier" in str(error):
            raise FileNotFoundError(f"{name!r} is no directory here, and the hub does not show it to you") from error
        _ASKED[name] = Unreachable(
            f"{name!r} is no directory here, and the hub cannot be reached; is it what a run before this one writes?"
        )
        raise _ASKED[name] from error


def check_model(report: Report, run: Run) -> None:
    """Makes the run's model without weights, adds its sizes, its adapters and what is frozen.

    Args:
        report: where to.
        run: gets its `shape` and its `processing_class`, where they can be had.
    """
    from stepgrpo.modeling import is_adapter
    from stepgrpo.policy import check_adapter_fields

    recipe, model_args = run.recipe, run.model_args
    path = model_args.model_name_or_path
    if not path:
        report.fail("model", "model_name_or_path is not set", "a directory, a hub id, or smollm2")
        return
    options = {"trust_remote_code": True} if getattr(run.args, "trust_remote_code", False) else {}
    if model_args.model_revision != "main":
        options["revision"] = model_args.model_revision
    model = _empty(report, "model", path, recipe.gguf_file, options)
    if model is None:
        return
    with report.guard("adapter fields"):
        check_adapter_fields(recipe, model_args, is_adapter(path))
    model = _with_adapter(report, run, model)
    if recipe.freeze_modules:
        _freeze(report, recipe.freeze_modules, model)
    shape = run.shape = shape_of(model)
    seen = f", {_millions(shape.vision)} of them for pictures" if shape.vision else ""
    kind = type(model.get_base_model() if hasattr(model, "peft_config") else model).__name__
    report.ok("model", f"{path}: {kind}, {shape.parameters:,} parameters{seen}")
    if not run.adapter_failed:
        said = f"{shape.trainable:,} ({shape.trainable / (shape.parameters + shape.adapter):.2%})"
        if shape.adapter and shape.vision_trainable:
            said += f", {_millions(shape.vision_trainable)} of them outside the language model"
        report.ok("trained", said)
    _processing_class(report, run)
    pictures = any(row.get("images") for row in run.rows)
    if pictures and not shape.vision_layers:
        report.fail("pictures", f"the rows have some, and {path} is no vision-language model", "choose one that is")


def frozen_shape(report: Report, check: str, path: str) -> Shape | None:
    """The sizes of a model that only scores; None, with a finding, where it cannot be read."""
    model = _empty(report, check, path, None, {})
    return None if model is None else shape_of(model).frozen()


def _empty(report: Report, check: str, path: str, gguf_file: str | None, options: dict[str, Any]) -> Any:
    try:
        with reached(path), _quiet():
            return empty_model(path, gguf_file, **options)
    except Unreachable as error:
        report.warn(check, str(error), "its memory and its tokens were not checked; run this where it is")
    except Exception as error:
        report.fail(check, f"{path!r} cannot be read: {describe(error)}")
    return None


def _with_adapter(report: Report, run: Run, model: Any) -> Any:
    from stepgrpo.policy import lora_config

    if hasattr(model, "peft_config"):
        if run.model_args.use_peft:
            report.ok("adapter", "the model is one; it is trained on, and lora_* fields are not used")
        return model
    if not run.model_args.use_peft:
        return model
    from peft import get_peft_model

    config = lora_config(run.model_args)
    try:
        with _quiet():
            adapted = get_peft_model(model, config)
    except ValueError as error:
        given = f"lora_target_modules={run.model_args.lora_target_modules!r}"
        report.fail(
            "adapter", f"{given}: {describe(error)}", "name modules of the model, such as q_proj, or all-linear"
        )
        run.adapter_failed = True
        return model
    names = sorted({name.rpartition(".")[2] for name in adapted.targeted_module_names})
    report.ok("adapter", f"rank {config.r} on {len(adapted.targeted_module_names)} modules: {', '.join(names)}")
    return adapted


def _freeze(report: Report, names: list[str], model: Any) -> None:
    from stepgrpo.freeze import freeze_modules

    try:
        report.ok("freeze_modules", ", ".join(freeze_modules(model, names)))
    except ValueError as error:
        report.fail("freeze_modules", str(error))


def _processing_class(report: Report, run: Run) -> None:
    from stepgrpo.policy import policy_processing_class

    path = run.model_args.model_name_or_path
    try:
        with reached(path), _quiet():
            run.processing_class = policy_processing_class(run.recipe, run.model_args)
    except Unreachable as error:
        report.warn("tokenizer", str(error), "tokens were not checked")
    except Exception as error:
        report.fail("tokenizer", describe(error), "save the tokenizer, or processor, with the model")
    else:
        _vocabulary(report, run)


def _vocabulary(report: Report, run: Run) -> None:
    """Where its files are missing, some tokenizers load all the same, with no vocabulary."""
    ids = run.tokenizer("find", add_special_tokens=False)["input_ids"]
    if not ids or set(ids) <= {run.tokenizer.unk_token_id}:
        report.fail("tokenizer", "it makes nothing of the word 'find'", "save the tokenizer with the model")
        run.processing_class = None
    elif len(run.tokenizer) > run.shape.vocabulary:
        report.fail(
            "tokenizer",
            f"it has {len(run.tokenizer)} tokens, and the model {run.shape.vocabulary}",
            "take the model's own tokenizer",
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what libraries say about models that have no weights yet."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _millions(count: int) -> str:
    return f"{count / 1e6:,.0f} million"
