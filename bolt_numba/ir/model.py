"""A model: named graphs, the signatures of its file, which share constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bolt_numba.base.errors import BoltError, DTypeError
from bolt_numba.ir.graph import Graph

MAIN = "main"
"""Name of the only graph of a file that has no names for its graphs."""


class Model:
    """What a file holds: graphs by name, the first of which is meant where no name is given.

    Graphs share a constant by reading the same array; a ``.bolt`` file then holds it once.  Most formats have one
    graph, for which `bolt_numba.load` is enough.

    Parameters
    ----------
    graphs: by the name of their signature; one graph alone is called ``"main"``.
    The constructor raises DTypeError for what is no graph, BoltError for none at all.
    """

    def __init__(self, graphs: Mapping[str, Graph] | Graph) -> None:
        if not isinstance(graphs, (Graph, Mapping)):
            raise DTypeError(f"model: graphs: got a {type(graphs).__name__}, wanted graphs by name")
        self.graphs = {MAIN: graphs} if isinstance(graphs, Graph) else dict(graphs)
        if not self.graphs:
            raise BoltError("model: graphs: got none, wanted at least one")
        entries: dict[Any, Any] = self.graphs
        for name, graph in entries.items():
            if not isinstance(name, str) or not isinstance(graph, Graph):
                raise DTypeError(f"model: graphs: got a {type(graph).__name__}, wanted graphs, by names")

    @property
    def signatures(self) -> tuple[str, ...]:
        """Names of the graphs."""
        return tuple(self.graphs)

    def graph(self, signature: str | None = None) -> Graph:
        """The graph of a signature; None: the first one.  Raises BoltError for an unknown name."""
        name: Any = self.signatures[0] if signature is None else signature
        if not isinstance(name, str) or name not in self.graphs:
            raise BoltError(f"signature: got {signature!r}, wanted one of {list(self.graphs)}")
        return self.graphs[name]

    def __repr__(self) -> str:
        return f"Model({', '.join(f'{name!r}: {graph!r}' for name, graph in self.graphs.items())})"
