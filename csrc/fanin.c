#include "fanin.h"

#include "error.h"
#include "os.h"
#include "recovery.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* With at most EXACT_IDLE idle sources, available order is exact at every message: all of them are checked.
 * With more, one is checked per message, in turn. */
enum {
    SOURCES_MAX = 65536,
    FIRST_ROOM = 16,
    EXACT_IDLE = 8,
    PROPER_EVERY = 16,
    HEARINGS_MAX = 4,
    FAULT_BYTES = 16 * 4096,
};

/* ---- the heap ---- */

/* A source often has several in a row: its next message must then be compared only with the second
 * source's. */
static void find_second(ac_fanin_t *fanin) {
    const ac_heap_entry_t *heap = fanin->heap;
    fanin->second = fanin->heap_count < 2                                          ? 0
                    : fanin->heap_count > 2 && ac_fanin_before(&heap[2], &heap[1]) ? 2
                                                                                   : 1;
}

static void sift_down(ac_fanin_t *fanin, uint32_t hole) {
    ac_heap_entry_t *heap = fanin->heap;
    ac_heap_entry_t moving = heap[hole];
    for (;;) {
        uint32_t child = 2 * hole + 1;
        if (child >= fanin->heap_count) break;
        if (child + 1 < fanin->heap_count && ac_fanin_before(&heap[child + 1], &heap[child]))
            child++;
        if (!ac_fanin_before(&heap[child], &moving)) break;
        heap[hole] = heap[child];
        hole = child;
    }
    heap[hole] = moving;
    find_second(fanin);
}

void ac_fanin_sift_top(ac_fanin_t *fanin) {
    if (fanin->second && ac_fanin_before(&fanin->heap[fanin->second], &fanin->heap[0]))
        sift_down(fanin, 0);
}

static void sift_up(ac_fanin_t *fanin, uint32_t hole) {
    ac_heap_entry_t *heap = fanin->heap;
    ac_heap_entry_t moving = heap[hole];
    while (hole > 0 && ac_fanin_before(&moving, &heap[(hole - 1) / 2])) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = moving;
    find_second(fanin);
}

