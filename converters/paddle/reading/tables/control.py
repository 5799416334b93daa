"""Readers of control flow and of arrays of tensors; `structure` says in which form old programs arrive."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import BOOL, F32, F64, I64, STRING, AnyDType, NestedType, Sym, TensorType, type_of
from bolt_numba.converters.builder import ints, known_scalar
from bolt_numba.converters.loops import stable_body
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.program import LEGACY, PaddleBlock
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.converters.scope import Scope, take_captures
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.shape import Identity, Reshape
from bolt_numba.ops.control import If, Loop
from bolt_numba.ops.data.sequence import (
    ConcatFromSequence,
    SequenceAt,
    SequenceEmpty,
    SequenceErase,
    SequenceInsert,
    SequenceLength,
)
from bolt_numba.ops.pointwise import Cast, Less, Where


def scalar(b: Builder, x: Value, *shape: int) -> Value:
    """The only element of x in a shape of one element, () by default."""
    return x if x.type.shape == shape else b(Reshape(), x, ints(shape))


@PADDLE.reader(legacy=["if_else"], results=["Out"])
def if_else(b: PaddleBuilder, cond: Value, *, then: tuple[str, ...], otherwise: tuple[str, ...]) -> list[Value]:
    """Read `paddle.static.nn.cond`, as `structure` found it."""
    return list(_if(b, cond, b.operation.blocks, (then, otherwise)))


@PADDLE.reader(pir=["if"])
def if_(b: PaddleBuilder, cond: Value) -> tuple[Value, ...]:
    changed = b.operation.changed
    return _kept(b, _if(b, cond, b.operation.blocks, [[*block.results, *changed] for block in b.operation.blocks]))


def _kept(b: PaddleBuilder, made: tuple[Value, ...]) -> tuple[Value, ...]:
    """Results without the last, which are the new content of what the regions change outside."""
    changed = b.operation.changed
    count = len(made) - len(changed)
    b.scope.values.update(zip(changed, made[count:], strict=True))
    return made[:count]


def _if(
    b: PaddleBuilder, cond: Value, blocks: Sequence[PaddleBlock], names: Sequence[Sequence[str]]
) -> tuple[Value, ...]:
    """Results of one of two blocks, each by its names; of a constant condition only the block taken is read."""
    if len(names) != 2 or len(names[0]) != len(names[1]):
        raise b.invalid("results of the branches", [len(n) for n in names], "as many of both")
    known = known_scalar(cond)
    if known is not None:
        taken = 0 if known else 1
        scope = b.owner.inline(blocks[taken], b.scope)
        return tuple(_found(b, scope, name) for name in names[taken])
    scopes = [b.owner.body(block, b.scope, {}) for block in blocks]
    found = [[_found(b, scope, name) for name in own] for scope, own in zip(scopes, names, strict=True)]
    return _one_of(b, cond, scopes, list(zip(*found, strict=True)))


def _one_of(
    b: PaddleBuilder, cond: Value, scopes: Sequence[Scope], pairs: Sequence[tuple[Value, ...]]
) -> tuple[Value, ...]:
    """Values of one of two graphs, the first where cond is true; what neither has stays without a value."""
    if all(map(_passes_on, scopes)) and all(map(_is_flag, pairs)):
        return tuple(b(Where(), _truth(b, cond), *map(_outside, scopes, pair)) for pair in pairs)
    results: list[Value | None] = []
    for pair in pairs:
        known = [value.type for value in pair if not _is_unborn(value)]
        results.append(None if known else b.const(pair[0].const))
        for scope, value in zip(scopes, pair, strict=True):
            if known:
                scope.graph.add_output(_begun(value, known[0]), f"result_{len(results)}")
    made = iter(_node_of(b, cond, scopes) if None in results else ())
    return tuple(next(made) if value is None else value for value in results)


def _node_of(b: PaddleBuilder, cond: Value, scopes: Sequence[Scope]) -> tuple[Value, ...]:
    captures = take_captures(scopes)
    made = If(scopes[0].graph, scopes[1].graph)
    return tuple(b.node(made, _truth(b, cond), *captures).outputs)


def _truth(b: PaddleBuilder, cond: Value) -> Value:
    return scalar(b, b(Cast(BOOL), cond) if cond.type.dtype != BOOL else cond)


def _is_flag(pair: tuple[Value, ...]) -> bool:
    """Whether two values are tensors of one element in the same shape: choosing one takes less than a branch."""
    first, second = (value.type for value in pair)
    is_one = not isinstance(first, NestedType) and first.shape in ((), (1,)) and not any(map(_is_unborn, pair))
    return is_one and first.shape == second.shape and first.dtype == second.dtype != STRING


def _passes_on(scope: Scope) -> bool:
    """Whether a graph computes nothing."""
    return all(isinstance(node.op, Identity) for node in scope.graph.nodes)


def _outside(scope: Scope, value: Value) -> Value:
    """What a value of a graph that computes nothing stands for: a constant, or what the graph captures."""
    while value.node is not None:
        (value,) = value.node.operands  # type: ignore[assignment]
    return next((outer for outer, inner in scope.captured.values() if inner is value), value)


def _found(b: PaddleBuilder, scope: Scope, name: str) -> Value:
    """The value of a name; of one that an old program declares, and assigns nothing to yet, `NOTHING`."""
    declared = b.owner.program.variable(name) if b.owner.program.dialect == LEGACY else None
    if declared is not None and not declared.is_array:
        try:
            scope.find(name)
        except KeyError:
            return b.const(NOTHING)
    value = b.owner.find(scope, name, b.what)
    if value is None:
        raise b.invalid(f"'{name}'", "nothing", "a tensor")
    return value


NOTHING = np.zeros(0, F32)
"""What a name is before anything is assigned to it, told by its identity."""
UNDEFINED = 1.77113e27
"""What Paddle assigns to a name that only a branch or a loop further down gives a value."""


def _is_unborn(value: Value) -> bool:
    """Whether a value only stands for one that is assigned later."""
    held = value.const
    if held is None or held is NOTHING:
        return held is NOTHING
    return held.size == 1 and held.dtype in (F32, F64) and math.isclose(held.reshape(-1)[0], UNDEFINED, rel_tol=1e-6)


def _begun(value: Value, like: TensorType | None) -> Value:
    """A value in whose place one of this type comes; where it only stands for that, in its type."""
    return _filled(value, like) if like is not None and like.shape is not None and _is_unborn(value) else value


def _filled(value: Value, like: TensorType) -> Value:
    """A type's zeros, or the number that stands for it.

    A size that the run tells is 1, as Paddle's one element would broadcast, and 0 where there is none.
    """
    held = value.type.known
    if held is None or like.shape is None:
        return value
    number = held.reshape(-1)[0] if held.size and held.dtype.kind == like.dtype.kind else 0
    dims = [held.size if isinstance(d, Sym) else d for d in like.shape]
    ask(math.prod(dims) * like.dtype.itemsize, value.name)
    with np.errstate(over="ignore"):
        content = np.full(dims, number, like.dtype)
    return Value(value.name, type_of(content), const=content)


@PADDLE.reader(legacy=["conditional_block", "conditional_block_infer"], results=["Out"])
def conditional_block(b: PaddleBuilder, cond: Value, *, is_scalar_condition: bool = False) -> list[Value | None]:
    """Results of a block, or what the names held before."""
    b.unsupported_if(not is_scalar_condition, "a condition of many elements")
    (block,) = b.operation.blocks
    return _of_names(b, lambda names: _if(b, cond, (block, PaddleBlock([])), (names, names)))


def _of_names(b: PaddleBuilder, read: Callable[[list[str]], Sequence[Value]]) -> list[Value | None]:
    """What ``read`` makes of the names that somebody reads, by all names of the results."""
    names = b.operation.outputs[0][1]
    wanted = [name for name in names if name in b.owner.used]
    made = dict(zip(wanted, read(wanted), strict=True))
    return [made.get(name) for name in names]


@PADDLE.reader(legacy=["select_input"])
def select_input(b: PaddleBuilder, x: Values, mask: Value) -> Value:
    """One of two tensors, whose shapes may differ."""
    b.unsupported_if(len(x) != 2, f"a choice of {len(x)}")
    scopes = [Scope(Graph("choice"), outer=b.scope, depth=b.scope.depth + 1) for _ in x]
    pair = [v if v.const is not None else s.capture(v, v.name) for s, v in zip(scopes, reversed(x), strict=True)]
    return _one_of(b, mask, scopes, [tuple(pair)])[0]


@PADDLE.reader(legacy=["while"], results=["Out"])
def while_(b: PaddleBuilder, condition: Value) -> list[Value | None]:
    """Run the block while the condition, which it computes anew, is true; names it writes go from turn to turn."""
    (block,) = b.operation.blocks
    (name,) = b.operation.inputs[0][1]

    def read(names: list[str]) -> Sequence[Value]:
        before = [_begun(_found(b, b.scope, other), _assigned(b, block, other)) for other in names]
        carried = [_as_declared(b, v, other, block) for v, other in zip(before, names, strict=True)]
        return _loop(b, condition, carried, block, names, [name, *names])

    return _of_names(b, read)


def _assigned(b: PaddleBuilder, block: PaddleBlock, name: str) -> TensorType | None:
    """The type that the file declares of what a block assigns to a name in the end."""
    last = next((o for o in reversed(block.operations) if name in o.writes), None)
    source = next(last.reads, name) if last is not None and last.type == "assign" else name
    declared = b.owner.program.variable(source)
    return None if declared is None else declared.type


@PADDLE.reader(pir=["while"])
def while_pir(b: PaddleBuilder, condition: Value, carried: Values = ()) -> tuple[Value, ...]:
    (block,) = b.operation.blocks
    b.invalid_if(len(block.arguments) != len(carried), "arguments of the region", len(block.arguments), len(carried))
    changed = b.operation.changed
    before = [_found(b, b.scope, name) for name in changed]
    start = [_as_declared(b, v, name, block) for v, name in zip(carried, block.arguments, strict=True)]
    names = [*block.arguments, *changed]
    return _kept(b, _loop(b, condition, [*start, *before], block, names, [*block.results, *changed]))


def _as_declared(b: PaddleBuilder, value: Value, name: str, block: PaddleBlock) -> Value:
    """A value; one element that the block does not read stands for what is born there, where more are declared."""
    declared = b.owner.program.variable(name)
    type = None if declared is None else declared.type
    if type is None or type.shape is None or known_scalar(value) is None or all(d == 1 for d in type.shape):
        return value
    if len(type.shape) == len(value.type.dims) or any(name == first for first in _read_first(block)):
        return value
    return _filled(value, type)


def _read_first(block: PaddleBlock) -> Iterator[str]:
    """Names that a block reads before it writes them."""
    written: set[str] = set()
    for operation in block.operations:
        inner = (name for own in operation.blocks for name in (*_read_first(own), *own.results))
        choices = (name for key in ("then", "otherwise") for name in operation.attributes.get(key, ()))
        yield from (name for name in (*operation.reads, *inner, *choices) if name not in written)
        written.update(operation.writes)
    yield from block.results


def _loop(
    b: PaddleBuilder,
    condition: Value,
    carried: Sequence[Value],
    block: PaddleBlock,
    names: Sequence[str],
    given: Sequence[str],
) -> tuple[Value, ...]:
    """Run a block whose carried values have ``names``, and whose condition and values are called ``given`` after."""

    def read(types: list[TensorType]) -> tuple[Graph, list[Value]]:
        scope = Scope(Graph("body"), outer=b.scope, depth=b.scope.depth + 1)
        for fixed, type in (("turn", TensorType(I64, ())), ("before", TensorType(BOOL, ()))):
            scope.graph.add_input(scope.graph.unique_name(fixed), type)
        scope = b.owner.body(block, b.scope, dict(zip(names, types, strict=True)), scope)
        for i, name in enumerate(given):
            value = _found(b, scope, name)
            if i == 0:
                value = scalar(Builder(scope.graph), value)
            scope.graph.add_output(value, f"result_{i}")
        return scope.graph, take_captures([scope])

    graph, captures = stable_body(b, carried, read)
    return tuple(b.node(Loop(graph, len(carried)), None, scalar(b, condition), *carried, *captures).outputs)


@PADDLE.reader(pir=["create_array"])
def create_array(b: PaddleBuilder, *, dtype: AnyDType | None = None) -> Value:
    return b(SequenceEmpty(dtype or F32))


@PADDLE.reader(pir=["array_write_"])
def array_write(b: PaddleBuilder, array: Value, x: Value, i: Value) -> Value:
    """An array with x at place i: in the place of what is there, or behind the last element."""
    place = scalar(b, i)
    is_there = b(Less(), place, b(Cast(place.type.dtype), b(SequenceLength(), array)))
    scopes = [Scope(Graph("array"), outer=b.scope, depth=b.scope.depth + 1) for _ in range(2)]
    for erases, scope in zip((True, False), scopes, strict=True):
        made = scope.capture(array, "array")
        if erases:
            made = Builder(scope.graph)(SequenceErase(), made, scope.capture(place, "place"))
        scope.graph.add_output(made, "result")
    return b(SequenceInsert(), _node_of(b, is_there, scopes)[0], x, place)


@PADDLE.reader(legacy=["write_to_array"])
def write_to_array(b: PaddleBuilder, x: Value, i: Value) -> Value:
    return array_write(b, _found(b, b.scope, next(b.operation.writes)), x, i)


@PADDLE.reader("read_from_array", "array_read", slots={"X_W": "weights"})
def read_from_array(b: PaddleBuilder, x: Value, i: Value, weights: Value | None = None) -> Value:
    return b(SequenceAt(), x, scalar(b, i))


@PADDLE.reader("lod_array_length", "array_length")
def lod_array_length(b: PaddleBuilder, x: Value) -> Value:
    declared = b.declared()
    rank = 1 if declared is None or declared.shape is None else len(declared.shape)
    return scalar(b, b(SequenceLength(), x), *[1] * rank)


@PADDLE.reader("tensor_array_to_tensor", pir=["array_to_tensor"], results=["Out", "OutIndex"])
def tensor_array_to_tensor(b: PaddleBuilder, x: Value, *, axis: int = 0, use_stack: bool = False) -> tuple[Value, None]:
    """All elements in one tensor, and the size that each has along the axis."""
    made = b(ConcatFromSequence(axis, new_axis=use_stack), x)
    b.unsupported_if(b.wants(1), "sizes of the elements of an array")
    return made, None
