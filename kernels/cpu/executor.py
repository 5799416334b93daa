"""The native loop that runs a program, the team that shares it, and the copies that the planner itself needs.

Operator kernels are not here; this file registers none.
"""

from __future__ import annotations

from bolt_numba.kernels.cpu.language.lang import (
    I64,
    PTR,
    atomic_add,
    atomic_compare_exchange,
    atomic_load,
    atomic_store,
    call_kernel,
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
from bolt_numba.kernels.extents import box

SPINS = 2000
"""Pauses that a worker waits for the next run before it sleeps: about 50 us on current x86."""
WAIT_SPINS = 4000
"""Pauses that the caller waits for others' shares before it offers its processor (they may need it)."""
FLUSH_TO_ZERO = 1 << 15
"""Bit of x86's MXCSR: a result too small for a normal number becomes 0; some processors take over 100 cycles for it.

Denormal operands keep their value.
"""


# The job of a team: a cache line of the epoch, its kernel and its parameters, written by the caller alone; and whether
# there is one.
KERNEL, PARAMS, TAKEN = 8, 16, 24
# A thread's line: the last epoch whose share of this thread was taken, the last whose was done, whether it sleeps.
LINE, DONE, ASLEEP = 64, 8, 16


@inline
def take_shares(job: int, lines: int, epoch: int, tid: int, nthreads: int) -> None:
    """Take and run shares of an epoch while any is left: this thread's own first, then those that others left.

    A thread's own share is mostly of what it computed in the step before.  The caller too takes what others leave, so
    it never waits for a thread that has not begun: its processor may be busy with something else.
    """
    share = tid
    for _ in range(nthreads):
        line = lines + LINE * share
        if atomic_load(line) == epoch - 1 and atomic_compare_exchange(line, epoch - 1, epoch):
            # The epoch cannot end before this share does, so the job is the epoch's.
            call_kernel(atomic_load(job + KERNEL), atomic_load(job + PARAMS), share, nthreads)
            atomic_store(line + DONE, epoch)
        share += 1
        if share == nthreads:
            share = 0


@inline
def wake(asleep: int, semaphore: int) -> None:
    """Post the semaphore of a sleeping worker, once: 0 awake, 1 asleep, 2 woken but not yet running."""
    if atomic_load(asleep) == 1 and atomic_compare_exchange(asleep, 1, 2):
        sem_post(semaphore)


@inline
def wait_until(address: int, value: int) -> None:
    spins = 0
    while atomic_load(address) != value:
        spins += 1
        if spins < WAIT_SPINS:
            spin_pause()
        else:
            sched_yield()


@native(kernels=PTR, params=PTR, flags=PTR, ticks=PTR, steps=I64, timed=I64)
def run_steps(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Run a program on the calling thread alone.

    kernels, params, flags: i64 arrays, one entry a step; ticks: steps + 1 cycle counts, written when ``timed``.
    """
    callers = float_control()
    set_float_control(callers | FLUSH_TO_ZERO)
    if p.timed:
        store_i64(p.ticks, cycles())
    for s in range(p.steps):
        call_kernel(load_i64(p.kernels + 8 * s), load_i64(p.params + 8 * s), 0, 1)
        if p.timed:
            store_i64(p.ticks + 8 * (s + 1), cycles())
    set_float_control(callers)


@native(job=PTR, lines=PTR, semaphores=PTR, spins=I64)
def team_run(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Run the `run_steps` record at address ``tid``, sharing the steps whose flag is 1 with the team if it is free.

    job, lines: see `KERNEL` and `LINE`; semaphores: 64 bytes a worker.  The team is taken and given back in here, where
    no exception of Python's (an interrupt) can come in between.
    """
    call, job, lines = tid, p.job, p.lines
    kernels, params, flags = load_i64(call), load_i64(call + 8), load_i64(call + 16)
    ticks, steps, timed = load_i64(call + 24), load_i64(call + 32), load_i64(call + 40)
    is_ours = atomic_load(job + TAKEN) == 0 and atomic_compare_exchange(job + TAKEN, 0, 1)
    epoch = atomic_load(job)
    callers = float_control()
    set_float_control(callers | FLUSH_TO_ZERO)
    if timed:
        store_i64(ticks, cycles())
    for s in range(steps):
        kernel, arguments = load_i64(kernels + 8 * s), load_i64(params + 8 * s)
        if is_ours and load_i64(flags + 8 * s) != 0:
            store_i64(job + KERNEL, kernel)
            store_i64(job + PARAMS, arguments)
            epoch += 1
            # All shares of the epoch before are done; from here on those of this one can be taken.
            atomic_store(job, epoch)
            for worker in range(1, nthreads):
                wake(lines + LINE * worker + ASLEEP, p.semaphores + 64 * worker)
            take_shares(job, lines, epoch, 0, nthreads)
            for share in range(nthreads):
                wait_until(lines + LINE * share + DONE, epoch)
        else:
            call_kernel(kernel, arguments, 0, 1)
        if timed:
            store_i64(ticks + 8 * (s + 1), cycles())
    if is_ours:
        atomic_store(job + TAKEN, 0)
    set_float_control(callers)


@native(job=PTR, lines=PTR, semaphores=PTR, spins=I64)
def team_worker(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Take shares of whatever the team runs, for ever; sleep when there has been nothing for ``spins`` pauses."""
    job, asleep = p.job, p.lines + LINE * tid + ASLEEP
    seen, spins = 0, 0
    set_float_control(float_control() | FLUSH_TO_ZERO)  # the thread is ours
    while True:
        epoch = atomic_load(job)
        if epoch != seen:
            take_shares(job, p.lines, epoch, tid, nthreads)
            seen, spins = epoch, 0
        elif spins < p.spins:
            spins += 1
            spin_pause()
        else:
            # The locked add is the fence between saying "asleep" and looking once more.
            atomic_add(asleep, 1)
            if atomic_load(job) == seen:
                sem_wait(p.semaphores + 64 * tid)
            atomic_store(asleep, 0)
            spins = 0


@native(
    x=PTR, y=PTR, rows=I64, nbytes=I64, x_pitch=I64, y_pitch=I64, itemsize=I64,
    extents=lambda a: {
        "x": box(a.nbytes, (a.rows, a.x_pitch * a.itemsize)), "y": box(a.nbytes, (a.rows, a.y_pitch * a.itemsize))
    },
)  # fmt: skip
def copy_rows(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Copy ``rows`` rows of ``nbytes`` bytes; pitches in elements of ``itemsize`` bytes, unused for one row."""
    if p.rows == 1:
        low, high = split(p.nbytes, tid, nthreads)
        copy_bytes(p.y + low, p.x + low, high - low)
        return
    low, high = split(p.rows, tid, nthreads)
    for row in range(low, high):
        copy_bytes(p.y + row * p.y_pitch * p.itemsize, p.x + row * p.x_pitch * p.itemsize, p.nbytes)
