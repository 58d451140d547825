#include "fanin.h"

#include "error.h"
#include "os.h"
#include "recovery.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SOURCES_MAX = 65536, FIRST_ROOM = 16 };

/* ---- the heap ---- */

static int before(const ac_heap_entry_t *a, const ac_heap_entry_t *b) {
    return a->timestamp_ns < b->timestamp_ns ||
           (a->timestamp_ns == b->timestamp_ns && a->id < b->id);
}

static void sift_down(ac_fanin_t *fanin, uint32_t hole) {
    ac_heap_entry_t *heap = fanin->heap;
    ac_heap_entry_t moving = heap[hole];
    for (;;) {
        uint32_t child = 2 * hole + 1;
        if (child >= fanin->heap_count) break;
        if (child + 1 < fanin->heap_count && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &moving)) break;
        heap[hole] = heap[child];
        hole = child;
    }
    heap[hole] = moving;
}

static void sift_up(ac_fanin_t *fanin, uint32_t hole) {
    ac_heap_entry_t *heap = fanin->heap;
    ac_heap_entry_t moving = heap[hole];
    while (hole > 0 && before(&moving, &heap[(hole - 1) / 2])) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = moving;
}

static void heap_remove(ac_fanin_t *fanin, uint32_t hole) {
    fanin->heap[hole] = fanin->heap[--fanin->heap_count];
    if (hole == fanin->heap_count) return;
    sift_down(fanin, hole);
    sift_up(fanin, hole);
}

static ac_heap_entry_t entry_of(const ac_source_t *source, uint32_t slot) {
    return (ac_heap_entry_t){source->head.timestamp_ns, source->id, slot};
}

static void heap_push(ac_fanin_t *fanin, uint32_t slot) {
    fanin->heap[fanin->heap_count] = entry_of(&fanin->sources[slot], slot);
    sift_up(fanin, fanin->heap_count++);
}

/* ---- sources ---- */

/* Reads a source's next message. The one after it is fetched into the cache meanwhile: by the time it is
 * wanted, as many other messages as there are sources have been dealt with. */
static int load_head(ac_source_t *source, ac_error_t *err) {
    ac_reader_t *reader = source->reader;
    int rc = ac_reader_next(reader, &source->head, err);
    source->has_head = rc == 1;
    if (rc == 1 && reader->offset < reader->size) {
        const uint8_t *following = reader->base + reader->offset;
        __builtin_prefetch(following);
        __builtin_prefetch(following + 64);
        __builtin_prefetch(following + 128);
    }
    return rc;
}

static void idle_remove(ac_fanin_t *fanin, uint32_t index) {
    fanin->idle[index] = fanin->idle[--fanin->idle_count];
}

/* Looks at one idle source. 1 = it woke up (and another took its place in the list). */
static int look_at(ac_fanin_t *fanin, uint32_t index, ac_error_t *err) {
    uint32_t slot = fanin->idle[index];
    int rc = load_head(&fanin->sources[slot], err);
    if (rc != 1) return rc;
    idle_remove(fanin, index);
    heap_push(fanin, slot);
    return 1;
}

static int look_everywhere(ac_fanin_t *fanin, ac_error_t *err) {
    fanin->look_everywhere = 0;
    for (uint32_t i = fanin->idle_count; i-- > 0;) {
        int rc = look_at(fanin, i, err);
        if (rc < 0) return rc;
    }
    return AC_OK;
}

static int refill_top(ac_fanin_t *fanin, ac_error_t *err) {
    uint32_t slot = fanin->heap[0].slot;
    int rc = load_head(&fanin->sources[slot], err);
    fanin->refill = 0;
    if (rc == 1) {
        fanin->heap[0] = entry_of(&fanin->sources[slot], slot);
        sift_down(fanin, 0);
        return AC_OK;
    }
    heap_remove(fanin, 0);
    fanin->idle[fanin->idle_count++] = slot;
    /* It may deliver anything from its last message on: what was known to be safe is so no longer. */
    uint64_t bound = fanin->sources[slot].last_timestamp_ns;
    if (bound < fanin->safe_until_ns) fanin->safe_until_ns = 0;
    return rc < 0 ? rc : AC_OK;
}

