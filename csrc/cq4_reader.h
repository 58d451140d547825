/* The Java half of a reader: what ac_reader_* do when the queue is a Java Chronicle Queue.
 *
 * A reader has either one of these or a control block. Its `window_end` is never beyond its `offset`, which does not
 * change: so the fast path of native queues refuses, and the public function comes here. `map`, `base` and `segment` of
 * the reader mirror those of the tail, for holders of the mapping that messages lie in; `window_end` is 1, or 0 after
 * the reader was moved, which a fan-in needs to know.
 *
 * seq is Java's index, a segment is a cycle, an offset is that of a record's header in the cycle's file. The committed
 * position of a named reader is the value of index.NAME in metadata.cq4t: see cq4_named.h. */
#ifndef AC_CQ4_READER_H
#define AC_CQ4_READER_H

#include "cq4_named.h"
#include "cq4_stamp.h"
#include "cq4_tail.h"
#include "cq4_wake.h"
#include "cq4_watch.h"
#include "reader.h"

struct ac_cq4_reader {
    ac_cq4_tail_t tail;
    ac_cq4_stamp_t stamp;
    ac_cq4_named_t named; /* of a reader with a name */
    ac_cq4_wake_t wake;   /* how our own writers wake the reader */
    ac_cq4_watch_t watch; /* for all other writers */
};

/* The fast path: 1 with *out filled, or AC_E_SLOW with nothing done. */
static inline int ac_cq4_reader_try_next(ac_reader_t *reader, ac_message_t *out) {
    ac_cq4_reader_t *java = reader->java;
    if (!java || java->stamp.how != AC_CQ4_BY_CYCLE || ac_load_relaxed_u32(&reader->state) != 0)
        return AC_E_SLOW;
    if (ac_cq4_tail_try_next(&java->tail, out) != 1) return AC_E_SLOW;
    reader->last_timestamp_ns = out->timestamp_ns;
    return 1;
}

/* Whether the reader's directory holds such a queue: 1, 0, or an error. */
int ac_cq4_reader_recognises(const ac_directory_t *dir, ac_error_t *err);
/* Opens the queue in the reader's directory; changes nothing on error. AC_E_NOT_FOUND with EAGAIN: it is
 * being created. */
int ac_cq4_reader_open(ac_reader_t *reader, const ac_reader_config_t *config, ac_error_t *err);
void ac_cq4_reader_close(ac_reader_t *reader);

/* Each does what the public function of the same name does, for an open reader. */
int ac_cq4_reader_next(ac_reader_t *reader, ac_message_t *out, ac_error_t *err);
int ac_cq4_reader_ready(ac_reader_t *reader, ac_error_t *err);
void ac_cq4_reader_unread(ac_reader_t *reader, const ac_message_t *message);
int ac_cq4_reader_fail_cut(ac_reader_t *reader, ac_error_t *err);
int ac_cq4_reader_step_over(ac_reader_t *reader, ac_error_t *err);

int ac_cq4_reader_resume(ac_reader_t *reader, ac_error_t *err); /* at the committed position */
int ac_cq4_reader_seek(ac_reader_t *reader, ac_bound_t bound, ac_error_t *err);
int ac_cq4_reader_seek_first(ac_reader_t *reader, ac_error_t *err);
int ac_cq4_reader_seek_last(ac_reader_t *reader, ac_error_t *err);
int ac_cq4_reader_seek_position(ac_reader_t *reader, uint64_t segment, uint64_t offset,
                                ac_error_t *err);
int ac_cq4_reader_end_at(ac_reader_t *reader, uint64_t segment, uint64_t offset, ac_error_t *err);
int ac_cq4_reader_ended(const ac_reader_t *reader);
void ac_cq4_reader_position(const ac_reader_t *reader, uint64_t *segment, uint64_t *offset);

int ac_cq4_reader_commit(ac_reader_t *reader, uint64_t segment, uint64_t offset, int sync,
                         ac_error_t *err);
/* The same after the message with this seq, or before it; saves a search for the seq of a position. */
int ac_cq4_reader_commit_seq(ac_reader_t *reader, uint64_t seq, int sync, ac_error_t *err);
int ac_cq4_reader_committed(ac_reader_t *reader, uint64_t *segment, uint64_t *offset,
                            ac_error_t *err);
int ac_cq4_reader_seq_at(ac_reader_t *reader, uint64_t segment, uint64_t offset, uint64_t *seq,
                         ac_error_t *err);
int ac_cq4_reader_durable_seq(ac_reader_t *reader, uint64_t *seq);
void ac_cq4_reader_stats(const ac_reader_t *reader, ac_reader_stats_t *out);

int ac_cq4_reader_begin_lag(ac_reader_t *reader, ac_lag_t *out, ac_way_t *way, ac_error_t *err);
int ac_cq4_reader_lag_bytes(const ac_way_t *way, ac_lag_t *out, ac_error_t *err);
int64_t ac_cq4_reader_count(ac_reader_t *reader, const ac_range_t *range, ac_error_t *err);
int64_t ac_cq4_reader_spans(ac_reader_t *reader, const ac_range_t *range, ac_span_t *out,
                            size_t room, ac_error_t *err);

/* cq4_info.c: questions about a whole queue. */
int ac_cq4_info(const char *path, ac_queue_info_t *out, ac_error_t *err);
int64_t ac_cq4_readers(const char *path, ac_reader_entry_t *out, size_t room, ac_error_t *err);
int64_t ac_cq4_why_kept(const char *path, ac_kept_segment_t *out, size_t room, ac_error_t *err);

#endif
