"""The native loop that runs a program, the team that shares it, and the copies that the planner itself needs.

Operator kernels are not here; this file registers none.
"""

from __future__ import annotations

from bolt_numba.kernels.cpu.lang import (
    I64,
    PTR,
    atomic_add,
    atomic_load,
    atomic_store,
    call_kernel,
    copy_bytes,
    cycles,
    inline,
    load_i64,
    native,
    sched_yield,
    sem_post,
    sem_wait,
    spin_pause,
    split,
    store_i64,
)

SPINS = 2000
"""Pauses that a worker waits for the next run before it sleeps: about 50 us on current x86."""
BARRIER_SPINS = 20000
"""Pauses at a barrier before the thread offers its processor to others (they may be what it waits for)."""


@inline
def barrier(sync: int, nthreads: int) -> None:
    """Wait for all threads.  sync: address of two cache lines, arrivals and generation."""
    generation = atomic_load(sync + 64)
    if atomic_add(sync, 1) == nthreads - 1:
        atomic_store(sync, 0)
        atomic_store(sync + 64, generation + 1)
    else:
        spins = 0
        while atomic_load(sync + 64) == generation:
            spins += 1
            if spins < BARRIER_SPINS:
                spin_pause()
            else:
                sched_yield()


@inline
def run_share(call: int, sync: int, tid: int, nthreads: int) -> None:
    """Run this thread's share of the steps of the `run_steps` record at ``call``.

    flags: 1 every thread calls the kernel, else only thread 0 as if alone; 2 a barrier follows.
    """
    kernels, params, flags = load_i64(call), load_i64(call + 8), load_i64(call + 16)
    ticks, steps, timed = load_i64(call + 24), load_i64(call + 32), load_i64(call + 40)
    if timed and tid == 0:
        store_i64(ticks, cycles())
    for s in range(steps):
        flag = load_i64(flags + 8 * s)
        if flag & 1 and nthreads > 1:
            call_kernel(load_i64(kernels + 8 * s), load_i64(params + 8 * s), tid, nthreads)
        elif tid == 0:
            call_kernel(load_i64(kernels + 8 * s), load_i64(params + 8 * s), 0, 1)
        if flag & 2 and nthreads > 1:
            barrier(sync, nthreads)
        if timed and tid == 0:
            store_i64(ticks + 8 * (s + 1), cycles())


@native(kernels=PTR, params=PTR, flags=PTR, ticks=PTR, steps=I64, timed=I64, own=PTR)
def run_steps(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Run a program on the calling thread alone.

    kernels, params, flags: i64 arrays, one entry a step; ticks: steps + 1 cycle counts, written when ``timed``;
    own: address of this very record.
    """
    run_share(p.own, 0, 0, 1)


@native(generation=PTR, job=PTR, done=PTR, sync=PTR, asleep=PTR, semaphores=PTR, spins=I64, call=PTR)
def team_run(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Run the `run_steps` record at ``call`` with the workers of the team; returns when all have finished.

    generation, job, done, sync, asleep: addresses of counters, a cache line each (sync: two; asleep: one a worker);
    semaphores: 64 bytes a worker.
    """
    atomic_store(p.job, p.call)
    atomic_store(p.done, 0)
    # The locked add is also the fence between publishing the job and looking who sleeps.
    atomic_add(p.generation, 1)
    for worker in range(1, nthreads):
        if atomic_load(p.asleep + 64 * worker) == 1:
            sem_post(p.semaphores + 64 * worker)
    run_share(p.call, p.sync, 0, nthreads)
    spins = 0
    while atomic_load(p.done) != nthreads - 1:
        spins += 1
        if spins < BARRIER_SPINS:
            spin_pause()
        else:
            sched_yield()


@native(generation=PTR, job=PTR, done=PTR, sync=PTR, asleep=PTR, semaphores=PTR, spins=I64, call=PTR)
def team_worker(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Take part in every run of the team, for ever.

    A wake-up may come late or twice: the generation alone says whether there is work.
    """
    seen = 0
    asleep = p.asleep + 64 * tid
    while True:
        spins = 0
        while atomic_load(p.generation) == seen:
            spins += 1
            if spins < p.spins:
                spin_pause()
            else:
                # The locked add is the fence between saying "asleep" and looking once more.
                atomic_add(asleep, 1)
                if atomic_load(p.generation) == seen:
                    sem_wait(p.semaphores + 64 * tid)
                atomic_store(asleep, 0)
        seen += 1
        run_share(atomic_load(p.job), p.sync, tid, nthreads)
        atomic_add(p.done, 1)


@native(x=PTR, y=PTR, rows=I64, nbytes=I64, x_pitch=I64, y_pitch=I64, itemsize=I64)
def copy_rows(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Copy ``rows`` rows of ``nbytes`` bytes; pitches in elements of ``itemsize`` bytes, unused for one row."""
    if p.rows == 1:
        low, high = split(p.nbytes, tid, nthreads)
        copy_bytes(p.y + low, p.x + low, high - low)
        return
    low, high = split(p.rows, tid, nthreads)
    for row in range(low, high):
        copy_bytes(p.y + row * p.y_pitch * p.itemsize, p.x + row * p.x_pitch * p.itemsize, p.nbytes)