static void heap_remove(ac_fanin_t *fanin, uint32_t hole) {
    fanin->heap[hole] = fanin->heap[--fanin->heap_count];
    if (hole == fanin->heap_count) {
        find_second(fanin);
        return;
    }
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

/* Reads a source's next message, and prefetches the one after it. */
static int load_head(ac_source_t *source, ac_error_t *err) {
    ac_reader_t *reader = source->reader;
    int rc = ac_reader_try_next(reader, &source->head);
    reader->ahead = ac_record_size(source->head.length);
    if (AC_UNLIKELY(rc != 1)) {
        rc = ac_reader_next(reader, &source->head, err);
        reader->ahead = rc == 1 ? ac_reader_bytes_of(reader, &source->head) : 0;
    }
    source->has_head = rc == 1;
    if (AC_UNLIKELY(rc == 1 && source->base != reader->base)) {
        ac_map_retain(reader->map);
        ac_map_release(source->map);
        source->map = reader->map;
        source->base = reader->base;
    }
    if (rc == 1) ac_fanin_prefetch(reader);
    return rc;
}

static void idle_remove(ac_fanin_t *fanin, uint32_t index) {
    fanin->idle[index] = fanin->idle[--fanin->idle_count];
}

/* Checks one idle source. 1 = it woke up (and another took its place in the list). */
static int poll_idle(ac_fanin_t *fanin, uint32_t index, ac_error_t *err) {
    uint32_t slot = fanin->idle[index];
    int rc = load_head(&fanin->sources[slot], err);
    if (rc < 0) fanin->failed_slot = slot;
    if (rc != 1) return rc;
    idle_remove(fanin, index);
    heap_push(fanin, slot);
    fanin->sources[slot].silent_since_ns = 0;
    return 1;
}

/* A quick no: nothing is committed at the reader's position, and its segment continues. Other events at an
 * idle source (its file is truncated, its reader closed) are found by a full check; one source gets that
 * now and then, and one in every call while there is nothing to deliver. */
static int has_nothing(const ac_source_t *source) {
    const ac_reader_t *reader = source->reader;
    return reader->offset < reader->window_end &&
           ac_load_acquire_u32(ac_record_commit_word((uint8_t *)reader->base + reader->offset)) ==
               0 &&
           !ac_segment_sealed(reader->map);
}

/* 1 = it woke up, and another took its place in the list. */
static int check_idle(ac_fanin_t *fanin, uint32_t index, int properly, ac_error_t *err) {
    const ac_source_t *source = &fanin->sources[fanin->idle[index]];
    return !properly && has_nothing(source) ? 0 : poll_idle(fanin, index, err);
}

/* Backwards: the source that takes the place of one that woke up was checked already. */
static int poll_every_idle(ac_fanin_t *fanin, int properly, ac_error_t *err) {
    uint32_t chosen = fanin->idle_next;
    int at_all = fanin->poll_fully;
    fanin->poll_every_idle = fanin->poll_fully = 0;
    for (uint32_t i = fanin->idle_count; i-- > 0;) {
        int rc = check_idle(fanin, i, at_all || (properly && i == chosen), err);
        if (rc < 0) return rc;
    }
    return AC_OK;
}

static int poll_some_idle(ac_fanin_t *fanin, ac_error_t *err) {
    int properly = fanin->heap_count == 0 || fanin->looks++ % PROPER_EVERY == 0;
    if (++fanin->idle_next >= fanin->idle_count) fanin->idle_next = 0;
    if (fanin->heap_count == 0 || fanin->poll_every_idle || fanin->poll_fully ||
        fanin->idle_count <= EXACT_IDLE)
        return poll_every_idle(fanin, properly, err);
    int rc = check_idle(fanin, fanin->idle_next, properly, err);
    return rc < 0 ? rc : AC_OK;
}

/* From its own writer a source gets nothing older than its last message. */
static uint64_t last_of(const ac_source_t *source) {
    return source->reader->last_timestamp_ns;
}

static int refill_top(ac_fanin_t *fanin, ac_error_t *err) {
    uint32_t slot = fanin->heap[0].slot;
    ac_source_t *source = &fanin->sources[slot];
    int rc = load_head(source, err);
    fanin->refill = 0;
    if (AC_LIKELY(rc == 1)) {
        fanin->heap[0] = entry_of(source, slot);
        ac_fanin_sift_top(fanin);
        return AC_OK;
    }
    heap_remove(fanin, 0);
    fanin->idle[fanin->idle_count++] = slot;
    ac_heap_entry_t bound = {last_of(source), source->id, slot};
    if (ac_fanin_before(&bound, &fanin->safe)) fanin->safe = bound;
    if (rc < 0) fanin->failed_slot = slot;
    return rc < 0 ? rc : AC_OK;
}

static void set_aside(ac_fanin_t *fanin, uint32_t slot) {
    fanin->sources[slot].failed = 1;
    for (uint32_t i = 0; i < fanin->idle_count; i++)
        if (fanin->idle[i] == slot) {
            idle_remove(fanin, i);
            return;
        }
}

/* ---- strict order ---- */

/* Everything older than this from the idle source is known to be here. */
static uint64_t promise_of(ac_source_t *source, uint64_t now_ns) {
    const ac_reader_t *reader = source->reader;
    source->relied_epoch = 0;
    if (!reader->control_map && !reader->java) return 0;
    if (ac_reader_ended(reader)) return UINT64_MAX;
    if (reader->java) return last_of(source);
    ac_clean_t clean;
    uint64_t epoch = ac_load_acquire_u64(&reader->control->writer_epoch);
    /* Pairs with the store of the epoch in ac_clean_store: a reader of that value sees, in the look that
     * follows, every record that was committed before the writer closed. */
    const void *mark = (const uint8_t *)reader->control + offsetof(ac_control_t, clean);
    uint64_t marked = ac_load_acquire_u64(mark);
    memcpy(&clean, mark, sizeof clean);
    if (ac_clean_valid(&clean) && marked == epoch && clean.epoch == epoch) {
        source->relied_epoch = epoch;
        return UINT64_MAX;
    }
    uint64_t watermark = ac_load_acquire_u64(&reader->control->watermark_ns);
    if (watermark > now_ns && watermark - now_ns > AC_PROMISE_MAX_NS) source->relied_epoch = epoch;
    return watermark > last_of(source) ? watermark : last_of(source);
}

/* Reads what every idle source promised, and then looks for its messages: what a promise covers was written
 * before the promise. */
static int refresh_promises(ac_fanin_t *fanin, ac_error_t *err) {
    uint64_t now_ns = ac_os_now_ns();
    for (uint32_t i = fanin->idle_count; i-- > 0;) {
        ac_source_t *source = &fanin->sources[fanin->idle[i]];
        uint64_t promise = promise_of(source, now_ns);
        if (promise != source->promise_ns) source->silent_since_ns = 0;
        source->promise_ns = promise;
        int rc = poll_idle(fanin, i, err);
        if (rc < 0) return rc;
    }
    return AC_OK;
}

/* A closed queue holds nothing up until a writer opens it again; from then on it may deliver anything not
 * older than its own last message. A writer stores its epoch before it appends. So if a queue's epoch is
 * still the old one after the top was read, everything appended to it before the top is known here. One
 * load per queue, without a branch: the processor does many at a time. */
static int is_reopened(const ac_fanin_t *fanin) {
    uint64_t changed = 0;
    for (uint32_t i = 0; i < fanin->relied_count; i++)
        changed |= ac_load_acquire_u64(fanin->relied[i].writer_epoch) ^ fanin->relied[i].epoch;
    return changed != 0;
}

/* Computes `safe` from every source's promise. A source that promised nothing for max_wait while others
 * waited for it is left out until it does. */
static void find_safe(ac_fanin_t *fanin) {
    ac_heap_entry_t least = {UINT64_MAX, UINT32_MAX, 0};
    uint64_t now = 0;
    fanin->relied_count = 0;
    for (uint32_t i = 0; i < fanin->idle_count; i++) {
        uint32_t slot = fanin->idle[i];
        ac_source_t *source = &fanin->sources[slot];
        ac_heap_entry_t promise = {source->promise_ns, source->id, slot};
        if (source->relied_epoch)
            fanin->relied[fanin->relied_count++] = (ac_relied_t){
                &ac_control_of(source->control_map)->writer_epoch, source->relied_epoch};
        if (ac_fanin_before(&promise, &fanin->heap[0])) {
            if (now == 0) now = ac_os_monotonic_ns();
            if (source->silent_since_ns == 0) source->silent_since_ns = now;
            if (now - source->silent_since_ns >= fanin->max_wait_ns) continue;
        }
        if (ac_fanin_before(&promise, &least)) least = promise;
    }
    fanin->safe = least;
}

/* 1 = the top may be delivered: whatever an idle source can still deliver comes after it. Among equal
 * timestamps the id decides, also against a message that is yet to be written; only so is the result
 * independent of arrival times. */
static int is_safe(ac_fanin_t *fanin, ac_error_t *err) {
    if (fanin->idle_count == 0) return 1;
    if (ac_fanin_before(&fanin->heap[0], &fanin->safe) && !is_reopened(fanin)) return 1;
    /* A queue that is opened during a round is checked in the next round. A writer that opens and closes
     * one repeatedly must not keep us here: the last round counts. */
    for (int round = 0; round < HEARINGS_MAX; round++) {
        int rc = refresh_promises(fanin, err);
        if (rc != AC_OK) return rc;
        find_safe(fanin);
        if (!is_reopened(fanin)) break;
    }
    if (ac_fanin_before(&fanin->heap[0], &fanin->safe)) return 1;
    fanin->blocked_id = fanin->safe.id;
    fanin->blocked_since_ns = fanin->sources[fanin->safe.slot].silent_since_ns;
    return 0;
}

static int may_go(ac_fanin_t *fanin, ac_error_t *err) {
    int rc = is_safe(fanin, err);
    if (rc == 0) {
        /* However many older messages arrive meanwhile: no message is held longer than max_wait. */
        uint64_t now = ac_os_monotonic_ns();
        ac_source_t *top = &fanin->sources[fanin->heap[0].slot];
        if (top->held_since_ns == 0) top->held_since_ns = now;
        rc = now - top->held_since_ns >= fanin->max_wait_ns;
    }
    if (rc != 0) fanin->blocked_since_ns = 0;
    return rc;
}

/* ---- reading ---- */

/* 1 = the top of the heap is the next message. */
static int prepare_top(ac_fanin_t *fanin, ac_error_t *err) {
    int rc = fanin->refill ? refill_top(fanin, err) : AC_OK;
    if (rc != AC_OK) return rc;
    if (fanin->idle_count > 0) rc = poll_some_idle(fanin, err);
    if (rc < 0) return rc;
    if (fanin->heap_count == 0) {
        fanin->blocked_since_ns = 0;
        return 0;
    }
    return fanin->strict ? may_go(fanin, err) : 1;
}

/* Its reader was closed, or belongs to the parent process, since the message was read. */
static int lost_top(ac_fanin_t *fanin, ac_error_t *err) {
    uint32_t slot = fanin->failed_slot = fanin->heap[0].slot;
    fanin->sources[slot].has_head = 0;
    heap_remove(fanin, 0);
    int rc = ac_reader_usable(fanin->sources[slot].reader, err);
    return rc < 0 ? rc : ac_fail(err, AC_E_CLOSED, 0, NULL, 0, "reader was moved while attached");
}

int ac_fanin_take(ac_fanin_t *fanin, ac_message_t **head, uint32_t *slot, int *late,
                  ac_error_t *err) {
    int rc = prepare_top(fanin, err);
    if (rc == 1 && AC_UNLIKELY(fanin->sources[fanin->heap[0].slot].reader->window_end == 0))
        rc = lost_top(fanin, err);
    if (AC_UNLIKELY(rc != 1)) {
        if (rc < 0) set_aside(fanin, *slot = fanin->failed_slot);
        return rc;
    }
    const ac_heap_entry_t *top = &fanin->heap[0];
    ac_source_t *source = &fanin->sources[top->slot];
    *head = &source->head;
    *slot = top->slot;
    *late = top->timestamp_ns < fanin->last_timestamp_ns ||
            (top->timestamp_ns == fanin->last_timestamp_ns && top->id < fanin->last_id);
    if (AC_UNLIKELY(*late)) {
        source->late++;
        fanin->late++;
    } else {
        fanin->last_timestamp_ns = top->timestamp_ns;
        fanin->last_id = top->id;
    }
    source->has_head = 0;
    source->reader->ahead = 0;
    source->held_since_ns = 0;
    source->delivered++;
    fanin->replaced_ns = source->last_timestamp_ns;
    source->last_timestamp_ns = top->timestamp_ns;
    fanin->delivered++;
    fanin->refill = 1;
    return 1;
}

void ac_fanin_give_back(ac_fanin_t *fanin, const ac_heap_entry_t *newest, int late) {
    ac_source_t *source = &fanin->sources[fanin->heap[0].slot];
    fanin->refill = 0;
    source->has_head = 1;
    source->reader->ahead = ac_reader_bytes_of(source->reader, &source->head);
    source->delivered--;
    source->last_timestamp_ns = fanin->replaced_ns;
    fanin->delivered--;
    source->late -= late != 0;
    fanin->late -= late != 0;
    if (!newest) return;
    fanin->last_timestamp_ns = newest->timestamp_ns;
    fanin->last_id = newest->id;
}

int ac_fanin_next(ac_fanin_t *fanin, ac_message_t *out, uint32_t *slot, int *late,
                  ac_error_t *err) {
    ac_message_t *head;
    int rc = ac_fanin_take(fanin, &head, slot, late, err);
    if (rc == 1) *out = *head;
    return rc;
}

int ac_fanin_ready(ac_fanin_t *fanin, ac_error_t *err) {
    fanin->poll_every_idle = 1;
    int rc = prepare_top(fanin, err);
    if (rc >= 0) return rc;
    fanin->poll_fully = 1; /* so that the next call reports it, too */
    return 1;
}

int ac_fanin_eventfd(ac_fanin_t *fanin, ac_error_t *err) {
    (void)err;
    return fanin->eventfd->fd;
}

/* Only sources without a message can bring news; a bit that is still raised need not be raised again. */
int ac_fanin_park(ac_fanin_t *fanin, ac_error_t *err) {
    int poll = 0;
    fanin->poll_max_ns = AC_POLL_JAVA_MAX_NS;
    for (uint32_t i = 0; i < fanin->idle_count; i++) {
        ac_reader_t *reader = fanin->sources[fanin->idle[i]].reader;
        reader->poll_max_ns = fanin->poll_given_ns;
        int rc = ac_reader_is_parked(reader) ? AC_PARKED : ac_reader_park(reader, err);
        if (rc == AC_READY && has_nothing(&fanin->sources[fanin->idle[i]]))
            fanin->poll_fully = 1; /* what is wrong with it */
        if (rc < 0 || (rc == AC_READY && !fanin->strict)) return rc;
        poll |= rc == AC_POLL;
        if (rc == AC_POLL && !reader->java) fanin->poll_max_ns = AC_POLL_MAX_NS;
    }
    int rc = ac_fanin_ready(fanin, err);
    if (rc != 0) return rc;
    /* A bounded wait for strict order ends by the clock, which signals no eventfd. */
    if (fanin->strict && fanin->heap_count > 0 && fanin->max_wait_ns != UINT64_MAX) {
        poll = 1;
        fanin->poll_max_ns = AC_POLL_MAX_NS;
    }
    return poll ? AC_POLL : AC_PARKED;
}

/* ---- attaching ---- */

int ac_fanin_new(int strict, uint64_t max_wait_ns, ac_fanin_t **out, ac_error_t *err) {
    int error = -ENOMEM;
    ac_fanin_t *fanin = ac_os_alloc(sizeof *fanin);
    if (fanin) fanin->eventfd = ac_eventfd_new(&error);
    if (!fanin || !fanin->eventfd) {
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
    ac_relied_t *relied = realloc(fanin->relied, room * sizeof *relied);
    if (relied) fanin->relied = relied;
    if (!sources || !heap || !idle || !relied) return -ENOMEM;
    fanin->room = room;
    return 0;
}

static uint32_t free_slot(const ac_fanin_t *fanin) {
    uint32_t slot = 0;
    while (slot < fanin->slots && fanin->sources[slot].reader)
        slot++;
    return slot;
}

static int is_same_queue(const ac_reader_t *a, const ac_reader_t *b) {
    return (a->control_map || a->java) && (b->control_map || b->java) &&
           a->dir.inode == b->dir.inode && a->dir.device == b->dir.device;
}

/* With less unread data than one fault maps at once, a source is soon at its end and may then sleep for
 * long; with more, its pages would be needed again. */
static int may_idle(const ac_reader_t *reader) {
    uint32_t segment;
    uint64_t offset;
    if (!reader->map || !reader->control_map) return 0;
    ac_control_position(reader->control, &segment, &offset);
    return segment == reader->segment && offset < reader->offset + FAULT_BYTES;
}

int ac_fanin_attach(ac_fanin_t *fanin, ac_reader_t *reader, uint32_t *slot, uint32_t *id,
                    ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK) return rc;
    for (uint32_t i = 0; i < fanin->slots; i++)
        if (fanin->sources[i].reader && is_same_queue(fanin->sources[i].reader, reader))
            return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0,
                           "this queue is attached already, as source %u", fanin->sources[i].id);
    if (reader->shares_eventfd)
        return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0,
                       "this reader is attached to another fan-in; detach it there first");
    *slot = free_slot(fanin);
    if (*slot == SOURCES_MAX)
        return ac_fail(err, AC_E_ARGUMENT, 0, reader->dir.path, 0, "more than %d sources",
                       SOURCES_MAX);
    if (*slot == fanin->room && grow(fanin) < 0)
        return ac_fail_os(err, -ENOMEM, reader->dir.path, "cannot attach");
    if (*slot == fanin->slots) fanin->slots++;
    ac_reader_use_eventfd(reader, fanin->eventfd);
    ac_source_t *source = &fanin->sources[*slot];
    memset(source, 0, sizeof *source);
    source->reader = reader;
    source->control_map = reader->control_map;
    if (source->control_map) ac_map_retain(source->control_map);
    if (may_idle(reader)) ac_reader_keep_two_pages(reader);
    source->id = *id = fanin->next_id++;
    fanin->idle[fanin->idle_count++] = *slot;
    fanin->poll_every_idle = 1;
    fanin->safe = (ac_heap_entry_t){0};
    ac_os_eventfd_signal(fanin->eventfd->fd); /* a sleeper has one more to check */
    return AC_OK;
}

