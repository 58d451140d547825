/* Who holds the lock of a file, for error texts. The kernel answers this, so holders need not leave a note.
 *
 * /proc/locks has the pid of the process that took a flock, by device and inode; it lists the processes of our own pid
 * namespace only. All of it is a snapshot: the process may end, and its pid may be reused, the moment after. */
#ifndef AC_LOCK_HOLDER_H
#define AC_LOCK_HOLDER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

typedef struct ac_holder {
    int pid;
    uint64_t started_ns; /* when the process began; 0 = unknown */
    char command[64];    /* its command line, truncated; empty = unknown */
} ac_holder_t;

/* 1 = *out is the holder of the flock of this open file; 0 = none, or one that cannot be named. */
int ac_holder_find(int fd, ac_holder_t *out);

/* Its pid, or 0, for callers that ask about many files: reads the kernel's list at most ten times a second,
 * unless it does not know the file, or names a process that has ended. [any thread] */
int ac_holder_pid(const struct stat *file);

/* The same in words: "pid 1234, started 2026-01-02 03:04:05 UTC, python risk.py", or that it is a process
 * of another container. */
void ac_holder_describe(int fd, char *out, size_t size);

#endif
