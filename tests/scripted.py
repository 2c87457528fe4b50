"""A trainer whose completions are written by the test, so that every number can be worked out by hand."""

from datasets import Dataset

from stepgrpo import StepGRPOConfig, StepGRPOTrainer
from tests.conftest import plan_text

FIND, PICK, FRIDGE, OPEN, PUT = steps = [
    (35, "find a Tomato"),
    (129, "pick up the Tomato"),
    (78, "find a Fridge"),
    (139, "open the Fridge"),
    (133, "put down the object in hand"),
]
GROUND_TRUTH = [FIND, PICK, FRIDGE, OPEN]

# Two prompts, four completions each, and the reward of each completion.
COMPLETIONS = [
    plan_text([FIND, PICK, FRIDGE, OPEN]),
    plan_text([FIND, PICK, OPEN]),
    plan_text([PICK, FIND]),
    "I cannot do that.",
    plan_text([FIND, PICK, FRIDGE, OPEN, PUT]),
    plan_text([FIND, FRIDGE, PICK, OPEN]),
    plan_text([]),
    '{"executable_plan": [{"action_id": 35, "action_name": "find a Tomato"}, {"action_id": 12',
]
REWARDS = [1.0, -1.0, -1.0, -1.0, 0.5, -0.5, -1.0, -1.0]


def rows(n=2, **columns):
    gt = [{"action_id": i, "action_name": name} for i, name in GROUND_TRUTH]
    row = {"prompt": [{"role": "user", "content": "Put a tomato in the fridge."}], "gt_action_close": gt, **columns}
    return Dataset.from_list([{**row, "number": i} for i in range(n)])


def scripted_rewards(completions, **kwargs):
    """The reward that belongs to each scripted completion, found by its text."""
    table = dict(zip(COMPLETIONS, REWARDS, strict=True))
    return [table[completion[0]["content"]] for completion in completions]


class ScriptedRollout:
    """A `rollout_func` that hands out the scripted completions, on each process its share, by row number."""

    def __init__(self, tokenizer, completions=COMPLETIONS, group=4, eos=True):
        self.tokenizer, self.completions, self.group, self.eos = tokenizer, completions, group, eos

    def __call__(self, prompts, trainer):
        first = trainer.accelerator.process_index * len(prompts)
        chosen = [self.completions[(first + i) % len(self.completions)] for i in range(len(prompts))]
        ids = [self.tokenizer.encode(text, add_special_tokens=False) for text in chosen]
        if self.eos:
            ids = [
                row + [self.tokenizer.eos_token_id] * (text[-1] in "}.") for row, text in zip(ids, chosen, strict=True)
            ]
        prompt_ids = [
            self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
            for prompt in prompts
        ]
        return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": None}


def config(path, cls=StepGRPOConfig, **overrides):
    defaults = {
        "output_dir": str(path),
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 24,
        "max_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "disable_tqdm": True,
        "seed": 7,
    }
    return cls(**{**defaults, **overrides})


def make_trainer(model, tokenizer, path, cls=StepGRPOTrainer, args=None, scripted=True, **overrides):
    kwargs = {"rollout_func": ScriptedRollout(tokenizer), "reward_funcs": scripted_rewards} if scripted else {}
    trainer_args = {k: overrides.pop(k) for k in list(overrides) if k in TRAINER_ARGS}
    return cls(
        model=model,
        args=args or config(path, **overrides),
        **{
            "train_dataset": rows(2),
            "processing_class": tokenizer,
            "reward_funcs": lambda completions, **_: [float(len(c[0]["content"]) % 5) for c in completions],
            **kwargs,
            **trainer_args,
        },
    )


TRAINER_ARGS = ("train_dataset", "eval_dataset", "rollout_func", "reward_funcs", "peft_config", "tools", "callbacks")