static uint64_t head_offset(const ac_source_t *source) {
    return ac_reader_offset_of(source->reader, &source->head, source->base);
}

/* The source's position, as seen from what was delivered. */
static void position_of(const ac_source_t *source, uint64_t *segment, uint64_t *offset) {
    ac_reader_position(source->reader, segment, offset);
    if (!source->has_head) return;
    *segment = source->head.segment;
    *offset = head_offset(source);
}

/* Moves the reader back before its head, unless the caller moved it. */
static void unread_head(ac_source_t *source) {
    ac_reader_t *reader = source->reader;
    uint64_t segment, offset;
    if (!source->has_head || reader->base != source->base) return;
    reader->ahead = 0;
    ac_reader_position(reader, &segment, &offset);
    if (offset == head_offset(source) + ac_reader_bytes_of(reader, &source->head))
        ac_reader_unread(reader, &source->head);
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
                /* The stale top keeps its place: its key is not larger than any other. */
                heap_remove(fanin, i);
                break;
            }
        unread_head(source);
    } else {
        for (uint32_t i = 0; i < fanin->idle_count; i++)
            if (fanin->idle[i] == slot) {
                idle_remove(fanin, i);
                break;
            }
    }
    ac_map_release(source->map);
    ac_map_release(source->control_map);
    ac_reader_use_eventfd(source->reader, NULL);
    source->reader->ahead = 0;
    source->map = source->control_map = NULL;
    source->reader = NULL;
    source->has_head = 0;
    fanin->safe = (ac_heap_entry_t){0};
    fanin->relied_count = 0;
    fanin->blocked_since_ns = 0;
    ac_os_eventfd_signal(fanin->eventfd->fd); /* strict order may have been waiting for it */
}

