"""The configuration files: what is in them is what the libraries and the recipes read out of them."""

from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from stepgrpo.arguments import parse_recipe
from stepgrpo.policy import lora_config
from stepgrpo.rewards.registry import load_rewards

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "accelerate_configs"
RECIPES = {path.name: path for path in sorted((ROOT / "configs").glob("*.yaml")) if "evaluate" not in path.name}


def launched(name, *options):
    """What `accelerate launch` makes of a file: its settings, and the environment it gives the processes."""
    given = ["--config_file", str(LAUNCH / f"{name}.yaml"), "--main_process_port", "0", *options, "recipe.py"]
    args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(given))
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        return args, prepare_deepspeed_cmd_env(args)[1]
    return args, prepare_multi_gpu_env(args) if args.use_fsdp or args.multi_gpu else {}


def test_every_launch_file_is_known():
    names = {path.stem for path in LAUNCH.glob("*.yaml")}
    assert names == {"cpu", "cpu_2proc", "single_gpu", "ddp", "zero2", "zero3", "fsdp2"}


@pytest.mark.parametrize(
    ("name", "processes", "several", "cpu", "precision"),
    [
        ("cpu", 1, False, True, "no"),
        ("cpu_2proc", 2, True, True, "no"),
        ("single_gpu", 1, False, False, "bf16"),
        ("ddp", 8, True, False, "bf16"),
    ],
)
def test_launch_files_without_sharding(name, processes, several, cpu, precision):
    args, _ = launched(name)
    assert (args.num_processes, args.multi_gpu, args.use_cpu, args.mixed_precision) == (
        processes,
        several,
        cpu,
        precision,
    )
    assert not args.use_deepspeed and not args.use_fsdp


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_files_load_into_their_plugin(stage, monkeypatch):
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    from accelerate import DeepSpeedPlugin

    args, environment = launched(f"zero{stage}")
    assert args.num_processes == 8 and environment["ACCELERATE_USE_DEEPSPEED"] == "true"
    for key, value in environment.items():
        if key.startswith("ACCELERATE_"):
            monkeypatch.setenv(key, value)
    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == stage
    assert plugin.zero3_init_flag is (stage == 3) and plugin.zero3_save_16bit_model is (stage == 3)
    zero = plugin.hf_ds_config.config["zero_optimization"]
    assert zero["stage"] == stage and zero["stage3_gather_16bit_weights_on_model_save"] is (stage == 3)
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "none"
    # The trainer fills in the number of accumulated batches of its own config.
    assert plugin.hf_ds_config.config["gradient_accumulation_steps"] in (1, "auto")


def test_the_fsdp2_file_loads_into_its_plugin(monkeypatch):
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import StateDictType

    args, environment = launched("fsdp2")
    assert args.num_processes == 8 and environment["ACCELERATE_USE_FSDP"] == "true"
    for key, value in environment.items():
        if key.startswith(("FSDP_", "ACCELERATE_")):
            monkeypatch.setenv(key, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True
    assert plugin.state_dict_type is StateDictType.FULL_STATE_DICT
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert plugin.cpu_ram_efficient_loading and not plugin.activation_checkpointing


def test_the_number_of_processes_can_be_overridden():
    assert launched("zero3", "--num_processes", "1")[0].num_processes == 1
    assert launched("ddp", "--num_processes", "4")[0].num_processes == 4


def read(path, *options):
    recipe = "sft" if path.stem.endswith("_sft") else "step_grpo"
    return parse_recipe(recipe, ["--config", str(path), "--use_cpu", "true", *options])


def test_there_are_configs_for_what_the_readme_names():
    assert {name.removesuffix(".yaml") for name in RECIPES} >= {
        "household",
        "alfred_smollm2_lora",
        "alfred_smollm2_lora_sft",
        "eb_alfred_qwen2_5_vl_3b_lora",
        "eb_alfred_qwen2_5_vl_3b_lora_sft",
        "eb_alfred_qwen2_5_vl_7b_zero3",
    }


@pytest.mark.parametrize("name", RECIPES)
def test_configs_have_fields_that_exist_and_fit_together(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    recipe, args, model_args = read(RECIPES[name], "--max_steps", "3")
    assert args.max_steps == 3 and recipe.data and model_args.model_name_or_path
    lora_config(model_args)
    if recipe.reward_funcs:
        rewards = [reward for reward in recipe.reward_funcs if reward != "verify"]
        assert len(load_rewards(rewards)) == len(rewards)
        assert args.reward_weights is None or len(args.reward_weights) == len(recipe.reward_funcs)
        assert ("verify" in recipe.reward_funcs) is (recipe.verify_model_path is not None)


@pytest.mark.parametrize(
    ("name", "processes"), [("eb_alfred_qwen2_5_vl_3b_lora", 1), ("eb_alfred_qwen2_5_vl_7b_zero3", 8)]
)
def test_whole_groups_make_a_batch_of_the_large_configs(name, processes):
    recipe, args, _ = read(RECIPES[f"{name}.yaml"])
    batch = args.per_device_train_batch_size * args.steps_per_generation * processes
    assert batch % args.num_generations == 0 and batch // args.num_generations == {1: 2, 8: 16}[processes]
    if args.use_vllm:
        assert args.vllm_mode == "colocate" and args.vllm_max_model_length > args.max_completion_length
        assert recipe.freeze_modules == ["visual"] and args.beta == 0


@pytest.mark.parametrize("name", ["eb_alfred_qwen2_5_vl_3b_lora_sft"])
def test_adapters_are_put_in_the_language_model_only(name, qwen2_5_vl_dir):
    from peft import get_peft_model

    from stepgrpo.modeling import load_model

    model = get_peft_model(load_model(qwen2_5_vl_dir), lora_config(read(RECIPES[f"{name}.yaml"])[2]))
    adapted = {path for path, _ in model.named_modules() if path.endswith(".lora_A")}
    assert len(adapted) == 2 * 7  # of each layer q, k, v, o, gate, up, down
    assert all(".language_model.layers." in path for path in adapted)
    trained = [path for path, weight in model.named_parameters() if weight.requires_grad]
    assert not any(".visual." in path for path in trained)


def sizes(hidden, layers, mlp, heads, key_values, vocabulary, tied):
    from transformers import Qwen2_5_VLConfig

    text = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": key_values,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": hidden}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("eb_alfred_qwen2_5_vl_3b_lora", (2048, 36, 11008, 16, 2, 151936, True)),
        ("eb_alfred_qwen2_5_vl_7b_zero3", (3584, 28, 18944, 28, 4, 152064, False)),
    ],
)
def test_the_parameters_in_the_comments_are_the_models(name, size):
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(sizes(*size))
    comment = RECIPES[f"{name}.yaml"].read_text()
    assert f"{sum(weight.numel() for weight in model.parameters()):,} parameters" in comment
    assert f"{sum(weight.numel() for weight in model.model.visual.parameters()):,} of them" in comment
    cache = size[1] * 2 * size[4] * 128 * 2  # bytes a token: keys and values of 128, in bf16
    assert f"{cache / 1e3:.1f} kB" in comment
