/* The reader: its state, and a message's path out of the segment.
 *
 * load the commit word -> check header and payload -> return it, move after it. Everything else (end of a
 * segment, padding, corruption, another writer's habits, pages not yet mapped) is the slow path. */
#ifndef AC_READER_H
#define AC_READER_H

#include "aiochronicle.h"
#include "atomics.h"
#include "control.h"
#include "cq4_roll.h"
#include "directory.h"
#include "futex_watch.h"
#include "housekeeper.h"
#include "position.h"
#include "record.h"
#include "recovery.h"
#include "segment.h"
#include "segment_map.h"
#include "segment_seekindex.h"
#include "wake_connection.h"

typedef struct ac_opening ac_opening_t;
typedef struct ac_cq4_reader ac_cq4_reader_t;

enum { AC_FIELD_NAME_MAX = 127 };

struct ac_reader {
    /* Hot. */
    const uint8_t *base; /* NULL: no segment is open */
    uint64_t size;
    uint64_t offset;
    uint64_t window_end; /* pages are mapped up to here */
    uint64_t
        prefetch_end; /* up to here it is worth prefetching lines AC_PREFETCH_BYTES further on */
    uint64_t last_offset; /* of the last record that was read in this segment; 0 = none */
    uint64_t expected_seq;
    uint64_t last_timestamp_ns;
    uint32_t segment;
    uint32_t continued; /* expected_seq is known and the last record was ours */
    enum ac_check check;
    uint32_t
        ours; /* AC_FLAG_OURS if the fast path requires it of the next record, 0 if it excludes it */
    uint64_t messages;
    uint64_t payload_bytes;

    /* Cold. */
    ac_cq4_reader_t *java; /* of a Java queue: see cq4_reader.h. NULL: the queue is one of ours */
    ac_map_t *map;
    ac_map_t *control_map;
    ac_control_t *control; /* never NULL: see ac_control_of_nobody */
    ac_directory_t dir;
    uint64_t segment_size;
    uint64_t ahead; /* at the offset is the record that a fan-in has read and not delivered */
    uint64_t end_segment, end_offset; /* reading ends here; UINT64_MAX: no end */
    ac_durable_t durable;             /* when it was opened: every record before it must exist */
    uint64_t unrepaired_epoch;        /* see ac_reader_sound_limit; 0 = the end is sound */
    uint64_t whole_end; /* in the unrepaired part: every batch before this offset is complete */
    int named, skip_corrupt;
    int ignores_trailers;     /* only headers are read: see ac_reader_fill */
    int skip_once;            /* the damage at its position, see ac_reader_step_over */
    int gone;                 /* its directory was removed or replaced */
    uint64_t looked_ns;       /* when that was last checked, on the monotonic clock */
    uint64_t poll_max_ns;     /* the poll interval, if it is not signalled; 0 = not given */
    uint64_t none_after;      /* number - 1: there was no later segment, … */
    uint32_t none_generation; /* … and this was control.segment_gen; see is_known_to_come */
    ac_position_t position;
    ac_index_t *catalogue; /* one index per segment, for seeking; filled on demand */
    size_t catalogue_count, catalogue_room;
    uint64_t skipped_records, skipped_bytes, seq_restarts, timestamp_returns, segments_entered;

    /* Above: the queue, and where it is read. From here on, `name` first: the handle, which may exist
     * before its queue does: see reader_pending.c. */
    char name[AC_READER_NAME_MAX + 1]; /* empty: anonymous */
    uint32_t state;
    int pending;               /* there is no queue yet … */
    ac_reader_config_t wanted; /* … this is how to open it when it appears … */
    char timestamp_field[AC_FIELD_NAME_MAX + 1];
    ac_opening_t *opening; /* … and this is the opening in the background; NULL = not running */
    int half_made;         /* part of it exists, but it is not complete */
    uint64_t missed_ns;    /* when opening last found something missing, on the monotonic clock */
    ac_task_t task;
    int heartbeat_failed;        /* and the log says so */
    uint32_t group_tag;          /* of a member of a group: see AC_MEMBER_PREFIX; 0 = none */
    ac_wake_endpoint_t endpoint; /* how a writer wakes us; valid while `announced` */
    int shares_eventfd;          /* with the other sources of a fan-in */
    ac_eventfd_t *eventfd;
    int announced, tried_to_announce;
    int retracting;       /* the announcement is being retracted: see ac_reader_begin_retract */
    uint64_t tried_epoch; /* the writer to which that was last tried */
    ac_futex_watch_t futex_watch; /* of another program's writer */
    uint64_t commits, waits, parks;
};

