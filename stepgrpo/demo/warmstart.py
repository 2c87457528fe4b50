"""The supervised start: a small Qwen2 planner trained from scratch on imperfect demonstrations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

from stepgrpo.data.household import plan_json
from stepgrpo.demo.imperfect import imperfect_plan
from stepgrpo.demo.progress import StageBar, with_bar
from stepgrpo.demo.settings import PlannerSize


def build_planner(tokenizer: PreTrainedTokenizerFast, size: PlannerSize, seed: int) -> Qwen2ForCausalLM:
    """An untrained Qwen2 model for a tokenizer's vocabulary, with tied embeddings."""
    set_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.positions,
        initializer_range=size.spread,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def demonstrations(rows: Sequence[dict[str, Any]], rate: float, seed: int) -> list[dict[str, Any]]:
    """Rows for supervised training: `prompt` and `completion`, both conversational.

    Args:
        rows: rows of `household_rows`.
        rate: how often a step of a demonstration is wrong, in [0, 1]; 0 gives clean plans.
        seed: of the mistakes.
    """
    rng = random.Random(seed)
    result = []
    for row in rows:
        plan = imperfect_plan(row["gt_action_close"], row["scene"], rate, rng)
        result.append({"prompt": row["prompt"], "completion": [{"role": "assistant", "content": plan_json(plan)}]})
    return result


def supervised_start(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[dict[str, Any]],
    output_dir: str,
    epochs: float,
    seed: int,
    batch_size: int = 16,
    learning_rate: float = 2e-3,
) -> None:
    """Trains a planner on demonstrations, in place.

    Args:
        model, tokenizer: from `build_planner` and `train_tokenizer`.
        examples: from `demonstrations`.
        output_dir: where TRL may write; nothing is saved there.
        epochs, seed, batch_size, learning_rate: of the training; the rate decays along a cosine.
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(
        output_dir=output_dir,
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        adam_beta2=0.98,
        weight_decay=0.01,
        max_length=None,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        seed=seed,
        logging_steps=10,
        disable_tqdm=True,
        save_strategy="no",
        report_to="none",
        dataloader_num_workers=0,
    )
    trainer = SFTTrainer(
        model=model, args=config, train_dataset=Dataset.from_list(list(examples)), processing_class=tokenizer
    )
    with_bar(trainer, StageBar("supervised start")).train()
