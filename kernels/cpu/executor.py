"""The native loop that runs a program, the team that lends it workers, and the copies that the planner itself needs.

Operator kernels are not here; this file registers none.
"""

from __future__ import annotations

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    I64,
    PTR,
    PTR_OR_0,
    atomic_add,
    atomic_compare_exchange,
    atomic_load,
    atomic_store,
    call_kernel,
    ceil_div,
    copy_bytes,
    cycles,
    float_control,
    inline,
    load_i64,
    native,
    sched_yield,
    sem_post,
    sem_wait,
    set_float_control,
    spin_pause,
    split,
    store_i64,
)
from bolt_numba.kernels.cpu.machine import PAUSES_A_US, TICKS_A_US
from bolt_numba.kernels.extents import box
from bolt_numba.kernels.instructions.isa import target

SPINS = 50 * PAUSES_A_US
"""Pauses that a worker waits for the next run before it sleeps."""
WAIT_SPINS = 100 * PAUSES_A_US
"""Pauses that the caller waits for others' shares before it offers its processor (they may need it)."""
LINGER = 200 * TICKS_A_US if target().is_x86 else 0
"""Ticks for which the processor of a caller that has left is kept for it, as most come back at once.

Elsewhere it has not been measured what that brings.
"""
DATA = object.__basicsize__
"""Bytes from an array, a Python object, to the address of its first element; NumPy's stable ABI."""
FLUSH_TO_ZERO = 1 << 15
"""Bit of x86's MXCSR: a result too small for a normal number becomes 0; some processors take over 100 cycles for it.

Denormal operands keep their value.
"""


# A worker's block.  A line: who leases it (the address of that run's job, or one of these), its share there, whether it
# sleeps; a line for its semaphore; memory for a run that leases it first: a job, a line for each share, its workers.
ABSENT, HELD, FREE = 0, 1, 2
SHARE, ASLEEP, SEMAPHORE, JOB = 8, 16, 64, 128
# A job: its epoch, kernel, parameters and number of shares, written by the caller alone.
KERNEL, PARAMS, SHARES = 8, 16, 24
STOP = 48
"""Where a record of `run_steps` has the address of what says that it shall end."""
# A share's line: the last epoch in which it was taken, the last in which it was done.
LINE, DONE = 64, 8
# The word that says how busy the processors are: running callers and leased workers; times this, the threads wanted.
WANTED = 1 << 32
# Behind it: when a caller last left while there were too few processors; in the next line, workers that there are.
LEFT, WORKERS = 8, 64


@inline
def take_shares(job: int, epoch: int, first: int) -> None:
    """Take and run shares of an epoch while any is left: ``first``, this thread's own, then those that others left.

    A thread's own share is mostly of what it computed in the step before.  The caller too takes what others leave, so
    it never waits for a thread that has not begun: its processor may be busy with something else.  A worker that comes
    too late, when its lease is over, finds no share of its epoch.
    """
    shares = atomic_load(job + SHARES)
    share = first if first < shares else 0
    for _ in range(shares):
        line = job + LINE * (1 + share)
        if atomic_load(line) == epoch - 1 and atomic_compare_exchange(line, epoch - 1, epoch):
            # The epoch cannot end before this share does, so the job is the epoch's.
            call_kernel(atomic_load(job + KERNEL), atomic_load(job + PARAMS), share, atomic_load(job + SHARES))
            atomic_store(line + DONE, epoch)
        share += 1
        if share == shares:
            share = 0


@inline
def wake(worker: int) -> None:
    """Post the semaphore of a sleeping worker, once: 0 awake, 1 asleep, 2 woken but not yet running."""
    if atomic_load(worker + ASLEEP) == 1 and atomic_compare_exchange(worker + ASLEEP, 1, 2):
        sem_post(worker + SEMAPHORE)


@inline
def wait_until(address: int, value: int) -> None:
    spins = 0
    while atomic_load(address) != value:
        spins += 1
        if spins < WAIT_SPINS:
            spin_pause()
        else:
            sched_yield()


@inline
def crew_of(p, job):  # type: ignore[no-untyped-def]
    """Where the addresses of the workers of a job are, by share."""
    return job + LINE * (1 + p.processors)


