"""Configuration of `StepGRPOTrainer`."""

from __future__ import annotations

import inspect
import pkgutil
import warnings
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from stepgrpo.credit import BASELINES, SCALES
from stepgrpo.segment.align import FIELDS
from stepgrpo.signal.rule import MATCH_KEYS, MATCH_MODES

REWARD_KINDS = ("rule", "return")
SEGMENTS = ("plan",)
ON_ERROR = ("raise", "skip")
# Loss types whose objective is a sum over tokens of (ratio of the token) x (advantage of the token).
TOKEN_LEVEL_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo")


@dataclass
class StepGRPOConfig(GRPOConfig):
    r"""
    Configuration class for the [`StepGRPOTrainer`].

    Inherits every parameter of [`trl.GRPOConfig`] and adds those of the step term `A_token = A^E + ω · A^S`.

    Parameters:
        step_advantage_w (`float`, *optional*, defaults to `1.0`):
            Weight ω ≥ 0 of the step term. `0` is TRL's GRPO, bit for bit.
        step_reward_kind (`str`, *optional*, defaults to `"rule"`):
            The signal: how good each step is. `"rule"`: +1 if the ground-truth plan has the step, -1 if not;
            `"return"`: the trajectory's total reward; or the dotted path of a function that takes a list of
            [`Rollout`]s and returns, for each, one finite number per step (`None`: no verdict).
        step_segment (`str`, *optional*, defaults to `"plan"`):
            Where the steps are. `"plan"`: the items of the JSON plan in the completion.
        step_plan_key (`str`, *optional*, defaults to `"executable_plan"`):
            Key of the list of steps in that JSON.
        step_fields (`list[str]`, *optional*, defaults to `["action_id", "action_name"]`):
            Whose tokens take a step's credit: `action_id`, `action_name`, or `step` for the whole item. Whichever
            field the model writes first decides the step, and the other only spells it out, so the default has both.
        step_match_mode (`str`, *optional*, defaults to `"exact"`):
            When `rule` calls a step right: `exact`, `prefix`, `lcs` or `first_error`; see [`match_steps`].
        step_match_key (`str`, *optional*, defaults to `"action_id"`):
            What `rule` compares: `action_id` (the name where an id is missing) or `action_name`.
        step_gt_field (`str`, *optional*):
            Column with the ground-truth plan. Where it is not set, or a row has no value in it, `gt_action_close` is
            read, then `ground_truth`.
        step_baseline (`str`, *optional*, defaults to `"none"`):
            What a step is compared with, over the completions of its group on all processes. `none`: nothing, the
            score is centred already; `position`: their mean at the same step number; `anchor`: the mean of their
            steps that start in the same state, which for a plan is the steps written so far (GiGPO,
            https://huggingface.co/papers/2505.10978).
        step_scale (`str`, *optional*, defaults to `"mean"`):
            `mean` subtracts the baseline's mean; `mean_std` also divides by the standard deviation.
        step_gamma (`float`, *optional*):
            γ in [0, 1] of the return over the rest of the plan, `R_k = s_k + γ · R_{k+1}`. Where it is not set: 0
            (each step its own credit) for `rule` and functions, 1 (each step the trajectory's reward) for `return`.
        step_on_error (`str`, *optional*, defaults to `"raise"`):
            What happens when the verify model fails on a batch: `raise` stops all processes; `skip` leaves the batch out,
            says so once and counts it in the log.
    """

    step_advantage_w: float = field(default=1.0, metadata={"help": "Weight ω of the step term; 0 is TRL's GRPO."})
    step_reward_kind: str = field(
        default="rule", metadata={"help": "Step signal: rule, return, or the dotted path of a function."}
    )
    step_segment: str = field(default="plan", metadata={"help": "Where the steps are: plan."})
    step_plan_key: str = field(default="executable_plan", metadata={"help": "Key of the list of steps in the JSON."})
    step_fields: list[str] = field(
        default_factory=lambda: ["action_id", "action_name"],
        metadata={"help": "Whose tokens take a step's credit: action_id, action_name, step."},
    )
    step_match_mode: str = field(default="exact", metadata={"help": "exact, prefix, lcs or first_error."})
    step_match_key: str = field(default="action_id", metadata={"help": "action_id or action_name."})
    step_gt_field: str | None = field(default=None, metadata={"help": "Column with the ground-truth plan."})
    step_baseline: str = field(default="none", metadata={"help": "none, position or anchor."})
    step_scale: str = field(default="mean", metadata={"help": "mean or mean_std."})
    step_gamma: float | None = field(
        default=None,
        metadata={"help": "γ of the return over the rest of the plan; 0 for rule and 1 for return if unset."},
    )
    step_on_error: str = field(
        default="raise", metadata={"help": "raise or skip a batch on which the verify model fails."}
    )

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.step_fields, str):
            self.step_fields = [self.step_fields]
        self._check_step_fields()
        if self.step_gamma is None:
            self.step_gamma = 1.0 if self.step_reward_kind == "return" else 0.0
        if self.step_advantage_w != 0.0:
            self._check_token_level()
            if self.step_reward_kind == "return" and self.step_baseline == "none":
                warnings.warn(
                    "step_reward_kind='return' with step_baseline='none' adds the uncentred reward to every step: a plan "
                    "with a positive reward is pushed up whole. Set step_baseline to 'anchor' or 'position'.",
                    stacklevel=2,
                )

    def _check_step_fields(self) -> None:
        choices: dict[str, tuple[str, ...]] = {
            "step_segment": SEGMENTS,
            "step_match_mode": MATCH_MODES,
            "step_match_key": MATCH_KEYS,
            "step_baseline": BASELINES,
            "step_scale": SCALES,
            "step_on_error": ON_ERROR,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is not a choice. Choose one of: {', '.join(allowed)}."
                )
        if not self.step_fields or any(name not in FIELDS for name in self.step_fields):
            raise ValueError(f"step_fields={self.step_fields!r}: choose one or more of: {', '.join(FIELDS)}.")
        if not 0.0 <= self.step_advantage_w < float("inf"):
            raise ValueError(f"step_advantage_w={self.step_advantage_w!r} must be a finite number >= 0.")
        if self.step_gamma is not None and not 0.0 <= self.step_gamma <= 1.0:
            raise ValueError(f"step_gamma={self.step_gamma!r} must be in [0, 1].")
        if not self.step_plan_key.strip():
            raise ValueError("step_plan_key is empty; it is the key of the list of steps, such as executable_plan.")
        if self.step_baseline == "none" and self.step_scale != "mean":
            raise ValueError(
                f"step_scale={self.step_scale!r} scales a baseline's differences, but step_baseline='none' has none. "
                "Set step_baseline to position or anchor, or step_scale to mean."
            )
        if self.step_reward_kind not in REWARD_KINDS:
            load_signal(self.step_reward_kind)

    def _check_token_level(self) -> None:
        """Refuses the options of `GRPOConfig` under which an advantage per token does not mean what it says."""
        problem = None
        if self.loss_type == "vespo":
            problem = (
                "loss_type='vespo' weights a whole sequence by a factor it picks by the sign of the sequence's "
                "advantage; with one advantage per token one sequence would get two factors"
            )
        elif self.loss_type not in TOKEN_LEVEL_LOSSES:
            problem = f"loss_type={self.loss_type!r} is not known to accept an advantage per token"
        if problem:
            problem += f". Choose one of: {', '.join(TOKEN_LEVEL_LOSSES)}"
        elif self.importance_sampling_level != "token":
            problem = (
                f"importance_sampling_level={self.importance_sampling_level!r} has one ratio for all tokens of a "
                "completion: its gradient multiplies each token by the mean advantage of the completion, so step credit "
                "would be averaged away. Set it to 'token'"
            )
        elif self.off_policy_mask_threshold is not None:
            problem = (
                f"off_policy_mask_threshold={self.off_policy_mask_threshold!r} drops a drifted sequence if its "
                "advantage is negative; with one advantage per token it would drop only some of the tokens. Set it to None"
            )
        if problem:
            raise ValueError(f"{problem}, or set step_advantage_w=0 for plain GRPO.")


def load_signal(path: str) -> Any:
    """The step signal at a dotted path, `package.module.function` or `package.module:function`.

    Raises:
        ValueError: if there is no function there.
    """
    problem = "not a dotted path"
    if "." in path or ":" in path:
        try:
            signal = pkgutil.resolve_name(path)
            if callable(signal) and not inspect.isclass(signal):
                return signal
            problem = f"a {type(signal).__name__}, not a function"
        except Exception as error:  # whatever the module does when it is imported
            problem = f"{type(error).__name__}: {error}"
    raise ValueError(
        f"step_reward_kind={path!r} is not a choice ({problem}). Choose one of: {', '.join(REWARD_KINDS)}, or give the "
        "dotted path of a function."
    )
