"""The text of a completion, in whichever form TRL hands it over."""

from __future__ import annotations

from typing import Any


def completion_text(completion: Any) -> str:
    """What the model wrote.

    Args:
        completion: a text, or a conversation whose last message is the completion; its content is a text or a list of parts.
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"] if completion else ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or [] if isinstance(part, dict))
