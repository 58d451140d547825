/* A clock of one's own, loaded by LD_PRELOAD: $SET_CLOCK names a file of four 64-bit numbers,
 *
 *   version (odd while it is changed), real_ns, shown_ns, speed
 *
 * and CLOCK_REALTIME shows shown_ns + (now - real_ns) * speed. With speed 0 it stands. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *words;

__attribute__((constructor)) static void map_words(void) {
    const char *path = getenv("SET_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) words = mapped;
}

static int64_t shown_ns(int64_t now_ns) {
    for (;;) {
        int64_t version = __atomic_load_n(&words[0], __ATOMIC_SEQ_CST);
        int64_t real = words[1], shown = words[2], speed = words[3];
        if (!(version & 1) && __atomic_load_n(&words[0], __ATOMIC_SEQ_CST) == version)
            return shown + (now_ns - real) * speed;
    }
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    long rc = syscall(SYS_clock_gettime, clock, out);
    if (rc != 0 || clock != CLOCK_REALTIME || !words) return (int)rc;
    int64_t ns = shown_ns((int64_t)out->tv_sec * 1000000000 + out->tv_nsec);
    out->tv_sec = ns / 1000000000;
    out->tv_nsec = ns % 1000000000;
    return 0;
}
