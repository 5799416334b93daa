"""The documentation does what it says: every block and command of its pages runs, and everything it names is there."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import bolt_numba
from bolt_numba import errors
from bolt_numba.cli.app import app
from tests.pages import LANGUAGES, SKIPPED, agrees, blocks

ROOT = Path(__file__).parent.parent
READ = (
    "README.md", "docs/start.md", "docs/fast.md", "docs/usage.md", "docs/other-formats.md", "docs/troubleshooting.md",
    "docs/quantisation.md", "docs/flow.md", "docs/cuda.md", "docs/preprocessing.md", "docs/plugins/index.md",
    "docs/own-operators.md", "docs/serve.md", "docs/chat.md", "docs/batch.md", "docs/text.md", "docs/generate.md",
    "docs/plugins/placement.md", "docs/plugins/operators.md",
    *(f"docs/tutorials/{name}.md" for name in (
        "ocr", "search", "speech", "voice", "translate", "tagging", "sklearn", "serving", "watching", "images",
    )),
)  # fmt: skip
"""Pages whose blocks run, one after another as a reader runs them."""
OWN_MODEL = """
import numpy as np
from onnx import TensorProto, helper, save
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "logits"))
graph = helper.make_graph([helper.make_node("Exp", ["x"], ["logits"])], "g", [x], [y])
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), "model.onnx")
array = np.zeros(3, np.float32)
"""
OF_THE_READER = ("DESCRIPTION.md", "docs/index.md", "docs/numerics.md")
"""Pages that show a call with any model; tests give them one."""
ELSEWHERE = {
    "docs/aarch64.md": "a cross compiler or packages for ARM are needed; tests/aarch64 does what they show",
    "docs/architecture.md": "a drawing",
    "docs/c-api.md": "compilers of C, C++ and Java are needed; tests/native does the same",
    "docs/export.md": "a C compiler is needed; tests/test_export_library.py does the same",
    "docs/plugins/simnpu.md": "tests/plugins/test_tools.py runs it",
    "docs/onnxruntime.md": "tests/test_onnxruntime_page.py runs them",
    "docs/readers/caffe.md": "tests/test_reader_pages.py runs it",
    "docs/readers/gguf.md": "tests/test_reader_pages.py runs it",
    "docs/readers/onnx.md": "tests/test_reader_pages.py runs it",
    "docs/readers/paddle.md": "tests/test_reader_pages.py runs it",
    "docs/readers/tflite.md": "tests/test_reader_pages.py runs it",
    "docs/kernels.md": "tests/test_jit.py runs it",
    "docs/security.md": "root only; tests/serve/test_image.py does the same",
}
"""Pages with blocks that do not run, and why."""
SECONDS = 300
PAGES = sorted(str(p.relative_to(ROOT)) for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
INSTALL = "pip install .                    # from a checkout: there is no release on PyPI yet"
"""What every page says of installing."""
IN_PACKAGE = {"InferenceSession", "SessionOptions"}
"""Names that onnxruntime.md tells of instead of the reference."""


MADE = {"docs/operators.md", "docs/data-safety.md", "docs/formats.md"}
"""Pages that the site makes from the code (`docs/hooks.py`): links may lead there, and no file has them."""
NOT_IN_SITE = {"README.md", "DESCRIPTION.md", "SECURITY.md"}


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text()


@pytest.mark.parametrize("page", [*READ, *OF_THE_READER])
def test_page(page: str, tmp_path: Path) -> None:
    if page in OF_THE_READER:
        (tmp_path / "given.py").write_text(OWN_MODEL)
    elif page == "docs/cuda.md":
        (tmp_path / "given.py").write_text("import bolt_numba_simulator\n")  # it need not be installed for tests
    command = [sys.executable, "-m", "tests.pages", ROOT / page, tmp_path]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as reader:
        try:
            said = reader.communicate(timeout=SECONDS)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(reader.pid, signal.SIGKILL)  # servers, too, of a page that took too long
    if reader.returncode == SKIPPED:
        pytest.skip(said.strip())
    assert reader.returncode == 0, said


TALKATIVE = """
```python title="app.py"
print("a line of a log\\n" * 20_000)


async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
```

