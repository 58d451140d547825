#include "futex_watch.h"

#include "atomics.h"
#include "control.h"
#include "housekeeper.h"
#include "os.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>

enum { WATCHED_MAX = AC_FUTEX_MAX - 1 };
#define LOOK_NS 1000000000ull  /* the thread checks at least this often */
#define STRANGE_NS 10000000ull /* after an unexpected error, which may repeat */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static ac_futex_watch_t *watches;
static uint32_t changes; /* atomic: version of the list; the thread sleeps on it, too */
static int is_running, is_unsupported;

static uint64_t sleep_for_all(ac_task_t *task, uint64_t now_ns);
static void on_fork(ac_task_t *task);

static ac_task_t sleeping = {.run = sleep_for_all, .forked = on_fork, .lane = AC_LANE_FUTEX};

/* In the child: another thread may have held the mutex. */
static void on_fork(ac_task_t *task) {
    (void)task;
    watches = NULL;
    is_running = 0;
    pthread_mutex_init(&mutex, NULL);
}

static ac_control_t *control_of(const ac_futex_watch_t *watch) {
    return (ac_control_t *)(void *)watch->map->base;
}

/* ---- the thread ---- */

/* With the mutex held. A watch may be ended, and its block unmapped, before the kernel reads the word: then
 * `changes` has moved on, too, so that the call ends at once, whatever is at that address. */
static uint32_t gather(ac_futex_t *futexes, uint32_t seen_changes) {
    uint32_t count = 0;
    futexes[count++] = (ac_futex_t){.word = &changes, .expected = seen_changes, .is_private = 1};
    for (ac_futex_watch_t *watch = watches; watch && count <= WATCHED_MAX; watch = watch->next)
        futexes[count++] =
            (ac_futex_t){.word = &control_of(watch)->notify_seq, .expected = watch->seen};
    return count;
}

/* Not below 0, in case its writer has cleared the word. */
static void uncount(ac_futex_watch_t *watch) {
    if (!watch->map) return;
    uint32_t *waiters = &control_of(watch)->waiters_pending;
    uint32_t count = ac_load_relaxed_u32(waiters);
    while (count > 0 && !__atomic_compare_exchange_n(waiters, &count, count - 1, 0,
                                                     __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        continue;
    ac_map_release(watch->map);
    watch->map = NULL;
}

static void unlist(ac_futex_watch_t **link) {
    ac_futex_watch_t *watch = *link;
    *link = watch->next;
    watch->is_listed = 0;
    ac_eventfd_release(watch->eventfd);
    watch->eventfd = NULL;
}

/* With the mutex held. */
static void signal_woken(void) {
    for (ac_futex_watch_t **link = &watches; *link;) {
        ac_futex_watch_t *watch = *link;
        if (ac_load_acquire_u32(&control_of(watch)->notify_seq) == watch->seen) {
            link = &watch->next;
            continue;
        }
        uncount(watch);
        ac_os_eventfd_signal(watch->eventfd->fd);
        unlist(link);
    }
}

static uint64_t sleep_for_all(ac_task_t *task, uint64_t now_ns) {
    (void)task;
    ac_futex_t futexes[AC_FUTEX_MAX];
    pthread_mutex_lock(&mutex);
    uint32_t seen_changes = ac_load_acquire_u32(&changes);
    uint32_t count = watches ? gather(futexes, seen_changes) : 0; /* no sleepers: do not sleep */
    pthread_mutex_unlock(&mutex);
    if (count == 0) return UINT64_MAX;
    int rc = ac_os_futex_wait_any(futexes, count, now_ns + LOOK_NS);
    pthread_mutex_lock(&mutex);
    signal_woken();
    if (rc == -ENOSYS || rc == -EPERM || rc == -EINVAL)
        __atomic_store_n(&is_unsupported, 1, __ATOMIC_RELAXED);
    int is_strange = rc < 0 && rc != -EAGAIN && rc != -EINTR && rc != -ETIMEDOUT &&
                     ac_load_relaxed_u32(&changes) == seen_changes;
    uint64_t next_ns = is_unsupported ? UINT64_MAX
                       : is_strange   ? ac_os_monotonic_ns() + STRANGE_NS
                                      : 0;
    pthread_mutex_unlock(&mutex);
    return next_ns;
}

/* ---- readers ---- */

int ac_futex_watch_count(ac_futex_watch_t *watch, ac_map_t *control_map) {
    if (!control_map->writable || __atomic_load_n(&is_unsupported, __ATOMIC_RELAXED)) return 0;
    pthread_mutex_lock(&mutex);
    if (!watch->is_listed) { /* a reader that is listed keeps the value it saw: it will be signalled
                                for that */
        int is_new = !watch->map;
        if (is_new) {
            ac_map_retain(control_map);
            watch->map = control_map;
        }
        watch->seen = ac_load_acquire_u32(&control_of(watch)->notify_seq);
        if (is_new) __atomic_fetch_add(&control_of(watch)->waiters_pending, 1, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&mutex);
    return 1;
}

void ac_futex_watch_start(ac_futex_watch_t *watch, ac_eventfd_t *eventfd) {
    pthread_mutex_lock(&mutex);
    int is_new = watch->map && !watch->is_listed;
    if (is_new) {
        ac_eventfd_retain(eventfd);
        watch->eventfd = eventfd;
        watch->is_listed = 1;
        watch->next = watches;
        watches = watch;
        ac_fetch_add_seq_cst_u32(&changes, 1);
    }
    int must_start = is_new && !is_running;
    if (must_start) is_running = 1;
    pthread_mutex_unlock(&mutex);
    if (must_start && ac_housekeeper_add(&sleeping) < 0) { /* it polls, as all readers here do */
        pthread_mutex_lock(&mutex);
        is_running = 0;
        pthread_mutex_unlock(&mutex);
        return;
    }
    if (!is_new) return;
    ac_os_futex_wake_private(&changes);
    ac_housekeeper_nudge(&sleeping);
}

void ac_futex_watch_end(ac_futex_watch_t *watch) {
    int was_listed;
    pthread_mutex_lock(&mutex);
    was_listed = watch->is_listed;
    for (ac_futex_watch_t **link = &watches; watch->is_listed && *link; link = &(*link)->next) {
        if (*link != watch) continue;
        unlist(link);
        ac_fetch_add_seq_cst_u32(&changes, 1);
        break;
    }
    uncount(watch);
    pthread_mutex_unlock(&mutex);
    if (was_listed) ac_os_futex_wake_private(&changes);
}

void ac_futex_watch_forget(ac_futex_watch_t *watch) {
    watch->map = NULL;
    watch->is_listed = 0;
}
