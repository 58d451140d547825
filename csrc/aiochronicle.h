/* aiochronicle: the engine's public header, and its manual.
 *
 * A queue is a directory: a control block, a lock, numbered segments that hold records, a sparse seek
 * index per sealed segment, and one small position file per named reader. Exactly one writer appends;
 * any number of readers, in any process, follow. Nothing here knows Python.
 *
 * Conventions
 *  - A call returns AC_OK (0) or a positive result; a negative value is one of AC_E_* and fills the error
 *    record: code, errno, the path concerned, the offset in it, and a sentence of detail.
 *  - Handles are not thread-safe: the caller serialises calls on one handle, except those marked
 *    [any thread]. Different handles are independent.
 *  - A handle that was open when the process forked is closed in the child: every call on it gives
 *    AC_E_FORKED.
 *  - Strings are UTF-8 paths and names, NUL-terminated; they are copied.
 *  - Times are nanoseconds since the Unix epoch unless the name says otherwise.
 *
 * Shared memory is never trusted: each value is read once and checked before it is used as a length or
 * an offset. A file that is truncated under a live mapping reads as zeros (sigbus.c), and the next call
 * reports AC_E_GONE. So does a writer whose queue is removed or moved: each flush checks the active segment
 * and the directory, and a background check once a second stops appends.
 */
#ifndef AIOCHRONICLE_H
#define AIOCHRONICLE_H

#include <stddef.h>
#include <stdint.h>

#define AC_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

enum {
    AC_OK = 0,
    AC_E_SYSTEM = -1,            /* a system call failed: see sys_errno */
    AC_E_NO_SPACE = -2,          /* the file system is full, or the quota is used up */
    AC_E_NOT_FOUND = -3,         /* there is no queue at this path */
    AC_E_NOT_A_QUEUE = -4,       /* the path is something else, or its control block is invalid */
    AC_E_VERSION = -5,           /* written by a newer or unknown version of the format */
    AC_E_CORRUPT = -6,           /* a record, segment or control block violates the format */
    AC_E_LOCKED = -7,            /* another live writer holds the queue */
    AC_E_READER_BUSY = -8,       /* another live reader uses this name */
    AC_E_CLOSED = -9,            /* the handle is closed */
    AC_E_FORKED = -10,           /* the handle belongs to the parent process */
    AC_E_TOO_LARGE = -11,        /* the record or batch does not fit into one segment */
    AC_E_TIMESTAMP = -12,        /* the caller's timestamp is older than the last record's, or (with
                                    ERANGE) ahead of the clock by more than max_ahead_ns */
    AC_E_POSITION_LOST = -13,    /* the reader's position is no longer in the queue */
    AC_E_POSITION_CORRUPT = -14, /* both slots of a position file are broken */
    AC_E_NAME = -15,             /* not a valid reader name */
    AC_E_FULL = -16,             /* the slowest open reader lags by the full capacity */
    AC_E_TIMEOUT = -17,          /* waited as long as was asked for */
    AC_E_POISONED = -18,         /* an earlier sync failed: what is durable is unknown */
    AC_E_RESERVED = -19,         /* a reservation is open on this writer */
    AC_E_ARGUMENT = -20,         /* a parameter is out of range */
    AC_E_GONE = -21,             /* a file or the directory was truncated, replaced or removed */
    AC_E_ACCESS = -22,           /* the caller has no permission */
    AC_E_SLOW = -23,             /* internal: the fast path cannot do it; call the full function */
    AC_E_INTERRUPTED = -24, /* internal: the binding asked for a wait to end; nothing was done */
    AC_E_NOT_DURABLE = -25, /* appended as `seq` and visible to readers, but the sync failed */
    AC_E_TOO_MANY_READERS = -26, /* the queue already has the maximum number of reader names */
    AC_E_SALVAGE = -27, /* opening would set aside data that may have been durable: see `salvage` */
    AC_E_REENTRANT = -28,        /* the binding refuses a call from within another one */
    AC_E_READER_NOT_FOUND = -29, /* the queue has no reader of this name */
    AC_E_UNSUPPORTED = -30,      /* the format of this queue does not support it */
    AC_E_STAMP = -31,            /* the time of a Java queue's message cannot be determined */
    AC_E_GROUP = -32,            /* current members of the group have other settings */
    AC_E_REVOKED = -33           /* an operator moved or removed the position while it was open */
};

enum {
    AC_FLUSH_ASYNC = 0, /* the kernel writes back; a killed process loses nothing */
    AC_FLUSH_SYNC = 1,  /* each append is on disk before it returns */
    AC_FLUSH_BATCH = 2  /* at most batch_bytes or batch_ns are not yet on disk */
};

enum {
    AC_CAPACITY_FAIL = 0, /* an append beyond the capacity fails with AC_E_FULL */
    AC_CAPACITY_BLOCK = 1 /* it waits, capacity_timeout_ns at most (0 = forever) */
};

/* The format of a directory. For a writer AC_FORMAT_NONE means: the existing format, or native. */
enum {
    AC_FORMAT_NONE = 0,
    AC_FORMAT_NATIVE = 1,
    AC_FORMAT_CQ4 = 2 /* Java's Chronicle Queue: docs/guide/java.md lists its limits */
};

enum {
    AC_START_COMMITTED = 0, /* after the last commit; a new name starts at the first record */
    AC_START_FIRST = 1,
    AC_START_LAST = 2, /* after the newest record: only records appended from now on */
    AC_START_SEQ = 3,
    AC_START_TIME = 4
};

typedef struct ac_writer ac_writer_t;
typedef struct ac_reader ac_reader_t;

typedef struct ac_error {
    int code;
    int sys_errno;
    uint64_t offset;
    uint64_t wanted_segment; /* AC_E_POSITION_LOST: where the reader stood … */
    uint64_t wanted_offset;
    uint64_t first_segment; /* … and the nearest position that still exists */
    uint64_t first_offset;
    uint64_t seq;   /* AC_E_NOT_DURABLE */
    int holder_pid; /* AC_E_LOCKED, AC_E_READER_BUSY: the holder of queue or reader, 0 = unknown … */
    uint64_t holder_since_ns;
    char holder_command[128]; /* … and its command line */
    char path[1024];
    char detail[256];
} ac_error_t;

/* A payload range in memory, for batches. */
typedef struct ac_slice {
    const void *data;
    size_t length;
} ac_slice_t;

typedef struct ac_writer_config {
    uint64_t segment_size; /* of a new queue; an existing queue keeps its own. A multiple of 64 */
    uint64_t roll_bytes;   /* 0 = only when the segment is full */
    uint64_t roll_ns;      /* 0 = never by time; measured on record timestamps */
    uint64_t roll_messages;
    int flush_mode;
    uint64_t batch_bytes;
    uint64_t batch_ns;
    uint64_t capacity_bytes; /* 0 = unlimited */
    int capacity_policy;
    uint64_t capacity_timeout_ns;
    int retention; /* 0 = keep everything */
    uint64_t
        reader_ttl_ns; /* 0 = no limit: retention does not wait for a reader that was silent for
                          longer … */
    uint64_t max_reader_lag; /* … or, 0 = no limit, for one that lags by more bytes */
    uint64_t opened_ns;      /* set by ac_writer_open, monotonic clock: since when readers can know
                                the two limits */
    uint64_t retain_ns;      /* 0 = no limit: delete sealed segments older than this … */
    uint64_t retain_bytes;   /* … or the oldest ones beyond this total, except what an open reader
                                needs */
    int retain_for_readers; /* delete segments that every named reader, open or away, has committed past */
    uint64_t retention_check_ns; /* how often retention runs */
    const char *archive;         /* NULL = delete; else move to ARCHIVE/YYYY/MM/DD/ */
    uint64_t
        max_ahead_ns;     /* 0 = no limit: how far a caller's timestamp may be ahead of the clock */
    const char *wait_for; /* NULL, or a reader's name: keeps what that reader has not committed
                             past, live or not */
    unsigned mode;        /* mode of files; directories get x wherever this has r */
    int memlock;          /* lock the active segment into memory */
    int verify;           /* check every record of the queue while opening */
    int salvage; /* permits setting aside data that was durable, or that follows a missing segment */
    uint64_t write_back_ns; /* async mode: older records are synced in the background */
    uint64_t takeover_ns;   /* how long to wait for the lock of a writer that was killed and has not
                             ended yet */
    int inline_housekeeping; /* for tests that must be deterministic: 1 = no background thread; 2 =
                                rolls do no work either, as if that thread were late */
    int format;              /* AC_FORMAT_*; a queue in another format is refused */
    const char
        *roll_cycle;  /* AC_FORMAT_CQ4: its name in Java; NULL = FAST_DAILY for a new queue … */
    int64_t epoch_ms; /* … and its epoch; values that differ from the existing queue are refused */
    int epoch_given;
    uint64_t lock_timeout_ns; /* how long an append waits for Java's lock; 0 = 15 s, as Java does */
    uint64_t now_ns; /* the caller's clock, which determines the cycle; AC_NOW = the system's */
} ac_writer_config_t;

