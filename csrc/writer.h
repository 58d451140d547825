/* The writer: its state, and a message's path into the segment.
 *
 * append -> is there room below `limit`? -> copy and checksum the payload -> write the header -> store the
 * commit word -> publish the new offset -> wake sleeping readers. Everything that can stand in the way (a full
 * segment, a roll by time or count, unpopulated pages, capacity, sync modes, a closed handle) lowers `limit`,
 * so the fast path tests one number and leaves the rest to writer_roll.c. */
#ifndef AC_WRITER_H
#define AC_WRITER_H

#include "aiochronicle.h"
#include "atomics.h"
#include "control.h"
#include "directory.h"
#include "housekeeper.h"
#include "lock.h"
#include "os.h"
#include "position.h"
#include "reader_liveness.h"
#include "record.h"
#include "segment_map.h"
#include "wake_connection.h"
#include "writer_published.h"
#include "writer_settings.h"
#include "writer_slow.h"

#include <pthread.h>
#include <string.h>

/* A segment that the writer has left and that is not yet synced, indexed and released. */
typedef struct ac_sealing {
    ac_map_t *map;
    uint64_t end;        /* where the writer left it */
    uint64_t sealed_end; /* after its last record; differs from `left` after a repair */
    uint64_t soiled;     /* aborted reservations wrote into it up to here */
    uint64_t synced;     /* everything before is on disk */
    uint64_t next_seq;   /* of the record after its last one */
    uint64_t filled_ns;  /* how long it was the active one */
    int seal_synced;
    struct ac_sealing *next;
} ac_sealing_t;

/* One kind of background work: its failures, and what the log says about them. Under mutex. */
typedef struct ac_failures {
    const char *what; /* its name, in words */
    int level;        /* of its failures in the log */
    uint64_t count;
    uint64_t since_success;
    uint64_t logged_ns; /* when the last one was logged … */
    uint32_t logged;    /* … and a checksum of its text */
} ac_failures_t;

struct ac_writer {
    /* Written by the appender; fields that statistics and flushes read are stored atomically. */
    uint8_t *base;
    uint64_t offset;
    uint64_t limit; /* a record on the fast path must end at or below it; any thread may lower it */
    uint64_t seq;
    uint64_t seq_limit;
    uint64_t last_timestamp_ns;
    uint64_t timestamp_limit; /* the lower of roll_limit_ns and what max_ahead_ns allows */
    ac_control_t *control;
    uint32_t seed; /* seed of header checks in this segment and epoch */
    uint32_t epoch;
    uint64_t payload_bytes;
    uint64_t record_bytes;

    /* Cold, appender only. */
    uint64_t first_seq; /* of this writer: seq - first_seq = messages appended */
    uint64_t segment_first_seq;
    uint64_t roll_limit_ns;       /* from this timestamp on a new segment starts */
    uint64_t opened_timestamp_ns; /* timestamp of the last record when the queue was opened */
    uint64_t last_record;
    uint32_t batch;        /* number of messages being published, minus one */
    uint64_t reserved;     /* payload length + 1 of the open reservation; 0 = none */
    uint64_t soiled;       /* aborted reservations wrote into the active segment up to here */
    uint64_t capacity_end; /* the capacity is known to allow records up to this offset */
    uint64_t batches, rolls, rolls_unprepared, wakeups, clock_steps, capacity_waits;
    uint64_t refused_bytes;
    int is_fast;                    /* it has filled a segment before the next one existed */
    uint32_t waiters, dead_waiters; /* of other programs: see writer_wake.c */
    uint64_t unheard_since_ns, unheard;
    ac_slow_t slow;        /* the current append, off the fast path */
    ac_settings_t adopted; /* the settings that `config` has */
    int (*interrupted)(
        void); /* called while waiting for capacity, and may close the writer; NULL = not called */
    /* Any thread may store 1: ends the wait for capacity, and no further segment is archived. */
    uint32_t closing;

