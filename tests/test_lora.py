"""LoRA and QLoRA: adapters are made, trained further and merged, and change nothing about the step term."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from trl import ModelConfig

from stepgrpo.arguments import parse_recipe
from stepgrpo.export import _unsharded, merge_adapter, merged_dtype
from stepgrpo.modeling import load_model, load_processing_class, load_tokenizer
from stepgrpo.policy import lora_config, policy_arguments
from stepgrpo.recipe import RecipeArguments
from stepgrpo.training import train_sft, train_step_grpo
from tests.scripted import make_trainer

ROOT = Path(__file__).resolve().parents[1]
LORA = ["--use_peft", "true", "--lora_r", "4", "--lora_dropout", "0", "--lora_target_modules", "q_proj", "v_proj"]
COMMON = ["--report_to", "none", "--max_steps", "2", "--save_strategy", "no", "--use_cpu", "true", "--bf16", "false"]
COMMON += ["--train_n", "4", "--learning_rate", "0.05", "--per_device_train_batch_size", "2"]
GRPO = ["--num_generations", "2", "--max_completion_length", "8", "--reward_funcs", "tests.test_launch.characters"]
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)


@pytest.fixture(scope="module")
def model_dir(make_model, tiny_tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(path)
    tiny_tokenizer.save_pretrained(path)
    return path


def parse(recipe, *options):
    return parse_recipe(recipe, [str(option) for option in options])


def logits(model, ids=range(5, 25)):
    with torch.no_grad():
        return model.eval()(torch.tensor([list(ids)])).logits


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["q_proj"], {"q_proj"}),
        (["self_attn.q_proj"], {"self_attn.q_proj"}),
        (["q_proj", "v_proj"], {"q_proj", "v_proj"}),
        (["all-linear"], "all-linear"),
        ([r".*layers\.1.*_proj"], r".*layers\.1.*_proj"),
        (None, None),
    ],
)
def test_a_single_target_module_is_a_name(given, expected, make_model):
    config = lora_config(ModelConfig(use_peft=True, lora_target_modules=given))
    assert config.target_modules == expected
    adapted = [path for path, _ in get_peft_model(make_model(), config).named_modules() if path.endswith("lora_A")]
    every = {"q_proj": 2, "self_attn.q_proj": 2, "all-linear": 14, r".*layers\.1.*_proj": 7}
    assert len(adapted) == every.get(given[0] if given and len(given) == 1 else None, 4)  # of two layers
    assert lora_config(ModelConfig(lora_target_modules=given)) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--load_in_4bit", "true"], "load_in_4bit is set: quantized weights cannot be trained.*use_peft: true"),
        (["--load_in_8bit", "true"], "load_in_8bit is set: quantized weights cannot be trained"),
        (["--load_in_4bit", "true", *LORA, "--gguf_file", "a.gguf"], "GGUF file are not quantized again"),
        (["--merge_adapter", "true"], "merge_adapter is set, but there is no adapter to merge. Set use_peft"),
    ],
)
def test_fields_without_the_adapter_they_need(options, message, model_dir, tmp_path):
    given = parse("sft", *COMMON, "--model_name_or_path", model_dir, "--output_dir", tmp_path, *options)
    with pytest.raises(ValueError, match=message):
        train_sft(*given)


def test_an_adapter_goes_through_both_stages_and_is_merged(model_dir, tmp_path):
    sft, rl = tmp_path / "sft", tmp_path / "rl"
    train_sft(*parse("sft", *COMMON, *LORA, "--model_name_or_path", model_dir, "--output_dir", sft))
    assert not (sft / "merged").exists()
    options = ["--model_name_or_path", sft, "--output_dir", rl, "--merge_adapter", "true"]
    trainer = train_step_grpo(*parse("step_grpo", *COMMON, *GRPO, *options))
    base, before, after = load_model(model_dir), load_model(sft), load_model(rl)
    assert isinstance(after, PeftModel) and json.loads((rl / "adapter_config.json").read_text())["r"] == 4
    assert not torch.allclose(logits(base), logits(before), atol=1e-3)
    assert not torch.allclose(logits(before), logits(after), atol=1e-3)
    assert torch.equal(logits(trainer.model), logits(after))
    merged = load_model(rl / "merged")
    assert type(merged) is type(base) and not (rl / "merged" / "adapter_config.json").exists()
    assert torch.allclose(logits(merged), logits(after), atol=1e-5)
    tokenizer = load_tokenizer(rl / "merged")
    assert tokenizer.chat_template == load_tokenizer(model_dir).chat_template
    assert tokenizer.encode("find a Tomato") == load_tokenizer(model_dir).encode("find a Tomato")


@needs_bitsandbytes
@pytest.mark.filterwarnings("ignore")
def test_qlora_goes_through_both_stages_and_is_merged_into_unquantized_weights(model_dir, tmp_path):
    sft, rl = tmp_path / "sft", tmp_path / "rl"
    qlora = ["--load_in_4bit", "true", "--merge_adapter", "true", "--dtype", "float32"]
    first = train_sft(*parse("sft", *COMMON, *LORA, *qlora, "--model_name_or_path", model_dir, "--output_dir", sft))
    options = [*COMMON, *GRPO, *qlora, "--model_name_or_path", sft, "--output_dir", rl]
    second = train_step_grpo(*parse("step_grpo", *options))
    for trainer in (first, second):
        layer = trainer.model.get_base_model().model.layers[0].self_attn.q_proj
        assert type(layer.base_layer).__name__ == "Linear4bit" and layer.base_layer.weight.dtype == torch.uint8
        trained = {weight.dtype for weight in trainer.model.parameters() if weight.requires_grad}
        assert trained == {torch.bfloat16}  # as TRL has it, after the QLoRA paper
    before, after = (load_model(path) for path in (sft, rl))
    assert not torch.allclose(logits(before), logits(after), atol=1e-3)
    merged = load_model(rl / "merged")
    assert {weight.dtype for weight in merged.parameters()} == {torch.bfloat16}
    assert not hasattr(merged.config, "quantization_config")
    error = (logits(merged).float() - logits(after)).abs().max()
    assert error < 0.03 < 0.1 < (logits(after) - logits(load_model(model_dir))).abs().max()


def test_the_type_of_merged_weights():
    assert merged_dtype(ModelConfig(load_in_4bit=True, dtype="float32")) == "bfloat16"
    assert merged_dtype(ModelConfig(dtype="float16")) == "float16"
    assert merged_dtype(ModelConfig(dtype=None)) == "auto"


def test_a_vision_language_model_is_merged_with_its_processor(qwen2_5_vl_dir, tmp_path):
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=r".*language_model.*_proj", init_lora_weights=False)
    model = get_peft_model(load_model(qwen2_5_vl_dir), config)
    model.save_pretrained(tmp_path / "adapter")
    out = merge_adapter(tmp_path / "adapter", tmp_path / "merged", load_processing_class(qwen2_5_vl_dir))
    merged, processor = load_model(out), load_processing_class(out)
    assert type(merged).__name__ == "Qwen2_5_VLForConditionalGeneration" and hasattr(processor, "image_processor")
    assert torch.allclose(logits(merged), logits(model), atol=1e-4)
    assert not torch.allclose(logits(merged), logits(load_model(qwen2_5_vl_dir)), atol=1e-2)


def test_there_must_be_an_adapter_to_merge(model_dir, tmp_path, tiny_tokenizer):
    with pytest.raises(ValueError, match="holds no adapter to merge"):
        merge_adapter(model_dir, tmp_path / "merged", tiny_tokenizer)


def test_the_base_is_loaded_whole_under_zero3():
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_zero3_enabled
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    config = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}, "train_batch_size": 1})
    try:
        assert is_deepspeed_zero3_enabled()
        with pytest.raises(KeyError), _unsharded():
            assert not is_deepspeed_zero3_enabled()
            raise KeyError
        assert is_deepspeed_zero3_enabled() and config
    finally:
        unset_hf_deepspeed_config()


@pytest.mark.parametrize(("stage", "dtype"), [(None, torch.float32), (2, torch.float32), (3, torch.bfloat16)])
def test_under_zero3_an_adapter_has_the_type_of_its_base(stage, dtype, make_model, tiny_tokenizer, tmp_path):
    base = tmp_path / "base"
    make_model().to(torch.bfloat16).save_pretrained(base)
    tiny_tokenizer.save_pretrained(base)
    get_peft_model(load_model(base), LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    plugin = None if stage is None else SimpleNamespace(zero_stage=stage)
    args = SimpleNamespace(deepspeed_plugin=plugin, model_init_kwargs=None)
    model_args = ModelConfig(model_name_or_path=str(tmp_path / "adapter"), dtype="bfloat16")
    given = policy_arguments(RecipeArguments(), args, model_args)
    assert given["peft_config"] is None
    trained = [weight.dtype for weight in given["model"].parameters() if weight.requires_grad]
    assert len(trained) == 4 and set(trained) == {dtype}


def test_advantages_rewards_and_steps_are_those_of_full_training(make_model, tiny_tokenizer, tmp_path):
    seen = {}
    for kind, peft_config in (("full", None), ("lora", LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))):
        options = {"step_advantage_w": 0.7, "step_baseline": "position", "peft_config": peft_config, "max_steps": 1}
        trainer = make_trainer(make_model(), tiny_tokenizer, tmp_path / kind, **options)
        compute, kept = trainer._compute_advantages, []

        def spy(inputs, outputs, compute=compute, kept=kept):
            kept.append(compute(inputs, outputs))
            return kept[-1]

        trainer._compute_advantages = spy
        trainer.train()
        assert (peft_config is not None) is isinstance(trainer.model, PeftModel)
        log = {k: v for k, v in trainer.state.log_history[0].items() if k.startswith(("step_credit/", "reward"))}
        log.pop("step_credit/seconds")
        seen[kind] = kept, log
    (full, full_log), (lora, lora_log) = seen["full"], seen["lora"]
    assert len(full) == len(lora) == 1 and torch.equal(full[0], lora[0]) and full[0].unique().numel() > 4
    assert full_log == lora_log and full_log["step_credit/tokens"] > 0.1


@pytest.mark.slow
def test_two_processes_train_an_adapter_and_one_of_them_merges_it(model_dir, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file"]
    command += ["accelerate_configs/cpu_2proc.yaml", "recipes/sft.py", *COMMON, *LORA, "--merge_adapter", "true"]
    command += ["--model_name_or_path", str(model_dir), "--output_dir", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Merged in") == 1
    assert torch.allclose(logits(load_model(out / "merged")), logits(load_model(out)), atol=1e-5)