/* Settings that may change while a writer is open; ac_writer_config_t explains them. statistics.meta stores
 * them in this layout. */
enum { AC_ARCHIVE_MAX = 1024 };

typedef struct ac_settings {
    uint64_t batch_bytes;
    uint64_t batch_ns;
    uint64_t capacity_bytes;
    uint64_t capacity_timeout_ns;
    uint64_t reader_ttl_ns;
    uint64_t max_reader_lag;
    uint64_t retain_ns;
    uint64_t retain_bytes;
    uint64_t retention_check_ns;
    uint64_t opened_ns; /* filled in by the engine */
    int32_t flush_mode;
    int32_t capacity_policy;
    int32_t retention;
    int32_t retain_for_readers;
    char wait_for[72];            /* empty = nobody */
    char archive[AC_ARCHIVE_MAX]; /* empty = delete */
} ac_settings_t;

/* What opening for writing found and did. All zero after a clean close. */
typedef struct ac_recovery {
    int clean;                   /* the last writer closed the queue properly */
    int torn_records;            /* 1 = an unfinished or invalid record ended the queue */
    uint64_t records_scanned;    /* records walked to find the end */
    uint64_t corrupt_records;    /* invalid records before the durable position: left in place */
    uint64_t bytes_set_aside;    /* bytes after the end, copied to recovered/ before zeroing */
    uint64_t segments_set_aside; /* whole segments after the end, moved to recovered/ */
    uint64_t end_segment;        /* where the queue continues */
    uint64_t end_offset;
    uint64_t durable_segment; /* the durable position in index.meta */
    uint64_t durable_offset;
    int is_copy; /* the queue is a copy or was restored, and has a new identity */
} ac_recovery_t;

typedef struct ac_writer_stats {
    uint64_t messages;
    uint64_t payload_bytes;
    uint64_t record_bytes;
    uint64_t batches;
    uint64_t rolls;
    uint64_t rolls_unprepared; /* the next segment was not ready: append had to create it */
    uint64_t syncs;
    uint64_t sync_errors;
    uint64_t seals;
    uint64_t seal_errors;
    uint64_t prealloc_errors;
    uint64_t populate_errors;
    uint64_t retention_errors;
    uint64_t segments_deleted;
    uint64_t segments_archived;
    uint64_t wakeups;
    uint64_t clock_steps; /* the clock went back and was held at the last timestamp */
    uint64_t capacity_waits;
    uint64_t refused_bytes; /* size of the last record that exceeded the capacity; 0 = none */
    uint64_t next_seq;
    uint64_t last_timestamp_ns;
    uint64_t segment;
    uint64_t offset;
    uint64_t durable_seq; /* every record before it is known to be on disk */
    uint64_t epoch;
    uint64_t queue_id;
    uint64_t segment_size;
    uint64_t readers_connected;
    uint64_t slow_appends; /* slow appends: see ac_slow_append_t */
    int last_error_errno;  /* of the newest background error … */
    char last_error[1288]; /* … and its path and text */
} ac_writer_stats_t;

/* Why an append was slow, as far as the appending thread can know: it times its work off the fast path and
 * asks the kernel for its page faults and context switches. It does not see an append that is interrupted
 * on the fast path. */
enum {
    AC_SLOW_UNKNOWN = 0,
    AC_SLOW_PAGE_FAULT = 1, /* pages had to be brought into memory */
    AC_SLOW_ROLL = 2,       /* a new segment began */
    AC_SLOW_LOCK = 3,       /* it waited for another thread */
    AC_SLOW_SYNC = 4,       /* it waited for the disk */
    AC_SLOW_SCHEDULER = 5,  /* another process or thread had the processor */
    AC_SLOW_CAPACITY = 6,   /* it waited for the slowest reader */
    AC_SLOW_CAUSES = 7
};

typedef struct ac_slow_append {
    uint64_t time_ns; /* when it ended */
    uint64_t duration_ns;
    uint64_t seq; /* seq of its message, or the seq that it would have had */
    uint32_t cause;
    uint32_t minor_faults;
    uint32_t major_faults;
    uint32_t switches; /* involuntary ones */
} ac_slow_append_t;

/* All slow appends of one cause since the writer was opened. */
typedef struct ac_slow_total {
    uint64_t count;
    uint64_t total_ns;
    uint64_t longest_ns;
} ac_slow_total_t;

/* A failure of background work. A repeated failure is counted, not listed again. */
typedef struct ac_recent_error {
    uint64_t first_ns;
    uint64_t last_ns;
    uint64_t count;
    int32_t sys_errno;
    uint32_t zero;
    char text[224]; /* file and text, truncated */
} ac_recent_error_t;

/* The counters at about each second, to compute rates from. */
typedef struct ac_sample {
    uint64_t monotonic_ns;
    uint64_t time_ns;
    uint64_t messages;
    uint64_t record_bytes;
    uint64_t wakeups;
    uint64_t syncs;
} ac_sample_t;

enum { AC_SAMPLES = 32, AC_SLOW_APPENDS = 16, AC_RECENT_ERRORS = 6 };

/* The identity of a directory, as stat reports it. */
typedef struct ac_identity {
    uint64_t device, inode;
    uint32_t owner;
    int given; /* 0 = any will do */
} ac_identity_t;

/* Returns the time of a message of a Java queue: AC_OK and *timestamp_ns; any other value if there is none. */
typedef int (*ac_timestamp_t)(void *context, const uint8_t *payload, uint32_t length,
                              uint64_t *timestamp_ns);

typedef struct ac_reader_config {
    const char *name; /* NULL = anonymous: no committed position */
    int start;        /* AC_START_* */
    uint64_t start_value;
    int verify;         /* check each payload's CRC */
    int skip_corrupt;   /* step over corrupt records and count them, instead of failing */
    int wait_for_queue; /* also opens if there is no queue yet; see ac_reader_open */
    unsigned mode;
    ac_identity_t expected; /* the queue's directory must be this one; see ac_reader_open */
    /* For a Java queue: where the time of a message comes from. The name of a field, and the nanoseconds of
     * its unit; or a function, called while the reader is open; or NULL: the start of the cycle. */
    const char *timestamp_field;
    uint64_t timestamp_unit_ns;
    ac_timestamp_t timestamp_function;
    void *timestamp_context;
} ac_reader_config_t;

