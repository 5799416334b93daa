"""The command that makes a model of 8 bits: quantize."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bolt_numba.cli import console
from bolt_numba.cli.options import Json, ModelPath, Signature, Threads, Weights, ending_in, load_array, one_of

Changes = dict[str, "dict[str, Any] | None"]


def _method(text: str) -> str:
    from bolt_numba.quantize.methods import METHODS
    from bolt_numba.quantize.weights import WAYS

    one_of(dict.fromkeys((*METHODS, *WAYS)), text.partition(":")[0])
    return text


def _activations(text: str) -> str:
    from bolt_numba.quantize.methods import KINDS

    return one_of(KINDS, text)


def _weight_type(text: str) -> str:
    from bolt_numba.quantize.methods import WEIGHT_KINDS

    return one_of(WEIGHT_KINDS, text)


def _bits(count: int | None) -> int | None:
    return None if count is None else int(one_of(("4", "8"), str(count)))


def quantize(  # budget: each option is one line or two
    model: ModelPath,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE|FOLDER", help="Inputs: an .npz or .npy file, or a folder of them."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The .onnx or .bolt file to write.")] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="min-max, moving-average, percentile[:99.99], entropy or mse; of weights alone rtn, mse or gptq.",
            callback=_method,
        ),
    ] = "mse",
    weights_only: Annotated[
        int | None,
        typer.Option(
            "--weights-only",
            metavar="4|8",
            help="Quantise only weights of products, to this many bits.",
            callback=_bits,
        ),
    ] = None,
    block: Annotated[
        int, typer.Option("--block", help="How many weights share a scale with --weights-only; 0: whole columns.")
    ] = 32,
    perplexity: Annotated[
        Path | None,
        typer.Option(
            "--perplexity", metavar="TEXT", help="With --weights-only: how badly a language model guesses this text."
        ),
    ] = None,
    activations: Annotated[
        str, typer.Option("--activations", help="u8, s8, u16 or s16.", callback=_activations)
    ] = "u8",
    weight_type: Annotated[str, typer.Option("--weight-type", help="s8 or s4.", callback=_weight_type)] = "s8",
    per_tensor: Annotated[bool, typer.Option("--per-tensor", help="One scale for a whole weight.")] = False,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="Put zero in the middle of activations' ranges.")
    ] = False,
    results: Annotated[
        bool,
        typer.Option("--results/--no-results", help="Also round results of convolutions, which other engines need."),
    ] = True,
    bias_correction: Annotated[
        bool, typer.Option("--bias-correction/--no-bias-correction", help="Let biases absorb mean errors.")
    ] = True,
    equalise: Annotated[
        bool, typer.Option("--equalise", help="Equalise channels of consecutive convolutions.")
    ] = False,
    smooth: Annotated[
        str, typer.Option("--smooth", help="How far products smooth their inputs: auto, none, or 0.0 to 1.0.")
    ] = "auto",
    attention: Annotated[bool, typer.Option("--attention", help="Also quantise products of two activations.")] = False,
    keep: Annotated[
        list[str],
        typer.Option("--keep", metavar="PATTERN", help="Layers or operators that stay float; may be repeated."),
    ] = [],
    override: Annotated[
        list[str],
        typer.Option("--override", metavar="PATTERN:KEY=VALUE", help="Another scheme, as '*head*:activations=u16'."),
    ] = [],
    scales: Annotated[
        Path | None, typer.Option("--scales", help="Ranges from Bolt's clip JSON or a TensorRT calibration table.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", help="An .npy file, the class of each sample: the metric is the share that is right."),
    ] = None,
    max_drop: Annotated[
        str | None, typer.Option("--max-drop", metavar="SHARE", help="Most that the metric may lose, as 0.5% or 0.005.")
    ] = None,
    min_sqnr: Annotated[float | None, typer.Option("--min-sqnr", help="Least SQNR of the outputs in dB.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure every layer alone.")] = False,
    report: Annotated[
        list[Path], typer.Option("--report", metavar="FILE", help="Write the report: .txt, .json or .svg.")
    ] = [],
    write_scales: Annotated[
        Path | None, typer.Option("--write-scales", help="Write ranges: .json as Bolt has them, else as TensorRT has.")
    ] = None,
    threads: Threads = None,
    weights: Weights = None,
    signature: Signature = None,
    as_json: Json = False,
) -> None:
    """Quantise a float model by calibration; layers that cost too much accuracy stay float."""
    from bolt_numba import quantize as tool  # other commands need not wait for it

    target = output or model.with_suffix(f".int{weights_only or 8}.onnx")
    for path, wanted in ((target, (".onnx", ".bolt")), *((p, (".txt", ".json", ".svg")) for p in report)):
        ending_in(path, wanted)
    if weights_only is not None:
        with console.steps(f"reading {model.name}") as say:
            narrow = tool.weights_only(
                _source(model, weights, signature), bits=weights_only, block=block or None, method=method, data=data,
                keep=keep, threads=threads, progress=say,
            )  # fmt: skip
        narrow.save(target)
        known = {} if perplexity is None else _perplexities(model, target, perplexity, threads)
        _tell_narrow(narrow, target, known, as_json)
        return
    if perplexity is not None:
        raise typer.BadParameter("got a text, wanted --weights-only beside it", param_hint="--perplexity")
    if data is None:
        raise typer.BadParameter("got none, wanted inputs to calibrate with", param_hint="--data")
    with console.steps(f"reading {model.name}") as say:
        made = tool.quantize(
            _source(model, weights, signature), data, activations=activations, weights=weight_type, method=method,
            per_channel=not per_tensor, symmetric=symmetric, results=results, bias_correction=bias_correction,
            equalise=equalise, smooth=_strength(smooth), attention=attention, keep=keep, overrides=_changes(override),
            ranges=None if scales is None else tool.read_scales(scales), max_drop=_share(max_drop), min_sqnr=min_sqnr,
            labels=None if labels is None else load_array(labels), measure=measure, threads=threads, progress=say,
        )  # fmt: skip
    made.save(target)
    for path in report:
        made.report.save(path)
    if write_scales is not None:
        write = tool.write_clips if write_scales.suffix == ".json" else tool.write_table
        write(made, write_scales)
    _tell(made, target, as_json)


def _source(model: Path, weights: Path | None, signature: str | None) -> Any:
    import bolt_numba as bn

    return bn.load(model, weights=weights, signature=signature)


def _tell(made: Any, target: Path, as_json: bool) -> None:
    from bolt_numba.quantize.report import COLUMNS

    size = target.stat().st_size
    if as_json:
        console.write_json({"output": str(target), "bytes": size, **made.report.to_json()})
        return
    console.table("", COLUMNS, made.report.rows(), right=COLUMNS[-4:])
    console.write(f"\n{made.report.summary()}\n{target}: {console.size_text(size)}")
    if not made.report.bound_holds:
        raise typer.Exit(1)


def _perplexities(model: Path, target: Path, text: Path, threads: int | None) -> dict[str, float]:
    """How badly a language model guesses a text, before and after; both files have the tokenizer of the first."""
    import bolt_numba as bn
    from bolt_numba.base.files.regular import read_text
    from bolt_numba.cli.writing import MOST_BYTES

    content, found = read_text(text, MOST_BYTES, f"at most {MOST_BYTES}"), dict[str, float]()
    for when, path in (("before", model), ("after", target)):
        with bn.text.Generator(model, session=bn.compile(path, threads=threads)) as generator:
            found[when] = generator.perplexity(content)
    return found


def _tell_narrow(made: Any, target: Path, perplexity: Mapping[str, float], as_json: bool) -> None:
    """Weights that became narrow, the size of the file, and what that costs a language model."""
    size = target.stat().st_size
    if as_json:
        rows = [{"name": w.name, "shape": w.shape, "bytes": w.after, "sqnr": w.sqnr} for w in made.weights]
        told = {"output": str(target), "bytes": size, "weights": rows}
        console.write_json(told | ({"perplexity": perplexity} if perplexity else {}))
    else:
        console.write(f"{made}\n{target}: {console.size_text(size)}")
        if perplexity:
            console.write("perplexity: " + ", ".join(f"{value:.4f} {when}" for when, value in perplexity.items()))


def _share(text: str | None) -> float | None:
    """``"0.5%"`` and ``"0.005"`` alike."""
    if text is None:
        return None
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise typer.BadParameter(f"got {text!r}, wanted 0.5% or 0.005", param_hint="--max-drop") from None


def _strength(text: str) -> float | str | None:
    try:
        return None if text == "none" else text if text == "auto" else float(text)
    except ValueError:
        raise typer.BadParameter(f"got {text!r}, wanted auto, none or a number", param_hint="--smooth") from None


_FLAGS = {"true": True, "false": False}


def _changes(texts: list[str]) -> Changes:
    """``["*head*:activations=u16,method=min-max"]`` by pattern."""
    made: Changes = {}
    for text in texts:
        pattern, colon, changes = text.rpartition(":")
        if "=" not in changes:  # the last colon is one of a method: percentile:99.9
            pattern, colon, changes = text.partition(":")
        pairs = [part.partition("=") for part in changes.split(",")]
        if not pattern or not colon or not all(equals for _, equals, _ in pairs):
            raise typer.BadParameter(f"got {text!r}, wanted PATTERN:KEY=VALUE", param_hint="--override")
        made.setdefault(pattern, {})
        made[pattern] = {**(made[pattern] or {}), **{key: _FLAGS.get(value, value) for key, _, value in pairs}}
    return made
