"""What is wrong with the code of a kernel, said in one line that begins with the file and line to edit.

`kernels.compiler` asks here before it compiles and when Numba refuses; nothing of Numba is imported.
"""

from __future__ import annotations

import builtins
import dis
import linecache
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from traceback import walk_tb
from types import CodeType
from typing import Any

from bolt_numba.base.errors import KernelError
from bolt_numba.kernels.declare import WORDS

_PLACE = re.compile(r"\bat (\S+) \((\d+)\)")
_TOLD = re.compile(r"kernel code: (.*)")
_CALL = re.compile(r"^ *>>> (.*)", re.MULTILINE)
_REASON = re.compile(r"raised a specific error:\n\s*\w+: (.*)")
_HEADS = ("Failed in ", "During: ")


Language = tuple[Collection[str], str]
"""Words, and the module that has them."""
_CPU: Language = (WORDS, "bolt_numba.kernels.cpu.language.lang")


def check_names(
    function: Callable[..., Any], who: str, fields: Collection[str] | None = None, language: Language = _CPU
) -> None:
    """Raise KernelError for the first name that nothing defines, or that is no field of the parameter record.

    So for the first statement that raises.

    fields: of the record that is the first parameter; None for a helper.
    """
    words, home = language
    code = function.__code__
    known = {*function.__globals__, *vars(builtins)}
    record = code.co_varnames[0] if fields is not None and code.co_argcount else None
    for each in _codes(code):
        line, before = each.co_firstlineno, None
        for instruction in dis.get_instructions(each):
            line = (instruction.positions and instruction.positions.lineno) or line
            name, operation = instruction.argval, instruction.opname
            if operation == "RAISE_VARARGS":  # Numba would compile it, and nobody would see the exception
                where = f"{place(code.co_filename, line)}: {who}"
                raise KernelError(f"{where}: got a raise or an assert, wanted none: exceptions do not leave kernels")
            if operation in ("LOAD_GLOBAL", "LOAD_NAME") and name not in known:
                wanted = "one that the file defines or imports"
                if name in words:
                    wanted += f": it is a word, import it from {home}"
                _refuse(code, line, who, "name", name, () if name in words else known | {*words}, wanted)
            if record is not None and operation == "LOAD_ATTR" and before == record and name not in (fields or ()):
                _refuse(code, line, who, f"field of '{record}'", name, fields or (), "one that @native declares")
            loads = operation.startswith("LOAD_FAST")
            before = (name[-1] if isinstance(name, tuple) else name) if loads else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _refuse(code: CodeType, line: int, who: str, what: str, name: str, known: Collection[str], wanted: str) -> None:
    if near := get_close_matches(name, sorted(known), 1):
        wanted += f", perhaps '{near[0]}'"
    raise KernelError(f"{place(code.co_filename, line)}: {who}: {what}: got '{name}', wanted {wanted}")


def place(filename: str, line: int) -> str:
    """``file:line`` as an editor opens it: below the working folder where it is there, without links."""
    file = Path(filename)
    with suppress(OSError):  # the file may be text that was generated, and the working folder may be gone
        file, here = file.resolve(strict=True), Path.cwd().resolve()
        file = file.relative_to(here) if file.is_relative_to(here) else file
    return f"{file}:{line}"


def told(error: Exception, function: Callable[..., Any], who: str) -> str:
    """What Numba refuses in a function: its place, its statement, and the line of Numba's text that says why.

    What was said already of a helper that the function calls is said again as it is.
    """
    text = str(error)
    if inner := _TOLD.search(text):
        return inner[1]
    code = function.__code__
    line = _line(error, text, code)
    statement = linecache.getline(code.co_filename, line).strip()
    return f"{place(code.co_filename, line)}: {who}: cannot be compiled: got `{statement}`: {_said(error, text)}"


def _line(error: Exception, text: str, code: CodeType) -> int:
    """The line of the function that Numba names last: its own library has lines, too."""
    lines = [line for each in _codes(code) for _, _, line in each.co_lines() if line is not None]
    found = [int(line) for file, line in _PLACE.findall(text) if file == code.co_filename]
    # Where a word refuses its arguments in Python, Numba tells no place; it is in what it was looking at.
    looked_at = [frame.f_locals.get("constraint") for frame, _ in walk_tb(error.__traceback__)]
    places = [loc for x in (*looked_at, error) if (loc := getattr(x, "loc", None)) is not None]
    found += [loc.line for loc in places if loc.filename == code.co_filename]
    return next((x for x in reversed(found) if min(lines) <= x <= max(lines)), code.co_firstlineno)


def _said(error: Exception, text: str) -> str:
    if reasons := _REASON.findall(text):
        return str(reasons[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_HEADS)]
    if lines and lines[0].startswith("No implementation of") and (calls := _CALL.findall(text)):
        return f"no implementation of {calls[-1]}"
    return lines[0] if lines else type(error).__name__


def repeated(text: str) -> str:
    """A line of `told`, marked so that it is found again in what Numba makes of it."""
    return f"kernel code: {text}"
