/* Runs kernels for another processor: reads a block, calls what it says, writes the arrays back.  See remote.py. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 65536 /* as large as any processor's */

typedef void (*kernel_t)(int64_t params, int64_t share, int64_t shares);

static const struct {
    const char *name;
    void *address;
} FUNCTIONS[] = {
    {"memcpy", (void *)memcpy},         {"memset", (void *)memset}, {"memmove", (void *)memmove},
    {"sem_wait", (void *)sem_wait},     {"sem_post", (void *)sem_post},
    {"sched_yield", (void *)sched_yield}, {"fma", (void *)fma},     {"fmaf", (void *)fmaf},
    {"ceilf", (void *)ceilf}, {"ceil", (void *)ceil}, {"floorf", (void *)floorf}, {"floor", (void *)floor},
    {"expf", (void *)expf}, {"exp", (void *)exp}, {"log", (void *)log}, {"logf", (void *)logf},
    {"pow", (void *)pow}, {"powf", (void *)powf}, {"fmod", (void *)fmod}, {"fmodf", (void *)fmodf},
    {"sin", (void *)sin}, {"cos", (void *)cos}, {"tan", (void *)tan}, {"sinf", (void *)sinf}, {"cosf", (void *)cosf},
};

static int64_t next(FILE *file) {
    int64_t value = 0;
    if (fread(&value, sizeof value, 1, file) != 1) {
        fprintf(stderr, "runner: the block ends early\n");
        exit(3);
    }
    return value;
}

/* Memory whose last byte, up to alignment, lies before a page that nobody may touch. */
static char *guarded(int64_t nbytes, int64_t align, int access) {
    int64_t room = (nbytes + align + PAGE - 1) / PAGE * PAGE;
    char *base = mmap(NULL, (size_t)(room + 2 * PAGE), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + PAGE, (size_t)room, access)) {
        fprintf(stderr, "runner: no memory\n");
        exit(3);
    }
    return base + PAGE + (room - nbytes) / align * align;
}

static void *function(const char *name) {
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (!strcmp(FUNCTIONS[i].name, name)) return FUNCTIONS[i].address;
    fprintf(stderr, "runner: no C function %s\n", name);
    exit(3);
}

static void say(int signal, siginfo_t *info, void *context) {
    (void)context;
    char text[96];
    int n = snprintf(text, sizeof text, "runner: signal %d at %p\n", signal, info->si_addr);
    if (write(2, text, (size_t)n) < 0) _exit(5);
    _exit(4);
}

int main(int argc, char **argv) {
    FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL) return 2;
    struct sigaction action = {.sa_sigaction = say, .sa_flags = SA_SIGINFO};
    for (int i = 0; i < 3; i++) sigaction((int[]){SIGSEGV, SIGBUS, SIGILL}[i], &action, NULL);
    int64_t arrays = next(file), codes = next(file), patches = next(file), calls = next(file);
    char **array = calloc((size_t)arrays + 1, sizeof *array);
    char **code = calloc((size_t)codes + 1, sizeof *code);
    int64_t *nbytes = calloc((size_t)arrays + 1, sizeof *nbytes), *written = calloc((size_t)arrays + 1, sizeof *written);
    for (int64_t i = 0; i < arrays; i++) {
        nbytes[i] = next(file);
        int64_t align = next(file);
        written[i] = next(file);
        array[i] = guarded(nbytes[i], align, PROT_READ | PROT_WRITE);
        if (nbytes[i] && fread(array[i], (size_t)nbytes[i], 1, file) != 1) return 3;
    }
    for (int64_t i = 0; i < codes; i++) {
        int64_t size = next(file), entry = next(file), imports = next(file);
        char *base = guarded(size, 64, PROT_READ | PROT_WRITE); /* blobs stand at any multiple of 64 */
        if (fread(base, (size_t)size, 1, file) != 1) return 3;
        for (int64_t k = 0; k < imports; k++) {
            int64_t at = next(file);
            char name[32];
            if (fread(name, sizeof name, 1, file) != 1) return 3;
            void *address = function(name);
            memcpy(base + at, &address, 8);
        }
        uintptr_t page = (uintptr_t)base / PAGE * PAGE;
        mprotect((void *)page, (size_t)((uintptr_t)base + (size_t)size - page), PROT_READ | PROT_EXEC);
        __builtin___clear_cache(base, base + size);
        code[i] = base + entry;
    }
    for (int64_t i = 0; i < patches; i++) {
        int64_t where = next(file), at = next(file), is_code = next(file), which = next(file), offset = next(file);
        int64_t value = (int64_t)(intptr_t)(is_code ? code[which] : array[which]) + offset;
        memcpy(array[where] + at, &value, 8);
    }
    for (int64_t i = 0; i < calls; i++) {
        int64_t kernel = next(file), record = next(file), share = next(file), shares = next(file), word = next(file);
        if (word >= 0) share = (int64_t)(intptr_t)array[word]; /* the executor gets an address there */
        ((kernel_t)(void *)code[kernel])((int64_t)(intptr_t)array[record], share, shares);
    }
    FILE *out = fopen(argv[2], "wb");
    for (int64_t i = 0; i < arrays; i++)
        if (written[i] && nbytes[i] && fwrite(array[i], (size_t)nbytes[i], 1, out) != 1) return 3;
    return fclose(out) ? 3 : 0;
}
