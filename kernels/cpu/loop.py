"""Iterations of a loop's body in one call, without Python between them (`devices.loops`).

Tables have rows of i64.  An array that the body reads or writes is a row of `ROW` bytes: its address, how many bytes
further the next iteration has it, and which of the ``places`` (an i64 of the parameter image, and an offset) hold it.
"""

from __future__ import annotations

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    I64,
    PTR,
    call_kernel,
    copy_bytes,
    inline,
    load_i32,
    load_i64,
    load_u8,
    native,
    store_i64,
)

ROW, PLACE, COPY, SWAP, OPEN, PAIR, ROOM, FLOW = 32, 16, 24, 16, 32, 16, 32, 24
"""Bytes of a row of each table."""
RAN, ENDED, FAULT, LOST, FULL = range(5)
"""Why iterations stopped: all that were wanted ran; the body's condition; a fault; a guard; a buffer is too small."""


@inline
def patch(table, count, places):  # type: ignore[no-untyped-def]
    """Write the addresses of arrays to where the body's parameter image has them."""
    for i in range(count):
        row = table + ROW * i
        address = load_i64(row)
        for k in range(load_i64(row + 16), load_i64(row + 24)):
            place = places + PLACE * k
            store_i64(load_i64(place), address + load_i64(place + 8))


@inline
def stride(table, count):  # type: ignore[no-untyped-def]
    for i in range(count):
        row = table + ROW * i
        store_i64(row, load_i64(row) + load_i64(row + 8))


@inline
def turned(p) -> int:  # type: ignore[no-untyped-def]
    """Evaluate the body's tape for the next iteration and fill in its records; `RAN`, or why it cannot run."""
    store_i64(p.registers, 1)
    for i in range(p.count_open):  # register, row of the array, byte offset in it, whether it is i32
        row = p.open + OPEN * i
        address = load_i64(p.ins + ROW * load_i64(row + 8)) + load_i64(row + 16)
        number = np.int64(load_i32(address)) if load_i64(row + 24) != 0 else load_i64(address)
        store_i64(p.registers + 8 * load_i64(row), number)
    call_kernel(p.evaluate, p.evaluate_record, 0, 1)
    if load_i64(p.registers) == 0:
        return LOST
    for i in range(p.count_held):  # register, what it must be
        row = p.held + PAIR * i
        if load_i64(p.registers + 8 * load_i64(row)) != load_i64(row + 8):
            return LOST
    for i in range(p.count_rooms):  # first and last of the dimensions, bytes of an element, bytes that there are
        row = p.rooms + ROOM * i
        nbytes = load_i64(row + 16)
        for k in range(load_i64(row), load_i64(row + 8)):
            nbytes *= load_i64(p.registers + 8 * load_i64(p.dims + 8 * k))
        if nbytes > load_i64(row + 24):
            return FULL
    if load_i64(p.registers + 8 * p.arena) > p.arena_nbytes:
        return FULL
    for i in range(p.count_moved):  # row of places, register of its offset
        row = p.moved + PAIR * i
        store_i64(p.places + PLACE * load_i64(row) + 8, load_i64(p.registers + 8 * load_i64(row + 8)))
    call_kernel(p.fill, p.fill_record, 0, 1)
    if p.flags_record != 0:
        call_kernel(p.fill, p.flags_record, 0, 1)
    return RAN


@native(
    kernel=PTR, first=I64, second=I64, third=I64, ins=PTR, outs=PTR, places=PTR, count_ins=I64, count_outs=I64,
    copies=PTR, count_copies=I64, swaps=PTR, count_swaps=I64, cond=PTR, fault=PTR, trip=PTR, most=I64, end=PTR,
    evaluate=PTR, evaluate_record=PTR, registers=PTR, open=PTR, count_open=I64, held=PTR, count_held=I64,
    moved=PTR, count_moved=I64, rooms=PTR, count_rooms=I64, dims=PTR, flows=PTR, count_flows=I64,
    arena=I64, arena_nbytes=I64,
    fill=PTR, fill_record=PTR, flags_record=PTR,
)  # fmt: skip
def run_loop(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Run up to ``most`` iterations; writes how many ran, and why they stopped, to ``end``.

    kernel, first, second, third: what runs the body once, and its arguments.  copies: rows of ``ins`` and ``outs``, and
    bytes; swaps: likewise, arrays that change places.  cond: row of the body's condition, 0: none.  trip: number of the
    iteration.  evaluate: 0 where nothing varies.  flows: registers of dimensions of results, and of those of operands;
    a register may be both, so all are read before any is written, by way of a third word.
    """
    done, why = 0, RAN
    while done < p.most and why == RAN:
        if p.evaluate != 0:
            why = turned(p)
        if why == RAN:
            patch(p.ins, p.count_ins, p.places)
            patch(p.outs, p.count_outs, p.places)
            call_kernel(p.kernel, p.first, p.second, p.third)
            if p.fault != 0 and load_i64(p.fault) != 0:
                why = FAULT
        if why == RAN:
            if p.cond != 0 and load_u8(load_i64(p.cond)) == 0:
                why = ENDED
            for i in range(p.count_copies):
                row = p.copies + COPY * i
                source, to = load_i64(p.ins + ROW * load_i64(row)), load_i64(p.outs + ROW * load_i64(row + 8))
                copy_bytes(to, source, load_i64(row + 16))
            for i in range(p.count_swaps):
                row = p.swaps + SWAP * i
                one, two = p.ins + ROW * load_i64(row), p.outs + ROW * load_i64(row + 8)
                address = load_i64(one)
                store_i64(one, load_i64(two))
                store_i64(two, address)
            for i in range(p.count_flows):
                row = p.flows + FLOW * i
                store_i64(row + 16, load_i64(p.registers + 8 * load_i64(row)))
            for i in range(p.count_flows):
                row = p.flows + FLOW * i
                store_i64(p.registers + 8 * load_i64(row + 8), load_i64(row + 16))
            stride(p.ins, p.count_ins)
            stride(p.outs, p.count_outs)
            store_i64(p.trip, load_i64(p.trip) + 1)
            done += 1
    store_i64(p.end, done)
    store_i64(p.end + 8, why)
