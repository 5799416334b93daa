"""Commands that compute: run, verify."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer

import bolt_numba as bn
from bolt_numba.base.files.regular import replaced
from bolt_numba.base.types import Array, dtype_name
from bolt_numba.cli import console
from bolt_numba.cli.options import (
    Inputs,
    Json,
    ModelPath,
    Seed,
    Shapes,
    Signature,
    Weights,
    one_of,
    read_inputs,
    save_arrays,
    session_and_feeds,
    takes_options,
    told_shapes,
)
from bolt_numba.sessions.inputs import spec_of


@takes_options()
def run(
    model: ModelPath,
    input_: Inputs = [],
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", help="Folder for one .npy file per output, and outputs.npz.")
    ] = None,
    shape: Shapes = [],
    seed: Seed = 0,
    options: Mapping[str, Any] = {},
    weights: Weights = None,
    signature: Signature = None,
    as_json: Json = False,
) -> None:
    """Run a model once; inputs that are not given are random."""
    with console.progress(f"compiling {model.name}") as say:
        session, feeds = session_and_feeds(model, shape, input_, seed, options, weights, signature)
        say(f"running {model.name}")
        results = dict(session(feeds).items())
    files = _save(results, output_dir) if output_dir else {}
    facts = [{**_facts(name, array), "file": files.get(name)} for name, array in results.items()]
    if as_json:
        console.write_json({"inputs": [_facts(n, a) for n, a in feeds.items()], "outputs": facts})
        return
    firsts = ["first"] if any("first" in row for row in facts) else []
    columns = ("output", "dtype", "shape", "min", "mean", "max", *firsts, "file")
    console.table("", columns, [[_cell(f, key) for key in ("name", *columns[1:])] for f in facts])


def _cell(facts: dict[str, Any], key: str) -> str:
    found = facts.get(key)
    return "" if found is None else console.shape_text(found) if key == "shape" else str(found)


def _save(results: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write each output; its name becomes a file name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for i, (name, array) in enumerate(results.items()):
        clean = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or f"output_{i}"
        is_array = isinstance(array, np.ndarray)
        path = folder / (f"{clean}.npy" if is_array else f"{clean}.json")
        with replaced(path) as file:
            if is_array:
                np.save(file, _plain(array), allow_pickle=False)
            else:
                file.write(json.dumps(array).encode())
        files[name] = str(path)
    arrays = {name: _plain(array) for name, array in results.items() if isinstance(array, np.ndarray)}
    save_arrays(folder / "outputs.npz", arrays)
    return files


def _plain(array: Array) -> Array:
    """Texts as NumPy's own, which files hold."""
    return array.astype(str) if array.dtype == object else array


def _facts(name: str, array: Any) -> dict[str, Any]:
    """What is told of an array, a list or a dictionary."""
    if not isinstance(array, np.ndarray):
        first = array[:1] if isinstance(array, list) else [array]
        return {"name": name, "dtype": type(array).__name__, "shape": [len(array)], "first": f"{str(*first):.60}"}
    if array.dtype == object:
        first = array.reshape(-1)[:1].tolist()
        return {"name": name, "dtype": "string", "shape": list(array.shape), "first": f"{str(*first):.60}"}
    found: dict[str, Any] = {"name": name, "dtype": dtype_name(array.dtype), "shape": list(array.shape)}
    if array.size:
        wide = array.astype(np.float64)
        found |= {"min": f"{wide.min():.6g}", "mean": f"{wide.mean():.6g}", "max": f"{wide.max():.6g}"}
    return found


def _judge(text: str | None) -> str | None:
    from bolt_numba.judges import JUDGES

    return None if text is None else one_of(JUDGES, text)


Against: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--against",
        help="onnxruntime, reference, cpu (our own kernels there), or that of its format: litert, opencv, paddle.",
        callback=_judge,
        autocompletion=lambda: ["onnxruntime", "reference", "cpu", "litert", "opencv", "paddle"],
    ),
]


@takes_options(without=("tune", "time_limit"))
def verify(
    model: ModelPath,
    against: Against = None,
    rtol: Annotated[
        float | None,
        typer.Option("--rtol", min=0.0, help="Relative tolerance (1e-3; of bf16: 5e-2 of the largest value)."),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option("--atol", min=0.0, help="Absolute tolerance (1e-4, or less of a tensor of smaller values)."),
    ] = None,
    input_: Inputs = [],
    shape: Shapes = [],
    seed: Seed = 0,
    options: Mapping[str, Any] = {},
    only_outputs: Annotated[bool, typer.Option("--only-outputs", help="Skip intermediate tensors.")] = False,
    weights: Weights = None,
    signature: Signature = None,
    as_json: Json = False,
) -> None:
    """Compare with another engine tensor by tensor, and name the first that diverges (exit code 1)."""
    with console.progress(f"comparing {model.name}"):
        graph = bn.load(model, weights=weights, signature=signature)
        feeds = read_inputs(input_, [spec_of(v.name, v.type) for v in graph.inputs])
        report = bn.verify(
            os.fspath(model), against, feeds=feeds, shapes=told_shapes(graph, shape, feeds), seed=seed, rtol=rtol,
            atol=atol, intermediates=not only_outputs, weights=weights, signature=signature, **options,
        )  # fmt: skip
    if as_json:
        console.write_json({"model": str(model), **report.to_json()})
    else:
        shown = [c for c in report.checks if not c.ok or c.kind == "output"]
        shown = sorted(shown, key=lambda c: (c.name != report.first_divergent, c.kind != "output"))[:20]
        rows = [
            (
                c.verdict, c.name, c.kind, f"{c.max_abs:.3g}", f"{c.max_rel:.3g}", f"{c.scaled:.3g}",
                f"{c.cosine:.6f}", "-" if c.levels is None else f"{c.levels:.3g}", c.explained or c.note,
            )
            for c in shown
        ]  # fmt: skip
        numbers = ("max abs", "max rel", "of largest", "cosine", "levels")
        console.table("", ("", "tensor", "kind", *numbers, ""), rows, right=numbers)
        console.write(str(report))
    if not report.ok:
        raise typer.Exit(1)
