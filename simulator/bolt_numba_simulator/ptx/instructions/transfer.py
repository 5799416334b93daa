"""Loads, stores, and atomic operations on memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.instructions.arithmetic import from_bf16, to_bf16
from bolt_numba_simulator.ptx.instructions.table import opcode
from bolt_numba_simulator.ptx.state.spaces import ATOM, READ, WRITE, Access
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import F16, F32, F64, U32, Lanes, RefusedError, dtype_of

_SPACES = {"global": "global", "const": "global", "shared": "shared", "local": "local", "param": "param"}


def space_of(ins: Statement) -> str:
    """Kind of memory that an instruction names."""
    return next((_SPACES[name.split("::")[0]] for name in ins.modifiers if name.split("::")[0] in _SPACES), "generic")


@opcode("ld", "ldu")
def ld(m: Any, ins: Statement) -> Any:
    dtype, space = dtype_of(ins.modifiers), space_of(ins)
    names = m.vector(ins.args[0])
    targets = [m.target(name, dtype) for name in names]
    if space == "param":
        return _parameters(m, ins, dtype, targets, ins.args[1], stores=False)
    address, count = m.address(ins.args[1]), len(names)
    access = Access(m, space, dtype.itemsize * count, READ, ins)

    def one(idx: Lanes) -> None:
        memory, places = access(address(idx), idx)
        targets[0][idx] = memory.view(dtype)[places // dtype.itemsize]

    def several(idx: Lanes) -> None:
        memory, places = access(address(idx), idx)
        found = memory.view(dtype).reshape(-1, count)[places // (dtype.itemsize * count)]
        for i, target in enumerate(targets):
            target[idx] = found[:, i]

    return m.indexed(one if count == 1 else several)


@opcode("st")
def st(m: Any, ins: Statement) -> Any:
    dtype, space = dtype_of(ins.modifiers), space_of(ins)
    names = m.vector(ins.args[1])
    sources = [m.read(name, dtype) for name in names]
    if space == "param":
        return _parameters(m, ins, dtype, [m.source(name, dtype) for name in names], ins.args[0], stores=True)
    address, count = m.address(ins.args[0]), len(names)
    access = Access(m, space, dtype.itemsize * count, WRITE, ins)

    def one(idx: Lanes) -> None:
        memory, places = access(address(idx), idx)
        memory.view(dtype)[places // dtype.itemsize] = sources[0](idx)

    def several(idx: Lanes) -> None:
        memory, places = access(address(idx), idx)
        made = np.empty((places.size, count), dtype)
        for i, source in enumerate(sources):
            made[:, i] = source(idx)
        memory.view(dtype).reshape(-1, count)[places // (dtype.itemsize * count)] = made

    return m.indexed(one if count == 1 else several)


def _parameters(m: Any, ins: Statement, dtype: Any, values: list[Any], where: str, stores: bool) -> Any:
    """Of the kernel: bytes that the launch gives.  Of a call: places that both sides name alike."""
    found = re.fullmatch(r"\[\s*([^+\]\s]+)\s*(?:\+\s*(\d+))?\s*\]", where)
    if found is None:
        raise RefusedError(f"address {where}")
    name, offset = found[1], int(found[2] or 0)
    calls = []
    for i, value in enumerate(values):
        at = offset + i * dtype.itemsize
        if name in m.program.param_offsets:
            start = m.program.param_offsets[name] + at
            calls.append(m.copy(value, m.params[start : start + dtype.itemsize].view(dtype)))
            continue
        key = f"{name}+{at}:{dtype.itemsize}"
        place = m.registers.arrays.setdefault(key, np.zeros(m.n, f"u{dtype.itemsize}")).view(dtype)
        calls.append(m.copy(place, value) if stores else m.copy(value, place))
    if len(calls) == 1:
        return calls[0]
    return (lambda: [call() for call, _ in calls]), (lambda: [call() for _, call in calls])


def _apply(op: str, old: Any, x: Any, y: Any, dtype: Any) -> Any:
    """What an atomic operation leaves of one value."""
    if op == "cas":
        return y if old == x else old
    if op == "inc":
        return dtype.type(0) if old >= x else old + dtype.type(1)
    if op == "dec":
        return x if old == 0 or old > x else old - dtype.type(1)
    table: dict[str, Callable[[Any, Any], Any]] = {
        "add": np.add, "min": np.fmin, "max": np.fmax,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "exch": lambda old, x: x,
    }  # fmt: skip
    return table[op](old, x)


_AT: dict[str, np.ufunc] = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_OPS = {*_AT, "exch", "cas", "inc", "dec"}


@opcode("atom", "red")
def atom(m: Any, ins: Statement) -> Any:
    """One lane after another, in the order of lanes."""
    op = next((name for name in ins.modifiers if name in _OPS), "")
    kind = ins.modifiers[-1] if ins.modifiers[-1] != "noftz" else ins.modifiers[-2]
    if not op or "async" in ins.modifiers or any(re.fullmatch(r"v\d", name) for name in ins.modifiers):
        raise RefusedError("not modelled")
    args = ins.args if ins.op == "atom" else ["_", *ins.args]
    dtype = dtype_of([kind])
    address, x = m.address(args[1]), m.read(args[2], dtype)
    y = m.read(args[3], dtype) if op == "cas" else None
    target = m.target(args[0], dtype) if args[0] != "_" else None
    access = Access(m, space_of(ins), dtype.itemsize, ATOM, ins)
    opened, closed = _PAIRS.get(kind, (None, None))

    def apply(memory: Any, at: Any, values: Any, second: Any) -> Any:
        old = np.empty(at.shape, dtype)
        for i in range(at.size):
            now = memory[at[i]]
            old[i] = now
            if opened is not None and op not in ("exch", "cas"):
                memory[at[i]] = closed(_apply(op, opened(now), opened(values[i]), None, F32))
            else:
                memory[at[i]] = _apply(op, now, values[i], None if second is None else second[i], dtype)
        return old

    def act(idx: Lanes) -> None:
        memory, places = access(address(idx), idx)
        memory, at = memory.view(dtype), places // dtype.itemsize
        values = np.broadcast_to(x(idx), at.shape)
        if op in _AT and opened is None and dtype.kind in "iu" and target is None:
            _AT[op].at(memory, at, values)
            return
        second = None if y is None else np.broadcast_to(y(idx), at.shape)
        if np.unique(at).size == at.size and op in _AT and opened is None:
            old = memory[at]
            memory[at] = _AT[op](old, values)
        else:
            old = apply(memory, at, values, second)
        if target is not None:
            target[idx] = old

    return m.indexed(act)


def _two(values: Any, opened: Callable[[Any], Any]) -> Any:
    return opened(np.atleast_1d(np.asarray(values, U32)).view(np.uint16))


_PAIRS: dict[str, tuple[Any, Any]] = {
    "f16x2": (lambda x: _two(x, lambda h: h.view(F16).astype(F32)), lambda x: x.astype(F16).view(U32)[0]),
    "bf16x2": (lambda x: _two(x, from_bf16), lambda x: to_bf16(x).view(U32)[0]),
    "bf16": (lambda x: from_bf16(x)[0], lambda x: to_bf16(x)[0]),
    "f16": (lambda x: F32.type(x), lambda x: F16.type(x)),
    "f64": (lambda x: F64.type(x), lambda x: F64.type(x)),
}
"""How atomic operations open and close what is not added as it is stored."""


@opcode(
    "membar",
    "fence",
    "prefetch",
    "prefetchu",
    "setmaxnreg",
    "griddepcontrol",
    "nanosleep",
    "pmevent",
    "discard",
    "applypriority",
)
def nothing(m: Any, ins: Statement) -> Any:
    """Hints, and orders that hold here anyway."""
    return m.indexed(lambda idx: None)