/* reader_next.c: for a record that is not simply ours. 1 = it is one of ours whose trailer is sound, and
 * out->trailer is its size. */
__attribute__((cold)) int ac_reader_find_trailer(const ac_reader_t *reader, ac_message_t *out);

/* Prefetches lines that are needed soon: the processor's own prefetching stops at every page. Only where
 * records were written long ago, otherwise lines would be taken from the writer that is about to store into
 * them. */
enum { AC_PREFETCH_BYTES = 3072, AC_PREFETCH_LINE = 64 };

static inline void ac_reader_prefetch(const ac_reader_t *reader, const uint8_t *record,
                                      uint64_t offset) {
    if (offset >= reader->prefetch_end) return;
    __builtin_prefetch(record + AC_PREFETCH_BYTES);
    __builtin_prefetch(record + AC_PREFETCH_BYTES + AC_PREFETCH_LINE);
    __builtin_prefetch(record + AC_PREFETCH_BYTES + 2 * AC_PREFETCH_LINE);
}

/* The fast path: 1 with *out filled, or AC_E_SLOW with nothing done. */
static inline int ac_reader_try_next(ac_reader_t *reader, ac_message_t *out) {
    const char *why;
    uint32_t checksum;
    uint64_t offset = reader->offset;
    if (AC_UNLIKELY(offset >= reader->window_end)) return AC_E_SLOW;
    if (AC_UNLIKELY(ac_record_inspect_header(reader->base, reader->size, offset, reader->segment,
                                             out, &checksum, &why) != AC_RECORD_GOOD))
        return AC_E_SLOW;
    if (AC_UNLIKELY(out->type_id == AC_TYPE_PADDING || out->seq != reader->expected_seq ||
                    out->timestamp_ns < reader->last_timestamp_ns))
        return AC_E_SLOW;
    if (AC_LIKELY(reader->check == AC_CHECK_PAYLOAD) &&
        AC_UNLIKELY(ac_crc32(out->record + AC_HEADER_SIZE, out->length) != checksum))
        return AC_E_SLOW;
    if (AC_UNLIKELY((out->flags & (AC_FLAG_OURS | AC_FLAG_TRAILER)) != reader->ours) &&
        ((out->flags & AC_FLAG_OURS) != reader->ours || !ac_reader_find_trailer(reader, out)))
        return AC_E_SLOW;
    reader->last_offset = offset;
    reader->offset = offset + ac_record_size(out->length);
    ac_reader_prefetch(reader, out->record, offset);
    reader->expected_seq = out->seq + 1;
    reader->last_timestamp_ns = out->timestamp_ns;
    reader->continued =
        reader->ours; /* the first record after a seek, or after damage, may be taken here */
    reader->messages++;
    reader->payload_bytes += out->length;
    return 1;
}

/* reader.c. Usable: open, and the queue exists; a reader that waits for its queue looks for it. */
int ac_reader_check_open(ac_reader_t *reader, ac_error_t *err);
int ac_reader_usable(ac_reader_t *reader, ac_error_t *err);
/* AC_E_REVOKED if the reader's position was taken away: see position.h. */
int ac_reader_check_revoked(ac_reader_t *reader, ac_error_t *err);

/* The steps of opening. Initialises a new one, all zero, with what it has before its queue is found. */
void ac_reader_init(ac_reader_t *reader, const ac_reader_config_t *config);
/* The queue's directory. */
int ac_reader_find(ac_directory_t *dir, const char *path, const ac_reader_config_t *config,
                   ac_error_t *err);
/* Opens the queue and goes to where reading starts; or lets go of it. No other part knows of the reader by
 * then. */
int ac_reader_open_queue(ac_reader_t *reader, const char *path, const ac_reader_config_t *config,
                         ac_error_t *err);
void ac_reader_detach(ac_reader_t *reader);
void ac_reader_begin_heartbeat(ac_reader_t *reader);
uint64_t ac_reader_heartbeat_ns(const ac_control_t *control); /* from one queue to the next */

/* reader_pending.c. Opens the awaited queue if it exists now. May wait for the disk. */
int ac_reader_attach(ac_reader_t *reader, ac_error_t *err);
/* As ac_reader_next and ac_reader_ready, for an event loop: the awaited queue is opened in the background.
 * Until it is open there is nothing to read; then the eventfd is signalled. */
