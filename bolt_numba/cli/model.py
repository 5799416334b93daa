"""Commands about a model file: convert, inspect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import bolt_numba as bn
from bolt_numba.base.options import Options
from bolt_numba.base.types import FILE_WAS, Sym, dtype_name
from bolt_numba.cli import console
from bolt_numba.cli.devices import show_parts
from bolt_numba.cli.options import (
    FixedShapes,
    Json,
    ModelPath,
    Signature,
    Weights,
    ending_in,
    one_of,
    read_shapes,
    takes_options,
)
from bolt_numba.converters.nodes import foreign_operators
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.text import to_text
from bolt_numba.ops.registry import is_made_up

Output = Annotated[Path | None, typer.Option("-o", "--output", help="The file to write.")]
SHOWN_LINES = 4
"""Lines of a file that are shown."""
METADATA = ("format", "producer", "opset")
"""Entries that are shown first."""
WIDTH = 100
"""Characters of an entry that are shown."""


def _form(text: str | None) -> str | None:
    from bolt_numba.quantize.storage import FORMS

    return None if text is None else one_of(FORMS, text)


@takes_options("precision", "numerics")
def convert(  # budget: each option is one line or two
    model: ModelPath,
    output: Output = None,
    shapes: FixedShapes = [],
    outputs: Annotated[
        list[str], typer.Option("--outputs", metavar="A,B", help="Tensors to return instead of the model's outputs.")
    ] = [],
    part: Annotated[
        str | None,
        typer.Option(
            "--extract", metavar="A,B:C,D", help="Only the part from tensors A, B to C, D; ':C' from all inputs."
        ),
    ] = None,
    channels_first: Annotated[
        bool, typer.Option("--channels-first", help="Take and return images as n, c, h, w instead of n, h, w, c.")
    ] = False,
    preprocess: Annotated[
        list[str],
        typer.Option(
            "--preprocess", metavar="NAME=STEPS", help="Steps before an input, as x='Image(224, mean=0.5, std=0.5)'."
        ),
    ] = [],
    states: Annotated[
        list[str], typer.Option("--states", metavar="A=B,C=D", help="Inputs that repeat outputs of the run before.")
    ] = [],
    renamed: Annotated[
        list[str], typer.Option("--rename", metavar="OLD=NEW", help="Rename inputs and outputs, as the last step.")
    ] = [],
    simplify: Annotated[bool, typer.Option("--simplify", help="Simplify: fewer nodes, the same computation.")] = False,
    opset: Annotated[
        int | None, typer.Option("--opset", help="Opset of an .onnx file; by default the oldest possible from 18 on.")
    ] = None,
    pack: Annotated[
        bool, typer.Option("--pack", help="Optimise, and pack weights for this machine's kernels: loads fastest.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="f16|bf16|int8|int4",
            help="Store weights in fewer bits; loading expands them.",
            callback=_form,
        ),
    ] = None,
    options: Mapping[str, Any] = {},
    external: Annotated[
        bool, typer.Option("--external", help="Put weights of an .onnx file into a file beside it.")
    ] = False,
    weights: Weights = None,
    signature: Signature = None,
    as_json: Json = False,
) -> None:
    """Write a model as .bolt (weights mapped when loaded) or .onnx, by the output's suffix; cut and simplify it.

    Of a model with several signatures a .bolt file has all, unless one is named; an .onnx file, or a part, has one.
    """
    from bolt_numba import surgery  # it imports onnx, which other commands need not wait for
    from bolt_numba.surgery import packed

    target = _checked_target(output or model.with_suffix(".bolt"), pack, options, store)
    if target.suffix.lower() != ".onnx" and (opset is not None or external):
        hint = "--external" if opset is None else "--opset"
        raise typer.BadParameter(f"got it for {target.name!r}, wanted an .onnx file", param_hint=hint)
    if target.suffix.lower() == ".onnx" and states:
        raise typer.BadParameter(f"got it for {target.name!r}, wanted a .bolt file", param_hint="--states")
    notes: list[str] = []
    steps, kept = _steps(preprocess), _pairs("--states", "INPUT=OUTPUT", states)
    others = _pairs("--rename", "OLD=NEW", renamed)
    with console.progress(f"reading {model.name}") as say:
        found = bn.load_model(model, weights=weights)
        is_onnx = target.suffix.lower() == ".onnx"
        if signature is not None or is_onnx or part or outputs or shapes or steps or kept or others:
            found = _one(found, signature)
        before = sum(map(_count, found.graphs.values()))
        if simplify or pack:
            say(f"{'packing' if pack else 'simplifying'} {model.name}")
        for name, graph in found.graphs.items():
            made = _cut(graph, read_shapes(shapes), part, outputs)
            made = surgery.channels_first(made) if channels_first else made
            made = surgery.with_preprocessing(made, steps) if steps else made
            made = surgery.with_states(made, kept) if kept else made
            made = surgery.with_names(made, others) if others else made
            made = surgery.simplify(surgery.without_unused(made)) if simplify else made
            made = packed(made, **options) if pack else made
            found.graphs[name] = made if store is None else _stored(made, store, notes)
        say(f"writing {target.name}")
        if is_onnx:
            surgery.save_onnx(found.graph(), target, opset=opset, external=external)
        else:
            bn.save(found, target)
    _tell(target, before, sum(map(_count, found.graphs.values())), notes, as_json)


def _steps(texts: list[str]) -> dict[str, Any]:
    """Steps by the input that they stand before."""
    from bolt_numba.preprocessing.text import steps_of

    found = {}
    for text in texts:
        name, equals, description = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"got {text!r}, wanted NAME=Image(...)", param_hint="--preprocess")
        found[name] = steps_of(description)
    return found


def _pairs(option: str, form: str, texts: list[str]) -> dict[str, str]:
    """What an option says of each name."""
    found = {}
    for pair in (part for text in texts for part in text.split(",")):
        name, equals, other = pair.partition("=")
        if not equals or name in found:
            raise typer.BadParameter(f"got {pair!r}, wanted {form}, once for a name", param_hint=option)
        found[name] = other
    return found


def _stored(graph: Graph, form: str, notes: list[str]) -> Graph:
    """The graph with weights in another form, and what that did to them."""
    from bolt_numba.quantize import with_stored_weights

    made = with_stored_weights(graph, form)
    notes.append(f"{form}: {made.summary()}")
    return made.graph


def _tell(target: Path, before: int, nodes: int, notes: list[str], as_json: bool) -> None:
    """What was written."""
    size = target.stat().st_size
    if as_json:
        written = {"output": str(target), "bytes": size, "nodes": nodes, "nodes_before": before}
        console.write_json(written | ({"stored": notes} if notes else {}))
    else:
        change = "" if nodes == before else f" (of {before})"
        console.write("\n".join([*notes, f"{target}: {nodes} nodes{change}, {console.size_text(size)}"]))


def _one(model: bn.Model, signature: str | None) -> bn.Model:
    """The graph of a signature alone, which must be named where there are several."""
    names = list(model.signatures)
    if signature is None and len(names) > 1:
        raise typer.BadParameter(f"got none, wanted one of {', '.join(names)}", param_hint="--signature")
    graph = model.graph(signature)
    return bn.Model({signature or names[0]: graph})


def _checked_target(target: Path, pack: bool, options: Mapping[str, Any], store: str | None) -> Path:
    """The file to write, whose suffix tells its format."""
    if store is not None and pack:
        message = f"got {store} with --pack, which holds weights as kernels want them"
        raise typer.BadParameter(message, param_hint="--store")
    for name, given in options.items():
        if given != getattr(Options, name) and not pack:
            raise typer.BadParameter(f"got {given}, which needs --pack", param_hint=f"--{name}")
    wanted = (".bolt",) if pack else (".bolt", ".onnx")
    return ending_in(target, wanted, "--pack" if pack else "--output")


def _cut(graph: Graph, shapes: dict[str, tuple[int, ...]], part: str | None, outputs: list[str]) -> Graph:
    """The part that is asked for.  Shapes of the model's inputs are fixed before, those of new inputs after the cut."""
    from bolt_numba import surgery

    own = {v.name for v in graph.inputs}
    first = {name: shape for name, shape in shapes.items() if name in own}
    graph = surgery.with_shapes(graph, first) if first else graph
    if part is not None:
        graph = surgery.extract(graph, *ends_of(surgery.names(graph), part))
    if outputs:
        known = surgery.names(graph)
        graph = surgery.with_outputs(graph, [name for text in outputs for name in names_in(known, text)])
    rest = {name: shape for name, shape in shapes.items() if name not in own}
    return surgery.with_shapes(graph, rest) if rest else graph