typedef struct ac_reader_stats {
    uint64_t messages;
    uint64_t payload_bytes;
    uint64_t skipped_records;   /* corrupt records that were skipped … */
    uint64_t skipped_bytes;     /* … and their bytes */
    uint64_t seq_restarts;      /* seq did not continue, which happens with writers of other
                                   programs */
    uint64_t timestamp_returns; /* timestamps went back, likewise */
    uint64_t segments_entered;
    uint64_t commits;
    uint64_t waits;
    uint64_t segment;
    uint64_t offset;
    uint64_t
        next_seq; /* of the next message to read; 0 also if it is unknown: see ac_reader_seq_at */
    uint64_t segment_size;
    uint64_t queue_id;
    uint64_t parks;
    int announced; /* 1 = writers can find and wake it, 0 = it polls */
    int attended;  /* 1 = a writer is connected to it now */
} ac_reader_stats_t;

typedef struct ac_lag {
    uint64_t messages;
    uint64_t bytes;
    uint64_t age_ns; /* age of the oldest unread message; 0 = no unread messages */
} ac_lag_t;

/* The message of another queue that caused this one. If a power cut removes the end of a queue, its seqs
 * are assigned again, but in a later epoch: seq and epoch together always name one message. */
typedef struct ac_cause {
    uint64_t source; /* queue_id, not 0 */
    uint64_t seq;
    uint32_t epoch; /* of the writer of that message; 0 = not known */
    /* 1 = there is no such message: `source` is the time at which the record expires, in Unix nanoseconds,
     * and the rest is 0. Cause and expiry share a place in the record, and so this struct. */
    uint32_t is_expiry;
} ac_cause_t;

/* One message as found in the segment. `record` points into the mapping and stays valid while the mapping
 * is retained (ac_reader_map). */
typedef struct ac_message {
    const uint8_t *record;
    uint64_t seq;
    uint64_t timestamp_ns;
    uint64_t cause_source; /* 0 with cause_seq 0 = none; `flags` say whether it is a cause or an
                              expiry time */
    uint64_t cause_seq;
    uint32_t segment;
    uint32_t length;     /* of payload and trailer */
    uint32_t batch_left; /* records of the same batch that follow */
    uint16_t type_id;
    uint16_t flags;
    uint32_t trailer; /* size of the trailer; undefined unless the flags say that there is one */
} ac_message_t;

/* The trailer of a message holds its key and headers: trailer.h. Their number and sizes are limited. */
enum {
    AC_TRAILER_MAX = 65535, /* bytes of key and headers together, with their lengths */
    AC_HEADERS_MAX = 64,
    AC_HEADER_NAME_MAX = 255
};

/* ---- writer ---- */

/* Fills in the defaults. */
AC_API void ac_writer_defaults(ac_writer_config_t *config);

/* Opens the queue for appending. Creates it if there is none (its directory, but not those above), and
 * repairs what a killed writer or a power cut left. A native queue has one writer: the call takes the writer
 * lock, and AC_E_LOCKED names the holder. It costs one directory listing after a clean close, otherwise a
 * walk over the records after the last durable position. A Java queue has any number of writers, ours and
 * Java's; a seq is then Java's index, and what the format does not support is AC_E_UNSUPPORTED. */
AC_API int ac_writer_open(const char *path, const ac_writer_config_t *config, ac_writer_t **out,
                          ac_error_t *err);

/* Appends one record and returns its seq. AC_NOW as timestamp_ns takes the clock (held at the last
 * timestamp if the clock stepped back); any other value must not be older than the last record's. Blocks
 * only to create a segment that was not prepared in time, in the sync and batch flush modes, and at
 * capacity under AC_CAPACITY_BLOCK. On error nothing was written, with two exceptions: after
 * AC_E_NOT_DURABLE the writer can only be closed; with AC_E_GONE the record went into files that no longer
 * have a name. */
AC_API int64_t ac_writer_append(ac_writer_t *writer, const void *payload, size_t length,
                                unsigned type_id, uint64_t timestamp_ns, ac_error_t *err);

/* The same, with the message of another queue that caused this one; NULL = none. */
AC_API int64_t ac_writer_append_cause(ac_writer_t *writer, const void *payload, size_t length,
                                      unsigned type_id, uint64_t timestamp_ns,
                                      const ac_cause_t *cause, ac_error_t *err);

/* The same, with a trailer made by ac_trailer_write; NULL = none. Java queues do not support trailers. */
AC_API int64_t ac_writer_append_trailer(ac_writer_t *writer, const void *payload, size_t length,
                                        const ac_slice_t *trailer, unsigned type_id,
                                        uint64_t timestamp_ns, const ac_cause_t *cause,
                                        ac_error_t *err);

/* Appends `count` records that become visible together or not at all, also across a crash. They must fit
 * into one segment. timestamps_ns may be NULL. Returns the first seq. In a Java queue they become visible
 * one by one, possibly with records of other writers in between; on error, those already appended stay. */
AC_API int64_t ac_writer_append_many(ac_writer_t *writer, const ac_slice_t *items, size_t count,
                                     unsigned type_id, const uint64_t *timestamps_ns,
                                     ac_error_t *err);

/* The same, with one cause for all records. */
AC_API int64_t ac_writer_append_many_cause(ac_writer_t *writer, const ac_slice_t *items,
                                           size_t count, unsigned type_id,
                                           const uint64_t *timestamps_ns, const ac_cause_t *cause,
                                           ac_error_t *err);

/* The same, with a trailer for each record; length 0 = none. */
AC_API int64_t ac_writer_append_many_trailers(ac_writer_t *writer, const ac_slice_t *items,
                                              const ac_slice_t *trailers, size_t count,
                                              unsigned type_id, const uint64_t *timestamps_ns,
                                              const ac_cause_t *cause, ac_error_t *err);

/* Reserves `length` payload bytes inside the segment. Exactly one of commit, abort and abandon must follow;
 * until then every other append is refused with AC_E_RESERVED. Abort frees the bytes for the next record.
 * Abandon is for memory that the caller may still write to: it becomes padding, which no record ever
 * reuses. Closing the writer abandons. */
AC_API int ac_writer_reserve(ac_writer_t *writer, size_t length, void **room, ac_error_t *err);
AC_API int64_t ac_writer_commit(ac_writer_t *writer, unsigned type_id, uint64_t timestamp_ns,
                                const ac_cause_t *cause, ac_error_t *err);
/* The same, with a trailer, which overwrites the last reserved bytes. */
AC_API int64_t ac_writer_commit_trailer(ac_writer_t *writer, const ac_slice_t *trailer,
                                        unsigned type_id, uint64_t timestamp_ns,
                                        const ac_cause_t *cause, ac_error_t *err);
AC_API void ac_writer_abort(ac_writer_t *writer);
AC_API void ac_writer_abandon(ac_writer_t *writer);

/* [any thread] Makes every record appended before the call durable, and returns the seq before which all
 * records are durable. The first failure poisons the writer. AC_E_GONE: the files were removed or replaced. */
AC_API int64_t ac_writer_flush(ac_writer_t *writer, ac_error_t *err);

/* [any thread] The same for many writers, each listed once. Their syncs run concurrently: through io_uring,
 * or in threads where the kernel lacks or forbids it. results[i] is what ac_writer_flush would have
 * returned for writers[i], with errors[i]; a failure affects only that writer. Returns the number of
 * failures. */
AC_API size_t ac_writers_flush(ac_writer_t *const *writers, size_t count, int64_t *results,
                               ac_error_t *errors);

/* Promises that no record older than this will be appended (AC_NOW = the clock). The next writer keeps the
 * promise, unless it is more than an hour ahead of its clock: then it revokes and logs it. */
AC_API int ac_writer_heartbeat(ac_writer_t *writer, uint64_t timestamp_ns, ac_error_t *err);

/* Publishes READY with the given JSON text, atomically. */
AC_API int ac_writer_mark_ready(ac_writer_t *writer, const char *json, ac_error_t *err);

