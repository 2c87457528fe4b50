"""Every way to train on GPUs, with one of them."""

import math

import pytest
import torch

from tests.gpu.conftest import COMMON, GRPO, launch, needs

VERIFY = ["--reward_funcs", "verify", "household_progress", "--verify_no_plan", -1]


def weights(path):
    from stepgrpo.modeling import load_model

    return {name: weight.float() for name, weight in load_model(path).state_dict().items()}


def check(log, updates, credited=True):
    """Every update has a finite loss, and step credit reached tokens."""
    assert len(log) == updates and all(math.isfinite(entry["loss"]) for entry in log)
    assert all(entry["grad_norm"] > 0 and math.isfinite(entry["grad_norm"]) for entry in log)
    if credited:
        assert max(entry["step_credit/tokens"] for entry in log) > 0.05


def check_weights(before, after):
    """The saved model is whole, has the shapes it had, and was trained."""
    old, new = weights(before), weights(after)
    assert {name: weight.shape for name, weight in old.items()} == {name: weight.shape for name, weight in new.items()}
    assert all(torch.isfinite(weight).all() for weight in new.values())
    changed = [name for name in old if not torch.equal(old[name], new[name])]
    assert len(changed) > len(old) / 2


def test_one_gpu(planner, tmp_path):
    log, _ = launch("step_grpo", "single_gpu", tmp_path, *COMMON, *GRPO, "--model_name_or_path", planner)
    check(log, 3)
    check_weights(planner, tmp_path)


@pytest.mark.parametrize(
    "config",
    [pytest.param("zero2", marks=needs("deepspeed")), pytest.param("zero3", marks=needs("deepspeed")), "fsdp2"],
)
def test_spread_over_gpus_with_a_judge(config, planner, tmp_path):
    options = [*COMMON, *GRPO, *VERIFY, "--model_name_or_path", planner, "--verify_model_path", planner]
    log, _ = launch("step_grpo", config, tmp_path, *options)
    check(log, 3)
    assert all(math.isfinite(entry["verify/answer_mass"]) for entry in log)
    check_weights(planner, tmp_path)


@needs("deepspeed")
def test_resuming_under_zero2(planner, tmp_path):
    options = [*COMMON, *GRPO, "--model_name_or_path", planner, "--lr_scheduler_type", "constant"]
    launch("step_grpo", "zero2", tmp_path / "run", *options, steps=2)
    resumed, _ = launch("step_grpo", "zero2", tmp_path / "run", *options, "--resume_from_checkpoint", "true", steps=4)
    whole, _ = launch("step_grpo", "zero2", tmp_path / "whole", *options, steps=4)
    assert [entry["step"] for entry in resumed] == [1, 2, 3, 4]
    assert [entry["reward"] for entry in resumed] == pytest.approx([entry["reward"] for entry in whole], abs=1e-3)


@needs("deepspeed")
def test_an_adapter_under_zero3_is_trained_on_and_merged(planner, tmp_path):
    lora = [
        "--lora_r",
        8,
        "--lora_target_modules",
        "q_proj",
        "v_proj",
        "--dtype",
        "bfloat16",
        "--merge_adapter",
        "true",
    ]
    first, second = tmp_path / "first", tmp_path / "second"
    options = [*COMMON, *GRPO, *lora]
    launch("step_grpo", "zero3", first, *options, "--use_peft", "true", "--model_name_or_path", planner)
    log, printed = launch("step_grpo", "zero3", second, *options, "--model_name_or_path", first)
    check(log, 3)
    assert "Merged in" in printed
    check_merged(planner, second)


def check_merged(planner, out):
    old, new = weights(planner), weights(out / "merged")
    changed = {name for name in old if not torch.equal(old[name].bfloat16().float(), new[name])}
    assert len(changed) == 6 and all(name.endswith(("q_proj.weight", "v_proj.weight")) for name in changed)


@needs("bitsandbytes")
def test_qlora(planner, tmp_path):
    lora = ["--use_peft", "true", "--lora_r", 8, "--lora_target_modules", "q_proj", "v_proj", "--dtype", "bfloat16"]
    lora += ["--load_in_4bit", "true", "--merge_adapter", "true"]
    log, printed = launch("step_grpo", "single_gpu", tmp_path, *COMMON, *GRPO, *lora, "--model_name_or_path", planner)
    check(log, 3, credited=False)  # four bits are few for a model this small: it may write no plan
    assert "Merged in" in printed
    check_merged(planner, tmp_path)


@needs("vllm")
def test_vllm_on_the_same_gpu(planner, tmp_path):
    vllm = ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", 0.2]
    vllm += ["--vllm_max_model_length", 512, "--vllm_enable_sleep_mode", "true"]
    log, _ = launch("step_grpo", "single_gpu", tmp_path, *COMMON, *GRPO, *vllm, "--model_name_or_path", planner)
    check(log, 3)
    check_weights(planner, tmp_path)


@needs("torchvision")
@pytest.mark.parametrize("quantized", [False, pytest.param(True, marks=needs("bitsandbytes"))])
def test_a_vision_language_model_of_three_billion_weights(quantized, large_vlm, tmp_path):
    options = ["--config", "configs/eb_alfred_qwen2_5_vl_3b_lora.yaml", *COMMON, "--model_name_or_path", large_vlm]
    options += ["--data", "household-pictures", "--train_n", 16, "--use_peft", "true", "--merge_adapter", "false"]
    options += ["--lora_target_modules", r".*language_model.*\.(q|k|v|o|gate|up|down)_proj", "--lora_r", 16]
    options += ["--max_completion_length", 64, "--reward_funcs", "tests.test_launch.characters", "--reward_weights", 1]
    options += ["--gradient_checkpointing", "true", "--temperature", 1.5, "--load_in_4bit", str(quantized).lower()]
    log, _ = launch("step_grpo", "single_gpu", tmp_path, *options, steps=2)
    check(log, 2, credited=False)  # untrained: it writes no plan


@pytest.fixture(scope="module")
def large_vlm(tmp_path_factory):
    """Qwen2.5-VL-3B's shape with random weights, and a processor whose tokenizer was trained on household texts."""
    import transformers as t

    from tests import vlm
    from tests.test_configs import sizes

    path = tmp_path_factory.mktemp("large_vlm")
    tokenizer = vlm._qwen_tokenizer()
    config = sizes(2048, 36, 11008, 16, 2, 151936, True)
    for name, token in vlm._qwen_ids(tokenizer).items():
        setattr(config, name, token)
    config.text_config.eos_token_id, config.text_config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = t.Qwen2_5_VLForConditionalGeneration(config)
        finally:
            torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(path)
    del model
    torch.cuda.empty_cache()
    pictures, videos = t.Qwen2VLImageProcessor(), t.Qwen2VLVideoProcessor()
    t.Qwen2_5_VLProcessor(pictures, tokenizer, videos, chat_template=vlm.QWEN_TEMPLATE).save_pretrained(path)
    return path