/* Removes the source from the heap, as if it had nothing to deliver. */
static void forget_head(ac_fanin_t *fanin, uint32_t slot) {
    ac_source_t *source = &fanin->sources[slot];
    for (uint32_t i = 0; i < fanin->heap_count; i++)
        if (fanin->heap[i].slot == slot) {
            if (i == 0) fanin->refill = 0;
            heap_remove(fanin, i);
            fanin->idle[fanin->idle_count++] = slot;
            break;
        }
    source->has_head = 0;
    source->held_since_ns = 0;
    source->reader->ahead = 0;
}

int ac_fanin_go_back(ac_fanin_t *fanin, uint32_t slot, uint64_t segment, uint64_t offset,
                     uint64_t last_timestamp_ns, ac_error_t *err) {
    if (slot >= fanin->slots || !fanin->sources[slot].reader)
        return ac_fail(err, AC_E_ARGUMENT, 0, NULL, 0, "no such source");
    forget_head(fanin, slot);
    fanin->poll_every_idle = 1;
    fanin->safe = (ac_heap_entry_t){0};
    fanin->blocked_since_ns = 0;
    fanin->last_timestamp_ns = last_timestamp_ns;
    fanin->last_id = 0;
    return ac_reader_seek_position(fanin->sources[slot].reader, segment, offset, err);
}

