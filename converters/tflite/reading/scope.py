"""The tensors of one subgraph, and what lives longer than it: variables, by key."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import STRING, Array, TensorType, type_of
from bolt_numba.converters.flat import Table
from bolt_numba.converters.scope import Scope
from bolt_numba.converters.tflite.container import Container, Quantisation
from bolt_numba.ir.graph import Graph, Value

Key: TypeAlias = Hashable
"""What tells a variable from all others of the file."""


class Handle(Value):
    """What a file passes around in the place of a variable or a table: a key instead of content."""

    __slots__ = ("key",)

    def __init__(self, graph: Graph, key: Key) -> None:
        text = np.array(str(key), object)
        super().__init__(graph.unique_name("handle"), TensorType(STRING, ()), const=text)
        self.key = key


class SubgraphScope(Scope):
    """The tensors of one subgraph by name.  No name is looked for outside: operands are all that a subgraph gets.

    parent: the scope of the operator that runs the subgraph.  home: the scope whose graph the nodes become part of.
    real: dequantised values by the id of the stored ones.  begun: variables as they are before the graph.  variables:
    as they are now.  changed: those that were given a new value.
    """

    def __init__(
        self,
        graph: Graph,
        container: Container,
        index: int,
        *,
        parent: SubgraphScope | None = None,
        inlined: bool = False,
        prefix: str = "",
    ) -> None:
        super().__init__(graph, prefix=prefix, depth=parent.depth + 1 if parent else 0, shares_graph=inlined)
        self.container, self.index, self.parent = container, index, parent
        self.table: Table = container.at(container.subgraphs, index, "subgraph")
        self.home: SubgraphScope = parent.home if parent is not None and inlined else self
        self.tensors: list[Table] = self.table["tensors"] or []
        self.names = container.names_of(self.table)
        self.number = {name: i for i, name in enumerate(self.names)}
        self.real: dict[int, Value] = {}
        self.begun: dict[Key, Value] = {}
        self.variables: dict[Key, Value] = {}
        self.changed: dict[Key, None] = {}

    def rename(self, number: int, name: str) -> None:
        """Call a tensor otherwise, as a signature does."""
        if name in self.number and self.number[name] != number:
            other = self.number.pop(name)
            spare = f"{name}#{other}"
            while spare in self.number:
                spare += "#"
            self.names[other], self.number[spare] = spare, other
        del self.number[self.names[number]]
        self.names[number], self.number[name] = name, number

    def tensor(self, index: int) -> Table:
        found: Table = self.container.at(self.tensors, index, "tensor")
        return found

    def name(self, index: int) -> str:
        """The name of a tensor by its number; "" for -1, an optional operand that is left out."""
        return "" if index == -1 else str(self.container.at(self.names, index, "tensor"))

    def quantisation(self, name: str) -> Quantisation | None:
        """What the numbers of a tensor stand for."""
        return self.container.quantisation_of(self.tensors[self.number[name]], self.tensors) if name else None

    def begin(self, key: Key, label: str, type: TensorType) -> Value:
        """A variable's value before the graph: of a model a state, of the body of a loop what it carries."""
        home = self.home
        if key not in home.variables:
            home.variables[key] = home.begun[key] = Value(home.graph.unique_name(label), type)
        return home.variables[key]


class Variables:
    """The variables of a model.  initial: what they hold at first.  open: those whose shape changes between runs.

    fixed: those that are only set when the model begins: constants from then on.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.initial: dict[Key, Array] = {}
        self.open: set[Key] = set()
        self.fixed: set[Key] = set()
        self.initialised: set[int] = set()

    def begin(self, key: Key, t: TensorType, number: int = 0) -> None:
        """Have a variable hold one number everywhere at first; raises BudgetError where the file wants too much."""
        ask(t.nbytes, f"{self.file}: variable '{key[-1] if isinstance(key, tuple) else key}'")
        self.initial[key] = np.full(t.dims, number, t.dtype)

    def read(self, scope: SubgraphScope, key: Key) -> Value:
        """What a variable holds where a scope's nodes are now."""
        home = scope.home
        if key in home.variables:
            return home.variables[key]
        label = str(key[-1]) if isinstance(key, tuple) else str(key)
        if home.parent is not None:
            outer = self.read(home.parent, key)
            home.variables[key] = _copy(home, outer, label)
            return home.variables[key]
        if key not in self.initial:
            raise InvalidModelError(f"{self.file}: variable '{label}': got no value before it is read, wanted one")
        array = self.initial[key]
        if key in self.fixed:
            return Value(home.graph.unique_name(label), type_of(array), const=array)
        return home.begin(key, label, TensorType(array.dtype, None if key in self.open else array.shape))

    def write(self, scope: SubgraphScope, key: Key, value: Value) -> None:
        """Give a variable a new value."""
        scope.home.variables[key] = value
        scope.home.changed[key] = None

    def settle(self, scope: SubgraphScope) -> bool:
        """Make states of the variables of a whole graph; False where one takes a shape that was not reckoned with."""
        changes = [
            key for key, before in scope.begun.items() if before.type.shape is not None
            and scope.variables[key].type.shape != before.type.shape
        ]  # fmt: skip
        self.open.update(changes)
        for key, before in scope.begun.items():
            if not changes:
                scope.graph.add_state(before, scope.variables[key], self.initial[key])
        return not changes


def _copy(home: SubgraphScope, outer: Value, label: str) -> Value:
    if outer.const is not None:
        return Value(home.graph.unique_name(label), outer.type, const=outer.const)
    return home.capture(outer, label)