/* Atomically and durably replaces schema.json by the given JSON text, before the records that it describes
 * are appended. The engine never reads it. */
AC_API int ac_writer_publish_schema(ac_writer_t *writer, const char *json, ac_error_t *err);

/* [any thread] Lag of the slowest open reader in bytes, and the number of open readers. */
AC_API int ac_writer_reader_lag(ac_writer_t *writer, uint64_t *lag_bytes, uint64_t *live_readers,
                                ac_error_t *err);

/* [any thread] Runs retention once, now. AC_E_CLOSED if the writer is closed meanwhile: the remaining
 * segments stay. */
AC_API int ac_writer_retain(ac_writer_t *writer, ac_error_t *err);

/* [any thread] Gets or replaces the settings. New ones apply from the next append and the next turn of the
 * housekeeper. An append that is waiting for capacity uses them at once. */
AC_API void ac_writer_settings(ac_writer_t *writer, ac_settings_t *out);
AC_API int ac_writer_configure(ac_writer_t *writer, const ac_settings_t *settings, ac_error_t *err);
/* Copies settings into a configuration. They must outlive it, because their strings are not copied. */
AC_API void ac_settings_apply(const ac_settings_t *settings, ac_writer_config_t *config);

/* [any thread] Reads the queue's settings.toml, which the binding parses. An AC_LOG_SETTINGS entry follows
 * within about a second of each change. Returns its length, 0 also if there is none; writes at most
 * AC_SETTINGS_FILE_MAX bytes and a NUL. AC_E_ACCESS if the file is not trusted: its owner is not this
 * process's user, root or the owner of the directory, or others may write to it. */
enum { AC_SETTINGS_FILE_MAX = 65536 };
AC_API int ac_writer_read_settings(ac_writer_t *writer, char *out, ac_error_t *err);

AC_API void ac_writer_stats(ac_writer_t *writer, ac_writer_stats_t *out); /* [any thread] */
AC_API void ac_writer_recovery(ac_writer_t *writer, ac_recovery_t *out);  /* [any thread] */
AC_API const char *ac_writer_path(ac_writer_t *writer);
/* [any thread] For a Java queue: whether an append would now wait for another process's lock, or for files.
 * A hint for event loops: it may change a moment later. For other queues: 0. */
AC_API int ac_writer_may_wait(ac_writer_t *writer);
/* Device and inode of the file that identifies the writer's queue: its control.meta, or the metadata.cq4t
 * of a Java queue. */
AC_API void ac_writer_identity(ac_writer_t *writer, ac_identity_t *out);

/* Syncs, marks the queue as cleanly closed and releases the lock. Stops a running retention, and a copy to
 * the archive after the current piece. The handle stays allocated until ac_writer_free, so that late
 * callers get AC_E_CLOSED. */
AC_API int ac_writer_close(ac_writer_t *writer, ac_error_t *err);
AC_API void ac_writer_free(ac_writer_t *writer);

/* ---- reader ---- */

AC_API void ac_reader_defaults(ac_reader_config_t *config);

/* Opens the queue for reading. A named reader stores its committed position in readers/ and excludes
 * another live reader of the same name; an anonymous one needs no write permission. A queue has at most
 * 4096 names (AC_E_TOO_MANY_READERS).
 *
 * With wait_for_queue the call also succeeds when the queue, or even its directory, does not exist. Until
 * the queue appears there is nothing to read, and waiting waits for it (the path is watched, not polled);
 * seeking and committing fail with AC_E_NOT_FOUND.
 *
 * The path may be a link to the queue. A program that found the queue in a directory where others can write
 * passes its identity in `expected`: any other directory at the path, link or not, is refused (AC_E_GONE),
 * now and at each later use. */
AC_API int ac_reader_open(const char *path, const ac_reader_config_t *config, ac_reader_t **out,
                          ac_error_t *err);

/* 1 = *out is the next message and the position moved after it; 0 = nothing available; negative = error,
 * position unchanged. */
AC_API int ac_reader_next(ac_reader_t *reader, ac_message_t *out, ac_error_t *err);

/* 1 = ac_reader_next would not return 0; 0 = it would. The position does not change. */
AC_API int ac_reader_ready(ac_reader_t *reader, ac_error_t *err);

/* Blocks until there is something to read, at most for timeout_ns (UINT64_MAX = no limit). Spins for
 * spin_ns first. 1 = ready, 0 = timed out. */
AC_API int ac_reader_wait(ac_reader_t *reader, uint64_t timeout_ns, uint64_t spin_ns,
                          ac_error_t *err);

/* For event loops: the eventfd that becomes readable when a parked reader should look again. The first call
 * creates it and announces it to writers; the reader owns it. */
AC_API int ac_reader_eventfd(ac_reader_t *reader, ac_error_t *err);

/* Announces that the caller is about to sleep on the eventfd. AC_READY: do not sleep, there is something to
 * read. AC_PARKED: sleep; the eventfd will be signalled. AC_POLL: it will not be signalled (the writer does
 * not signal, or the reader may not announce itself), so poll as well. */
enum { AC_PARKED = 0, AC_READY = 1, AC_POLL = 2 };
AC_API int ac_reader_park(ac_reader_t *reader, ac_error_t *err);

/* Whether a writer that can wake this reader is connected now. */
AC_API int ac_reader_attended(ac_reader_t *reader);

/* Sleeps on the eventfd in a thread, in two steps because the second must not touch the reader: another
 * thread may use or close it at the same time. 0 = prepared: exactly one ac_reader_sleep must follow; 1 =
 * ready. */
typedef struct ac_sleep {
    void *eventfd;
    int poll;
    uint64_t poll_ns; /* 0 for the first of several sleeps, then 1, 2 …: the first ones are short */
} ac_sleep_t;
AC_API int ac_reader_prepare_sleep(ac_reader_t *reader, ac_sleep_t *sleep, ac_error_t *err);
AC_API void ac_reader_sleep(ac_sleep_t *sleep, uint64_t timeout_ns); /* [any thread] */

/* Positions at the first message with seq >= value; time likewise on timestamps. Beyond the end: at the
 * end. Before the first: at the first. */
AC_API int ac_reader_seek_seq(ac_reader_t *reader, uint64_t seq, ac_error_t *err);
AC_API int ac_reader_seek_time(ac_reader_t *reader, uint64_t timestamp_ns, ac_error_t *err);
AC_API int ac_reader_seek_first(ac_reader_t *reader, ac_error_t *err);
AC_API int ac_reader_seek_last(ac_reader_t *reader, ac_error_t *err);
/* Seeks to a position from ac_reader_position. On error the reader stays where it is. */
AC_API int ac_reader_seek_position(ac_reader_t *reader, uint64_t segment, uint64_t offset,
                                   ac_error_t *err);

/* Skips the damage at the reader's position, as with skip_corrupt, if the last call returned AC_E_CORRUPT
 * for it. The position is then after the damage. */
AC_API int ac_reader_step_over(ac_reader_t *reader, ac_error_t *err);

/* Reports corrupt records from now on, even if skip_corrupt skipped some while the queue was opened. */
AC_API void ac_reader_report_corrupt(ac_reader_t *reader);

/* Makes reading end at a position from ac_reader_position: nothing can be read from there on, even if more
 * is appended, and strict order does not wait for it. Not while attached to a fan-in. */
AC_API int ac_reader_end_at(ac_reader_t *reader, uint64_t segment, uint64_t offset,
                            ac_error_t *err);
/* 1 = the reader has an end and has reached it. */
AC_API int ac_reader_ended(const ac_reader_t *reader);

/* Stores the position as committed. It survives the death of the process; a power cut may bring back an
 * older one unless `sync`. AC_E_ARGUMENT if the position is beyond the end of the queue. AC_E_GONE: the
 * position file was removed or replaced, so nothing was stored. This is checked with `sync`, and otherwise
 * once a millisecond. */
