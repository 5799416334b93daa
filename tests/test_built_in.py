"""Kernels that came with the package, the wheels that carry them, and runs where neither Numba nor LLVM nor onnx is."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bench import wheels
from bolt_numba.base.files import folder_index
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels import built_in, jit
from bolt_numba.kernels.built_in import count_built_in, write_built_in
from bolt_numba.kernels.instructions.isa import lower_levels, target
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Relu
from bolt_numba.types import F32, TensorType
from tests.models import MODELS as FILES

NOT_INSTALLED = ("numba", "llvmlite", "onnx", "google.protobuf", "typer", "rich", "onnxruntime")
WITHOUT = f"import sys\nfor name in {NOT_INSTALLED}:\n    sys.modules[name] = None\n"
"""How a process begins that finds only what models need to run."""
RUN = """
import sys
from pathlib import Path
import numpy as np
from bolt_numba.base.files import kept
if len(sys.argv) > 2:
    kept.BUILT_IN = Path(sys.argv[2])
import bolt_numba as bn
from bolt_numba.kernels.jit import on_compile
on_compile(lambda name, done: sys.exit(f"compiled {name}"))
result = bn.compile(sys.argv[1], threads=1)({"x": np.ones((3, 8), "f4")})["y"]
assert np.array_equal(result, np.full((3, 4), 8.0)), result
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = Graph("net")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (3, 8)))
    graph.add_output(b(Relu(), b(MatMul(), x, np.ones((8, 4), np.float32))), "y")
    path = tmp_path / "net.bolt"
    bn.save(graph, path)
    return path


