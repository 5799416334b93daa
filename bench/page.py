"""Generated parts of a page: what stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``."""

from __future__ import annotations

from pathlib import Path


def fill(page: Path, parts: dict[str, str]) -> None:
    """Replace the parts by name; ValueError where the page lacks one."""
    content = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if content.count(begin) != 1 or content.count(end) != 1:
            raise ValueError(f"{page.name}: part {name!r}: got none or several, wanted one with a begin and an end")
        head, tail = content.split(begin)[0], content.split(end)[1]
        content = f"{head}{begin}\n{part}\n{end}{tail}"
    page.write_text(content, encoding="utf-8")
