"""What mkdocs does besides: pages from the top of the repository, pages made from the code, and their links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from bolt_numba.cli import formats, machine

ROOT = Path(__file__).parent.parent
TOP = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages at the top of the repository."""
MADE = {
    "operators.md": machine.operators_markdown,
    "data-safety.md": machine.safety_markdown,
    "formats.md": formats.formats_markdown,
}
"""Pages that are made from the code; `bolt-numba ops` prints them."""


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages of `TOP` and of `MADE`."""
    for name in TOP:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for name, make in MADE.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Links as seen from the site, where the pages of `TOP` stand beside those of docs; home is alone in its tab."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    if page.file.src_uri in TOP:
        return markdown.replace("](docs/", "](")
    if page.file.src_uri == "operators.md":
        return markdown.replace("][", r"]\[")  # indices, no links
    return re.sub(rf"\]\(((?:\.\./)*)\.\./({'|'.join(map(re.escape, TOP))})", r"](\1\2", markdown)
