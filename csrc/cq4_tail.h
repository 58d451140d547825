/* Reading a Java Chronicle Queue, message by message, while others append to it.
 *
 * 1. At a complete data record: that is the next message. Metadata is skipped.
 * 2. At the end mark of a file: go on to the next cycle that has a file, however many are missing between.
 * 3. At nothing: wait. But a process that was killed may have left a file without end mark. So the reader goes on
 *    if a later cycle has a message in it, no live process holds the write lock, and then there is still nothing
 *    here. A later file without messages proves nothing: it may have been created ahead of time.
 * 4. At a record that is being written (4.x only): the same, but only after 15 seconds, when Java gives up, too.
 * 5. A later file that is being created is waited for, unless one after it has messages already.
 *
 * Java's writers signal nobody. A call that finds nothing costs three loads and a clock read; the directory is listed
 * when listing.modCount has changed, and once a second in case its writer was killed before the change.
 *
 * A message has the form of a native one: seq is Java's 64-bit index, segment the cycle, timestamp_ns the moment at
 * which its cycle begins. Only the payload is valid at `record`: `record` points 64 bytes before the payload, and
 * flags are 0, so that nobody looks for a header there. */
#ifndef AC_CQ4_TAIL_H
#define AC_CQ4_TAIL_H

#include "cq4_queue.h"
#include "record.h"

typedef struct ac_cq4_tail {
    /* Hot. */
    const uint8_t *base;
    uint64_t offset;     /* of the header of the next record */
    uint64_t window_end; /* headers before this may be checked; 0: take the slow path */
    uint64_t size;
    uint64_t padding;
    uint64_t index; /* of the next message */
    uint64_t timestamp_ns;
    uint32_t segment; /* the cycle */
    uint64_t messages;
    uint64_t payload_bytes;

    /* Cold. */
    ac_cq4_queue_t queue;
    ac_cq4_cycle_t cycle;                                /* not open: there was no file yet */
    uint64_t end_segment, end_offset;                    /* reading ends here; UINT64_MAX: no end */
    uint64_t looked_ns, look_again_ns, looked_mod_count; /* at the directory, monotonic clock */
    uint64_t busy_since_ns, busy_offset;                 /* of a record that is being written */
    uint64_t cycles_entered, missing_ends;
    int skips_damage;       /* seeking skips files that cannot be opened */
    uint64_t passed_offset; /* offset of damage in the current cycle that counts as its end; 0 =
                               none */
    uint64_t bad_cycle;     /* number + 1 of the later file that could not be opened; 0 = none … */
    uint64_t passed_cycle;  /* … and up to which cycle files are skipped */
} ac_cq4_tail_t;

/* Opens the queue and places the reader before its first message. See ac_cq4_queue_open. The tail must not be moved
 * in memory while it is open. */
int ac_cq4_tail_open(ac_cq4_tail_t *tail, const char *path, ac_error_t *err);
int ac_cq4_tail_open_in(ac_cq4_tail_t *tail, const ac_directory_t *dir, ac_error_t *err);
void ac_cq4_tail_close(ac_cq4_tail_t *tail);

/* The complete data record of this length at the offset, as a message. */
static inline void ac_cq4_tail_deliver(ac_cq4_tail_t *tail, uint32_t length, ac_message_t *out) {
    *out =
        (ac_message_t){.record = tail->base + tail->offset + AC_CQ4_HEADER_BYTES - AC_HEADER_SIZE,
                       .seq = tail->index,
                       .timestamp_ns = tail->timestamp_ns,
                       .segment = tail->segment,
                       .length = length};
    tail->offset = ac_cq4_after(tail->offset, length, tail->padding);
    tail->index++;
    tail->messages++;
    tail->payload_bytes += length;
}

/* The fast path: 1 with *out filled, or AC_E_SLOW and nothing was done. */
static inline int ac_cq4_tail_try_next(ac_cq4_tail_t *tail, ac_message_t *out) {
    uint64_t offset = tail->offset;
    if (AC_UNLIKELY(offset >= tail->window_end)) return AC_E_SLOW;
    /* Pairs with the writer's store of the header. */
    uint32_t length = ac_cq4_load_header(tail->base + offset);
    if (AC_UNLIKELY(length - 1 >= AC_CQ4_LENGTH_MASK)) return AC_E_SLOW; /* not a message */
    if (AC_UNLIKELY(length > tail->size - AC_CQ4_HEADER_BYTES - offset)) return AC_E_SLOW;
    ac_cq4_tail_deliver(tail, length, out);
    return 1;
}

/* 1 = *out is the next message and the position moved after it; 0 = nothing available; negative = error,
 * position unchanged. *out points into ac_cq4_tail_map, which a caller that keeps the message must retain. */
int ac_cq4_tail_next(ac_cq4_tail_t *tail, ac_message_t *out, ac_error_t *err);

/* 1 = ac_cq4_tail_next would not return 0. The position does not change. */
int ac_cq4_tail_ready(ac_cq4_tail_t *tail, ac_error_t *err);

/* Un-reads the message that was read last. */
void ac_cq4_tail_unread(ac_cq4_tail_t *tail, const ac_message_t *message);

/* Skips the damage for which ac_cq4_tail_next returned AC_E_CORRUPT: to the next message that the index of
 * the file knows, or to the next file; skips a file that cannot be opened. Returns how many bytes were
 * skipped, as far as that is known. */
uint64_t ac_cq4_tail_pass_damage(ac_cq4_tail_t *tail);

/* Reports why a page of the mapping could not be read: AC_E_GONE if the file was truncated, else
 * AC_E_SYSTEM with EIO. The next call tries to read it again. */
int ac_cq4_tail_fail_cut(ac_cq4_tail_t *tail, ac_error_t *err);

/* The mapping with the message that was read last; NULL before the first file. */
static inline ac_map_t *ac_cq4_tail_map(const ac_cq4_tail_t *tail) {
    return tail->cycle.map;
}

/* At the first message with this index or a higher one, by the index of its file; if there is none, at the
 * end. On error the reader stays where it is; the same holds for the calls below. */
int ac_cq4_tail_seek_index(ac_cq4_tail_t *tail, uint64_t index, ac_error_t *err);
int ac_cq4_tail_seek_first(ac_cq4_tail_t *tail, ac_error_t *err);
/* The file that contains it: 1 and *out, which the caller closes; 0 if there is none. */
int ac_cq4_tail_open_first(ac_cq4_tail_t *tail, ac_cq4_cycle_t *out, ac_error_t *err);
int ac_cq4_tail_seek_last(ac_cq4_tail_t *tail, ac_error_t *err); /* after the newest message */

/* To a position from ac_cq4_tail_position; offset 0 is the start of a cycle. AC_E_POSITION_LOST if the
 * cycle no longer has a file, or no record begins there. */
int ac_cq4_tail_seek_position(ac_cq4_tail_t *tail, uint64_t segment, uint64_t offset,
                              ac_error_t *err);
/* Of the next record to be read; 0 and 0 before the first file. */
void ac_cq4_tail_position(const ac_cq4_tail_t *tail, uint64_t *segment, uint64_t *offset);

/* Makes reading end at a position. */
void ac_cq4_tail_end_at(ac_cq4_tail_t *tail, uint64_t segment, uint64_t offset);
int ac_cq4_tail_ended(const ac_cq4_tail_t *tail);

/* Messages and bytes of records from here to the end of the queue. Opens every later file, and finds the
 * end of each by its index. age_ns counts from the start of the oldest unread message's cycle. */
int ac_cq4_tail_lag(ac_cq4_tail_t *tail, ac_lag_t *out, ac_error_t *err);

#endif