```sh
uvicorn app:app --port 8765
```
"""


def test_a_server_may_say_more_than_a_pipe_holds(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    page = tmp_path / "page.md"
    page.write_text(TALKATIVE)
    done = subprocess.run([sys.executable, "-m", "tests.pages", page, tmp_path], cwd=ROOT, timeout=50, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_or_say_why_not(page: str) -> None:
    found = list(blocks(text_of(page)))
    assert not found or page in (*READ, *OF_THE_READER, *ELSEWHERE), f"{page}: add it to READ or ELSEWHERE"
    assert found or page not in ELSEWHERE, f"{page} has no blocks: take it out of ELSEWHERE"
    if page in READ:
        for block in found:
            assert block.language in LANGUAGES or page == "README.md", f"{page}:{block.line}: {block.language!r}"


# --- what pages name -------------------------------------------------------------------------------------------------


def commands(page: str) -> Iterator[list[str]]:
    """Command lines of bolt-numba on a page, in blocks and between backticks."""
    inline = re.findall(r"`(bolt-numba [^`]+)`", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL))
    typed = [block.text for block in blocks(text_of(page)) if block.language != "text"]
    fenced = [line for text in typed for line in text.replace("\\\n", "").splitlines()]
    for line in (*inline, *fenced):
        if line.startswith("bolt-numba "):
            yield shlex.split(line, comments=True)[1:]


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_these_names_and_options(page: str) -> None:
    whole: Any = typer.main.get_command(app)
    for words in commands(page):
        command = whole
        options = {o for p in command.params for o in p.opts}
        for word in words:
            if hasattr(command, "commands") and not word.startswith("-"):
                if "<" in word or "..." in word or "," in word or word.isupper():
                    break
                assert word in command.commands, f"{page}: bolt-numba {' '.join(words)}: no command {word}"
                command = command.commands[word]
                options |= {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
            elif re.match(r"--?[a-z]", word):
                name = word.split("=")[0].rstrip(",.")
                assert name in options | {"--help", "-h"}, f"{page}: bolt-numba {' '.join(words)}: no option {name}"


@pytest.mark.parametrize("page", PAGES)
def test_modules_are_there(page: str) -> None:
    for name in re.findall(r"python -m ((?:bench|tests)\.\w+)", text_of(page)):
        assert (ROOT / f"{name.replace('.', '/')}.py").exists() or (ROOT / name.replace(".", "/")).is_dir(), name


@pytest.mark.parametrize("page", [p for p in PAGES if p != "DESCRIPTION.md"])  # which an index shows, once it has us
def test_pages_install_from_a_checkout(page: str) -> None:
    assert not re.search(r"pip install bolt-numba(?!\[)", text_of(page)), "there is no release"
    lines = [line for block in blocks(text_of(page)) if block.language == "sh" for line in block.text.splitlines()]
    assert {line for line in lines if line.startswith("pip install . ")} <= {INSTALL}


def slugs(page: str) -> set[str]:
    """Anchors of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", t)).strip().lower() for t in titles]
    return {re.sub(r"[\s]+", "-", t) for t in plain}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"`[^`]*`", "", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        if page.startswith("docs/") and str(target.relative_to(ROOT)) in MADE:
            continue
        assert target.exists(), f"{page}: {link} leads nowhere"
        if anchor:
            assert anchor in slugs(str(target.relative_to(ROOT))), f"{page}: {link}: no such heading"


# --- errors, reference, pictures -------------------------------------------------------------------------------------

ERRORS = sorted(n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.BoltError))


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_has_a_section_that_it_names(name: str) -> None:
    doc = vars(errors)[name].__doc__
    page, _, anchor = re.search(r"What to do: (\S+?)(#)(\w+)", doc).groups()
    assert anchor in slugs(page)
    assert re.search(rf"^## {name}$", text_of(page), re.MULTILINE)


