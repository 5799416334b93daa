"""Shapes that are likely to come where one has come: for compiling ahead what they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bolt_numba.ir.graph import Graph

Shapes = dict[str, tuple[int, ...]]
OF_ONE = (2, 3, 4, 5, 8, 32)
"""What comes where a size was 1: batches, which kernels tell apart up to some 5."""
MOST_SIZE = 4096
"""Greatest size that is tried."""


def relatives(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Iterator[Shapes]:
    """Shapes of all inputs in which free sizes differ from those given.

    Free sizes that are equal are taken for one, as exporters often give two names to a batch; one that has a name of
    its own is tried alone, too.  Not all of these need fit the model.
    """
    free: dict[str, int] = {}
    for value in graph.caller_inputs:
        for symbol, size in zip(value.type.shape or (), shapes[value.name], strict=True):
            if not isinstance(symbol, int):
                free[str(symbol)] = size
    groups = {frozenset(s for s, at in free.items() if at == size): size for size in free.values()}
    groups |= {frozenset((symbol,)): size for symbol, size in free.items()}
    many = frozenset(symbol for symbol, size in free.items() if size == 1)
    for group, size in groups.items():
        for other in _others(size):
            yield _changed(graph, shapes, dict.fromkeys(group, other))
            if many and not group & many:
                yield _changed(graph, shapes, dict.fromkeys(many, 2) | dict.fromkeys(group, other))


def _others(size: int) -> tuple[int, ...]:
    if size == 1:
        return OF_ONE
    return tuple(n for n in (1, 2 * size, size // 2, 4 * size, size // 4, size + 1) if 0 < n <= MOST_SIZE)


def _changed(graph: Graph, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> Shapes:
    return {
        v.name: tuple(sizes.get(str(d), n) for d, n in zip(v.type.shape or (), shapes[v.name], strict=True))
        for v in graph.caller_inputs
    }
