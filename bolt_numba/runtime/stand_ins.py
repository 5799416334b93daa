"""What runs a node whose kernel would have to be compiled first, in a session that runs already.

A plan takes what is there: another algorithm for the node, or its reference.  What is lacking is compiled behind its
back; then it is dropped, and the next run of that shape makes the one that it should have had.  A run of references
that still goes on begins again.  The first shape of a session waits for its kernels where nobody else could compile.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.blas import one_thread
from bolt_numba.base.budget import Budget, limit_in_force, within
from bolt_numba.base.config import compilers
from bolt_numba.base.errors import BudgetError
from bolt_numba.base.files.kept import cache_root
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.records import record
from bolt_numba.base.swallowed import swallowed
from bolt_numba.base.turns import short_turns
from bolt_numba.kernels.compiles import (
    Compile,
    LackingError,
    is_logging,
    logger,
    no_compiling,
    seconds_spent,
    waited,
)
from bolt_numba.kernels.jit import compiler_digest
from bolt_numba.kernels.precompile import compile_later, failed, is_python
from bolt_numba.kernels.progress import so_far, tell_if_long

if TYPE_CHECKING:
    from bolt_numba.base.types import Array, TensorType
    from bolt_numba.runtime.prepared import Prepared
    from bolt_numba.runtime.runner import Runner
    from bolt_numba.runtime.slots import Job

STANDS_IN = " (stand-in)"
"""Behind the name of what runs a node in the meantime."""


@record(eq=False)
class Serving:
    """Of a session: whether others stand in for kernels that are not there, once it has a plan and runs.

    is_early: for its first plan, too.  keep: is told the next plan that has all its kernels: the runner, the key, the
    plan.
    """

    name: str
    stand_ins: bool = True
    is_early: bool = False
    is_planned: bool = False
    is_running: bool = False
    keep: Callable[[Any, Any, Any], None] | None = None

    @property
    def may_not_wait(self) -> bool:
        return (self.is_running or self.is_early) and self.stand_ins


def planned_now(runner: Runner, plan: Callable[[bool], Prepared], types: Sequence[TensorType], waits: bool) -> Prepared:
    """A plan that waits for no kernel if the session may not wait, else one that does.

    plan: makes one that waits for kernels, or not.  types: for which.  waits: whether somebody asked to wait.
    """
    serving = runner.serving
    if serving.may_not_wait and not waits:
        try:
            with no_compiling():
                made = plan(False)
        except LackingError:
            pass  # of what no other can stand in for
        else:
            if made.stands_in:
                _compile(runner, made, types)
            return made
    start = time.perf_counter()
    with waited(serving.name) as compiled:
        made = plan(True)
    _tell(serving, compiled, time.perf_counter() - start, waits)
    return made


def _compile(runner: Runner, made: Prepared, types: Sequence[TensorType]) -> None:
    """Have compiled what a plan lacks: as fast as can be for the first one, whose user hears of it if that is long."""
    serving, stop = runner.serving, _nothing
    if failed.issuperset(made.plan.lacking):
        return
    lacking = [*made.plan.lacking, *(kernel for device in runner.devices for kernel in device.besides())]
    if is_first := not serving.is_running:
        serving.is_planned = True
        wanted = {*lacking}
        stop = tell_if_long(lambda: f"{so_far(wanted)}, runs are slower until then", serving.name)
    made.process = _process
    arrived = partial(_arrived, runner, types, made, Budget(memory=limit_in_force()), stop)
    compile_later(lacking, arrived, is_first)


def _nothing() -> None:
    """Nobody has to be told."""


def _arrived(
    runner: Runner, types: Sequence[TensorType], old: Prepared, budget: Budget, stop: Callable[[], None]
) -> None:
    """What a plan lacked is there: pack what the right one reads, by this thread; then the next run makes it.

    budget: of the session.
    """
    try:
        with within(budget), no_compiling(), short_turns(), np.errstate(all="ignore"):
            lacking = _packed(runner, types)
    except Exception as error:  # of any kind: the next run, which comes to it as well, tells its caller
        swallowed("a plan behind a stand-in", error)
        lacking = []
    if not failed.issuperset(lacking):
        compile_later(lacking, partial(_arrived, runner, types, old, budget, stop), is_urgent=True)
        return
    stop()
    runner.drop(old)
    old.gives_way = not any(job.op.has_side_state for job in old.plan.jobs)


def _packed(runner: Runner, types: Sequence[TensorType]) -> list[Any]:
    """Pack what the plan for these types reads; the kernels that it still lacks, none where the session was closed."""
    try:
        with runner.lock:
            if runner.make is not None:
                return []
            made = runner.made(types, waits=False)
        with suppress(LackingError):
            made.plan.link()
    except LackingError as error:
        return [error.kernel]
    return [*made.plan.lacking] or [k for k in list(runner.packs.lacking.values()) if not k.is_ready]


def is_worth_it() -> bool:
    """Whether somebody else compiles while references run."""
    return compilers() > 1 and is_python(sys.executable) and bool(compiler_digest())


def _tell(serving: Serving, compiled: Sequence[Compile], seconds: float, waits: bool) -> None:
    """Log what a plan took: the first of a session in any case, others where they had to wait."""
    if serving.is_running and serving.is_planned and compiled and not waits:
        text = "%s: a new shape waited %.1f s for %d kernels: %s"
        logger().warning(text, serving.name, seconds, len(compiled), ", ".join([c.name for c in compiled]))
    elif compiled or (is_logging() and not serving.is_planned):
        work = sum([c.seconds for c in compiled])
        text = "%s: planned in %.2f s; %d kernels compiled, %.1f s of work; they are kept in %s"
        logger().info(text, serving.name, seconds, len(compiled), work, cache_root())
    serving.is_planned = True


class ArrivedError(Exception):
    """Kernels are there for which references stand in: the run begins again; never seen outside `runner`."""


class _ThisThread(threading.local):
    """Of each thread: the plan of references that it runs."""

    prepared: Prepared | None = None


_running = _ThisThread()
_process = object()
"""Of this process.  Those who compile for a plan are of the process that made it, and not of its forks."""
renew_after_fork(sys.modules[__name__], "_process", object)


@contextmanager
def giving_way(prepared: Prepared) -> Iterator[None]:
    """Have `give_way` end a run of this plan."""
    before, _running.prepared = _running.prepared, prepared
    try:
        yield
    finally:
        _running.prepared = before


def give_way(next_one: Job) -> None:
    """Between two references: raise ArrivedError where the plan they belong to has had its time.

    A reference, or a signal handler, may run another session meanwhile, whose plan does not give way.
    """
    prepared = _running.prepared
    if prepared is not None and prepared.gives_way and any(job is next_one for job in prepared.plan.jobs):
        raise ArrivedError


def run_stand_in(
    runner: Runner, run_plan: Callable[..., list[Array]], prepared: Prepared, given: Sequence[Array], targets: Any
) -> list[Array] | None:
    """A run of a plan that does without kernels; None where another plan has to take its place."""
    if prepared.process not in (None, _process):
        runner.drop(prepared)
        return None
    try:
        with giving_way(prepared), one_thread():
            return run_plan(prepared, given, targets)
    except ArrivedError:
        return None
    except BudgetError:  # references take more memory than kernels
        runner.drop(prepared)
        runner.prepare(given, waits=True)
        return None


def computed_now(serving: Serving, compute: Callable[[], Any], reference: Callable[[], Any]) -> Any:
    """What ``compute`` gives, or ``reference`` as long as kernels of the first are lacking."""
    if not serving.may_not_wait:
        return compute()
    try:
        with no_compiling():
            return compute()
    except LackingError as error:
        compile_later([error.kernel], lambda: None)
        with one_thread():
            return reference()


def compiled_so_far() -> tuple[int, float]:
    """How many kernels this process has compiled, and the seconds that took."""
    return len(seconds_spent), sum(seconds_spent)
