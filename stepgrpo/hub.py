"""Pushing a trained model to the Hub: what can go wrong is found before training, and nothing private is pushed.

The push of transformers' trainer uploads the whole output directory, with the pickled arguments, which hold paths and the
token. Here only the files are pushed that a model is loaded from, cleaned, with a card, curves and the run's YAML. The recipes
take the Hub's settings away from their trainer and push themselves; `StepGRPOTrainer` pushes this way in a user's script.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from huggingface_hub import CommitInfo, HfApi
from transformers import TrainerCallback

from stepgrpo.hub_files import CARD, FIGURES, RUN, model_files, published_files
from stepgrpo.hub_repository import Repository, open_repository, push_files, refused
from stepgrpo.report.model_card import model_card
from stepgrpo.report.private import Private, is_local
from stepgrpo.report.run_card import base_of, draw_run, make_card
from stepgrpo.report.run_file import run_yaml
from stepgrpo.report.tables import metrics_table

logger = logging.getLogger(__name__)

STRATEGIES = ("end", "every_save")
IN_PYTHON = "given in Python"  # a data set without a spec


def check_hub(recipe_name: str, recipe: Any, args: Any, model_args: Any) -> HubRun | None:
    """To call on every process before a model is loaded: finds out whether the run can be pushed when it is done.

    Takes `push_to_hub` and `hub_token` away from `args`: what `HubRun` does, the trainer must not do as well.

    Args:
        recipe_name: `step_grpo` or `sft`.
        recipe, args, model_args: the arguments of the recipe, the trainer and the model.

    Returns:
        What pushes the run; `None` without `push_to_hub`.

    Raises:
        ValueError: on every process alike, if something of it cannot work.
    """
    if not args.push_to_hub:
        return None

    def start() -> HubRun:
        data = {"training": recipe.data, "evaluation": recipe.eval_data or recipe.data}
        metrics = read_metrics(recipe.model_card_metrics or [])
        model = model_args.model_name_or_path or ""
        run = _open_run(recipe_name, args, model, data, (recipe, args, model_args))
        run.metrics, run.merged = metrics, recipe.merge_adapter
        return run

    run = _on_main(start, args, recipe_name)
    args.push_to_hub, args.hub_token = False, None
    return run


def check_trainer(
    args: Any, model: str, token: str | None = None, revision: str | None = None, private: bool | None = None
) -> HubRun:
    """As `check_hub`, for a trainer that a user's script makes. Leaves `args` as it is.

    Args:
        args: the trainer's, a `StepGRPOConfig`.
        model: what is trained: a path or hub id.
        token, revision, private: in place of `args.hub_token`, `args.hub_revision` and `args.hub_private_repo`.

    Raises:
        ValueError: on every process alike, if something of it cannot work.
    """
    data = dict.fromkeys(("training", "evaluation"), IN_PYTHON)
    args = copy.copy(args)
    args.hub_token, args.hub_revision = token or args.hub_token, revision or args.hub_revision
    args.hub_private_repo = args.hub_private_repo if private is None else private
    return _on_main(lambda: _open_run(None, args, model, data, (args,)), args)


@dataclass
class HubRun:
    """Pushes a run: while it trains, with `hub_strategy: every_save`, and when it is done.

    Attributes:
        repository: where to; `None` on all processes but the main one.
        recipe: `step_grpo` or `sft`; `None` for a trainer of a user's script.
        model: what was trained on: a path or hub id.
        data: specs of the data sets for `training` and `evaluation`.
        strategy: one of `STRATEGIES`.
        always: whether a checkpoint is also pushed while the one before it still is.
        settings: the text of `run.yaml`.
        metrics: for the card, by its label what a `metrics.json` holds.
        private: what must not be pushed.
        merged: whether the merged adapter in the folder `merged` is pushed too.
    """

    repository: Repository | None
    recipe: str | None
    model: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    strategy: str = "end"
    always: bool = False
    settings: str = ""
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    private: Private = field(default_factory=Private, repr=False)
    merged: bool = False

    def __post_init__(self) -> None:
        self._base = base_of(self.model) if self.model else ("", None)
        self._pending: Future[Any] | None = None
        self._api = HfApi()  # runs pushes in the background, one after the other

    def attach(self, trainer: Any) -> None:
        """Has each saved checkpoint pushed in the background, if the strategy says so."""
        if self.repository is not None and self.strategy == "every_save":
            trainer.add_callback(_PushOnSave(self, trainer))

    def push(self, trainer: Any, message: str = "End of training") -> CommitInfo | None:
        """Pushes the saved model of a finished training.

        To call after `save_model` and after the last barrier: the main process pushes, and the others need not wait, as they
        would in vain where a large model takes longer than the process group's timeout.

        Args:
            trainer: the trainer.
            message: of the commit.

        Returns:
            What was committed; `None` on the other processes.

        Raises:
            ValueError: on the main process, if that fails. The saved model is as it was.
        """
        if self.repository is None:
            return None
        folder = Path(trainer.args.output_dir)
        try:
            if self._pending is not None:
                self._pending.exception()  # waits; what went wrong has been said
            self._write_texts(trainer, folder, self.merged, finished=True)
            commit = push_files(self.repository, folder, self.private, message, self.merged)
        except Exception as error:
            again = f"python -m stepgrpo.hub_push {folder} --hub_model_id {self.repository.id}"
            reason = refused("the push failed", error, self.repository.token)
            raise ValueError(f"{reason}. The model is saved in {folder}; push it by: {again}") from None
        print(f"Pushed to {commit.repo_url}.", flush=True)
        return commit

    def push_checkpoint(self, trainer: Any, checkpoint: Path) -> None:
        """Begins to push a checkpoint's model, without optimizer states. Never raises: training goes on."""
        if self.repository is None or self.strategy != "every_save":
            return
        if self._pending is not None and not self._pending.done() and not self.always:
            logger.warning("%s is not pushed: the push before it is still going on.", checkpoint.name)
            return
        folder = Path(trainer.args.output_dir)
        message = f"Training in progress, update {trainer.state.global_step}"
        try:
            # By other names for the same files: the checkpoint may be deleted while it is pushed.
            copy = Path(tempfile.mkdtemp(prefix=".push-", dir=folder))
            self._write_texts(trainer, copy, False, finished=False)
            for name, path in model_files(checkpoint).items():
                _link(path, copy / name)
            files = published_files(copy)
        except Exception as error:
            logger.warning(refused(f"{checkpoint.name} is not pushed", error, self.repository.token))
            return
        self._pending = self._api.run_as_future(push_files, self.repository, copy, self.private, message, False, files)
        self._pending.add_done_callback(lambda done: self._after(done, copy, checkpoint.name))

    def _after(self, done: Future[Any], copy: Path, name: str) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        if (error := done.exception()) is not None and self.repository is not None:
            logger.warning(refused(f"{name} was not pushed", error, self.repository.token))

    def _write_texts(self, trainer: Any, folder: Path, merged: bool, finished: bool) -> None:
        """Writes the card, the curves and the run's YAML."""
        assert self.repository is not None
        name = self.repository.id.split("/")[-1]
        card = make_card(trainer, self.recipe, name, self._base, self.data, self.metrics, merged, finished)
        card.figures = draw_run(card.log, folder / FIGURES)
        if card.adapter and finished and not merged and self._base[0] != self._base[1]:
            logger.warning(
                "The adapter's base is %r, which is not on the Hub: others cannot load it. Set merge_adapter: true to push "
                "the merged model too.",
                self._base[0],
            )
        text = self.private.clean(model_card(card), keep=[card.base_id, card.base, *card.datasets])
        (folder / CARD).write_text(text, encoding="utf-8")
        (folder / RUN).write_text(self.settings, encoding="utf-8")


