"""The card of a trained model: what was trained on what, with which step settings, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from string import Template
from typing import Any

from huggingface_hub import ModelCardData

from stepgrpo.report.tables import evaluation_table, markdown_table, metrics_table, number, training_table

_EVALUATION = re.compile(r"(<!-- evaluation -->\n).*?(<!-- end of evaluation -->)", re.DOTALL)
_NOT_EVALUATED = "The run had no evaluation (`eval_strategy: no`), and no metrics were given."
_AGAIN = """The same run, with its paths set to yours:

    stepgrpo train --recipe {recipe} --config run.yaml
"""
_GRPO = """\
@article{shao2024deepseekmath,
    title  = {{DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models}},
    author = {Zhihong Shao and Peiyi Wang and Qihao Zhu and Runxin Xu and Junxiao Song and Mingchuan Zhang and Y. K. Li and
              Y. Wu and Daya Guo},
    year   = 2024,
    eprint = {arXiv:2402.03300},
}
"""
_TRL = """\
@software{vonwerra2020trl,
    title   = {{TRL: Transformers Reinforcement Learning}},
    author  = {von Werra, Leandro and Belkada, Younes and Tunstall, Lewis and Beeching, Edward and Thrush, Tristan and
               Lambert, Nathan and Huang, Shengyi and Rasul, Kashif and Gallouédec, Quentin},
    license = {Apache-2.0},
    url     = {https://github.com/huggingface/trl},
    year    = {2020}
}
"""


@dataclass
class Card:
    """What a card tells. Nothing in it may be private: see [`stepgrpo.report.private.Private`].

    Attributes:
        name: of the model.
        base: the model that was trained, by its hub id or the last name of its path.
        base_id: the hub id it comes from, if there is one.
        recipe: `step_grpo` or `sft`.
        data: the data set's spec and number of rows, by what it was for.
        datasets: hub ids among them.
        rewards: the weight of each reward function.
        step_settings: the settings of the step term; empty without one.
        settings: the settings of the training.
        adapter: rank, alpha and target modules of a LoRA adapter; empty for a full model.
        merged: whether the adapter is there merged into its base, too.
        vision: whether the model reads pictures.
        reader: the class that loads the tokenizer or processor; the usual `Auto` class where it is empty.
        log: `trainer.state.log_history`.
        metrics: by its label what a `metrics.json` of `stepgrpo evaluate` holds.
        figures: file names of curves by what they show.
        versions: of the packages.
        finished: whether the training is done.
        scripted: whether a user's script trained, and no recipe.
    """

    name: str
    base: str
    recipe: str
    base_id: str | None = None
    data: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    datasets: Sequence[str] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)
    step_settings: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)
    merged: bool = False
    vision: bool = False
    reader: str = ""
    log: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    finished: bool = True
    scripted: bool = False


def model_card(card: Card) -> str:
    """The text of `README.md`: YAML metadata as the Hub reads it, then Markdown.

    Raises:
        ValueError: if the metrics are none of `stepgrpo evaluate`.
    """
    text = (resources.files("stepgrpo.report") / "templates" / "model_card.md").read_text(encoding="utf-8")
    filled = Template(text).substitute(
        header=_header(card),
        name=card.name,
        summary=_summary(card),
        usage=_usage(card),
        again="" if card.scripted else _AGAIN.format(recipe=card.recipe),
        method=_method(card),
        step_settings=_settings(card.step_settings, "step setting"),
        data=markdown_table(["for", "data", "rows"], [[use, spec, number(n)] for use, (spec, n) in card.data.items()]),
        rewards=_rewards(card),
        training=_settings(card.settings, "setting"),
        evaluation=_evaluation(card),
        curves="\n\n".join(f"![{title}]({path})" for title, path in card.figures.items())
        or "Too few logged values for a curve.",
        versions="\n".join(f"- {name} {version}" for name, version in card.versions.items()),
        citation=_citation(card),
    )
    return re.sub(r"\n{3,}", "\n\n", filled)


def with_metrics(text: str, metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """A card with a table of `stepgrpo evaluate` first in its evaluation.

    Args:
        text: of a card that `model_card` made.
        metrics: by its label what a `metrics.json` holds.

    Raises:
        ValueError: if the card has no place for it, or these are no metrics.
    """
    found = _EVALUATION.search(text)
    if found is None:
        raise ValueError("README.md has no evaluation part: it was not written by stepgrpo.")
    lines = found[0].split("\n")[1:-1]
    start = next((i for i, line in enumerate(lines) if line.startswith("| stepgrpo evaluate ")), None)
    if start is not None:
        end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
        del lines[start:end]
    rest = "\n".join(lines).replace(_NOT_EVALUATED, "").strip()
    inner = "\n\n".join(part for part in (metrics_table(metrics), rest) if part)
    return text[: found.start()] + f"{found[1]}{inner}\n{found[2]}" + text[found.end() :]


def _header(card: Card) -> str:
    data = ModelCardData(
        base_model=card.base_id,
        datasets=list(card.datasets) or None,
        library_name="peft" if card.adapter else "transformers",
        model_name=card.name,
        pipeline_tag="image-text-to-text" if card.vision else "text-generation",
        tags=["stepgrpo", "trl", "grpo" if card.recipe == "step_grpo" else "sft", *(["lora"] if card.adapter else [])],
    )
    return data.to_yaml()


def _summary(card: Card) -> str:
    base = f"[{card.base}](https://huggingface.co/{card.base})" if card.base == card.base_id else f"`{card.base}`"
    how = _how(card)
    what = f"A LoRA adapter for {base}, trained" if card.adapter else f"{base}, trained"
    lines = [f"{what} with {how} to write plans, by stepgrpo on [TRL](https://github.com/huggingface/trl)."]
    if not card.finished:
        lines.append("**The training is not finished: this is a checkpoint.**")
    if card.base != card.base_id:
        origin = f", which comes from [{card.base_id}](https://huggingface.co/{card.base_id})" if card.base_id else ""
        lines.append(f"`{card.base}` was a folder of the machine that trained{origin}.")
        if card.adapter and not card.merged:
            lines.append("The adapter cannot be loaded without it.")
    if card.merged:
        lines.append("The folder `merged` has the adapter merged into its base, as a full model.")
    return " ".join(lines)


def _how(card: Card) -> str:
    if card.recipe != "step_grpo":
        return "supervised training (SFT)"
    return "step-level GRPO" if card.step_settings else "GRPO"


def _usage(card: Card) -> str:
    model = "AutoModelForImageTextToText" if card.vision else "AutoModelForCausalLM"
    reader = card.reader or ("AutoProcessor" if card.vision else "AutoTokenizer")
    folder = ', subfolder="merged"' if card.merged else ""
    if card.adapter and not card.merged:
        lines = [
            "from peft import PeftConfig, PeftModel",
            f"from transformers import {model}, {reader}",
            "",
            'repository = "..."  # the id of this repository',
            f"base = {model}.from_pretrained(PeftConfig.from_pretrained(repository).base_model_name_or_path)",
            "model = PeftModel.from_pretrained(base, repository)",
        ]
    else:
        lines = [
            f"from transformers import {model}, {reader}",
            "",
            'repository = "..."  # the id of this repository',
            f"model = {model}.from_pretrained(repository{folder})",
        ]
    name = "processor" if card.vision else "tokenizer"
    return "\n".join([*lines, f"{name} = {reader}.from_pretrained(repository{folder})"])


def _method(card: Card) -> str:
    if card.recipe != "step_grpo":
        return "Supervised training on the ground-truth plans of the data."
    if not card.step_settings:
        return "GRPO (`step_advantage_w: 0`): every token of a plan has the advantage of the whole plan."
    weight = number(card.step_settings.get("step_advantage_w"))
    return (
        "Step-level GRPO: `A_token = A^E + ω · A^S(step of the token)`, where `A^E` is GRPO's advantage of the whole plan and "
        f"`A^S` says how good the step is, on the tokens of that step only. ω = {weight}."
    )


def _rewards(card: Card) -> str:
    rows = [[f"`{name}`", number(weight)] for name, weight in card.rewards.items()]
    return markdown_table(["reward function", "weight"], rows) if rows else ""


def _settings(settings: Mapping[str, Any], title: str) -> str:
    rows = [[f"`{name}`", _text(value)] for name, value in settings.items()]
    return markdown_table([title, "value"], rows) if rows else ""


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else number(value)


def _evaluation(card: Card) -> str:
    parts = [metrics_table(card.metrics) if card.metrics else "", evaluation_table(card.log)]
    told = [part for part in parts if part] or [_NOT_EVALUATED]
    return "\n\n".join([*told, training_table(card.log)]).strip()


def _citation(card: Card) -> str:
    cited = [_TRL] if card.recipe != "step_grpo" else [_GRPO, _TRL]
    text = "```bibtex\n" + "\n".join(cited) + "```"
    if card.step_settings.get("step_baseline") == "anchor":
        text = (
            "The baseline `anchor` is GiGPO's: [arXiv 2505.10978](https://huggingface.co/papers/2505.10978).\n\n"
            + text
        )
    return text
