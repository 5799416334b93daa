"""Docstrings of this project as Markdown for mkdocstrings: parameters as a list, examples as code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

SECTION = re.compile(r"^(Parameters|Attributes)\n-+\n", re.MULTILINE)

PAGE = re.compile(r"docs/([\w-]+)\.md(#\w+)?")
EXAMPLE = re.compile(r"(?:^>>> .*\n?)+", re.MULTILINE)


class Plain(griffe.Extension):
    """Rewrites each docstring before it is shown."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called with everything that has been read."""
        if obj.docstring is not None:
            names = {p.name.lstrip("*") for p in getattr(obj, "parameters", ())} | set(obj.members)
            if "__init__" in obj.members:
                names |= {p.name for p in obj.members["__init__"].parameters}
            obj.docstring.value = markdown(obj.docstring.value, names)


def markdown(text: str, names: set[str]) -> str:
    """The docstring as Markdown.  names: what it may describe, as ``name: text``."""
    parts = SECTION.split(text)
    listed = "".join(itemised(parts[0], names))
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        listed += f"\n**{title}**\n\n" + "".join(itemised(body, names))
    listed = EXAMPLE.sub(lambda m: f"\n```python\n{m[0].replace('>>> ', '')}\n```\n", listed)
    listed = PAGE.sub(r"[\1](../\1.html\2)", listed)  # from docs/api
    return listed.replace("``", "`")


def itemised(text: str, names: set[str]) -> Iterator[str]:
    """Paragraphs, and what is told of a name as an item of a list."""
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    item = re.compile(rf"(?:^|  )((?:(?:{known})(?:, | and )?)+): ", re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=Raises )", text.strip("\n")):
        pieces = item.split(block) if known else [block]
        yield f"{pieces[0].strip()}\n\n"
        for name, said in zip(pieces[1::2], pieces[2::2], strict=True):
            yield f"- `{name}`: {' '.join(said.split())}\n"
        if len(pieces) > 1:
            yield "\n"
