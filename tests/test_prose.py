"""The pages are read by people who are new to the project: short sentences, and a short glossary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORDS = 25
ENTRIES = 40
_DOCS = (
    "architecture", "c-api", "clients", "export", "fast", "flow", "plugins/index", "plugins/simnpu", "index",
    "kernels", "onnxruntime", "other-formats", "performance", "quantisation", "serve", "start", "text",
    "troubleshooting", "tutorials/ocr", "tutorials/search", "tutorials/serving", "tutorials/sklearn",
    "tutorials/speech", "tutorials/watching", "usage",
)  # fmt: skip
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{name}.md" for name in _DOCS))


def sentences(text: str) -> list[str]:
    """Sentences of the paragraphs and list items of a page; code, tables and headings are none."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^[ \t]*(\||#|<!--|!\[).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "word", text)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    found = [s for block in blocks for s in re.split(r"(?<=[.!?:])\s+(?=[A-Z*\[\"]|word)", " ".join(block.split()))]
    return [s for s in found if len(s.split()) > 2]


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short(page: str) -> None:
    found = sorted(sentences((ROOT / page).read_text()), key=lambda s: len(s.split()))
    tenth = found[len(found) * 9 // 10]
    assert len(tenth.split()) <= WORDS, f"{page}: a tenth of its sentences are longer than this one: {tenth}"


def test_sentences_are_counted_as_a_reader_would() -> None:
    text = "# Title\n\nOne two three four. Five six\nseven `a b.c` nine.\n\n- An item of five words\n"
    text += "```\ncode. More\n```\n| a | b |\n"
    assert sentences(text) == ["One two three four.", "Five six seven word nine.", "- An item of five words"]


def test_the_glossary_is_short_and_leads_to_files() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (.+) \|$", page, re.MULTILINE)[1:]
    assert len(rows) <= ENTRIES
    assert [word for word, _ in rows] == sorted({word for word, _ in rows})
    for word, where in rows:
        path = where.strip("`")
        assert where.startswith("[") or (ROOT / "bolt_numba" / path).exists(), f"{word}: {path}"
