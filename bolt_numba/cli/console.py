"""What the commands write: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bolt_numba.base.types import size_name

ALIKE = 8
"""Rows that differ by a number alone, from which on they are one."""
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


_STEERING = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]|[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of a text."""


def write(text: str) -> None:
    """A line of text as it is, without markup."""
    text = plain(text)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def note(text: str) -> None:
    """A line beside the results, on standard error."""
    err.print(plain(text), markup=False)


def plain(text: str) -> str:
    """Text in which control characters are spelled: names in a model must not steer the terminal."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def _cell(content: object) -> str:
    return plain(str(content)).replace("\n", r"\n")


def write_json(data: Any) -> None:
    """For programs: one JSON document, without NaN or infinity (they become null)."""
    write(json.dumps(finite(data), indent=2, allow_nan=False, default=str))


def finite(data: Any) -> Any:
    """The same with null for NaN and infinity, which JSON has not."""
    if isinstance(data, dict):
        return {str(k): finite(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(v) for v in data]
    if isinstance(data, float) and (data != data or data in (float("inf"), float("-inf"))):
        return None
    return data


def folded(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows that begin with a name, where many that differ by one number in it, such as caches of layers, become one."""
    keys = [(re.sub(r"\d+", "", name, count=1), *rest) for name, *rest in rows]
    named: dict[tuple[str, ...], list[str]] = {}
    for key, row in zip(keys, rows, strict=True):
        named.setdefault(key, []).append(row[0])
    found = []
    for key, (name, *rest) in zip(keys, rows, strict=True):
        if len(alike := named[key]) < ALIKE:
            found.append((name, *rest))
        elif name == alike[0]:
            found.append((f"{name} to {alike[-1]}", *rest))
    return found


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """A table with every cell as plain text; columns named in ``right`` are aligned right.

    On a terminal long cells are folded to its width; elsewhere every row is one line.
    """
    if not out.is_terminal:
        write(_plain_table(title, columns, [[_cell(c) for c in row] for row in rows], right))
        return
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(cell).replace("[", r"\[") for cell in row))
    out.print(made)


def _plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(cells, widths, columns, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([*([title] if title else []), *map(line, [columns, *rows])])


def shape_text(shape: Sequence[object] | None) -> str:
    """``[n, 3]``; "?" for an unknown rank, "any" for a size whose name says nothing."""
    return "?" if shape is None else f"[{', '.join(map(size_name, shape))}]"


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Show what is going on, and every kernel that has to be compiled; gone when finished.

    The value is a function that says what is done now.
    """
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    with bar:
        task, doing = bar.add_task(first, total=None), first

        def say(text: str) -> None:
            nonlocal doing
            doing = text
            bar.update(task, description=text)

        def show(done: int, total: int) -> None:
            also = f"; kernels compiled, once for this machine: {done} of {total}" if done < total else ""
            bar.update(task, description=doing + also, completed=done, total=total)

        with _kernel_compiles(show):
            yield say


@contextmanager
def steps(first: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show how much of several pieces of work is done, and the time that is left of each.

    The value is a function of what is done now, how many steps of it are behind, and how many there are.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn())
    bar = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
    tasks: dict[str, Any] = {}
    with bar:
        bar.add_task(first, total=None)

        def say(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield say


@contextmanager
def _kernel_compiles(show: Callable[[int, int], None]) -> Iterator[None]:
    """Report how many kernels are compiled, of how many that are known to lack.

    Without a terminal, one line at the first of them and one at the end.
    """
    from bolt_numba.kernels import compiles

    begun, ended, before = 0, 0, compiles.expected()

    def heard(name: str, done: bool) -> None:
        nonlocal begun, ended
        begun, ended = begun + (not done), ended + done
        if begun == 1 and not done:
            compiles.be_silent()
            if not err.is_terminal:
                err.print("compiling kernels (once for this machine; they are kept) ...")
        show(ended, max(begun, compiles.expected() - before))

    stop = compiles.on_compile(heard)
    try:
        yield
    finally:
        stop()
        if ended and not err.is_terminal:
            err.print(f"compiled {counted(ended, 'kernel')}")


def counted(count: int, what: str) -> str:
    """How many of something there are: "1 kernel", "2 kernels"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def milliseconds(seconds: float | None) -> str:
    """Three digits that matter, in ms; "-" when not known."""
    return "-" if seconds is None else f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.1f}"


def size_text(count: int) -> str:
    """A number of bytes in the unit in which it is more than a tenth: "2.5 MiB", "30.2 KiB"."""
    return f"{mebibytes(count)} MiB" if count >= 2**20 / 10 else f"{count / 2**10:.1f} KiB"
