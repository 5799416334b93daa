"""How far compiling is: a bar in terminals and notebooks; elsewhere lines, where it takes long."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bolt_numba.base.files.kept import cache_root
from bolt_numba.kernels.compiles import has_listeners, logger, on_compile, who_waits

WHAT = "compiling kernels (once; they are kept)"
LONG = 2.0
"""Seconds of compiling after which a line says so where nobody sees a bar, and between the first of these lines."""
OFTEN = 5
"""Lines that come as often as that; each further one takes twice as long, for who reads a log."""


def shown(kernels: Collection[Any]) -> AbstractContextManager[None]:
    """Show how many of these kernels are compiled, where somebody sees it and nobody else shows it."""
    if has_listeners():
        return nullcontext()
    if _is_notebook():
        return _counted(_cell(len(kernels)))
    return _bar(len(kernels)) if sys.stderr is not None and sys.stderr.isatty() else _line(kernels)


def _is_notebook() -> bool:
    shell: Any = sys.modules.get("IPython")
    kinds = [] if shell is None else type(shell.get_ipython()).__mro__
    return "ZMQInteractiveShell" in [kind.__name__ for kind in kinds]


@contextmanager
def _bar(total: int) -> Iterator[None]:
    """A bar in a terminal, gone when all is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(WHAT, total=total)
        with _counted(lambda name, count: bar.update(task, completed=count, total=max(total, count))):
            yield


@contextmanager
def _counted(show: Callable[[str, int], Any]) -> Iterator[None]:
    """Show each kernel, and how many are done."""
    count = 0

    def heard(name: str, done: bool) -> None:
        nonlocal count
        count += done
        show(name, count)

    stop = on_compile(heard)
    try:
        yield
    finally:
        stop()
        show("", count)


@contextmanager
def _line(kernels: Collection[Any]) -> Iterator[None]:
    """Warnings, where it takes long: Python writes them to stderr, or the application to its log."""
    stop = tell_if_long(lambda: so_far(kernels), who_waits())
    try:
        yield
    finally:
        stop()


def so_far(kernels: Collection[Any]) -> str:
    """How many of some kernels are there; others are compiled meanwhile, behind sessions that run."""
    return f"{sum(kernel.is_ready for kernel in kernels)} of {len(kernels)} so far"


_telling: list[threading.Event] = []
"""What ends those who tell; the last one goes on, as its caller is likely to wait."""


def tell_if_long(state: Callable[[], str], who: str) -> Callable[[], None]:
    """Warn of compiling for a model that takes longer than `LONG`, again and again; a way to stop that."""
    over = threading.Event()
    _telling.append(over)

    def tell() -> None:
        wait = LONG
        for number in itertools.count(1):
            if over.wait(wait):
                _telling.remove(over)
                return
            if number == 1:
                text = "%s: compiling kernels, for the first time on this machine: %s; they are kept in %s"
                logger().warning(text, who or "bolt-numba", state(), cache_root())
            elif _telling[-1] is over:
                logger().warning("%s: compiling kernels: %s", who or "bolt-numba", state())
            wait *= 1 if number < OFTEN else 2

    threading.Thread(target=tell, daemon=True).start()
    return over.set


def _cell(total: int) -> Callable[[str, int], None]:
    """A line in a notebook, written anew with each kernel."""
    display: Any = sys.modules["IPython"].display.display

    start, place = time.perf_counter(), display({"text/plain": WHAT}, raw=True, display_id=True)

    def show(name: str, count: int) -> None:
        text = f"{WHAT}: {count} of {total}, {time.perf_counter() - start:.0f} s {name}"
        place.update({"text/plain": text.rstrip()}, raw=True)

    return show