AC_API int ac_reader_commit(ac_reader_t *reader, uint64_t segment, uint64_t offset, int sync,
                            ac_error_t *err);
AC_API int ac_reader_committed(ac_reader_t *reader, uint64_t *segment, uint64_t *offset,
                               ac_error_t *err);
/* The seq of the first message at or after a position, or the seq that the next appended message will get.
 * 1 = known, 0 = unknown: the position is no longer in the queue, or only damage follows. */
AC_API int ac_reader_seq_at(ac_reader_t *reader, uint64_t segment, uint64_t offset, uint64_t *seq,
                            ac_error_t *err);
/* Every message before *seq is known to be on disk; returns 1 or 0 likewise. */
AC_API int ac_reader_durable_seq(ac_reader_t *reader, uint64_t *seq, ac_error_t *err);
/* After the last message read; while attached to a fan-in, after the last one delivered. */
AC_API void ac_reader_position(ac_reader_t *reader, uint64_t *segment, uint64_t *offset);
AC_API int ac_reader_lag(ac_reader_t *reader, ac_lag_t *out, ac_error_t *err);
AC_API void ac_reader_stats(ac_reader_t *reader, ac_reader_stats_t *out);
AC_API const char *ac_reader_path(ac_reader_t *reader);
AC_API void ac_reader_close(ac_reader_t *reader);
AC_API void ac_reader_free(ac_reader_t *reader);

/* ---- ranges and columns ---- */

/* A part of a queue as two positions, fixed by the request: it does not grow with later records. It goes
 * from the first record at or after the start up to, but not including, the first at or after the end.
 * Bounds outside the queue are moved to its ends. */
enum { AC_BOUND_NONE = 0, AC_BOUND_SEQ = 1, AC_BOUND_TIME = 2 };

typedef struct ac_bound {
    int kind; /* AC_BOUND_* */
    uint64_t value;
} ac_bound_t;

typedef struct ac_range {
    uint64_t first_segment;
    uint64_t first_offset;
    uint64_t end_segment;
    uint64_t end_offset;
} ac_range_t;

/* Finds a range. This call and the next two move the reader: seek before reading on. A bound after a
 * corrupt place is searched from after the damage. */
AC_API int ac_reader_range(ac_reader_t *reader, ac_bound_t start, ac_bound_t end, ac_range_t *out,
                           ac_error_t *err);
/* The number of messages in the range: from the indexes, or by a walk if there are none. */
AC_API int64_t ac_reader_count(ac_reader_t *reader, const ac_range_t *range, ac_error_t *err);
/* Messages with consecutive seqs: those of one cycle of a Java queue, whose seqs jump from cycle to cycle. */
typedef struct ac_span {
    uint64_t first_seq, end_seq; /* exclusive */
    uint64_t bytes;
} ac_span_t;
/* The spans of a range, in order. Returns how many there are and stores the first `room` of them in out. 0
 * for a native queue, whose seqs are consecutive. */
AC_API int64_t ac_reader_spans(ac_reader_t *reader, const ac_range_t *range, ac_span_t *out,
                               size_t room, ac_error_t *err);
/* Seeks to the start of the range, and makes reading end at its end. */
AC_API int ac_reader_read_range(ac_reader_t *reader, const ac_range_t *range, ac_error_t *err);

/* Buffers for the columns of the next records, in Arrow's layout; NULL: the column is not wanted. The
 * fields from `rows` on say how far they are filled, so a call continues where the previous one ended. */
enum { AC_COLUMNS_SLACK = 64 }; /* bytes after `payload` that may be written to */

typedef struct ac_columns {
    int64_t *seq;
    int64_t *timestamp_ns;
    int64_t *timestamp_us;
    int32_t *type_id;
    int32_t *payload_offsets; /* one more than rows */
    uint8_t *payload;         /* requires its offsets, too */
    uint8_t *cause_valid;     /* a bit per row, lowest first; zeroed by the caller */
    int64_t *cause_queue_id;
    int64_t *cause_seq;
    int32_t *trailer_offsets; /* one more than rows: what ac_trailer_columns takes */
    uint8_t *trailers;        /* require their offsets, too */
    /* A bit per type_id, lowest first, of the wanted messages; NULL: all. Of the others only the headers
     * are read and checked. */
    const uint8_t *types;
    int ends_at_gap; /* stops before a message whose seq does not follow the previous one */
    uint64_t rows_max;
    uint64_t payload_bytes_max; /* at most INT32_MAX, since offsets are 32 bits wide */
    uint64_t trailer_bytes_max; /* likewise */
    uint64_t rows;
    uint64_t payload_bytes;
    uint64_t trailer_bytes;
    uint64_t trailer_rows; /* how many offsets are filled in while more rows may follow */
    /* AC_FILL_BYTES: the size of the payload or the trailer that did not fit; the other is 0 */
    uint64_t payload_bytes_wanted;
    uint64_t trailer_bytes_wanted;
    /* Messages that were read, of any type: from the seq of the first of them up to, but not including,
     * this one */
    uint64_t messages;
    uint64_t first_seq;
    uint64_t end_seq;
} ac_columns_t;

/* Why filling ended: no more messages available; no room for a row; no room for a payload or a trailer; the
 * next record is corrupt, which a call reports if it finds no message before it; or seqs have a gap. */
enum { AC_FILL_END = 0, AC_FILL_ROWS = 1, AC_FILL_BYTES = 2, AC_FILL_TROUBLE = 3, AC_FILL_GAP = 4 };

/* Reads messages into columns, with the position changes and checks of ac_reader_next; an unwanted payload
 * is neither read nor checked. */
AC_API int ac_reader_fill(ac_reader_t *reader, ac_columns_t *columns, ac_error_t *err);

/* Trailers as columns: a key per row, and the headers of each row as a map. The caller's buffers for keys,
 * names and values must have as many bytes as all trailers together, and those for headers a quarter as
 * many entries. */
typedef struct ac_trailer_columns {
    uint8_t *key_valid;   /* a bit per row, lowest first, zeroed */
    int32_t *key_offsets; /* one more than rows */
    uint8_t *keys;
    int32_t *header_offsets; /* one more than rows: which headers a row has */
    int32_t *name_offsets;   /* one more than headers */
    uint8_t *names;
    int32_t *value_offsets; /* likewise */
    uint8_t *values;
} ac_trailer_columns_t;

/* Returns the number of headers in all rows. A row with no bytes has neither key nor headers.
 * AC_E_ARGUMENT: a trailer is malformed; those from ac_reader_fill never are. [any thread] */
AC_API int64_t ac_trailer_columns(const uint8_t *trailers, const int32_t *offsets, uint64_t rows,
                                  ac_trailer_columns_t *out);

/* A field of MessagePack messages, and its column in Arrow's layout. The caller's buffers must have room
 * for all rows; `valid`, and the values of AC_FIELD_BOOL, are a bit per row, lowest first, zeroed. */
enum {
    AC_FIELD_BOOL = 0,
    AC_FIELD_INT = 1,   /* int64_t */
    AC_FIELD_FLOAT = 2, /* double */
    AC_FIELD_TEXT = 3,  /* the size of all payloads is room enough; UTF-8 is not checked */
    AC_FIELD_BYTES = 4,
    AC_FIELD_TAG = 5,    /* not a column: must equal the `items_max` bytes of text in `values` */
    AC_FIELD_LIST = 6,   /* any number of `parts[0]`, which has one row per item */
    AC_FIELD_ARRAY = 7,  /* a struct: an array of its `parts` in order; further items are skipped */
    AC_FIELD_MAP = 8,    /* a struct: a map with its `parts` by their names */
    AC_FIELD_SKIPPED = 9 /* not a column: any value */
};
enum { AC_FIELDS_MAX = 64 };

