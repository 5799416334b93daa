"""The application: its commands, its exit codes (0 done, 1 failed or mismatch, 2 wrong usage) and its error lines."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

import bolt_numba
from bolt_numba.base.border import as_bolt_error
from bolt_numba.base.config import TRACEBACKS
from bolt_numba.base.errors import BoltError, InternalError
from bolt_numba.base.files.trusted import CacheWarning
from bolt_numba.cli import (
    check,
    devices,
    draw,
    export,
    flows,
    kernels,
    machine,
    model,
    quantise,
    serving,
    speed,
    texts,
    writing,
)
from bolt_numba.cli.console import err, plain
from bolt_numba.plugins.interface import FallbackWarning

app = typer.Typer(
    name="bolt-numba",
    help="Run ONNX, TFLite, Caffe, Paddle and GGUF models on the CPU, fast.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("convert")(model.convert)
app.command("export")(export.export)
app.command("c-library")(export.c_library)
app.command("quantize")(quantise.quantize)
app.command("inspect")(model.inspect)
app.command("run")(check.run)
app.command("bench")(speed.bench)
app.command("verify")(check.verify)
app.command("profile")(speed.profile)
app.command("viz")(draw.viz)
app.command("ops")(machine.ops)
app.command("serve")(serving.serve)
app.command("embed")(texts.embed)
app.command("transcribe")(texts.transcribe)
app.command("generate")(writing.generate)
app.command("chat")(writing.chat)
app.command("translate")(writing.translate)
app.command("perplexity")(writing.perplexity)
app.add_typer(kernels.cache, name="cache")
app.add_typer(flows.flow, name="flow")
app.command("devices")(devices.devices)
app.command("doctor")(machine.doctor)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(bolt_numba.__version__)
        raise typer.Exit


Version: TypeAlias = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=show_version)
]


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Version = False,
) -> None:
    """Neural-network inference in Python at machine speed: ONNX in, Numba kernels, arrays out."""
    if not debug:
        warnings.formatwarning = lambda message, *rest, **where: f"warning: {message}\n"
        warnings.simplefilter("ignore")
        for kind in (CacheWarning, FallbackWarning):
            warnings.simplefilter("default", kind)
        warnings.filterwarnings("default", "placement: ")


def run(args: Sequence[str]) -> int:
    """Run one command and give its exit code; an error is one line on standard error unless ``--debug`` is given."""
    debug = "--debug" in args
    rest = [a for a in args if a != "--debug"]
    if debug:
        os.environ[TRACEBACKS.name] = "1"
    try:
        app(["--debug", *rest] if debug else rest, prog_name="bolt-numba")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        if debug:
            raise
        err.print(f"[bold red]error:[/] {plain(_line(error))}")
        return 1
    return 0


def _line(error: Exception) -> str:
    text = str(error).replace("[", r"\[")
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (BoltError, OSError)):
        return text
    if not isinstance(made := as_bolt_error(error, "bolt-numba"), InternalError):
        return _line(made)
    return f"{type(error).__name__}: {text} (this is a fault of bolt-numba; --debug shows where)"
