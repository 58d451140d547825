/* The background threads of the process, without the interpreter's lock. There is one per lane, however
 * many queues are open, and it starts with the first task of its lane. Work shares a lane only with work of
 * the same urgency: tasks of a lane run one after the other.
 *
 *   memory    what an appender may be about to need: pages, the next segment; readers' heartbeats
 *   flush     what has a deadline: batch flushes, writers' heartbeats and checks of their files
 *   disk      finishing full segments: a sync of up to a whole segment, and its seek index
 *   archive   retention, which may copy segments to another disk for minutes
 *   open      opening queues that readers of an event loop have waited for: some syncs each
 *   watch     polls Java queues for sleeping readers: cq4_watch.h
 *   futex     sleeps on futexes for readers of chronicle-rs' queues: futex_watch.h
 *
 * With one thread for memory and disk, a sync of a full segment held up the pages of every writer, and appends became ten
 * times slower. With one for flush, disk and archive, a batch of 50 ms took a second while another writer was archiving.
 *
 * Every open handle is registered here, even one without background work, because this list tells a forked child which
 * handles are its parent's. */
#ifndef AC_HOUSEKEEPER_H
#define AC_HOUSEKEEPER_H

#include <stddef.h>
#include <stdint.h>

enum ac_lane {
    AC_LANE_MEMORY,
    AC_LANE_FLUSH,
    AC_LANE_DISK,
    AC_LANE_ARCHIVE,
    AC_LANE_OPEN,
    AC_LANE_WATCH,
    AC_LANE_FUTEX,
    AC_LANES
};

typedef struct ac_task {
    /* Does what is due and returns the monotonic time of the next turn (UINT64_MAX = when nudged). */
    uint64_t (*run)(struct ac_task *task, uint64_t now_ns);
    /* If not NULL: does jointly, for all tasks with this function that are due at one moment, what is
     * better done together, before each has its own turn. */
    void (*together)(struct ac_task *const *tasks, size_t count);
    /* In a forked child: the handle is dead. Takes no lock. May be NULL. */
    void (*forked)(struct ac_task *task);
    enum ac_lane lane;
    int forks_wait; /* for the end of its turn: a child must not inherit what it has open meanwhile */
    uint64_t due_ns;
    int running;
    int met; /* `together` was done for it; its own turn is still to come */
    struct ac_task *next;
} ac_task_t;

/* A negated errno if the thread cannot be started. */
int ac_housekeeper_add(ac_task_t *task);

/* Returns when the task is not running and never will again. */
void ac_housekeeper_remove(ac_task_t *task);

/* Makes the task due at once. Any thread; cheap when it is due already. */
void ac_housekeeper_nudge(ac_task_t *task);

#endif
