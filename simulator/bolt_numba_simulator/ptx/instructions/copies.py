"""Copies that run beside the threads: ``cp.async`` of 4 to 16 bytes, and bulk copies with tensor maps.

The bytes of a ``cp.async`` are unwritten until the thread has waited for its group, so that a missing wait shows.
A bulk copy is made at once, on behalf of a warp that is none, and its bytes become known through an mbarrier alone.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba_simulator.ptx.instructions.barriers import _shared_address
from bolt_numba_simulator.ptx.instructions.table import opcode
from bolt_numba_simulator.ptx.state.memory import BASE
from bolt_numba_simulator.ptx.state.order import ASYNC
from bolt_numba_simulator.ptx.state.spaces import READ, WRITE, Access, fault, mark
from bolt_numba_simulator.ptx.state.text import Statement, split
from bolt_numba_simulator.ptx.state.types import BOOL, I32, U32, Lanes, RefusedError

MAP_BYTES, MAGIC = 128, b"boltmap\0"
_HEAD = struct.Struct("<8sQBBB")
"""What a map begins with: that it is one, address, rank, bytes of an element, and of the swizzle."""


@record(eq=False)
class Pending:
    """Copies of lanes to ``offsets`` of shared memory that nobody has waited for.  data: (lanes, nbytes)."""

    lanes: Any
    offsets: Any
    nbytes: int
    data: Any
    groups: Any
    ins: Statement


@record()
class TensorMap:
    """What `cuTensorMapEncodeTiled` is told: sizes and strides from the innermost dimension on.

    strides: bytes, without the innermost.  box: elements of a copy.  swizzle: 0, 32, 64 or 128 bytes.
    """

    address: int
    itemsize: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

    def encoded(self) -> np.ndarray[Any, Any]:
        """The 128 bytes by which kernels find it: in a form of our own, as the driver's is secret."""
        rank = len(self.dims)
        made = np.zeros(MAP_BYTES, np.uint8)
        head = _HEAD.pack(MAGIC, self.address, rank, self.itemsize, self.swizzle)
        numbers = struct.pack(f"<{rank}Q{rank - 1}Q{rank}H", *self.dims, *self.strides, *self.box)
        made[: len(head) + len(numbers)] = np.frombuffer(head + numbers, np.uint8)
        return made

    @classmethod
    def decoded(cls, data: bytes) -> TensorMap | None:
        """The map that these bytes are; None where they are none."""
        magic, address, rank, itemsize, swizzle = _HEAD.unpack_from(data)
        if magic != MAGIC:
            return None
        numbers = struct.unpack_from(f"<{rank}Q{rank - 1}Q{rank}H", data, _HEAD.size)
        dims, strides, box = numbers[:rank], numbers[rank : 2 * rank - 1], numbers[2 * rank - 1 :]
        return cls(address, itemsize, dims, strides, box, swizzle)


@opcode("cp")
def cp(m: Any, ins: Statement) -> Any:
    how = ins.modifiers
    if how[0] != "async" or {"reduce", "im2col", "multicast::cluster"} & set(how):
        raise RefusedError("not modelled")
    if how[1] == "bulk":
        return _bulk(m, ins)
    if how[1] == "commit_group":
        return m.indexed(lambda idx: m.group.__setitem__(idx, m.group[idx] + 1))
    if how[1] in ("wait_group", "wait_all"):
        left = int(ins.args[0]) if ins.args else -1
        return m.indexed(lambda idx: _finish(m, idx, left))
    if how[1] == "mbarrier":
        return _arrive(m, ins)
    return _copy(m, ins)


