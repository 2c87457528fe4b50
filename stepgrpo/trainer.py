"""The trainer: TRL's GRPO with a step-level term. The only file that touches TRL's private surface."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from stepgrpo.config import StepGRPOConfig, load_signal
from stepgrpo.credit import prefix_states, score_table, spread_on_tokens, step_advantages
from stepgrpo.data.columns import check_ground_truth
from stepgrpo.hub import check_trainer
from stepgrpo.monitor import StepMonitor, batch_statistics
from stepgrpo.resume import load_rollouts, save_rollouts, skip_epochs
from stepgrpo.rollout import Rollout
from stepgrpo.segment.plan import step_keys
from stepgrpo.segment.segmenter import plan_rollout
from stepgrpo.signal import Scores, Signal, score_rollouts
from stepgrpo.signal.returns import return_signal
from stepgrpo.signal.rule import RuleSignal, ground_truth_fields
from stepgrpo.signal.teacher import make_forward_proxy
from stepgrpo.vision import padded_by_row, skip_absent_pictures

logger = logging.getLogger(__name__)

PROMPT_END = 8  # tokens of a prompt that show whether it ends inside a reasoning block


class StepGRPOTrainer(GRPOTrainer):
    """
    Trainer for Group Relative Policy Optimization (GRPO) with step-level credit.

    Adds to every token of a plan's step how good that step is, `A_token = A^E + ω · A^S(step of the token)`, where
    `A^E` is GRPO's own advantage of the completion. Generation, rewards, loss and weight updates are TRL's. Takes the
    arguments of [`trl.GRPOTrainer`], with a [`StepGRPOConfig`] as `args`.

    Raises:
        TypeError: if `args` is not a [`StepGRPOConfig`].
        ValueError: if the step signal needs a ground truth and the data sets have no column with one, or none that
            can be read.
    """

    _tag_names = ["trl", "grpo", "stepgrpo"]  # noqa: RUF012
    _name = "GRPO"  # whose paper the model card cites; the tags name this trainer
    args: StepGRPOConfig
    _buffered_inputs: Any
    _prompt_sampler: Any = None  # of the training data; None for a stream

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: StepGRPOConfig | None = None,
        train_dataset=None,
        eval_dataset=None,
        *rest,
        **kwargs,
    ):
        if args is None:
            args = StepGRPOConfig(f"{_name_of(model).split('/')[-1]}-StepGRPO")
        if not isinstance(args, StepGRPOConfig):
            raise TypeError(f"`args` must be a StepGRPOConfig, got {type(args).__name__}.")
        fields = ground_truth_fields(args.step_gt_field)
        by_teacher = args.step_advantage_w != 0.0 and args.step_reward_kind == "forward_proxy"
        if by_teacher or (args.step_advantage_w != 0.0 and args.step_reward_kind == "rule"):
            compared = args.step_match_key if args.step_reward_kind == "rule" else None
            for name, dataset in (("train_dataset", train_dataset), ("eval_dataset", eval_dataset)):
                check_ground_truth(dataset, fields, name, compared, args.step_reward_kind)
        self._step_signal = _make_signal(args)
        self._step_monitor = StepMonitor(judges_steps=args.step_reward_kind != "return")
        self._trajectory_rewards: Tensor | None = None
        # Before the model loads: what would stop the push is found now.
        self._hub_run = check_trainer(args, _name_of(model)) if args.push_to_hub else None
        super().__init__(model, reward_funcs, args, train_dataset, eval_dataset, *rest, **kwargs)
        if self._is_vlm:
            self._tokenizer.padding_side = "left"  # the processor pads prompts by it, and TRL expects them so
            generation = getattr(self, "generation_config", None)  # not with vLLM
            if generation is not None and generation.suppress_tokens is None:
                # TRL before 1.15: a token that stands for a picture would stop the next forward.
                picture = getattr(self.accelerator.unwrap_model(self.model).config, "image_token_id", None)
                generation.suppress_tokens = None if picture is None else [picture]
        for model in (self.model, self.ref_model):
            if model is not None:
                skip_absent_pictures(self.accelerator.unwrap_model(model))
        for reward_func in self.reward_funcs:
            # A reward function that holds a frozen model of its own, such as `VerifyReward`.
            if hasattr(reward_func, "prepare") and not isinstance(reward_func, torch.nn.Module):
                reward_func.prepare(self.accelerator)
        if by_teacher:
            # Not before: the teacher is put on the accelerator of a trainer, and its tokenizer compared with the policy's.
            self._step_signal = make_forward_proxy(self, train_dataset, fields)

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ):
        """As in transformers, but pushes only what a model is loaded from, with stepgrpo's card, and nothing private.

        Always waits until it is done; the card's name, tags and data set are its own. See docs/hub.md.
        """
        self.save_model(_internal_call=True)
        if self._hub_run is None or token or revision:
            self._hub_run = check_trainer(self.args, _name_of(self.model), token, revision, private)
        return self._hub_run.push(self, commit_message or "End of training")

    def _push_from_checkpoint(self, checkpoint_folder):
        if self._hub_run is not None:
            self._hub_run.push_checkpoint(self, Path(checkpoint_folder))

    @property
    def _mode(self) -> str:
        return "train" if self.model is not None and self.model.training else "eval"

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()
        fields = ground_truth_fields(self.args.step_gt_field)
        self._signature_columns = list(dict.fromkeys([*(self._signature_columns or []), *fields]))  # type: ignore

    def _get_train_sampler(self, dataset=None):
        self._prompt_sampler = super()._get_train_sampler(dataset)
        return self._prompt_sampler

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if not self.args.save_only_model:
            used_up = self._step % ((self.args.steps_per_generation or 1) * self.num_iterations) == 0
            buffer = None if used_up else self._buffered_inputs
            save_rollouts(folder, self.accelerator.process_index, self.accelerator.num_processes, self._step, buffer)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        if not self.args.ignore_data_skip:
            skip_epochs(self._prompt_sampler, int(self.state.epoch or 0))
        accelerator = self.accelerator
        saved = load_rollouts(checkpoint, accelerator.process_index, accelerator.num_processes, accelerator.device)
        # All processes or none: one that generates while another trains on what it has would wait for it forever.
        found = accelerator.gather(torch.tensor([int(saved is not None)], device=accelerator.device)).all()
        if found and saved is not None:
            self._step, self._buffered_inputs = saved
        else:
            # From a run of plain TRL or of another number of processes.
            logger.warning(
                "%s has no rollouts of this many processes, %d: the run goes on, but not as if it had never stopped.",
                checkpoint,
                accelerator.num_processes,
            )
            self._step = self.state.global_step * self.args.gradient_accumulation_steps

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        # Kept for the signal `return`: the rewards are gathered here and dropped by the caller.
        weighted = rewards_per_func * self.reward_weights.to(rewards_per_func.device)
        total = weighted.nansum(dim=1)
        total[rewards_per_func.isnan().all(dim=1)] = torch.nan
        start = self.accelerator.process_index * len(prompts)
        self._trajectory_rewards = total[start : start + len(prompts)]
        return rewards_per_func

    def _generate(self, prompts):
        *others, images, tool_images = super()._generate(prompts)
        if images is not None:
            # TRL marks a row without pictures by None, which no processor takes beside rows that have some.
            images = [row or [] for row in images]
        return *others, images, tool_images

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        if padded_by_row(kwargs):
            kwargs["num_images"] = [1] * len(input_ids)
        return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        inputs = [_with_image_list(row) for row in inputs]
        outputs = super()._generate_and_score_completions(inputs)
        if padded_by_row(outputs):
            outputs["num_images"] = [1] * len(inputs)
        if self.args.step_advantage_w != 0.0:
            outputs["advantages"] = self._compute_advantages(inputs, outputs)
        self._trajectory_rewards = None
        return outputs

    @torch.no_grad()
    def _compute_advantages(self, inputs: list[Mapping[str, Any]], outputs: Mapping[str, Tensor]) -> Tensor:
        """The advantage of every token, `A^E + ω · A^S`.

        Args:
            inputs: this process's B rows, in groups of `num_generations` over all processes.
            outputs: `advantages` (B,), `completion_ids` (B, T), `completion_mask` (B, T), perhaps `prompt_ids` (B, P) and,
                with tools, `tool_mask` (B, T), as TRL's `_generate_and_score_completions` returns them.

        Returns:
            (B, T) float32. Exactly `A^E` on every token that belongs to no step.
        """
        started = time.perf_counter()
        episode = outputs["advantages"].to(torch.float32)
        completion_ids, mask = outputs["completion_ids"], outputs["completion_mask"]
        if "tool_mask" in outputs:
            mask = mask * outputs["tool_mask"]
        # On the CPU from here on: small tables, and one transfer instead of one for every step.
        mask = mask.cpu()
        rollouts = self._make_rollouts(inputs, outputs.get("prompt_ids"), completion_ids, mask)
        scores = score_rollouts(self._step_signal, rollouts)
        advantages = self._step_advantages(rollouts, scores)
        if self.args.step_combine == "modulate" and self.args.step_sign == "episode":
            advantages = advantages * episode.abs().cpu().unsqueeze(1)
        step_term = spread_on_tokens(advantages, [rollout.step_tokens for rollout in rollouts], completion_ids.size(1))
        step_term = self.args.step_advantage_w * step_term * mask
        statistics = batch_statistics(rollouts, scores, advantages, step_term, episode.cpu(), mask)
        self._log_step_metrics(rollouts, statistics, time.perf_counter() - started)
        return episode.unsqueeze(1) + step_term.to(episode.device)

    def _make_rollouts(self, rows, prompt_ids: Tensor | None, completion_ids: Tensor, mask: Tensor) -> list[Rollout]:
        rewards = [None] * len(rows) if self._trajectory_rewards is None else self._trajectory_rewards.tolist()
        # TRL 1.14 has no `eos_token_ids`.
        eos_token_ids = set(getattr(self, "eos_token_ids", [self._tokenizer.eos_token_id]))
        all_ids, all_masks = completion_ids.tolist(), mask.bool().tolist()
        # Some chat templates end the prompt in `<think>`, which the completion then only closes.
        ends = [""] * len(rows) if prompt_ids is None else self._tokenizer.batch_decode(prompt_ids[:, -PROMPT_END:])
        open_reasoning = [end.rfind("<think>") > end.rfind("</think>") for end in ends]
        fields, plan_key = self.args.step_fields, self.args.step_plan_key
        return [
            plan_rollout(ids, keep, self._tokenizer, eos_token_ids, row, reward, fields, plan_key, thinking)
            for ids, keep, row, reward, thinking in zip(all_ids, all_masks, rows, rewards, open_reasoning, strict=True)
        ]

    def _step_advantages(self, rollouts: list[Rollout], scores: list[Scores]) -> Tensor:
        """(B, K) A^S of this process's steps; the baselines are computed over the steps of all processes."""
        args, accelerator = self.args, self.accelerator
        width = max([1, *map(len, scores)])
        local, states = score_table(scores, width), None
        start = 0
        if args.step_baseline != "none":
            keys = [prefix_states(step_keys(rollout.steps)) for rollout in rollouts]
            states = score_table([key[: len(row)] for key, row in zip(keys, scores, strict=True)], width, torch.long)
            # Every rank takes part, whatever its rows hold: the groups of `num_generations` can straddle processes.
            local, states = (
                accelerator.gather(accelerator.pad_across_processes(table.to(accelerator.device), 1, pad)).cpu()
                for table, pad in ((local, torch.nan), (states, 0))
            )
            start = accelerator.process_index * len(rollouts)
        group_size = self.num_generations if self._mode == "train" else self.num_generations_eval
        group = torch.arange(len(local)) // (group_size or 1)
        gamma = args.step_gamma or 0.0
        advantages = step_advantages(local, group, states, args.step_baseline, args.step_scale, gamma)
        return advantages[start : start + len(rollouts), :width]

    def _log_step_metrics(self, rollouts: list[Rollout], statistics: Tensor, seconds: float) -> None:
        # Written straight to `_metrics`, as TRL's own metrics are, so that they arrive with the batch they belong to.
        mode = self._mode
        totals = self.accelerator.reduce(statistics.to(self.accelerator.device), reduction="sum")
        of_signal = getattr(self._step_signal, "last", {})
        for name, value in {**self._step_monitor.metrics(totals), **of_signal}.items():
            self._metrics[mode][name].append(value)
        self._metrics[mode]["step_credit/seconds"].append(seconds)
        self._step_monitor.report(totals, rollouts, self.accelerator.is_main_process, training=mode == "train")


def _with_image_list(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose pictures are a list. TRL takes None for no pictures, and then fails on a batch where no row has any."""
    if "images" not in row and "image" not in row:
        return row
    images = row.get("images", [row.get("image")])
    return {**row, "images": [image for image in images or [] if image is not None]}


def _name_of(model: Any) -> str:
    return model if isinstance(model, str) else get_config_model_id(model.config)


def _make_signal(args: StepGRPOConfig) -> Signal:
    if args.step_reward_kind == "rule":
        return RuleSignal(ground_truth_fields(args.step_gt_field), args.step_match_mode, args.step_match_key)
    if args.step_reward_kind in ("return", "forward_proxy"):
        return return_signal  # the teacher's signal takes its place once the trainer is made
    return load_signal(args.step_reward_kind)
