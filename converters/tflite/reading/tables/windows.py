"""Readers of reductions over windows of any axes, and of padding between elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL
from bolt_numba.converters.builder import END, Ints, ints
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder, numbers
from bolt_numba.converters.tflite.reading.registry import TFLITE, exact
from bolt_numba.converters.tflite.reading.shapes import times
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.pointwise import Add, And, Max, Min, Mul, Or

FUNCTIONS = {"ADD": Add, "MUL": Mul, "MINIMUM": Min, "MAXIMUM": Max, "ALL": And, "ANY": Or}
"""By the names of the option ``reduce_function``."""


BODIES = {
    "ADD": Add, "MUL": Mul, "MULTIPLY": Mul, "MINIMUM": Min, "MAXIMUM": Max, "AND": And, "OR": Or, "LOGICAL_AND": And,
    "LOGICAL_OR": Or,
}  # fmt: skip
"""By the name of the operator that is a body, less what StableHLO puts in front of it."""
OF_BOOLS = {Add: Or, Max: Or, Mul: And, Min: And}
"""What operators on numbers are on bools."""


def combination(b: TfliteBuilder, index: int) -> Any:
    """The operator that a subgraph of two inputs consists of; None where it gives its second input."""
    container = b.owner.container
    table = container.at(container.subgraphs, index, "subgraph")
    operators, inputs, outputs = table["operators"] or [], numbers(table["inputs"]), numbers(table["outputs"])
    if not operators and len(inputs) == 2 and outputs == inputs[1:]:
        return None
    if len(operators) == 1 and len(inputs) == 2 and numbers(operators[0]["outputs"]) == outputs:
        name = container.code_of(operators[0])[1].removeprefix("STABLEHLO_")
        if name in BODIES and sorted(numbers(operators[0]["inputs"])) == sorted(inputs):
            is_bool = b.stored[0] is not None and b.stored[0].type.dtype == BOOL
            return OF_BOOLS.get(BODIES[name], BODIES[name])() if is_bool else BODIES[name]()
    raise b.unsupported(f"a body, subgraph {index}, that is not one operator of both inputs")


def reduced_windows(
    b: TfliteBuilder, x: Value, operator: Any, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Value:
    """``x`` combined over windows, one axis after the other."""
    rank = b.rank_of(x)
    if not len(sizes) == len(strides) == len(dilations) == rank or min((*sizes, *strides, *dilations), default=1) < 1:
        raise b.invalid("window", (sizes, strides, dilations), f"{rank} numbers of at least 1 each")
    for axis, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        dim = (x.type.shape or ())[axis]
        if isinstance(dim, int) and dim < (size - 1) * dilation + 1:
            raise b.invalid(f"span of the window on axis {axis}", (size - 1) * dilation + 1, f"at most {dim}")
        x = _reduced_axis(b, x, axis, operator, size, dilation)
        if stride > 1:
            x = b.sliced(x, axis, 0, END, stride)
    return x


def _reduced_axis(b: TfliteBuilder, x: Value, axis: int, operator: Any, size: int, dilation: int) -> Value:
    """Windows along one axis at every position: those of a power of two of elements are made of two halves."""
    made: Value | None = None
    wide, width, done = x, 1, 0
    while done < size:
        if size & width:
            rest = (size - width - done) * dilation
            part = b.sliced(wide, axis, done * dilation, -rest if rest else END)
            made = part if made is None else b(operator, made, part)
            done += width
        if done < size:
            step = width * dilation
            wide = b(operator, b.sliced(wide, axis, 0, -step), b.sliced(wide, axis, step))
            width *= 2
    assert made is not None, "a size has a bit"
    return made


@TFLITE.reader("REDUCE_WINDOW")
@exact
def reduce_window(
    b: TfliteBuilder,
    x: Value,
    initial: Value,
    sizes: Value,
    strides: Value,
    dilations: Value,
    *,
    reduce_function: str = "UNSUPPORTED",
) -> Value:
    """LiteRT takes stored numbers as they are."""
    operator = FUNCTIONS.get(reduce_function)
    if operator is None:
        raise b.unsupported(f"reduce_function {reduce_function}")
    made = OF_BOOLS.get(operator, operator)() if x.type.dtype == BOOL else operator()
    window = [b.known_ints(v, "a window") for v in (sizes, strides, dilations)]
    return b(made, reduced_windows(b, x, made, *window), initial)


def dilated(b: TfliteBuilder, x: Value, steps: Sequence[int], value: Value) -> Value:
    """``x`` with steps - 1 elements of a value between its own, along each axis."""
    rank = b.rank_of(x)
    if len(steps) != rank or min(steps, default=1) < 1:
        raise b.invalid("dilations", list(steps), f"{rank} numbers of at least 1")
    for axis, step in enumerate(steps):
        if step == 1:
            continue
        sizes = b.sizes_of(x, range(rank))
        pads = np.zeros((2, rank + 1), np.int64)
        pads[1, axis + 1] = step - 1
        wide = b(Pad(), b.unsqueezed(x, axis + 1), pads.reshape(-1), value)
        joined = b.reshaped(wide, [*sizes[:axis], times(b, sizes[axis], step), *sizes[axis + 1 :]])
        x = b.sliced(joined, axis, 0, 1 - step)
    return x


@TFLITE.reader("DILATE")
def dilate(b: TfliteBuilder, x: Value, dilations: Value, value: Value) -> Value:
    return dilated(b, x, b.known_ints(dilations, "dilations"), value)


@TFLITE.reader("STABLEHLO_PAD")
def stablehlo_pad(
    b: TfliteBuilder,
    x: Value,
    value: Value,
    *,
    edge_padding_low: Ints = (),
    edge_padding_high: Ints = (),
    interior_padding: Ints = (),
) -> Value:
    """Negative pads at the edges cut off."""
    rank = b.rank_of(x)
    low, high, between = ([*v] or [0] * rank for v in (edge_padding_low, edge_padding_high, interior_padding))
    if not len(low) == len(high) == len(between) == rank:
        raise b.invalid("number of pads", (len(low), len(high), len(between)), rank)
    return b(Pad(), dilated(b, x, [n + 1 for n in between], value), ints([*low, *high]), value)


@TFLITE.reader("STABLEHLO_REDUCE_WINDOW")
@exact
def stablehlo_reduce_window(
    b: TfliteBuilder,
    x: Value,
    initial: Value,
    *,
    window_dimensions: Ints,
    window_strides: Ints = (),
    base_dilations: Ints = (),
    window_dilations: Ints = (),
    padding: Ints = (),
    body_subgraph_index: int = 0,
) -> Any:
    """padding: begin and end of each axis.  What pads is the initial value."""
    rank = b.rank_of(x)
    ones = (1,) * rank
    pads = np.reshape(padding, (-1, 2)).T.reshape(-1) if len(padding) else ints([0] * 2 * rank)
    b.invalid_if(len(pads) != 2 * rank, "length of padding", len(padding), 2 * rank)
    x = b(Pad(), dilated(b, x, base_dilations or ones, initial), pads.astype(np.int64), initial)
    operator = combination(b, body_subgraph_index)
    if operator is None:
        raise b.unsupported("a body that gives its second input")
    made = reduced_windows(
        b, x, operator, window_dimensions, window_strides or ones, window_dilations or ones
    )  # fmt: skip
    return b(operator, made, initial)
