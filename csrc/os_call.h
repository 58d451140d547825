/* How the os_*.c files make a system call, so that tests can fail each of them (os_faults.c). */
#ifndef AC_OS_CALL_H
#define AC_OS_CALL_H

#include "aiochronicle.h"
#include "atomics.h"
#include "os.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

typedef struct ac_injected {
    ac_os_hook_t hook;
    void *context;
} ac_injected_t;
extern ac_injected_t ac_os_injected;

/* The errno to fail this call with, or 0. */
static inline int fault(enum ac_call call, const char *path, int fd, uint64_t offset,
                        uint64_t length) {
    ac_os_hook_t hook = __atomic_load_n(&ac_os_injected.hook, __ATOMIC_ACQUIRE);
    if (AC_LIKELY(hook == NULL)) return 0;
    void *context = __atomic_load_n(&ac_os_injected.context, __ATOMIC_ACQUIRE);
    return hook(context, (int)call, path, fd, offset, length);
}

/* Runs `expression` as the given call: consults the hook first, retries EINTR from either. */
#define CALL(result, call, path, fd, offset, length, expression)                                   \
    do {                                                                                           \
        int injected_errno = fault(call, path, fd, offset, length);                                \
        if (injected_errno == 0)                                                                   \
            (result) = (expression) < 0 ? -errno : 0;                                              \
        else                                                                                       \
            (result) = -injected_errno;                                                            \
    } while ((result) == -EINTR)

/* The same for calls whose non-negative result matters. */
#define CALL_VALUE(result, call, path, fd, offset, length, expression)                             \
    do {                                                                                           \
        int injected_errno = fault(call, path, fd, offset, length);                                \
        if (injected_errno == 0) {                                                                 \
            (result) = (expression);                                                               \
            if ((result) < 0) (result) = -errno;                                                   \
        } else {                                                                                   \
            (result) = -injected_errno;                                                            \
        }                                                                                          \
    } while ((result) == -EINTR)

static inline struct timespec timespec_of(uint64_t ns) {
    uint64_t seconds = ns / 1000000000u;
    struct timespec t = {.tv_sec = (time_t)(seconds > INT_MAX ? INT_MAX : seconds),
                         .tv_nsec = (long)(ns % 1000000000u)};
    return t;
}

#endif