    /* Fixed after open. */
    ac_directory_t dir;
    int dir_fd;
    int index_fd;
    ac_map_t *control_map;
    ac_ownership_t lock;
    ac_writer_config_t config; /* what may change in it belongs to the appender: see
                                  writer_settings.h */
    uint64_t segment_size;
    ac_recovery_t recovery;
    uint32_t state;
    ac_wake_targets_t targets;
    uint32_t attended; /* atomic: readers can be connected */
    uint64_t home;     /* which directory and control block: see ac_control_home */
    ac_task_t pages, flush, disk, archiving; /* housekeeping, one per lane */

    /* Under mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t prepared;  /* the next segment exists, or could not be created */
    pthread_cond_t stepped;   /* pages were populated, or could not be */
    ac_map_t *map;            /* active segment */
    uint64_t populated;       /* its pages are populated up to here */
    uint64_t ahead;           /* how far ahead of the writer the housekeeper populates … */
    uint64_t piece;           /* … and in pieces of this size: see ac_segment_populate */
    uint64_t step_ns;         /* duration of its last step */
    uint64_t fill_ns_per_mib; /* average processor time of populating pages */
    int recycles_pages;
    ac_map_t *next; /* segment prepared for the next roll */
    uint64_t next_populated;
    int want_next, preparing;
    int populating, populating_next; /* a thread is populating pages of the active, of the next
                                        segment */
    ac_sealing_t *sealing, **sealing_tail;
    uint64_t synced; /* of the active segment */
    uint64_t durable_seq;
    uint32_t poisoned; /* errno of the failed sync */
    const char *gone;  /* what is missing from the queue; NULL = nothing */
    uint64_t syncs, seals, segments_deleted, segments_archived;
    ac_failures_t sync_errors, seal_errors, prealloc_errors, populate_errors, memlock_errors,
        retention_errors;
    int last_errno;
    char last_error[1288];     /* path and text */
    ac_settings_t settings;    /* the settings requested last */
    uint32_t settings_changed; /* atomic: … which the appender has not adopted yet */
    int has_archiving;
    uint64_t recent_count;
    ac_recent_error_t recent[AC_RECENT_ERRORS]; /* number N is at N modulo the size */
    ac_slow_log_t slow_log;

    /* Held for the whole of a sync: callers that wait for it find their work done. */
    pthread_mutex_t sync_mutex;
    uint64_t durable_position[2]; /* what index.meta contains: segment, offset */
    uint32_t mark_unsynced;       /* atomic: index.meta was written and not synced since */
    uint32_t
        flushed_single; /* atomic: the last flush was of one record, and nothing was appended since */

    ac_liveness_t liveness;
    uint64_t cached_from; /* disk lane: the oldest segment of ours that may be in the page cache */
    uint64_t entered_ns;  /* appender: when the active segment became active */
    uint64_t refreshed_ns, refreshed_segment; /* memory lane: the last turn of writer_refresh.c … */
    uint64_t refreshed_offset;                /* … and where the writer was then; atomic */

    pthread_mutex_t lock_mutex; /* held while the locks are checked */
    pthread_mutex_t retain_mutex;
    uint64_t heartbeat_due_ns;
    uint32_t batch_due;         /* atomic: handed from the flush lane to the disk lane */
    uint64_t unsynced_since_ns; /* since when something is not synced; 0 = everything is synced */
    uint32_t write_back_due;    /* atomic: likewise, for the disk lane */
    uint64_t clock_log_due_ns, clock_steps_logged; /* flush lane only */
    uint64_t settings_file;    /* atomic: the last settings.toml that was seen; 0 = none */
    ac_publisher_t *publisher; /* of statistics.meta, under report_mutex; NULL = there is none */
    pthread_mutex_t report_mutex;

    /* writer_java.c */
    struct ac_cq4_writer *java; /* NULL: a native queue */
    uint64_t java_now_ns;       /* the caller's clock at the current append; AC_NOW = not given */
    uint64_t java_messages;
};

struct ac_end; /* recovery.h */

