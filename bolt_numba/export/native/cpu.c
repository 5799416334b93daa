/* The processor: which levels of instructions it has, and its floating-point control. */

#define _GNU_SOURCE

#include <string.h>
#include <unistd.h>

#include "internal.h"

#if defined(__linux__)
#include <sched.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

/* Groups of instructions that a level adds to the one before. */
enum { SSE42 = 1, AVX2 = 2, AVX_VNNI = 4, AVX512 = 8, AVX512_VNNI = 16, AVX512_VBMI = 32, AVX512_BF16 = 64 };
enum { DOT = 1, I8MM = 2 };

typedef struct level {
    const char *name;
    unsigned needs;
} level;

/* The better of an architecture comes later. */
static const level levels[] = {
#if defined(__x86_64__)
    {"x86-64", 0},
    {"x86-64-v2", SSE42},
    {"x86-64-v3", SSE42 | AVX2},
    {"x86-64-v3-vnni", SSE42 | AVX2 | AVX_VNNI},
    {"x86-64-v4", SSE42 | AVX2 | AVX512},
    {"x86-64-v4-vnni", SSE42 | AVX2 | AVX512 | AVX512_VNNI},
    {"x86-64-v4-vbmi", SSE42 | AVX2 | AVX512 | AVX512_VNNI | AVX512_VBMI},
    {"x86-64-v4-bf16", SSE42 | AVX2 | AVX512 | AVX512_VNNI | AVX512_VBMI | AVX512_BF16},
#elif defined(__aarch64__)
    {"aarch64", 0},
    {"aarch64-dot", DOT},
    {"aarch64-i8mm", DOT | I8MM},
#else
    {"", 0},
#endif
};

#if defined(__x86_64__)

#define BIT(n) (1u << (n))

static bool has_all(unsigned value, unsigned bits) { return (value & bits) == bits; }

/* Which parts of the register file the system keeps for threads. */
static unsigned kept_state(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Source of the bits: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID. */
static unsigned found_groups(void) {
    unsigned a, b1 = 0, c1 = 0, d1 = 0, b7 = 0, c7 = 0, d7 = 0, a71 = 0, cx = 0, unused, found = 0;
    if (!__get_cpuid(1, &a, &b1, &c1, &d1)) return 0;
    bool has_7 = __get_cpuid_count(7, 0, &a, &b7, &c7, &d7);
    if (has_7 && a >= 1) __get_cpuid_count(7, 1, &a71, &unused, &unused, &unused);
    if (!__get_cpuid(0x80000001, &a, &unused, &cx, &unused)) cx = 0;
    /* sse3, ssse3, cx16, sse4.1, sse4.2, popcnt; lahf */
    if (has_all(c1, BIT(0) | BIT(9) | BIT(13) | BIT(19) | BIT(20) | BIT(23)) && has_all(cx, BIT(0))) found |= SSE42;
    unsigned state = has_all(c1, BIT(27)) ? kept_state() : 0;
    /* fma, movbe, avx, f16c; bmi, avx2, bmi2; lzcnt */
    if (has_all(state, 6) && has_all(c1, BIT(12) | BIT(22) | BIT(28) | BIT(29)) &&
        has_all(b7, BIT(3) | BIT(5) | BIT(8)) && has_all(cx, BIT(5)))
        found |= AVX2;
    if (has_all(state, 6) && has_all(a71, BIT(4))) found |= AVX_VNNI;
    if (!has_all(state, 0xE6)) return found;
    /* avx512f, dq, cd, bw, vl */
    if (has_all(b7, BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31))) found |= AVX512;
    if (has_all(c7, BIT(11))) found |= AVX512_VNNI;
    /* vbmi, vbmi2, gfni, vaes, vpclmulqdq, bitalg, vpopcntdq; ifma; aes, pclmul */
    if (has_all(c7, BIT(1) | BIT(6) | BIT(8) | BIT(9) | BIT(10) | BIT(12) | BIT(14)) && has_all(b7, BIT(21)) &&
        has_all(c1, BIT(1) | BIT(25)))
        found |= AVX512_VBMI;
    if (has_all(a71, BIT(5))) found |= AVX512_BF16;
    return found;
}

#elif defined(__aarch64__) && defined(__linux__)

/* Source of the bits: Linux, arch/arm64/include/uapi/asm/hwcap.h. */
static unsigned found_groups(void) {
    unsigned found = 0;
    if (getauxval(AT_HWCAP) & (1ul << 20)) found |= DOT;
    if (getauxval(AT_HWCAP2) & (1ul << 13)) found |= I8MM;
    return found;
}

#else

static unsigned found_groups(void) { return 0; }

#endif

int bn_level_rank(const char *name) {
    int count = (int)(sizeof levels / sizeof levels[0]);
    for (int i = 0; i < count; i++)
        if (strcmp(levels[i].name, name) == 0) return (found_groups() & levels[i].needs) == levels[i].needs ? i + 1 : 0;
    return -1;
}

int bn_processors(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (int)count : 1;
}

#if defined(__x86_64__)

#define FLUSH_TO_ZERO (1u << 15)

unsigned bn_flush_denormals(void) {
    unsigned control = _mm_getcsr();
    _mm_setcsr(control | FLUSH_TO_ZERO);
    return control;
}

void bn_restore_floats(unsigned control) { _mm_setcsr(control); }

#else

unsigned bn_flush_denormals(void) { return 0; }

void bn_restore_floats(unsigned control) { (void)control; }

#endif
