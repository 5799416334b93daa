"""Commands about the installation: ops, doctor."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import inspect
import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import bolt_numba as bn
from bolt_numba import ops as operators
from bolt_numba.base.config import NUM_THREADS, SWITCHES, default_threads, quotas
from bolt_numba.base.errors import InternalError
from bolt_numba.base.files.kept import folders
from bolt_numba.base.files.trusted import obstacle, unusable
from bolt_numba.base.swallowed import FAULTS
from bolt_numba.cli import console
from bolt_numba.cli.formats import formats_markdown, names_read
from bolt_numba.cli.options import Json
from bolt_numba.devices import device
from bolt_numba.kernels import jit, registry
from bolt_numba.kernels.built_in import count_built_in
from bolt_numba.kernels.data_sized import DATA_SIZED
from bolt_numba.ops.registry import OPS

SAFETY = (
    "# What the content of an operand may do",
    "",
    "Made by `bolt-numba ops --safety`; do not edit.",
    "",
    "Models and inputs are hostile until proven otherwise: a kernel must stay inside its buffers whatever its",
    "operands hold, also when another thread writes them during the run. A number that is an address, count or",
    "length is read once, tested, and only then used. Out of range means a `DataError` that names node, operator,",
    "operand, place, value and bounds; references, folding and kernels say the same. The native loop tests",
    "nothing more: a step that refuses counts it in one word, at which the runner looks once a run",
    "(`kernels/cpu/faults.py`).",
    "",
    "Bools are bytes. Those that come from outside, from files or from other bits are made 0 or 1 where they enter.",
    "Shapes and sizes are another matter: plans are made for them, and kernels get no operand of another size.",
    "",
    "| operator | operand | what its content decides, and where that is bounded |",
    "|---|---|---|",
)
"""How the page data-safety.md begins."""
FREE = "{} operators only compute with what operands hold, move it, or look at it in Python:"
PACKAGES = ("numpy", "numba", "llvmlite", "onnx", "ml_dtypes", "protobuf")
CUDA_PACKAGES = ("cuda-bindings", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink")
"""What the extra ``cuda`` installs: the driver's functions, and what compiles kernels."""
PEERS = ("onnxruntime", "openvino")


def ops(
    names: Annotated[list[str] | None, typer.Argument(help="Only these: operands, attributes and defaults.")] = None,
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the site's page of operators.")] = False,
    safety: Annotated[bool, typer.Option("--safety", help="Print the site's page of what data may do.")] = False,
    formats: Annotated[bool, typer.Option("--formats", help="Print the site's page of operators by format.")] = False,
) -> None:
    """List every operator with the kernels that run it, and every operator of each format that is read."""
    if names:
        console.write("\n\n".join(map(_described, names)))
        return
    if formats:
        console.write(formats_markdown())
        return
    if not (markdown or safety):  # pages are the same wherever they are made
        operators.load_announced()
    rows = operator_rows()
    if as_json:
        console.write_json({"operators": rows, "formats": names_read()})
    elif markdown:
        console.write(operators_markdown())
    elif safety:
        console.write(safety_markdown())
    else:
        columns = ("operator", "kernels (cpu)", "kernels (cuda)", "meaning")
        cells = [(r["op"], ", ".join(r["kernels"]) or r["otherwise"], ", ".join(r["cuda"]), r["meaning"]) for r in rows]
        console.table("", columns, cells)
        for title, names in names_read().items():
            console.write(f"\n{len(names)} operators of {title} are read: {', '.join(names)}")


def _described(name: str) -> str:
    """What an operator means, and its attributes: as node.op has them."""
    if operators.find(name) is None:
        near = difflib.get_close_matches(name, OPS)
        raise bn.BoltError(f"operator: got {name!r}, wanted {' or '.join(near) or 'one that `ops` lists'}")
    rows = [f"  {f.name}: {getattr(f.type, '__name__', f.type)}{_default(f)}" for f in dataclasses.fields(OPS[name])]
    return "\n".join([name, inspect.getdoc(OPS[name]) or "", "", "attributes:" if rows else "no attributes", *rows])


def _default(attribute: dataclasses.Field[Any]) -> str:
    return "" if attribute.default is dataclasses.MISSING else f" = {attribute.default!r}"