/* writer.c */
ac_writer_t *ac_writer_allocate(const ac_writer_config_t *config);
/* Releases maps, descriptors and the lock: of a writer that is closed, forked, or could not be opened. */
void ac_writer_release(ac_writer_t *writer);
int ac_writer_usable(const ac_writer_t *writer, ac_error_t *err);

/* For calls from any thread that use the directory: an fd of it for the caller (a writer that is closed
 * meanwhile closes its own, and the number may soon name something else), the head of the queue, and the
 * first segment whose sealing is not finished. */
int ac_writer_visit(ac_writer_t *writer, uint64_t *segment, uint64_t *offset, uint64_t *sealing,
                    ac_error_t *err);

/* writer_resume.c: finds the end of the queue, in the segment where it continues; its segment size; and
 * places the writer there. All with the lock. */
int ac_writer_find_place(ac_writer_t *writer, struct ac_end *end, int is_copy, ac_error_t *err);
int ac_writer_take_segment_size(ac_writer_t *writer, const struct ac_end *end, ac_error_t *err);
int ac_writer_enter_end(ac_writer_t *writer, struct ac_end *end, ac_error_t *err);

/* writer_wake.c: wakes the readers that announced that they sleep. */
void ac_writer_wake(ac_writer_t *writer);

/* Publishes a committed record. The increment is the full barrier between the commit word and the look at
 * the waiters; it pairs with the one in ac_reader_park. */
static inline void ac_writer_publish(ac_writer_t *writer, uint64_t end, uint64_t next_seq) {
    ac_control_t *control = writer->control;
    ac_store_relaxed_u64(&writer->offset, end);
    ac_store_release_u64(&writer->seq, next_seq); /* a flusher that sees it also sees the offset */
    ac_store_relaxed_u64(&control->next_seq, next_seq);
    ac_store_relaxed_u64(&control->last_timestamp_ns, writer->last_timestamp_ns);
    ac_store_release_u64(&control->last_record, writer->last_record);
    ac_store_release_u64(&control->write_offset, end);
    ac_fetch_add_seq_cst_u32(&control->notify_seq, 1);
    if (AC_UNLIKELY(ac_load_seq_cst_u32(&control->waiters_pending) |
                    ac_load_seq_cst_u64(&control->parked)))
        ac_writer_wake(writer);
}

/* The clock, held at the last timestamp if it went back. */
static inline uint64_t ac_writer_now(ac_writer_t *writer, uint64_t clock_ns) {
    if (AC_LIKELY(clock_ns >= writer->last_timestamp_ns)) return clock_ns;
    ac_count_u64(&writer->clock_steps, 1);
    return writer->last_timestamp_ns;
}

/* Whether a page of the active segment is not in the file: truncated, or without space on the disk. Stores
 * into it went to memory that nobody else will see (sigbus.c). Call it after the last of them, before the
 * record is committed; the fence pairs with `mend` there, which runs in this thread. */
static inline int ac_writer_is_cut(const ac_writer_t *writer) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    return ac_map_is_cut(writer->map);
}

/* The optional parts of a record; callers of the inline functions pass a constant NULL, and pay nothing. */
static inline size_t ac_area_length(size_t length, const ac_slice_t *trailer) {
    return trailer ? length + trailer->length : length;
}

/* Copies payload and trailer into place, and returns the checksum of both. */
static inline uint32_t ac_writer_copy(uint8_t *to, const void *payload, size_t length,
                                      const ac_slice_t *trailer) {
    if (!trailer) return ac_crc32_copy(to, payload, length);
    if (length > 0) memcpy(to, payload, length);
    memcpy(to + length, trailer->data, trailer->length);
    return ac_crc32(to, length + trailer->length);
}

/* One record, or several that become visible together, written from the writer's offset on: everything but
 * the commit word of the first. */
typedef struct ac_written {
    uint8_t *first;
    uint64_t next_seq;
    uint64_t end;         /* offset after the last of them */
    uint64_t last_record; /* offset of the last of them */
    uint64_t newest_ns;
    uint64_t payload_bytes, record_bytes;
    uint32_t first_length;
} ac_written_t;