def names_in(known: set[str], text: str) -> list[str]:
    """Names separated by commas; one that is known may hold commas itself."""
    return [text] if text in known else [part for part in text.split(",") if part]


def ends_of(known: set[str], text: str) -> tuple[list[str], list[str]]:
    """``"a,b:c"`` as names before and after the colon; where names hold colons, the one that makes names of both."""
    colons = [i for i, c in enumerate(text) if c == ":"]
    if not colons:
        raise typer.BadParameter(f"got {text!r}, wanted FROM:TO", param_hint="--extract")
    ways = [(names_in(known, text[:i]), names_in(known, text[i + 1 :])) for i in colons]
    return next((way for way in ways if known.issuperset(way[0] + way[1])), ways[0])


@takes_options("device", "properties", "placement")
def inspect(
    model: ModelPath,
    as_json: Json = False,
    text: Annotated[bool, typer.Option("--text", help="Write every node.")] = False,
    unsupported: Annotated[
        bool, typer.Option("--unsupported", help="Only list what is unsupported; exit code 1 if anything is.")
    ] = False,
    options: Mapping[str, Any] = {},
    weights: Weights = None,
    signature: Signature = None,
) -> None:
    """Show what a model takes, gives and is made of.  Lists all that is unsupported, if anything is.

    With --device, which nodes a plug-in gets, and why not the others: as lines that --placement takes.
    """
    if unsupported:
        _list_unsupported(model, weights, as_json)
        return
    with console.progress(f"reading {model.name}"), foreign_operators() as named:
        found = bn.load_model(model, weights=weights)
    graph = found.graph(signature)
    if options["device"] != ["cpu"]:
        show_parts(graph, options, as_json)
        return
    if text:
        console.write(to_text(graph))
        return
    facts = _facts(graph)
    if as_json:
        console.write_json({**facts, "file_operators": dict(named.most_common()), "signatures": list(found.signatures)})
        return
    if len(found.signatures) > 1:
        shown = signature or found.signatures[0]
        console.write(f"signatures: {', '.join(found.signatures)}; this is {shown}, --signature shows another")
    console.write(f"{model}: {facts['name']}, {facts['nodes']} nodes, {facts['parameters']:,} parameters")
    console.write(f"weights: {console.size_text(facts['weight_bytes'])}")
    console.write("".join([*_metadata_lines(graph), *_file_lines(graph), "\n"]))
    both = [(kind, t) for kind in ("inputs", "outputs", "states") for t in facts[kind]]
    rows = console.folded([(t["name"], kind[:-1], t["dtype"], console.shape_text(t["shape"])) for kind, t in both])
    console.table("", ("", "name", "dtype", "shape"), [(kind, name, *rest) for name, kind, *rest in rows])
    console.write("")
    _show_operators(facts["operators"], named)
    if facts["devices"]:
        console.write("")
        counts = [(device, row["parts"], row["nodes"]) for device, row in facts["devices"].items()]
        console.table("", ("device", "parts", "nodes"), counts, right=("parts", "nodes"))


