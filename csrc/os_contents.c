/* The contents of a file: its space, its bytes, and which of them are on the disk. */
#include "os.h"

#include "os_call.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* For calls that transfer bytes: the same, and *length is the number of bytes that may be transferred. */
static int fault_transfer(enum ac_call call, int fd, uint64_t offset, size_t *length) {
    int injected_errno = fault(call, NULL, fd, offset, *length);
    if (AC_LIKELY(injected_errno >= 0)) return injected_errno;
    size_t most = (size_t)-(int64_t)injected_errno;
    if (most < *length) *length = most;
    return 0;
}

int ac_os_free_bytes(int fd, uint64_t *out) {
    struct statvfs info;
    int rc;
    CALL(rc, AC_CALL_STAT, NULL, fd, 0, 0, fstatvfs(fd, &info));
    if (rc < 0) return rc;
    if (info.f_blocks == 0) return -ENOSYS;
    *out = (uint64_t)info.f_bavail * info.f_frsize;
    return 0;
}

int ac_os_truncate(int fd, uint64_t size) {
    int rc;
    CALL(rc, AC_CALL_TRUNCATE, NULL, fd, 0, size, ftruncate(fd, (off_t)size));
    return rc;
}

int ac_os_allocate(int fd, uint64_t size) {
    int rc;
    do {
        int injected_errno = fault(AC_CALL_ALLOCATE, NULL, fd, 0, size);
        rc = injected_errno ? injected_errno : posix_fallocate(fd, 0, (off_t)size);
    } while (rc == EINTR);
    return -rc;
}

int ac_os_reserve(int fd, uint64_t offset, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_ALLOCATE, NULL, fd, offset, length,
         fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length));
    return rc == -EOPNOTSUPP || rc == -ENOSYS ? 0 : rc;
}

int ac_os_zero_range(int fd, uint64_t offset, uint64_t length) {
    static const char zeros[65536];
    int rc;
    CALL(rc, AC_CALL_ZERO, NULL, fd, offset, length,
         fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length));
    if (rc != -EOPNOTSUPP && rc != -ENOSYS) return rc;
    while (length > 0) { /* tmpfs and others: write the zeros */
        size_t step = length < sizeof zeros ? (size_t)length : sizeof zeros;
        rc = ac_os_write_at(fd, zeros, step, offset);
        if (rc < 0) return rc;
        offset += step;
        length -= step;
    }
    return 0;
}

int ac_os_punch(int fd, uint64_t offset, uint64_t length) {
    int rc;
    CALL(rc, AC_CALL_ZERO, NULL, fd, offset, length,
         fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length));
    return rc == -EOPNOTSUPP || rc == -ENOSYS ? 0 : rc;
}

int ac_os_copy(int from_fd, int to_fd, uint64_t offset, uint64_t length) {
    char buffer[65536];
    uint64_t done = 0;
    int injected_errno = fault(AC_CALL_COPY, NULL, from_fd, offset, length);
    if (injected_errno) return -injected_errno;
    while (done < length) {
        size_t step = length - done < sizeof buffer ? (size_t)(length - done) : sizeof buffer;
        int got = ac_os_read_at(from_fd, buffer, step, offset + done);
        if (got <= 0) return got < 0 ? got : -EIO;
        int rc = ac_os_write_at(to_fd, buffer, (size_t)got, offset + done);
        if (rc < 0) return rc;
        done += (uint64_t)got;
    }
    return 0;
}

int ac_os_read_at(int fd, void *buffer, size_t length, uint64_t offset) {
    size_t done = 0;
    while (done < length) {
        size_t step = length - done;
        int injected_errno = fault_transfer(AC_CALL_READ, fd, offset + done, &step);
        if (injected_errno == EINTR) continue;
        if (injected_errno) return -injected_errno;
        ssize_t got = pread(fd, (char *)buffer + done, step, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (int)done;
}

int ac_os_next_data(int fd, uint64_t from, uint64_t to, uint64_t *start, uint64_t *end) {
    int rc;
    CALL(rc, AC_CALL_READ, NULL, fd, from, 0, 0);
    if (rc < 0) return rc;
    *start = from;
    *end = to;
    off_t data = lseek(fd, (off_t)from, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return 0;
    if (data < 0) return errno == EINVAL ? 1 : -errno; /* the file system cannot tell */
    if ((uint64_t)data >= to) return 0;
    off_t hole = lseek(fd, data, SEEK_HOLE);
    *start = (uint64_t)data;
    if (hole >= 0 && (uint64_t)hole < to) *end = (uint64_t)hole;
    return 1;
}

/* Blocks that were allocated ahead read as zeros until the file system records that they were written. ext4
 * does that when a page is written for the first time; if that write fails, the page is written to its
 * blocks the next time, but this is not recorded, and after a restart they are zeros. */
int ac_os_has_unwritten(int fd, uint64_t from, uint64_t to) {
    enum { EXTENTS = 32 };
    union {
        struct fiemap map;
        uint8_t room[sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent)];
    } query;
    while (from < to) {
        int rc;
        memset(&query, 0, sizeof query);
        query.map.fm_start = from;
        query.map.fm_length = to - from;
        query.map.fm_extent_count = EXTENTS;
        CALL(rc, AC_CALL_STAT, NULL, fd, from, to - from, ioctl(fd, FS_IOC_FIEMAP, &query.map));
        if (rc == -EOPNOTSUPP || rc == -ENOTTY) return 0;
        if (rc < 0) return rc;
        if (query.map.fm_mapped_extents == 0) return 1;
        for (uint32_t i = 0; i < query.map.fm_mapped_extents; i++) {
            const struct fiemap_extent *extent = &query.map.fm_extents[i];
            uint32_t bad = FIEMAP_EXTENT_UNWRITTEN | FIEMAP_EXTENT_DELALLOC;
            if (extent->fe_logical > from || extent->fe_flags & bad) return 1;
            from = extent->fe_logical + extent->fe_length;
        }
    }
    return 0;
}

int ac_os_write_at(int fd, const void *buffer, size_t length, uint64_t offset) {
    size_t done = 0;
    while (done < length) {
        size_t step = length - done;
        int injected_errno = fault_transfer(AC_CALL_WRITE, fd, offset + done, &step);
        if (injected_errno == EINTR) continue;
        if (injected_errno) return -injected_errno;
        ssize_t put = pwrite(fd, (const char *)buffer + done, step, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return -errno;
        if (put == 0) return -EIO;
        done += (size_t)put;
    }
    return 0;
}

void ac_os_drop_cache(int fd) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}
