"""Graphs as pictures (SVG) and pages (HTML) that need nothing else: nodes in layers, edges as curves.

The layout is Sugiyama's in its simplest form: layers by the longest path, edges over several layers led through points
of their own, layers ordered by the mean place of what they read.  Source: Sugiyama, Tagawa, Toda (1981).
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from bolt_numba.base.notebook import html_table
from bolt_numba.base.records import record
from bolt_numba.ir.dot import Mark, colour_of, mark_of
from bolt_numba.ir.graph import Graph, Node, Value, graph_attributes
from bolt_numba.ir.text import const_text, op_text

WIDTH, HEIGHT = 156, 36
"""Pixels of a box."""
GAP, FALL = 18, 30
"""Pixels between boxes of a layer, and between layers."""
LETTERS = 22
"""Characters of a name that fit in a box."""
SWEEPS = 4
SHOWN_NODES = 120
"""Nodes of each graph that a notebook shows."""
MAX_SPAN = 40
"""Layers beyond which an edge is drawn straight: led through points, those of long nets would be the picture."""
INPUT, OUTPUT, PLAIN = "lightblue", "lightgreen", "white"
_ODD = re.compile(
    r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""What XML forbids, and what turns the direction of a text."""


@record()
class Box:
    """A node, an input or an output; without a title a point that an edge goes through."""

    title: str
    text: str = ""
    hint: str = ""
    colour: str = PLAIN
    layer: int = 0
    x: float = 0.0


def to_svg(graph: Graph, marks: Mapping[str, Mark] | None = None, limit: int | None = None) -> str:
    """The graph as one picture, those of its subgraphs below.

    marks: as `dot.to_dot`.  limit: nodes that are drawn at most, the first ones; None: all.
    """
    parts, height, width = [], 0.0, 0.0
    for name, part, colour in _all_graphs(graph):
        drawn, wide, high = _drawn(part, marks or {}, limit, colour)
        if name:
            parts.append(f'<text x="4" y="{height + 16:.0f}" class="n">{_escaped(name)}</text>')
            height += 22
        parts.append(f'<g transform="translate(0 {height:.0f})">{drawn}</g>')
        height, width = height + high, max(width, wide)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="sans-serif" font-size="12"><style>.n{{font-size:10px;fill:#555}}'
        f".e{{fill:none;stroke:#999}}</style>{''.join(parts)}</svg>"
    )


def to_page(graph: Graph, marks: Mapping[str, Mark] | None = None, picture: str | None = None) -> str:
    """A page with the picture, which nothing outside of it belongs to.  picture: SVG; None: that of `to_svg`."""
    title = _escaped(graph.name)
    count = f"{len(graph.nodes)} nodes; the pointer on a box shows what it computes."
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f'<body style="font-family:sans-serif"><h1>{title}</h1><p>{count}</p>\n'
        f"{picture or to_svg(graph, marks)}\n</body></html>\n"
    )


def to_figure(graph: Graph) -> str:
    """For notebooks: what the graph takes and gives, and its first nodes in a small window that scrolls."""
    both = [("input", v.name, v.type) for v in graph.caller_inputs]
    both += [("output", name, v.type) for name, v in graph.caller_outputs]
    title = f"{graph.name}: {len(graph.nodes)} nodes"
    window = '<div style="max-height:420px;overflow:auto;border:1px solid #ddd">'
    return f"{html_table(title, ('', 'name', 'type'), both)}{window}{to_svg(graph, limit=SHOWN_NODES)}</div>"


def _all_graphs(graph: Graph, name: str = "", colour: str = PLAIN) -> Iterator[tuple[str, Graph, str]]:
    """Each graph with its name and the colour of its nodes."""
    yield name, graph, colour
    for node in graph.nodes:
        for key, part in sorted(graph_attributes(node.op).items()):
            yield from _all_graphs(part, f"{name}{' / ' if name else ''}{node.name}.{key}", colour_of(node) or colour)


def _drawn(graph: Graph, marks: Mapping[str, Mark], limit: int | None, colour: str) -> tuple[str, float, float]:
    """What is drawn of one graph, its width and height."""
    boxes, edges = _boxes(graph, marks, limit, colour)
    ways = _ways(boxes, edges)
    layers: list[list[Box]] = [[] for _ in range(max((b.layer for b in boxes), default=0) + 1)]
    for box in boxes:
        layers[box.layer].append(box)
    _place(layers, ways)
    lines = [f'<path class="e" d="{_curve(way)}"/>' for way in ways]
    lines += [_box(box) for box in boxes if box.title]
    left = graph.nodes[limit:] if limit is not None else []
    height = float(len(layers) * (HEIGHT + FALL))
    if left:
        lines.append(f'<text x="4" y="{height + 10:.0f}" class="n">... and {len(left)} nodes more</text>')
    return "".join(lines), max(b.x for b in boxes) + WIDTH + GAP if boxes else 0.0, height + (20 if left else 0)