/* The only way in which messages become visible: the commit word of the first, stored with release, lets
 * readers at all of them. AC_E_SLOW: the segment was truncated, and nothing was committed. */
static inline int ac_writer_commit_written(ac_writer_t *writer, const ac_written_t *written) {
    if (AC_UNLIKELY(ac_writer_is_cut(writer))) return AC_E_SLOW;
    ac_store_release_u32(ac_record_commit_word(written->first), written->first_length + 1);
    writer->last_record = written->last_record;
    ac_store_relaxed_u64(&writer->last_timestamp_ns, written->newest_ns);
    ac_count_u64(&writer->payload_bytes, written->payload_bytes);
    ac_count_u64(&writer->record_bytes, written->record_bytes);
    ac_writer_publish(writer, written->end, written->next_seq);
    return AC_OK;
}

/* Writes and commits one record; there is room, and the timestamp is in order. AC_E_SLOW: its segment was
 * truncated, and nothing was committed. */
static inline __attribute__((always_inline)) int64_t ac_writer_put(
    ac_writer_t *writer, const void *payload, size_t payload_length, const ac_slice_t *trailer,
    uint16_t type_id, uint64_t timestamp_ns, const ac_cause_t *cause, uint16_t flags) {
    uint8_t *at = writer->base + writer->offset;
    uint64_t seq = writer->seq;
    uint32_t length = (uint32_t)ac_area_length(payload_length, trailer);
    ac_stamp_t stamp = {.seq = seq,
                        .timestamp_ns = timestamp_ns,
                        .cause = cause,
                        .epoch = writer->epoch,
                        .type_id = type_id,
                        .flags = (uint16_t)(flags | (trailer ? AC_FLAG_TRAILER : 0))};
    uint32_t checksum = ac_writer_copy(at + AC_HEADER_SIZE, payload, payload_length, trailer);
    ac_record_write_header(at, length, checksum, &stamp, writer->seed);
    uint64_t size = ac_record_size(length);
    ac_written_t written = {.first = at,
                            .next_seq = seq + 1,
                            .end = writer->offset + size,
                            .last_record = writer->offset,
                            .newest_ns = timestamp_ns,
                            .payload_bytes = length,
                            .record_bytes = size,
                            .first_length = length};
    int rc = ac_writer_commit_written(writer, &written);
    return AC_LIKELY(rc == AC_OK) ? (int64_t)seq : rc;
}

/* writer_append.c: ac_writer_try_append with the last timestamp, because the clock is earlier. Counted if
 * the record was written; otherwise the slow path reads the clock again, and counts. */
int64_t ac_writer_try_append_held(ac_writer_t *writer, const void *payload, size_t payload_length,
                                  const ac_slice_t *trailer, unsigned type_id,
                                  const ac_cause_t *cause);

/* The fast path: the seq, or AC_E_SLOW and nothing was done. */
static inline __attribute__((always_inline)) int64_t ac_writer_try_append(
    ac_writer_t *writer, const void *payload, size_t payload_length, const ac_slice_t *trailer,
    unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause) {
    size_t length = ac_area_length(payload_length, trailer);
    if (AC_UNLIKELY(length >= UINT32_MAX || type_id > AC_TYPE_MAX)) return AC_E_SLOW;
    if (timestamp_ns == AC_NOW) {
        timestamp_ns = ac_os_now_ns();
        if (AC_UNLIKELY(timestamp_ns < writer->last_timestamp_ns))
            return ac_writer_try_append_held(writer, payload, payload_length, trailer, type_id,
                                             cause);
    }
    if (AC_UNLIKELY(writer->offset + ac_record_size(length) > ac_load_relaxed_u64(&writer->limit) ||
                    writer->seq >= writer->seq_limit || timestamp_ns < writer->last_timestamp_ns ||
                    timestamp_ns >= writer->timestamp_limit))
        return AC_E_SLOW;
    return ac_writer_put(writer, payload, payload_length, trailer, (uint16_t)type_id, timestamp_ns,
                         cause, 0);
}

