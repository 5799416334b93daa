"""Commands about the cache of compiled kernels, and shapes that are likely to come where one has come."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

import bolt_numba as bn
from bolt_numba.base.config import CACHE_DIR, CACHE_MIB, SYSTEM_CACHE, cache_limit, processors
from bolt_numba.base.files.kept import folders, make_root
from bolt_numba.base.files.trusted import obstacle, share
from bolt_numba.base.types import NUMERICS, PRECISIONS
from bolt_numba.cli import console
from bolt_numba.cli.options import Json, ShapeSets, Tune, read_sets
from bolt_numba.devices import kept_plans
from bolt_numba.devices.threads import load_executor
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.packed import SEAL_KEY
from bolt_numba.kernels import jit
from bolt_numba.kernels.cuda import code
from bolt_numba.kernels.precompile import compiling_in
from bolt_numba.kernels.prune import cache_bytes
from bolt_numba.plugins import blobs
from bolt_numba.sessions.guesses import Shapes, complete_shapes, model_feeds
from bolt_numba.sessions.session import Session

cache = typer.Typer(help="The cache of compiled kernels.", no_args_is_help=True)


@cache.command("path")
def cache_path() -> None:
    """Print the folder of the cache for this version and processor."""
    console.write(str(jit.cache_dir()))


@cache.command("list")
def cache_list(as_json: Json = False) -> None:
    """List the kernels compiled for this version, for this processor and for GPUs, in all folders that are read."""
    kept = {folder: [*jit.cache_entries(folder), *code.cache_entries(folder)] for folder in folders().read}
    rows = [(name, size, folder) for folder, entries in kept.items() for name, size in entries]
    if as_json:
        console.write_json([{"kernel": name, "bytes": size, "folder": str(folder)} for name, size, folder in rows])
        return
    console.table("", ("kernel", "bytes", "folder"), rows, right=("bytes",))
    for folder, entries in kept.items():
        console.write(f"{len(entries)} kernels, {sum(size for _, size in entries):,} bytes, in {folder}")
    graphs = blobs.entries()
    if graphs:
        nbytes = sum(found.st_size for _, found in graphs)
        console.write(f"{len(graphs)} graphs that plug-ins compiled, {nbytes:,} bytes, in {graphs[0][0].parent}")
    plans = kept_plans.entries()
    if plans:
        nbytes = sum(found.st_size for _, found in plans)
        console.write(f"{console.counted(len(plans), 'plan')}, {nbytes:,} bytes, in {plans[0][0].parent}")
    limit = f"at most {cache_limit():,}" if cache_limit() else "any number"
    console.write(f"{cache_bytes():,} bytes of yours of all versions and processors; {limit} ({CACHE_MIB.name})")


@cache.command("clear")
def cache_clear() -> None:
    """Remove your compiled kernels of all versions, kept plans, and what plug-ins compiled."""
    console.write(f"removed {jit.clear_cache()} kernels from {jit.cache_root()}")
    graphs = blobs.clear()
    if graphs:
        console.write(f"removed {graphs} graphs that plug-ins compiled")
    plans = kept_plans.clear()
    if plans:
        console.write(f"removed {console.counted(plans, 'plan')}")


@cache.command("warm")
def cache_warm(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="Models whose kernels to compile.")],
    shape: ShapeSets = [],
    precision: Annotated[
        list[str], typer.Option("--precision", metavar="|".join(PRECISIONS), help="For sessions; may be repeated.")
    ] = ["f32"],
    numerics: Annotated[
        list[str], typer.Option("--numerics", metavar="|".join(NUMERICS), help="For sessions; may be repeated.")
    ] = ["default"],
    threads: Annotated[list[int], typer.Option("--threads", min=1, help="Threads of a session; may be repeated.")] = [],
    tune: Tune = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Only compile for these shapes, not for likely others.")
    ] = False,
    system: Annotated[
        bool, typer.Option("--system", help="For all users: into the first folder of BOLT_NUMBA_SYSTEM_CACHE.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="How many compile at once; by default one a processor.")
    ] = None,
) -> None:
    """Compile ahead of time every kernel that these models need, and run each once."""
    if system:
        _write_for_all()
    _usable_cache()
    before = len(jit.cache_entries())
    sets = read_sets(shape)
    unused = set(sets[0])
    with console.progress("compiling") as say, compiling_in(processes or processors()):
        load_executor()
        for model in models:
            found = bn.load_model(model)
            for signature in found.signatures:
                graph = found.graph(signature)
                unused -= _names(graph)
                for session in _sessions(graph, precision, numerics, threads, tune):
                    say(f"compiling for {model.name}")
                    _warm(session, model, sets, exact)
    if unused:
        raise bn.ShapeError(f"--shape: got {', '.join(sorted(unused))}, wanted inputs or symbols of the models")
    count = len(jit.cache_entries())
    console.write(f"compiled {console.counted(count - before, 'kernel')}; {count} in the cache, {jit.cache_root()}")


def _write_for_all() -> None:
    """Have this process write into the folder of the system, whatever the environment and the umask say."""
    wanted = os.environ.get(SYSTEM_CACHE.name, SYSTEM_CACHE.default).split(os.pathsep)[0]
    if not wanted:
        raise bn.BoltError(f"{SYSTEM_CACHE.name}: got no folder, wanted the one to write to")
    os.environ[CACHE_DIR.name] = wanted
    umask = os.umask(0o022)
    try:
        _usable_cache()
    finally:
        os.umask(umask)


def _sessions(
    graph: Graph, precision: Sequence[str], numerics: Sequence[str], threads: Sequence[int], tune: bool
) -> Iterator[Session]:
    for kind in precision:
        for exactness in numerics:
            for count in threads or (None,):
                yield bn.compile(graph, precision=kind, numerics=exactness, threads=count, tune=tune, stand_ins=False)


def _warm(session: Session, model: Path, sets: Sequence[Shapes], is_exact: bool) -> None:
    """Run for each set of shapes, as a run alone plans what follows data; plan where random inputs do not do."""
    names = _names(session.graph)
    for sizes in sets:
        shapes = {name: shape for name, shape in sizes.items() if name in names}
        whole = complete_shapes(session.graph, shapes)
        try:
            session(model_feeds(session.graph, shapes))
        except bn.BoltError as error:
            session.warmup(**whole)
            text = f"{model}: is planned and compiled, but does not run on random inputs: {error}"
            console.err.print(console.plain(text), markup=False)
        for others in () if is_exact else relatives(session.graph, whole):
            with suppress(bn.BoltError):  # not all that is tried fits
                session.warmup(**others)


def _names(graph: Graph) -> set[str]:
    """Inputs of a graph, and symbols in their shapes."""
    symbols = {str(d) for v in graph.caller_inputs for d in v.type.shape or () if not isinstance(d, int)}
    return symbols | {v.name for v in graph.caller_inputs}


@cache.command("share")
def cache_share() -> None:
    """Let all users of this machine read the cache as it is now, and what is compiled later."""
    root = _usable_cache()
    try:
        count = share(root, frozenset({SEAL_KEY, kept_plans.FOLDER}))
    except OSError as error:
        raise bn.BoltError(f"{root}: cannot be shared: {error.strerror or error}") from error
    console.write(f"{count} files of {root} may be read by all users; they set {SYSTEM_CACHE.name}={root}")


def _usable_cache() -> Path:
    """The own folder; raises BoltError where nothing can be kept in it."""
    try:
        root = make_root()
    except OSError as error:
        raise bn.BoltError(f"{jit.cache_root()}: cannot be used as cache: {error.strerror or error}") from error
    if trouble := obstacle(root):
        raise bn.BoltError(f"{root}: cannot be used as cache: {trouble}")
    return root


OF_ONE = (2, 3, 4, 5, 8, 32)
"""What comes where a size was 1: batches, which kernels tell apart up to some 5."""
MOST_SIZE = 4096
"""Greatest size that is tried."""


def relatives(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Iterator[Shapes]:
    """Shapes of all inputs in which free sizes differ from those given.

    Free sizes that are equal are taken for one, as exporters often give two names to a batch; one that has a name of
    its own is tried alone, too.  Not all of these need fit the model.
    """
    free: dict[str, int] = {}
    for value in graph.caller_inputs:
        for symbol, size in zip(value.type.shape or (), shapes[value.name], strict=True):
            if not isinstance(symbol, int):
                free[str(symbol)] = size
    groups = {frozenset(s for s, at in free.items() if at == size): size for size in free.values()}
    groups |= {frozenset((symbol,)): size for symbol, size in free.items()}
    many = frozenset(symbol for symbol, size in free.items() if size == 1)
    for group, size in groups.items():
        for other in _others(size):
            yield _changed(graph, shapes, dict.fromkeys(group, other))
            if many and not group & many:
                yield _changed(graph, shapes, dict.fromkeys(many, 2) | dict.fromkeys(group, other))


def _others(size: int) -> tuple[int, ...]:
    if size == 1:
        return OF_ONE
    return tuple(n for n in (1, 2 * size, size // 2, 4 * size, size // 4, size + 1) if 0 < n <= MOST_SIZE)


def _changed(graph: Graph, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> Shapes:
    return {
        v.name: tuple(sizes.get(str(d), n) for d, n in zip(v.type.shape or (), shapes[v.name], strict=True))
        for v in graph.caller_inputs
    }