typedef struct ac_field {
    const char *name; /* as it is in the messages */
    uint32_t name_length;
    int kind;           /* AC_FIELD_* */
    int may_be_nil;     /* if so, it is null … */
    int may_be_missing; /* … if so, this is its value */
    uint8_t *valid;
    void *values;
    int32_t *offsets;       /* of texts, bytes and lists: one more than rows */
    uint64_t nulls;         /* rows that have none, afterwards */
    struct ac_field *parts; /* of a list: its items; of a struct: its fields, with the same rows */
    uint32_t part_count;
    uint64_t items_max; /* of the items of a list: room for so many rows … */
    uint64_t items;     /* … and how many there are, afterwards */
} ac_field_t;

/* [any thread] Decodes messages that are maps from names to such values; other entries are skipped. Returns
 * the number of decoded messages. If that is less than `rows`, the next message is malformed or has other
 * types: discard the columns and use a complete decoder.
 *
 * `usual`, if not NULL, is a bit per row, lowest first, zeroed. It is set for a message that has all of the
 * fields in their order and nothing else, each value in its shortest form: the bytes that msgspec makes of
 * these values. */
AC_API uint64_t ac_msgpack_columns(const uint8_t *payload, const int32_t *offsets, uint64_t rows,
                                   ac_field_t *fields, uint32_t count, uint8_t *usual);

/* Consecutive records of one type and length in a mapped segment: an array with a stride. */
typedef struct ac_stretch {
    void *map; /* the caller must release it */
    const uint8_t *payload;
    uint64_t count;
    uint64_t stride;
    uint32_t length;
    uint32_t type_id;
} ac_stretch_t;

/* 1 = the part of the range in its first segment, and the range now begins after it; 0 = the range is
 * empty. AC_E_ARGUMENT: the segment's records differ in type or length. Reads only the index of a sealed
 * segment; payloads are neither read nor checked. */
AC_API int ac_reader_stretch(ac_reader_t *reader, ac_range_t *range, ac_stretch_t *out,
                             ac_error_t *err);
AC_API void ac_stretch_release(ac_stretch_t *stretch); /* [any thread] */

/* ---- fan-in ---- */

/* Many readers as one stream, ordered by timestamp and, where equal, by source. The caller owns the
 * readers: they must outlive their attachment, and must not be read from while attached.
 *
 * Available order delivers the oldest available message. Strict order delivers a message only when no
 * attached source can still deliver an older one: each source has a message, or has promised it by a
 * heartbeat or its last message, or was closed. After max_wait_ns (UINT64_MAX: never) the message is
 * delivered anyway, and messages that arrive later but belong before it are marked late. A source that was
 * silent for that long is left out until it has a message or a heartbeat. */
typedef struct ac_fanin ac_fanin_t;

typedef struct ac_fanin_stats {
    uint64_t sources;
    uint64_t idle; /* sources that have no message now */
    uint64_t failed;
    uint64_t left_out; /* silent for longer than max_wait: strict order does not wait for them */
    uint64_t delivered;
    uint64_t late;
    uint64_t last_timestamp_ns;
    uint64_t blocked_ns; /* how long strict order has been waiting … */
    uint32_t blocked_by; /* … for this source */
    int blocked;
} ac_fanin_stats_t;

typedef struct ac_source_stats {
    uint32_t id;
    uint64_t delivered;
    uint64_t late;
    uint64_t last_timestamp_ns;
    uint64_t lag_messages;
    uint64_t lag_bytes;
    uint64_t lag_age_ns; /* of the oldest message that was not delivered */
    uint64_t watermark_ns;
    uint64_t
        silent_ns; /* strict order: how long others have been waiting for a message or heartbeat of
                      this source */
    int has_message;
    int attended;
    int failed;
} ac_source_stats_t;

AC_API int ac_fanin_new(int strict, uint64_t max_wait_ns, ac_fanin_t **out, ac_error_t *err);
/* `id` orders sources of equal timestamps and is never reused; `slot` is what the calls below take. */
AC_API int ac_fanin_attach(ac_fanin_t *fanin, ac_reader_t *reader, uint32_t *slot, uint32_t *id,
                           ac_error_t *err);
/* The reader's position is after the last message delivered from it. */
AC_API void ac_fanin_detach(ac_fanin_t *fanin, uint32_t slot);
/* As ac_reader_next. An error concerns the source in *slot, which delivers nothing from then on and may be
 * detached; it is reported once, and the next call continues with the other sources. */
AC_API int ac_fanin_next(ac_fanin_t *fanin, ac_message_t *out, uint32_t *slot, int *late,
                         ac_error_t *err);
AC_API int ac_fanin_ready(ac_fanin_t *fanin, ac_error_t *err);
AC_API int ac_fanin_eventfd(ac_fanin_t *fanin, ac_error_t *err);
AC_API int ac_fanin_park(ac_fanin_t *fanin, ac_error_t *err);
AC_API int ac_fanin_commit(ac_fanin_t *fanin, uint32_t slot, ac_error_t *err);
/* Makes the source deliver again from an earlier position. Messages delivered while the newest message was
 * of `last_timestamp_ns` do not make it late. */
AC_API int ac_fanin_go_back(ac_fanin_t *fanin, uint32_t slot, uint64_t segment, uint64_t offset,
                            uint64_t last_timestamp_ns, ac_error_t *err);
/* Resumes a source that failed and was set aside, at its reader's position. */
AC_API int ac_fanin_resume(ac_fanin_t *fanin, uint32_t slot, ac_error_t *err);
AC_API void ac_fanin_stats(ac_fanin_t *fanin, ac_fanin_stats_t *out);
AC_API int ac_fanin_source_stats(ac_fanin_t *fanin, uint32_t slot, ac_source_stats_t *out,
                                 ac_error_t *err);
/* For tests: 0, or the line of a broken invariant. */
AC_API int ac_fanin_check(const ac_fanin_t *fanin);
AC_API void ac_fanin_free(ac_fanin_t *fanin);

/* ---- whole queues ---- */

typedef struct ac_queue_info {
    uint64_t segment_size;
    uint64_t writer_epoch;
    uint64_t queue_id;
    uint64_t first_segment;
    uint64_t last_segment;
    uint64_t segments;
    uint64_t
        next_seq; /* from the newest records if the writer is foreign; 0 also if it is unknown */
    uint64_t current_segment;
    uint64_t write_offset;
    uint64_t last_timestamp_ns;
    uint64_t watermark_ns;
    uint64_t
        oldest_ns; /* timestamp of the first message; 0 = there is none, or it cannot be read */
    uint64_t disk_bytes; /* size of the segments on disk */
    int format;          /* AC_FORMAT_* */
    int holder_pid;      /* of a Java queue: the current holder of its write lock; 0 = none */
    char roll_cycle
        [32]; /* of a Java queue: its roll cycle's name in Java; empty = none, or unknown */
} ac_queue_info_t;

/* AC_FORMAT_* of the queue in this directory; AC_FORMAT_NONE also if it cannot be checked. */
AC_API int ac_queue_format(const char *path);

/* The names of the roll cycles of Java queues, by number from 0; NULL after the last. */
AC_API const char *ac_roll_cycle_name(int number);

AC_API int ac_queue_info(const char *path, ac_queue_info_t *out, ac_error_t *err);

/* Whether a process has the queue open for writing, according to the queue's files and /proc. Takes no
 * lock. */
enum {
    AC_WRITER_NONE = 0, /* no writer yet, or the data belongs to the queue that this is a copy of */
    AC_WRITER_OPEN = 1, /* its process is alive */
    AC_WRITER_CLOSED = 2, /* the last writer closed the queue properly */
    AC_WRITER_DIED = 3    /* the last writer was killed, or lost power */
};

