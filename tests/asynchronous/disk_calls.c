/* A library to preload into a process. It records which thread makes the calls that may wait for the disk,
 * and can slow down those that write to it. It sees only calls through the C library, as the engine and
 * Python make them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGE = 2 << 20 }; /* larger than any mapping of Python's own memory */

static unsigned delay_us;
static __thread char noted[4096];
static __thread size_t length;

static void note(const char *call, const char *path) {
    int room = (int)(sizeof noted - length);
    int added = snprintf(noted + length, (size_t)room, "%s %s\n", call, path ? path : "");
    if (added > 0 && added < room) length += (size_t)added;
}

static const char *ignored; /* files with this in their names are not recorded … */

static void note_slow(const char *call, const char *path) {
    unsigned pause_us = __atomic_load_n(&delay_us, __ATOMIC_RELAXED);
    const char *part = __atomic_load_n(&ignored, __ATOMIC_ACQUIRE);
    if (part && path && strstr(path, part)) return;
    note(call, path);
    if (pause_us) usleep(pause_us);
}

/* From now on, each call that writes takes this much longer, in every thread. */
void disk_calls_delay(unsigned microseconds) {
    __atomic_store_n(&delay_us, microseconds, __ATOMIC_RELAXED);
}

/* … while the caller keeps this text alive; NULL: record all files. */
void disk_calls_ignore(const char *part) {
    __atomic_store_n(&ignored, part, __ATOMIC_RELEASE);
}

/* Return a line for each call that this thread has made since the last call of this function. */
const char *disk_calls_of_this_thread(void) {
    static __thread char answer[sizeof noted];
    memcpy(answer, noted, length);
    answer[length] = 0;
    length = 0;
    return answer;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define SLOW(result, name, path, parameters, arguments)                                            \
    result name parameters {                                                                       \
        note_slow(#name, path);                                                                    \
        return REAL(name) arguments;                                                               \
    }

SLOW(int, fsync, NULL, (int fd), (fd))
SLOW(int, fdatasync, NULL, (int fd), (fd))
SLOW(int, msync, NULL, (void *base, size_t size, int flags), (base, size, flags))
SLOW(int, fallocate, NULL, (int fd, int mode, off_t from, off_t size), (fd, mode, from, size))
SLOW(int, posix_fallocate, NULL, (int fd, off_t from, off_t size), (fd, from, size))
SLOW(int, ftruncate, NULL, (int fd, off_t size), (fd, size))
SLOW(int, mkdir, path, (const char *path, mode_t mode), (path, mode))
SLOW(int, mkdirat, path, (int dir, const char *path, mode_t mode), (dir, path, mode))
SLOW(int, unlink, path, (const char *path), (path))
SLOW(int, unlinkat, path, (int dir, const char *path, int flags), (dir, path, flags))
SLOW(int, rename, from, (const char *from, const char *to), (from, to))
SLOW(int, renameat, from, (int a, const char *from, int b, const char *to), (a, from, b, to))
SLOW(int, renameat2, from, (int a, const char *from, int b, const char *to, unsigned flags),
     (a, from, b, to, flags))

int munmap(void *base, size_t size) {
    if (size >= LARGE) note_slow("munmap", NULL);
    return REAL(munmap)(base, size);
}

DIR *opendir(const char *path) {
    note("opendir", path);
    return REAL(opendir)(path);
}

DIR *fdopendir(int fd) {
    note("fdopendir", NULL);
    return REAL(fdopendir)(fd);
}

int flock(int fd, int operation) {
    note("flock", NULL);
    return REAL(flock)(fd, operation);
}

static int is_of_the_kernel(const char *path) {
    return strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/dev/", 5) == 0;
}

#define OPENS(name)                                                                                \
    int name(const char *path, int flags, ...) {                                                   \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                  \
        va_end(more);                                                                              \
        if (!is_of_the_kernel(path)) note(#name, path);                                            \
        return REAL(name)(path, flags, mode);                                                      \
    }
#define OPENS_AT(name)                                                                             \
    int name(int dir, const char *path, int flags, ...) {                                          \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                  \
        va_end(more);                                                                              \
        if (!is_of_the_kernel(path)) note(#name, path);                                            \
        return REAL(name)(dir, path, flags, mode);                                                 \
    }

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