int ac_fanin_resume(ac_fanin_t *fanin, uint32_t slot, ac_error_t *err) {
    if (slot >= fanin->slots || !fanin->sources[slot].reader)
        return ac_fail(err, AC_E_ARGUMENT, 0, NULL, 0, "no such source");
    if (!fanin->sources[slot].failed) return AC_OK;
    fanin->sources[slot].failed = 0;
    fanin->idle[fanin->idle_count++] = slot;
    fanin->poll_every_idle = 1;
    fanin->safe = (ac_heap_entry_t){0}; /* strict order checks it before anything is delivered */
    fanin->blocked_since_ns = 0;
    ac_os_eventfd_signal(fanin->eventfd->fd);
    return AC_OK;
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
    ac_source_t *source = &fanin->sources[slot];
    ac_lag_t lag = {0};
    if (!source->failed) {
        int rc = ac_reader_lag(source->reader, &lag, err);
        if (rc < 0) return rc;
    }
    out->id = source->id;
    out->delivered = source->delivered;
    out->late = source->late;
    out->last_timestamp_ns = source->last_timestamp_ns;
    out->lag_messages = lag.messages;
    out->lag_bytes = lag.bytes;
    out->lag_age_ns = lag.age_ns;
    out->watermark_ns = ac_load_acquire_u64(&source->reader->control->watermark_ns);
    out->silent_ns = source->silent_since_ns ? ac_os_monotonic_ns() - source->silent_since_ns : 0;
    out->has_message = source->has_head;
    out->failed = source->failed;
    out->attended = ac_reader_attended(source->reader);
    return AC_OK;
}

