"""Results too small for a normal number: zeros inside a run, on every thread, and NumPy's own as before around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.ops.arrays.reduce import Det
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import RNN
from bolt_numba.ops.pointwise import Log, Mul
from bolt_numba.types import F32, F64, Array, TensorType

pytestmark = pytest.mark.skipif(not target().is_x86, reason="only MXCSR is set")
SMALL = np.float32(1e-30)
DENORMAL = np.float32(1e-40)
THREADS = pytest.mark.parametrize("threads", [1, 2])


def session_of(threads: int, x: Array, *ops: Any) -> bn.Session:
    """One input like ``x``; each operator is given what the one before gave, and its own operands."""
    graph = Graph("g")
    build = Builder(graph)
    value = graph.add_input("x", TensorType(x.dtype, x.shape))
    for op, *operands in ops:
        made = build(op, value, *operands)
        value = made[0] if isinstance(made, tuple) else made
    graph.add_output(value, "y")
    return bn.compile(graph, threads=threads)


def numpy_keeps_denormals() -> bool:
    return bool(np.float32(1e-38) * np.float32(0.1) != 0 and (np.full(64, 1e-38, F32) * np.float32(0.1) != 0).all())


def full(n: int) -> Array:
    return np.full((n, n), SMALL)


@THREADS
@pytest.mark.parametrize("n", [4, 1024])  # one thread's work, and work to share
@pytest.mark.parametrize("dtype", [F32, F64])
def test_products_too_small_are_zero(threads: int, n: int, dtype: Any) -> None:
    tiny = np.finfo(dtype).tiny
    x = np.full((n, n), tiny, dtype)
    session = session_of(threads, x, (Mul(), np.array(0.25, dtype)))
    for _ in range(3):
        assert not session(x=x)[0].any()
        assert numpy_keeps_denormals()
        assert (x * np.array(0.25, dtype)).all()


@THREADS
def test_sums_of_products_too_small_are_zero(threads: int) -> None:
    x = full(256)
    session = session_of(threads, x, (MatMul(), np.full((256, 256), DENORMAL / SMALL / 1000, F32)))
    assert not session(x=x)[0].any()
    assert numpy_keeps_denormals()


@THREADS
def test_a_decaying_recurrence_ends_in_zero(threads: int) -> None:
    steps, size = 200, 32
    x = np.zeros((steps, 1, size), F32)
    x[0] = 1
    eye = np.eye(size, dtype=F32)[None]
    session = session_of(threads, x, (RNN(hidden_size=size, activations=("Relu",)), eye, eye / 2))
    y = session(x=x)[0].reshape(steps, size)
    normal = np.float32(2) ** -np.arange(steps, dtype=F32) >= np.finfo(F32).tiny
    assert (y[normal] > 0).all()
    assert not y[~normal].any()
    assert numpy_keeps_denormals()


@THREADS
def test_state_fed_back_decays_to_zero(threads: int) -> None:
    state = np.ones((64, 64), F32)
    session = session_of(threads, state, (Mul(), np.array(0.5, F32)))
    for _ in range(126):
        state = session(x=state)[0]
    assert (state == np.finfo(F32).tiny).all()
    assert not session(x=state)[0].any()
    assert (state * np.float32(0.5)).all()


@THREADS
def test_denormal_operands_keep_their_value(threads: int) -> None:
    x = np.full((512, 512), DENORMAL)
    np.testing.assert_allclose(session_of(threads, x, (Log(),))(x=x)[0], np.log(DENORMAL), rtol=1e-5)
    np.testing.assert_allclose(session_of(threads, x, (Mul(), np.array(1e10, F32)))(x=x)[0], 1e-30, rtol=1e-4)


class FailedError(Exception):
    """Raised by an operator that Python runs."""


@THREADS
def test_what_python_runs_between_keeps_denormals_and_may_fail(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = full(512)
    session = session_of(threads, x, (Mul(), SMALL), (Det(),), (Mul(), np.array(2, F32)))
    seen = []

    def reference(op: Det, given: Array) -> Array:
        seen.append(numpy_keeps_denormals())
        if len(seen) > 1:
            raise FailedError
        return np.asarray(DENORMAL)

    monkeypatch.setattr(Det, "reference", reference)
    assert session(x=x)[0] == 0
    with pytest.raises(bn.InternalError, match="Det"):
        session(x=x)
    assert seen == [True, True]
    assert numpy_keeps_denormals()
    with pytest.raises(bn.ShapeError):
        session(x=x[0])
    assert numpy_keeps_denormals()
