"""The command that serves models."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bolt_numba.base.config import default_threads
from bolt_numba.base.errors import BoltError
from bolt_numba.cli import console
from bolt_numba.cli.options import takes_options

if TYPE_CHECKING:
    from bolt_numba.serve.processes import Link
    from bolt_numba.serve.repository import Repository
    from bolt_numba.serve.server import Server
    from bolt_numba.serve.settings import Doors

HTTP, GRPC = 8000, 8001
NEEDED = ("grpc", "orjson", "prometheus_client", "starlette", "uvicorn")
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Where several processes put their numbers, as the client of Prometheus names it."""
POLLERS = "GRPC_EXPERIMENTS", "-event_engine_listener"
"""Has the library of gRPC wait for requests with fewer threads: each takes 40 of 500 us less then."""
LEVELS = ("debug", "info", "warning", "error")


@takes_options(without=("stand_ins", "stages"))
def serve(  # budget: each option is one line or two
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="Model files, or a folder NAME/VERSION/model.* of them.")
    ],
    host: Annotated[str, typer.Option("--host", help="The address to listen at.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option("--http-port", min=-1, max=65535, help="REST; -1: none.")] = HTTP,
    grpc_port: Annotated[int, typer.Option("--grpc-port", min=-1, max=65535, help="gRPC; -1: none.")] = GRPC,
    options: Mapping[str, Any] = {},
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Requests that may run as one.")] = 1,
    max_wait_us: Annotated[
        int, typer.Option("--max-wait-us", min=0, help="Microseconds that a request waits for others.")
    ] = 0,
    queue: Annotated[int, typer.Option("--queue", min=1, help="Requests under way; those beyond get 429.")] = 256,
    instances: Annotated[int | None, typer.Option("--instances", min=1, help="Runs of one model at once.")] = None,
    deadline_ms: Annotated[float | None, typer.Option("--deadline-ms", min=0, help="Time of a request.")] = None,
    max_rows: Annotated[int | None, typer.Option("--max-rows", min=1, help="Rows of a request.")] = None,
    sequences: Annotated[int, typer.Option("--sequences", min=1, help="Texts that a decoder makes at once.")] = 8,
    context: Annotated[int | None, typer.Option("--context", min=2, help="Tokens of a text, with its prompt.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes.")] = 1,
    poll: Annotated[float | None, typer.Option("--poll", min=0.1, help="Seconds between looks at the folder.")] = None,
    max_body: Annotated[float, typer.Option("--max-body", min=0.001, help="MiB of a request.")] = 64,
    max_tensors: Annotated[int, typer.Option("--max-tensors", min=1, help="Inputs, or outputs, of a request.")] = 1000,
    grace: Annotated[float, typer.Option("--grace", min=0, help="Seconds for requests when the server ends.")] = 30,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A token that requests must bring.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option("--tls-certificate", metavar="FILE", help="For TLS.")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="For TLS.")] = None,
    log_level: Annotated[str, typer.Option("--log-level", help=", ".join(LEVELS))] = "info",
) -> None:
    """Serve models over REST and gRPC, by the Open Inference Protocol; texts and embeddings as OpenAI has them, too."""
    want_installed()
    if log_level not in LEVELS:
        raise typer.BadParameter(f"got {log_level!r}, wanted one of {', '.join(LEVELS)}", param_hint="--log-level")
    os.environ.setdefault(*POLLERS)  # before the library is imported
    if workers > 1:  # before the client of Prometheus is imported
        counts = tempfile.TemporaryDirectory(prefix="bolt-numba-serve-")  # it is there as long as it has a name
        os.environ[SHARED] = counts.name
    from bolt_numba.serve.logs import begin_log
    from bolt_numba.serve.server import run_loop
    from bolt_numba.serve.settings import Doors, ModelSettings

    begin_log(log_level.upper())
    compiled = dict(options)
    if workers > 1:
        instances = instances or 1
        if compiled["threads"] is None:
            compiled["threads"] = max(1, default_threads() // (workers * instances))
    usual = ModelSettings(
        max_batch, max_wait_us, {}, queue, instances, deadline_ms, max_rows, sequences=sequences, context=context,
        compile=compiled,
    )  # fmt: skip
    doors = Doors(
        host, _port(http_port), _port(grpc_port), max_body, grace_seconds=grace, token=_token(token_file),
        certificate=certificate, key=key, poll_seconds=poll, max_tensors=max_tensors,
    )  # fmt: skip
    repository = repository_of(models, usual)
    if workers == 1:
        run_loop(_served(repository, doors))
        return
    _serve_in_processes(workers, repository, doors)


def want_installed() -> None:
    """Raises BoltError where a package of the extra is missing."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise BoltError(f"serve: got no package {', '.join(missing)}, wanted the extra: pip install '.[serve]'")


def _port(given: int) -> int | None:
    return None if given < 0 else given


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    if not (token := path.read_text().strip()):
        raise BoltError(f"{path}: got an empty file, wanted a token")
    return token


def repository_of(paths: list[Path], usual: Any) -> Repository:
    """Models that are named, or those of a folder.  Raises BoltError for what is neither, OSError."""
    from bolt_numba.converters.paddle.detect import is_paddle
    from bolt_numba.serve.repository import Repository, is_repository, model_of, names_in
    from bolt_numba.serve.settings import FILE

    if len(paths) == 1 and is_repository(paths[0]):
        return Repository(paths[0], {}, usual)
    named: dict[str, Path] = {}
    for path in paths:
        path.stat()  # raises OSError where there is nothing
        name, file = path.stem, path
        if path.is_dir() and not is_paddle(b"", path):
            if (found := model_of(path)) is None:
                wanted = "model.onnx alone or beside a tokenizer.json, or models in it: NAME/1/model.onnx, NAME.gguf"
                raise BoltError(f"{path}: got a folder of {names_in(path)}, wanted {wanted}")
            if (path / FILE).exists():
                raise BoltError(f"{path / FILE}: got it beside the model itself, wanted options of the command")
            name, file = Path(os.path.abspath(path)).name, found
        if name in named:
            raise BoltError(f"{path}: got a second model {name!r}, wanted other names: they are those of the files")
        named[name] = file
    return Repository(None, named, usual)


async def _served(repository: Repository, doors: Doors, link: Link | None = None) -> None:
    from bolt_numba.serve.server import Server

    await Server(repository, doors, link).run(_tell)


def _tell(server: Server) -> None:
    """What serves where, on standard error; models that were not loaded are in the log."""
    from bolt_numba.serve.openai import listed

    doors, models = server.doors, server.repository.models
    secure = "s" if doors.certificate is not None else ""
    paths = "/v2 and /v1" if listed(server.repository)["data"] else "/v2"  # the second is for clients of OpenAI
    places = [f"http{secure}://{doors.host}:{server.http_port}{paths}"] if doors.http_port is not None else []
    places += [f"grpc{secure}://{doors.host}:{server.grpc_port}"] if doors.grpc_port is not None else []
    logging.getLogger("bolt_numba.serve").info(
        "serving %s at %s", ", ".join(sorted(models)) or "no model", " and ".join(places)
    )


def _serve_in_processes(count: int, repository: Repository, doors: Doors) -> None:
    from dataclasses import replace

    from bolt_numba.serve.processes import Herd
    from bolt_numba.serve.server import listening, run_loop

    held = []
    for option, field in (("--http-port", "http_port"), ("--grpc-port", "grpc_port")):
        if (port := getattr(doors, field)) is not None:  # one that cannot be had is told here, and once
            held.append(listening(option, doors.host, port, shared=True))
            doors = replace(doors, **{field: held[-1].getsockname()[1]})
    with console.progress("loading models"):
        repository.preload()
    Herd(count, lambda link: run_loop(_served(repository, doors, link)), repository).run()
