"""Products of warps on tensor cores (``mma``), and the loads and stores of their fragments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.instructions.arithmetic import from_bf16
from bolt_numba_simulator.ptx.instructions.table import opcode
from bolt_numba_simulator.ptx.instructions.warps import whole_warps
from bolt_numba_simulator.ptx.state.spaces import READ, WRITE, Access
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import DTYPES, F16, F32, I8, I32, U8, U16, U32, Lanes, RefusedError

ELEMENTS = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4, "b1": 32}
"""By type: elements in 32 bits."""
INTEGERS = ("s8", "u8", "b1")


def opened(words: Any, kind: str) -> Any:
    """32-bit words (...) -> their elements as f32 (..., elements)."""
    if kind == "f16":
        return words.view(F16).astype(F32).reshape(*words.shape, 2)
    if kind == "bf16":
        return from_bf16(words.view(U16)).reshape(*words.shape, 2)
    if kind == "tf32":
        return (words & np.uint32(0xFFFF_E000)).view(F32)[..., None]
    if kind in ("s8", "u8"):
        return words.view(I8 if kind == "s8" else U8).astype(F32).reshape(*words.shape, 4)
    return np.unpackbits(words.view(U8), bitorder="little").astype(F32).reshape(*words.shape, 32)


class _Fragment:
    """LaneRegisters of a matrix, opened once for all products that read them in a row."""

    def __init__(self, m: Any, names: list[str], open_up: Callable[[Any], Any]) -> None:
        self.sources, self.open_up = [m.read(name, U32) for name in names], open_up
        self.value: Any = None

    def load(self, idx: Lanes, lanes: int) -> Any:
        words = np.empty((len(self.sources), lanes), U32)
        for i, source in enumerate(self.sources):
            words[i] = source(idx)
        self.value = self.open_up(words)
        return self.value


def _fragment(m: Any, ins: Statement, names: list[str], side: str, kind: str) -> tuple[_Fragment, bool]:
    """A fragment, and whether this instruction is the first that reads it."""
    key = side, kind, tuple((name, m.versions.get(name, 0)) for name in names)
    open_up = _rows(kind, len(names)) if side == "a" else _columns(kind, len(names))
    if ins.guard is None and key in m.fragments:
        return m.fragments[key], False
    made = _Fragment(m, names, open_up)
    if ins.guard is None:
        m.fragments[key] = made
    return made, True


def _rows(kind: str, count: int) -> Callable[[Any], Any]:
    """LaneRegisters (count, lanes) -> (warps, 16, k)."""
    parts, e = count // 2, ELEMENTS[kind]

    def open_up(words: Any) -> Any:
        found = opened(words, kind).reshape(parts, 2, -1, 8, 4, e)
        return found.transpose(2, 1, 3, 0, 4, 5).reshape(-1, 16, parts * 4 * e)

    return open_up


def _columns(kind: str, count: int) -> Callable[[Any], Any]:
    """LaneRegisters (count, lanes) -> (warps, k, 8)."""
    e = ELEMENTS[kind]

    def open_up(words: Any) -> Any:
        found = opened(words, kind).reshape(count, -1, 8, 4, e)
        return found.transpose(1, 0, 3, 4, 2).reshape(-1, count * 4 * e, 8)

    return open_up


def result_dtype(kind: str) -> Any:
    return U32 if kind == "f16" else DTYPES[kind]


def sums(values: Any, kind: str) -> Any:
    """LaneRegisters of a result (count, lanes) -> (count, halves, lanes) in the dtype of the sum."""
    if kind == "f16":
        return values.view(F16).astype(F32).reshape(*values.shape, 2).transpose(0, 2, 1)
    return values[:, None]


def registers_of(values: Any, kind: str) -> Any:
    """The inverse of `sums`."""
    if kind == "f16":
        return np.ascontiguousarray(values.transpose(0, 2, 1).astype(F16)).view(U32)[..., 0]
    return values[:, 0]


def types_of(ins: Statement) -> tuple[str, str, list[str]]:
    """Shape, type of the result, types of the factors."""
    shape = next((name for name in ins.modifiers if re.fullmatch(r"m\d+n\d+k\d+", name)), "")
    kinds = ins.modifiers[ins.modifiers.index(shape) + 1 :] if shape else []
    kinds = [name for name in kinds if name in DTYPES or name == "b1"]
    if len(kinds) < 3 or any(kind not in ELEMENTS for kind in kinds[-3:-1] if ins.op == "mma"):
        raise RefusedError("not modelled")
    return shape, kinds[0], kinds[1:3]


@opcode("mma")
def mma(m: Any, ins: Statement) -> Any:
    if any(name.startswith("sp") for name in ins.modifiers) or "kind" in " ".join(ins.modifiers):
        raise RefusedError("not modelled")
    shape, kind, (left, right) = types_of(ins)
    if not shape.startswith("m16n8") or kind not in ("f16", "f32", "s32"):
        raise RefusedError("not modelled")
    names_d, names_a, names_b, names_c = (m.vector(arg) for arg in ins.args[:4])
    if len(names_a) * 2 * ELEMENTS[left] != int(shape.split("k")[1]):
        raise RefusedError("not modelled")
    a, first_a = _fragment(m, ins, names_a, "a", left)
    b, first_b = _fragment(m, ins, names_b, "b", right)
    dtype = result_dtype(kind)
    addends, targets = [m.read(name, dtype) for name in names_c], [m.target(name, dtype) for name in names_d]
    xor = "xor" in ins.modifiers

    def act(idx: Lanes) -> None:
        lanes = whole_warps(m, idx, ins).size
        x = a.load(idx, lanes) if first_a else a.value
        y = b.load(idx, lanes) if first_b else b.value
        product = np.matmul(x, y)
        if xor:
            product = x.sum(2)[:, :, None] + y.sum(1)[:, None, :] - 2 * product
        # (warps, rows 2 x 8, columns 4 x 2) -> (registers: rows 2 x columns 2, lanes: warps x 8 x 4)
        product = product.reshape(-1, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3).reshape(4, lanes)
        if kind == "f32":
            for i, target in enumerate(targets):
                target[idx] = product[i] + addends[i](idx)
            return
        old = np.empty((len(targets), lanes), dtype)
        for i, addend in enumerate(addends):
            old[i] = addend(idx)
        if kind == "f16":
            pairs = product.reshape(2, 2, lanes) + sums(old, kind)
        else:
            pairs = product.astype(I32)[:, None] + old[:, None]
        for target, values in zip(targets, registers_of(pairs, kind), strict=True):
            target[idx] = values

    return m.indexed(act)


def _shape_of_matrices(ins: Statement, count: int) -> None:
    if "m8n8" not in ins.modifiers or "b16" not in ins.modifiers or f"x{count}" not in ins.modifiers:
        raise RefusedError("not modelled")


@opcode("ldmatrix")
def ldmatrix(m: Any, ins: Statement) -> Any:
    """Matrices of 8 x 8 halves: eight lanes give the addresses of each one's rows."""
    names = m.vector(ins.args[0])
    count, trans = len(names), "trans" in ins.modifiers
    _shape_of_matrices(ins, count)
    targets, address = [m.target(name, U32) for name in names], m.address(ins.args[1])
    access = Access(m, "shared", 16, READ, ins)

    def act(idx: Lanes) -> None:
        lanes = whole_warps(m, idx, ins)
        giving = lanes.reshape(-1, 32)[:, : 8 * count].reshape(-1)
        memory, places = access(address(giving), giving)
        found = memory.view(U32).reshape(-1, 4)[places // 16].reshape(-1, count, 8, 4)
        if trans:
            halves = found.view(U16).reshape(-1, count, 8, 8).transpose(0, 1, 3, 2)
            found = np.ascontiguousarray(halves).view(U32)
        found = found.reshape(-1, count, 32)
        for i, target in enumerate(targets):
            target[idx] = found[:, i].reshape(-1)

    return m.indexed(act)


@opcode("stmatrix")
def stmatrix(m: Any, ins: Statement) -> Any:
    names = m.vector(ins.args[1])
    count, trans = len(names), "trans" in ins.modifiers
    _shape_of_matrices(ins, count)
    sources, address = [m.read(name, U32) for name in names], m.address(ins.args[0])
    access = Access(m, "shared", 16, WRITE, ins)

    def act(idx: Lanes) -> None:
        lanes = whole_warps(m, idx, ins)
        giving = lanes.reshape(-1, 32)[:, : 8 * count].reshape(-1)
        memory, places = access(address(giving), giving)
        made = np.empty((count, lanes.size), U32)
        for i, source in enumerate(sources):
            made[i] = source(idx)
        rows = made.reshape(count, -1, 8, 4).transpose(1, 0, 2, 3)
        if trans:
            halves = np.ascontiguousarray(rows).view(U16).reshape(-1, count, 8, 8).transpose(0, 1, 3, 2)
            rows = np.ascontiguousarray(halves).view(U32)
        memory.view(U32).reshape(-1, 4)[places // 16] = rows.reshape(-1, 4)

    return m.indexed(act)


@opcode("movmatrix")
def movmatrix(m: Any, ins: Statement) -> Any:
    """One 8 x 8 matrix of halves, transposed between the registers of a warp."""
    target, source = m.target(ins.args[0], U32), m.read(ins.args[1], U32)

    def act(idx: Lanes) -> None:
        whole_warps(m, idx, ins)
        halves = np.ascontiguousarray(source(idx)).view(U16).reshape(-1, 8, 8).transpose(0, 2, 1)
        target[idx] = np.ascontiguousarray(halves).view(U32).reshape(-1)

    return m.indexed(act)
