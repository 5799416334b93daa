"""Commands about a model file: convert, inspect, viz."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

import bolt_numba as bn
from bolt_numba.cli import console
from bolt_numba.cli.options import Json, ModelPath, Shapes, read_shapes
from bolt_numba.ir.dot import Mark, to_dot
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.text import to_text
from bolt_numba.types import TensorSpec, dtype_name

Output = Annotated[Path | None, typer.Option("-o", "--output", help="The file to write.")]
COLOURS = {"reference": "lightsalmon", "host": "khaki"}


def convert(model: ModelPath, output: Output = None, as_json: Json = False) -> None:
    """Write a model as one .bolt file, whose weights are mapped to memory when it is loaded."""
    target = output or model.with_suffix(".bolt")
    with console.progress(f"reading {model.name}"):
        graph = bn.load(model)
        bn.save(graph, target)
    size = target.stat().st_size
    if as_json:
        console.write_json({"output": str(target), "bytes": size, "nodes": len(graph.nodes)})
    else:
        console.write(f"{target}: {len(graph.nodes)} nodes, {console.mebibytes(size)} MiB")


def inspect(
    model: ModelPath,
    as_json: Json = False,
    text: Annotated[bool, typer.Option("--text", help="Write every node.")] = False,
) -> None:
    """Show what a model takes, gives and is made of.  Lists all that is unsupported, if anything is."""
    with console.progress(f"reading {model.name}"):
        graph = bn.load(model)
    if text:
        console.write(to_text(graph))
        return
    facts = _facts(graph)
    if as_json:
        console.write_json(facts)
        return
    console.write(f"{model}: {facts['name']}, {facts['nodes']} nodes, {facts['parameters']:,} parameters")
    console.write(f"weights: {console.mebibytes(facts['weight_bytes'])} MiB\n")
    both = [(kind, t) for kind in ("inputs", "outputs") for t in facts[kind]]
    rows = [(kind[:-1], t["name"], t["dtype"], console.shape_text(t["shape"])) for kind, t in both]
    console.table("", ("", "name", "dtype", "shape"), rows)
    console.write("")
    console.table("", ("operator", "count"), facts["operators"].items(), right=("count",))


def _facts(graph: Graph) -> dict[str, Any]:
    constants = [v.const for v in graph.constants() if v.const is not None]
    return {
        "name": graph.name,
        "metadata": graph.metadata,
        "inputs": [_spec(v.name, v) for v in graph.inputs],
        "outputs": [_spec(n, v) for n, v in zip(graph.output_names, graph.outputs, strict=True)],
        "nodes": _count(graph),
        "operators": dict(_operators(graph).most_common()),
        "parameters": sum(a.size for a in constants),
        "weight_bytes": sum(a.nbytes for a in constants),
    }


def _spec(name: str, value: Any) -> dict[str, Any]:
    shape = None if value.type.shape is None else [d if isinstance(d, int) else str(d) for d in value.type.shape]
    return {"name": name, "dtype": dtype_name(value.type.dtype), "shape": shape}


def _operators(graph: Graph) -> Counter[str]:
    """Operators of the graph and its subgraphs, with their numbers."""
    found = Counter(node.op.name for node in graph.nodes)
    for _, sub in graph.subgraphs():
        found += _operators(sub)
    return found


def _count(graph: Graph) -> int:
    return sum(_operators(graph).values())


def viz(
    model: ModelPath,
    output: Output = None,
    shape: Shapes = [],
    after: Annotated[bool, typer.Option("--after", help="The optimised graph, with what runs each node.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Text instead of Graphviz.")] = False,
) -> None:
    """Draw the graph as Graphviz text (dot -Tsvg renders it): as loaded, or after all passes."""
    marks: dict[str, Mark] = {}
    with console.progress(f"reading {model.name}"):
        graph = bn.load(model)
        if after:
            session = bn.compile(graph)
            graph = session.optimised
            marks = _marks(session, read_shapes(shape))
    made = to_text(graph) if text else to_dot(graph, marks)
    if output is None:
        console.write(made)
    else:
        output.write_text(made, encoding="utf-8")
        console.write(f"{output}: {len(graph.nodes)} nodes")


def _marks(session: bn.Session, shapes: dict[str, tuple[int, ...]]) -> dict[str, Mark]:
    """What runs each node, where the shapes of all inputs are known."""
    if any(not _is_static(s) and s.name not in shapes for s in session.inputs):
        return {}
    session.warmup(**shapes)
    rows = session.report()
    return {r["node"]: Mark(str(r["runner"]), COLOURS.get(str(r["runner"]), "palegreen")) for r in rows}


def _is_static(spec: TensorSpec) -> bool:
    return spec.shape is not None and all(isinstance(d, int) for d in spec.shape)
