/* Syncs: of a file, a directory, a part of a mapping, and of many at once through io_uring. */
#include "os.h"

#include "atomics.h"
#include "os_call.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Old headers lack it; the engine then works without it, as on old kernels. */
#if __has_include(<linux/io_uring.h>) && defined(SYS_io_uring_setup)
#include <linux/io_uring.h>
#define HAVE_IO_URING 1
#else
#define HAVE_IO_URING 0
#endif

int ac_os_sync(int fd) {
    int rc;
    CALL(rc, AC_CALL_SYNC, NULL, fd, 0, 0, fdatasync(fd));
    return rc;
}

int ac_os_sync_dir(int dir) {
    int rc;
    CALL(rc, AC_CALL_SYNC_DIR, NULL, dir, 0, 0, fsync(dir));
    return rc;
}

int ac_os_map_sync(void *base, int fd, uint64_t offset, uint64_t length) {
    uint64_t page = ac_os_page_size();
    uint64_t from = offset & ~(page - 1);
    int rc;
    CALL(rc, AC_CALL_SYNC_MAP, NULL, fd, from, length + (offset - from),
         msync((char *)base + from, length + (offset - from), MS_SYNC));
    return rc;
}

int ac_os_start_writing(int fd, uint64_t offset, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_START_WRITING, NULL, fd, offset, length,
         sync_file_range(fd, (off64_t)offset, (off64_t)length, SYNC_FILE_RANGE_WRITE));
    return rc == -ESPIPE || rc == -ENOSYS ? 0
                                          : rc; /* nothing was started: the sync will do it all */
}

#if HAVE_IO_URING

/* Maps what the kernel laid out: one area with both rings (kernels before 5.4, which have two, are
 * refused), and the submission entries. */
static int map_ring(ac_ring_t *ring, const struct io_uring_params *params) {
    if (!(params->features & IORING_FEAT_SINGLE_MMAP)) return -ENOSYS;
    uint64_t submitting = params->sq_off.array + params->sq_entries * sizeof(uint32_t);
    uint64_t completing = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    ring->rings_size = submitting > completing ? submitting : completing;
    ring->entries_size = params->sq_entries * sizeof(struct io_uring_sqe);
    int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *rings = mmap(NULL, ring->rings_size, protection, flags, ring->fd, IORING_OFF_SQ_RING);
    if (rings == MAP_FAILED) return -errno;
    ring->rings = rings;
    ring->entries = mmap(NULL, ring->entries_size, protection, flags, ring->fd, IORING_OFF_SQES);
    if (ring->entries == MAP_FAILED) {
        int error = errno;
        ring->entries = NULL;
        return -error;
    }
    ring->tail = (uint32_t *)(void *)(rings + params->sq_off.tail);
    ring->slots = (uint32_t *)(void *)(rings + params->sq_off.array);
    ring->mask = params->sq_entries - 1;
    ring->completed_head = (uint32_t *)(void *)(rings + params->cq_off.head);
    ring->completed_tail = (uint32_t *)(void *)(rings + params->cq_off.tail);
    ring->completed_mask = params->cq_entries - 1;
    ring->completions = rings + params->cq_off.cqes;
    return 0;
}

int ac_os_ring_open(ac_ring_t *ring, unsigned entries, unsigned workers) {
    struct io_uring_params params = {0};
    unsigned most[2] = {workers, workers}; /* for files, and for everything else */
    int fd;
    memset(ring, 0, sizeof *ring);
    CALL_VALUE(fd, AC_CALL_RING, NULL, -1, 0, entries,
               (int)syscall(SYS_io_uring_setup, entries, &params));
    ring->fd = fd;
    if (fd < 0) return fd;
    int rc = map_ring(ring, &params);
    if (rc < 0) {
        ac_os_ring_close(ring);
        return rc;
    }
    enum {
        MAX_WORKERS = 19
    }; /* IORING_REGISTER_IOWQ_MAX_WORKERS; before Linux 5.15 nothing happens */
    syscall(SYS_io_uring_register, fd, MAX_WORKERS, most, 2);
    return 0;
}

int ac_os_ring_sync(ac_ring_t *ring, int fd, uint64_t offset, uint64_t length, uint64_t tag) {
    int injected_errno;
    do {
        injected_errno = fault(AC_CALL_SYNC_MAP, NULL, fd, offset, length);
    } while (injected_errno == EINTR);
    if (injected_errno) return -injected_errno;
    uint32_t tail = *ring->tail, slot = tail & ring->mask;
    struct io_uring_sqe *entry = (struct io_uring_sqe *)ring->entries + slot;
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_FSYNC;
    entry->fsync_flags = IORING_FSYNC_DATASYNC;
    entry->fd = fd;
    entry->user_data = tag;
    if (length <= UINT32_MAX) { /* otherwise all of the file: offset and length 0 */
        entry->off = offset;
        entry->len = (uint32_t)length;
    }
    ring->slots[slot] = slot;
    ac_store_release_u32(ring->tail, tail + 1); /* pairs with the kernel's load of the tail */
    return 0;
}

size_t ac_os_ring_submit(ac_ring_t *ring, size_t queued) {
    size_t taken = 0;
    while (taken < queued) {
        long some = syscall(SYS_io_uring_enter, ring->fd, queued - taken, 0, 0, NULL, 0);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) break;
        taken += (size_t)some;
    }
    return taken;
}

int ac_os_ring_wait(ac_ring_t *ring, size_t expected, uint64_t *tag, int *result) {
    uint32_t head = *ring->completed_head;
    while (head == ac_load_acquire_u32(ring->completed_tail)) { /* pairs with the kernel's store */
        long rc =
            syscall(SYS_io_uring_enter, ring->fd, 0, expected, IORING_ENTER_GETEVENTS, NULL, 0);
        if (rc < 0 && errno != EINTR) return -errno;
    }
    const struct io_uring_cqe *completion =
        (const struct io_uring_cqe *)ring->completions + (head & ring->completed_mask);
    *tag = completion->user_data;
    *result = completion->res;
    ac_store_release_u32(ring->completed_head, head + 1); /* the kernel may reuse its place */
    return 0;
}

void ac_os_ring_close(ac_ring_t *ring) {
    if (ring->entries) munmap(ring->entries, ring->entries_size);
    if (ring->rings) munmap(ring->rings, ring->rings_size);
    ac_os_close(ring->fd);
}

#else

int ac_os_ring_open(ac_ring_t *ring, unsigned entries, unsigned workers) {
    (void)ring, (void)entries, (void)workers;
    return -ENOSYS;
}

int ac_os_ring_sync(ac_ring_t *ring, int fd, uint64_t offset, uint64_t length, uint64_t tag) {
    (void)ring, (void)fd, (void)offset, (void)length, (void)tag;
    return -ENOSYS;
}

size_t ac_os_ring_submit(ac_ring_t *ring, size_t queued) {
    (void)ring, (void)queued;
    return 0;
}

int ac_os_ring_wait(ac_ring_t *ring, size_t expected, uint64_t *tag, int *result) {
    (void)ring, (void)expected, (void)tag, (void)result;
    return -ENOSYS;
}

void ac_os_ring_close(ac_ring_t *ring) {
    (void)ring;
}

#endif