def test_messages_are_those_of_the_code() -> None:
    """What tables of troubleshooting quote is in the sources, up to what dots stand for."""
    sources = "".join(f.read_text() for top in ("bolt_numba", "converters") for f in (ROOT / top).rglob("*.py"))
    sources = re.sub(r"\{[^{}]*\}", "", re.sub(r'"\s*\n?\s*f?"', "", sources))
    quoted = re.findall(r"^\| `([^`]+)` ", text_of("docs/troubleshooting.md"), re.MULTILINE)
    assert len(quoted) > 10
    for message in quoted:
        for part in (p.strip(" :,") for p in message.split("...")):
            assert not part or re.sub(r"<\w+>|'[^']*'", "", part).strip() in sources, message


def test_every_public_name_is_in_the_reference() -> None:
    reference = "".join(text_of(p) for p in PAGES if p.startswith("docs/api/"))
    for name in set(bolt_numba.__all__) - IN_PACKAGE - {"__version__"} - set(ERRORS):
        assert f"heading: bn.{name}," in reference or f".{name}\n" in reference, f"docs/api: {name} is not there"


def picture_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs" / "pictures" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_of_the_results() -> None:
    make = picture_maker()
    assert make.what() == (make.FOLDER / "what.svg").read_text()
    found = json.loads(make.RESULT.read_text())
    assert make.speed(found) == (make.FOLDER / "speed.svg").read_text()
    rows = [{"op": "Conv", "seconds": 0.003}, {"op": "Relu", "seconds": 0.001}]
    drawn = make.profile({"rows": rows}, "A run")
    assert "A run: 4.0 ms in 2 steps" in drawn
    assert "3,000 us, 75.0%" in drawn


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_figures_are_of_the_results(page: str) -> None:
    times: dict[str, dict[str, str]] = {"bolt": {}, "onnxruntime": {}}
    for row in json.loads(picture_maker().RESULT.read_text())["rows"]:
        if row["threads"] == 1 and row["peer"] in times and "median_ms" in row:
            times[row["peer"]][row["model"]] = f"{row['median_ms']:#.3g}".rstrip(".")
    shown = re.findall(r"^\| ([\w-]+).* \| (\S+) ms \| (\S+) ms \|$", text_of(page), re.MULTILINE)
    models = {"ResNet-50": "resnet50", "YOLO": "yolo_n", "MiniLM": "minilm_128", "BERT-base": "bert_base_128"}
    assert shown == [(m, times["bolt"][name], times["onnxruntime"][name]) for m, name in models.items()]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": (\S+\.md)$|- (\S+\.md)$", text_of("mkdocs.yml"), re.MULTILINE))
    names = {a or b for a, b in listed}
    for page in PAGES:
        name = page.removeprefix("docs/")
        assert name in names or page in NOT_IN_SITE, f"{page}: add it to nav in mkdocs.yml"


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the test itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ("a  b\n", "a b"), ("took 3.1 ms", "took 7 ms"), ("12 lines", "12 lines"), ("0.991 x", "0.99 x"),
        ("(1, ...\nend", "(1, 2, 3)\nmore\nend"), ("40 us for 32000 us", "95 us for 32000 us"),
        ("512 wide", "514 wide"),
    ],
)  # fmt: skip
def test_what_is_printed_agrees(wanted: str, got: str) -> None:
    assert agrees(wanted, got)


@pytest.mark.parametrize(
    ("wanted", "got"),
    [("a b", "a c"), ("3 lines", "4 lines"), ("0.99", "0.9"), ("(1, 2)", "(1, 3)"), ("end", "end\nmore")],
)
def test_what_is_printed_differs(wanted: str, got: str) -> None:
    assert not agrees(wanted, got)


def test_blocks_are_found_with_their_places() -> None:
    page = '# T\n\n```sh\na\n```\n\n- in a list\n\n    ```python title="x.py"\n    b = 1\n    ```\n'
    first, second = blocks(page)
    assert first == ("sh", "", "a\n", 4)
    assert second == ("python", "x.py", "b = 1\n", 10)


@pytest.mark.parametrize(
    "text", ["```python\n1 / 0\n```\n", "```sh\nfalse\n```\n", "```sh\necho a\n```\n```text\nb\n```\n"]
)
def test_a_page_that_is_wrong_fails(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    command = [sys.executable, "-m", "tests.pages", page, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "page.md:2" in done.stdout or "page.md:5" in done.stdout