/* writer_roll.c: makes room for `size` bytes of records, rolling, populating and waiting as needed. */
int ac_writer_make_room(ac_writer_t *writer, uint64_t size, uint64_t timestamp_ns, ac_error_t *err);
void ac_writer_set_limits(ac_writer_t *writer);
void ac_writer_roll_after(ac_writer_t *writer, uint64_t first_timestamp_ns);
int ac_writer_prepare_next(ac_writer_t *writer, ac_error_t *err);
int ac_writer_populate_ahead(ac_writer_t *writer); /* one step; 1 = there may be more */
void ac_writer_enter(ac_writer_t *writer, ac_map_t *map, uint64_t offset);

/* writer_refresh.c, housekeeper: when its next turn is due; UINT64_MAX = when the writer has moved. */
uint64_t ac_writer_refresh_pages(ac_writer_t *writer);

/* writer_clock.c. The timestamp from which a new writer continues: the last record's, or a promise of its
 * predecessor. A promise that is not credible is revoked. */
uint64_t ac_writer_first_timestamp(ac_writer_t *writer, uint64_t last_timestamp_ns);
/* Of the last record, for the next writer: heartbeats are in the control block. */
uint64_t ac_writer_last_record_ns(const ac_writer_t *writer);
/* Sets timestamp_limit, by the current clock if that matters. */
void ac_writer_limit_time(ac_writer_t *writer);
/* Refuses a caller's timestamp that is ahead of the clock by more than max_ahead_ns. */
int ac_writer_check_ahead(const ac_writer_t *writer, uint64_t timestamp_ns, ac_error_t *err);
/* Housekeeper: logs that the clock was held, at most once a minute. */
void ac_writer_log_clock(ac_writer_t *writer, uint64_t monotonic_ns);

/* writer_flush.c */
int ac_writer_seal_next(ac_writer_t *writer, ac_error_t *err); /* 1 = it did, 0 = there is none */
int ac_writer_seal_pending(ac_writer_t *writer, ac_error_t *err);
uint64_t ac_writer_unsynced(ac_writer_t *writer);
/* As ac_writer_flush, but index.meta is synced later: for the appender, to which nothing more was promised. */
int64_t ac_writer_sync_data(ac_writer_t *writer, ac_error_t *err);
/* As ac_writers_flush; but a writer for which more than its active segment would have to be waited for gets
 * AC_E_SLOW, and nothing was done for it. */
void ac_writers_try_flush(ac_writer_t *const *writers, size_t count, int64_t *results,
                          ac_error_t *errors);
int ac_writer_write_durable(ac_writer_t *writer, uint64_t segment, uint64_t offset);
/* What has waited long for its sync, and the sync itself. */
enum ac_write_back { AC_WRITE_BACK_NOTHING, AC_WRITE_BACK_MARK, AC_WRITE_BACK_ALL };
enum ac_write_back ac_writer_find_write_back(ac_writer_t *writer, uint64_t now_ns);
void ac_writer_write_back(ac_writer_t *writer, enum ac_write_back what);

/* writer_cache.c: what populating pages has cost, with the mutex held; and, after a segment was synced,
 * whether memory of older ones is given back. */
void ac_writer_note_fill(ac_writer_t *writer, uint64_t bytes, uint64_t cpu_ns);
void ac_writer_recycle_pages(ac_writer_t *writer, const ac_sealing_t *sealing);

/* writer_removed.c: reports why nothing can be stored in the active segment any more; see ac_writer_is_cut. */
int ac_writer_fail_cut(ac_writer_t *writer, ac_error_t *err);
int ac_writer_was_cut(const ac_writer_t *writer);
/* AC_E_GONE once the queue was found to be removed or moved away. */
int ac_writer_check_removed(const ac_writer_t *writer, ac_error_t *err);
/* The same after checking the active segment and the directory, two system calls; with sync_mutex held. */
int ac_writer_check_active(ac_writer_t *writer, ac_error_t *err);
/* Checks everything. Later appends and flushes report what it found. */
void ac_writer_check_files(ac_writer_t *writer);

