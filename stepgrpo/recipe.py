"""The arguments that the recipes for training have besides those of the trainer and the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepgrpo.data.sources import HOUSEHOLD


@dataclass
class VerifyArguments:
    """
    Arguments of the reward function `verify`; see [`VerifyReward`].

    Parameters:
        verify_model_path (`str`, *optional*):
            Directory or hub id of the judge, a vision-language or text model. Needed where `reward_funcs` has `verify`.
        verify_template (`str`, *optional*):
            The question: a text with `${plan}` and perhaps `${instruction}` and columns of the data, or a file with one.
        verify_yes, verify_no (`list[str]`, *optional*, default to `["yes"]` and `["no"]`):
            Words that mean yes and no; all their spellings count.
        verify_batch_size (`int`, *optional*, defaults to `8`):
            Questions in one forward.
        verify_no_plan (`float`, *optional*):
            Reward in [-1, 1] of a completion without a plan. Where it is not set, the other reward functions decide.
        verify_dtype (`str`, *optional*, defaults to `"auto"`):
            Of the weights. `auto`: bfloat16 on a GPU, the saved one on the CPU.
        verify_offload (`bool`, *optional*, defaults to `False`):
            Whether the judge waits on the CPU while nobody scores. Not under ZeRO-3 and FSDP, which spread it.
        verify_max_pixels (`int`, *optional*):
            At most so many pixels a picture, for processors that have `max_pixels` (Qwen's).
    """

    verify_model_path: str | None = field(default=None, metadata={"help": "The judge of the reward function verify."})
    verify_template: str | None = field(
        default=None, metadata={"help": "Its question, a text with ${plan} or a file."}
    )
    verify_yes: list[str] = field(default_factory=lambda: ["yes"], metadata={"help": "Words that mean yes."})
    verify_no: list[str] = field(default_factory=lambda: ["no"], metadata={"help": "Words that mean no."})
    verify_batch_size: int = field(default=8, metadata={"help": "Questions in one forward."})
    verify_no_plan: float | None = field(default=None, metadata={"help": "Reward of a completion without a plan."})
    verify_dtype: str = field(default="auto", metadata={"help": "auto, bfloat16, float16 or float32."})
    verify_offload: bool = field(default=False, metadata={"help": "The judge waits on the CPU between uses."})
    verify_max_pixels: int | None = field(default=None, metadata={"help": "At most so many pixels a picture."})


@dataclass
class RecipeArguments(VerifyArguments):
    """
    Arguments of the training recipes, besides those of the trainer and the model.

    Parameters:
        data (`str`, *optional*, defaults to `"household"`):
            `household`; `household-pictures`; `alfred:PATH`; `alfred-names:PATH`, whose prompts are four times as short and
            ask for names without ids; `embodiedbench:PATH`; `easyr1:PATH`; `rebp:PATH`; or the path of a JSON-lines file
            whose rows have a `prompt`. See docs/data.md.
        train_split (`str`, *optional*, defaults to `"train"`):
            Split to train on.
        train_n (`int`, *optional*):
            How many rows of it; all where it is not set (256 of the household).
        max_plan_steps (`int`, *optional*):
            Leaves out training rows whose ground truth is longer, and says how many.
        eval_data (`str`, *optional*):
            As `data`, for evaluation; the same where it is not set.
        eval_split (`str`, *optional*, defaults to `"dev"`):
            Split to evaluate on.
        eval_n (`int`, *optional*, defaults to `64`):
            How many rows of it. Used only with an `eval_strategy`.
        rows_seed (`int`, *optional*, defaults to `0`):
            Seed of the household's rows and of the drawing of rows.
        use_images (`bool`, *optional*, defaults to `True`):
            Whether to keep the pictures of the data; a model that cannot see needs it off where there are any.
        max_pixels (`int`, *optional*):
            At most so many pixels of a picture are shown to the model, for processors that have `max_pixels` (Qwen's). Saved
            with the model, so that evaluation shows as many.
        gguf_file (`str`, *optional*):
            Name of a GGUF file in the directory of the model.
        reward_funcs (`list[str]`, *optional*):
            Reward functions: `household`, `household_progress`, `exact_match`, `lcs`, `prefix`, `key_steps`, `plan_format`,
            `verify`, or dotted paths; see docs/rewards.md. Where it is not set: `household` for the household, else
            `exact_match`. Not used for supervised training.
        freeze_modules (`list[str]`, *optional*):
            Names of modules that are not trained, such as `visual`: those whose dotted name is or ends in one of them.
        merge_adapter (`bool`, *optional*, defaults to `False`):
            Whether a trained LoRA adapter is also saved merged into its base, in the folder `merged` of the output directory.
        model_card_metrics (`list[str]`, *optional*):
            `metrics.json` files of `stepgrpo evaluate` that the model card shows, each perhaps with a label in front:
            `before=FILE`. Used with `push_to_hub`.
    """

    data: str = field(
        default=HOUSEHOLD, metadata={"help": "household, alfred:PATH, embodiedbench:PATH, ..., or FILE.jsonl"}
    )
    train_split: str = field(default="train", metadata={"help": "Split to train on."})
    train_n: int | None = field(default=None, metadata={"help": "How many rows to train on."})
    max_plan_steps: int | None = field(default=None, metadata={"help": "Leave out training rows with longer plans."})
    eval_data: str | None = field(default=None, metadata={"help": "As data, for evaluation; the same if unset."})
    eval_split: str = field(default="dev", metadata={"help": "Split to evaluate on."})
    eval_n: int = field(default=64, metadata={"help": "How many rows to evaluate on, given an eval_strategy."})
    rows_seed: int = field(default=0, metadata={"help": "Seed of the rows that are drawn."})
    use_images: bool = field(default=True, metadata={"help": "Keep the pictures of the data."})
    max_pixels: int | None = field(default=None, metadata={"help": "The model sees at most so many pixels a picture."})
    gguf_file: str | None = field(default=None, metadata={"help": "Name of a GGUF file in the model's directory."})
    reward_funcs: list[str] | None = field(
        default=None, metadata={"help": "Names of rewards (docs/rewards.md), such as exact_match, or dotted paths."}
    )
    freeze_modules: list[str] | None = field(
        default=None, metadata={"help": "Names of modules that are not trained, such as visual."}
    )
    merge_adapter: bool = field(
        default=False, metadata={"help": "Also save a trained LoRA adapter merged into its base, in OUT/merged."}
    )
    model_card_metrics: list[str] | None = field(
        default=None, metadata={"help": "metrics.json files for the model card, as LABEL=FILE; with push_to_hub."}
    )
