"""Docstrings of this project as Markdown for mkdocstrings: parameters as a list, examples as code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import griffe

from bolt_numba.base.options import OPTIONS, Options

SECTION = re.compile(r"^(Parameters|Attributes)\n-+\n", re.MULTILINE)

PAGE = re.compile(r"docs/([\w-]+)\.md(#\w+)?")
EXAMPLE = re.compile(r"(?:^>>> .*\n?)+", re.MULTILINE)


KEYWORDS = "OptionKeywords"
"""The type of ``**options`` that stands for all options of sessions."""
OTHERS = "All others are those of `Options`."
"""Stands in the docstring of `compile` for the list of them."""


class Plain(griffe.Extension):
    """Rewrites each docstring before it is shown, and spells options of sessions in signatures."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called with everything that has been read."""
        if isinstance(obj, griffe.Function) and obj.docstring is not None:
            spell(obj)
        if obj.path == "bolt_numba.base.options.Options" and obj.docstring is not None:
            first, *_ = SECTION.split(obj.docstring.value)
            obj.docstring.value = f"{first.rstrip()}  They are those of `compile`, above."
        if obj.docstring is not None:
            names = {p.name.lstrip("*") for p in getattr(obj, "parameters", ())} | set(obj.members)
            if "__init__" in obj.members:
                names |= {p.name for p in obj.members["__init__"].parameters}
            obj.docstring.value = markdown(obj.docstring.value, names)


def spell(function: griffe.Function) -> None:
    """Put the options of sessions in the place of ``**options``, and what is told of them behind."""
    packed = next((p for p in function.parameters if KEYWORDS in str(p.annotation)), None)
    if packed is None or function.docstring is None:
        return
    fields = function.package["base.options.Options"].members
    spelled = [
        griffe.Parameter(
            name,
            annotation=fields[name].annotation,
            kind=griffe.ParameterKind.keyword_only,
            default=repr(getattr(Options, name)),
        )
        for name in OPTIONS
    ]
    function.parameters = griffe.Parameters(*(p for p in function.parameters if p is not packed), *spelled)
    if OTHERS in function.docstring.value:
        _, _, told, *_ = SECTION.split(inspect.getdoc(Options) or "")
        told, _, _ = told.partition("\n\nRaises ")
        function.docstring.value = function.docstring.value.replace(OTHERS, told)


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
