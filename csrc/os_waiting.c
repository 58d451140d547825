/* Sleeping until another thread or process signals: futexes, eventfds, epoll, inotify. */
#include "os.h"

#include "os_call.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

int ac_os_futex_wake(uint32_t *word, int count) {
    int rc;
    CALL_VALUE(rc, AC_CALL_WAKE, NULL, -1, 0, 0,
               (int)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0));
    return rc;
}

int ac_os_futex_wait(const uint32_t *word, uint32_t expected, uint64_t timeout_ns) {
    struct timespec limit = timespec_of(timeout_ns);
    int injected_errno = fault(AC_CALL_WAIT, NULL, -1, 0, 0);
    if (injected_errno) return -injected_errno;
    long rc = syscall(SYS_futex, word, FUTEX_WAIT, expected, &limit, NULL, 0);
    return rc < 0 ? -errno : 0;
}

int ac_os_futex_wake_private(uint32_t *word) {
    return syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0) < 0 ? -errno : 0;
}

int ac_os_futex_wait_any(const ac_futex_t *futexes, uint32_t count, uint64_t until_ns) {
#if defined(SYS_futex_waitv) && defined(FUTEX_32)
    struct futex_waitv list[AC_FUTEX_MAX] = {0};
    struct timespec limit = timespec_of(until_ns);
    int injected_errno = fault(AC_CALL_WAIT, NULL, -1, 0, 0);
    if (injected_errno) return -injected_errno;
    if (count > AC_FUTEX_MAX) return -EINVAL;
    for (uint32_t i = 0; i < count; i++)
        list[i] = (struct futex_waitv){.val = futexes[i].expected,
                                       .uaddr = (uintptr_t)futexes[i].word,
                                       .flags = FUTEX_32 |
                                                (futexes[i].is_private ? FUTEX_PRIVATE_FLAG : 0)};
    long rc = syscall(SYS_futex_waitv, list, count, 0, &limit, CLOCK_MONOTONIC);
    return rc < 0 ? -errno : 0;
#else
    (void)futexes, (void)count, (void)until_ns;
    return -ENOSYS;
#endif
}

int ac_os_eventfd(void) {
    int fd;
    CALL_VALUE(fd, AC_CALL_EVENTFD, NULL, -1, 0, 0, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return fd;
}

int ac_os_eventfd_signal(int fd) {
    uint64_t one = 1;
    int rc;
    CALL(rc, AC_CALL_SIGNAL, NULL, fd, 0, 0, (int)write(fd, &one, sizeof one));
    return rc == -EAGAIN ? 0 : rc; /* the counter is full: it is signalled already */
}

/* Another holder of the descriptor can make it blocking; this call does not wait even then. Kernels before
 * 5.8 do not support that for an eventfd. */
static int drain_eventfd(int fd) {
    uint64_t drained;
    struct iovec into = {&drained, sizeof drained};
    ssize_t got = preadv2(fd, &into, 1, -1, RWF_NOWAIT);
    if (got < 0 && errno == EOPNOTSUPP) got = read(fd, &drained, sizeof drained);
    return got == (ssize_t)sizeof drained;
}

int ac_os_eventfd_wait(int fd, uint64_t timeout_ns) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    struct timespec limit = timespec_of(timeout_ns);
    if (timeout_ns == 0) return drain_eventfd(fd);
    int rc = ppoll(&poll_fd, 1, timeout_ns == UINT64_MAX ? NULL : &limit, NULL);
    if (rc <= 0) return rc < 0 && errno != EINTR ? -errno : 0;
    return drain_eventfd(fd);
}

int ac_os_epoll(void) {
    int fd;
    CALL_VALUE(fd, AC_CALL_POLL, NULL, -1, 0, 0, epoll_create1(EPOLL_CLOEXEC));
    return fd;
}

int ac_os_epoll_add(int epoll, int fd, void *tag) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = tag};
    int rc;
    CALL(rc, AC_CALL_POLL, NULL, fd, 0, 0, epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    return rc;
}

void ac_os_epoll_remove(int epoll, int fd) {
    epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
}

int ac_os_epoll_wait(int epoll, void **tags, int room, uint64_t timeout_ns) {
    struct epoll_event events[64];
    int timeout_ms = timeout_ns == UINT64_MAX ? -1 : (int)((timeout_ns + 999999) / 1000000);
    int count = epoll_wait(epoll, events, room < 64 ? room : 64, timeout_ms);
    if (count < 0) return errno == EINTR ? 0 : -errno;
    for (int i = 0; i < count; i++)
        tags[i] = events[i].data.ptr;
    return count;
}

int ac_os_inotify(void) {
    int fd;
    CALL_VALUE(fd, AC_CALL_WATCH, NULL, -1, 0, 0, inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    return fd;
}

int ac_os_inotify_add(int inotify, int dir, uint32_t mask) {
    char path[64];
    int watch;
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    CALL_VALUE(watch, AC_CALL_WATCH, NULL, dir, 0, 0, inotify_add_watch(inotify, path, mask));
    return watch;
}

void ac_os_inotify_remove(int inotify, int watch) {
    inotify_rm_watch(inotify, watch);
}

void ac_os_inotify_read(int inotify, void (*visit)(void *context, int watch, const char *name),
                        void *context) {
    char buffer[4096] __attribute__((aligned(8)));
    int waiting = 0;
    if (ioctl(inotify, FIONREAD, &waiting) < 0) return;
    while (waiting > 0) {
        ssize_t got = read(inotify, buffer, sizeof buffer);
        if (got <= 0) return;
        waiting -= (int)got;
        for (ssize_t at = 0; at + (ssize_t)sizeof(struct inotify_event) <= got;) {
            struct inotify_event event;
            memcpy(&event, buffer + at, sizeof event);
            visit(context, event.wd, event.len ? buffer + at + sizeof event : "");
            at += (ssize_t)(sizeof event + event.len);
        }
    }
}