/* ---- strict order ---- */

/* Everything older than this from the idle source is known to be here. */
static uint64_t promise_of(const ac_source_t *source) {
    const ac_control_t *control = source->reader->control;
    ac_clean_t clean;
    uint64_t epoch = ac_load_acquire_u64(&control->writer_epoch);
    memcpy(&clean, &control->clean, sizeof clean);
    if (ac_clean_valid(&clean) && clean.epoch == epoch) return UINT64_MAX; /* closed */
    return ac_load_acquire_u64(&control->watermark_ns);
}

/* 1 = the top may go out; 0 = not yet. A promise is read before the source is looked at again, because what
 * it promises was written before it was given. */
static int is_safe(ac_fanin_t *fanin, ac_error_t *err) {
    if (fanin->heap[0].timestamp_ns <= fanin->safe_until_ns || fanin->idle_count == 0) return 1;
    uint64_t least = UINT64_MAX;
    uint32_t least_id = 0;
    for (uint32_t i = fanin->idle_count; i-- > 0;) {
        const ac_source_t *source = &fanin->sources[fanin->idle[i]];
        uint64_t promise = promise_of(source);
        uint32_t id = source->id;
        int rc = look_at(fanin, i, err);
        if (rc < 0) return rc;
        if (rc == 0 && promise < least) {
            least = promise;
            least_id = id;
        }
    }
    fanin->safe_until_ns = least;
    fanin->blocked_id = least_id;
    return fanin->heap[0].timestamp_ns <= least;
}

static int may_go(ac_fanin_t *fanin, ac_error_t *err) {
    int rc = is_safe(fanin, err);
    if (rc != 0) {
        fanin->blocked_since_ns = 0;
        return rc;
    }
    uint64_t now = ac_os_monotonic_ns();
    if (fanin->blocked_since_ns == 0) fanin->blocked_since_ns = now;
    if (fanin->max_wait_ns == UINT64_MAX || now - fanin->blocked_since_ns < fanin->max_wait_ns)
        return 0;
    return 1; /* blocked_since stays: whatever else is older than the wait follows at once */
}

/* ---- reading ---- */

/* 1 = the top of the heap is the next message. */
static int settle(ac_fanin_t *fanin, ac_error_t *err) {
    int rc = fanin->refill ? refill_top(fanin, err) : AC_OK;
    if (rc != AC_OK) return rc;
    if (fanin->heap_count == 0 || fanin->look_everywhere) {
        rc = look_everywhere(fanin, err);
    } else if (fanin->idle_count > 0) {
        if (fanin->idle_next >= fanin->idle_count) fanin->idle_next = 0;
        rc = look_at(fanin, fanin->idle_next, err);
        if (rc == 0) fanin->idle_next++;
    }
    if (rc < 0) return rc;
    if (fanin->heap_count == 0) return 0;
    return fanin->strict ? may_go(fanin, err) : 1;
}

int ac_fanin_next(ac_fanin_t *fanin, ac_message_t *out, uint32_t *slot, int *late,
                  ac_error_t *err) {
    int rc = settle(fanin, err);
    if (rc != 1) return rc;
    const ac_heap_entry_t *top = &fanin->heap[0];
    ac_source_t *source = &fanin->sources[top->slot];
    *out = source->head;
    *slot = top->slot;
    *late = top->timestamp_ns < fanin->last_timestamp_ns ||
            (top->timestamp_ns == fanin->last_timestamp_ns && top->id < fanin->last_id);
    if (*late) {
        source->late++;
        fanin->late++;
    } else {
        fanin->last_timestamp_ns = top->timestamp_ns;
        fanin->last_id = top->id;
    }
    source->has_head = 0;
    source->delivered++;
    source->last_timestamp_ns = out->timestamp_ns;
    fanin->delivered++;
    fanin->refill = 1;
    return 1;
}

