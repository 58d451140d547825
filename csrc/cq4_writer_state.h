/* The internals of a Java queue's writer: cq4_writer.c opens, closes and syncs it, cq4_writer_append.c puts
 * a message into the file, cq4_writer_roll.c goes from one file to the next. cq4_writer.h says what it
 * does, and in which order. */
#ifndef AC_CQ4_WRITER_STATE_H
#define AC_CQ4_WRITER_STATE_H

#include "cq4_turns.h"
#include "cq4_wake.h"
#include "cq4_writer.h"
#include "os.h"

/* Something must be prepared before the lock is taken. */
#define AC_CQ4_AGAIN INT64_MIN

/* What was written through this writer and is not synced. */
typedef struct ac_cq4_unsynced {
    uint32_t first, last; /* cycles */
    int is_dir;           /* files were created */
    uint64_t entered;     /* how many cycles were, by then */
} ac_cq4_unsynced_t;

struct ac_cq4_writer {
    /* Read and written with the mutex of the lock held. */
    ac_cq4_lock_t lock;
    ac_cq4_cycle_t cycle;      /* the file that is appended to; not open before the first append */
    ac_cq4_place_t place;      /* messages in it: all records before it are counted */
    uint64_t begin_ns, end_ns; /* of the cycle, by the clock */
    uint64_t header_end;       /* headers begin before this: the file is long enough for them */
    uint64_t ready;            /* pages before this are populated */
    uint64_t max_seq;
    int is_ended; /* the cycle has its end mark, but the clock is still in it */
    int is_fast;  /* whether ac_cq4_writer_try_append may try */
    ac_cq4_turns_t turns;
    uint64_t looked_ns, look_appends; /* when the files were last checked */

    ac_cq4_writer_config_t config;
    ac_cq4_queue_t queue;
    ac_cq4_table_t table; /* the same as the queue's, writable */
    uint64_t *highest, *lowest, *mod_count, *ends_up_to;
    ac_cq4_unsynced_t unsynced;
    ac_cq4_wake_t wake;
    int poisoned, is_gone, is_closed;
    ac_error_t gone;
    ac_cq4_writer_stats_t stats;
};

static inline uint64_t ac_cq4_writer_now_ns(const ac_cq4_writer_t *writer) {
    return writer->config.clock_ns ? writer->config.clock_ns(writer->config.clock_context)
                                   : ac_os_now_ns();
}

/* Paces a writer's checks, once a second: the caller's clock may stand still. */
static inline uint64_t ac_cq4_writer_elapsed_ns(const ac_cq4_writer_t *writer, uint64_t now_ns) {
    return writer->config.clock_ns ? ac_os_monotonic_ns() : now_ns;
}

/* To be called with the mutex held. */

/* Goes to the cycle that the clock is in: AC_CQ4_AGAIN, or an error. */
int64_t ac_cq4_writer_follow_clock(ac_cq4_writer_t *writer, ac_error_t *err);

/* When a queue is opened: frees the lock of a dead process, and writes the missing end marks. */
int ac_cq4_writer_repair(ac_cq4_writer_t *writer, int dir_fd, ac_error_t *err);

/* Whether the files are still those of the queue: AC_OK or, from then on always, AC_E_GONE. */
int ac_cq4_writer_check_file(ac_cq4_writer_t *writer, ac_error_t *err);
int ac_cq4_writer_check_files(ac_cq4_writer_t *writer, ac_error_t *err);
int ac_cq4_writer_give_up(ac_cq4_writer_t *writer, const char *name, const char *why,
                          ac_error_t *err);

/* With the lock: the index of the message; AC_CQ4_AGAIN; or an error, and then nothing was appended. */
int64_t ac_cq4_writer_append_locked(ac_cq4_writer_t *writer, const void *payload, size_t length);

/* Prepares, acquires the lock and appends, repeatedly if necessary. */
int64_t ac_cq4_writer_append_with_mutex(ac_cq4_writer_t *writer, const void *payload, size_t length,
                                        ac_error_t *err);

/* The same for several messages under one lock: at most 64 messages and 64 KiB, fewer while other writers append. Returns
 * the index of the first, or an error. */
int64_t ac_cq4_writer_append_run_with_mutex(ac_cq4_writer_t *writer, const ac_slice_t *items,
                                            size_t count, ac_cq4_run_t *run, ac_error_t *err);

/* Whether another writer has appended since. */
static inline int ac_cq4_writer_has_foreign(const ac_cq4_writer_t *writer) {
    return writer->place.offset < writer->header_end &&
           ac_cq4_load_header(writer->cycle.map->base + writer->place.offset) != 0;
}

#endif