/* writer_report.c: statistics.meta. A writer that cannot create the file continues without it, and the log
 * says so. */
void ac_writer_begin_report(ac_writer_t *writer);
/* [any thread] With `sampled`, the counters are also stored as a sample of this moment. */
void ac_writer_report(ac_writer_t *writer, uint64_t monotonic_ns, int sampled);
void ac_writer_end_report(ac_writer_t *writer);
void ac_writer_close_report(ac_writer_t *writer);
/* The end of an append, off the fast path: see writer_slow.h. */
void ac_writer_note_slow(ac_writer_t *writer, uint64_t seq);

/* writer_settings_file.c: logs that settings.toml has changed since it was last seen. */
void ac_writer_notice_settings(ac_writer_t *writer);

/* writer_settings.c */
int ac_writer_flush_mode(ac_writer_t *writer, uint64_t *batch_ns);
void ac_writer_adopt_settings(ac_writer_t *writer); /* appender */
void ac_writer_announce_ttl(ac_writer_t *writer);

/* writer_background.c: the writer's turns in the housekeeper. `start` adds them, `nudge` makes each run
 * soon, and `stop` waits for what is running: at most a sync of one segment. Retention stops where it is. */
int ac_writer_start_housekeeping(ac_writer_t *writer, ac_error_t *err);
void ac_writer_nudge_housekeeping(ac_writer_t *writer);
void ac_writer_stop_housekeeping(ac_writer_t *writer);
uint64_t ac_writer_housekeep_pages(ac_task_t *task, uint64_t now_ns);
uint64_t ac_writer_housekeep_flush(ac_task_t *task, uint64_t now_ns);
uint64_t ac_writer_housekeep_disk(ac_task_t *task, uint64_t now_ns);
uint64_t ac_writer_housekeep_archive(ac_task_t *task, uint64_t now_ns);
void ac_writer_flush_batches(ac_task_t *const *tasks, size_t count);

/* writer_failures.c: a failure that no caller gets, or that affects more than the caller. Counted, stored
 * as the last error, and logged: when it is new or differs from the last one, and then once a minute. */
void ac_writer_init_failures(ac_writer_t *writer);
void ac_writer_note_error(ac_writer_t *writer, ac_failures_t *failures, const ac_error_t *err);
/* It succeeded. Logged if it failed before. */
void ac_writer_note_success(ac_writer_t *writer, ac_failures_t *failures);
/* writer_java.c: what the public calls do for a Java queue. */
int ac_java_open(ac_writer_t *writer, const char *path, ac_error_t *err);
int64_t ac_java_append(ac_writer_t *writer, const void *payload, size_t length, unsigned type_id,
                       uint64_t timestamp_ns, const ac_cause_t *cause, ac_error_t *err);
/* Without waiting for anything: the index, or AC_E_SLOW and nothing was done. */
int64_t ac_java_try_append(ac_writer_t *writer, const void *payload, size_t length);
int64_t ac_java_append_many(ac_writer_t *writer, const ac_slice_t *items, size_t count,
                            unsigned type_id, const uint64_t *timestamps_ns,
                            const ac_cause_t *cause, ac_error_t *err);
int ac_java_refuse(const ac_writer_t *writer, const char *what, ac_error_t *err);
int64_t ac_java_flush(ac_writer_t *writer, ac_error_t *err);
void ac_java_stats(ac_writer_t *writer, ac_writer_stats_t *out);
int ac_java_close(ac_writer_t *writer, ac_error_t *err);
void ac_java_identity(const ac_writer_t *writer, ac_identity_t *out);
void ac_java_free(ac_writer_t *writer);

/* With the mutex held: the last error, without counting it. */
void ac_writer_keep_error(ac_writer_t *writer, int sys_errno, const char *path, const char *text);

#endif
