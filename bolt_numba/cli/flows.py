"""Commands about flows in files: what they are made of, and runs of many tasks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from bolt_numba.base.errors import BoltError
from bolt_numba.cli import console
from bolt_numba.cli.options import Json
from bolt_numba.cli.tasks import Task, common_values, tasks_of, writer_of
from bolt_numba.flow.files import load
from bolt_numba.flow.flow import Flow
from bolt_numba.flow.node import FlowNode, FunctionNode, ModelNode
from bolt_numba.flow.parts import NodeOptions, Workers, text_of, workers_of

flow = typer.Typer(help="Flows in files: pipelines of models and functions for streams of tasks.", no_args_is_help=True)

FlowFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="A flow: .toml, or a .prototxt of Bolt's Flow.")
]
Functions: TypeAlias = Annotated[
    list[str], typer.Option("--function", metavar="NAME=MODULE:FUNCTION", help="A function that the file names.")
]
Models: TypeAlias = Annotated[
    list[str], typer.Option("--model", metavar="NAME=FILE", help="A model that the file names, by path or last part.")
]


def _read(file: Path, functions: Sequence[str], models: Sequence[str], **options: Any) -> Flow:
    found: dict[str, dict[str, Any]] = {"--function": {}, "--model": {}}
    for option, texts in (("--function", functions), ("--model", models)):
        for text in texts:
            name, equals, value = text.rpartition("=")
            if not equals or not name or not value:
                raise typer.BadParameter(f"got {text!r}, wanted NAME=...", param_hint=option)
            found[option][name] = value
    return load(file, functions=found["--function"], models=found["--model"], **options)


@flow.command("show")
def show(file: FlowFile, functions: Functions = [], models: Models = [], as_json: Json = False) -> None:
    """List the nodes of a flow: what they are, read and make, and who runs them.  No model is compiled."""
    found = _read(file, functions, models)
    nodes = [_facts(node, found) for node in found.ordered()]
    crew = found.workers if found.copies is None else found.copies
    facts = {
        "name": found.name, "inputs": _typed(found, found.inputs), "outputs": _typed(found, found.outputs),
        "workers" if found.copies is None else "copies": _crew(crew), "capacity": found.capacity, "order": found.order,
    }  # fmt: skip
    if as_json:
        console.write_json({**facts, "nodes": nodes})
        return
    for key, value in facts.items():
        console.write(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    columns = ("node", "runs", "inputs", "outputs", "workers", "options")
    console.table("", columns, [[_cell(node[key]) for key in columns] for node in nodes])


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value or "")


def _facts(node: FlowNode, found: Flow) -> dict[str, Any]:
    usual = NodeOptions()
    options = {
        key: getattr(node.options, key)
        for key in ("max_batch", "max_wait", "queue", "process")
        if getattr(node.options, key) != getattr(usual, key)
    }
    options |= {"each": list(node.each)} if node.each else {}
    options |= {"states": list(node.states)} if node.states else {}
    options |= {"fixed": list(node.fixed)} if node.fixed else {}
    options |= {k: str(v) for k, v in node.compiled.items()} if isinstance(node, ModelNode) else {}
    own = node.options.workers
    return {
        "node": node.name, "runs": _runs(node), "inputs": _typed(found, node.inputs.values()),
        "outputs": _typed(found, node.outputs.values()), "workers": "" if own is None else _crew(workers_of(own)),
        "options": options,
    }  # fmt: skip


def _runs(node: FlowNode) -> str:
    if isinstance(node, ModelNode):
        return f"model {node.graph.name or node.name!r}, {len(node.graph.nodes)} nodes"
    function = node.function if isinstance(node, FunctionNode) else node
    module = getattr(function, "__module__", type(function).__module__)
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _typed(found: Flow, values: Any) -> list[str]:
    """Names of values, with their types where they are known."""
    specs = {value: found.type_of_value(value) for value in values}
    return [value if spec is None else f"{value}: {text_of(spec)}" for value, spec in specs.items()]


def _crew(workers: Sequence[Workers]) -> str:
    parts = []
    for one in workers:
        pins = one.pins()
        said = f"{len(pins)}"
        said += "" if one.device is None else f" on {one.device}"
        said += "" if one.threads is None else f" with {one.threads} threads"
        said += "" if one.cpus is None else f" on processors {', '.join(str(sorted(p or ())) for p in pins)}"
        parts.append(said)
    return " and ".join(parts)


@flow.command("run")
def run(  # budget: each option is one line or two
    file: FlowFile,
    input_: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="NAME=VALUE",
            help="For all tasks: a.npy, @FILE for its bytes, a JSON value, or a text.  Without --tasks there is one.",
        ),
    ] = [],
    tasks: Annotated[
        Path | None,
        typer.Option("--tasks", metavar="FILE", help="A folder with a file for each task, lines of JSON, or '-'."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="A folder for an .npz file of each task, or a .jsonl."),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Workers, in place of the file's.")] = None,
    deadline: Annotated[float | None, typer.Option("--deadline", min=0, help="Seconds that a task may take.")] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="All tasks belong to one stream: nodes keep states.")
    ] = False,
    statistics: Annotated[bool, typer.Option("--statistics", help="Show times of nodes and tasks.")] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace of all workers, for Perfetto.")
    ] = None,
    functions: Functions = [],
    models: Models = [],
) -> None:
    """Run tasks through a flow; a line of JSON for each, in the flow's order.  Exit code 1 where any failed."""
    writer = writer_of(output, tasks)
    with console.progress(f"reading {file.name}"):
        made = _read(file, functions, models, workers=workers)
        common = common_values(input_, made.inputs, alone=tasks is None)
        if trace is not None:
            made.trace()
        _ = made.engine  # models are compiled now
    options = {"stream": "all" if stream else None, "deadline": deadline}
    failed = count = 0
    begin = time.perf_counter()
    with writer, made:
        for label, outcome in _outcomes(made, tasks_of(tasks, common, made.inputs), options):
            count += 1
            failed += not writer.write(label, outcome)
    took = time.perf_counter() - begin
    if statistics:
        console.note(f"{made.statistics().table()}\n{count} tasks in {took:.3f} s, {count / took:.1f} each second")
    if trace is not None:
        made.save_trace(trace)
    if not count:
        console.note(f"got no task in {tasks}")
    if failed:
        console.note(f"error: {failed} of {count} tasks failed")
        raise typer.Exit(1)


def _outcomes(made: Flow, tasks: Iterator[Task], options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """For each task its label, and its results or what went wrong, as soon as the flow's order allows.

    A thread reads tasks, which may come from a pipe; at most as many wait as the flow holds.
    """
    labels: dict[int, str] = {}
    refused: deque[tuple[str, Exception]] = deque()
    fault: list[Exception] = []

    def feed() -> None:
        number = 0
        try:
            for label, values in tasks:
                if isinstance(values, Exception):
                    refused.append((label, values))
                    continue
                labels[number] = label
                try:
                    made.enqueue(values, **options)
                    number += 1
                except BoltError as error:  # it is not of the flow's types
                    if made.engine.is_finished:
                        return
                    refused.append((label, error))
        except Exception as error:  # a folder that is gone
            fault.append(error)
        finally:
            made.finish()

    threading.Thread(target=feed, daemon=True).start()
    for task in made:
        while refused:
            yield refused.popleft()
        yield labels.pop(task.number), task.exception() or task.result()
    yield from refused
    if fault:
        raise fault[0]
