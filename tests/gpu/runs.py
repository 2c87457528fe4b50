"""What is run on a GPU: a recipe, one of accelerate's configurations, and the recipe's options for each test.

`tests/test_gpu_tests.py` reads all of them on a CPU, so that none has an option that does not exist.
"""

from dataclasses import dataclass

MODEL = "{model}"  # stands for the model that is trained


@dataclass(frozen=True)
class Run:
    """One `accelerate launch` of a recipe.

    Attributes:
        recipe: `sft` or `step_grpo`.
        config: name of a file in accelerate_configs.
        options: of the recipe, numbers and texts; `MODEL` is put in by `filled`.
        steps: updates.
        save_steps: updates between checkpoints.
    """

    recipe: str
    config: str
    options: tuple
    steps: int = 3
    save_steps: int = 3

    def filled(self, model):
        """The options as texts, with a model."""
        return [str(model) if option == MODEL else str(option) for option in (*ALL, *self.options)]


ALL = ("--model_name_or_path", MODEL, "--report_to", "none", "--disable_tqdm", "true", "--logging_steps", 1)
SMALL = ("--gradient_checkpointing", "false", "--bf16", "true", "--data", "household")
PLANS = (*SMALL, "--train_n", 64, "--num_generations", 8, "--per_device_train_batch_size", 16)
PLANS += ("--max_completion_length", 160, "--learning_rate", 1e-4, "--lr_scheduler_type", "constant")
PLANS += ("--reward_funcs", "household_progress", "--step_match_mode", "first_error")
JUDGED = ("--reward_funcs", "verify", "household_progress", "--verify_no_plan", -1, "--verify_model_path", MODEL)
LORA = ("--lora_r", 8, "--lora_target_modules", "q_proj", "v_proj", "--learning_rate", 1e-3, "--dtype", "bfloat16")
LORA += ("--merge_adapter", "true")
VLLM = ("--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", 0.2)
VLLM += ("--vllm_max_model_length", 512, "--vllm_enable_sleep_mode", "true")
PICTURES = ("--config", "configs/eb_alfred_qwen2_5_vl_3b_lora.yaml", "--data", "household-pictures", "--train_n", 16)
PICTURES += ("--use_peft", "true", "--lora_r", 16, "--merge_adapter", "false", "--max_completion_length", 32)
PICTURES += ("--lora_target_modules", r".*language_model.*\.(q|k|v|o|gate|up|down)_proj", "--temperature", 1.5)
# The model is untrained and writes no plan: its ids are what can be rewarded.
PICTURES += ("--reward_funcs", "tests.gpu.models.ids_modulo_seven", "--reward_weights", 1)

WARM = (*SMALL, "--train_n", 6400, "--max_length", 512, "--per_device_train_batch_size", 32, "--learning_rate", 2e-3)

PLANNER = Run("sft", "single_gpu", WARM, steps=200, save_steps=200)
ONE_GPU = Run("step_grpo", "single_gpu", PLANS)
SPREAD = {config: Run("step_grpo", config, (*PLANS, *JUDGED)) for config in ("zero2", "zero3", "fsdp2")}
WHOLE = Run("step_grpo", "zero2", PLANS, steps=4, save_steps=2)
RESUMED = Run("step_grpo", "zero2", (*PLANS, "--resume_from_checkpoint", "true"), steps=4, save_steps=2)
ADAPTER = Run("step_grpo", "zero3", (*PLANS, *LORA, "--use_peft", "true"))
ADAPTER_AGAIN = Run("step_grpo", "zero3", (*PLANS, *LORA))
QLORA = Run("step_grpo", "single_gpu", (*PLANS, *LORA, "--use_peft", "true", "--load_in_4bit", "true"))
COLOCATED = Run("step_grpo", "single_gpu", (*PLANS, *VLLM))
LARGE = {
    quantized: Run("step_grpo", "single_gpu", (*PICTURES, "--load_in_4bit", str(quantized).lower()), 2, 2)
    for quantized in (False, True)
}

RUNS = {
    "planner": PLANNER,
    "one_gpu": ONE_GPU,
    **SPREAD,
    "whole": WHOLE,
    "resumed": RESUMED,
    "adapter": ADAPTER,
    "adapter_again": ADAPTER_AGAIN,
    "qlora": QLORA,
    "vllm": COLOCATED,
    "large": LARGE[False],
    "large_quantized": LARGE[True],
}
