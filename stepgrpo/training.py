"""What the recipes for training have in common: from arguments to a trained and saved model."""

from __future__ import annotations

import logging
from typing import Any

from datasets import Dataset
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config, get_quantization_config

from stepgrpo.config import StepGRPOConfig
from stepgrpo.data.answers import with_completions
from stepgrpo.data.dataset import to_dataset
from stepgrpo.data.sources import ALFRED_NAMES, WORLDS, read_rows
from stepgrpo.freeze import freeze_modules
from stepgrpo.hub import HubRun, check_hub
from stepgrpo.modeling import load_model, load_processing_class, needs_own_loading
from stepgrpo.recipe import RecipeArguments
from stepgrpo.rewards.registry import load_rewards
from stepgrpo.trainer import StepGRPOTrainer

logger = logging.getLogger(__name__)


def train_sft(recipe: RecipeArguments, args: SFTConfig, model_args: ModelConfig, model: Any = None) -> SFTTrainer:
    """Supervised training on the ground-truth plans; saves the model and returns the trainer.

    Args:
        recipe, args, model_args: what to do.
        model: the model of `model_args`, if it is loaded already.

    Raises:
        ValueError: if the data cannot be read.
    """
    hub = check_hub("sft", recipe, args, model_args)
    train, evaluation = _datasets(recipe, args, completions=True)
    trainer = SFTTrainer(
        args=args, train_dataset=train, eval_dataset=evaluation, **_model(recipe, args, model_args, model)
    )
    _freeze(trainer, recipe)
    return _run(trainer, hub)


def train_step_grpo(
    recipe: RecipeArguments, args: StepGRPOConfig, model_args: ModelConfig, model: Any = None
) -> StepGRPOTrainer:
    """Step-level GRPO (plain GRPO with `step_advantage_w=0`); saves the model and returns the trainer.

    Args:
        recipe, args, model_args: what to do.
        model: the model of `model_args`, if it is loaded already.

    Raises:
        ValueError: if the data or a reward function cannot be read.
    """
    hub = check_hub("step_grpo", recipe, args, model_args)
    names = recipe.reward_funcs or ["household" if recipe.data in WORLDS else "exact_match"]
    rewards = load_rewards(names, recipe, args.step_plan_key, args.step_on_error)
    train, evaluation = _datasets(recipe, args, completions=False)
    given = _model(recipe, args, model_args, model)
    trainer = StepGRPOTrainer(reward_funcs=rewards, args=args, train_dataset=train, eval_dataset=evaluation, **given)
    _freeze(trainer, recipe)
    return _run(trainer, hub)


def _freeze(trainer: Any, recipe: RecipeArguments) -> None:
    """Freezes what is asked for: after the trainer has put adapters in, before it makes the optimizer."""
    if recipe.freeze_modules:
        frozen = freeze_modules(trainer.model, recipe.freeze_modules)
        trainer.accelerator.print(f"Not trained: {', '.join(frozen)}.")


def _run(trainer: Any, hub: HubRun | None) -> Any:
    if hub is not None:
        hub.attach(trainer)
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    trainer.save_model(trainer.args.output_dir)
    trainer.accelerator.print(f"Saved in {trainer.args.output_dir}.")
    trainer.accelerator.wait_for_everyone()  # a rank that leaves early takes the others' process group with it
    trainer.accelerator.end_training()
    if hub is not None:
        hub.push(trainer)
    return trainer


def _datasets(recipe: RecipeArguments, args: Any, completions: bool) -> tuple[Dataset, Dataset | None]:
    train = _dataset(recipe, recipe.data, recipe.train_split, recipe.train_n, completions, recipe.max_plan_steps)
    if str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "no":
        return train, None
    data = recipe.eval_data or recipe.data
    return train, _dataset(recipe, data, recipe.eval_split, recipe.eval_n, completions, None)


def _dataset(
    recipe: RecipeArguments, data: str, split: str, n: int | None, completions: bool, max_steps: int | None
) -> Dataset:
    rows, report = read_rows(data, split, n, recipe.rows_seed, max_steps)
    if completions:
        rows = with_completions(rows, report, action_ids=not data.startswith(ALFRED_NAMES))
    logger.info("%s, %s: %s", data, split, report)
    return to_dataset(rows)


def _model(recipe: RecipeArguments, args: Any, model_args: ModelConfig, model: Any) -> dict[str, Any]:
    """The trainer's arguments `model`, `processing_class`, `peft_config` and `quantization_config`."""
    path = model_args.model_name_or_path
    if not path:
        raise ValueError("model_name_or_path is not set: a directory, a hub id, or smollm2.")
    options = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    peft_config = get_peft_config(model_args)
    if model is None and not needs_own_loading(path, recipe.gguf_file):
        # TRL's own way also knows vision-language models and their processors.
        given = {"revision": model_args.model_revision, "dtype": model_args.dtype, **options}
        args.model_init_kwargs = {**given, **(args.model_init_kwargs or {})}
        quantization = get_quantization_config(model_args)
        return {"model": path, "peft_config": peft_config, "quantization_config": quantization}
    if model is None:
        model = load_model(path, recipe.gguf_file, model_args.dtype or "auto", trainable=True, **options)
    return {
        "model": model,
        "processing_class": load_processing_class(path, recipe.gguf_file, padding_side="left"),
        # Training goes on with the adapter that is there.
        "peft_config": None if hasattr(model, "peft_config") else peft_config,
    }
