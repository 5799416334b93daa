"""Everything that is unsupported in a file, not only what reading stops at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.types import F32, TensorType
from bolt_numba.converters.builder import ForeignNode
from bolt_numba.converters.nodes import NodeReader, S
from bolt_numba.ir.graph import Value

M = TypeVar("M")


def read_or_list(reader: NodeReader[Any], survey: Survey[Any], read: Callable[[Any], M]) -> M:
    """What ``read`` makes with a reader; where that is unsupported, the error lists all that a survey of it finds."""
    try:
        return read(reader)
    except UnsupportedOpError:
        raise UnsupportedOpError(reader.file, survey.lines(lambda: read(survey))) from None


class Survey(NodeReader[S]):
    """Reads on behind what is unsupported, with the type that the file declares for its results.

    A format's survey is this class before its own reader: ``class ToySurvey(Survey[Scope], ToyReader)``.

    found: a line for each finding.  tainted: values that depend on what could not be read; what fails there is no
    finding.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.found: list[str] = []
        self.tainted: dict[int, Value] = {}

    def declared(self, name: str, scope: S) -> TensorType:
        """What the file tells of the type of a result; by itself, nothing."""
        return TensorType(F32, None)

    def lines(self, read: Callable[[], object]) -> list[str]:
        """All that is found while ``read`` reads with this reader.

        Raises InvalidModelError for what is no valid model, unless that may come from what was found.
        """
        try:
            read()
        except InvalidModelError:
            if not self.found:
                raise
        return list(dict.fromkeys(self.found))

    def read_node(self, node: ForeignNode, scope: S, what: str) -> None:
        tainted = any(id(scope.values.get(name)) in self.tainted for name in node.inputs if name)
        try:
            super().read_node(node, scope, what)
        except UnsupportedOpError as error:
            if not tainted:
                line = self.describe(node, scope)
                self.found += [item if error.source == self.file else f"{line}: {item}" for item in error.items]
            self._bind_placeholder(node, scope)
        except Exception:
            if not tainted:
                raise
            self._bind_placeholder(node, scope)
        else:
            if tainted:
                self._taint(node, scope)

    def _bind_placeholder(self, node: ForeignNode, scope: S) -> None:
        """Values for the results of a node that could not be read."""
        for name in node.outputs:
            if name:
                t = self.declared(name, scope)
                scope.values[name] = Value(scope.graph.unique_name(scope.prefix + name), t)
        self._taint(node, scope)

    def _taint(self, node: ForeignNode, scope: S) -> None:
        for name in node.outputs:
            value = scope.values.get(name)
            if value is not None:
                self.tainted[id(value)] = value
