"""What a teacher reads before the student's completion: the problem with a reference plan, and the problem alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import torch
from PIL import Image
from transformers.image_utils import load_image
from trl import prepare_multimodal_messages

from stepgrpo.data.answers import plan_answer
from stepgrpo.modeling import has_chat_template
from stepgrpo.segment.plan import PlanStep
from stepgrpo.template import placeholders
from stepgrpo.vision import picture_key, row_pictures

TEMPLATES = Path(__file__).parent / "templates"
PROBLEM, REFERENCE = "problem", "reference"
_COMPARED = 8  # last tokens of two plain texts that have to be the same


@dataclass(frozen=True)
class Context:
    """One conversation, or one text, that a teacher reads.

    Attributes:
        prompt: a text, or a list of messages that the teacher's chat template takes.
        key: the same for the same context.
    """

    prompt: Any
    key: str


def read_context_template(template: str | None, name: str, needs: Sequence[str]) -> Template | None:
    """A context's template.

    Args:
        template: a text with `${problem}`, where the last message of the user stands, or the path of a file that holds one;
            None for the package's own.
        name: of the setting, for messages.
        needs: the placeholders it must have. It may also have columns of the data set, such as `${instruction}`.

    Raises:
        ValueError: if it is a path without a file, has a `$` that starts no name, lacks a placeholder, or has the problem
            more than once.
    """
    if template is None:
        return None
    text = template
    if "$" not in text and "\n" not in text:
        if not Path(text).is_file():
            raise ValueError(f"{name}={text!r} is neither a file nor a text with ${{{PROBLEM}}} in it.")
        text = Path(text).read_text(encoding="utf-8")
    text = text.removesuffix("\n")
    try:
        names = placeholders(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}. It is: {text!r}") from None
    missing = [f"${{{need}}}" for need in needs if need not in names]
    if missing:
        raise ValueError(f"{name} has no {' and no '.join(missing)}; it has {names}.")
    if len(_around_problem(text)) != 2:
        raise ValueError(
            f"{name} has ${{{PROBLEM}}} more than once; pictures and parts of a message cannot be repeated."
        )
    return Template(text)


class TeacherContexts:
    """Writes the contexts of a row, and turns them into a model's inputs.

    Only the last message of the user changes; what comes before it, the pictures, the chat template and the beginning of the
    answer are the policy's.

    Args:
        processing_class: the teacher's tokenizer or processor.
        reference_template, alone_template: see `read_context_template`.
        chat_template: for a teacher that has none.
        chat_template_kwargs: such as `{"enable_thinking": False}`; the policy's, so that the answer begins the same way.
        tools: whose schemas the chat template writes.
        plan_key: key of the list of steps in the completion's JSON.
        processor_kwargs: for a processor, such as `{"max_pixels": 401408}`.
    """

    def __init__(
        self,
        processing_class: Any,
        reference_template: str | None = None,
        alone_template: str | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Any] | None = None,
        plan_key: str = "executable_plan",
        processor_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.processing_class = processing_class
        self.is_multimodal = hasattr(processing_class, "image_processor")
        self._reference = read_context_template(reference_template, "step_reference_template", (PROBLEM, REFERENCE))
        self._alone = read_context_template(alone_template, "step_alone_template", (PROBLEM,))
        self._options: dict[str, Any] = dict(chat_template_kwargs or {})
        if tools:
            self._options["tools"] = list(tools)
        if chat_template is not None and not has_chat_template(processing_class):
            self._options["chat_template"] = chat_template
        self._plan_key, self._processor_kwargs = plan_key, dict(processor_kwargs or {})

    def with_reference(self, row: Mapping[str, Any], plan: Sequence[PlanStep], action_ids: bool = True) -> Context:
        """The problem of a row together with a plan.

        Args:
            row: the data set's columns, of which `prompt` and the pictures are shown.
            plan: the reference.
            action_ids: whether the reference has ids, as the student's plan does or does not.

        Raises:
            ValueError: if the template names something the row has not.
        """
        own = "teacher_reference_text.txt" if isinstance(row["prompt"], str) else "teacher_reference.txt"
        reference = plan_answer(plan, action_ids, self._plan_key)
        return self._context(row, self._reference or _own_template(own), {REFERENCE: reference})

    def alone(self, row: Mapping[str, Any]) -> Context:
        """The problem of a row as the policy reads it, unless the template says more.

        Raises:
            ValueError: if the template names something the row has not.
        """
        return self._context(row, self._alone or _own_template("teacher_alone.txt"), {})

    def stand_in(self) -> Context:
        """A short context, with a picture if the teacher can see, that a process runs so that others can run theirs."""
        if not (has_chat_template(self.processing_class) or "chat_template" in self._options):
            return Context("plan", "")
        text = {"type": "text", "text": "plan"}
        picture = {"type": "image", "image": Image.new("RGB", (56, 56))}
        return Context([{"role": "user", "content": [picture, text] if self.is_multimodal else "plan"}], "")

    def encode(self, context: Context, begin_answer: bool = True) -> Mapping[str, Any]:
        """The inputs of a forward over a context.

        Args:
            context: one of this object's.
            begin_answer: whether the chat template's beginning of the answer stands at the end.

        Returns:
            `input_ids` (1, P) and `attention_mask` (1, P), and what belongs to pictures.
        """
        if isinstance(context.prompt, str):
            return self._tokenizer(context.prompt, return_tensors="pt")
        return self.processing_class.apply_chat_template(
            context.prompt if not self.is_multimodal else [context.prompt],
            add_generation_prompt=begin_answer,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            **self._options,
            **(self._processor_kwargs if self.is_multimodal else {}),
        )

    def check(self, row: Mapping[str, Any], plan: Sequence[PlanStep]) -> None:
        """Refuses contexts that do not end alike: the first token of a completion would differ by the template alone.

        Raises:
            ValueError: if they differ at the end. Shows both ends.
        """
        with_plan, alone = self.with_reference(row, plan), self.alone(row)
        ends = [self._ids(context) for context in (with_plan, alone)]
        if isinstance(row["prompt"], str):
            compared = min(_COMPARED, len(ends[1]))
            advice = f"A plain text has to end as it does: put ${{{PROBLEM}}} last in both templates"
        else:
            # The chat template's beginning of the answer, and one token before it where there is none.
            compared = max(1, len(ends[1]) - len(self._ids(alone, begin_answer=False)))
            advice = "The chat template has to begin the answer in the same way after any message"
        if ends[0][-compared:] != ends[1][-compared:]:
            shown = [self._tokenizer.decode(ids[-2 * _COMPARED :]) for ids in ends]
            raise ValueError(
                f"The teacher's contexts of step_reference_template and step_alone_template end differently, {shown[0]!r} and "
                f"{shown[1]!r}, which alone would change the first tokens' scores. {advice}."
            )

    @property
    def _tokenizer(self) -> Any:
        return getattr(self.processing_class, "tokenizer", self.processing_class)

    def _ids(self, context: Context, begin_answer: bool = True) -> list[int]:
        return torch.as_tensor(self.encode(context, begin_answer)["input_ids"])[0].tolist()

    def _context(self, row: Mapping[str, Any], template: Template, values: Mapping[str, str]) -> Context:
        columns = {name: "" if value is None else value for name, value in row.items()} | dict(values)
        text = template.template
        parts = _around_problem(text)
        try:
            before, after = (Template(part).substitute({n: columns[n] for n in placeholders(part)}) for part in parts)
        except KeyError as error:
            raise ValueError(
                f"A template of the teacher's contexts names ${{{error.args[0]}}}, which is neither {PROBLEM} nor "
                f"{REFERENCE} and no column. Columns: {', '.join(sorted(row))}."
            ) from None
        prompt = row["prompt"]
        if isinstance(prompt, str):
            whole = before + prompt + after
            return Context(whole, whole)
        images = row_pictures(row) if self.is_multimodal else []
        messages = [dict(message) for message in prompt]
        last = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].get("role") == "user"), None)
        if last is None:
            raise ValueError("A prompt without a message of the user has no problem to put beside a reference plan.")
        messages[last]["content"] = _wrapped(messages[last].get("content"), before, after)
        key = repr((messages, [picture_key(image) for image in images]))
        if self.is_multimodal:
            shown = [load_image(image).convert("RGB") for image in images]
            messages = prepare_multimodal_messages(messages, images=shown)
        else:
            messages = [{**message, "content": _as_text(message.get("content"))} for message in messages]
        return Context(messages, key)


def _own_template(name: str) -> Template:
    return Template((TEMPLATES / name).read_text(encoding="utf-8").removesuffix("\n"))


def _around_problem(text: str) -> list[str]:
    """What stands before and after `${problem}`."""
    cuts = [found.span() for found in Template.pattern.finditer(text) if PROBLEM in (found["named"], found["braced"])]
    edges = [0, *(edge for cut in cuts for edge in cut), len(text)]
    return [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _wrapped(content: Any, before: str, after: str) -> Any:
    """A message's content with text before its first and after its last part of text."""
    if content is None or isinstance(content, str):
        return before + (content or "") + after
    parts = [dict(part) for part in content]
    texts = [n for n, part in enumerate(parts) if part.get("type") == "text"]
    if not texts:
        return [*parts, {"type": "text", "text": before + after}]
    parts[texts[0]]["text"] = before + parts[texts[0]]["text"]
    parts[texts[-1]]["text"] += after
    return parts


def _as_text(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if part.get("type") == "text")
