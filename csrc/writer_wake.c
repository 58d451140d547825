/* Waking the readers that announced that they sleep. */
#include "writer.h"

#include <limits.h>

/* waiters_pending counts the sleepers of other programs: each increments it before it sleeps on notify_seq
 * and decrements it afterwards. One that is killed asleep stays in the count, and every append would pay
 * for a system call that wakes nobody. The count cannot be corrected: a waiter that was woken and has not
 * run yet is still in it, and after a correction its decrement would wrap the count, which would then read
 * 0 while that one sleeps. So the word stays as it is. A count that has not changed for a second, in which
 * nobody was woken, is taken for dead sleepers: from then on only one append in SAMPLE makes the call, and
 * the housekeeper, once a second, for the last of them. Any other count is served at once. Only one kind of
 * waiter may wait that long: one that was stopped for that second between waking and decrementing, and came
 * back unseen to the same count. */
enum { WAITER_DIES_NS = 1000000000, SAMPLE = 64 };

static void judge_waiters(ac_writer_t *writer, uint32_t waiters, int woken) {
    uint64_t now = ac_os_monotonic_ns();
    if (woken != 0 || waiters != writer->waiters) {
        writer->waiters = waiters;
        writer->unheard_since_ns = now;
        writer->dead_waiters = 0;
    } else if (now - writer->unheard_since_ns >= WAITER_DIES_NS) {
        writer->dead_waiters = waiters;
    }
}

static void wake_other_programs(ac_writer_t *writer, uint32_t waiters) {
    if (waiters == writer->dead_waiters && ++writer->unheard % SAMPLE != 0) return;
    int woken = ac_os_futex_wake(&writer->control->notify_seq, INT_MAX);
    ac_count_u64(&writer->wakeups, 1);
    judge_waiters(writer, waiters, woken);
}

/* At most one signal per sleeper and sleep: taking the bits is what entitles us to signal. */
void ac_writer_wake(ac_writer_t *writer) {
    ac_control_t *control = writer->control;
    if (ac_load_relaxed_u64(&control->parked)) {
        uint64_t bits = ac_exchange_seq_cst_u64(&control->parked, 0);
        if (bits && writer->attended)
            ac_count_u64(&writer->wakeups, ac_wake_targets_signal(&writer->targets, control, bits,
                                                                  writer->batch + 1));
    }
    uint32_t waiters = ac_load_relaxed_u32(&control->waiters_pending);
    if (waiters) wake_other_programs(writer, waiters);
}