int ac_fanin_ready(ac_fanin_t *fanin, ac_error_t *err) {
    fanin->look_everywhere = 1;
    int rc = settle(fanin, err);
    return rc < 0 ? 1 : rc; /* next will report it */
}

int ac_fanin_bell(ac_fanin_t *fanin, ac_error_t *err) {
    (void)err;
    return fanin->bell->fd;
}

/* Only sources without a message can bring news; a bit that is still raised needs no raising. */
int ac_fanin_park(ac_fanin_t *fanin, ac_error_t *err) {
    int poll = 0;
    for (uint32_t i = 0; i < fanin->idle_count; i++) {
        ac_reader_t *reader = fanin->sources[fanin->idle[i]].reader;
        int rc = ac_reader_is_parked(reader) ? AC_PARKED : ac_reader_park(reader, err);
        if (rc < 0 || rc == AC_READY) return rc;
        poll |= rc == AC_POLL;
    }
    int rc = ac_fanin_ready(fanin, err);
    if (rc != 0) return rc;
    /* A bounded wait for strict order ends by the clock, which rings no bell. */
    poll |= fanin->strict && fanin->heap_count > 0 && fanin->max_wait_ns != UINT64_MAX;
    return poll ? AC_POLL : AC_PARKED;
}

/* ---- attaching ---- */

int ac_fanin_new(int strict, uint64_t max_wait_ns, ac_fanin_t **out, ac_error_t *err) {
    int error = -ENOMEM;
    ac_fanin_t *fanin = ac_os_alloc(sizeof *fanin);
    if (fanin) fanin->bell = ac_bell_new(&error);
    if (!fanin || !fanin->bell) {
        free(fanin);
        return ac_fail_os(err, error, NULL, "cannot create a fan-in");
    }
    fanin->strict = strict;
    fanin->max_wait_ns = max_wait_ns;
    *out = fanin;
    return AC_OK;
}

static int grow(ac_fanin_t *fanin) {
    uint32_t room = fanin->room ? fanin->room * 2 : FIRST_ROOM;
    ac_source_t *sources = realloc(fanin->sources, room * sizeof *sources);
    if (sources) fanin->sources = sources;
    ac_heap_entry_t *heap = realloc(fanin->heap, room * sizeof *heap);
    if (heap) fanin->heap = heap;
    uint32_t *idle = realloc(fanin->idle, room * sizeof *idle);
    if (idle) fanin->idle = idle;
    if (!sources || !heap || !idle) return -ENOMEM;
    fanin->room = room;
    return 0;
}

static uint32_t free_slot(const ac_fanin_t *fanin) {
    uint32_t slot = 0;
    while (slot < fanin->slots && fanin->sources[slot].reader)
        slot++;
    return slot;
}

int ac_fanin_attach(ac_fanin_t *fanin, ac_reader_t *reader, uint32_t *slot, uint32_t *id,
                    ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK) return rc;
    for (uint32_t i = 0; i < fanin->slots; i++)
        if (fanin->sources[i].reader && fanin->sources[i].reader->dir.inode == reader->dir.inode &&
            fanin->sources[i].reader->dir.device == reader->dir.device)
            return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0,
                           "this queue is attached already, as source %u", fanin->sources[i].id);
    *slot = free_slot(fanin);
    if (*slot == SOURCES_MAX)
        return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0, "more than %d sources",
                       SOURCES_MAX);
    if (*slot == fanin->room && grow(fanin) < 0)
        return ac_fail_os(err, -ENOMEM, reader->dir.path, "cannot attach");
    if (*slot == fanin->slots) fanin->slots++;
    ac_reader_use_bell(reader, fanin->bell);
    ac_source_t *source = &fanin->sources[*slot];
    memset(source, 0, sizeof *source);
    source->reader = reader;
    source->id = *id = fanin->next_id++;
    fanin->idle[fanin->idle_count++] = *slot;
    fanin->look_everywhere = 1;
    fanin->safe_until_ns = 0;
    ac_os_eventfd_signal(fanin->bell->fd); /* whoever sleeps has one more to look at */
    return AC_OK;
}