def _show_operators(here: Mapping[str, int], named: Mapping[str, int]) -> None:
    """How often there is an operator, and how often the file has one of the name, where that differs."""
    columns = ("operator", "here", "in the file") if named and named != here else ("operator", "count")
    rows = [(name, here.get(name, ""), named.get(name, ""))[: len(columns)] for name in dict.fromkeys((*here, *named))]
    console.table("", columns, rows, right=columns[1:])


def _metadata_lines(graph: Graph) -> list[str]:
    """What the file says of itself: format, producer, opset and the rest, one short line each."""
    own = [(key, " ".join(text.split())) for key, text in graph.metadata.items() if not key.startswith(FILE_WAS)]
    first = sorted(own, key=lambda pair: (METADATA.index(pair[0]) if pair[0] in METADATA else len(METADATA), pair[0]))
    return [f"{key}: {text[:WIDTH]}{'...' if len(text) > WIDTH else ''}\n" for key, text in first if text]


def _file_lines(graph: Graph) -> list[str]:
    """Files within the model's file: how many lines they have, and the first."""
    made = []
    for key, text in graph.metadata.items():
        if key.startswith(FILE_WAS):
            lines = text.splitlines()
            more = ", ..." if len(lines) > SHOWN_LINES else ""
            made.append(f"{key}: {len(lines)} lines: {', '.join(line[:40] for line in lines[:SHOWN_LINES])}{more}\n")
    return made