/* The last writer of a queue, open or not. Without `published` (the writer is another program, or could not
 * create its statistics file) everything from `user` on is zero. */
typedef struct ac_queue_writer {
    int state; /* AC_WRITER_* */
    int pid;
    int stopped;           /* it is open, but its process is stopped, by a signal or a debugger */
    uint64_t since_ns;     /* when it opened the queue */
    uint64_t heartbeat_ns; /* when it last showed a sign of life */
    char command[256];     /* of its process; empty = unknown */
    int published;
    uint32_t user;
    uint64_t published_ns; /* age of the fields below */
    uint64_t closed_ns;
    ac_settings_t settings; /* in force */
    ac_recovery_t recovery;
    ac_writer_stats_t statistics;
    uint32_t samples, slow_appends, errors; /* how many are filled in, oldest first */
    ac_sample_t sample[AC_SAMPLES];
    ac_slow_append_t slow_append[AC_SLOW_APPENDS];
    ac_slow_total_t slow_total[AC_SLOW_CAUSES];
    ac_recent_error_t error[AC_RECENT_ERRORS];
} ac_queue_writer_t;

/* Trust nothing in it: any process that may write to the queue's files can have put it there. */
AC_API int ac_queue_writer(const char *path, ac_queue_writer_t *out, ac_error_t *err);

/* One of the readers that have a position in a queue, open or not. */
typedef struct ac_reader_entry {
    char name[72];
    uint64_t segment; /* committed position */
    uint64_t offset;
    uint64_t heartbeat_ns; /* its last sign of life: a heartbeat or a commit */
    int open;              /* a live process has it open now */
    int pid;               /* of that process; 0 = unknown, as in another container */
    uint64_t keeps;    /* how many sealed segments retention keeps for it: see ac_queue_why_kept */
    char command[128]; /* of that process; empty = unknown */
    int stopped;       /* that process is stopped, by a signal or a debugger */
} ac_reader_entry_t;

/* Fills in as many as there is room for, in no particular order, and returns how many there are. */
AC_API int64_t ac_queue_readers(const char *path, ac_reader_entry_t *out, size_t room,
                                ac_error_t *err);

/* Why retention keeps a segment, in the terms of ac_writer_config_t. Retention starts at the oldest segment
 * and ends at the first one that stays. */
enum {
    AC_KEPT_GOES = 0,         /* nothing keeps it: the next check removes it */
    AC_KEPT_ACTIVE = 1,       /* it is being written, or is prepared for writing */
    AC_KEPT_NO_RETENTION = 2, /* the writer keeps everything */
    AC_KEPT_AWAITED = 3,      /* the reader of wait_for has not committed past it */
    AC_KEPT_READER = 4,       /* … nor has one that is open, or away for less than reader_ttl_ns */
    AC_KEPT_AWAY = 5,         /* … nor has one that is away, and no limit of age or size is set */
    AC_KEPT_NO_READER = 6,    /* no reader has a name yet; no limit of age or size is set */
    AC_KEPT_LIMITS = 7,       /* neither retain_ns nor retain_bytes is reached */
    AC_KEPT_DAMAGED = 8,      /* part of it cannot be read, so its age is unknown */
    AC_KEPT_POSITION = 9,     /* a position cannot be read, so its reader's needs are unknown */
    AC_KEPT_BEHIND = 10,      /* it could be removed, but an earlier one stays */
    AC_KEPT_NO_WRITER = 11,   /* it could be removed, but no writer is open to remove it */
    AC_KEPT_UNKNOWN = 12,     /* the rules are unknown: the writer is another program */
    AC_KEPT_TAILER =
        13, /* of a Java queue, which only its operator removes; a named tailer needs it */
    AC_KEPT_OPERATOR = 14 /* the same, and no named tailer needs it */
};

typedef struct ac_kept_segment {
    uint32_t segment;
    int why;            /* AC_KEPT_* */
    uint64_t bytes;     /* on disk */
    uint64_t newest_ns; /* timestamp of its newest message; 0 = not determined */
    uint32_t readers;   /* how many need it … */
    char reader[72]; /* … and the one with the largest lag, or the position that cannot be read */
    char detail[64]; /* which limit allows its removal, or what is damaged */
    char file[96];   /* its name */
} ac_kept_segment_t;

/* Explains each segment, the oldest first: fills in as many as there is room for and returns how many there
 * are. By the rules of the last writer, or by `rules` if that is not NULL; AC_E_UNSUPPORTED for a Java
 * queue then. Checks as retention does, but compares a reader's sign of life with the wall clock. Never
 * writes. */
AC_API int64_t ac_queue_why_kept(const char *path, const ac_settings_t *rules,
                                 ac_kept_segment_t *out, size_t room, ac_error_t *err);

/* Reads settings.toml as ac_writer_read_settings does, or replaces it atomically and durably; NULL removes
 * it. */
AC_API int ac_queue_read_settings(const char *path, char *out, ac_error_t *err);
AC_API int ac_queue_write_settings(const char *path, const char *text, ac_error_t *err);

/* Durably removes a reader: nothing is kept for it, and a reader of that name starts like a new one.
 * AC_E_READER_BUSY if it is open, AC_E_READER_NOT_FOUND if there is none. */
AC_API int ac_queue_forget_reader(const char *path, const char *name, ac_error_t *err);

/* ---- groups ----
 *
 * Any number of members, in any processes, open one group of a queue, and each message goes to one of them at
 * a time. A member reads through two anonymous readers, which its owner opens, and closes after the group:
 * one walks along the queue, the other goes back for redeliveries. */
#define AC_GROUP_MEMBERS 256
#define AC_GROUP_LIMIT_MAX 1048576u
#define AC_GROUP_DELAY_MAX_MS 86400000u /* of leases, too */

#define AC_TURNS_QUEUES 16384

typedef struct ac_group ac_group_t;
typedef struct ac_turns ac_turns_t;

typedef struct ac_group_config {
    const char *name;
    uint32_t lease_ms;
    uint32_t limit; /* how many messages may be claimed, counted from the oldest unfinished one */
    uint32_t max_deliver; /* 0 = no limit */
    int by_key; /* 1 = within this queue, 2 = over all queues of a topic: see ac_turns_open */
    uint64_t dead_letter; /* a hash of the path; 0 = none */
    int adopt;            /* the name may be a reader's, whose position the group takes over */
} ac_group_config_t;

/* Joins the group, or creates it at the position of `walker`. AC_E_GROUP: it is in use with other settings.
 * AC_E_READER_BUSY: a reader has the name, or (with EEXIST) had it. AC_E_UNSUPPORTED: a queue of another
 * program. */
AC_API int ac_group_open(ac_reader_t *walker, ac_reader_t *again, const ac_group_config_t *config,
                         ac_group_t **out, ac_error_t *err);
/* Gives back what is claimed, and leaves. */
AC_API void ac_group_close(ac_group_t *group);
AC_API void ac_group_free(ac_group_t *group);

typedef struct ac_group_member {
    int alive; /* 0 = it left or died; others get its claims */
    int pid;   /* in its own pid namespace */
    uint64_t since_ns;
    uint64_t in_flight;
    uint64_t claimed, acked, nacked, redelivered, refused, woken;
} ac_group_member_t;

typedef struct ac_group_info {
    uint32_t limit, lease_ms, max_deliver;
    int by_key;
    int current; /* 0 = its state is of an earlier boot, or of a copy: only the position is valid */
    uint64_t low;      /* every message before it is done */
    uint64_t next_seq; /* of the queue */
    uint64_t pending;  /* not done yet, claimed or not */
    uint64_t in_flight;
    uint64_t delayed;   /* not claimed, because they were given back with a delay */
    uint64_t retried;   /* not done, and claimed more than once */
    uint64_t oldest_ns; /* timestamp of the oldest message that is not done; 0 = none, or unknown */
    uint32_t members;   /* entries of `member` that are filled in */
    ac_group_member_t member[256];
} ac_group_info_t;

