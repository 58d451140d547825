/* Many readers as one stream, ordered by (timestamp, source).
 *
 * A heap holds the sources that have a next message, keyed by it. The others are idle and checked again: all of them when
 * there is nothing else to deliver or the eventfd was signalled, otherwise one per message, so that the cost of a message
 * does not grow with the number of idle sources. Strict order checks the epoch of every closed queue for every message,
 * because a closed queue has promised nothing: see is_reopened.
 *
 * A source that fails is set aside: the call that met the error reports it, once, and the others go on.
 *
 * A source's next message is read ahead but not delivered: its position, as committed or returned by detach, is always
 * after the last delivered message. The following call fetches the replacement of a delivered message, so the mapping
 * it lies in is still there while the caller looks at it. The source retains that mapping, because the reader's owner
 * may close or move the reader meanwhile. */
#ifndef AC_FANIN_H
#define AC_FANIN_H

#include "reader.h"
#include "wake_eventfd.h"

typedef struct ac_source {
    ac_reader_t *reader; /* NULL: free slot */
    uint32_t id;
    int has_head;
    int failed; /* set aside: neither in the heap nor idle */
    ac_message_t head;
    ac_map_t *map; /* with the head, or with what was delivered last; retained */
    const uint8_t *base;
    uint64_t delivered;
    uint64_t late;
    uint64_t last_timestamp_ns; /* of the message delivered last */
    /* Strict order, on the monotonic clock; 0 = not now. */
    uint64_t held_since_ns;   /* its message is the next one, and has to wait */
    uint64_t silent_since_ns; /* others wait for it, and it has promised nothing */
    uint64_t promise_ns;      /* its promise at that time */
    uint64_t relied_epoch;    /* the promise holds while this is its writer; 0 = any writer */
    ac_map_t *control_map;    /* retained, so that it can be checked whatever its reader does */
} ac_source_t;

/* A source whose promise does not bind the next writer, because the queue is closed or the promise is not
 * credible: it holds while this is the epoch. */
typedef struct ac_relied {
    const uint64_t *writer_epoch;
    uint64_t epoch;
} ac_relied_t;

typedef struct ac_heap_entry {
    uint64_t timestamp_ns;
    uint32_t id;
    uint32_t slot;
} ac_heap_entry_t;

struct ac_fanin {
    int strict;
    uint64_t max_wait_ns; /* UINT64_MAX: no limit */
    ac_source_t *sources;
    uint32_t slots, room;
    ac_heap_entry_t *heap;
    uint32_t heap_count, second; /* the smaller child of the top; 0 = there is none */
    uint32_t *idle;
    uint32_t idle_count, idle_next, looks;
    int refill; /* the top of the heap was delivered and needs its next message */
    int poll_every_idle;
    int poll_fully; /* check every idle source: one of them has news that is not visible in its
                       words */
    uint32_t failed_slot; /* of the last error that a call returned */
    ac_heap_entry_t safe; /* strict: no idle source can still deliver anything before this … */
    ac_relied_t *relied;  /* … as long as none of these queues is opened again */
    uint32_t relied_count;
    uint64_t blocked_since_ns; /* monotonic; 0 = strict order is not waiting */
    uint32_t blocked_id;
    uint64_t last_timestamp_ns; /* key of the newest delivered message */
    uint32_t last_id;
    uint32_t next_id;
    uint64_t replaced_ns; /* last_timestamp_ns before the last delivery of the source that delivered
                             last */
    uint64_t delivered, late;
    uint64_t poll_max_ns;   /* the poll interval, if it was parked and may not be signalled */
    uint64_t poll_given_ns; /* the same, set by the caller; 0 = not given */
    ac_eventfd_t *eventfd;
};

/* As ac_fanin_next, without the copy: *head is the source's own, valid until the next call. */
int ac_fanin_take(ac_fanin_t *fanin, ac_message_t **head, uint32_t *slot, int *late,
                  ac_error_t *err);

/* Un-delivers the last message: it is the next message again. `newest` is what ac_fanin_newest was before
 * it, so that an older message that arrives now is not late; NULL = unknown. */
void ac_fanin_give_back(ac_fanin_t *fanin, const ac_heap_entry_t *newest, int late);

/* What was not delivered yet: messages and bytes of all sources together, age of the oldest. A source that
 * cannot say is left out: reading will report its error. In two halves, like the lag of a reader
 * (ac_way_t): the first adds up what is known at once and notes the ways that are left; the second walks
 * those and needs the fan-in no more. Both must be called. */
typedef struct ac_ways {
    struct ac_source_way {
        ac_lag_t lag;
        ac_way_t way;
    } *left; /* NULL = there are none */
    uint32_t count;
} ac_ways_t;

void ac_fanin_begin_lag(ac_fanin_t *fanin, ac_lag_t *out, ac_ways_t *ways);
void ac_fanin_end_lag(ac_ways_t *ways, ac_lag_t *out); /* [any thread] */

/* The key of the newest message that was delivered. */
static inline ac_heap_entry_t ac_fanin_newest(const ac_fanin_t *fanin) {
    return (ac_heap_entry_t){fanin->last_timestamp_ns, fanin->last_id, 0};
}

/* The key of the top has grown: moves it to its place. */
void ac_fanin_sift_top(ac_fanin_t *fanin);

static inline int ac_fanin_before(const ac_heap_entry_t *a, const ac_heap_entry_t *b) {
    return a->timestamp_ns < b->timestamp_ns ||
           (a->timestamp_ns == b->timestamp_ns && a->id < b->id);
}

/* When the record after the reader is needed, the fan-in has delivered as many other messages as it has
 * sources; when a source has several in a row, those a little further on are needed soon. Within such a run
 * the processor prefetches by itself. */
static inline void ac_fanin_prefetch(const ac_reader_t *reader) {
    const uint8_t *following = reader->base + reader->offset;
    __builtin_prefetch(following);
    __builtin_prefetch(following + 64);
    __builtin_prefetch(following + 128);
    __builtin_prefetch(following + 512);
    __builtin_prefetch(following + 576);
}

/* The fast path of a source that has several messages in a row while no other is idle, so that strict order
 * holds as well. Returns the source whose head was delivered; NULL = ac_fanin_take must be called. */
static inline const ac_source_t *ac_fanin_try_take(ac_fanin_t *fanin, uint32_t *slot) {
    if (!fanin->refill || fanin->idle_count > 0) return NULL;
    ac_heap_entry_t *top = &fanin->heap[0];
    ac_source_t *source = &fanin->sources[top->slot];
    ac_reader_t *reader = source->reader;
    if (AC_UNLIKELY(source->base != reader->base)) return NULL;
    if (AC_UNLIKELY(ac_reader_try_next(reader, &source->head) != 1)) return NULL;
    top->timestamp_ns = source->head.timestamp_ns;
    if ((fanin->second && ac_fanin_before(&fanin->heap[fanin->second], top)) ||
        AC_UNLIKELY(top->id != fanin->last_id || top->timestamp_ns < fanin->last_timestamp_ns)) {
        ac_fanin_prefetch(reader);
        fanin->refill = 0;
        source->has_head = 1;
        reader->ahead = ac_record_size(source->head.length);
        ac_fanin_sift_top(fanin);
        return NULL;
    }
    fanin->replaced_ns = source->last_timestamp_ns;
    fanin->last_timestamp_ns = source->last_timestamp_ns = top->timestamp_ns;
    source->delivered++;
    fanin->delivered++;
    *slot = top->slot;
    return source;
}

#endif
