"""Shape buckets: an axis of unknown size is padded up to the next of few sizes, so that few graphs are compiled.

That is right where no row of a result depends on another row.  `mixing` proves it operator by operator, for rows that
are the first axis of all values that have them, and gives the reason where it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.types import Sym, TensorType
from bolt_numba.ir.graph import Graph, Node, Value

Proof: TypeAlias = "Callable[[Any, Node, list[int]], bool]"
"""Whether a node keeps rows apart: its operator, the node, and the operands that have rows."""


def buckets_of(text: str) -> dict[str, tuple[int, ...]]:
    """Sizes by symbol, ascending: ``"batch:1,8,32"``, several symbols with ";" between.  Raises DeviceError."""
    found: dict[str, tuple[int, ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, colon, sizes = part.rpartition(":")
        numbers = [each.strip() for each in sizes.split(",")]
        if not colon or not name.strip() or not all(map(_is_size, numbers)):
            raise DeviceError(f"properties: buckets: got {text!r:.80}, wanted sizes as in 'batch:1,8,32'")
        found[name.strip()] = tuple(sorted({int(n) for n in numbers}))
    return found


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) <= 10 and 0 < int(text) < 1 << 31


def next_size(size: int, sizes: Sequence[int]) -> int:
    """The smallest of the sizes that holds so many; the size itself where none does."""
    return next((each for each in sizes if each >= size), size)


def mixing(graph: Graph, symbol: str) -> str:
    """Why rows, which are as many as a symbol stands for, may depend on each other; "" where they cannot."""
    rows = Sym(symbol)
    if not any(has_rows(v.type, symbol) for v in graph.inputs):
        return f"no operand has {symbol!r} rows"
    for value in [*graph.inputs, *(v for node in graph.nodes for v in node.outputs)]:
        if not _is_apart(value, rows, symbol):
            return f"value {value.name!r} is {value.type}: {symbol!r} is not its first axis alone"
    for node in graph.nodes:
        carrying = [i for i, v in enumerate(node.operands) if v is not None and has_rows(v.type, symbol)]
        made = [has_rows(v.type, symbol) for v in node.outputs]
        if not carrying and not any(made):
            continue
        proof = _proof_of(node)
        if not carrying or not all(made) or proof is None or not proof(node.op, node, carrying):
            return f"{node.op.name}: node {node.name!r} is not known to keep rows apart"
    return ""


def has_rows(t: TensorType, symbol: str) -> bool:
    """Whether the first axis of a type is a symbol."""
    return bool(t.shape) and t.shape is not None and t.shape[0] == Sym(symbol)


def _is_apart(value: Value, rows: Sym, symbol: str) -> bool:
    """Whether the symbol is in a type as its first axis or not at all."""
    t = value.type
    if t.shape is None or (t.value is not None and any(_names(d, symbol) for d in t.value.flat)):
        return False
    first, rest = t.shape[:1], t.shape[1:]
    return not any(_names(d, symbol) for d in rest) and all(d == rows or not _names(d, symbol) for d in first)


def _names(dim: Any, symbol: str) -> bool:
    return isinstance(dim, Sym) and any(symbol in atom for atom, _ in dim.terms)


def _proof_of(node: Node) -> Proof | None:
    if node.op.is_view:
        return _view
    return _pointwise if getattr(node.op, "pointwise", False) else PROOFS.get(node.op.name)


def _rank(value: Value | None) -> int:
    return 0 if value is None else len(value.type.shape or ())


def _pointwise(op: Any, node: Node, carrying: list[int]) -> bool:
    return all(_rank(node.operands[i]) == _rank(node.output) for i in carrying)


def _view(op: Any, node: Node, carrying: list[int]) -> bool:
    """Elements stay in their order, and the first axis its size."""
    return carrying == [0]


def _first(op: Any, node: Node, carrying: list[int]) -> bool:
    return carrying == [0]


def _inner_axis(op: Any, node: Node, carrying: list[int]) -> bool:
    return carrying == [0] and op.axis % _rank(node.operands[0]) > 0


def _concat(op: Any, node: Node, carrying: list[int]) -> bool:
    return len(carrying) == len(node.operands) and op.axis % _rank(node.output) > 0


def _transpose(op: Any, node: Node, carrying: list[int]) -> bool:
    return bool(op.perm) and op.perm[0] == 0


def _product(op: Any, node: Node, carrying: list[int]) -> bool:
    """Rows are those of the first factor, or a matrix each."""
    ranks = [_rank(node.operands[i]) for i in carrying]
    if max(carrying) > 1 or any(rank != _rank(node.output) for rank in ranks):
        return False
    return min(ranks) > 2 or (carrying == [0] and not getattr(op, "trans_a", False))


def _gather(op: Any, node: Node, carrying: list[int]) -> bool:
    return carrying == [1] or (carrying == [0] and op.axis % _rank(node.operands[0]) > 0)


FIRST = (
    "AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "DequantizeLinear",
    "Dropout", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool", "QLinearConv",
    "QuantizeLinear", "Resize", "SpaceToDepth",
)  # fmt: skip
"""Operators whose first operand is images or the like, one after another, and whose others are of all."""
REDUCED = (
    "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
"""Operators whose result has rows only where these are not summed up."""
INNER = ("Hardmax", "LayerNormalization", "LogSoftmax", "LpNormalization", "RMSNormalization", "Softmax", "Split")
PROOFS: Mapping[str, Proof] = {
    **dict.fromkeys((*FIRST, *REDUCED), _first),
    **dict.fromkeys(INNER, _inner_axis),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _product),
    "Concat": _concat, "Gather": _gather, "Transpose": _transpose,
}  # fmt: skip
