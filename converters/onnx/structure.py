"""What must hold of a model before anything is read from it: names, order, functions, size of what they expand to.

Everything is plain Python over the protobuf messages, so that a hostile file cannot reach native code.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.converters.bounded import MAX_DEPTH, MAX_EXPANDED
from bolt_numba.converters.onnx.proto import onnx

Nodes: TypeAlias = Sequence[onnx.NodeProto]
FunctionKey: TypeAlias = tuple[str, str, str]
Functions: TypeAlias = Mapping[FunctionKey, onnx.FunctionProto]


def domain_of(name: str) -> str:
    """The default domain has two spellings."""
    return "" if name == "ai.onnx" else name


def key_of(node: onnx.NodeProto) -> FunctionKey:
    """What a local function is found by."""
    return domain_of(node.domain), node.op_type, node.overload


NEWEST = {"": 28, "ai.onnx.ml": 5}
"""The newest versions of ONNX's domains that there are readers for; later ones may mean something else by a name."""


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto], what: str) -> dict[str, int]:
    """Versions by domain, of several the last, with a warning; raises InvalidModelError for impossible ones."""
    made: dict[str, int] = {}
    for entry in imports:
        domain, version = domain_of(entry.domain), entry.version
        named, newest = f"{what}: opset of domain '{domain or 'ai.onnx'}'", NEWEST.get(domain, (1 << 31) - 1)
        if not 0 < version <= newest:
            raise InvalidModelError(f"{named}: got {version}, wanted 1 to {newest}")
        if made.get(domain, version) != version:
            warnings.warn(f"{named}: got {made[domain]} and {version}, the last one counts", stacklevel=2)
        made[domain] = version
    return made


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Graphs among the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def functions_of(model: onnx.ModelProto, what: str) -> Functions:
    """Local functions by key; raises InvalidModelError when they are recursive or expand without measure."""
    made: dict[FunctionKey, onnx.FunctionProto] = {}
    for function in model.functions:
        key = (domain_of(function.domain), function.name, function.overload)
        if key in made:
            raise InvalidModelError(f"{what}: function '{function.name}': got it twice, wanted it once")
        made[key] = function
    sizes: dict[FunctionKey, int] = {}
    for key in made:
        _expanded(key, made, sizes, (), what)
    total = sum(sizes.get(key_of(n), 0) for n in all_nodes(model.graph.node))
    if total > MAX_EXPANDED:
        raise InvalidModelError(f"{what}: functions expand to {total} nodes, wanted at most {MAX_EXPANDED}")
    return made


def _expanded(
    key: FunctionKey, functions: Functions, sizes: dict[FunctionKey, int], path: tuple[FunctionKey, ...], what: str
) -> int:
    """Nodes that one call of a function becomes."""
    if key in path or len(path) > MAX_DEPTH:
        raise InvalidModelError(f"{what}: function '{key[1]}': calls itself, or {MAX_DEPTH} others in a chain")
    if key not in sizes:
        total = 0
        for node in all_nodes(functions[key].node):
            called = key_of(node)
            total += _expanded(called, functions, sizes, (*path, key), what) if called in functions else 1
        sizes[key] = total
    return sizes[key]


def outer_names(graph: onnx.GraphProto) -> set[str]:
    """Names that a graph reads and does not define."""
    own = {x.name for x in graph.input} | {t.name for t in graph.initializer}
    own |= {t.values.name for t in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    reads = {name for node in graph.node for name in read_names(node)} | {x.name for x in graph.output}
    return reads - own - {""}


def read_names(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, those captured by its subgraphs included."""
    names = set(node.input)
    for graph in subgraphs(node):
        names |= outer_names(graph)
    return names - {""}


def sorted_nodes(nodes: Nodes, own: set[str], what: str) -> list[onnx.NodeProto]:
    """Nodes with operands first: as given where that is so already, as the specification wants.

    own: inputs and initializers of the graph.  Raises InvalidModelError for a name defined twice and for a cycle;
    names that nobody defines are left to the caller, who knows the enclosing graphs.
    """
    maker: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.output:
            if name and (name in maker or name in own):
                raise InvalidModelError(f"{what}: tensor '{name}': got two definitions, wanted one")
            if name:
                maker[name] = i
    reads = [read_names(node) if node.attribute else set(node.input) - {""} for node in nodes]
    if _in_order(nodes, reads, own, maker):
        return list(nodes)
    return _kahn(nodes, reads, maker, what)


def _in_order(nodes: Nodes, reads: Sequence[set[str]], own: set[str], maker: Mapping[str, int]) -> bool:
    return all(maker.get(name, -1) < i or name in own for i, names in enumerate(reads) for name in names)


def _kahn(nodes: Nodes, reads: Sequence[set[str]], maker: Mapping[str, int], what: str) -> list[onnx.NodeProto]:
    waiting = [{maker[name] for name in names if name in maker} for names in reads]
    readers: dict[int, list[int]] = {}
    for i, needs in enumerate(waiting):
        for j in needs:
            readers.setdefault(j, []).append(i)
    ready = [i for i, needs in enumerate(waiting) if not needs]
    heapq.heapify(ready)
    order: list[onnx.NodeProto] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(nodes[i])
        for j in readers.get(i, ()):
            waiting[j].discard(i)
            if not waiting[j]:
                heapq.heappush(ready, j)
    if len(order) != len(nodes):
        stuck = next(n for n, needs in zip(nodes, waiting, strict=True) if needs)
        raise InvalidModelError(f"{what}: node '{label(stuck)}' ({stuck.op_type}): got a cycle, wanted an order")
    return order


def label(node: onnx.NodeProto) -> str:
    """What to call a node in a message."""
    return node.name or next((name for name in node.output if name), node.op_type)