class _PushOnSave(TrainerCallback):
    def __init__(self, run: HubRun, trainer: Any) -> None:
        self._run, self._trainer = run, trainer

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._run.push_checkpoint(self._trainer, Path(args.output_dir) / f"checkpoint-{state.global_step}")


def read_metrics(files: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Reads `metrics.json` files of `stepgrpo evaluate` for a card.

    Args:
        files: paths, each perhaps with a label in front, `before=out/metrics.json`; the folder's name where there is none.

    Raises:
        ValueError: if one is none. Names it.
    """
    metrics = {}
    for given in files:
        label, _, file = given.rpartition("=")
        path = Path(file)
        try:
            metrics[label or path.resolve().parent.name] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"model_card_metrics: {file!r} cannot be read: {error}") from None
    if metrics:
        try:
            metrics_table(metrics)
        except (ValueError, AttributeError) as error:
            raise ValueError(f"model_card_metrics: {error}") from None
    return metrics


def _open_run(recipe: str | None, args: Any, model: str, data: Mapping[str, str], parts: Sequence[Any]) -> HubRun:
    strategy = str(getattr(args.hub_strategy, "value", args.hub_strategy))
    if strategy not in STRATEGIES:
        raise ValueError(
            f"hub_strategy={strategy!r} pushes optimizer states and pickled arguments, which hold local paths. Choose one "
            f"of: {', '.join(STRATEGIES)}."
        )
    name = args.hub_model_id or Path(args.output_dir).absolute().name
    repository = open_repository(name, args.hub_token, args.hub_private_repo, args.hub_revision)
    private = Private.of_this_machine(
        [repository.token], [repository.user], [args.output_dir, *([model] if is_local(model) else [])]
    )
    settings = run_yaml(parts, recipe, private)
    return HubRun(repository, recipe, model, data, strategy, args.hub_always_push, settings, private=private)


def _on_main(start: Callable[[], HubRun], args: Any, recipe: str | None = None) -> HubRun:
    """Calls a function on the main process; what it raises, every process raises."""
    _ = args.device  # the process group, which the state below would set up otherwise than the trainer
    run, problem = HubRun(None, recipe), None
    if PartialState().is_main_process:
        try:
            run = start()
        except Exception as error:
            problem = str(error) if isinstance(error, ValueError) else f"push_to_hub: {type(error).__name__}: {error}"
    _agree(problem)
    return run


def _agree(problem: str | None) -> None:
    """Raises the main process's problem on every process: one that stops alone leaves the others waiting."""
    verdict = [problem]
    broadcast_object_list(verdict)
    if verdict[0] is not None:
        raise ValueError(verdict[0])


def _link(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)
