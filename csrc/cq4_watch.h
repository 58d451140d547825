/* How a sleeping reader of a Java queue learns of messages. Java never signals, so a thread polls.
 *
 * One thread of the process, the lane "watch" of housekeeper.h, polls for all sleeping readers of Java queues, and signals
 * the eventfd of a reader that has news. It looks at two words for each: the header of the next record, and
 * listing.modCount, which changes when a file is added. An event loop would have to wake up for each poll, and rounds its
 * timers up to whole milliseconds.
 *
 * Whatever the words do not show is left to the reader: it is woken to look for itself when that is due (look_again_ns of
 * its tail, usually once a second), or at each poll if there is no header to look at.
 *
 * The longer a queue has been silent, the less often it is polled: ac_cq4_watch_interval_ns.
 *
 * A watch belongs to one reader. It is in the list while the reader sleeps; waking the reader removes it. It retains the
 * mappings and the eventfd that it uses, so the reader may go on meanwhile. Its fields are written under the mutex of the
 * list. */
#ifndef AC_CQ4_WATCH_H
#define AC_CQ4_WATCH_H

#include "cq4_tail.h"
#include "wake_eventfd.h"

typedef struct ac_cq4_watch {
    struct ac_cq4_watch *next,
        **link;          /* link: what points to this one; NULL: it is not in the list */
    uint32_t generation; /* of the process: see ac_cq4_generation */
    ac_map_t *map;
    const uint8_t *header; /* NULL: there is none to look at */
    uint32_t seen_header;
    ac_map_t *table_map;
    const uint64_t *mod_count; /* NULL: the queue has none */
    uint64_t seen_mod_count;
    ac_eventfd_t *eventfd;
    uint64_t silent_since_ns, max_ns, ring_ns;
    uint64_t messages, offset; /* when the reader last fell asleep */
} ac_cq4_watch_t;

/* Interval between polls of a queue that has been silent for this long: 50 us at first, at most 300 us for
 * the first 100 ms, then 1 % of the silence. */
static inline uint64_t ac_cq4_watch_interval_ns(uint64_t silent_ns, uint64_t max_ns) {
    enum { FIRST_NS = 50000, BUSY_NS = 300000, BUSY_FOR_NS = 100000000, SILENT_PARTS = 100 };
    uint64_t next_ns = silent_ns / 4;
    if (silent_ns >= BUSY_FOR_NS)
        next_ns = silent_ns / SILENT_PARTS;
    else if (next_ns < FIRST_NS)
        next_ns = FIRST_NS;
    else if (next_ns > BUSY_NS)
        next_ns = BUSY_NS;
    return next_ns < max_ns ? next_ns : max_ns;
}

/* Records the state before the reader looks for the last time; later changes wake it. */
typedef struct ac_cq4_sight {
    const ac_map_t *map;
    uint64_t offset;
    uint32_t header;
    uint64_t mod_count;
} ac_cq4_sight_t;

ac_cq4_sight_t ac_cq4_watch_see(const ac_cq4_tail_t *tail);
/* Whether the tail is still where it was then. */
int ac_cq4_watch_is_there(const ac_cq4_sight_t *sight, const ac_cq4_tail_t *tail);

/* Makes the thread signal the eventfd when there is news. A negated errno if there is no such thread. */
int ac_cq4_watch_start(ac_cq4_watch_t *watch, const ac_cq4_sight_t *sight,
                       const ac_cq4_tail_t *tail, ac_eventfd_t *eventfd, uint64_t max_ns);
/* Ends watching; also for one that is all zeros. */
void ac_cq4_watch_stop(ac_cq4_watch_t *watch);

#endif