def _boxes(
    graph: Graph, marks: Mapping[str, Mark], limit: int | None, colour: str
) -> tuple[list[Box], list[tuple[Box, Box]]]:
    """Boxes of inputs, nodes and outputs, with their layers, and edges between them.  colour: of nodes without mark."""
    made: dict[int, Box] = {}
    boxes, edges = [], []

    def add(box: Box, reads: Sequence[Value | None]) -> Box:
        for value in reads:
            if value is not None and id(value) in made:
                source = made[id(value)]
                box.layer = max(box.layer, source.layer + 1)
                edges.append((source, box))
        boxes.append(box)
        return box

    for value in graph.inputs:
        made[id(value)] = add(Box(value.name, str(value.type), f"{value.name}: {value.type}", INPUT), ())
    for node in graph.nodes[:limit]:
        mark = mark_of(node, marks)
        box = Box(node.op.name, node.name if mark is None else mark.text, _hint(node), mark.colour if mark else colour)
        add(box, node.inputs)
        made |= {id(value): box for value in node.outputs}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if id(value) in made:
            add(Box(name, str(value.type), f"{name}: {value.type}", OUTPUT), [value])
    _lower(boxes, edges)
    return boxes, edges


def _lower(boxes: Sequence[Box], edges: Sequence[tuple[Box, Box]]) -> None:
    """Put what reads nothing that is drawn, as constants in other forms, right above its first reader."""
    first: dict[int, int] = {}
    for source, target in edges:
        first[id(source)] = min(target.layer, first.get(id(source), target.layer))
    reading = {id(target) for _, target in edges}
    for box in boxes:
        if id(box) not in reading and id(box) in first:
            box.layer = first[id(box)] - 1


def _hint(node: Node) -> str:
    consts = [f"{i}: {const_text(v.const)}" for i, v in enumerate(node.inputs) if v is not None and v.const is not None]
    return "\n".join([op_text(node.op), *map(repr, node.outputs), *consts])


def _ways(boxes: list[Box], edges: Sequence[tuple[Box, Box]]) -> list[list[Box]]:
    """The boxes and points that each edge goes through; points join the boxes, one for all edges of a source."""
    points: dict[tuple[int, int], Box] = {}
    ways = []
    for first, last in {(id(a), id(b)): (a, b) for a, b in edges}.values():
        between = range(first.layer + 1, last.layer) if last.layer - first.layer <= MAX_SPAN else range(0)
        for layer in between:
            key = (id(first), layer)
            if key not in points:
                points[key] = Box("", layer=layer)
                boxes.append(points[key])
        ways.append([first, *(points[id(first), layer] for layer in between), last])
    return ways


def _place(layers: Sequence[list[Box]], ways: Sequence[Sequence[Box]]) -> None:
    """Give every box its x: in each layer as near to the mean of its neighbours as its own neighbours let it."""
    above: dict[int, list[Box]] = {}
    below: dict[int, list[Box]] = {}
    for way in ways:
        for a, b in itertools.pairwise(way):
            above.setdefault(id(b), []).append(a)
            below.setdefault(id(a), []).append(b)
    for layer in layers:
        _spread(layer, {})
    for sweep in range(2 * SWEEPS):
        near, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for layer in order:
            _spread(layer, {id(b): sum(n.x for n in near[id(b)]) / len(near[id(b)]) for b in layer if id(b) in near})
    least = min((box.x for layer in layers for box in layer), default=0.0)
    for layer in layers:
        for box in layer:
            box.x += GAP - least


def _spread(layer: list[Box], wanted: Mapping[int, float]) -> None:
    """Order a layer by where its boxes want to be, and push them apart to both sides of the mean."""
    layer.sort(key=lambda b: wanted.get(id(b), b.x))
    at, places = float("-inf"), []
    for box in layer:
        at = max(at, wanted.get(id(box), box.x))
        places.append(at)
        at += (WIDTH if box.title else 0) + GAP
    drift = sum(p - wanted.get(id(b), b.x) for p, b in zip(places, layer, strict=True)) / max(1, len(layer))
    for box, place in zip(layer, places, strict=True):
        box.x = place - drift


def _curve(way: Sequence[Box]) -> str:
    """A path through the middles of boxes and points."""
    first = way[0]
    x, y = first.x + WIDTH / 2, first.layer * (HEIGHT + FALL) + HEIGHT
    made = [f"M{x:.0f} {y}"]
    for box in way[1:]:
        x, top = box.x + WIDTH / 2, box.layer * (HEIGHT + FALL)
        made.append(f"C{_x(made):.0f} {y + FALL / 2:.0f} {x:.0f} {top - FALL / 2:.0f} {x:.0f} {top}")
        y = top
        if not box.title:
            y = top + HEIGHT
            made.append(f"L{x:.0f} {y}")
    return "".join(made)


def _x(path: Sequence[str]) -> float:
    """Where a path has come to."""
    return float(re.split(r"[ LMC]", path[-1])[-2])


def _box(box: Box) -> str:
    y = box.layer * (HEIGHT + FALL)
    return (
        f'<g transform="translate({box.x:.0f} {y})"><title>{_escaped(box.hint)}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{_escaped(box.colour)}" stroke="#444"/>'
        f'<text x="8" y="15">{_escaped(box.title, LETTERS)}</text>'
        f'<text x="8" y="29" class="n">{_escaped(box.text, LETTERS + 3)}</text></g>'
    )


def _escaped(text: str, most: int | None = None) -> str:
    """Text for XML, cut to so many characters; names in a model must not become markup."""
    plain = _ODD.sub(lambda found: ascii(found[0])[1:-1], text)
    return html.escape(plain if most is None or len(plain) <= most else plain[: most - 1] + "…")