_OTHERWISE = {
    "Einsum": "expanded: MatMul, Mul, ReduceSum",
    **dict.fromkeys(("Shape", "Size"), "known to the plan"),
    **dict.fromkeys(("If", "Loop", "Scan"), "bodies run natively"),
    "Foreign": "a device of a plug-in, else its graph natively",
}
"""What runs operators that have no kernel, unless it is the reference."""


def operator_rows() -> list[dict[str, Any]]:
    """One row per registered operator."""
    operators.load_all()
    registry.load("cpu")
    registry.load("cuda")
    rows = []
    for name, op in sorted(OPS.items()):
        entries = registry.KERNELS.get((op, "cpu"), [])
        kernels = list(dict.fromkeys(e.name for e in entries))
        by_data = DATA_SIZED.get((op, "cpu"))
        kernels += [] if by_data is None else [by_data.name]
        line = (op.__doc__ or "").strip().partition("\n")[0]
        meaning = line.partition(".  ")[0].removeprefix(f"{name}: ").removesuffix(".")
        otherwise = _OTHERWISE.get(name, "reference")
        on_gpu = list(dict.fromkeys(e.name for e in registry.KERNELS.get((op, "cuda"), [])))
        rows.append({"op": name, "kernels": kernels, "cuda": on_gpu, "otherwise": otherwise, "meaning": meaning})
    return rows


