"""What is assumed of the processor: read as the system tells it, in one place, and no result depends on it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bolt_numba.kernels.cpu import machine
from bolt_numba.kernels.instructions import processor

KERNELS = Path(machine.__file__).parent


def describe(root: Path, caches: dict[str, tuple[str, str, str, str]], siblings: str = "1") -> Path:
    """Write what Linux shows of a processor: level, kind, size and the processors that share it of each cache."""
    cache = root / "cache"
    for name, (level, kind, size, shared) in caches.items():
        place = cache / name
        place.mkdir(parents=True)
        for file, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_map", shared)):
            (place / file).write_text(f"{text}\n")
        (place / "ways_of_associativity").write_text("12\n")
    (root / "topology").mkdir(exist_ok=True)
    (root / "topology" / "thread_siblings").write_text(f"{siblings}\n")
    return cache


@pytest.mark.parametrize(
    ("siblings", "shared", "wanted"),
    [("1", "1", 2 << 20), ("3", "3", 2 << 20), ("00000000,00000003", "00000000,000000ff", 1 << 19)],
)
def test_caches_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, siblings: str, shared: str, wanted: int
) -> None:
    """The second-level cache is divided among cores, not among the threads of one."""
    caches = {
        "index0": ("1", "Data", "48K", shared),
        "index1": ("1", "Instruction", "64K", shared),
        "index2": ("2", "Unified", "2048K", shared),
        "index3": ("3", "Unified", "96M", "ffffffff"),
    }
    monkeypatch.setattr(processor, "_CACHES", describe(tmp_path, caches, siblings))
    assert processor._caches() == (48 << 10, 12, wanted, 96 << 20)


def test_a_processor_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_CACHES", tmp_path)
    assert processor._caches() == processor._UNKNOWN
    odd = {
        "index0": ("1", "Data", "much", "1"),
        "index2": ("2", "Unified", "1M", "x"),
        "index3": ("3", "Data", "", "1"),
    }
    monkeypatch.setattr(processor, "_CACHES", describe(tmp_path, odd))
    assert processor._caches() == processor._UNKNOWN


def test_sizes_are_in_proportion() -> None:
    assert 16 << 10 <= machine.L1 <= 192 << 10
    assert machine.L1_STRIDE * machine.L1_WAYS <= machine.L1
    assert 256 << 10 <= machine.L2 <= 2 << 20
    assert 4 << 20 <= machine.L3 <= 64 << 20


ROOM = ("MOST_", "MAX_")
"""Limits of memory that a model may take, which are no machine's."""


def numbers(value: ast.expr) -> int:
    """The greatest of the literal numbers of an expression, shifts and products computed."""
    if isinstance(value, ast.BinOp) and isinstance(value.left, ast.Constant) and isinstance(value.right, ast.Constant):
        return int(eval(compile(ast.Expression(value), "", "eval")))
    found = [n.value for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, int | float)]
    inner = [numbers(n) for n in ast.walk(value) if isinstance(n, ast.BinOp) and n is not value]
    return int(max([*found, *inner, 0]))


@pytest.mark.parametrize("file", sorted(KERNELS.rglob("*.py")), ids=lambda f: f.stem)
def test_no_kernel_has_numbers_of_its_own(file: Path) -> None:
    """Sizes of caches, and work from which threads pay, are shares and multiples of what `machine` says."""
    if file.name == "machine.py":
        return
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            names = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            told = [n for n in names if n.endswith("_BYTES") or n.startswith(("PARALLEL", "SERIAL", "SHARED"))]
            if told and not any(n.startswith(ROOM) for n in names):
                assert numbers(node.value) <= 4096, f"{file.name}: {told}: wanted a share of what `machine` says"


OTHER = """
import json, sys
from bolt_numba.kernels.instructions import processor
if {other}:
    cpu, features, _ = processor.processor()
    processor.processor = lambda: (cpu, features, (48 << 10, 12, 512 << 10, 8 << 20))
from bolt_numba.kernels.cpu import machine
if {other}:
    rate = 3 - machine.FMA_RATE
    machine.FMA_RATE, machine.IN_FLIGHT = rate, rate * machine.FMA_LATENCY
    machine.PAYS_FLOPS //= 4; machine.PAYS_BYTES //= 4; machine.PAYS_ELEMENTS //= 4; machine.PAYS_NS /= 4
    machine.CROSSING, machine.AGAIN, machine.PREFETCH = 1.0, 30.0, 1024
import hashlib
import numpy as np
import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Clip, Sigmoid
from bolt_numba.types import F32, TensorType
rng, g = np.random.default_rng(0), Graph("net")
b = Builder(g)
w = lambda *dims: rng.standard_normal(dims, np.float32)
x = g.add_input("x", TensorType(F32, (2, 3, 61, 45)))
y = b(Conv(pads=(1,) * 4, strides=(2, 2)), x, w(48, 3, 3, 3))
y = b(Clip(0.0, 6.0), b(Conv(), y, w(96, 48, 1, 1)))
y = b(Clip(0.0, 6.0), b(Conv(pads=(1,) * 4, group=96), y, w(96, 1, 3, 3)))
y = b(Sigmoid(), b(Conv(pads=(1,) * 4), y, w(64, 96, 3, 3)))
y = b(Conv(pads=(2,) * 4, dilations=(2, 2)), y, w(33, 64, 3, 3))
g.add_output(b(Softmax(axis=-1), b(MatMul(), y, w(23, 70))), "y")
feeds = {{"x": w(2, 3, 61, 45)}}
made = [bn.compile(g, threads=t).run(None, feeds)[0] for t in (1, 3)]
print(json.dumps([hashlib.sha256(m.tobytes()).hexdigest() for m in made]))
"""


@pytest.mark.timeout(600)
def test_another_processor_gives_the_same_bits() -> None:
    """Other caches, wider multipliers, cheaper threads: work is cut otherwise, and every sum stays what it was."""
    found = []
    for other in (False, True):
        command = [sys.executable, "-c", OTHER.format(other=other)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert len(set(found[0])) == 1