static void add_lag(ac_lag_t *sum, const ac_way_t *way, ac_lag_t *lag) {
    if (ac_reader_lag_bytes(way, lag, NULL) < 0) return;
    sum->messages += lag->messages;
    sum->bytes += lag->bytes;
    if (lag->age_ns > sum->age_ns) sum->age_ns = lag->age_ns;
}

void ac_fanin_begin_lag(ac_fanin_t *fanin, ac_lag_t *out, ac_ways_t *ways) {
    memset(out, 0, sizeof *out);
    memset(ways, 0, sizeof *ways);
    for (uint32_t slot = 0; slot < fanin->slots; slot++) {
        const ac_source_t *source = &fanin->sources[slot];
        struct ac_source_way here;
        if (!source->reader || source->failed) continue;
        if (ac_reader_begin_lag(source->reader, &here.lag, &here.way, NULL) < 0) continue;
        int is_far = here.way.from_segment != here.way.to_segment;
        if (is_far && !ways->left) ways->left = ac_os_alloc(fanin->slots * sizeof *ways->left);
        if (is_far && ways->left)
            ways->left[ways->count++] = here;
        else
            add_lag(out, &here.way, &here.lag);
    }
}

void ac_fanin_end_lag(ac_ways_t *ways, ac_lag_t *out) {
    for (uint32_t i = 0; i < ways->count; i++)
        add_lag(out, &ways->left[i].way, &ways->left[i].lag);
    free(ways->left);
    memset(ways, 0, sizeof *ways);
}