def _list_unsupported(model: Path, weights: Path | None, as_json: bool) -> None:
    from bolt_numba import surgery

    with console.progress(f"reading {model.name}"):
        items = surgery.unsupported(model, weights)
    if as_json:
        console.write_json({"model": str(model), "supported": not items, "unsupported": items})
    else:
        console.write("\n".join([f"{model}: {len(items) or 'nothing'} unsupported", *(f"  {item}" for item in items)]))
    if items:
        raise typer.Exit(1)


def _facts(graph: Graph) -> dict[str, Any]:
    constants = {id(array): array for array in graph.weights()}.values()
    return {
        "name": graph.name,
        "metadata": graph.metadata,
        "inputs": [_spec(v.name, v) for v in graph.caller_inputs],
        "outputs": [_spec(n, v) for n, v in graph.caller_outputs],
        "states": [_spec(v.name, v) for v in graph.inputs[len(graph.caller_inputs) :]],
        "nodes": _count(graph),
        "operators": dict(_operators(graph).most_common()),
        "devices": _devices(graph),
        "parameters": sum(a.size for a in constants),
        "weight_bytes": sum(a.nbytes for a in constants),
    }


def _spec(name: str, value: Any) -> dict[str, Any]:
    shape = None if value.type.shape is None else [d if isinstance(d, int) else _size(d) for d in value.type.shape]
    return {"name": name, "dtype": dtype_name(value.type.dtype), "shape": shape}


def _size(dim: Sym) -> str:
    """Its name, unless inference made it up because data decide the size."""
    return "any" if is_made_up(dim) else str(dim)


def _operators(graph: Graph) -> Counter[str]:
    """Operators of the graph and its subgraphs, with their numbers; parts for devices count as what is in them."""
    found = Counter(node.op.name for node in graph.nodes if not node.op.opaque)
    for _, sub in graph.subgraphs():
        found += _operators(sub)
    return found


def _devices(graph: Graph) -> dict[str, dict[str, int]]:
    """Parts for devices of plug-ins that the file has, and nodes in them, by device."""
    found: dict[str, dict[str, int]] = {}
    for node, sub in graph.subgraphs():
        inside = _devices(sub)
        if node.op.opaque:
            inside = {str(getattr(node.op, "device", "")): {"parts": 1, "nodes": _count(sub)}}
        for device, counts in inside.items():
            own = found.setdefault(device, {"parts": 0, "nodes": 0})
            found[device] = {key: own[key] + counts[key] for key in own}
    return found


def _count(graph: Graph) -> int:
    return sum(_operators(graph).values())
