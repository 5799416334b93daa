"""How far compiling is: a bar in terminals and notebooks; elsewhere one line, where it takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bolt_numba.base.files.kept import cache_root
from bolt_numba.kernels.compiles import has_listeners, logger, on_compile, who_waits

WHAT = "compiling kernels (once; they are kept)"
LONG = 2.0
"""Seconds of compiling after which a line says so where nobody sees a bar."""


def shown(total: int) -> AbstractContextManager[None]:
    """Show how many of so many kernels are compiled, where somebody sees it and nobody else shows it."""
    if has_listeners():
        return nullcontext()
    if _is_notebook():
        return _counted(_cell(total))
    return _bar(total) if sys.stderr is not None and sys.stderr.isatty() else _line(total)


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
def _line(total: int) -> Iterator[None]:
    """One warning, where it takes long: Python writes it to stderr, or the application to its log."""
    count = 0

    def so_far(name: str, done: int) -> None:
        nonlocal count
        count = done

    stop = tell_if_long(lambda: f"{count} of {total} so far", who_waits())
    try:
        with _counted(so_far):
            yield
    finally:
        stop()


def tell_if_long(state: Callable[[], str], who: str) -> Callable[[], None]:
    """Warn of compiling for a model that takes longer than `LONG`; a way to stop that."""

    def tell() -> None:
        text = "%s: compiling kernels, for the first time on this machine: %s; they are kept in %s"
        logger().warning(text, who or "bolt-numba", state(), cache_root())

    timer = threading.Timer(LONG, tell)
    timer.daemon = True
    timer.start()
    return timer.cancel


def _cell(total: int) -> Callable[[str, int], None]:
    """A line in a notebook, written anew with each kernel."""
    display: Any = sys.modules["IPython"].display.display

    start, place = time.perf_counter(), display({"text/plain": WHAT}, raw=True, display_id=True)

    def show(name: str, count: int) -> None:
        text = f"{WHAT}: {count} of {total}, {time.perf_counter() - start:.0f} s {name}"
        place.update({"text/plain": text.rstrip()}, raw=True)

    return show