int ac_reader_next_in_loop(ac_reader_t *reader, ac_message_t *out, ac_error_t *err);
int ac_reader_ready_in_loop(ac_reader_t *reader, ac_error_t *err);
/* An opening in progress must end before the reader is closed, and that may wait for the disk. A caller
 * that holds a lock which others wait for takes it away from the reader, closes the reader, and frees this
 * after it has released the lock; the reader is freed later. */
ac_opening_t *ac_reader_take_opening(ac_reader_t *reader);
void ac_opening_free(ac_opening_t *opening);

/* reader_next.c. Whether the newest segment still lacks its header, because another program published it
 * first; then it counts as absent. Not if control block or index.meta say that it has records. */
int ac_segment_awaited(const ac_directory_t *dir, int dir_fd, uint32_t newest,
                       const ac_control_t *control, const ac_durable_t *durable);
int ac_reader_enter(ac_reader_t *reader, uint32_t segment, uint64_t offset, ac_error_t *err);
/* To the start of a segment that cannot be entered yet. */
void ac_reader_await(ac_reader_t *reader, uint32_t segment);
/* Maps a segment. Until a queue has segments, their size may change: so it is read here while the reader
 * has none, and again after the segment was found. */
int ac_reader_open_segment(ac_reader_t *reader, int dir_fd, uint32_t segment, ac_map_t **map,
                           ac_error_t *err);
/* Into the segment after this one, which is sealed or full. After one that is not sealed, the next is
 * entered only if it has records: see is_spare. */
enum { AC_NEXT_MISSING = 0, AC_NEXT_ENTERED = 1, AC_NEXT_SPARE = 2 };
int ac_reader_enter_next(ac_reader_t *reader, ac_error_t *err);
void ac_reader_place(ac_reader_t *reader, ac_map_t *map, uint64_t offset);
/* The oldest segment after `id`: 1 = found, 0 = there is none; *found is then the newest of all, or
 * `id` itself in an empty queue. */
int ac_reader_first_segment_after(ac_reader_t *reader, uint64_t id, uint32_t *found,
                                  ac_error_t *err);
/* How far reading goes in the current segment before what a power cut may have left: that lies after the
 * durable position of a writer that is gone, if no other writer has opened the queue since. */
uint64_t ac_reader_sound_limit(ac_reader_t *reader);
/* How far the fast path may go in it. */
uint64_t ac_reader_fast_limit(ac_reader_t *reader);
/* A batch is whole or absent. A live writer ensures that, and so does recovery; before recovery, pages that
 * survived without others may leave part of a batch. Whether all records that follow the message at
 * `offset` are there. */
int ac_reader_is_whole_batch(ac_reader_t *reader, uint64_t offset, const ac_message_t *first);
/* Reports why a page of the current segment could not be read: AC_E_GONE if the file was truncated, else
 * AC_E_SYSTEM with EIO; the next call tries to read it again. */
int ac_reader_fail_cut(ac_reader_t *reader, ac_error_t *err);
/* Reports that `segment` is gone, and the nearest position that is left. */
int ac_reader_position_lost(ac_reader_t *reader, uint64_t segment, uint64_t offset,
                            uint64_t near_segment, uint64_t near_offset, const char *why,
                            ac_error_t *err);

/* As ac_reader_commit, which determines the epoch of a record beside the position; 0 = unknown. */
int ac_reader_commit_epoch(ac_reader_t *reader, uint64_t segment, uint64_t offset, uint32_t epoch,
                           int sync, ac_error_t *err);

/* reader_resume.c. The epoch of the record before or at a position of the current segment; 0 = unknown. */
uint32_t ac_reader_epoch_beside(const ac_reader_t *reader, uint64_t segment, uint64_t offset);
/* AC_E_POSITION_LOST if none of the records beside the reader's position has this epoch. */
int ac_reader_confirm_epoch(ac_reader_t *reader, uint32_t epoch, ac_error_t *err);

/* Whether to skip a damage instead of failing. Once allowed, once done. */
int ac_reader_may_skip(ac_reader_t *reader);

/* Where a message of the reader begins in its file, and how many bytes its record takes there. Before the
 * payload of a Java queue's message there is a header of four bytes only: see cq4_tail.h. */
uint64_t ac_reader_offset_of(const ac_reader_t *reader, const ac_message_t *message,
                             const uint8_t *base);
uint64_t ac_reader_bytes_of(const ac_reader_t *reader, const ac_message_t *message);

/* Un-reads the message that was read last. */
void ac_reader_unread(ac_reader_t *reader, const ac_message_t *message);

