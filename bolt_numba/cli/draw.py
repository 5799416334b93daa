"""The command that draws a graph: viz."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import bolt_numba as bn
from bolt_numba.cli import console
from bolt_numba.cli.options import ModelPath, Shapes, Signature, Weights, ending_in, read_shapes, takes_options
from bolt_numba.ir.dot import Mark, to_dot
from bolt_numba.ir.drawing import to_page, to_svg
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.sizes import sized
from bolt_numba.ir.text import to_text
from bolt_numba.sessions.guesses import complete_shapes

TEXTS = (".dot", ".gv", ".txt")
PICTURES = (".svg", ".png", ".pdf")
"""What Graphviz renders; SVG is also drawn without it."""
COLOURS = {"reference": "lightsalmon", "host": "khaki"}
PATIENCE_S = 60
"""Seconds that Graphviz may take; for some large graphs it takes hours."""


def _target(path: Path | None) -> Path | None:
    return path and ending_in(path, (*TEXTS, *PICTURES, ".html"))


@takes_options("device", "properties", "placement")
def viz(
    model: ModelPath,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help=f"{', '.join((*PICTURES, '.html', *TEXTS))}.", callback=_target),
    ] = None,
    shape: Shapes = [],
    after: Annotated[bool, typer.Option("--after", help="The optimised graph, with what runs each node.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Text instead of Graphviz.")] = False,
    dump: Annotated[
        Path | None,
        typer.Option("--dump-stages", metavar="DIR", help="Instead: the graph after each stage, and what rules did."),
    ] = None,
    options: Mapping[str, Any] = {},
    weights: Weights = None,
    signature: Signature = None,
) -> None:
    """Draw the graph, as loaded or after all passes: a picture, a page, or Graphviz text where no file is named.

    With --device the optimised graph, the parts of each plug-in in a colour of their own.
    """
    suffix = "" if output is None else output.suffix.lower()
    if text and suffix in (*PICTURES, ".html"):
        raise typer.BadParameter(f"got {suffix}, wanted .txt with --text", param_hint="--output")
    if dump is not None:
        _dump(bn.load(model, weights=weights, signature=signature), dump, read_shapes(shape), options)
        return
    marks: dict[str, Mark] = {}
    with console.progress(f"reading {model.name}"):
        graph = sized(bn.load(model, weights=weights, signature=signature), read_shapes(shape))
        if after or options["device"] != ["cpu"]:
            session = bn.compile(graph, **options)
            marks = _marks(session, read_shapes(shape))
            graph = session.optimised
    if output is None:
        console.write(to_text(graph) if text else to_dot(graph, marks))
        return
    if suffix in PICTURES:
        _write_picture(graph, marks, output, suffix)
    else:
        made = to_text(graph) if text else to_page(graph, marks) if suffix == ".html" else to_dot(graph, marks)
        output.write_text(made, encoding="utf-8")
    console.write(f"{output}: {len(graph.nodes)} nodes")


def _dump(graph: Graph, folder: Path, shapes: dict[str, tuple[int, ...]], options: Mapping[str, Any]) -> None:
    """Texts of the graph as loaded and behind each stage, one of every rewrite, and a table of stages and rules."""
    from bolt_numba.passes.pipeline import watched
    from bolt_numba.passes.trace import Trace

    folder.mkdir(parents=True, exist_ok=True)
    trace, files = Trace(), list[Path]()

    def write(stage: str, seen: Graph) -> None:
        files.append(folder / f"{len(files)}-{stage}.txt")
        files[-1].write_text(to_text(seen), encoding="utf-8")

    bn.compile(sized(graph, shapes), stages=watched(trace, write), **options)
    (folder / "rewrites.txt").write_text(f"{trace}\n", encoding="utf-8")
    console.table("", ("stage", "rule", "nodes", "ms"), trace.table(), right=("nodes", "ms"))
    console.write(f"{folder}: {len(files)} graphs, rewrites.txt")


def _write_picture(graph: Graph, marks: dict[str, Mark], output: Path, suffix: str) -> None:
    """By Graphviz where it is installed and quick enough; else our own SVG, and BoltError for other formats."""
    dot, why = shutil.which("dot"), "Graphviz (the program dot) is not installed"
    if dot is not None:
        command = [dot, f"-T{suffix[1:]}", "-o", str(output)]
        try:
            text = to_dot(graph, marks).encode()
            subprocess.run(command, input=text, check=True, capture_output=True, timeout=PATIENCE_S)
            return
        except subprocess.TimeoutExpired:
            why = f"Graphviz took more than {PATIENCE_S} s"
        except subprocess.CalledProcessError as error:
            why = f"Graphviz failed: {error.stderr.decode(errors='replace').strip()[:200]}"
    if suffix != ".svg":
        raise bn.BoltError(f"{output}: cannot be drawn: {why}; .svg and .html need it not")
    output.write_text(to_svg(graph, marks), encoding="utf-8")


def _marks(session: bn.Session, shapes: dict[str, tuple[int, ...]]) -> dict[str, Mark]:
    """What runs each node, for shapes that are given or guessed."""
    session.warmup(**complete_shapes(session.graph, shapes))
    rows = [r for r in session.report() if "within" not in r]  # names of bodies are their own
    return {r["node"]: Mark(str(r["runner"]), COLOURS.get(str(r["runner"]), "palegreen")) for r in rows}