@inline
def leave(busy: int, threads: int, processors: int) -> None:
    """A caller that wanted so many threads has run."""
    wanted = atomic_add(busy, -WANTED * threads - 1) >> 32
    if LINGER > 0 and wanted > max(threads, processors):
        store_i64(busy + LEFT, cycles())


@inline
def lease(p, job, leased, wanted):  # type: ignore[no-untyped-def]
    """Take free workers, up to ``wanted`` and while there are processors for them; the job, how many there are now."""
    worker = p.blocks
    end, most = worker + p.block * atomic_load(p.busy + WORKERS), p.processors
    if LINGER > 0 and np.int64(cycles()) - load_i64(p.busy + LEFT) < LINGER:
        most -= 1
    while leased < wanted and worker < end and atomic_load(p.busy) & (WANTED - 1) < most:
        if atomic_load(worker) == FREE and atomic_compare_exchange(worker, FREE, HELD):
            if atomic_add(p.busy, 1) & (WANTED - 1) < most:
                job = worker + JOB if leased == 0 else job
                leased += 1
                epoch = atomic_load(job)
                for share in range(0 if leased == 1 else leased, leased + 1):
                    atomic_store(job + LINE * (1 + share), epoch)
                    atomic_store(job + LINE * (1 + share) + DONE, epoch)
                store_i64(crew_of(p, job) + 8 * leased, worker)
                atomic_store(worker + SHARE, leased)
                atomic_store(worker, job)
            else:
                atomic_add(p.busy, -1)
                atomic_store(worker, FREE)
        worker += p.block
    return job, leased


@inline
def release(p, job, leased, kept):  # type: ignore[no-untyped-def]
    """Give back the workers of the last shares; the first one's block is the job's, so it goes last.

    They are no longer counted when they see that they are free, as a free worker sleeps where all processors are busy.
    """
    atomic_add(p.busy, kept - leased)
    for share in range(leased, kept, -1):
        atomic_store(load_i64(crew_of(p, job) + 8 * share), FREE)


@inline
def fair(p, busy, leased, threads):  # type: ignore[no-untyped-def]
    """Workers that a run of so many threads may have now.

    Where runs together want more than there are processors each gets its part of them, rounded up; who has more
    workers than processors are left for gives back those.
    """
    wanted, taken = busy >> 32, busy & (WANTED - 1)
    most = threads if wanted <= p.processors else ceil_div(threads * p.processors, wanted)
    return max(0, min(most - 1, leased + p.processors - taken))


