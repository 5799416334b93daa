/* A team of threads that shares steps with its caller.

   A step has parts.  Whoever comes takes a part that nobody has: each thread its own first, which is mostly of what it
   computed in the step before, then any.  The caller does so too, and never waits for a thread that has not begun.
   A part's word is the last epoch in which it was taken.  An epoch is a step; it ends when all parts are done.  So a
   worker that took a part of an epoch reads the step of that epoch, and one that comes too late finds no part.

   Workers spin for a short while after a step, then sleep.  Where runs of this process want more threads than there are
   processors, workers are left asleep and the caller does all parts: results are the same. */

#define _GNU_SOURCE

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

#define SPIN_NS 50000      /* a worker waits so long for the next step before it sleeps */
#define PATIENCE_NS 100000 /* the caller waits so long for parts of others before it offers its processor */
#define PAUSES 32          /* between two looks at the clock */

typedef struct part {
    _Alignas(64) _Atomic uint64_t taken;
    _Atomic uint64_t done;
} part;

typedef struct worker {
    struct bn_team *team;
    pthread_t thread;
    int own;
} worker;

struct bn_team {
    _Alignas(64) _Atomic uint64_t epoch;
    _Alignas(64) atomic_int sleepers;
    atomic_bool ends;
    bn_kernel kernel;
    void *record;
    int threads; /* parts of each step */
    int workers, processors;
    part *part;
    worker *worker;
    pthread_mutex_t lock;
    pthread_cond_t work;
};

/* Threads that the runs of this process want now, each at most all processors. */
static atomic_int wanted_now;

static void spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Threads that a run of the team wants. */
static int wanted(const bn_team *team) { return team->threads < team->processors ? team->threads : team->processors; }

static bool are_too_many(const bn_team *team) {
    return atomic_load_explicit(&wanted_now, memory_order_relaxed) > team->processors;
}

static void take_parts(bn_team *team, uint64_t epoch, int own) {
    for (int i = 0; i < team->threads; i++) {
        part *share = &team->part[(own + i) % team->threads];
        uint64_t before = epoch - 1;
        if (atomic_load_explicit(&share->taken, memory_order_relaxed) != before) continue;
        if (!atomic_compare_exchange_strong(&share->taken, &before, epoch)) continue;
        team->kernel(team->record, (own + i) % team->threads, team->threads);
        atomic_store_explicit(&share->done, epoch, memory_order_release);
    }
}

/* The epoch after `seen`, or `seen` where there has been none for a while or the team ends. */
static uint64_t spun(bn_team *team, uint64_t seen) {
    int64_t until = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < PAUSES; i++) {
            uint64_t epoch = atomic_load_explicit(&team->epoch, memory_order_acquire);
            if (epoch != seen) return epoch;
            spin_pause();
        }
    } while (!are_too_many(team) && now_ns() < until);
    return seen;
}

/* The same, asleep until there is one or the team ends. */
static uint64_t slept(bn_team *team, uint64_t seen) {
    uint64_t epoch;
    pthread_mutex_lock(&team->lock);
    /* Sequentially consistent, as are bn_team_share's store of the epoch and its look for sleepers: one sees the other. */
    atomic_fetch_add(&team->sleepers, 1);
    while ((epoch = atomic_load(&team->epoch)) == seen && !atomic_load(&team->ends))
        pthread_cond_wait(&team->work, &team->lock);
    atomic_fetch_sub(&team->sleepers, 1);
    pthread_mutex_unlock(&team->lock);
    return epoch;
}

static void *work(void *argument) {
    worker *self = argument;
    bn_team *team = self->team;
    uint64_t seen = 0;
    (void)bn_flush_denormals(); /* the thread is ours */
    while (!atomic_load(&team->ends)) {
        uint64_t epoch = spun(team, seen);
        if (epoch == seen) epoch = slept(team, seen);
        if (epoch != seen) take_parts(team, epoch, self->own);
        seen = epoch;
    }
    return NULL;
}

bn_team *bn_team_create(int threads) {
    bn_team *team = bn_allocate(sizeof *team);
    if (team == NULL) return NULL;
    memset(team, 0, sizeof *team);
    team->threads = threads;
    team->processors = bn_processors();
    team->part = bn_allocate((size_t)threads * sizeof *team->part);
    team->worker = calloc((size_t)threads, sizeof *team->worker);
    if (team->part == NULL || team->worker == NULL) {
        bn_release(team->part);
        free(team->worker);
        bn_release(team);
        return NULL;
    }
    memset(team->part, 0, (size_t)threads * sizeof *team->part);
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->work, NULL);
    for (int i = 0; i < threads - 1; i++) {
        worker *one = &team->worker[i];
        one->team = team;
        one->own = i + 1;
        if (pthread_create(&one->thread, NULL, work, one) != 0) break; /* the others do its parts */
        team->workers++;
    }
    return team;
}

static void wake(bn_team *team) {
    pthread_mutex_lock(&team->lock);
    pthread_cond_broadcast(&team->work);
    pthread_mutex_unlock(&team->lock);
}

void bn_team_destroy(bn_team *team) {
    if (team == NULL) return;
    atomic_store(&team->ends, true);
    wake(team);
    for (int i = 0; i < team->workers; i++) pthread_join(team->worker[i].thread, NULL);
    pthread_mutex_destroy(&team->lock);
    pthread_cond_destroy(&team->work);
    bn_release(team->part);
    free(team->worker);
    bn_release(team);
}

void bn_team_begin(bn_team *team) { atomic_fetch_add(&wanted_now, team == NULL ? 1 : wanted(team)); }

void bn_team_end(bn_team *team) { atomic_fetch_sub(&wanted_now, team == NULL ? 1 : wanted(team)); }

void bn_team_share(bn_team *team, bn_kernel kernel, void *record) {
    /* All parts of the epoch before are done; from the store on those of this one can be taken. */
    uint64_t epoch = atomic_load_explicit(&team->epoch, memory_order_relaxed) + 1;
    team->kernel = kernel;
    team->record = record;
    atomic_store(&team->epoch, epoch);
    if (atomic_load(&team->sleepers) > 0 && !are_too_many(team)) wake(team);
    take_parts(team, epoch, 0);
    for (int share = 0; share < team->threads; share++) {
        int64_t until = 0;
        for (unsigned spins = 1; atomic_load_explicit(&team->part[share].done, memory_order_acquire) != epoch; spins++) {
            spin_pause();
            if (spins % PAUSES != 0) continue;
            if (until == 0) until = now_ns() + PATIENCE_NS;
            if (are_too_many(team) || now_ns() > until) sched_yield();
        }
    }
}
