"""What the verify model is asked about one completion. Pure text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from stepgrpo.segment.plan import PlanStep
from stepgrpo.template import placeholders

DEFAULT_TEMPLATE = Path(__file__).parent / "templates" / "verify.txt"
# What a template can have besides the columns of the rows.
OWN_FIELDS = ("instruction", "plan", "completion")


def read_template(template: str | None) -> Template:
    """The question's template.

    Args:
        template: a text with `${plan}` or `${completion}`, perhaps `${instruction}`, and columns of the data set such as
            `${action_list}`; or the path of a file that holds one; None for the package's own.

    Raises:
        ValueError: if it is a path without a file, has a `$` that starts no name, or does not show the plan.
    """
    text = template
    if text is None:
        text = DEFAULT_TEMPLATE.read_text(encoding="utf-8")
    elif "$" not in text and "\n" not in text:
        if not Path(text).is_file():
            raise ValueError(f"verify_template={text!r} is neither a file nor a text with ${{plan}} in it.")
        text = Path(text).read_text(encoding="utf-8")
    try:
        names = placeholders(text)
    except ValueError as error:
        raise ValueError(f"verify_template: {error}. It is: {text!r}") from None
    if not {"plan", "completion"} & set(names):
        raise ValueError(f"verify_template shows the judge neither ${{plan}} nor ${{completion}}; it has {names}.")
    return Template(text)


def question(
    template: Template,
    steps: Sequence[PlanStep],
    completion: str,
    prompt: Any,
    row: Mapping[str, Any],
    clean: Callable[[str], str] = str,
) -> str:
    """The text of one question.

    Args:
        template: from `read_template`.
        steps: the plan of the completion.
        completion: its whole text.
        prompt: the row's prompt, a text or a conversation, whose last user message stands in for a missing `instruction`.
        row: the row's other columns.
        clean: what every value goes through before it stands in the question.

    Raises:
        ValueError: if the template names something the row has not. Says what there is.
    """
    values = {name: _as_text(value) for name, value in row.items()}
    values |= {"plan": plan_lines(steps), "completion": completion}
    if not values.get("instruction"):
        values["instruction"] = _last_user_text(prompt)
    try:
        return template.substitute({name: clean(values[name]) for name in placeholders(template.template)})
    except KeyError as error:
        raise ValueError(
            f"verify_template names ${{{error.args[0]}}}, which is none of {', '.join(OWN_FIELDS)} and no column. "
            f"Columns: {', '.join(sorted(row)) or 'none'}."
        ) from None


def plan_lines(steps: Sequence[PlanStep]) -> str:
    """A plan as numbered lines, by the steps' names, by their ids where there is none: `1. find a Tomato`."""
    if not steps:
        return "(no steps)"
    return "\n".join(f"{number}. {_name(step)}" for number, step in enumerate(steps, 1))


def _name(step: PlanStep) -> str:
    if step.action_name:
        return step.action_name
    return "(unreadable)" if step.action_id is None else f"action {step.action_id}"


def _as_text(value: Any) -> str:
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return "" if value is None else str(value)


def _last_user_text(prompt: Any) -> str:
    if isinstance(prompt, str) or not prompt:
        return prompt or ""
    message = next((message for message in reversed(prompt) if message.get("role") == "user"), prompt[-1])
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))


def without_control_tokens(tokenizer: Any) -> Callable[[str], str]:
    """A function that takes the control tokens of a tokenizer out of a text.

    A policy that writes the judge's own control tokens could end the question and answer it, or break the marks that its
    pictures stand at.
    """
    added = tokenizer.added_tokens_decoder.values()
    tokens = {token.content for token in added if token.special or re.fullmatch(r"<.+>", token.content)}
    tokens |= set(tokenizer.all_special_tokens)
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")

    def clean(text: str) -> str:
        while pattern.search(text):  # taking one out can bring the halves of another together
            text = pattern.sub("", text)
        return text

    return clean
