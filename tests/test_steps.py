"""Steps are data that is checked when it is made, and a program knows every address in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.devices.program import Program, linked
from bolt_numba.errors import InternalError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.kernels.cpu.faults import FAULT_AT
from bolt_numba.kernels.jit import CODE, I64, PTR, native
from bolt_numba.kernels.registry import Fault, In, Out, Scratch, Step
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Flatten
from bolt_numba.ops.layers.conv import Conv
from bolt_numba.ops.layers.matmul import MatMul
from bolt_numba.ops.layers.recurrent import LSTM
from bolt_numba.ops.pointwise import Add, HardSwish, Relu
from bolt_numba.runtime.device import HOST
from bolt_numba.types import Array
from tests.rule_cases import graph_of, whole


@native(x=PTR, act=CODE, fault=FAULT_AT, n=I64, extents=lambda a: {"x": 4 * a.n})
def sample(p: Any, tid: int, nthreads: int) -> None:
    """Never runs."""


ARGS: dict[str, Any] = {"x": In(0), "act": None, "fault": Fault(0), "n": 3}


def test_a_step_names_all_fields_of_its_kernel() -> None:
    fields = "wanted its fields act, fault, n, x$"
    with pytest.raises(InternalError, match=f"^sample: arguments of a step: got an unknown 'm', {fields}"):
        Step(sample, {**ARGS, "m": 4})
    with pytest.raises(InternalError, match=f"^sample: arguments of a step: got no 'act' and no 'n', {fields}"):
        Step(sample, {"x": In(0), "fault": None})
    with pytest.raises(InternalError, match=f"got no 'n' and an unknown 'N', {fields}"):
        replace(Step(sample, ARGS), args={**{k: v for k, v in ARGS.items() if k != "n"}, "N": 1})


@pytest.mark.parametrize(
    ("name", "arg", "wanted"),
    [
        ("x", 4096, "In, Out, Scratch, ndarray, 0 or None"),
        ("x", np.int64(4096), "In, Out"),
        ("x", 1.0, "In, Out"),
        ("x", True, "In, Out"),
        ("x", sample, "In, Out"),
        ("act", 4096, "Native, Record, 0 or None"),
        ("act", In(0), "Native"),
        ("fault", 4096, "Fault, 0 or None"),
    ],
)
def test_an_address_is_never_a_number(name: str, arg: Any, wanted: str) -> None:
    message = f"^sample: argument {name!r} of a step, an address: got .*, wanted .*{wanted}"
    with pytest.raises(InternalError, match=message):
        Step(sample, {**ARGS, name: arg})


@pytest.mark.parametrize(
    ("name", "arg"),
    [("x", 0), ("x", None), ("x", Out()), ("x", Scratch(12)), ("x", np.zeros(3)), ("act", 0), ("act", sample)],
)
def test_addresses_are_references(name: str, arg: Any) -> None:
    Step(sample, {**ARGS, name: arg})


# ----------------------------------------------------------------------------------------------------------- programs


def layers(b: Builder, x: Value) -> Value:
    """A Winograd convolution (it calls a kernel for what is not finite) with an activation (a kernel, too)."""
    y = b(Conv(pads=(1,) * 4, activation=HardSwish()), x, whole(32, 16, 3, 3), whole(32))
    return b(MatMul(), b(Relu(), b(Flatten(), y)), whole(32 * 16 * 16, 5))


def recurrent(b: Builder, x: Value) -> Value:
    return b(LSTM(hidden_size=8), x, whole(1, 32, 6), whole(1, 32, 8), whole(1, 64))


def gathered(b: Builder, x: Value, i: Value) -> Value:
    """A step that reports faults, which has an address in the image itself."""
    return b(Gather(), b(Add(), x, whole(9, 4)), i)


CASES: dict[str, tuple[Callable[..., Any], dict[str, Array]]] = {
    "layers": (layers, {"x": whole(1, 16, 16, 16, seed=3)}),
    "recurrent": (recurrent, {"x": whole(5, 2, 6, seed=3)}),
    "gathered": (gathered, {"x": whole(9, 4, seed=3), "i": np.array([8, 0, 3])}),
}


def bare(program: Program) -> Array:
    """The records without what the links name."""
    image = program.image.view(np.int64).copy()
    for rows in (program.links.in_kernels, program.links.in_arrays):
        image[rows[:, 0]] = 0
    return image


def moved(program: Program) -> tuple[Program, list[Array]]:
    """The program, linked anew to copies of its arrays at other places, and the copies."""
    copies = []
    for array in program.links.arrays:
        copy = HOST.allocate(array.nbytes)
        copy[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        copies.append(copy)
    links = replace(program.links, arrays=copies)
    image, kernels = linked(bare(program).tobytes(), links)
    return replace(program, image=image, kernels=kernels, links=links), copies


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_linked_anew_from_its_records_and_links(name: str) -> None:
    build, feeds = CASES[name]
    session = bn.compile(graph_of(build, {name: (a.dtype, *a.shape) for name, a in feeds.items()}), threads=1)
    wanted = session(**feeds)[0]
    (prepared,) = session._runner.prepared.values()
    (segment,) = prepared.plan.segments
    segment.executable, copies = moved(segment.executable)
    prepared.idle.clear()
    assert session(**feeds)[0].tobytes() == wanted.tobytes()
    for copy in copies:
        copy[:] = 0
    assert session(**feeds)[0].tobytes() != wanted.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_no_address_is_left_out_of_the_links(name: str) -> None:
    build, feeds = CASES[name]
    session = bn.compile(graph_of(build, {name: (a.dtype, *a.shape) for name, a in feeds.items()}), threads=1)
    session(**feeds)
    (prepared,) = session._runner.prepared.values()
    program: Program = prepared.plan.segments[0].executable
    numbers = bare(program)
    assert not set(numbers.tolist()) & {kernel.address for kernel in program.links.kernels}
    for array in program.links.arrays:
        start = array.ctypes.data
        assert not np.any((numbers >= start) & (numbers < start + max(array.nbytes, 1)))
    for array in (program.image, *feeds.values(), *session(**feeds)):
        start = array.ctypes.data
        assert not np.any((numbers >= start) & (numbers < start + array.nbytes))