/* Describes a group from outside, without changing anything. AC_E_READER_NOT_FOUND if there is none of this
 * name. */
AC_API int ac_group_inspect(const char *path, const char *name, ac_group_info_t *out,
                            ac_error_t *err);
/* The seqs of the messages that a group has not finished, the oldest first: as many as there is room for. Returns how
 * many. Like ac_group_inspect it changes nothing. */
AC_API int64_t ac_group_undone(const char *path, const char *name, uint64_t *out, size_t room,
                               ac_error_t *err);

/* By key over all queues of a topic with many writers: whose turn it is. The same in all queues of one member; it is
 * freed after the groups. `topic` is the directory that has readers/. */
AC_API int ac_turns_open(const char *topic, const char *name, unsigned mode, ac_turns_t **out,
                         ac_error_t *err);
AC_API void ac_turns_free(ac_turns_t *turns);
/* Removes the file, if there is one. AC_E_READER_BUSY: members are open. */
AC_API int ac_turns_remove(const char *topic, const char *name, ac_error_t *err);
/* The ids of the queues that members have joined; at most AC_TURNS_QUEUES. Returns how many. */
AC_API size_t ac_turns_queues(ac_turns_t *turns, uint64_t *ids);
/* Keys wait, since the last call, for messages of queues that this member has not joined: their ids, likewise. */
AC_API size_t ac_turns_unknown(ac_turns_t *turns, uint64_t *ids);
/* No key waits any more for messages of this queue that its files say are done; or for any of it, since it is gone. */
AC_API int ac_turns_settle(ac_turns_t *turns, const char *queue, const char *name, ac_error_t *err);
AC_API void ac_turns_forget(ac_turns_t *turns, uint64_t queue_id);

/* Walks and checks every record of every segment. Returns the number of corrupt places; the first is in
 * *err. Never writes. */
AC_API int64_t ac_queue_verify(const char *path, uint64_t *records, ac_error_t *err);

/* The cause of the newest record whose cause is a message of this source, searching backwards by segments.
 * Returns 1 when found, 0 when not. AC_E_CORRUPT: a segment on the way is damaged, so it may hide a newer
 * one. */
AC_API int ac_queue_last_cause(const char *path, uint64_t source, ac_cause_t *out, ac_error_t *err);

/* The same for every source at once, in one walk: fills in as many as there is room for and returns how
 * many there are. Searches back to the segment that begins before since_ns, 0 = to the first. */
AC_API int64_t ac_queue_last_causes(const char *path, uint64_t since_ns, ac_cause_t *out,
                                    size_t room, ac_error_t *err);

/* Where a copy of a queue ends. The bytes of its records must already be in the directory, on disk. */
typedef struct ac_copy {
    uint64_t segment; /* the last one, which is not sealed, … */
    uint64_t offset;  /* … after its last record */
    uint64_t next_seq;
    uint64_t last_timestamp_ns;
    uint64_t last_record; /* offset of the last record in that segment, 0 = there is none */
    unsigned mode;        /* of the files */
    int new_id;           /* the next writer assigns a new identity, as for any copy */
} ac_copy_t;

/* For a copy of a Java queue (metadata.cq4t and data files) that was made while others appended. The file
 * of the last cycle, `segment`, has records up to `offset` and zeros after it; `index` is that of the next
 * message. Leaves the copy as writers that stopped there would have left it. Returns how many tailers'
 * positions were past the end, and were moved to it. No other process may use the copy during the call.
 * Durable on return. */
AC_API int64_t ac_queue_end_java_copy(const char *path, uint64_t segment, uint64_t offset,
                                      uint64_t index, ac_error_t *err);
/* The same for the file of an earlier cycle; a file with an end mark is not changed. */
AC_API int ac_queue_end_java_file(const char *path, uint64_t segment, ac_error_t *err);

/* Writes the control block and the durable position of a copy, as if its writer had just closed it. `path`
 * is the original, or another copy. */
AC_API int ac_queue_describe_copy(const char *path, const char *to, const ac_copy_t *copy,
                                  ac_error_t *err);

/* ---- process-wide ---- */

AC_API const char *ac_version(void);
AC_API uint32_t ac_checksum(const void *data, size_t length); /* the payload CRC-32 */
AC_API const char *ac_checksum_implementation(void);
AC_API const char *ac_code_name(int code);
AC_API uint64_t ac_clock_ns(void);

/* The engine's log: failures of background workers, repairs, clock jumps. Bounded; the binding takes the
 * entries in order and passes them to its own logging. */
enum {
    AC_LOG_SETTINGS = 0, /* not a log line: the settings.toml of the queue at `path` has changed */
    AC_LOG_DEBUG = 10,
    AC_LOG_INFO = 20,
    AC_LOG_WARNING = 30,
    AC_LOG_ERROR = 40
};

typedef struct ac_log_entry {
    int level;
    uint64_t dropped_before; /* entries dropped for lack of room before this one */
    char path[1024];
    char text[512];
} ac_log_entry_t;

/* [any thread] Entries below this level are not recorded; initially AC_LOG_INFO. */
AC_API void ac_log_set_level(int level);
AC_API int ac_log_next(ac_log_entry_t *out); /* [any thread] 1 = an entry was taken, 0 = there is
                                                none */
AC_API int ac_log_wait(uint64_t timeout_ns); /* [any thread] 1 = there is an entry, 0 = timed out */

/* [any thread] Watches directories, to find queues as they appear and vanish. A change is only a hint to
 * examine the directory. ac_watch_open returns a file descriptor that is readable when there are changes;
 * close(2) releases it with all its watches. Directories are passed as descriptors (O_PATH is enough), so
 * that no link is followed. Adding a directory again returns the same number. */
typedef struct ac_change {
    int watch;      /* the number of the directory; negative: changes were lost, possibly in any
                       directory */
    char name[256]; /* what appeared, vanished or changed in it; empty: the directory itself */
} ac_change_t;

AC_API int ac_watch_open(ac_error_t *err);
AC_API int ac_watch_add(int watches, int directory, ac_error_t *err);
AC_API void ac_watch_remove(int watches, int watch);
/* Takes the available changes and returns how many; if there is no room for all, the last one says that
 * some were lost. */
AC_API int ac_watch_read(int watches, ac_change_t *out, int room);

/* Fault injection and observation of system calls, for tests. `hook` runs before each system call of the
 * engine with the call's number, its path or NULL, and the file range. It returns 0 to let the call happen
 * or an errno to fail it with; for read and write also -n, to let at most n bytes through. NULL removes the
 * hook. */
typedef int (*ac_os_hook_t)(void *context, int call, const char *path, int fd, uint64_t offset,
                            uint64_t length);
AC_API void ac_os_set_hook(ac_os_hook_t hook, void *context);

/* A ready-made hook whose context is an ac_injection_t, for callers whose own functions must not run on the
 * engine's threads. Counts the calls of one kind (call -1: of all kinds) and gives `answer` to those from
 * number `first` (1 = the next) on, `times` of them. */
typedef struct ac_injection {
    int call;
    int answer;
    uint64_t first;
    uint64_t times;
    uint64_t seen;
} ac_injection_t;
AC_API int ac_os_inject(void *context, int call, const char *path, int fd, uint64_t offset,
                        uint64_t length);
AC_API const char *ac_os_call_name(int call);
AC_API int ac_os_call_count(void);

#define AC_TYPE_MAX 0xFFFEu /* 0xFFFF is padding */

/* cffi: end */

#define AC_NOW UINT64_MAX

#ifdef __cplusplus
}
#endif
#endif
