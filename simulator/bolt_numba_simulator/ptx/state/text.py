"""Reads PTX text: kernels, device functions, their instructions, and variables of the module."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from typing import Any

from bolt_numba.base.records import record
from bolt_numba_simulator.ptx.state.types import DTYPES, RefusedError

NAME = r"[A-Za-z_$%][\w$]*"
_SPECIAL = re.compile(r"[{};]")
_VARIABLE = re.compile(
    r"\.(shared|const|global|local|param)\s+(?:\.align\s+(\d+)\s+)?(?:\.v\d\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?"
    rf"({NAME})((?:\[\d*\])*)(?:\s*=\s*(\{{[^}}]*\}}|[\w.+-]+))?"
)
_SIZES = {**{name: dtype.itemsize for name, dtype in DTYPES.items()}, "pred": 1}


@record(eq=False)
class Statement:
    """One statement: ``@guard op.modifiers args``; ``line`` counts from 1 in the text."""

    op: str
    modifiers: list[str]
    args: list[str]
    guard: str | None
    negated: bool
    text: str
    line: int


@record(eq=False)
class MemoryVariable:
    """Memory with a name; ``nbytes`` is None where the launch gives the size.  data: its first bytes, if given."""

    space: str
    nbytes: int | None
    align: int
    data: bytes | None


@record(eq=False)
class Routine:
    """A kernel or a device function.  labels: number of an instruction.  tables: labels that a jump chooses of."""

    name: str
    params: dict[str, MemoryVariable]
    results: list[str]
    code: list[Statement]
    labels: dict[str, int]
    registers: dict[str, str]
    locals: dict[str, MemoryVariable]
    tables: dict[str, list[str]]


def without_comments(text: str) -> str:
    """The same lines without comments and debugging directives."""
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^[ \t]*\.(?:loc|file|pragma)\b[^\n]*$", "", text, flags=re.M)
    return re.sub(r"\.section\s+\S+\s*\{.*?\}", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)


def variables(text: str) -> dict[str, MemoryVariable]:
    """Declarations of memory in order."""
    found = {}
    for space, align, kind, name, dims, given in _VARIABLE.findall(text):
        if kind not in _SIZES:
            raise RefusedError(f"variable {name} of type .{kind}")
        size = _SIZES[kind]
        count: int | None = 1
        for dim in re.findall(r"\[(\d*)\]", dims):
            count = int(dim) * count if dim and count is not None else None
        data = _data(given, size) if given else None
        found[name] = MemoryVariable(space, None if count is None else count * size, int(align or size), data)
    return found


def _data(given: str, size: int) -> bytes:
    numbers = [number.strip() for number in given.strip("{} \n").split(",")]
    made = b""
    for number in numbers:
        bits = int(number[2:], 16) if number[:2].lower() in ("0f", "0d") else int(number, 0)
        made += (bits & (256**size - 1)).to_bytes(size, "little")
    return made


def split(text: str) -> list[str]:
    """LaneOperands at commas outside of brackets."""
    found, depth, start = [], 0, 0
    for match in re.finditer(r"[{}\[\](),]", text):
        sign = match[0]
        if sign in "{[(":
            depth += 1
        elif sign in "}])":
            depth -= 1
        elif depth == 0:
            found.append(text[start : match.start()].strip())
            start = match.end()
    last = text[start:].strip()
    return [*found, last] if last else found


def _statements(body: str) -> Iterator[tuple[str, int]]:
    """Statements, and braces that open and close scopes, with their places in the text."""
    start = depth = 0
    for match in _SPECIAL.finditer(body):
        sign, before = match[0], body[start : match.start()]
        if depth == 0 and sign == "{" and (not before.strip() or before.rstrip().endswith(":")):
            yield before, start
            yield "{", match.start()
        elif depth == 0 and sign == "}":
            yield before, start
            yield "}", match.start()
        elif sign == ";" and depth == 0:
            yield before, start
        else:
            depth += {"{": 1, "}": -1, ";": 0}[sign]
            continue
        start = match.end()


class _StatementReader:
    """Makes instructions of statements; names of an inner scope are made unlike all others."""

    def __init__(self, name: str, params: dict[str, MemoryVariable], results: list[str]) -> None:
        self.made = Routine(name, params, results, [], {}, {}, {}, {})
        self.scopes: list[dict[str, str]] = [{}]
        self.count = 0

    def read(self, statements: list[tuple[str, int]]) -> None:
        for at, (text, line) in enumerate(statements):
            text = text.strip()
            if text == "{":
                self.count += 1
                self.scopes.append(
                    {name: f"{name}@{self.count}" for name in self._labels_of_scope(statements[at + 1 :])}
                )
            elif text == "}":
                self.scopes.pop()
            else:
                self._statement(text, line)

    @staticmethod
    def _labels_of_scope(statements: list[tuple[str, int]]) -> list[str]:
        depth, names = 1, []
        for text, _ in statements:
            depth += {"{": 1, "}": -1}.get(text, 0)
            if depth == 0:
                break
            if depth == 1:
                names += re.findall(r"(?:^|\s)([A-Za-z_$][\w$]*)\s*:(?!:)", text)
        return names

    def _renamed(self, text: str) -> str:
        if len(self.scopes) == 1:
            return text

        def new(match: re.Match[str]) -> str:
            return next((names[match[0]] for names in reversed(self.scopes) if match[0] in names), match[0])

        return re.sub(NAME, new, text)

    def _statement(self, text: str, line: int) -> None:
        while label := re.match(rf"({NAME})\s*:(?!:)\s*", text):
            self.made.labels[self._renamed(label[1])] = len(self.made.code)
            text = text[label.end() :]
            if text.startswith(".branchtargets"):
                self.made.tables[self._renamed(label[1])] = split(text.removeprefix(".branchtargets"))
                return
        if not text:
            return
        if text.startswith(".reg"):
            self._registers(text)
        elif text.startswith((".local", ".param", ".shared")):
            self.made.locals |= variables(text)
        elif text.startswith("."):
            return
        else:
            self._instruction(self._renamed(text), line)

    def _registers(self, text: str) -> None:
        found = re.match(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)", text, re.S)
        for name in found[2].split(",") if found else ():
            many = re.fullmatch(r"(%?[\w$]+)<(\d+)>", name.strip())
            kind = found[1] if found else ""
            if many:
                self.made.registers |= {f"{many[1]}{i}": kind for i in range(int(many[2]))}
                continue
            name = name.strip()
            new = name if len(self.scopes) == 1 else f"{name}@{self.count}"
            self.scopes[-1][name] = new
            self.made.registers[new] = kind

    def _instruction(self, text: str, line: int) -> None:
        guard = re.match(r"@(!?)([%\w@$]+)\s+", text)
        rest = text[guard.end() :] if guard else text
        found = re.match(r"([\w.:]+)\s*(.*)", rest, re.S)
        if found is None:
            raise RefusedError(f"line {line}: {text}")
        op, *modifiers = found[1].split(".")
        shown = " ".join(text.split())
        self.made.code.append(
            Statement(
                op, modifiers, split(found[2]), guard[2] if guard else None, bool(guard and guard[1]), shown, line
            )
        )


class PtxSource:
    """A file of PTX.  kernels, functions: by name.  variables: of the module, in order."""

    def __init__(self, ptx: str) -> None:
        text = without_comments(ptx)
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.kernels: dict[str, Routine] = {}
        self.functions: dict[str, Routine] = {}
        outside, end = [], 0
        header = re.compile(rf"\.(entry|func)\s+(\([^)]*\)\s*)?({NAME})\s*(?:\(([^)]*)\))?([^{{;]*)([{{;])")
        for found in header.finditer(text):
            if found.start() < end:
                continue
            outside.append(text[end : found.start()])
            end = found.end()
            if found[6] == "{":
                close = self._close(text, end)
                self._routine(found, text[end:close], end)
                end = close + 1
        outside.append(text[end:])
        self.variables = variables(" ".join(outside))

    @staticmethod
    def _close(text: str, start: int) -> int:
        depth = 1
        for match in re.compile(r"[{}]").finditer(text, start):
            depth += 1 if match[0] == "{" else -1
            if depth == 0:
                return match.start()
        raise RefusedError("a body that does not end")

    def _routine(self, header: re.Match[str], body: str, start: int) -> None:
        results = list(variables(header[2] or ""))
        reader = _StatementReader(header[3], variables(header[4] or ""), results)
        for name in re.findall(rf"\.reg\s+\.\w+\s+{NAME}", (header[2] or "") + (header[4] or "")):
            raise RefusedError(f"function {header[3]}: parameters in registers ({name})")
        statements = []
        for text, at in _statements(body):
            skipped = len(text) - len(text.lstrip())
            statements.append((text, bisect.bisect_right(self.lines, start + at + skipped)))
        reader.read(statements)
        (self.kernels if header[1] == "entry" else self.functions)[header[3]] = reader.made


def inlined(source: PtxSource, kernel: Routine) -> Routine:
    """The kernel with the bodies of the functions that it calls; parameters of a call are places by name and offset."""
    made = kernel
    for turn in range(100):
        at = next((i for i, ins in enumerate(made.code) if ins.op == "call"), None)
        if at is None:
            return made
        made = _inlined_once(source, made, at, turn)
    raise RefusedError("functions that call themselves")


def _inlined_once(source: PtxSource, made: Routine, at: int, turn: int) -> Routine:
    call = made.code[at]
    args = list(call.args)
    results = split(args.pop(0)[1:-1]) if args[0].startswith("(") else []
    function = source.functions.get(args[0])
    if function is None:
        raise RefusedError(f"line {call.line}: call of {args[0]}, which has no body")
    given = split(args[1][1:-1]) if len(args) > 1 else []
    new = {name: f"{name}~{turn}" for name in (*function.registers, *function.labels, *function.locals)}
    new |= dict(zip(function.results, results, strict=True)) | dict(zip(function.params, given, strict=True))
    end = f"end~{turn}"

    def renamed(text: str) -> str:
        return re.sub(rf"{NAME}(?:@\d+)?", lambda match: new.get(match[0], match[0]), text)

    body = []
    for ins in function.code:
        leaves = ins.op == "ret"
        op, args = ("bra", [end]) if leaves else (ins.op, [renamed(arg) for arg in ins.args])
        guard = renamed(ins.guard) if ins.guard else None
        body.append(Statement(op, [] if leaves else ins.modifiers, args, guard, ins.negated, ins.text, ins.line))
    grown = len(body) - 1
    labels = {name: i + grown * (i > at) for name, i in made.labels.items()}
    labels |= {new[name]: at + i for name, i in function.labels.items()} | {end: at + len(body)}
    registers = made.registers | {new[name]: kind for name, kind in function.registers.items()}
    depots: dict[str, Any] = made.locals | {new[name]: variable for name, variable in function.locals.items()}
    tables = made.tables | {new.get(name, name): [new[x] for x in to] for name, to in function.tables.items()}
    code = [*made.code[:at], *body, *made.code[at + 1 :]]
    return Routine(made.name, made.params, made.results, code, labels, registers, depots, tables)
