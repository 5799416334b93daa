"""From our graphs to the SDK's: one function for each operator; images become NHWC, signed bytes unsigned ones.

A value has up to two tensors: "plain" in our order of axes, and "image" with the channels last.  The second one is made
by a Transpose on the device where an operator wants it, so that neighbours on images need none between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from simnpu_sdk import Chip, Graph, Op, UnsupportedError

from bolt_numba.ir.graph import Graph as OurGraph
from bolt_numba.ir.graph import Node, Value
from bolt_numba.types import F32, I8, I32, U8

TO_IMAGE, TO_PLAIN = (0, 2, 3, 1), (0, 3, 1, 2)
DTYPES = {F32: "f32", U8: "u8", I8: "u8", I32: "i32"}
OPERATORS: dict[str, Callable[[Conversion, Node], None]] = {}
"""How each operator is said in the SDK's words; a function raises UnsupportedError where it cannot be."""


def operator(*names: str) -> Callable[[Callable[[Conversion, Node], None]], Callable[[Conversion, Node], None]]:
    def register(function: Callable[[Conversion, Node], None]) -> Callable[[Conversion, Node], None]:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return register


class Conversion:
    """A graph of the SDK in the making.  asks: whether it is only to tell what is supported, of sizes yet to come."""

    def __init__(self, chip: Chip, asks: bool = False) -> None:
        self.asks = asks
        self.chip, self.graph = chip, Graph()
        self.forms: dict[tuple[Value, str], int] = {}
        self.scales: dict[Value, tuple[float, int]] = {}

    def node(self, node: Node) -> None:
        """Append what computes a node."""
        convert = OPERATORS.get(node.op.name)
        if convert is None:
            raise UnsupportedError(f"SimNPU has nothing for {node.op.name}")
        convert(self, node)

    def whole(self, graph: OurGraph) -> list[int]:
        """Convert a graph; positions of those of its inputs that the device gets."""
        self.scales = scales_of(graph)
        for node in graph.nodes:
            self.node(node)
        outputs = [self.operand(value) for value in graph.outputs]
        places = [i for i, value in enumerate(graph.inputs) if (value, "given") in self.forms]
        self.graph.identify_io([self.forms[graph.inputs[i], "plain"] for i in places], outputs)
        return places

    def operand(self, value: Value, form: str = "plain", scale: Sequence[float] = (), zero: int = 0) -> int:
        """The tensor of an operand; of bytes with the scale and the zero point with which it is read."""
        if (value, form) not in self.forms:
            if value.const is not None:
                self._constant(value, form, scale, zero)
            else:
                self._turned(value, form, scale, zero)
        known = self.forms[value, form]
        tensor = self.graph.tensors[known]
        if tensor.dtype == "u8" and (tensor.scale, tensor.zero_point) != (tuple(map(float, scale)), zero) and scale:
            raise UnsupportedError(f"%{value.name} is read with two scales")
        return known

    def _turned(self, value: Value, form: str, scale: Sequence[float], zero: int) -> None:
        """Make a value in a form from what there is of it, which for an input is the plain one."""
        other = self.forms.get((value, "image" if form == "plain" else "plain"))
        if other is None:
            other = self.forms[value, "given"] = self._declare(value, "plain", scale, zero)
        if (value, form) not in self.forms:
            made = self.graph.tensors[other]
            turned = self._declare(value, form, made.scale, made.zero_point)
            self.append("Transpose", [other], turned, perm=TO_IMAGE if form == "image" else TO_PLAIN)

    def result(self, kind: str, ins: list[int], value: Value, form: str = "plain", /, **attributes: Any) -> None:
        """Append an operator that makes a value."""
        self.append(kind, ins, self._declare(value, form), **attributes)

    def append(self, kind: str, ins: list[int], out: int, **attributes: Any) -> None:
        op = Op(kind, tuple(ins), (out,), attributes)
        reason = self.chip.refuses(op, [self.graph.tensors[i] for i in ins], [self.graph.tensors[out]])
        if reason:
            raise UnsupportedError(reason)
        self.graph.add_op(kind, ins, [out], **attributes)

    def bytes_result(
        self, kind: str, ins: list[int], value: Value, form: str, scale: float, zero: int, **attributes: Any
    ) -> None:
        self.append(kind, ins, self._declare(value, form, (scale,), zero), **attributes)

    def temporary(self, shape: Sequence[int | None]) -> int:
        return self.graph.add_tensor("f32", shape)

    def constant(self, array: np.ndarray, scale: Sequence[float] = (), zero: int = 0) -> int:
        data = array if self.asks else np.array(array, order="C")
        return self.graph.add_tensor(DTYPES[array.dtype], array.shape, data, scale, zero)

    def _declare(self, value: Value, form: str, scale: Sequence[float] = (), zero: int = 0) -> int:
        shape, dtype = sizes(value), DTYPES.get(value.type.dtype)
        if dtype is None:
            raise UnsupportedError(f"SimNPU has no tensors of {value.type.dtype.name}")
        if dtype == "u8" and not scale:
            known, zero = self.scales.get(value, (1.0, 0))
            scale = (known,)
        if form == "image":
            if len(shape) != 4:
                raise UnsupportedError(f"SimNPU has images of rank 4: got {len(shape)}")
            shape = tuple(shape[i] for i in TO_IMAGE)
        self.forms[value, form] = made = self.graph.add_tensor(dtype, shape, None, scale, zero)
        return made

    def _constant(self, value: Value, form: str, scale: Sequence[float], zero: int) -> None:
        array: Any = value.const
        if array.dtype not in DTYPES:
            raise UnsupportedError(f"SimNPU has no tensors of {array.dtype}")
        if array.dtype == I8:
            array = unsigned(array)
        if form == "image":
            array = array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(TO_IMAGE)
        self.forms[value, form] = self.constant(array, scale, zero)