void ac_fanin_stats(ac_fanin_t *fanin, ac_fanin_stats_t *out) {
    uint64_t blocked = fanin->blocked_since_ns, now = ac_os_monotonic_ns();
    memset(out, 0, sizeof *out);
    for (uint32_t slot = 0; slot < fanin->slots; slot++) {
        const ac_source_t *source = &fanin->sources[slot];
        if (!source->reader) continue;
        out->sources++;
        out->failed += (uint64_t)source->failed;
        out->left_out +=
            source->silent_since_ns && now - source->silent_since_ns >= fanin->max_wait_ns;
    }
    out->idle = fanin->idle_count;
    out->delivered = fanin->delivered;
    out->late = fanin->late;
    out->last_timestamp_ns = fanin->last_timestamp_ns;
    out->blocked_ns = blocked ? now - blocked : 0;
    out->blocked_by = fanin->blocked_id;
    out->blocked = blocked != 0;
}

int ac_fanin_check(const ac_fanin_t *fanin) {
    uint32_t sources = 0, failed = 0, heads = 0;
    for (uint32_t slot = 0; slot < fanin->slots; slot++) {
        sources += fanin->sources[slot].reader != NULL;
        failed += fanin->sources[slot].reader && fanin->sources[slot].failed;
        heads += (uint32_t)fanin->sources[slot].has_head;
    }
    if (fanin->heap_count + fanin->idle_count + failed != sources) return __LINE__;
    if (heads + (uint32_t)fanin->refill != fanin->heap_count) return __LINE__;
    for (uint32_t i = 0; i < fanin->heap_count; i++) {
        const ac_heap_entry_t *entry = &fanin->heap[i];
        const ac_source_t *source = &fanin->sources[entry->slot];
        if (i > 0 && ac_fanin_before(entry, &fanin->heap[(i - 1) / 2])) return __LINE__;
        if (!source->reader || source->failed || source->id != entry->id) return __LINE__;
        if (fanin->refill && i == 0) continue;
        if (!source->has_head || source->head.timestamp_ns != entry->timestamp_ns) return __LINE__;
    }
    for (uint32_t i = 0; i < fanin->idle_count; i++) {
        const ac_source_t *source = &fanin->sources[fanin->idle[i]];
        if (!source->reader || source->failed || source->has_head) return __LINE__;
        for (uint32_t k = 0; k < i; k++)
            if (fanin->idle[k] == fanin->idle[i]) return __LINE__;
    }
    return 0;
}

void ac_fanin_free(ac_fanin_t *fanin) {
    if (!fanin) return;
    for (uint32_t slot = 0; slot < fanin->slots; slot++)
        ac_fanin_detach(fanin, slot);
    ac_eventfd_release(fanin->eventfd);
    free(fanin->sources);
    free(fanin->heap);
    free(fanin->idle);
    free(fanin->relied);
    free(fanin);
}
