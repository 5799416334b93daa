"""Commands that measure: bench, profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

import bolt_numba as bn
from bolt_numba import benchmark, peers
from bolt_numba.cli import console
from bolt_numba.cli.options import (
    Inputs,
    Json,
    ModelPath,
    Seed,
    Shapes,
    Signature,
    Weights,
    ending_in,
    one_of,
    read_inputs,
    read_shapes,
    session_and_feeds,
    takes_options,
)
from bolt_numba.sessions.inputs import spec_of

VS = "Engines to compare: onnxruntime, openvino; litert, opencv, paddle for files of their formats."


def _engines(text: str) -> str:
    for name in _names(text):
        one_of(PEERS, name)
    return text


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


PEERS = [name for name in peers.ENGINES if name != benchmark.OURS]
Peers: TypeAlias = Annotated[
    str, typer.Option("--vs", metavar="ENGINES", help=VS, callback=_engines, autocompletion=lambda: PEERS)
]


@takes_options(without=("time_limit",))
def bench(
    model: ModelPath,
    vs: Peers = "",
    options: Mapping[str, Any] = {},
    input_: Inputs = [],
    shape: Shapes = [],
    seed: Seed = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time to measure, all engines together.")] = 3.0,
    processes: Annotated[
        bool, typer.Option("--processes/--no-processes", help="Measure load time and memory in fresh processes.")
    ] = True,
    weights: Weights = None,
    signature: Signature = None,
    as_json: Json = False,
) -> None:
    """Measure latency, interleaved with other engines in one run; load time and memory in fresh processes."""
    names = _names(vs)
    for name in names:
        peers.want_installed(name)
    with console.progress(f"compiling {model.name}") as say:
        inputs = bn.load(model, weights=weights, signature=signature).caller_inputs if input_ else []
        feeds = read_inputs(input_, [spec_of(v.name, v.type) for v in inputs])
        report = benchmark.bench(
            model, vs=names, shapes=read_shapes(shape), feeds=feeds, seed=seed, seconds=seconds, processes=processes,
            progress=say, weights=weights, signature=signature, **options,
        )  # fmt: skip
    if as_json:
        console.write_json(report.to_json())
    else:
        _show(report)
    if any(e.error for e in report.engines):
        raise typer.Exit(1)


def _show(report: benchmark.BenchReport) -> None:
    ratios = report.ratios()
    rows = []
    for e in report.engines:
        times = [console.milliseconds(t) for t in (e.minimum, e.median, e.p90)] if e.latencies else ["-"] * 3
        ratio = f"{ratios[e.engine]['median']:.2f}" if e.engine in ratios else ""
        once = [console.milliseconds(e.load_s), console.milliseconds(e.first_run_s)]
        rows.append([e.engine, *times, ratio, *once, console.mebibytes(e.peak_rss_bytes)])
    columns = ("engine", "min ms", "median ms", "p90 ms", "times ours", "load ms", "first run ms", "peak MiB")
    shapes = ", ".join(f"{n} {list(s)}" for n, s in report.shapes.items())
    how = "" if report.precision == "f32" else f", {report.precision} where an engine has it"
    how += "" if report.numerics == "default" else f", ours {report.numerics}"
    console.table(f"{report.model}, {report.threads} thread(s), {shapes}{how}", columns, rows, right=columns[1:])
    for e in report.engines:
        if e.error:
            console.write(f"{e.engine}: {e.error.removeprefix(f'{e.engine}: ')}")


def _trace(path: Path | None) -> Path | None:
    return path and ending_in(path, (".json",))  # and is no model


@takes_options(without=("time_limit",))
def profile(
    model: ModelPath,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Chrome trace to write (Perfetto): .json.", callback=_trace)
    ] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs to take the median of; fewer after 20 s.")] = 20,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows to show.")] = 25,
    input_: Inputs = [],
    shape: Shapes = [],
    seed: Seed = 0,
    options: Mapping[str, Any] = {},
    weights: Weights = None,
    signature: Signature = None,
    as_json: Json = False,
) -> None:
    """Time every step: which kernel ran it, how long it took."""
    with console.progress(f"compiling {model.name}") as say:
        session, feeds = session_and_feeds(model, shape, input_, seed, options, weights, signature)
        say(f"profiling {model.name}")
        found = session.profile(feeds, runs=runs)
    if output is not None:
        found.save(output)
    if as_json:
        console.write_json(found.to_json())
        return
    console.write(found.table(top))
    console.write("")
    sums = [*list(found.by_op().items())[:top], ("(outside of steps)", found.rest)]
    whole = found.total or 1.0
    rows = [(op, f"{s * 1e6:.1f}", f"{100 * s / whole:.1f} %") for op, s in sums]
    console.table("", ("operator", "us", "share"), rows, right=("us", "share"))
    if output is not None:
        console.write(f"\ntrace: {output}")
