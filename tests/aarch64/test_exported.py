"""Exported libraries for AArch64: built by a cross compiler, run under an emulator, compared with sessions here."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.export.c_library import SOURCES, build_c_library
from bolt_numba.export.elf import AARCH64
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.quantize import quantize
from bolt_numba.types import F32, Array, TensorType
from tests.aarch64.remote import COMPILER, EMULATOR, LACKING, at_length
from tests.graphs import make
from tests.native.c_programs import STRESS
from tests.native.nets import selector
from tests.near import assert_near
from tests.pipeline_graphs import graph as pipeline_graph

pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not installed: {LACKING}")

CALL26, JUMP26 = 283, 282


def random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, F32)


def convolve(b: Builder, x: Value, channels: int, size: int, stride: int = 1, group: int = 1) -> Value:
    depth = int(x.type.dims[1]) // group
    w = random(channels + size, channels, depth, size, size) / np.float32(np.sqrt(depth * size * size))
    op = make("Conv", pads=(size // 2,) * 4, strides=(stride, stride), group=group)
    return b(op, x, w, random(channels, channels) / 8)


def cnn() -> Graph:
    """The layers of a MobileNet: a convolution, two inverted residuals with squeeze, a pool and a product."""
    g = Graph("cnn")
    b = Builder(g)
    x = b(make("HardSwish"), convolve(b, g.add_input("x", TensorType(F32, (1, 3, 32, 32))), 16, 3, 2))
    for stride in (1, 2):
        wide = b(make("Relu"), convolve(b, x, 48, 1))
        wide = b(make("Relu"), convolve(b, wide, 48, 3, stride, 48))
        made = convolve(b, wide, 16, 1)
        x = b(make("Add"), made, x) if stride == 1 else made
    y = b(make("Flatten"), b(make("ReduceMean"), x, np.array([2, 3])))
    g.add_output(b(make("Softmax", axis=-1), b(make("MatMul"), y, random(9, 16, 10))), "y")
    return g


def transformer() -> Graph:
    return pipeline_graph("transformer")


def quantised() -> Graph:
    return quantize(cnn(), [{"x": random(seed, 1, 3, 32, 32)} for seed in range(4)]).graph


def feeds_of(graph: Graph) -> dict[str, Array]:
    return {
        value.name: random(i, *(d if isinstance(d, int) else 4 for d in value.type.shape)).astype(value.type.dtype)
        for i, value in enumerate(graph.caller_inputs)
    }


def built(graph: Graph, folder: Path, feeds: dict[str, Array], target: str) -> Path:
    """The exported example, built without a library of its own."""
    shapes = [{name: array.shape for name, array in feeds.items()}]
    made = bn.export_model(graph, folder, target=target, threads=2, name="net", shapes=shapes)
    assert {file.name for file in made.built} == {"libnet.so", "libnet.a"}
    program = folder / "example"
    sources = ["-I", folder, "-I", folder / "runtime", folder / "main.c", folder / "libnet.a"]
    subprocess.run([COMPILER, "-static", "-O1", *sources, "-o", program, "-lm", "-pthread"], check=True)
    return program


def run(program: Path, feeds: dict[str, Array], outputs: list[Any]) -> list[Array]:
    for name, array in feeds.items():
        (program.parent / f"{name}.raw").write_bytes(array.tobytes())
    files = [f"{name}.raw" for name in feeds]
    command = [EMULATOR, "-cpu", "max", program, *files]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    raw = [(program.parent / f"{i}.out").read_bytes() for i in range(len(outputs))]
    return [np.frombuffer(data, a.dtype).reshape(a.shape) for data, a in zip(raw, outputs, strict=True)]


@pytest.mark.parametrize(("make_graph", "target", "tolerance"), [
    (transformer, "aarch64", 1e-5),
    pytest.param(cnn, "aarch64", 1e-5, marks=at_length),
    pytest.param(quantised, "aarch64", 0.0, marks=at_length),
    pytest.param(quantised, "aarch64-dot", 0.0, marks=at_length),
    pytest.param(quantised, "aarch64-i8mm", 0.0, marks=at_length),
])  # fmt: skip
def test_exported_networks_give_what_sessions_here_give(
    make_graph: Callable[[], Graph], target: str, tolerance: float, tmp_path: Path
) -> None:
    graph = make_graph()
    feeds = feeds_of(graph)
    wanted = list(bn.compile(graph)(**feeds))
    program = built(graph, tmp_path, feeds, target)
    for got, want in zip(run(program, feeds, wanted), wanted, strict=True):
        if tolerance:
            assert_near(got, want, tolerance)
        else:
            np.testing.assert_array_equal(got, want)
    assert_nothing_of_x86((tmp_path / "net.o").read_bytes())


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Array], list[Array]]:
    """A folder, an input of a model in which data decide sizes, and what a session gives here."""
    x = random(1, 4, 3) * (random(2, 4, 3) > 0)
    return tmp_path_factory.mktemp("selection"), {"x": x}, list(bn.compile(selector())(x=x).values())


def test_the_library_runs_a_bolt_file_there(selection: tuple[Path, dict[str, Array], list[Array]]) -> None:
    folder, feeds, wanted = selection
    bn.export_model(selector(), folder / "net.bolt", target="x86-64,aarch64", threads=2)
    library = build_c_library(folder, COMPILER)
    assert library[1].name == "libbolt_numba.a"
    program = folder / "stress"
    sources = ["-I", SOURCES, STRESS, library[1]]
    subprocess.run([COMPILER, "-static", "-O1", *sources, "-o", program, "-lm", "-pthread"], check=True)
    for args, given in ((["run", "net.bolt", "2", "3"], feeds["x"].tobytes()), (["cycles", "net.bolt", "20"], b"")):
        done = subprocess.run([EMULATOR, program, *args], cwd=folder, input=given, capture_output=True, check=False)
        assert not done.returncode, done.stderr
        if args[0] == "run":
            assert done.stdout == b"".join(array.tobytes() for array in wanted)


def test_one_source_is_a_program_there(selection: tuple[Path, dict[str, Array], list[Array]]) -> None:
    folder, feeds, wanted = selection
    made = bn.export_model(selector(), folder / "net", target="aarch64", threads=2, one_file=True)
    program = made.path / "example"
    command = [COMPILER, "-std=gnu11", "-static", "-O1", "main.c", "net.c", "-o", program, "-lm", "-pthread"]
    subprocess.run(command, cwd=made.path, check=True)
    for got, want in zip(run(program, feeds, wanted), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def assert_nothing_of_x86(code: bytes) -> None:
    """Only jumps of AArch64 leave the object, to functions of C."""
    (machine,) = struct.unpack_from("<H", code, 18)
    assert machine == AARCH64
    (start,), (count,) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<H", code, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * i) for i in range(count)]
    for _, kind, _, _, offset, nbytes, *_ in sections:
        if kind == 4:
            for at in range(offset, offset + nbytes, 24):
                assert struct.unpack_from("<QQ", code, at)[1] & 0xFFFFFFFF in (CALL26, JUMP26)
    text = next(code[s[4] : s[4] + s[5]] for s in sections if s[1] == 1 and s[2] & 4)
    assert b"\xff\x25" + bytes(4) not in text, "a jump of x86"
