"""A kernel that touches what it must not: the test fails with a line that says where, and the others run."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from bolt_numba.kernels.cpu.language.lang import BYTES, LANES, load_f32, store_f32, vload, vstore
from bolt_numba.kernels.jit import I64, PTR, Native, native
from bolt_numba.kernels.registry import Entry, In, Out, Step
from bolt_numba.ops.pointwise import Relu
from bolt_numba.types import F32, TensorType
from tests.harness import Planned, run_planned

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are opened on Linux only")
SIZE = 10


def reach(a: Any) -> dict[str, int]:
    return {"x": 4 * a.n, "y": 4 * a.n}


def short_reach(a: Any) -> dict[str, int]:
    return {"x": 4 * a.n - 4, "y": 4 * a.n}


def no_reach(a: Any) -> dict[str, int]:
    return {"x": 0, "y": 4 * a.n}


@native(x=PTR, y=PTR, n=I64, extents=reach)
def writes_behind(p: Any, tid: int, nthreads: int) -> None:
    for i in range(p.n + 1):
        store_f32(p.y + 4 * i, np.float32(1))


@native(x=PTR, y=PTR, n=I64, extents=reach)
def writes_a_vector(p: Any, tid: int, nthreads: int) -> None:
    for i in range(0, p.n, LANES):
        vstore(p.y + 4 * i, vload(p.x) * 2.0)


@native(x=PTR, y=PTR, n=I64, extents=reach)
def reads_before(p: Any, tid: int, nthreads: int) -> None:
    for i in range(p.n):
        store_f32(p.y + 4 * i, load_f32(p.x + 4 * i - 4) * np.float32(0) + np.float32(1))


@native(x=PTR, y=PTR, n=I64, extents=short_reach)
def reads_more_than_declared(p: Any, tid: int, nthreads: int) -> None:
    for i in range(p.n):
        store_f32(p.y + 4 * i, load_f32(p.x + 4 * i))


@native(x=PTR, y=PTR, n=I64, extents=no_reach)
def reads_what_it_does_not_touch(p: Any, tid: int, nthreads: int) -> None:
    for i in range(p.n):
        store_f32(p.y + 4 * i, load_f32(p.x))


@native(x=PTR, y=PTR, n=I64, extents=reach)
def good(p: Any, tid: int, nthreads: int) -> None:
    for i in range(p.n):
        store_f32(p.y + 4 * i, load_f32(p.x + 4 * i))


def run(kernel: Native) -> Any:
    kind = TensorType(F32, (SIZE,))
    steps = [Step(kernel, {"x": In(0), "y": Out(0), "n": SIZE}, parallel=False)]
    entry = Entry(Relu, "cpu", "f32", lambda *_: steps, lambda *_: True, 0, "mine")
    return run_planned(Planned(Relu(), entry, [kind], [kind], steps), [np.ones(SIZE, F32)])


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (writes_behind, r"kernel 'writes_behind' of mine: writes byte 1 behind the 40 bytes of 'y' \(output 0\)"),
        (writes_a_vector, r"reads byte 1 behind the 40 bytes of 'x' \(input 0\)"),
        (writes_a_vector, r"writes byte 1 behind the 40 bytes of 'y' \(output 0\)"),
        (reads_before, r"reads byte 4 before the 40 bytes of 'x' \(input 0\)"),
        (
            reads_more_than_declared,
            r"of mine, on the bytes that its extents declare: reads byte 1 behind the 36 bytes of 'x' \(input 0\)",
        ),
        (reads_what_it_does_not_touch, "declare: reads 'x', of which it declares to touch nothing"),
    ],
)
def test_what_is_touched_beyond_is_told(kernel: Native, said: str) -> None:
    if kernel is writes_a_vector and SIZE * 4 % BYTES == 0:
        pytest.skip("whole vectors")
    assert faulthandler.is_enabled()
    for _ in range(2):  # and all goes on as before
        with pytest.raises(AssertionError, match=said):
            run(kernel)
        np.testing.assert_array_equal(run(good)[0], np.ones(SIZE, F32))
    assert faulthandler.is_enabled()


def test_a_runaway_dies_with_its_address() -> None:
    """No page can be opened where the processor has no addresses."""
    code = (
        "import ctypes, faulthandler\n"
        "from tests.beyond import watched\n"
        "faulthandler.enable()\n"
        "with watched():\n"
        "    ctypes.memmove(1 << 62, b'x', 1)\n"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert made.returncode == -11
    assert "a kernel touches 0x" in made.stderr
    assert "Fatal Python error" in made.stderr


_ATTACK = """
from bolt_numba.kernels.registry import In, Out, Step, kernel, load
from bolt_numba.ops.pointwise import Relu
from bolt_numba.types import F32
from tests.attack.operands import attack
from tests.guarded_sessions import install
from tests.test_beyond import writes_behind

load("cpu")


@kernel(Relu, rank=99, accepts=lambda op, ins: ins[0].dtype == F32)
def mine(op, ins, outs, context):
    return [Step(writes_behind, {"x": In(0), "y": Out(0), "n": outs[0].size}, parallel=False)]


install()
print(*{(state, detail.partition(" Relu")[0]) for seed in range(60) for _, state, detail in [attack(Relu, seed)]})
"""


def test_whole_sessions_are_watched_in_the_attack() -> None:
    made = subprocess.run([sys.executable, "-c", _ATTACK], capture_output=True, text=True, timeout=200, check=True)
    assert "('beyond', 'byte 0 of the page beside a buffer is written')" in made.stdout