/* The same, without a trace in the statistics and expectations: restores them from the mark that was taken
 * before the message was read. */
typedef struct ac_mark {
    uint64_t expected_seq, last_timestamp_ns, seq_restarts, timestamp_returns, skipped_records;
    uint32_t continued;
} ac_mark_t;

static inline ac_mark_t ac_reader_mark(const ac_reader_t *reader) {
    return (ac_mark_t){reader->expected_seq,      reader->last_timestamp_ns, reader->seq_restarts,
                       reader->timestamp_returns, reader->skipped_records,   reader->continued};
}

void ac_reader_return(ac_reader_t *reader, const ac_mark_t *mark, const ac_message_t *message);

/* reader_seek.c: from a corrupt place, if the reader stands at one, on to the first record that reaches the bound, or
 * to the end. */
int ac_reader_pass_damage(ac_reader_t *reader, ac_bound_t bound, ac_error_t *err);

/* reader_seek.c: the index of a segment of the queue, up to date; NULL in *out if there is no such segment. Moves
 * the reader somewhere. */
int ac_reader_index(ac_reader_t *reader, uint32_t segment, const ac_index_t **out, ac_error_t *err);

/* Whether it has come to the end that it was given. */
static inline int ac_reader_is_behind_end(const ac_reader_t *reader) {
    return reader->segment > reader->end_segment ||
           (reader->segment == reader->end_segment && reader->offset >= reader->end_offset);
}

/* How far reading goes in the current segment. */
static inline uint64_t ac_reader_limit(const ac_reader_t *reader) {
    return reader->segment == reader->end_segment && reader->end_offset < reader->size
               ? reader->end_offset
               : reader->size;
}

/* reader_seek.c: ac_reader_lag in two halves. The second, which walks every segment from the reader to the
 * writer, no longer needs the reader, so a caller that shares the reader can let others use it meanwhile. */
typedef struct ac_way {
    ac_directory_t dir;
    uint64_t segment_size, from_segment, from_offset, to_segment, to_offset;
    ac_cq4_roll_t
        roll; /* of a Java queue, whose end is found on the way; shift 0: a queue of ours */
} ac_way_t;

int ac_reader_begin_lag(ac_reader_t *reader, ac_lag_t *out, ac_way_t *way, ac_error_t *err);
int ac_reader_lag_bytes(const ac_way_t *way, ac_lag_t *out, ac_error_t *err); /* [any thread] */

/* Uses this eventfd from now on; NULL: a new one of its own, when needed. */
void ac_reader_use_eventfd(ac_reader_t *reader, ac_eventfd_t *eventfd);

/* The next interval at which a reader that is not signalled polls: 50 us at first, then never much longer
 * than a quarter of the time that it has waited. */
enum { AC_POLL_MAX_NS = 2000000, AC_POLL_JAVA_MAX_NS = 20000000 }; /* unless the caller says so */

static inline uint64_t ac_poll_interval_ns(uint64_t before_ns, uint64_t max_ns) {
    uint64_t next_ns = before_ns ? before_ns + before_ns / 4 : 50000;
    return next_ns < max_ns ? next_ns : max_ns;
}

/* How often a queue is polled. A Java queue is always polled, so an idle one must cost next to nothing. */
static inline uint64_t ac_reader_poll_max_ns(const ac_reader_t *reader) {
    if (reader->poll_max_ns) return reader->poll_max_ns;
    return reader->java ? AC_POLL_JAVA_MAX_NS : AC_POLL_MAX_NS;
}

/* reader_park.c: lets a writer that signals find the reader. Without the permission to announce itself the
 * reader polls, which is not an error. */
void ac_reader_announce(ac_reader_t *reader);
/* Retracts the announcement, or waits for the thread that is using it: until then the wake thread may use
 * the eventfd. */
void ac_reader_retract(ac_reader_t *reader);
/* An announcement is a file, and removing it may wait for the disk. A caller that holds a lock which others
 * wait for releases it in between: begin (0 = nothing to do), ac_wake_retract(&reader->endpoint), end. */
int ac_reader_begin_retract(ac_reader_t *reader);
void ac_reader_end_retract(ac_reader_t *reader);

/* Removes all pages from the page table but those that a waiting reader looks at. */
void ac_reader_keep_two_pages(ac_reader_t *reader);

/* The reader's bit is raised and no writer has taken it. */
int ac_reader_is_parked(const ac_reader_t *reader);
/* For a member of a group that no longer sleeps: another member is woken for the next message. */
void ac_reader_unpark(ac_reader_t *reader);

#endif
