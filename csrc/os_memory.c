/* Mappings and memory. */
#include "os.h"

#include "os_call.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

uint64_t ac_os_page_size(void) {
    static uint64_t size;
    uint64_t known = __atomic_load_n(&size, __ATOMIC_RELAXED);
    if (known == 0) {
        known = (uint64_t)sysconf(_SC_PAGESIZE);
        __atomic_store_n(&size, known, __ATOMIC_RELAXED);
    }
    return known;
}

void *ac_os_map(int fd, uint64_t length, int writable, int *error) {
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    *error = fault(AC_CALL_MAP, NULL, fd, 0, length);
    if (*error) return NULL;
    void *base = mmap(NULL, length, protection, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED) return base;
    *error = errno;
    return NULL;
}

void ac_os_unmap(void *base, uint64_t length) {
    if (base) munmap(base, length);
}

int ac_os_map_dontfork(void *base, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_MAP, NULL, -1, 0, length, madvise(base, length, MADV_DONTFORK));
    return rc;
}

int ac_os_populate(void *base, uint64_t offset, uint64_t length, int writable) {
    uint64_t page = ac_os_page_size();
    uint64_t from = offset & ~(page - 1);
    int advice = writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    int rc;
    do {
        CALL(rc, AC_CALL_POPULATE, NULL, -1, from, length + (offset - from),
             madvise((char *)base + from, length + (offset - from), advice));
    } while (rc == -EAGAIN);
    return rc == -EINVAL ? 0 : rc; /* a kernel before 5.14: pages fault in one by one */
}

void ac_os_unpopulate(void *base, uint64_t from, uint64_t to) {
    if (from >= to) return;
    char *start = (char *)base + from;
    if (madvise(start, to - from, MADV_DONTNEED) < 0) /* locked into memory? */
        madvise(start, to - from, MADV_DONTNEED_LOCKED);
}

int ac_os_memlock(void *base, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_MEMLOCK, NULL, -1, 0, length, mlock(base, length));
    return rc;
}

void *ac_os_alloc(size_t size) {
    return fault(AC_CALL_ALLOC, NULL, -1, 0, size) ? NULL : calloc(1, size);
}