@native(kernels=PTR, params=PTR, flags=PTR, ticks=PTR, steps=I64, timed=I64, stop=PTR_OR_0)
def run_steps(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Run a program on the calling thread alone.

    ``tid``: address of the word that counts who is busy; ``nthreads``: processors.
    kernels, params, flags: i64 [steps]; ticks: i64 [steps + 1], counts of cycles, written when ``timed``; stop: 0, or
    i64 that says whether no further step shall begin.
    """
    atomic_add(tid, WANTED + 1)
    callers = float_control()
    set_float_control(callers | FLUSH_TO_ZERO)
    if p.timed:
        store_i64(p.ticks, cycles())
    for s in range(p.steps):
        if p.stop != 0 and atomic_load(p.stop) != 0:
            break
        call_kernel(load_i64(p.kernels + 8 * s), load_i64(p.params + 8 * s), 0, 1)
        if p.timed:
            store_i64(p.ticks + 8 * (s + 1), cycles())
    set_float_control(callers)
    leave(tid, 1, nthreads)


@native(busy=PTR, blocks=PTR, block=I64, processors=I64, spins=I64)
def team_run(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Run the `run_steps` record at address ``tid``, sharing the steps whose flag is 1 with leased workers.

    busy: see `WANTED`; blocks: [workers][block] bytes, `ABSENT` or a worker in each.  A run never waits for workers: it
    takes those that are free, looks again before each shared step, and gives all back at its end, in here, where no
    exception of Python's (an interrupt) can come in between.
    """
    call, job, leased = tid, np.int64(0), np.int64(0)
    kernels, params, flags = load_i64(call), load_i64(call + 8), load_i64(call + 16)
    ticks, steps, timed, stop = load_i64(call + 24), load_i64(call + 32), load_i64(call + 40), load_i64(call + STOP)
    atomic_add(p.busy, WANTED * nthreads + 1)
    callers = float_control()
    set_float_control(callers | FLUSH_TO_ZERO)
    if timed:
        store_i64(ticks, cycles())
    for s in range(steps):
        if stop != 0 and atomic_load(stop) != 0:
            break
        kernel, arguments = load_i64(kernels + 8 * s), load_i64(params + 8 * s)
        shared = load_i64(flags + 8 * s) != 0
        if shared:
            most = fair(p, atomic_load(p.busy), leased, nthreads)
            if leased < most:
                job, leased = lease(p, job, leased, most)
            elif leased > most:
                release(p, job, leased, most)
                leased = most
        if shared and leased > 0:
            epoch = atomic_load(job) + 1
            store_i64(job + KERNEL, kernel)
            store_i64(job + PARAMS, arguments)
            store_i64(job + SHARES, leased + 1)
            # All shares of the epoch before are done; from here on those of this one can be taken.
            atomic_store(job, epoch)
            for share in range(1, leased + 1):
                wake(load_i64(crew_of(p, job) + 8 * share))
            take_shares(job, epoch, 0)
            for share in range(leased + 1):
                wait_until(job + LINE * (1 + share) + DONE, epoch)
        else:
            call_kernel(kernel, arguments, 0, 1)
        if timed:
            store_i64(ticks + 8 * (s + 1), cycles())
    if leased > 0:
        release(p, job, leased, 0)
    leave(p.busy, nthreads, p.processors)
    set_float_control(callers)


@inline
def settle(p, room):  # type: ignore[no-untyped-def]
    """The first of ``room`` blocks that has no worker, 0 where all have; it is the caller's, and may be leased."""
    worker = p.blocks
    for _ in range(room):
        if atomic_compare_exchange(worker, ABSENT, HELD):
            atomic_add(p.busy + WORKERS, 1)
            atomic_store(worker, FREE)
            return worker
        worker += p.block
    return 0


@native(busy=PTR, blocks=PTR, block=I64, processors=I64, spins=I64)
def team_worker(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Take shares of whatever leases this thread, for ever; end at once where ``tid`` blocks all have a worker.

    Sleep when there has been nothing for ``spins`` pauses, or when no run could take this worker anyway.
    busy: see `WANTED`; blocks: bytes [workers][block].
    """
    worker = settle(p, tid)
    set_float_control(float_control() | FLUSH_TO_ZERO)  # the thread is ours
    job, seen, spins = 0, 0, 0
    while worker != 0:
        now = atomic_load(worker)
        epoch = atomic_load(now) if now > FREE else 0
        if now > FREE and (now != job or epoch != seen):
            take_shares(now, epoch, atomic_load(worker + SHARE))
            job, seen, spins = now, epoch, 0
        elif spins < p.spins and (now != FREE or atomic_load(p.busy) & (WANTED - 1) < p.processors):
            spins += 1
            spin_pause()
        else:
            # The locked add is the fence between saying "asleep" and looking once more.
            atomic_add(worker + ASLEEP, 1)
            if atomic_load(worker) == now and (now <= FREE or atomic_load(now) == seen):
                sem_wait(worker + SEMAPHORE)
            atomic_store(worker + ASLEEP, 0)
            spins = 0


@native(
    x=PTR, y=PTR, rows=I64, nbytes=I64, x_pitch=I64, y_pitch=I64, itemsize=I64,
    extents=lambda a: {
        "x": box(a.nbytes, (a.rows, a.x_pitch * a.itemsize)), "y": box(a.nbytes, (a.rows, a.y_pitch * a.itemsize))
    },
)  # fmt: skip
def copy_rows(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Copy ``rows`` rows of ``nbytes`` bytes; pitches in elements of ``itemsize`` bytes, unused for one row.

    x, y: bytes [rows][nbytes].
    """
    if p.rows == 1:
        low, high = split(p.nbytes, tid, nthreads)
        copy_bytes(p.y + low, p.x + low, high - low)
        return
    low, high = split(p.rows, tid, nthreads)
    for row in range(low, high):
        copy_bytes(p.y + row * p.y_pitch * p.itemsize, p.x + row * p.x_pitch * p.itemsize, p.nbytes)
