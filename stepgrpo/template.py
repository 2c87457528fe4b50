"""Text templates with `${name}` placeholders, as `string.Template` has them."""

from __future__ import annotations

from string import Template


def placeholders(text: str) -> list[str]:
    """The names a template asks for, in order, each once.

    Raises:
        ValueError: if a `$` starts no name. Says in which line; `$$` is a dollar sign.
    """
    names = []
    for found in Template.pattern.finditer(text):
        if found["invalid"] is not None:
            line = text.count("\n", 0, found.start()) + 1
            raise ValueError(f"line {line} has a $ that starts no name; write $$ for a dollar sign")
        if name := found["named"] or found["braced"]:
            names.append(name)
    return list(dict.fromkeys(names))
