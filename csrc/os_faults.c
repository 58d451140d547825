/* Faults that tests inject into system calls. */
#include "os.h"

#include "os_call.h"

ac_injected_t ac_os_injected;

void ac_os_set_hook(ac_os_hook_t hook, void *context) {
    __atomic_store_n(&ac_os_injected.hook, NULL, __ATOMIC_SEQ_CST);
    __atomic_store_n(&ac_os_injected.context, context, __ATOMIC_SEQ_CST);
    __atomic_store_n(&ac_os_injected.hook, hook, __ATOMIC_SEQ_CST);
}

int ac_os_inject(void *context, int call, const char *path, int fd, uint64_t offset,
                 uint64_t length) {
    ac_injection_t *injection = context;
    (void)path, (void)fd, (void)offset, (void)length;
    /* The hook was removed since the caller found it. */
    if (!injection) return 0;
    if (injection->call >= 0 && injection->call != call) return 0;
    uint64_t number = __atomic_add_fetch(&injection->seen, 1, __ATOMIC_RELAXED);
    int chosen = number >= injection->first && number - injection->first < injection->times;
    return chosen ? injection->answer : 0;
}

static const char *const call_names[AC_CALL_COUNT] = {
    [AC_CALL_OPEN] = "open",
    [AC_CALL_STAT] = "stat",
    [AC_CALL_MKDIR] = "mkdir",
    [AC_CALL_RENAME] = "rename",
    [AC_CALL_UNLINK] = "unlink",
    [AC_CALL_ALLOCATE] = "allocate",
    [AC_CALL_TRUNCATE] = "truncate",
    [AC_CALL_ZERO] = "zero",
    [AC_CALL_READ] = "read",
    [AC_CALL_WRITE] = "write",
    [AC_CALL_SYNC] = "sync",
    [AC_CALL_SYNC_DIR] = "sync_dir",
    [AC_CALL_SYNC_MAP] = "sync_map",
    [AC_CALL_MAP] = "map",
    [AC_CALL_POPULATE] = "populate",
    [AC_CALL_MEMLOCK] = "memlock",
    [AC_CALL_LOCK] = "lock",
    [AC_CALL_LIST] = "list",
    [AC_CALL_CHMOD] = "chmod",
    [AC_CALL_COPY] = "copy",
    [AC_CALL_WAKE] = "wake",
    [AC_CALL_WAIT] = "wait",
    [AC_CALL_EVENTFD] = "eventfd",
    [AC_CALL_SIGNAL] = "signal",
    [AC_CALL_THREAD] = "thread",
    [AC_CALL_ALLOC] = "alloc",
    [AC_CALL_SOCKET] = "socket",
    [AC_CALL_SEND] = "send",
    [AC_CALL_RECEIVE] = "receive",
    [AC_CALL_WATCH] = "watch",
    [AC_CALL_POLL] = "poll",
    [AC_CALL_RING] = "ring",
    [AC_CALL_START_WRITING] = "start_writing",
};

const char *ac_os_call_name(int call) {
    return call >= 0 && call < AC_CALL_COUNT ? call_names[call] : "unknown";
}

int ac_os_call_count(void) {
    return AC_CALL_COUNT;
}
