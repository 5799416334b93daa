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
    text: Annotated[bool, typer.Option("--text", help="Tokens a second of a model that makes texts.")] = False,
    sequences: Annotated[
        int | None, typer.Option("--sequences", min=1, help="With --text: texts at once, or 8.")
    ] = None,
    context: Annotated[int | None, typer.Option("--context", min=2, help="With --text: tokens of one, or 640.")] = None,
    as_json: Json = False,
) -> None:
    """Measure latency, interleaved with other engines in one run; load time and memory in fresh processes."""
    sizes = {name: size for name, size in (("sequences", sequences), ("context", context)) if size is not None}
    others = {"vs": vs, "input": input_, "shape": shape, "weights": weights, "signature": signature, "seed": seed}
    if odd := [name for name, given in (others if text else sizes).items() if given]:
        raise typer.BadParameter(f"got it {'with' if text else 'without'} --text", param_hint=f"--{odd[0]}")
    if text:
        _bench_text(model, {**options, **sizes, "seconds": seconds}, as_json)
        return
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


def _bench_text(model: Path, how: Mapping[str, Any], as_json: bool) -> None:
    from bolt_numba.devices.bandwidth import read_gbs
    from bolt_numba.text.rates import rates  # what makes texts is of an extra

    with console.progress(f"making texts with {model.name}"):
        found = rates(model, **how)
        memory = read_gbs(found.threads)
    if as_json:
        console.write_json({**vars(found), "read_gbs": found.read_gbs, "memory_gbs": memory})
        return
    whole = {f"a prompt of {found.prompt_tokens} tokens": found.prompt, "one text": found.one}
    whole[f"{found.sequences} texts at once"] = found.together
    rows = [[name, f"{rate:.1f}", console.milliseconds(1 / rate)] for name, rate in whole.items()]
    console.table(model.name, ("what", "tokens/s", "ms a token"), rows, right=("tokens/s", "ms a token"))
    console.write(
        f"A step reads {found.step_mb:.0f} MB: with one text {found.read_gbs:.1f} GB/s of the {memory:.1f} GB/s that "
        f"memory gives to {found.threads} thread(s)."
    )


def _show(report: benchmark.BenchReport) -> None:
    ratios = report.ratios()
    rows = []
    for e in report.engines:
        times = [console.milliseconds(t) for t in (e.minimum, e.median, e.p90)] if e.latencies else ["-"] * 3
        ratio = f"{ratios[e.engine]['median']:.2f}" if e.engine in ratios else ""
        once = [console.milliseconds(e.load_s), console.milliseconds(e.first_run_s)]
        rows.append([e.engine, *times, ratio, *once, console.mebibytes(e.peak_rss_bytes)])
    columns = ("engine", "min ms", "median ms", "p90 ms", "times ours", "load ms", "first run ms", "peak MiB")
    shapes = ", ".join(map(" ".join, console.folded([(n, str(list(s))) for n, s in report.shapes.items()])))
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
