"""Control flow, and what lives longer than a run: variables and hash tables.

A subgraph that is certain to run is read in place.  Others become graphs of their own, to which variables are operands
and, where they are changed, results like any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bolt_numba.base.types import BOOL, I64, TensorType
from bolt_numba.converters.builder import known_scalar
from bolt_numba.converters.loops import stable_body
from bolt_numba.converters.tflite.reading.complexes import Complex
from bolt_numba.converters.tflite.reading.graph import TfliteBuilder, with_captures
from bolt_numba.converters.tflite.reading.registry import TFLITE, complexes, exact
from bolt_numba.converters.tflite.reading.scope import Handle, Key, SubgraphScope
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.control import If, Loop


@TFLITE.reader("CALL")
@exact
@complexes
def call(b: TfliteBuilder, *operands: Value, subgraph: int) -> list[Value | None]:
    return b.owner.inline(b.scope, subgraph, operands)


@TFLITE.reader("STABLEHLO_COMPOSITE")
@exact
@complexes
def composite(b: TfliteBuilder, *operands: Value, decomposition_subgraph_index: int = 0) -> list[Value | None]:
    """What it is called does not matter: its meaning is a subgraph."""
    return b.owner.inline(b.scope, decomposition_subgraph_index, operands)


@TFLITE.reader("CALL_ONCE")
@exact
def call_once(b: TfliteBuilder, *, init_subgraph_index: int) -> Any:
    b.owner.initialise(init_subgraph_index)
    return []


@TFLITE.reader("IF")
@exact
def if_(
    b: TfliteBuilder, condition: Value, *operands: Value, then_subgraph_index: int, else_subgraph_index: int
) -> list[Value | None] | list[Value]:
    """Of a constant condition only the branch taken is read."""
    known = known_scalar(condition)
    if known is not None:
        return b.owner.inline(b.scope, then_subgraph_index if known else else_subgraph_index, operands)
    scopes, results = [], []
    for index in (then_subgraph_index, else_subgraph_index):
        scope, values = _branch(b, index, operands)
        scopes.append(scope)
        results.append(values)
    b.invalid_if(len(results[0]) != len(results[1]), "outputs of the branches", [len(r) for r in results], "as many")
    changed = list(dict.fromkeys(key for scope in scopes for key in scope.changed))
    for scope, values in zip(scopes, results, strict=True):
        _add_outputs(b, scope, [*values, *(b.owner.variables.read(scope, key) for key in changed)])
    graphs, captures = with_captures(scopes)
    return _results(b, b.node(If(*graphs), condition, *captures).outputs, changed)


def _branch(b: TfliteBuilder, index: int, operands: Sequence[Value]) -> tuple[SubgraphScope, list[Value | None]]:
    """A subgraph whose inputs are captured, and its results."""
    scope = b.owner.body(b.scope, index, [None] * len(operands))
    names = [scope.name(int(number)) for number in scope.table["inputs"]] if operands else []
    for name, x in zip(names, operands, strict=True):
        scope.values[name] = x if x.const is not None else scope.capture(x, name)
    return scope, b.owner.fill(scope)


def _add_outputs(b: TfliteBuilder, scope: SubgraphScope, values: Sequence[Value | None]) -> None:
    for i, value in enumerate(values):
        if value is None:
            raise b.invalid(f"output {i} of a subgraph", "nothing", "a tensor")
        if isinstance(value, Complex):
            raise b.unsupported("complex numbers as results of branches and loops")
        scope.graph.add_output(value, f"result_{i}")


def _results(b: TfliteBuilder, values: Sequence[Value], changed: Sequence[Key]) -> list[Value]:
    """The results of a node of control flow; the last are the new values of variables."""
    count = len(values) - len(changed)
    for key, value in zip(changed, values[count:], strict=True):
        b.owner.variables.write(b.scope, key, value)
    return list(values[:count])


@TFLITE.reader("WHILE")
@exact
def while_(b: TfliteBuilder, *operands: Value, cond_subgraph_index: int, body_subgraph_index: int) -> list[Value]:
    """As a `Loop` whose body ends with the condition of the next iteration."""
    handles = [x if isinstance(x, Handle) else None for x in operands]
    carried = [x for x in operands if not isinstance(x, Handle)]
    first = b.owner.inline(b.scope, cond_subgraph_index, operands)
    changed: list[Key] = []

    def read(types: list[TensorType]) -> tuple[Graph, list[Value]]:
        left = iter(types)
        scope = b.owner.body(b.scope, body_subgraph_index, [next(left) if h is None else h for h in handles])
        scope.graph.inputs[:0] = [
            Value(scope.graph.unique_name(n), TensorType(t, ())) for n, t in (("trip", I64), ("going_on", BOOL))
        ]
        for key, t in zip(changed, left, strict=True):
            scope.graph.inputs.append(scope.begin(key, str(key), t))
        results = b.owner.fill(scope)
        b.invalid_if(len(results) != len(operands), "outputs of the body", len(results), len(operands))
        again = b.owner.inline(scope, cond_subgraph_index, results)
        more = [key for key in scope.changed if key not in changed]
        if more:  # found only now that it is read: carried from here on
            raise _MoreVariables(more)
        ends = [x for x, h in zip(results, handles, strict=True) if h is None]
        _add_outputs(b, scope, [_condition(b, again), *ends, *(scope.variables[key] for key in changed)])
        graphs, captures = with_captures([scope])
        return graphs[0], captures

    while True:
        start = [*carried, *(b.owner.variables.read(b.scope, key) for key in changed)]
        try:
            graph, captures = stable_body(b, start, read)
            break
        except _MoreVariables as found:
            changed += found.keys
    made = b.node(Loop(graph, len(start)), None, _condition(b, first), *start, *captures).outputs
    results = iter(_results(b, made, changed))
    return [next(results) if h is None else h for h in handles]


class _MoreVariables(Exception):  # noqa: N818  # no error
    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = keys


def _condition(b: TfliteBuilder, results: Sequence[Value | None]) -> Value:
    if len(results) != 1 or results[0] is None or results[0].type.dtype != BOOL:
        raise b.invalid("result of the condition", [str(r and r.type) for r in results], "one bool")
    return results[0]


# --- variables -------------------------------------------------------------------------------------------------------


def _key(b: TfliteBuilder, handle: Value) -> Key:
    if not isinstance(handle, Handle):
        raise b.unsupported("a handle that is computed")
    return handle.key


@TFLITE.reader("VAR_HANDLE")
@exact
def var_handle(b: TfliteBuilder, *, container: str = "", shared_name: str = "") -> Value:
    return Handle(b.graph, ("variable", f"{container}/{shared_name}" if container else shared_name))


@TFLITE.reader("READ_VARIABLE")
@exact
def read_variable(b: TfliteBuilder, handle: Value) -> Value:
    """A variable that nothing has set begins as zeros, where its shape is known."""
    key, declared = _key(b, handle), b.declared()
    if key not in b.owner.variables.initial and key not in b.scope.home.variables and declared.is_static:
        b.owner.variables.begin(key, declared)
    return b.owner.variables.read(b.scope, key)


@TFLITE.reader("ASSIGN_VARIABLE")
@exact
def assign_variable(b: TfliteBuilder, handle: Value, value: Value) -> Any:
    b.owner.variables.write(b.scope, _key(b, handle), value)
    return []
