/* The background threads of the process, without the interpreter's lock. There are two, however many
 * queues are open: one for what an appender may be about to need (pages, the next segment), and one for
 * what waits for the disk (syncs, sealing, retention). With one thread a sync of a full segment held up
 * the pages of every writer, and appends became ten times slower.
 *
 * Every open handle is registered here, also those with nothing to do in the background, because this
 * list is how a forked child learns which handles are not its own. */
#ifndef AC_HOUSEKEEPER_H
#define AC_HOUSEKEEPER_H

#include <stddef.h>
#include <stdint.h>

enum ac_lane { AC_LANE_MEMORY, AC_LANE_DISK, AC_LANES };

typedef struct ac_task {
    /* Does what is due and returns the monotonic time of the next turn (UINT64_MAX = when nudged). */
    uint64_t (*run)(struct ac_task *task, uint64_t now_ns);
    /* Not NULL: does, for all tasks with this function that are due at one moment, what is better done
     * together, before each has its own turn. */
    void (*together)(struct ac_task *const *tasks, size_t count);
    /* In a forked child: the handle is dead. Takes no lock. May be NULL. */
    void (*forked)(struct ac_task *task);
    enum ac_lane lane;
    uint64_t due_ns;
    int running;
    int met; /* `together` was done for it, its own turn is still to come */
    struct ac_task *next;
} ac_task_t;

/* A negated errno if the thread cannot be started. */
int ac_housekeeper_add(ac_task_t *task);

/* Returns when the task is not running and never will again. */
void ac_housekeeper_remove(ac_task_t *task);

/* Makes the task due at once. Any thread; cheap when it is due already. */
void ac_housekeeper_nudge(ac_task_t *task);

#endif