def sizes(value: Value) -> tuple[int | None, ...]:
    """Dimensions of a value, None for those that only the run tells."""
    if value.type.shape is None:
        raise UnsupportedError(f"%{value.name} is of unknown rank")
    return tuple(d if isinstance(d, int) else None for d in value.type.shape)


def unsigned(array: np.ndarray) -> np.ndarray:
    """Signed bytes as unsigned ones, 128 more; their zero point moves along."""
    return np.array(array, order="C").view(U8) ^ U8.type(0x80)


MOVES = ("MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat")
"""Operators whose result has the scale of their operands."""
BYTES = {"QLinearConv": ((0, 1, 2), (6, 7)), "QLinearMatMul": ((0, 1, 2), (6, 7))}
BYTES |= {"QuantizeLinear": ((), (1, 2)), "DequantizeLinear": ((0, 1, 2), ())}
"""Where operators have their bytes with scale and zero point, and the scale and zero point of their result."""


def scales_of(graph: OurGraph) -> dict[Value, tuple[float, int]]:
    """Scale and zero point (as of unsigned bytes) of values of bytes, by who makes and reads them, near or far."""
    found: dict[Value, tuple[float, int]] = {}
    for node in graph.nodes:
        read, made = BYTES.get(node.op.name, ((), ()))
        given = operands(node, 8)
        if read and given[0].type.dtype in (U8, I8):
            found[given[0]] = scaled(given[read[1]], given[read[2]], given[0].type.dtype == I8)
        if made and given[made[0]] is not None:
            found[node.output] = scaled(given[made[0]], given[made[1]], node.output.type.dtype == I8)
    for nodes in (graph.nodes, graph.nodes[::-1], graph.nodes):
        for node in nodes:
            if node.op.name in MOVES:
                both = [*operands(node, len(node.inputs) if node.op.name == "Concat" else 1), node.output]
                known = next((found[v] for v in both if v in found), None)
                if known is not None:
                    found |= {v: known for v in both if v not in found}
    return found


def scaled(scale: Value, zero: Value | None, signed: bool) -> tuple[float, int]:
    """A scale, and the zero point as that of unsigned bytes."""
    s, z = known(scale), known(zero)
    want(s.size == 1 and (z is None or z.size == 1), "SimNPU has one scale for a tensor of values")
    return float(s.reshape(())), (0 if z is None else int(z.reshape(()))) + 128 * signed


def operands(node: Node, count: int) -> list[Any]:
    """The first operands of a node, None for those that are omitted."""
    return [*node.inputs, *(None,) * count][:count]


def known(value: Value | None) -> Any:
    """The array of a constant operand, None where it is omitted."""
    if value is None:
        return None
    if value.const is None:
        raise UnsupportedError(f"%{value.name} is no constant")
    return value.const


def want(condition: bool, what: str) -> None:
    if not condition:
        raise UnsupportedError(what)