def run(code: str, cache: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A process with a cache of its own and none of the system's."""
    env = os.environ | {"BOLT_NUMBA_CACHE_DIR": str(cache), "BOLT_NUMBA_SYSTEM_CACHE": "", "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def warm(model: Path, tmp_path: Path) -> Path:
    """A cache folder that has the model's kernels."""
    cache = tmp_path / "warm"
    done = run(RUN.replace("on_compile(lambda", "callable(lambda"), cache, model)
    assert done.returncode == 0, done.stderr[-2000:]
    return cache


def test_models_run_without_numba_llvm_and_onnx(model: Path, warm: Path) -> None:
    """Also where a process without a compiler was there later than one with it."""
    (warm / f"{jit.package_name()}-none").mkdir()
    done = run(WITHOUT + RUN, warm, model)
    assert done.returncode == 0, done.stderr[-2000:]


def test_kernels_of_the_package_serve_an_empty_cache(model: Path, warm: Path, tmp_path: Path) -> None:
    """Nothing is compiled, with a compiler or without; and no file is needed for each kernel."""
    codes = wheels.kernels_in(target().level, warm)
    assert codes
    box = tmp_path / "built_in"
    box.mkdir()
    write_built_in(box / f"{jit.package_name()}.kernels", codes)
    for begin in (WITHOUT, "import sys\n"):
        done = run(begin + RUN, tmp_path / "empty", model, box)
        assert done.returncode == 0, done.stderr[-2000:]
    assert not list((tmp_path / "empty").glob("*/*.kernel"))


@pytest.mark.skipif(not lower_levels(target()), reason="no level below has the same vectors")
def test_without_a_compiler_kernels_of_a_lower_level_serve(model: Path, warm: Path, tmp_path: Path) -> None:
    """A wheel need not have every level.  With a compiler, those of the own level are compiled: they may be faster."""
    box = tmp_path / "built_in"
    box.mkdir()
    lower = lower_levels(target())[-1].level
    write_built_in(box / f"{lower}-{jit.language_digest()}.kernels", wheels.kernels_in(target().level, warm))
    done = run(WITHOUT + RUN, tmp_path / "empty", model, box)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "compiled" in run("import sys\n" + RUN, tmp_path / "empty", model, box).stderr


@pytest.mark.parametrize("before", ["", "sys.stderr.isatty = lambda: True\n"])
def test_what_is_missing_without_a_compiler_is_told(tmp_path: Path, before: str) -> None:
    """In a terminal, too, where compiling is shown by a package that need not be there."""
    graph = Graph("net")
    x = graph.add_input("x", TensorType(F32, (3, 8)))
    graph.add_output(Builder(graph)(Relu(), x), "y")
    bn.save(graph, tmp_path / "relu.bolt")
    code = WITHOUT + before + RUN.replace("on_compile(lambda", "callable(lambda")
    done = run(code, tmp_path / "empty", tmp_path / "relu.bolt")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"machine code for {target().level}: got none, wanted it with the package or in a cache, or numba" in last


def test_onnx_files_and_the_command_line_name_what_they_need(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"\x08\x08\x12\x01a")
    done = run(WITHOUT + "import bolt_numba as bn\nbn.load(sys.argv[1])", tmp_path / "c", tmp_path / "x.onnx")
    assert "packages that read ONNX files: got no onnx, wanted onnx and protobuf" in done.stderr.splitlines()[-1]
    done = run(WITHOUT + "from bolt_numba.__main__ import main\nmain()", tmp_path / "c")
    assert done.returncode == 1
    assert done.stderr.strip() == "error: the command line: got no typer, wanted typer and rich: pip install typer rich"


def test_a_file_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not in it, and what is damaged, is not there."""
    monkeypatch.setattr(built_in, "BUILT_IN", tmp_path)
    codes = {"a-1": os.urandom(5000), "b-2": bytes(5000), "c-3": b""}
    write_built_in(tmp_path / "level.kernels", codes)
    assert {k: built_in.built_in("level", k) for k in codes} == codes
    assert count_built_in("level") == 3
    assert built_in.built_in("level", "d-4") is None
    assert built_in.built_in("other", "a-1") is None
    whole = (tmp_path / "level.kernels").read_bytes()
    for i, size in enumerate((0, 5, 20, len(whole) - 9)):
        (tmp_path / f"cut{i}.kernels").write_bytes(whole[:size])
        assert built_in.built_in(f"cut{i}", "c-3") is None


def test_lists_of_modules_come_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold for sources of the same names and sizes, whenever those were installed."""
    monkeypatch.setattr(folder_index, "BUILT_IN", tmp_path / "built_in")
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "a.py").write_text("one = 1\n")
    (tmp_path / "built_in").mkdir()
    (tmp_path / "built_in" / folder_index.built_in_name("kind", sources)).write_text('{"a": 1}')
    os.utime(sources / "a.py", (1, 1))
    assert folder_index.remembered("kind", sources) == {"a": 1}
    (sources / "a.py").write_text("three = 3\n")
    assert folder_index.remembered("kind", sources) is None


METADATA = """Metadata-Version: 2.4
Name: bolt-numba
Version: 0.1.0
Requires-Dist: numpy>=2.0
Requires-Dist: numba<0.69,>=0.62
Requires-Dist: onnx>=1.18
Requires-Dist: ml_dtypes>=0.5
Requires-Dist: protobuf>=5
Requires-Dist: platformdirs>=4
Requires-Dist: typer>=0.15
Requires-Dist: rich>=13
Provides-Extra: dev
Requires-Dist: pytest>=8; extra == "dev"

# bolt-numba
"""


@pytest.mark.parametrize("is_run_only", [False, True])
def test_wheels_are_well_formed(tmp_path: Path, is_run_only: bool) -> None:
    pure = tmp_path / "bolt_numba-0.1.0-py3-none-any.whl"
    about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(pure, "w") as made:
        made.writestr("bolt_numba/__init__.py", "")
        made.writestr("bolt_numba-0.1.0.dist-info/METADATA", METADATA)
        made.writestr("bolt_numba-0.1.0.dist-info/WHEEL", about)
        made.writestr("bolt_numba-0.1.0.dist-info/RECORD", "")
    files = {f"{wheels.FOLDER}/level.kernels": b"kernels"}
    found = wheels.write_wheel(pure, files, tmp_path / "dist", is_run_only)
    name = "bolt_numba_run" if is_run_only else "bolt_numba"
    assert found.name == f"{name}-0.1.0-{wheels.tag()}.whl"
    with zipfile.ZipFile(found) as made:
        content = {n: made.read(n) for n in made.namelist()}
    record = content.pop(f"{name}-0.1.0.dist-info/RECORD").decode().splitlines()
    lines = dict(line.split(",", 1) for line in record)
    assert set(lines) == {*content, f"{name}-0.1.0.dist-info/RECORD"}
    for n, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert lines[n] == f"sha256={digest},{len(data)}"
    assert f"Tag: {wheels.tag()}" in content[f"{name}-0.1.0.dist-info/WHEEL"].decode()
    bill = json.loads(content[f"{name}-0.1.0.dist-info/sboms/bolt_numba.cdx.json"])
    assert {"numba", "llvmlite"} == {tool["name"] for tool in bill["metadata"]["tools"]["components"]}
    assert ("numba" in {each["name"] for each in bill["components"]}) != is_run_only
    text = content[f"{name}-0.1.0.dist-info/METADATA"].decode()
    assert text.endswith("\n\n# bolt-numba\n")
    assert ("numba<0.69" in text) != is_run_only
    if is_run_only:
        needed = [x for x in text.splitlines() if x.startswith("Requires-Dist") and "extra" not in x]
        assert needed == [f"Requires-Dist: {x}" for x in ("numpy>=2.0", "ml_dtypes>=0.5", "platformdirs>=4")]
        assert 'Requires-Dist: onnx>=1.18; extra == "onnx"' in text
        assert "\nName: bolt-numba-run\n" in text


def test_usual_models_are_known() -> None:
    unknown = {*wheels.USUAL} - {*wheels.ZOO, *wheels.TWINS, *wheels.ML, *FILES}
    assert [name for name in unknown if not wheels.model(name).is_file()] == []
    assert any("magika" in name for name in unknown)  # the model of the first page
