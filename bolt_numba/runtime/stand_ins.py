"""What runs a node whose kernel would have to be compiled first, in a session that runs already.

The first shape of a session waits for its kernels.  From then on a new shape takes those that are there: another
algorithm for the node, or its reference.  What is lacking is compiled behind their back; then the plan is dropped, and
the next run of that shape makes the one that it should have had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bolt_numba.base.files.kept import cache_root
from bolt_numba.base.records import record
from bolt_numba.kernels.compiles import Compile, LackingError, is_logging, logger, no_compiling, waited
from bolt_numba.kernels.precompile import compile_later

if TYPE_CHECKING:
    from bolt_numba.runtime.prepared import Prepared

STANDS_IN = " (stand-in)"
"""Behind the name of what runs a node in the meantime."""


@record(eq=False)
class Serving:
    """Of a session: whether others stand in for kernels that are not there, once it has a plan and runs."""

    name: str
    stand_ins: bool = True
    is_planned: bool = False
    is_running: bool = False

    @property
    def may_not_wait(self) -> bool:
        return self.is_running and self.stand_ins


def planned_now(
    serving: Serving, plan: Callable[[bool], Prepared], arrived: Callable[[Prepared], None], waits: bool
) -> Prepared:
    """A plan that waits for no kernel if the session may not wait, else one that does.

    plan: makes one that waits for kernels, or not.  arrived: called by another thread when what the plan
    lacks is there.  waits: whether somebody asked to wait.
    """
    if serving.may_not_wait and not waits:
        try:
            with no_compiling():
                made = plan(False)
        except LackingError:
            pass  # of what no other can stand in for
        else:
            if made.stands_in:
                compile_later(made.plan.lacking, lambda: arrived(made))
            return made
    start = time.perf_counter()
    with waited(serving.name) as compiled:
        made = plan(True)
    _tell(serving, compiled, time.perf_counter() - start, waits)
    return made


def _tell(serving: Serving, compiled: Sequence[Compile], seconds: float, waits: bool) -> None:
    """Log what a plan took: the first of a session in any case, others where they had to wait."""
    if serving.is_running and compiled and not waits:
        text = "%s: a new shape waited %.1f s for %d kernels: %s"
        logger().warning(text, serving.name, seconds, len(compiled), ", ".join([c.name for c in compiled]))
    elif compiled or (is_logging() and not serving.is_planned):
        work = sum([c.seconds for c in compiled])
        text = "%s: planned in %.2f s; %d kernels compiled, %.1f s of work; they are kept in %s"
        logger().info(text, serving.name, seconds, len(compiled), work, cache_root())
    serving.is_planned = True


def computed_now(serving: Serving, compute: Callable[[], Any], reference: Callable[[], Any]) -> Any:
    """What ``compute`` gives, or ``reference`` as long as kernels of the first are lacking."""
    if not serving.may_not_wait:
        return compute()
    try:
        with no_compiling():
            return compute()
    except LackingError as error:
        compile_later([error.kernel], lambda: None)
        return reference()
