"""The builder that readers get: it adds nodes, and tells what readers ask of their operands.

Ranks, known values, constants made of attributes, sizes that only the run tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import I64, AnyDType, Array, Dim, Sym
from bolt_numba.converters.bounded import MAX_MADE
from bolt_numba.ir.build import Builder, Operand
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.reduce import ReduceProd
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.pointwise import Cast, Less, Sub, Where
from bolt_numba.ops.registry import Op

Size: TypeAlias = "int | Value"
"""A number of elements: an int, or a value of shape [1] i64."""
Ints: TypeAlias = tuple[int, ...]
Floats: TypeAlias = tuple[float, ...]
Texts: TypeAlias = tuple[str, ...]
ManyInts: TypeAlias = Array
"""Integers, as `Ints`, that are too many for a tuple."""
ManyFloats: TypeAlias = Array
NO_INTS: Array = np.empty(0, np.int64)
NO_FLOATS: Array = np.empty(0, np.float32)
Number: TypeAlias = "Value | int | float | bool"
END = np.iinfo(np.int64).max
"""Behind the last element of any axis."""
MOST_PLACES = 1 << 20
"""Places, nodes or steps that one attribute may ask for."""


def known_scalar(x: Value) -> int | float | bool | None:
    """The only element of an operand that is known, else None."""
    known = x.type.known
    if known is None or known.size != 1:
        return None
    item: Any = known.reshape(-1)[0].item()
    return item if isinstance(item, (int, float, bool)) else float(item)


def constant(x: Value | None) -> Array | None:
    """What is known of the content of an operand."""
    return None if x is None else x.type.known


def ints(values: Iterable[int]) -> Array:
    """A constant operand made of an attribute."""
    return np.array(tuple(values), dtype=np.int64)


class ForeignNode:
    """A node as its file has it.

    label: what messages call it.  op: its operator.  inputs, outputs: names, "" for what is omitted.  raw: the node in
    the format's own form.
    """

    __slots__ = ("inputs", "label", "op", "outputs", "raw")

    def __init__(self, label: str, op: str, inputs: Sequence[str], outputs: Sequence[str], raw: Any) -> None:
        self.label, self.op, self.inputs, self.outputs, self.raw = label, op, inputs, outputs, raw


class ForeignBuilder(Builder):
    """The builder a reader gets: the graph so far, and what the node says besides operands and attributes.

    what: the node, for messages.  version: of its operator.  outputs: whether each output is named, thus wanted.
    """

    def __init__(self, graph: Graph, node: ForeignNode, what: str, *, version: int = 1, prefix: str = "") -> None:
        first = next((name for name in node.outputs if name), node.op)
        super().__init__(graph, prefix=f"{prefix}{first}/")
        self.what, self.version = what, version
        self.outputs = tuple(bool(name) for name in node.outputs)
        self._made = 0

    def node(self, op: Op, *operands: Operand, name: str = "") -> Node:
        """As any builder's, while the node of the file does not become too many."""
        self._made += 1
        if self._made > MAX_MADE:
            raise self.invalid("repetitions", f"more than {MAX_MADE} nodes of one", "fewer")
        return super().node(op, *operands, name=name)

    def wants(self, index: int) -> bool:
        """Whether output ``index`` is used."""
        return index < len(self.outputs) and self.outputs[index]

    def unsupported(self, what: str) -> UnsupportedOpError:
        """The error for a use of an operator that has no meaning here."""
        return UnsupportedOpError(self.what, [what])

    def invalid(self, what: str, got: object, wanted: object) -> InvalidModelError:
        """The error for a node that breaks the specification."""
        return InvalidModelError(f"{what}: got {got}, wanted {wanted}")

    def unsupported_if(self, holds: object, what: str) -> None:
        """Raise `unsupported` where this holds."""
        if holds:
            raise self.unsupported(what)

    def invalid_if(self, holds: object, what: str, got: object, wanted: object) -> None:
        """Raise `invalid` where this holds."""
        if holds:
            raise self.invalid(what, got, wanted)

    # --- what is known of operands ------------------------------------------------------------------------------------

    def rank_of(self, x: Value) -> int:
        """Rank of an operand; raises UnsupportedOpError when it is unknown."""
        if x.type.shape is None:
            raise self.unsupported(f"operand '{x.name}' of unknown rank")
        return len(x.type.shape)

    def dim_of(self, x: Value, axis: int) -> Dim:
        """One dimension of an operand; raises UnsupportedOpError when the rank is unknown."""
        rank = self.rank_of(x)
        if not -rank <= axis < rank or x.type.shape is None:
            raise self.invalid(f"axis of '{x.name}'", axis, f"{-rank} to {rank - 1}")
        return x.type.shape[axis]

    def static_dim(self, x: Value, axis: int) -> int:
        """One dimension of an operand as a number; raises UnsupportedOpError when only the run will tell it."""
        dim = self.dim_of(x, axis)
        if isinstance(dim, Sym):
            raise self.unsupported(f"operand '{x.name}' whose dimension {axis} is {dim}")
        return dim

    def known_dim(self, x: Value, axis: int) -> int | None:
        """A dimension of x where it is a number."""
        dim = self.dim_of(x, axis)
        return None if isinstance(dim, Sym) else int(dim)

    def axis_of(self, x: Value, axis: int) -> int:
        """An axis of x, counted from the first."""
        rank = self.rank_of(x)
        if not -rank <= axis < max(rank, 1):
            raise self.invalid(f"axis of '{x.name}'", axis, f"{-rank} to {rank - 1}")
        return axis + rank if axis < 0 else axis

    def axes_of(self, x: Value, axes: Sequence[int]) -> Ints:
        """Axes of x, counted from the first; all where none is named."""
        return tuple(self.axis_of(x, a) for a in axes) if axes else tuple(range(self.rank_of(x)))

    def spatial_axes(self, x: Value) -> Array:
        """Axes after batch and channels."""
        rank = self.rank_of(x)
        if rank < 2:
            raise self.invalid(f"rank of '{x.name}'", rank, "at least 2")
        return np.arange(2, rank, dtype=np.int64)

    def known_array(self, x: Value, what: str) -> Array:
        """Content of an operand that must be constant; raises UnsupportedOpError."""
        known = x.type.known
        if known is None:
            raise self.unsupported(f"{what} that is no constant")
        return known

    def known_ints(self, x: Value, what: str) -> Ints:
        """`known_array` as integers."""
        return tuple(int(v) for v in self.known_array(x, what).reshape(-1))

    def whole(self, x: Value, what: str) -> int:
        """The only element of x, which must be known."""
        found = self.known_ints(x, what)
        if len(found) != 1:
            raise self.invalid(what, found, "one number")
        return found[0]

    # --- sizes that only the run may tell -----------------------------------------------------------------------------

    def size_of(self, x: Value, axis: int) -> Size:
        """Length of an axis, which may be negative."""
        dim = self.dim_of(x, axis)
        if isinstance(dim, int):
            return dim
        place = axis if axis >= 0 else axis + self.rank_of(x)
        return self(Shape(place, place + 1), x)

    def sizes_of(self, x: Value, axes: Iterable[int]) -> list[Size]:
        """Lengths of some axes."""
        return [self.size_of(x, a) for a in axes]

    def joined(self, *parts: Value | Sequence[Size]) -> Value:
        """One operand [m] i64 made of lists of sizes and of shapes."""
        flat = [s for p in parts for s in ([p] if isinstance(p, Value) else p)]
        kept: list[Value] = []
        numbers: list[int] = []
        for size in [*flat, None]:
            if isinstance(size, int):
                numbers.append(size)
                continue
            if numbers:
                kept.append(self.const(ints(numbers)))
                numbers = []
            if size is not None:
                kept.append(size)
        made: Value = self.const(ints(())) if not kept else kept[0] if len(kept) == 1 else self(Concat(0), *kept)
        return made

    def reshaped(self, x: Value, *parts: Value | Sequence[Size], zero_keeps: bool = False) -> Value:
        """``x`` in a shape made of sizes (-1 is solved) and of shapes.  zero_keeps: a 0 keeps what is there."""
        return self(Reshape(allowzero=not zero_keeps), x, self.joined(*parts))

    def expanded(self, x: Value | Array, *parts: Value | Sequence[Size]) -> Value:
        """``x`` broadcast to a shape made of sizes and of shapes."""
        return self(Expand(), x if isinstance(x, Value) else self.const(x), self.joined(*parts))

    def counted(self, count: Value | int, dtype: AnyDType = I64) -> Value:
        """0, 1, ... before ``count``: an int is what an attribute asks for, which has a bound."""
        if isinstance(count, int):
            if not 0 <= count <= MOST_PLACES:
                raise self.invalid("number of places", count, f"0 to {MOST_PLACES}")
            made: Value = self.const(np.arange(count, dtype=dtype), f"{self.prefix}count")
            return made
        made = self(Range(), self.const(np.array(0, I64)), self.as_scalar(count), self.const(np.array(1, I64)))
        return self.to(made, dtype)

    def elements(self, shape: Value) -> Value:
        """How many elements a shape has, [1] i64."""
        return self(ReduceProd(True), shape, ints([0]))

    # --- operands in another form -------------------------------------------------------------------------------------

    def to(self, x: Value, dtype: AnyDType) -> Value:
        """The values of x in another dtype; integers that are constant at once."""
        if x.type.dtype == dtype:
            return x
        if x.const is not None and x.type.dtype.kind in "iu" and dtype.kind in "iu":
            return self.const(x.const.astype(dtype), x.name)
        return self(Cast(dtype), x)

    def as_scalar(self, x: Value) -> Value:
        """An operand of one element as a scalar."""
        return x if x.type.shape == () else self(Reshape(), x, ints([]))

    def flat(self, x: Value) -> Value:
        """X as one row."""
        return x if x.type.shape is not None and len(x.type.shape) == 1 else self(Reshape(), x, ints([-1]))

    def sliced(self, x: Value, axis: int, start: int, end: int = END, step: int = 1) -> Value:
        """Some elements along one axis, as Python counts them."""
        return self(Slice(), x, ints([start]), ints([end]), ints([axis]), ints([step]))

    def column(self, x: Value, axis: int, at: int) -> Value:
        """One slice of x, without the axis."""
        return self(Squeeze(), self.sliced(x, axis, at, at + 1 if at != -1 else END), ints([axis]))

    def unsqueezed(self, x: Value, *axes: int) -> Value:
        """``x`` with axes of length 1 put in, counted in the result."""
        return self(Unsqueeze(), x, ints(axes)) if axes else x

    def squeezed(self, x: Value, *axes: int) -> Value:
        """``x`` without axes of length 1."""
        return self(Squeeze(), x, ints(axes)) if axes else x

    def transposed(self, x: Value, *perm: int) -> Value:
        """X with its axes in another order."""
        return x if perm == tuple(range(len(perm))) else self(Transpose(tuple(perm)), x)

    def moved_last(self, x: Value, axis: int) -> tuple[Value, Ints]:
        """X with an axis behind the others, and the order that undoes it."""
        rank, at = self.rank_of(x), self.axis_of(x, axis)
        order = (*tuple(i for i in range(rank) if i != at), at)
        return self.transposed(x, *order), tuple(order.index(i) for i in range(rank))

    def counted_up(self, index: Value, size: Any) -> Value:
        """Indices that may not count from the end: negative ones become such as no axis of this size has."""
        return self(Where(), self(Less(), index, 0), self(Sub(), index, size), index)

    def chosen(self, condition: Value, x: Number, y: Number, dtype: AnyDType) -> Value:
        """X where the condition holds, else y."""
        sides = [v if isinstance(v, Value) else self.const(np.array(v, dtype)) for v in (x, y)]
        return self(Where(), condition, *sides)