/* Where the source stands, seen from what was delivered. */
static void position_of(const ac_source_t *source, uint64_t *segment, uint64_t *offset) {
    ac_reader_position(source->reader, segment, offset);
    if (source->has_head) *offset -= ac_record_size(source->head.length);
}

void ac_fanin_detach(ac_fanin_t *fanin, uint32_t slot) {
    ac_source_t *source = &fanin->sources[slot];
    if (!source->reader) return;
    if (fanin->refill && fanin->heap[0].slot == slot) {
        fanin->refill = 0;
        heap_remove(fanin, 0);
    } else if (source->has_head) {
        for (uint32_t i = 0; i < fanin->heap_count; i++)
            if (fanin->heap[i].slot == slot) {
                /* The stale top keeps its place: its key is not larger than any other's. */
                heap_remove(fanin, i);
                break;
            }
        ac_reader_unread(source->reader, &source->head);
    } else {
        for (uint32_t i = 0; i < fanin->idle_count; i++)
            if (fanin->idle[i] == slot) {
                idle_remove(fanin, i);
                break;
            }
    }
    ac_reader_use_bell(source->reader, NULL);
    source->reader = NULL;
    source->has_head = 0;
    fanin->safe_until_ns = 0;
    ac_os_eventfd_signal(fanin->bell->fd); /* strict order may have been waiting for it */
}

int ac_fanin_commit(ac_fanin_t *fanin, uint32_t slot, ac_error_t *err) {
    uint64_t segment, offset;
    if (slot >= fanin->slots || !fanin->sources[slot].reader)
        return ac_fail(err, AC_E_ARGUMENT, 0, NULL, 0, "no such source");
    position_of(&fanin->sources[slot], &segment, &offset);
    return ac_reader_commit(fanin->sources[slot].reader, segment, offset, 0, err);
}

int ac_fanin_source_stats(ac_fanin_t *fanin, uint32_t slot, ac_source_stats_t *out,
                          ac_error_t *err) {
    memset(out, 0, sizeof *out);
    if (slot >= fanin->slots || !fanin->sources[slot].reader)
        return ac_fail(err, AC_E_ARGUMENT, 0, NULL, 0, "no such source");
    const ac_source_t *source = &fanin->sources[slot];
    ac_lag_t lag = {0};
    int rc = ac_reader_lag(source->reader, &lag, err);
    if (rc < 0) return rc;
    out->id = source->id;
    out->delivered = source->delivered;
    out->late = source->late;
    out->last_timestamp_ns = source->last_timestamp_ns;
    out->lag_messages = lag.messages + (uint64_t)source->has_head;
    out->lag_bytes = lag.bytes + (source->has_head ? ac_record_size(source->head.length) : 0);
    out->watermark_ns = ac_load_acquire_u64(&source->reader->control->watermark_ns);
    out->has_message = source->has_head;
    out->attended = ac_reader_attended(source->reader);
    return AC_OK;
}

void ac_fanin_stats(ac_fanin_t *fanin, ac_fanin_stats_t *out) {
    uint64_t blocked = fanin->blocked_since_ns;
    out->sources = fanin->heap_count + fanin->idle_count;
    out->idle = fanin->idle_count;
    out->delivered = fanin->delivered;
    out->late = fanin->late;
    out->last_timestamp_ns = fanin->last_timestamp_ns;
    out->blocked_ns = blocked ? ac_os_monotonic_ns() - blocked : 0;
    out->blocked_by = fanin->blocked_id;
    out->blocked = blocked != 0;
}

void ac_fanin_free(ac_fanin_t *fanin) {
    if (!fanin) return;
    for (uint32_t slot = 0; slot < fanin->slots; slot++)
        ac_fanin_detach(fanin, slot);
    ac_bell_release(fanin->bell);
    free(fanin->sources);
    free(fanin->heap);
    free(fanin->idle);
    free(fanin);
}
