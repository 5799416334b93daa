"""The pages on readers: their examples run, one after the other, and do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs" / "readers").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    """In a process of their own, which keeps what they register to itself."""
    parts = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert parts
    code = [sys.executable, "-c", "\n".join(parts)]
    done = subprocess.run(code, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert not done.returncode, done.stderr
    assert "unsupported" in done.stdout, "each page shows what is told before there is a reader"
