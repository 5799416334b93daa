/* A driver of one GPU whose memory is the host's, for the arguments that cuda.bindings hands on: `test_bindings.py`.
   Work is done when it is asked for, kernels only leave what they were launched with, and a wrong handle is refused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *H;
#define IS(handle, name) ((handle) == (H)(name) ? 0 : 400)
enum { CONTEXT = 0x1000, STREAM = 0x2000, GRAPH = 0x3000, REPLAY = 0x4000, MODULE = 0x5000, FUNCTION = 0x6000, EVENT = 0x7000 };
int64_t launched[8]; /* blocks in three directions, threads, shared memory, the first two parameters, launches */
int64_t attribute[2], mapped[12], replays, waited;
static __thread int depth;
static void *grains(size_t n) { return aligned_alloc(256, (n + 256) / 256 * 256); }

int fake_cuInit(unsigned flags) { return flags; }
int fake_cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int fake_cuDeviceGetCount(int *v) { *v = 1; return 0; }
int fake_cuDeviceGet(int *d, int n) { *d = n; return 0; }
int fake_cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Host"); return d; }
int fake_cuDeviceTotalMem(size_t *s, int d) { *s = (size_t)16 << 30; return d; }
int fake_cuDeviceGetAttribute(int *v, int kind, int d)
{ *v = kind == 75 ? 9 : kind == 76 ? 0 : kind == 97 ? 232448 : kind == 16 ? 132 : -1; return *v < 0 ? 1 : d; }
int fake_cuDevicePrimaryCtxRetain(H *c, int d) { *c = (H)CONTEXT; return d; }
int fake_cuCtxPushCurrent(H c) { depth++; return IS(c, CONTEXT); }
int fake_cuCtxPopCurrent(H *c) { *c = (H)CONTEXT; return depth-- > 0 ? 0 : 201; }
int fake_cuMemAlloc(uint64_t *p, size_t n) { *p = (uint64_t)grains(n); return depth ? 0 : 201; }
int fake_cuMemFree(uint64_t p) { free((void *)p); return depth ? 0 : 201; }
int fake_cuMemGetInfo(size_t *f, size_t *t) { *f = 1 << 30; *t = (size_t)16 << 30; return 0; }
int fake_cuMemHostAlloc(void **p, size_t n, unsigned flags) { *p = grains(n); return flags; }
int fake_cuMemFreeHost(void *p) { free(p); return 0; }
int fake_cuMemcpyHtoDAsync(uint64_t d, const void *s, size_t n, H q) { memcpy((void *)d, s, n); return IS(q, STREAM); }
int fake_cuMemcpyDtoHAsync(void *d, uint64_t s, size_t n, H q) { memcpy(d, (void *)s, n); return IS(q, STREAM); }
int fake_cuMemcpyDtoDAsync(uint64_t d, uint64_t s, size_t n, H q) { memmove((void *)d, (void *)s, n); return IS(q, STREAM); }
int fake_cuStreamCreate(H *q, unsigned flags) { *q = (H)STREAM; return flags != 1; }
int fake_cuStreamDestroy(H q) { return IS(q, STREAM); }
int fake_cuStreamSynchronize(H q) { return IS(q, STREAM); }
int fake_cuStreamWaitEvent(H q, H e, unsigned flags) { waited++; return IS(q, STREAM) | IS(e, EVENT) | flags; }
int fake_cuStreamBeginCapture(H q, int mode) { return IS(q, STREAM) | (mode != 2); }
int fake_cuStreamEndCapture(H q, H *g) { *g = (H)GRAPH; return IS(q, STREAM); }
int fake_cuGraphInstantiateWithFlags(H *r, H g, unsigned long long flags) { *r = (H)REPLAY; return IS(g, GRAPH) | (flags != 0); }
int fake_cuGraphDestroy(H g) { return IS(g, GRAPH); }
int fake_cuGraphExecDestroy(H r) { return IS(r, REPLAY); }
int fake_cuGraphLaunch(H r, H q) { replays++; return IS(r, REPLAY) | IS(q, STREAM); }
int fake_cuEventCreate(H *e, unsigned flags) { *e = (H)EVENT; return flags & ~2; }
int fake_cuEventRecord(H e, H q) { return IS(e, EVENT) | (q == (H)1 ? 0 : IS(q, STREAM)); }
int fake_cuEventSynchronize(H e) { return IS(e, EVENT); }
int fake_cuEventElapsedTime(float *ms, H a, H b) { *ms = 2; return IS(a, EVENT) | IS(b, EVENT); }
int fake_cuEventDestroy(H e) { return IS(e, EVENT); }
int fake_cuPointerGetAttribute(void *found, int kind, uint64_t p) { *(int *)found = 0; return kind != 9; }
int fake_cuModuleLoadData(H *m, const void *code) { *m = (H)MODULE; return memcmp(code, "\x7f" "ELF", 4) ? 200 : 0; }
int fake_cuModuleEnumerateFunctions(H *f, unsigned n, H m) { f[0] = (H)FUNCTION; return IS(m, MODULE) | (n != 1); }
int fake_cuFuncSetAttribute(H f, int kind, int value) { attribute[0] = kind, attribute[1] = value; return IS(f, FUNCTION); }
int fake_cuLaunchKernel(H f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                        unsigned shared, H q, void **given, void **extra)
{
    int64_t one = given ? *(int64_t *)given[0] : 0, two = given ? *(int64_t *)given[1] : 0, n = launched[7] + 1;
    memcpy(launched, (int64_t[]){x, y, z, threads, shared, one, two, n}, sizeof launched);
    return IS(f, FUNCTION) | IS(q, STREAM) | (extra != 0) | (ty * tz != 1);
}
int fake_cuTensorMapEncodeTiled(void *map, int kind, unsigned rank, void *address, const uint64_t *dims,
                                const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                int swizzle, int promotion, int fill)
{
    int64_t all[] = {kind, rank, (int64_t)address, dims[0], dims[1], strides[0], box[0], box[1], steps[0], swizzle,
                     promotion, interleave + fill};
    memcpy(mapped, all, sizeof mapped);
    memset(map, 7, 128);
    return (uint64_t)map % 128 != 0;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    char own[80];
    Dl_info here;
    snprintf(own, sizeof own, "fake_%s", name);
    dladdr(launched, &here);
    *found = dlsym(dlopen(here.dli_fname, RTLD_NOW), own);
    if (status) *status = !*found;
    return *found ? 0 : 500;
}
int fake_cuGetProcAddress(const char *name, void **found, int version, uint64_t flags, int *status)
{ return cuGetProcAddress_v2(name, found, version, flags, status); }
