"""Rewards named in a YAML file, all kinds together, through the recipe for training."""

import pytest

from stepgrpo.arguments import parse_recipe
from stepgrpo.training import train_step_grpo

YAML = """
model_name_or_path: {model}
output_dir: {out}
data: household
train_n: 4
reward_funcs: [verify, plan_format, prefix, key_steps, household, tests.test_rewards_yaml.vowels]
reward_weights: [0.5, 0.25, 1.0, 1.0, 2.0, 4.0]
verify_model_path: {model}
verify_template: "${{instruction}} ${{plan}}"
verify_no_plan: -1.0
max_steps: 1
per_device_train_batch_size: 4
num_generations: 2
max_completion_length: 8
temperature: 3.0
logging_steps: 1
save_strategy: "no"
report_to: none
use_cpu: true
bf16: false
"""


def vowels(completions, **_):
    """Something an untrained model's texts differ in."""
    counts = [sum(completion[0]["content"].count(vowel) for vowel in "aeiou") for completion in completions]
    return [None if count == 0 else count / 8 for count in counts]


def test_names_weights_and_a_dotted_path(make_model, tiny_tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    file = tmp_path / "run.yaml"
    file.write_text(YAML.format(model=tmp_path / "model", out=tmp_path / "out"))
    trainer = train_step_grpo(*parse_recipe("step_grpo", ["--config", str(file)]))
    names = ["verify", "plan_format_reward", "prefix_reward", "key_steps_reward", "household_reward", "vowels"]
    assert trainer.reward_func_names == names
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    means = [log[f"rewards/{name}/mean"] for name in names]
    assert means[:5] == [-1.0, 0.0, 0.0, 0.0, -1.0] and log["verify/no_plan"] == 1.0
    counts = trainer._logs["rewards"]["vowels"]
    scored = [count for count in counts if count == count]
    assert len(counts) == 4 and means[5] == pytest.approx(sum(scored) / len(scored))
    assert log["reward"] == pytest.approx(-0.5 - 2.0 + 4.0 * sum(scored) / 4)
