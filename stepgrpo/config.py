"""Configuration of `StepGRPOTrainer`."""

from __future__ import annotations

import inspect
import pkgutil
import warnings
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from stepgrpo.credit import BASELINES, SCALES
from stepgrpo.frozen.context import PROBLEM, REFERENCE, read_context_template
from stepgrpo.frozen.failures import ON_ERROR
from stepgrpo.segment.align import FIELDS
from stepgrpo.signal.rule import MATCH_KEYS, MATCH_MODES
from stepgrpo.signal.squash import AGGREGATES, COMBINES, CONTRAST_REFERENCES, SIGNS, SQUASHES

REWARD_KINDS = ("rule", "forward_proxy", "return")
SEGMENTS = ("plan",)
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
            `"forward_proxy"`: what a frozen teacher that reads the ground-truth plan thinks of it, in [-1, 1];
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
        step_teacher_path (`str`, *optional*):
            The teacher of `forward_proxy`: a directory or hub id; `base`, a LoRA policy without its adapter; or `self`, the
            policy as it is. Its tokenizer has to be the policy's.
        step_teacher_dtype (`str`, *optional*, defaults to `"auto"`):
            Of its weights. `auto`: bfloat16 on a GPU, the saved one on the CPU.
        step_teacher_device (`str`, *optional*, defaults to `"auto"`):
            Where it computes, such as `cpu` or `cuda:1`. `auto`: where the policy does.
        step_teacher_offload (`bool`, *optional*, defaults to `False`):
            Whether its weights wait on the CPU between uses. Not under ZeRO-3 and FSDP, which spread them.
        step_teacher_max_tokens (`int`, *optional*, defaults to `32768`):
            Tokens of contexts and completions in one of its forwards.
        step_reference_template (`str`, *optional*):
            What the teacher reads: a text with `${problem}` (the prompt's last message) and `${reference}` (the plan as JSON),
            perhaps with columns of the data, or a file with one.
        step_alone_template (`str`, *optional*):
            What it reads for the comparison of `contrast`: as above, without the plan. The prompt as it is, if not set.
        step_squash (`str`, *optional*, defaults to `"margin"`):
            How the teacher's log-probabilities become a score: `contrast`, `prob` or `margin`; see docs/teacher.md.
        step_aggregate (`str`, *optional*):
            One number for the tokens of a step: `mean`, `min` (the weakest token), `weighted` (by size), or `sum` (the step as
            a whole). Where it is not set: `min` for `margin`, else `mean`.
        step_contrast_reference (`str`, *optional*, defaults to `"none"`):
            What `contrast` compares with: `none`, the problem alone; `shuffled`, the problem with another row's plan.
        step_combine (`str`, *optional*, defaults to `"add"`):
            `add`: the teacher's score is the step's credit; `modulate`: it only sets the size of a credit whose sign
            `step_sign` decides (RLSD, https://huggingface.co/papers/2604.03128).
        step_sign (`str`, *optional*, defaults to `"rule"`):
            For `modulate`. `rule`: a right step's credit is in [0, 1], a wrong one's in [-1, 0]; `episode`: the step's
            advantage `|A^E| · score` makes `A^E` larger or smaller and, with ω <= 1, never turns it round.
        step_on_error (`str`, *optional*, defaults to `"raise"`):
            What happens when the teacher or the verify model fails on a batch: `raise` stops all processes; `skip` leaves the
            batch out, says so once and counts it in the log.
    """

    step_advantage_w: float = field(default=1.0, metadata={"help": "Weight ω of the step term; 0 is TRL's GRPO."})
    step_reward_kind: str = field(
        default="rule", metadata={"help": "Step signal: rule, forward_proxy, return, or a function's dotted path."}
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
    step_teacher_path: str | None = field(
        default=None, metadata={"help": "Teacher of forward_proxy: a directory, a hub id, base or self."}
    )
    step_teacher_dtype: str = field(default="auto", metadata={"help": "auto, bfloat16, float16 or float32."})
    step_teacher_device: str = field(default="auto", metadata={"help": "auto, or where it computes, such as cpu."})
    step_teacher_offload: bool = field(default=False, metadata={"help": "The teacher waits on the CPU between uses."})
    step_teacher_max_tokens: int = field(default=32768, metadata={"help": "Tokens in one forward of the teacher."})
    step_reference_template: str | None = field(
        default=None, metadata={"help": "Text with ${problem} and ${reference}, or a file with one."}
    )
    step_alone_template: str | None = field(default=None, metadata={"help": "Text with ${problem}, or a file."})
    step_squash: str = field(default="margin", metadata={"help": "contrast, prob or margin."})
    step_aggregate: str | None = field(
        default=None, metadata={"help": "mean, min, weighted or sum; min for margin and mean for others if unset."}
    )
    step_contrast_reference: str = field(default="none", metadata={"help": "none or shuffled."})
    step_combine: str = field(default="add", metadata={"help": "add or modulate."})
    step_sign: str = field(default="rule", metadata={"help": "What modulate keeps the sign of: rule or episode."})
    step_on_error: str = field(
        default="raise", metadata={"help": "raise or skip a batch on which the teacher or the verify model fails."}
    )

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.step_fields, str):
            self.step_fields = [self.step_fields]
        if self.step_aggregate is None:
            self.step_aggregate = "min" if self.step_squash == "margin" else "mean"
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
            "step_squash": SQUASHES,
            "step_aggregate": AGGREGATES,
            "step_contrast_reference": CONTRAST_REFERENCES,
            "step_combine": COMBINES,
            "step_sign": SIGNS,
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
        self._check_teacher()

    def _check_teacher(self) -> None:
        read_context_template(self.step_reference_template, "step_reference_template", (PROBLEM, REFERENCE))
        read_context_template(self.step_alone_template, "step_alone_template", (PROBLEM,))
        if self.step_teacher_max_tokens < 1:
            raise ValueError(f"step_teacher_max_tokens={self.step_teacher_max_tokens!r} must be at least 1.")
        if self.step_contrast_reference != "none" and self.step_squash != "contrast":
            raise ValueError(
                f"step_contrast_reference={self.step_contrast_reference!r} is for step_squash='contrast'; it is "
                f"{self.step_squash!r}."
            )
        if self.step_combine == "add":
            return
        problem = None
        if self.step_reward_kind != "forward_proxy":
            problem = f"is for step_reward_kind='forward_proxy'; it is {self.step_reward_kind!r}"
        elif self.step_baseline != "none" or self.step_gamma:
            problem = (
                "keeps the sign of the rule or of A^E, which a baseline or a return over later steps can turn round. Set "
                "step_baseline to none and step_gamma to 0"
            )
        elif self.step_sign == "episode" and self.step_advantage_w > 1.0:
            problem = f"with step_sign='episode' needs step_advantage_w <= 1; it is {self.step_advantage_w!r}"
        if problem:
            raise ValueError(f"step_combine='modulate' {problem}.")

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