def _copy(m: Any, ins: Statement) -> Any:
    nbytes = int(ins.args[2], 0)
    if nbytes not in (4, 8, 16) or (nbytes != 16 and "cg" in ins.modifiers):
        raise RefusedError("not modelled")
    to, by = m.address(ins.args[0]), m.address(ins.args[1])
    third = ins.args[3] if len(ins.args) > 3 and "cache_hint" not in " ".join(ins.modifiers[-2:]) else None
    ignores = third is not None and m.routine.registers.get(third) == "pred"
    size = None if third is None else m.read(third, BOOL if ignores else U32)
    reading = [Access(m, "global", part, READ, ins) for part in (1, nbytes)]

    def act(idx: Lanes) -> None:
        lanes, address = m.every[idx], to(idx)
        if (address & (nbytes - 1)).any():
            raise fault(
                ins, f"misaligned copy of {nbytes} bytes", int(lanes[np.flatnonzero(address & (nbytes - 1))[0]])
            )
        offsets = m.shared.offsets(address, lanes, nbytes, ins)
        if m.shared.races is not None:
            m.shared.ordered(WRITE, offsets, lanes, nbytes, ins)
        mark(m.shared.written, offsets, nbytes, 0)
        given = np.full(lanes.shape, nbytes)
        if size is not None:
            found = np.broadcast_to(size(idx), lanes.shape)
            given = np.where(found, 0, nbytes) if ignores else found.astype(np.int64)
        data = np.zeros((lanes.size, nbytes), np.uint8)
        for one in dict.fromkeys(given[given > 0].tolist()):
            here = np.flatnonzero(given == one)
            source = by(lanes[here])
            for part in [0] if one == nbytes else range(int(one)):
                memory, places = reading[int(one == nbytes)](source + part, lanes[here])
                if one == nbytes:
                    data[here] = memory.reshape(-1, nbytes)[places // nbytes]
                else:
                    data[here, part] = memory[places]
        m.copies.append(Pending(lanes, offsets, nbytes, data, m.group[lanes].copy(), ins))
        if m.report is not None:
            m.report.shared(ins, offsets, lanes, nbytes)

    return m.indexed(act)


def _finish(m: Any, idx: Lanes, left: int) -> None:
    """Copies of all groups but the last ``left`` have arrived; -1: also those of no group yet."""
    limit = np.full(m.n, -1, np.int64)
    limit[idx] = m.group[idx] - left
    kept = []
    for copy in m.copies:
        done = copy.groups < limit[copy.lanes]
        if done.any():
            offsets, lanes = copy.offsets[done], copy.lanes[done]
            report, m.report = m.report, None
            m.shared.check(WRITE, offsets, lanes, copy.nbytes, copy.ins)
            m.report = report
            m.shared.bytes.reshape(-1, copy.nbytes)[offsets // copy.nbytes] = copy.data[done]
        if not done.all():
            rest = ~done
            kept.append(
                Pending(copy.lanes[rest], copy.offsets[rest], copy.nbytes, copy.data[rest], copy.groups[rest], copy.ins)
            )
    m.copies[:] = kept


def _arrive(m: Any, ins: Statement) -> Any:
    address, counted = _shared_address(m, ins.args[0]), "noinc" in ins.modifiers

    def act(idx: Lanes) -> None:
        _finish(m, idx, -1)
        lanes, where = m.every[idx], address(idx)
        for lane, at in zip(lanes.tolist(), where.tolist(), strict=True):
            block, order = int(m.block[lane]), m.shared.races
            clock = None if order is None else order.arrival(block, np.array([m.warp[lane]]))
            if counted:
                m.barriers.signal(block, at, 1, 0, clock, ins, lane)

    return m.indexed(act)


def _bulk(m: Any, ins: Statement) -> Any:
    how = ins.modifiers
    if how[2] in ("commit_group", "wait_group", "prefetch"):
        return m.indexed(lambda idx: None)
    to_shared = how.index("global") > next(i for i, name in enumerate(how) if name.startswith("shared"))
    if how[2] != "tensor":
        return _bulk_bytes(m, ins, to_shared)
    if to_shared:
        tensor, shared, barrier = ins.args[1], ins.args[0], _shared_address(m, ins.args[2])
    else:
        tensor, shared, barrier = ins.args[0], ins.args[1], None
    found = re.fullmatch(r"\[\s*(.*?),\s*\{(.*?)\}\s*\]", tensor)
    if found is None:
        raise RefusedError("not modelled")
    map_at, place = m.address(f"[{found[1]}]"), _shared_address(m, shared)
    coordinates = [m.read(name, I32) for name in split(found[2])]

    def act(idx: Lanes) -> None:
        lanes = m.every[idx]
        where, maps = place(idx), map_at(idx)
        at = [np.broadcast_to(one(idx), lanes.shape) for one in coordinates]
        barriers = None if barrier is None else barrier(idx)
        for i, lane in enumerate(lanes.tolist()):
            made = _map_at(m, int(maps[i]), ins, lane)
            _tile(m, made, [int(one[i]) for one in at], int(where[i]), lane, ins, to_shared)
            if barriers is not None:
                nbytes = int(np.prod(made.box)) * made.itemsize
                _complete(m, lane, int(barriers[i]), nbytes, ins)

    return m.indexed(act)


def _map_at(m: Any, address: int, ins: Statement, lane: int) -> TensorMap:
    start = address - BASE
    is_there = m.memory.find(start, start + MAP_BYTES) is not None and not address % 64
    made = TensorMap.decoded(m.memory.bytes[start : start + MAP_BYTES].tobytes()) if is_there else None
    if made is None:
        raise fault(ins, f"no tensor map at 0x{address:x}", lane)
    return made


def _complete(m: Any, lane: int, barrier: int, nbytes: int, ins: Statement) -> None:
    order = m.shared.races
    clock = None if order is None else order.completion()
    m.barriers.signal(int(m.block[lane]), barrier, 0, -nbytes, clock, ins, lane)


def _tile(m: Any, made: TensorMap, at: list[int], where: int, lane: int, ins: Statement, to_shared: bool) -> None:
    """One box of a tensor, between global and shared memory; what lies outside of the tensor is zeros."""
    if len(at) != len(made.dims):
        raise fault(ins, f"a tensor of {len(made.dims)} dimensions by {len(at)} coordinates", lane)
    row = made.box[0] * made.itemsize
    if where % (8 * made.swizzle if made.swizzle else 128) or (made.swizzle and row > made.swizzle):
        raise fault(
            ins,
            f"a box with rows of {row} bytes and a swizzle of {made.swizzle} at byte {where} of shared memory",
            lane,
        )
    steps = [made.itemsize, *made.strides]
    index = np.indices(made.box[::-1]).reshape(len(at), -1)[::-1]
    inside = np.ones(index.shape[1], np.bool_)
    source = np.full(index.shape[1], made.address - BASE, np.int64)
    for along, start, size, step in zip(index, at, made.dims, steps, strict=True):
        inside &= (along + start >= 0) & (along + start < size)
        source += (along + start) * step
    local = where + np.arange(index.shape[1]) * made.itemsize
    if made.swizzle:
        local = local ^ ((local >> 7) & (made.swizzle // 16 - 1)) << 4
    _move(m, local, source, inside, made.itemsize, lane, ins, to_shared)


def _move(
    m: Any, local: Any, source: Any, inside: Any, itemsize: int, lane: int, ins: Statement, to_shared: bool
) -> None:
    lanes = np.full(local.shape, lane)
    offsets = m.shared.offsets(local, lanes, itemsize, ins)
    report, m.report = m.report, None
    m.shared.check(WRITE if to_shared else READ, offsets, lanes, itemsize, ins, ASYNC if to_shared else None)
    access = Access(m, "global", itemsize, READ if to_shared else WRITE, ins)
    dtype = np.dtype(f"u{itemsize}")
    if inside.any():
        memory, places = access(source[inside] + BASE, lanes[inside])
        shared = m.shared.bytes.view(dtype)
        if to_shared:
            shared[offsets[inside] // itemsize] = memory.view(dtype)[places // itemsize]
        else:
            memory.view(dtype)[places // itemsize] = shared[offsets[inside] // itemsize]
    if to_shared:
        m.shared.bytes.view(dtype)[offsets[~inside] // itemsize] = 0
    m.report = report


def _bulk_bytes(m: Any, ins: Statement, to_shared: bool) -> Any:
    """Plain bytes: ``[to], [from], size, [mbarrier]``."""
    shared = _shared_address(m, ins.args[0 if to_shared else 1])
    other, size = m.address(ins.args[1 if to_shared else 0]), m.read(ins.args[2], U32)
    barrier = _shared_address(m, ins.args[3]) if to_shared else None

    def act(idx: Lanes) -> None:
        lanes = m.every[idx]
        places, addresses = shared(idx), other(idx)
        sizes = np.broadcast_to(size(idx), lanes.shape)
        barriers = None if barrier is None else barrier(idx)
        for i, lane in enumerate(lanes.tolist()):
            nbytes = int(sizes[i])
            if nbytes % 16 or int(places[i]) % 16 or int(addresses[i]) % 16:
                raise fault(ins, f"a bulk copy of {nbytes} bytes that is not aligned to 16", lane)
            along = np.arange(0, nbytes, 8)
            _move(m, places[i] + along, addresses[i] - BASE + along, along >= 0, 8, lane, ins, to_shared)
            if barriers is not None:
                _complete(m, lane, int(barriers[i]), nbytes, ins)

    return m.indexed(act)
