"""``wgmma``: products of four warps with matrices in shared memory, which descriptors name.

The result stands in its registers at once.  The reads of shared memory end when the group is waited for, so that a
stage that is overwritten too early shows as a race.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.instructions.arithmetic import from_bf16
from bolt_numba_simulator.ptx.instructions.table import opcode
from bolt_numba_simulator.ptx.instructions.tensor import (
    ELEMENTS,
    INTEGERS,
    _rows,
    registers_of,
    result_dtype,
    sums,
    types_of,
)
from bolt_numba_simulator.ptx.instructions.warps import whole_warps
from bolt_numba_simulator.ptx.state.order import PENDING
from bolt_numba_simulator.ptx.state.spaces import READ, fault
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import BOOL, F16, F32, I8, I32, U8, U16, U32, U64, Lanes, RefusedError

GROUP = 128
"""Threads of a warp group."""


class _Matrix:
    """One factor in shared memory: ``rows`` along M or N, 32 bytes along K; or, transposed, K rows of M or N."""

    def __init__(self, m: Any, ins: Statement, rows: int, kind: str, transposed: bool) -> None:
        self.m, self.ins, self.rows, self.kind, self.transposed = m, ins, rows, kind, transposed
        self.k = 8 * ELEMENTS[kind]

    def places(self, descriptor: int) -> Any:
        """Addresses of elements (rows, bytes of K), or of halves (K, rows) where transposed."""
        start, leading, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
        mode = descriptor >> 62
        width = (16, 128, 64, 32)[mode]
        if self.transposed:
            k, along = np.arange(self.k)[:, None], np.arange(self.rows) * 2
            blocks, inner = along // width, along % width
            if mode == 0:
                found = start + blocks * stride + k // 8 * leading + k % 8 * 16 + inner
            else:
                found = start + blocks * leading + k // 8 * stride + k % 8 * width + inner
        else:
            r, byte = np.arange(self.rows)[:, None], np.arange(32)
            if mode == 0:
                found = start + r // 8 * stride + byte // 16 * leading + r % 8 * 16 + byte % 16
            else:
                found = start + r // 8 * stride + r % 8 * width + byte
        return found ^ ((found >> 7) & (width // 16 - 1)) << 4 if mode else found

    def load(self, descriptor: int, lane: int) -> tuple[Any, Any]:
        """(rows, K) as f32, and the offsets that were read."""
        m, places = self.m, self.places(descriptor)
        size = 2 if self.transposed else 4
        flat = places.reshape(-1) if self.transposed else places[:, ::4].reshape(-1)
        lanes = np.full(flat.shape, lane)
        offsets = m.shared.offsets(flat, lanes, size, self.ins)
        report, m.report = m.report, None
        m.shared.check(READ, offsets, lanes, size, self.ins)
        m.report = report
        if self.transposed:
            return _opened(m.shared.bytes.view(U16)[offsets // 2], self.kind).reshape(places.shape).T, offsets
        return _opened(m.shared.bytes.view(U32)[offsets // 4], self.kind).reshape(self.rows, -1), offsets


def _opened(words: Any, kind: str) -> Any:
    if kind == "f16":
        return words.view(F16).astype(F32)
    if kind == "bf16":
        return from_bf16(words.view(U16))
    if kind == "tf32":
        return (words & np.uint32(0xFFFF_E000)).view(F32)
    if kind == "b1":
        return np.unpackbits(words.view(U8), bitorder="little").astype(F32)
    return words.view(I8 if kind == "s8" else U8).astype(F32)


@opcode("wgmma")
def wgmma(m: Any, ins: Statement) -> Any:
    how = ins.modifiers[0]
    if how == "fence":
        return m.indexed(lambda idx: None)
    if how == "commit_group":
        return m.indexed(lambda idx: _commit(m, idx, ins))
    if how == "wait_group":
        left = int(ins.args[0], 0)
        return m.indexed(lambda idx: _finish(m, idx, ins, left))
    if how != "mma_async" or "sp" in ins.modifiers:
        raise RefusedError("not modelled")
    shape, kind, (left_kind, right_kind) = types_of(ins)
    if left_kind not in ELEMENTS or right_kind not in ELEMENTS:
        raise RefusedError("not modelled")
    columns = int(shape.split("n")[1].split("k")[0])
    flags = [int(arg) for arg in ins.args[4:]]
    signs, turned = (flags[:2] or [1, 1]), (flags[2:] or [0, 0])
    in_registers = ins.args[1].startswith("{")
    if in_registers:
        turned = [0, *turned[-1:]]
    return _product(m, ins, columns, kind, (left_kind, right_kind), signs, turned)


def _product(m: Any, ins: Statement, columns: int, kind: str, kinds: tuple[str, str], signs: Any, turned: Any) -> Any:
    names, dtype = m.vector(ins.args[0]), result_dtype(kind)
    targets, olds = [m.target(name, dtype) for name in names], [m.read(name, dtype) for name in names]
    right = _Matrix(m, ins, columns, kinds[1], bool(turned[1]))
    left = _Matrix(m, ins, 64, kinds[0], bool(turned[0]))
    words = [m.read(name, U32) for name in m.vector(ins.args[1])] if ins.args[1].startswith("{") else None
    left_at = None if words else m.read(ins.args[1], U64)
    right_at, keep = m.read(ins.args[2], U64), m.read(ins.args[3], BOOL)
    open_rows = _rows(kinds[0], len(words)) if words else None
    sign, total = signs[0] * signs[1], I32 if kinds[0] in INTEGERS else F32

    def group(lanes: Any) -> None:
        lane, reads = int(lanes[0]), []
        if words is not None and open_rows is not None:
            x = open_rows(np.stack([np.ascontiguousarray(word(lanes)) for word in words])).reshape(64, -1)
        else:
            x, offsets = left.load(_one(m, ins, left_at, lanes), lane)
            reads.append(offsets)
        y, offsets = right.load(_one(m, ins, right_at, lanes), lane)
        reads.append(offsets)
        # rows: 4 warps x 2 x 8; columns: n / 8 x 4 x 2; registers: n / 8 x 2 rows x 2 columns; lanes: 4 warps x 8 x 4
        made = sign * np.matmul(x, y.T).reshape(4, 2, 8, -1, 4, 2).transpose(3, 1, 5, 0, 2, 4).reshape(-1, GROUP)
        made = made.astype(total).reshape(-1, 2, GROUP) if kind == "f16" else made.astype(total)[:, None]
        if np.broadcast_to(keep(lanes), (GROUP,))[0]:
            made = made + sums(np.stack([old(lanes) for old in olds]), kind)
        for target, values in zip(targets, registers_of(made, kind), strict=True):
            target[lanes] = values
        _pending(m, lanes, reads)

    def act(idx: Lanes) -> None:
        lanes = whole_warps(m, idx, ins)
        if lanes.size % GROUP or (m.linear[lanes[::GROUP]] % GROUP).any():
            raise fault(ins, "a product of a warp group by some of its threads", int(lanes[0]))
        for start in range(0, lanes.size, GROUP):
            group(lanes[start : start + GROUP])

    return m.indexed(act)


def _one(m: Any, ins: Statement, read: Any, lanes: Any) -> int:
    found = np.broadcast_to(read(lanes), lanes.shape)
    if (found != found[0]).any():
        raise fault(
            ins,
            "descriptors that differ between threads of a warp group",
            int(lanes[np.flatnonzero(found != found[0])[0]]),
        )
    return int(found[0])


def _pending(m: Any, lanes: Any, reads: list[Any]) -> None:
    """Reads that have not ended: no one may overwrite them."""
    order = m.shared.races
    if order is None:
        return
    lane = int(lanes[0])
    for offsets in reads:
        words = np.unique(offsets >> order.shift)
        order.last_read[words] = order.read_time[words * order.warps + int(m.warp[lane])] = PENDING
        m.products.setdefault(lane, [[]])[-1].append(words)


def _leaders(m: Any, idx: Lanes, ins: Statement) -> list[int]:
    """First lane of each warp group."""
    lanes = whole_warps(m, idx, ins)
    found: list[int] = lanes[m.linear[lanes] % GROUP == 0].tolist()
    return found


def _commit(m: Any, idx: Lanes, ins: Statement) -> None:
    for lane in _leaders(m, idx, ins):
        m.products.setdefault(lane, [[]]).append([])


def _finish(m: Any, idx: Lanes, ins: Statement, left: int) -> None:
    """All groups of products but the last ``left`` have ended."""
    order = m.shared.races
    for lane in _leaders(m, idx, ins):
        groups = m.products.get(lane, [[]])
        done = max(0, len(groups) - 1 - left)
        for words in (words for one in groups[:done] for words in one):
            if order is not None:
                order.done(words, np.full(words.shape, m.warp[lane]))
        del groups[:done]
