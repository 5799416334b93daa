"""The table of operators that OpenVINO gets: which dtypes, and the function that adds its nodes.

A function takes a `Site` and the operands (None where one is omitted), and returns a node of OpenVINO or its outputs.
It raises `NotThereError` with a reason for what OpenVINO lacks.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.hardware.drivers.alone import SMALL
from bolt_numba.hardware.drivers.buffers import borrowed
from bolt_numba.ir.graph import Node
from bolt_numba.ops.registry import Op
from bolt_numba.types import BOOL, F32, I8, I32, I64, U8, AnyDType, Array, TensorType, dtype_name

Build: TypeAlias = Callable[..., Any]
FLOAT = (F32,)
NUMBER = (F32, I32)
DATA = (F32, I32, BOOL, U8, I8)


class NotThereError(Exception):
    """OpenVINO lacks this, or computes it in another way; the message says what."""


@record(frozen=True)
class OvBuilder:
    """How an operator becomes nodes.

    dtypes: of operands and results.  others: those of single operands where they differ.  indices: operands that are
    places or lengths, which may be of 64 bits.  places: results that are.
    """

    build: Build
    dtypes: tuple[AnyDType, ...] = FLOAT
    others: tuple[tuple[int, tuple[AnyDType, ...]], ...] = ()
    results: tuple[AnyDType, ...] | None = None
    indices: tuple[int, ...] = ()
    places: tuple[int, ...] = ()
    by_rank: bool = False


BUILDERS: dict[str, OvBuilder] = {}


def builds(
    *names: str,
    dtypes: tuple[AnyDType, ...] = FLOAT,
    others: dict[int, tuple[AnyDType, ...]] | None = None,
    results: tuple[AnyDType, ...] | None = None,
    indices: tuple[int, ...] = (),
    places: tuple[int, ...] = (),
    by_rank: bool = False,
) -> Callable[[Build], Build]:
    """Register the function of operators; the rest as in `OvBuilder`."""

    def register(build: Build) -> Build:
        for name in names:
            if name in BUILDERS:
                raise ValueError(f"operator {name} has two builders")
            made = tuple((others or {}).items())
            BUILDERS[name] = OvBuilder(build, dtypes, made, results, indices, places, by_rank)
        return build

    return register


@functools.cache
def load_builders() -> dict[str, OvBuilder]:
    """The whole table: imports every module of ``nodes``."""
    package = f"{__name__.rpartition('.')[0]}.nodes"
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{info.name}")
    return BUILDERS


def constant(opset: Any, array: Array) -> Any:
    """A constant of the graph, which outlives the model: a large one stays where it is."""
    if array.size <= SMALL or not array.flags.c_contiguous:
        return opset.constant(array)
    return opset.constant(borrowed(array, array.ctypes.data), shared_memory=True)


class Site:
    """Where a node of ours becomes nodes of OpenVINO.

    v: the module of its operators.  types, results: of the operands and of what it gives.
    """

    def __init__(self, opset: Any, node: Node) -> None:
        self.v, self.node = opset, node
        self.types: list[TensorType | None] = [None if x is None else x.type for x in node.inputs]
        self.results = [x.type for x in node.outputs]

    def type(self, i: int) -> TensorType:
        """The type of an operand that is there."""
        t = self.types[i]
        assert t is not None, "its operator would have refused the graph"
        return t

    def shape(self, i: int = 0) -> tuple[Any, ...]:
        """Dimensions of an operand."""
        shape = self.type(i).shape
        if shape is None:
            raise NotThereError("an operand of unknown rank")
        return shape

    def dims(self, i: int = 0) -> tuple[int, ...]:
        """Sizes of an operand, where each is known."""
        if not self.type(i).is_static:
            raise NotThereError("sizes that only the run tells")
        return self.type(i).dims

    def rank(self, i: int = 0) -> int:
        return len(self.shape(i))

    def given(self, i: int) -> bool:
        """Whether there is an operand."""
        return i < len(self.types) and self.types[i] is not None

    def is_small(self, i: int) -> bool:
        """Whether an operand is a small constant."""
        known = self.type(i).known if self.given(i) else None
        return known is not None and known.size <= SMALL

    def known(self, i: int, what: str) -> Array:
        """The content of an operand."""
        content = self.type(i).known
        if content is None:
            raise NotThereError(f"{what} that only the run tells")
        return content

    def ints(self, i: int, what: str) -> list[int]:
        """The whole numbers in an operand."""
        return [int(n) for n in self.known(i, what).reshape(-1)]

    def const(self, array: Any) -> Any:
        """A constant of its own."""
        return self.v.constant(np.asarray(array))

    def i64(self, *numbers: int) -> Any:
        """A vector of places or sizes."""
        return self.const(np.array(numbers, I64))

    def like(self, number: float, i: int = 0) -> Any:
        """A number of the dtype of an operand."""
        return self.const(np.array(number, self.type(i).dtype))

    def want(self, holds: bool, what: str) -> None:
        """Refuse unless something holds."""
        if not holds:
            raise NotThereError(what)


def want_dtypes(node: Node, builder: OvBuilder, wide: bool) -> None:
    """Refuse dtypes that OpenVINO lacks.  wide: it may compute 64 bits in 32."""
    more = (I64,) if wide and I32 in builder.dtypes else ()
    others = dict(builder.others)
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        places = i in builder.indices or i in node.op.value_inputs
        allowed = (I32, I64) if places else others.get(i, builder.dtypes) + more
        if i in node.op.value_inputs and value.const is not None:
            continue
        _want(value.type, allowed, f"operand {i}")
    for i, value in enumerate(node.outputs):
        allowed = (I32, I64) if i in builder.places else (builder.results or builder.dtypes) + more
        _want(value.type, allowed, f"result {i}")


def _want(t: TensorType, allowed: Sequence[AnyDType], what: str) -> None:
    if t.dtype not in allowed:
        why = ", which OpenVINO would compute in 32 bits" if t.dtype.itemsize == 8 else ""
        raise NotThereError(f"{what} of {dtype_name(t.dtype)}{why}")
    if t.shape is None:
        raise NotThereError(f"{what} of unknown rank")
    if any(isinstance(d, int) and d == 0 for d in t.shape):
        raise NotThereError(f"{what} without elements")


def nodes_of(opset: Any, node: Node, operands: Sequence[Any], wide: bool) -> list[Any]:
    """Outputs of OpenVINO for the results of a node; raises NotThereError."""
    builder = load_builders().get(node.op.name)
    if builder is None:
        raise NotThereError("no function of the table builds it")
    want_plain(node.op)
    want_dtypes(node, builder, wide)
    made = builder.build(Site(opset, node), node.op, *operands)
    if isinstance(made, (list, tuple)):
        return [x.output(0) if hasattr(x, "output") else x for x in made]
    return [made.output(i) for i in range(len(node.outputs))]


def want_plain(op: Op) -> None:
    """Refuse what other rules take apart: channels last, and what is fused."""
    if getattr(op, "layout", "NCHW") == "NHWC":
        raise NotThereError("channels are last")
    if getattr(op, "residual", False) or getattr(op, "activation", None) is not None:
        raise NotThereError("other operators are fused to it")
