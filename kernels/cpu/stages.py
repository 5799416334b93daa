"""Programs of which data decide sizes on the way, in one call (`runtime.stops`), and what turns a program to sizes.

A stage is some steps.  Before it, numbers that the stages so far have left in memory are read into the registers of a
tape; what the tape computes of them is written into the records of the stage.
"""

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    I64,
    PTR,
    PTR_OR_0,
    atomic_load,
    call_kernel,
    load_i32,
    load_i64,
    native,
    store_i64,
)  # fmt: skip

STAGE, OPEN, PAIR, ROOM = 48, 32, 16, 32
"""Bytes of a row of each table."""
RAN, ENDED, FAULT, LOST, FULL = range(5)
"""Why steps stopped: all ran; a loop's condition or a cancelled run; a fault; a guard or another number; a buffer
is too small.
"""


@native(
    evaluate=PTR, evaluate_record=PTR, registers=PTR, open=PTR, count_open=I64, held=PTR, count_held=I64,
    rooms=PTR, count_rooms=I64, dims=PTR, arena=I64, arena_nbytes=I64, fill=PTR, fill_record=PTR, why=PTR,
)  # fmt: skip
def turn(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Evaluate a tape for numbers in memory, and fill in records; writes `RAN` to ``why``, or why that cannot be.

    open: register, address of the address of an array, byte offset in it, whether it is i32.  held: register, what it
    must be.  rooms: first and last of the dimensions ``dims`` (registers), bytes of an element, bytes that there are.
    arena: register of the bytes that are needed.  fill_record: 0 where the steps themselves begin with `fill`.
    Tables are of i64: open [count_open][4] · held [count_held][2] · rooms [count_rooms][4].
    """
    store_i64(p.registers, 1)
    for i in range(p.count_open):
        row = p.open + OPEN * i
        address = load_i64(load_i64(row + 8)) + load_i64(row + 16)
        number = np.int64(load_i32(address)) if load_i64(row + 24) != 0 else load_i64(address)
        store_i64(p.registers + 8 * load_i64(row), number)
    call_kernel(p.evaluate, p.evaluate_record, 0, 1)
    why = LOST if load_i64(p.registers) == 0 else RAN
    for i in range(p.count_held):
        row = p.held + PAIR * i
        if load_i64(p.registers + 8 * load_i64(row)) != load_i64(row + 8):
            why = LOST
    if why == RAN:
        for i in range(p.count_rooms):
            row = p.rooms + ROOM * i
            nbytes = load_i64(row + 16)
            for k in range(load_i64(row), load_i64(row + 8)):
                nbytes *= load_i64(p.registers + 8 * load_i64(p.dims + 8 * k))
            if nbytes > load_i64(row + 24):
                why = FULL
        if load_i64(p.registers + 8 * p.arena) > p.arena_nbytes:
            why = FULL
    if why == RAN and p.fill_record != 0:
        call_kernel(p.fill, p.fill_record, 0, 1)
    store_i64(p.why, why)


@native(stages=PTR, first=I64, count=I64, fault=PTR, turn=PTR, end=PTR, stop=PTR_OR_0)
def run_stages(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Run stages from the first on; writes how many have run, and why they stopped, to ``end``.

    A row: record of `turn`, 0 of a stage that has its numbers; record's address of why; what runs the steps, and its
    arguments.  stages: i64 [count][6] · end: i64 [2] · stop: as that of `run_steps`, or 0.
    """
    done, why = p.first, np.int64(RAN)
    while done < p.count and why == RAN:
        row = p.stages + STAGE * done
        if load_i64(row) != 0:
            call_kernel(p.turn, load_i64(row), 0, 1)
            why = load_i64(load_i64(row + 8))
        if why == RAN:
            call_kernel(load_i64(row + 16), load_i64(row + 24), load_i64(row + 32), load_i64(row + 40))
            done += 1
            if p.fault != 0 and load_i64(p.fault) != 0:
                why = np.int64(FAULT)
            elif p.stop != 0 and atomic_load(p.stop) != 0:
                why = np.int64(ENDED)
    store_i64(p.end, done)
    store_i64(p.end + 8, why)


OF_STAGES = (turn, run_stages)
"""Kernels that every tape with stages may need."""
