"""What is read of each format: names for `bolt-numba ops`, and the page formats.md of the site."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

from bolt_numba.converters.formats import FORMATS
from bolt_numba.converters.readers import Reader, Readers

HEAD = """# Formats

Made by `bolt-numba ops --formats`; do not edit.

Operators of other formats that are read, with their inputs and attributes. Inputs in brackets may be left out. A
starred one stands for any number. Where an operator changed, *versions* tells from which ones on it is read otherwise.
Attributes that change no result are taken, too.
"""
NOTES = {
    "paddle": "Names of legacy programs, then those of PIR, which Paddle 3 writes.",
    "onnx": "Every opset is read. Operators without a row are read through the function body of their schema.",
}
"""What else is to be said of a format."""


def _tables() -> Iterator[tuple[str, str, dict[str, list[Reader]]]]:
    """Format, domain and the readers of it by operator, the newest of each first."""
    for key in sorted(FORMATS):
        package = f"bolt_numba.converters.{key}"
        if importlib.util.find_spec(package) is None or importlib.util.find_spec(f"{package}.reading") is None:
            continue  # not here, or a format without operators, such as GGUF
        found = getattr(importlib.import_module(f"{package}.reading.registry"), key.upper())
        readers: Readers = getattr(found, "readers", found)  # Paddle's also hold spellings
        readers.load_all()
        for domain in sorted({domain for domain, _ in readers.table}):
            yield key, domain, {name: found for (d, name), found in sorted(readers.table.items()) if d == domain}


def _title(key: str, domain: str) -> str:
    if key == "onnx":
        return domain or "ai.onnx"
    return f"{key}: {domain}" if domain else key


def names_read() -> dict[str, list[str]]:
    """Operators that have a reader, by format or domain of operators."""
    return {_title(key, domain): list(found) for key, domain, found in _tables()}


def formats_markdown() -> str:
    """The page formats.md of the site, made from the readers."""
    lines, last = [HEAD], ""
    for key, domain, found in _tables():
        if key != last and key in NOTES:
            lines += [NOTES[key], ""]
        last = key
        lines += [f"## {_title(key, domain)}", "", f"{len(found)} operators.", ""]
        lines += ["| operator | versions | inputs | attributes |", "|---|---|---|---|"]
        for name, versions in found.items():
            newest = versions[0]
            since = ", ".join(str(r.since) for r in reversed(versions))
            attributes = ", ".join(sorted(newest.attributes)).replace("|", "\\|")
            lines.append(f"| {name} | {since} | {newest.described.replace('*', chr(92) + '*')} | {attributes} |")
        lines.append("")
    return "\n".join(lines)
