/* Sleeping readers of queues whose writers wake by a futex, not by an eventfd: chronicle-rs.
 *
 * Its writer increments notify_seq after each record and, if waiters_pending is not 0, wakes the sleepers on that word. An
 * event loop cannot sleep on a futex. So one thread of the process sleeps for all of them, and signals their eventfds.
 *
 * This only makes readers faster: those that wait here also poll. A lost wake-up, a kernel without futex_waitv (before
 * 5.16) or more queues than one call takes cost time, never a message.
 *
 * Written by readers: waiters_pending, incremented while a watch counts. A reader that is killed leaves its increment, as
 * the format has it: the writer then makes a system call per record that wakes nobody. */
#ifndef AC_FUTEX_WATCH_H
#define AC_FUTEX_WATCH_H

#include "segment_map.h"
#include "wake_eventfd.h"

#include <stdint.h>

typedef struct ac_futex_watch {
    ac_map_t *map; /* of the control block, retained while it counts; NULL: it does not */
    ac_eventfd_t *eventfd;
    uint32_t seen; /* notify_seq before the reader looked for a message */
    int is_listed;
    struct ac_futex_watch *next;
} ac_futex_watch_t;

/* Before the reader looks once more for a message: counts it as a sleeper. The increment of waiters_pending
 * is the full barrier between the two. 0 = it cannot count. */
int ac_futex_watch_count(ac_futex_watch_t *watch, ac_map_t *control_map);

/* There was no message: its eventfd is signalled when notify_seq changes. */
void ac_futex_watch_start(ac_futex_watch_t *watch, ac_eventfd_t *eventfd);

/* No longer a sleeper. Any state is allowed. */
void ac_futex_watch_end(ac_futex_watch_t *watch);

/* In a forked child: the count is the parent's. */
void ac_futex_watch_forget(ac_futex_watch_t *watch);

#endif
