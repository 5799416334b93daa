"""Reading nodes in order: operands from a scope, results bound to the names of the file, failures with their node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

from bolt_numba.base.border import place_of
from bolt_numba.base.errors import BoltError, InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import Array, TensorType, type_of
from bolt_numba.converters.builder import ForeignNode
from bolt_numba.converters.scope import Scope
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.shape import Identity

S = TypeVar("S", bound=Scope)


_heard: ContextVar[dict[tuple[object, ...], str] | None] = ContextVar("heard", default=None)


@contextmanager
def foreign_operators() -> Iterator[Counter[str]]:
    """Count the operators of the files that are read within, by the names that they have there; filled at the end."""
    found: Counter[str] = Counter()
    nodes: dict[tuple[object, ...], str] = {}
    token = _heard.set(nodes)
    try:
        yield found
    finally:
        _heard.reset(token)
        found.update(nodes.values())


def hear(nodes: Callable[[], Iterable[tuple[tuple[object, ...], str]]]) -> None:
    """Tell nodes of a file, each by what it is known by and its operator, where somebody counts them."""
    heard = _heard.get()
    if heard is not None:
        heard.update(nodes())


class NodeReader(Generic[S]):
    """Reads the nodes of one model; ``file`` names it in messages.  A format says what the `results` of a node are.

    named: values that have a name of the file, by id.
    """

    counted = True
    """Whether the nodes that are read are those of the file, which function bodies are not."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.named: dict[int, Value] = {}

    def results(self, node: ForeignNode, inputs: list[Value | None], scope: S, what: str) -> Sequence[Value | None]:
        """Add a node's operators to the graph; returns its results.  For the format to say."""
        raise NotImplementedError

    def describe(self, node: ForeignNode, scope: S) -> str:
        """One line about a node that has no meaning here."""
        return f"{node.op} at node '{node.label}'"

    def find(self, scope: S, name: str, what: str) -> Value | None:
        """The value of a name; InvalidModelError where there is none."""
        try:
            return scope.find(name)
        except KeyError:
            raise InvalidModelError(f"{what}: tensor '{name}': got no definition, wanted one") from None

    def add_input(self, scope: S, name: str, type: TensorType) -> None:
        """Declare an input of the scope's graph."""
        value = scope.graph.add_input(name, type)
        scope.values[name] = self.named[id(value)] = value

    def add_constant(self, scope: S, name: str, data: Array) -> None:
        """Bind a name to an array of the file."""
        value = Value(scope.graph.unique_name(scope.prefix + name), type_of(data), const=data)
        scope.values[name] = self.named[id(value)] = value

    def add_outputs(self, scope: S, names: Iterable[str]) -> None:
        """Declare the outputs of the scope's graph."""
        for name in names:
            value = self.find(scope, name, f"{self.file}: output '{name}'")
            if value is None:
                raise InvalidModelError(f"{self.file}: output '{name}': got nothing, wanted a tensor")
            scope.graph.add_output(value, name)

    def read_nodes(self, nodes: Iterable[ForeignNode], scope: S) -> None:
        """Read nodes in order; any failure names the node."""
        for node in nodes:
            if self.counted:
                hear(lambda node=node: [((scope.graph.name, scope.prefix, node.label, node.op), node.op)])  # type: ignore[misc]
            what = f"{self.file}: node '{scope.prefix}{node.label}' ({node.op})"
            try:
                self.read_node(node, scope, what)
            except UnsupportedOpError:
                raise
            except BoltError as error:
                if str(error).startswith(self.file):
                    raise
                raise type(error)(f"{what}: {error}") from error
            except Exception as error:  # a reader met something the specification does not allow
                place = place_of(error)
                told = f"{what}: cannot be read: {type(error).__name__}: {error}{place and f' ({place})'}"
                raise InvalidModelError(told) from error

    def read_node(self, node: ForeignNode, scope: S, what: str) -> None:
        """Read one node: its operands, its results, their names."""
        inputs = [self.find(scope, name, what) if name else None for name in node.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        self._bind(node, self.results(node, inputs, scope, what), scope, what)

    def _bind(self, node: ForeignNode, results: Sequence[Value | None], scope: S, what: str) -> None:
        """Give results the names of the node's outputs; an operand that is passed on gets a node of its own."""
        if len(results) < len(node.outputs) and any(node.outputs[len(results) :]):
            raise InvalidModelError(f"{what}: got {len(node.outputs)} outputs, wanted at most {len(results)}")
        for name, value in zip(node.outputs, results, strict=False):
            if not name:
                continue
            if value is None:
                raise UnsupportedOpError(self.file, [f"{self.describe(node, scope)}: output '{name}'"])
            full = scope.name_for(name)
            if id(value) in self.named or value.node is None:
                value = self._again(value, scope.graph, full)
            value.name = full
            if value.node is not None and value.index == 0:
                value.node.name = full
            scope.values[name] = self.named[id(value)] = value

    def _again(self, value: Value, graph: Graph, name: str) -> Value:
        if value.const is not None:
            return Value(name, value.type, const=value.const)
        return Builder(graph)(Identity(), value, name=f"{name}/Identity")
