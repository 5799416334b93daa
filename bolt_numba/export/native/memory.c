/* Memory from the system: aligned blocks, mapped files, pages of machine code. */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

#define LINE ((size_t)64)
#define LARGE_PAGE ((size_t)1 << 21)

void *bn_allocate(size_t nbytes) {
    size_t unit = nbytes >= BN_LARGE_FROM ? LARGE_PAGE : LINE;
    if (nbytes > SIZE_MAX - LARGE_PAGE) return NULL;
    size_t room = nbytes == 0 ? LINE : (nbytes + LINE - 1) / LINE * LINE;
    void *memory = NULL;
    if (posix_memalign(&memory, unit, room) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    if (unit == LARGE_PAGE) (void)madvise(memory, room / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
#endif
    return memory;
}

void bn_release(void *memory) { free(memory); }

void bn_forget_pages(const void *from, size_t nbytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), low = ((uintptr_t)from + page - 1) / page * page;
    uintptr_t high = ((uintptr_t)from + nbytes) / page * page;
    if (low < high) (void)madvise((void *)low, high - low, MADV_DONTNEED);
}

bn_status bn_map_file(const char *path, bn_file *file, bn_error *error) {
    struct stat about;
    /* Opening a named pipe would wait for who writes to it. */
    int number = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (number < 0) return bn_fail(error, BN_FILE, "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(number, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size <= 0) {
        close(number);
        return bn_fail(error, BN_FILE, "%s: got no file with content", path);
    }
    void *data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, number, 0);
    int reason = errno;
    close(number);
    if (data == MAP_FAILED) return bn_fail(error, BN_FILE, "%s: cannot be mapped: %s", path, strerror(reason));
    file->data = data;
    file->nbytes = (size_t)about.st_size;
    return BN_OK;
}

void bn_unmap_file(bn_file *file) {
    if (file->data != NULL) munmap((void *)(uintptr_t)file->data, file->nbytes);
    file->data = NULL;
}

unsigned char *bn_code_memory(size_t nbytes) {
    void *code = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return code == MAP_FAILED ? NULL : code;
}

bool bn_seal_code(unsigned char *code, size_t nbytes) {
    if (mprotect(code, nbytes, PROT_READ | PROT_EXEC) != 0) return false;
#if defined(__GNUC__)
    /* Nothing on x86; elsewhere what was written may still stand in the cache of data alone. */
    __builtin___clear_cache((char *)code, (char *)code + nbytes);
#endif
    return true;
}

void bn_free_code(unsigned char *code, size_t nbytes) {
    if (code != NULL) munmap(code, nbytes);
}
