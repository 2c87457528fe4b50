"""What the recipes for training have in common: from arguments to a trained and saved model."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import ModelConfig, SFTConfig, SFTTrainer

from stepgrpo.config import StepGRPOConfig
from stepgrpo.data.answers import with_completions
from stepgrpo.data.dataset import to_dataset
from stepgrpo.data.sources import ALFRED_NAMES, WORLDS, read_rows
from stepgrpo.export import MERGED, merge_adapter, merged_dtype
from stepgrpo.freeze import freeze_modules
from stepgrpo.hub import HubRun, check_hub
from stepgrpo.modeling import check_chat_template
from stepgrpo.policy import policy_arguments, policy_processing_class
from stepgrpo.recipe import RecipeArguments
from stepgrpo.resume import find_checkpoint
from stepgrpo.rewards.registry import load_rewards
from stepgrpo.trainer import StepGRPOTrainer

logger = logging.getLogger(__name__)


def check_processes(args: Any) -> None:
    """Refuses to train alone what several processes were started for.

    Args:
        args: the trainer's config.

    Raises:
        ValueError: if the launcher started more processes than this one knows of: each would train by itself and they would
            overwrite each other's files.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and args.world_size == 1:
        raise ValueError(
            f"{started} processes were started, but this one knows of no other. On CPUs set use_cpu: true; on GPUs start them "
            "with a configuration that says so, such as accelerate_configs/ddp.yaml."
        )


def train_sft(recipe: RecipeArguments, args: SFTConfig, model_args: ModelConfig, model: Any = None) -> SFTTrainer:
    """Supervised training on the ground-truth plans; saves the model and returns the trainer.

    Args:
        recipe, args, model_args: what to do.
        model: the model of `model_args`, if it is loaded already.

    Raises:
        ValueError: if the data, or a checkpoint to resume from, cannot be read, or fields contradict each other.
    """
    check_processes(args)
    checkpoint = find_checkpoint(args.resume_from_checkpoint, str(args.output_dir))
    hub = check_hub("sft", recipe, args, model_args)
    train, evaluation = _datasets(recipe, args, completions=True)
    given = policy_arguments(recipe, args, model_args, model)
    if not args.chat_template_path:
        # The trainer writes the conversations while it is made.
        processing_class = given.get("processing_class") or policy_processing_class(recipe, model_args)
        check_chat_template(processing_class, train[0]["prompt"], model_args.model_name_or_path)
    trainer = SFTTrainer(args=args, train_dataset=train, eval_dataset=evaluation, **given)
    _freeze(trainer, recipe)
    return _run(trainer, recipe, model_args, checkpoint, hub)


def train_step_grpo(
    recipe: RecipeArguments, args: StepGRPOConfig, model_args: ModelConfig, model: Any = None
) -> StepGRPOTrainer:
    """Step-level GRPO (plain GRPO with `step_advantage_w=0`); saves the model and returns the trainer.

    Args:
        recipe, args, model_args: what to do.
        model: the model of `model_args`, if it is loaded already.

    Raises:
        ValueError: if the data, a reward function, or a checkpoint to resume from cannot be read, or fields contradict each
            other.
    """
    check_processes(args)
    checkpoint = find_checkpoint(args.resume_from_checkpoint, str(args.output_dir))
    hub = check_hub("step_grpo", recipe, args, model_args)
    names = recipe.reward_funcs or ["household" if recipe.data in WORLDS else "exact_match"]
    rewards = load_rewards(names, recipe, args.step_plan_key, args.step_on_error)
    train, evaluation = _datasets(recipe, args, completions=False)
    given = policy_arguments(recipe, args, model_args, model)
    trainer = StepGRPOTrainer(reward_funcs=rewards, args=args, train_dataset=train, eval_dataset=evaluation, **given)
    check_chat_template(trainer.processing_class, train[0]["prompt"], model_args.model_name_or_path)
    if "images" in train.column_names and not hasattr(trainer.processing_class, "image_processor"):
        raise ValueError(
            f"{recipe.data} has pictures, and {model_args.model_name_or_path} is no vision-language model. Set "
            "use_images: false to train without them."
        )
    _freeze(trainer, recipe)
    return _run(trainer, recipe, model_args, checkpoint, hub)


def _freeze(trainer: Any, recipe: RecipeArguments) -> None:
    """Freezes what is asked for: after the trainer has put adapters in, before it makes the optimizer."""
    if recipe.freeze_modules:
        frozen = freeze_modules(trainer.model, recipe.freeze_modules)
        trainer.accelerator.print(f"Not trained: {', '.join(frozen)}.")


def _run(
    trainer: Any, recipe: RecipeArguments, model_args: ModelConfig, checkpoint: str | None, hub: HubRun | None
) -> Any:
    if hub is not None:
        hub.attach(trainer)
    trainer.train(resume_from_checkpoint=checkpoint)
    out = Path(trainer.args.output_dir)
    trainer.save_model(str(out))
    if trainer.accelerator.is_main_process:
        print(f"Saved in {out}.", flush=True)
        if recipe.merge_adapter:
            merge_adapter(out, out / MERGED, trainer.processing_class, merged_dtype(model_args), recipe.gguf_file)
            print(f"Merged in {out / MERGED}.")
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
    rows, report = read_rows(data, split, n, recipe.rows_seed, max_steps, images=recipe.use_images)
    if completions:
        rows = with_completions(rows, report, action_ids=not data.startswith(ALFRED_NAMES))
    logger.info("%s, %s: %s", data, split, report)
    return to_dataset(rows)
