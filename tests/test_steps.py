"""Steps are data that is checked when it is made, and a program knows every address in it."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.devices.program import Program, linked
from bolt_numba.errors import InternalError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.kernels.extents import Lent, borrowed
from bolt_numba.kernels.geometry.elements import FAULT
from bolt_numba.kernels.jit import CODE, I64, PTR, native
from bolt_numba.kernels.registry import QUERY, Argument, Context, Fault, In, Out, Pitch, Record, Scratch, Step, Types
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Flatten
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import LSTM
from bolt_numba.ops.pointwise import Add, HardSwish, Relu
from bolt_numba.runtime.device import HOST
from bolt_numba.types import F32, Array, TensorType
from tests.rule_cases import graph_of, whole


@native(x=PTR, act=CODE, fault=FAULT, n=I64, extents=lambda a: {"x": 4 * a.n})
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
        ("x", 4096, "In, Out, Packed, Scratch, ndarray, 0 or None"),
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


@pytest.mark.parametrize("arg", [In(0), Out(0), Scratch(12)])
def test_a_record_leads_to_no_operand(arg: Any) -> None:
    """The planner looks for operands and workspace in steps alone."""
    assert Record(sample, {**ARGS, "x": np.zeros(3), "fault": None}).args["n"] == 3
    with pytest.raises(InternalError, match=r"^sample: argument 'x' of a step, an address: got .*, wanted Rec"):
        Record(sample, {**ARGS, "x": arg, "fault": None})


# ----------------------------------------------------------------------------------------------------- steps of others


def led(arg: Any, ins: Sequence[Lent | None], outs: Sequence[Lent], name: str = "x") -> Argument:
    """What becomes of one argument of a borrowed step."""

    def make(op: Any, given: Types, made: Sequence[TensorType], context: Context) -> list[Step]:
        assert [t and t.type for t in ins] == list(given)
        return [Step(sample, {**ARGS, "fault": None, name: arg})]

    (step,) = borrowed(make, MatMul(), ins, outs, QUERY)
    return step.args[name]


FOUR, TABLE, ROOM = TensorType(F32, (3, 4)), np.zeros((3, 4), F32), Scratch(48)
OPERANDS = [Lent(FOUR, In(5, 16)), None, Lent(FOUR, None), Lent.constant(TABLE), Lent(FOUR, ROOM), Lent(FOUR, In(6))]
RESULTS = [Lent(FOUR, ROOM), Lent(FOUR, Out(2), rows=True), Lent(FOUR, In(1), rows=True)]


@pytest.mark.parametrize(
    ("arg", "wanted", "name"),
    [
        (In(0), In(5, 16), "x"), (In(0, 8), In(5, 24), "x"), (In(3), TABLE, "x"), (In(4), ROOM, "x"),
        (Out(0), ROOM, "x"), (Out(1, 4), Out(2, 4), "x"), (Fault(5), Fault(6), "fault"), (None, None, "x"),
        (Pitch(In(0)), 4, "n"), (Pitch(Out(0)), 4, "n"), (Pitch(Out(1)), Pitch(Out(2)), "n"),
    ],
)  # fmt: skip
def test_operands_of_borrowed_steps_are_where_the_borrower_has_them(arg: Any, wanted: Any, name: str) -> None:
    got = led(arg, OPERANDS, RESULTS, name)
    assert got is wanted if isinstance(wanted, (Scratch, np.ndarray)) else got == wanted


@pytest.mark.parametrize(
    ("arg", "name"),
    [
        *((In(i), "x") for i in (1, 2, 6)), (In(3, 4), "x"), (In(4, 4), "x"), (Out(3), "x"), (Pitch(In(1)), "n"),
        (Pitch(Out(3)), "n"), *((Fault(i), "fault") for i in (0, 1, 2, 3, 4, 6)),
    ],
)  # fmt: skip
def test_an_operand_without_a_place_is_an_error_when_steps_are_borrowed(arg: Any, name: str) -> None:
    with pytest.raises(InternalError, match=r"^MatMul: a borrowed step names .*: got .* for it, wanted one "):
        led(arg, OPERANDS, RESULTS, name)


KERNELS = Path(__file__).parent.parent / "kernels"


def names_operands(function: Any, seen: set[Any]) -> bool:
    """Whether a function, or one that it calls, says which operands a step reads or writes."""
    codes = [function.__code__]
    names = set(function.__code__.co_names)
    while codes:
        inner = [c for c in codes.pop().co_consts if inspect.iscode(c)]
        codes += inner
        names |= {name for code in inner for name in code.co_names}
    if names & {"In", "Out", "Pitch", "Fault"}:
        return True
    seen.add(function)
    called = [f for name in names if inspect.isfunction(f := function.__globals__.get(name)) and f not in seen]
    return any(names_operands(f, seen) for f in called)


def lent_by_hand(module: ModuleType, function: ast.FunctionDef) -> Iterator[str]:
    """Calls, within a function, of what makes steps for another operator than the function was given."""
    own = {a.arg for f in ast.walk(function) if isinstance(f, ast.FunctionDef) for a in f.args.args}
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        made: Any = getattr(module, ast.unparse(call.func), None)
        if ast.unparse(call.func).endswith("entry.make"):
            yield ast.unparse(call)
        elif made is not borrowed and inspect.isfunction(made) and "Step" in str(made.__annotations__.get("return")):
            given = dict(zip(inspect.signature(made).parameters, map(ast.unparse, call.args), strict=False))
            other = given.get("op", "op") not in own | {"op", "layer.op"}
            if other and names_operands(made, set()):
                yield ast.unparse(call)


def test_steps_of_another_operator_are_borrowed() -> None:
    """Whoever calls a maker for another operator gets steps that name operands by that one's numbers."""
    found = []
    for file in sorted(KERNELS.rglob("*.py")):
        parts = file.relative_to(KERNELS.parent).with_suffix("").parts
        module = importlib.import_module(".".join(("bolt_numba", *parts)))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and (file.name, node.name) != ("extents.py", "made_steps"):
                found += [f"{file.name}, {node.name}: {text}" for text in lent_by_hand(module, node)]
    assert not found, "\n".join(found)


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
