"""What mkdocs does besides: pages from the top of the repository, and links between them and the folder docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
TOP = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages at the top of the repository."""


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages of `TOP`."""
    for name in TOP:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
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
