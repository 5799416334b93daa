"""Iterations of a loop's body in one call, without Python between them (`devices.loops`).

Tables have rows of i64.  An array that the body reads or writes is a row of ``arrays``: its address, and how many bytes
further the next iteration has it.
"""

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    I64,
    PTR,
    call_kernel,
    copy_bytes,
    inline,
    load_i64,
    load_u8,
    native,
    store_i64,
)
from bolt_numba.kernels.cpu.stages import ENDED, FAULT, RAN

ARRAY, PLACE, COPY, SWAP, FLOW, LOG = 16, 24, 24, 16, 24, 8
"""Bytes of a row of each table."""


@inline
def flow(p, done):  # type: ignore[no-untyped-def]
    """Hand on sizes to the next iteration, and keep those that are wanted of each."""
    for i in range(p.count_logs):
        store_i64(p.log + 8 * (done * p.count_logs + i), load_i64(p.registers + 8 * load_i64(p.logs + LOG * i)))
    for i in range(p.count_flows):
        row = p.flows + FLOW * i
        store_i64(row + 16, load_i64(p.registers + 8 * load_i64(row)))
    for i in range(p.count_flows):
        row = p.flows + FLOW * i
        store_i64(p.registers + 8 * load_i64(row + 8), load_i64(row + 16))


@native(
    kernel=PTR, first=I64, second=I64, third=I64, arrays=PTR, count_arrays=I64, places=PTR, count_places=I64,
    copies=PTR, count_copies=I64, swaps=PTR, count_swaps=I64, cond=PTR, fault=PTR, trip=PTR, most=I64, end=PTR,
    turn=PTR, turn_record=PTR, why=PTR, registers=PTR, flows=PTR, count_flows=I64, inner=PTR,
    logs=PTR, count_logs=I64, log=PTR,
)  # fmt: skip
def run_loop(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Run up to ``most`` iterations; writes how many ran, and why they stopped, to ``end``.

    kernel, first, second, third: what runs the body once, and its arguments.  places: where an address is wanted, of
    which array, and a byte offset in it.  copies: arrays from and to, and bytes; swaps: arrays that change places.
    cond: row of the body's condition, 0: none.  trip: number of the iteration.  turn: 0 where nothing varies; its
    record, and where that has why.  flows: registers of dimensions of results, and of those of operands; a register may
    be both, so all are read before any is written, by way of a third word.  inner: why the body's stages stopped, 0
    where it has none.  logs: registers that each iteration writes to the next words of ``log``.
    Tables are of i64: arrays, swaps [count][2] · places, copies, flows [count][3] · logs [count] · end [2].
    """
    done, why = 0, np.int64(RAN)
    while done < p.most and why == RAN:
        for i in range(p.count_places):
            row = p.places + PLACE * i
            address = load_i64(p.arrays + ARRAY * load_i64(row + 8))
            store_i64(load_i64(row), address + load_i64(row + 16))
        if p.turn != 0:
            call_kernel(p.turn, p.turn_record, 0, 1)
            why = load_i64(p.why)
        if why == RAN:
            call_kernel(p.kernel, p.first, p.second, p.third)
            if p.inner != 0:
                why = load_i64(p.inner)
            if p.fault != 0 and load_i64(p.fault) != 0:
                why = np.int64(FAULT)
        if why == RAN:
            if p.cond != 0 and load_u8(load_i64(p.cond)) == 0:
                why = np.int64(ENDED)
            for i in range(p.count_copies):
                row = p.copies + COPY * i
                source, to = p.arrays + ARRAY * load_i64(row), p.arrays + ARRAY * load_i64(row + 8)
                copy_bytes(load_i64(to), load_i64(source), load_i64(row + 16))
            for i in range(p.count_swaps):
                row = p.swaps + SWAP * i
                one, two = p.arrays + ARRAY * load_i64(row), p.arrays + ARRAY * load_i64(row + 8)
                address = load_i64(one)
                store_i64(one, load_i64(two))
                store_i64(two, address)
            flow(p, done)
            for i in range(p.count_arrays):
                row = p.arrays + ARRAY * i
                store_i64(row, load_i64(row) + load_i64(row + 8))
            store_i64(p.trip, load_i64(p.trip) + 1)
            done += 1
    store_i64(p.end, done)
    store_i64(p.end + 8, why)
