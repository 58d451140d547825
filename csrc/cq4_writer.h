/* Appending to a Java Chronicle Queue, beside JVMs and other processes that do the same.
 *
 * Under the write lock (cq4_lock.h), which is held for no longer than it takes to copy one message, or some that are short
 * (64, and 64 KiB, at most) and were given together:
 * 1. The cycle, by the clock. If it is a later one than that of the open file: end marks for the files before it
 *    (cq4_ends.h), its own file linked or opened (cq4_create.h), the listing updated.
 *    If it is an earlier one than the highest: appended to its file if that exists and has no end mark. Else the append waits
 *    for the clock, and in the end fails: a cycle below the highest is never created, since tailers would stop there.
 * 2. The place: the first header that is 0, after what others have appended. Its number is counted from
 *    writePosition, or along the records.
 * 3. The payload after the header, eight zeros after the payload, and then, with release, the header. Before that nobody
 *    sees anything; from then on the message is there, even if a process is killed.
 * 4. writePosition[0], then [1]; the index (cq4_index.h) if the number is a multiple of the spacing.
 * Then the lock is given back. A process that is killed at any step leaves a queue that others go on with: at worst
 * without a slot of the index, which they do not need.
 *
 * What waits for the system is done before the lock is taken: building a new file, growing, mapping and populating
 * pages. If it turns out under the lock that more is needed, the lock is given back and all begins again.
 *
 * The lock is not fair: a writer that sees others append lets them go first, for microseconds (cq4_turns.h).
 *
 * Several threads may append through one writer. */
#ifndef AC_CQ4_WRITER_H
#define AC_CQ4_WRITER_H

#include "cq4_lock.h"
#include "cq4_queue.h"

/* The longest message with Java's usual block size. */
#define AC_CQ4_PAYLOAD_MAX (16u << 20)

typedef struct ac_cq4_writer ac_cq4_writer_t;

typedef struct ac_cq4_writer_config {
    const char *
        roll_cycle; /* its name in Java's RollCycles; NULL: FAST_DAILY for a new queue, any for another */
    int64_t epoch_ms;
    int epoch_given; /* refuse a queue with another epoch */
    unsigned mode;   /* of a new queue's files; one that exists keeps its own */
    uint64_t lock_timeout_ns;
    uint64_t (*clock_ns)(void *context); /* NULL: the system's wall clock */
    void *clock_context;
    int sync;                          /* each append is on disk before it returns */
    int (*interrupted)(void *context); /* see cq4_lock.h; NULL: waits cannot be interrupted */
    void *interrupted_context;
} ac_cq4_writer_config_t;

typedef struct ac_cq4_writer_stats {
    uint64_t messages, payload_bytes;
    uint64_t last_index; /* of this writer; UINT64_MAX: none yet */
    uint64_t cycles_created, cycles_entered, ends_written, pages_added;
    uint64_t lock_waits;   /* appends that did not get the lock at once */
    uint64_t locks_freed;  /* of dead processes */
    uint64_t locks_stolen; /* taken from us while we held it */
} ac_cq4_writer_stats_t;

void ac_cq4_writer_defaults(ac_cq4_writer_config_t *config);

/* Opens a queue for appending, or creates it and its directory, but not the directories above. Frees the
 * lock of a dead process and writes the end marks that are missing in older files. NULL as config: the
 * defaults. AC_E_ARGUMENT: the roll cycle is unknown, or the queue has another roll cycle or epoch.
 * AC_E_UNSUPPORTED: a version whose queues can be read only. AC_E_LOCKED: see cq4_lock.h. */
int ac_cq4_writer_open(const char *path, const ac_cq4_writer_config_t *config,
                       ac_cq4_writer_t **out, ac_error_t *err);

/* The index of the message; or an error, and then it was not appended, except with AC_E_NOT_DURABLE (its
 * index is in err->seq). An empty payload becomes one byte of padding, as with Java. [any thread]
 * AC_E_TOO_LARGE; AC_E_FULL: the index of this cycle's file is full; AC_E_TIMESTAMP: the clock is earlier
 * than the queue's newest cycle; AC_E_LOCKED; AC_E_GONE; AC_E_NO_SPACE. */
int64_t ac_cq4_writer_append(ac_cq4_writer_t *writer, const void *payload, size_t length,
                             ac_error_t *err);

/* Several consecutive messages, with none of other writers in between. */
typedef struct ac_cq4_run {
    size_t messages;
    uint64_t bytes;
    uint64_t last_index;
} ac_cq4_run_t;

/* Appends the first of these, and as many after it as one hold of the lock allows: see the head. `count` is
 * at least 1. Returns the index of the first, and fills in *run with what was appended; or an error, and
 * then nothing was. Not with config.sync. [any thread] */
int64_t ac_cq4_writer_append_run(ac_cq4_writer_t *writer, const ac_slice_t *items, size_t count,
                                 ac_cq4_run_t *run, ac_error_t *err);

/* As ac_cq4_writer_append if it can be done at once, without a system call; else AC_E_SLOW, and nothing was
 * done. [any thread] */
int64_t ac_cq4_writer_try_append(ac_cq4_writer_t *writer, const void *payload, size_t length);

/* Whether an append now would wait for other processes, or for the system, for example in another file. A
 * hint only: it may change a moment later. [any thread] */
int ac_cq4_writer_may_wait(ac_cq4_writer_t *writer);

/* Everything appended through this writer so far is on disk when this returns AC_OK. [any thread] */
int ac_cq4_writer_flush(ac_cq4_writer_t *writer, ac_error_t *err);

/* The position after this writer's newest message; before its first message, the start of the first file
 * that it would append to. [any thread] */
void ac_cq4_writer_position(ac_cq4_writer_t *writer, uint64_t *cycle, uint64_t *offset);
void ac_cq4_writer_stats(ac_cq4_writer_t *writer, ac_cq4_writer_stats_t *out); /* [any thread] */
const ac_cq4_queue_t *ac_cq4_writer_queue(const ac_cq4_writer_t *writer);

/* Unmaps everything; afterwards the handle can only be freed. Not while a call on it is running. NULL is
 * allowed. */
void ac_cq4_writer_close(ac_cq4_writer_t *writer);
void ac_cq4_writer_free(ac_cq4_writer_t *writer); /* also closes it */

#endif