def operators_markdown() -> str:
    """The page operators.md of the site, made from the registries."""
    rows = operator_rows()
    native = sum(bool(r["kernels"]) for r in rows)
    count = sum(bool(r["cuda"]) for r in rows)
    lines = [
        "# Operators",
        "",
        "Made by `bolt-numba ops --markdown`; do not edit.",
        "",
        f"{len(rows)} operators, {native} with native kernels; the others run by their NumPy reference or as it says.",
        f"{count} have CUDA kernels, which take f32, f16 and bf16 where the CPU's take f32; on a GPU the others run on",
        "the CPU, between copies ([cuda.md](cuda.md)).",
        "",
        "| operator | kernels (cpu, f32) | kernels (cuda) | meaning |",
        "|---|---|---|---|",
    ]
    for row in rows:
        kernels = ", ".join(f"`{k}`" for k in row["kernels"]) or row["otherwise"]
        on_gpu = ", ".join(f"`{k}`" for k in row["cuda"])
        lines.append(f"| {row['op']} | {kernels} | {on_gpu} | {row['meaning'].replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def safety_markdown() -> str:
    """The page data-safety.md of the site, made from the operators' `data_bounds`."""
    operators.load_all()
    bounds = {name: op.data_bounds for name, op in sorted(OPS.items())}
    rows = [f"| {name} | `{operand}` | {text} |" for name, found in bounds.items() for operand, text in found.items()]
    free = [name for name, found in bounds.items() if not found]
    return "\n".join([*SAFETY, *rows, "", "## The others", "", FREE.format(len(free)), "", ", ".join(free) + ".", ""])


def doctor(as_json: Json = False) -> None:
    """Check the installation: versions, processor, threads, cache, and a small model run natively."""
    checks = {name: _checked(check) for name, check in _CHECKS.items()}
    if as_json:
        console.write_json({"ok": all(ok for ok, _ in checks.values()), "checks": checks})
    else:
        rows = [("ok" if ok else "FAILED", name, text) for name, (ok, text) in checks.items()]
        console.table("", ("", "check", "result"), rows)
        switches = [(s.name, s.value or f"not set: {s.default}", s.meaning) for s in SWITCHES]
        console.write("")
        console.table("", ("variable", "value", "meaning"), switches)
    if not all(ok for ok, _ in checks.values()):
        raise typer.Exit(1)


def _checked(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    except Exception as error:  # whatever is wrong with the installation is the answer
        return False, f"{type(error).__name__}: {error}"


def _versions() -> str:
    found = [f"bolt-numba {bn.__version__}", f"Python {platform.python_version()}"]
    return ", ".join(found + [f"{name} {_version(name)}" for name in PACKAGES])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _peers() -> str:
    found = [f"{n} {metadata.version(n)}" if importlib.util.find_spec(n) else f"{n} not installed" for n in PEERS]
    return ", ".join(found)


def _gpus() -> str:
    """The GPUs that sessions may use, or what is missing; a machine may well have none."""
    from bolt_numba.devices.cuda.library import found

    try:
        gpus = found()
    except bn.BoltError as error:
        gpus = [str(error)]
    packages = [f"{name} {_version(name)}" for name in CUDA_PACKAGES]
    return "; ".join([*gpus, ", ".join(packages)])


def _plug_ins() -> str:
    """Plug-ins that are installed, and why some do not work; `bolt-numba devices` says more."""
    from bolt_numba.plugins import registry

    return "; ".join(f"{name}: {registry.obstacle(name) or 'ready'}" for name in registry.names()) or "none"


def _cache_folders() -> str:
    """What each folder is good for; raises BoltError where one that exists is of no use."""
    own = folders().own
    texts, is_well = [], True
    for folder in folders().read:
        trouble = unusable(folder)
        cannot = obstacle(folder) if folder == own else "only read"
        is_well &= not trouble
        kernels = _kernels_in(folder)
        if trouble:
            texts.append(f"{folder}: not used: {trouble}")
        elif not folder.is_dir():
            texts.append(f"{folder}: {f'cannot be made: {cannot}' if cannot else 'made when it is wanted'}")
        elif cannot and folder == own:
            texts.append(f"{folder}: {kernels}, read-only: {cannot}; each process compiles those that it lacks")
        else:
            texts.append(f"{folder}: {kernels}, {cannot or 'writable'}")
    texts += [folders().obstacle] * bool(folders().obstacle)
    if not is_well:
        raise bn.BoltError("; ".join(texts))
    return "; ".join(texts)


def _kernels_in(folder: Path) -> str:
    mine = len(jit.cache_entries(folder))
    every = len(list(folder.glob("*-*/*.kernel"))) if os.access(folder, os.R_OK | os.X_OK) else mine
    return f"{mine} kernels{f' and {every - mine} for other processors or versions' if every > mine else ''}"


def _self_test() -> str:
    """A matrix product with a Relu, natively, against its reference."""
    from bolt_numba.base.types import F32, TensorType
    from bolt_numba.ir.build import Builder
    from bolt_numba.ir.interpret import interpret

    operators.load_all()
    graph = bn.Graph("self-test")
    rng = np.random.default_rng(0)
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (8, 16)))
    y = build(OPS["MatMul"](), x, rng.integers(-4, 5, (16, 8)).astype(F32))
    graph.add_output(build(OPS["Relu"](), y), "y")
    feeds = {"x": rng.integers(-4, 5, (8, 16)).astype(F32)}
    session = bn.compile(graph, stand_ins=False)
    got, wanted = session(feeds)["y"], interpret(graph, feeds)["y"]
    if not np.array_equal(got, wanted):
        raise bn.BoltError(f"self-test: largest difference: got {abs(got - wanted).max()}, wanted 0")
    runners = sorted({str(row["runner"]) for row in session.report()})
    if "reference" in runners:
        raise bn.BoltError(f"self-test: runners: got {runners}, wanted native kernels only")
    return f"exact, by {', '.join(runners)}"


def _threads() -> str:
    """How many a session has, and what says so."""
    limits = [f"{len(os.sched_getaffinity(0))} by affinity"] if hasattr(os, "sched_getaffinity") else []
    limits += [f"{count} by the quota of {folder}" for count, folder in quotas()]
    limits += [f"{os.environ[n]} by {n}" for n in ("OMP_NUM_THREADS", NUM_THREADS.name) if n in os.environ]
    return f"{default_threads()} ({', '.join(limits)})"


def _swallowed() -> str:
    """Of this process, whose self-test ran before."""
    if FAULTS:
        raise InternalError("; ".join(f"{text} ({count} times)" for text, count in FAULTS.most_common()))
    return "none"


_CHECKS: dict[str, Callable[[], str]] = {
    "versions": _versions,
    "peers": _peers,
    "instructions": lambda: device("cpu").describe(),
    "GPUs": _gpus,
    "plug-ins": _plug_ins,
    "threads": _threads,
    "kernels in the package": lambda: f"{count_built_in(jit.package_name())} for this level",
    "kernel cache": _cache_folders,
    "self-test": _self_test,
    "errors passed over": _swallowed,
}
