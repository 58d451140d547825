/* Puts a message into the data file of a Java queue. */
#include "cq4_grow.h"
#include "cq4_index.h"
#include "cq4_writer_state.h"
#include "error.h"

#include <errno.h>
#include <string.h>

#define LOOK_NS 1000000000ull
enum {
    WINDOW = 256 << 10, /* pages are populated that far ahead */
    ZEROS = 8,          /* that follow a message */
    RUN_BYTES = 64 << 10,
    RUN_MESSAGES = 64,
    RUN_MESSAGES_SHARED = 8,
};

/* Java writes an empty document as one byte of padding: a record cannot have length 0. */
static const uint8_t empty[1] = {0x8F};

/* ---- room ---- */

static int fail_page(ac_cq4_writer_t *writer, int rc, ac_error_t *err) {
    if (ac_cq4_writer_check_file(writer, err) != AC_OK) return AC_E_GONE;
    /* Usually the disk is full; asking for blocks tells. */
    if (rc == -EFAULT) {
        rc = ac_os_reserve(writer->cycle.map->fd, writer->place.offset, WINDOW);
        if (rc == 0) rc = -EIO;
    }
    return ac_fail_os_in(err, rc, writer->queue.dir.path, writer->cycle.name,
                         "a page cannot be written");
}

/* Makes sure of length, mapping and pages for a message of this length at the place. */
static int make_room(ac_cq4_writer_t *writer, size_t length, ac_error_t *err) {
    ac_cq4_cycle_t *cycle = &writer->cycle;
    uint64_t page_bytes = 0, offset = writer->place.offset;
    if (ac_cq4_index_wants(cycle, writer->place.seq))
        page_bytes = ac_cq4_index_page_bytes(cycle, writer->place.seq);
    uint64_t end = offset + AC_CQ4_HEADER_BYTES + length;
    uint64_t last_header = page_bytes ? end + ZEROS : offset;
    if (ac_map_is_cut(cycle->map) || writer->place.kind == AC_CQ4_BEYOND ||
        cycle->map->size < ac_cq4_length_for(last_header)) {
        int rc = ac_cq4_writer_check_file(writer, err); /* a truncated one is not extended */
        if (rc == AC_OK) rc = ac_cq4_grow(cycle, last_header, err);
        if (rc != AC_OK) return rc;
        writer->ready = 0;
        writer->place = ac_cq4_cycle_walk(cycle, writer->place);
        if (writer->place.kind == AC_CQ4_BEYOND)
            return ac_cq4_cycle_fail(cycle, AC_E_CORRUPT, 0, writer->place.offset,
                                     "a record reaches beyond the end of the file", err);
    }
    writer->header_end = (cycle->map->size - AC_CQ4_OVERLAP) / AC_CQ4_CHUNK * AC_CQ4_CHUNK;
    end += page_bytes + ZEROS;
    if (end <= writer->ready) return AC_OK;
    uint64_t from = writer->ready > offset ? writer->ready : offset;
    uint64_t to = (end + WINDOW) / WINDOW * WINDOW;
    if (to > cycle->map->size) to = cycle->map->size;
    int rc = to > from ? ac_os_populate(cycle->map->base, from, to - from, 1) : 0;
    if (rc < 0) return fail_page(writer, rc, err);
    writer->ready = to;
    return AC_OK;
}

/* ---- letting others go first ---- */

/* See cq4_turns.h. */
static void wait_for_turn(ac_cq4_writer_t *writer, uint64_t now_ns) {
    if (!writer->ready || writer->turns.free) return;
    uint64_t pause_ns = ac_cq4_turns_pause_ns(&writer->turns, now_ns);
    if (pause_ns == 0) return;
    uint64_t start_ns = ac_os_monotonic_ns();
    while (!ac_cq4_turns_may_go(&writer->turns, ac_cq4_writer_has_foreign(writer)) &&
           ac_os_monotonic_ns() - start_ns < pause_ns)
        if (writer->turns.is_owing)
            ac_os_yield();
        else
            ac_cpu_relax();
}

/* ---- appending ---- */

static int is_time_to_look(const ac_cq4_writer_t *writer, uint64_t now) {
    return ac_cq4_writer_elapsed_ns(writer, now) - writer->looked_ns >=
               LOOK_NS || /* also if the clock was set back */
           writer->stats.messages >= writer->look_appends;
}

/* What must be done before the lock is taken: AC_OK, AC_CQ4_AGAIN, or an error. */
static int64_t prepare(ac_cq4_writer_t *writer, size_t length, ac_error_t *err) {
    uint64_t now = ac_cq4_writer_now_ns(writer);
    if (is_time_to_look(writer, now)) {
        writer->looked_ns = ac_cq4_writer_elapsed_ns(writer, now);
        int rc = ac_cq4_writer_check_files(writer, err);
        if (rc != AC_OK) return rc;
    }
    if (!writer->cycle.map || writer->is_ended || now < writer->begin_ns || now >= writer->end_ns) {
        int64_t rc = ac_cq4_writer_follow_clock(writer, err);
        if (rc != AC_CQ4_AGAIN || !writer->cycle.map) return rc;
    }
    wait_for_turn(writer, ac_cq4_writer_elapsed_ns(writer, now));
    return make_room(writer, length, err);
}

/* With the lock: skips what others have appended. */
static void catch_up(ac_cq4_writer_t *writer, uint64_t elapsed_ns) {
    const ac_cq4_cycle_t *cycle = &writer->cycle;
    ac_cq4_place_t from = writer->place;
    uint64_t offset, seq;
    uint32_t length;
    if (ac_cq4_cycle_last(cycle, &offset, &seq) && offset >= from.offset && seq >= from.seq &&
        ac_cq4_inspect(cycle->map->base, cycle->map->size, offset, &length) == AC_CQ4_DATA) {
        from.offset = ac_cq4_after(offset, length, cycle->padding);
        from.seq = seq + 1;
    }
    writer->place = ac_cq4_cycle_walk(cycle, from);
    ac_cq4_turns_meet(&writer->turns, writer->place.seq, elapsed_ns);
}

/* With the lock: the place is at a header that is 0, and there is room for the message; or AC_CQ4_AGAIN. */
static int find_place(ac_cq4_writer_t *writer, size_t length, uint64_t *elapsed_ns) {
    uint64_t now = ac_cq4_writer_now_ns(writer);
    *elapsed_ns = ac_cq4_writer_elapsed_ns(writer, now);
    if (AC_UNLIKELY(now < writer->begin_ns || now >= writer->end_ns)) return 0;
    if (AC_UNLIKELY(*elapsed_ns - writer->looked_ns >= LOOK_NS)) return 0;
    if (AC_UNLIKELY(writer->place.offset >= writer->header_end)) return 0;
    if (AC_UNLIKELY(ac_cq4_writer_has_foreign(writer))) {
        catch_up(writer, *elapsed_ns);
        writer->is_ended = writer->place.kind == AC_CQ4_END;
        /* We have the lock, so the process that began this is dead. */
        if (writer->place.kind == AC_CQ4_BUSY)
            ac_store_release_u32(
                (uint32_t *)(void *)(writer->cycle.map->base + writer->place.offset), 0);
        else if (writer->place.kind != AC_CQ4_NONE || writer->place.offset >= writer->header_end)
            return 0;
    }
    uint64_t end = writer->place.offset + AC_CQ4_HEADER_BYTES + length;
    if (AC_UNLIKELY(end + ZEROS > writer->ready) &&
        (end > writer->ready || writer->ready < writer->cycle.map->size))
        return 0;
    if (AC_UNLIKELY(ac_cq4_index_wants(&writer->cycle, writer->place.seq))) {
        uint64_t page = ac_cq4_index_page_bytes(&writer->cycle, writer->place.seq);
        if (page && end + ZEROS + page > writer->ready) return 0;
    }
    return 1;
}

static int is_cut(const ac_cq4_writer_t *writer) {
    return ac_map_is_cut(writer->cycle.map) || ac_map_is_cut(writer->table.map);
}

static int put_header(uint8_t *at, uint32_t header) {
    uint32_t none = 0;
    return __atomic_compare_exchange_n((uint32_t *)(void *)at, &none, header, 0, __ATOMIC_RELEASE,
                                       __ATOMIC_RELAXED);
}

/* With the lock: the index of the message; or AC_CQ4_AGAIN or an error, and nothing was appended. */
int64_t ac_cq4_writer_append_locked(ac_cq4_writer_t *writer, const void *payload, size_t length) {
    ac_cq4_cycle_t *cycle = &writer->cycle;
    uint64_t elapsed_ns;
    if (AC_UNLIKELY(!find_place(writer, length, &elapsed_ns))) return AC_CQ4_AGAIN;
    uint64_t offset = writer->place.offset, seq = writer->place.seq;
    if (AC_UNLIKELY(seq >= writer->max_seq)) return AC_E_FULL;
    uint8_t *base = cycle->map->base, *at = base + offset;
    uint64_t end = offset + AC_CQ4_HEADER_BYTES + length;
    memcpy(at + AC_CQ4_HEADER_BYTES, payload, length);
    memset(base + end, 0, end + ZEROS <= cycle->map->size ? ZEROS : cycle->map->size - end);
    if (AC_UNLIKELY(is_cut(writer))) return AC_E_GONE;
    /* Pairs with the load of a reader of the header. From here on the message exists. If the header is no
     * longer 0, another process wrote it, after it was given the lock while this one stood still. */
    if (AC_UNLIKELY(!put_header(at, (uint32_t)length))) return AC_CQ4_AGAIN;
    uint64_t *position = (uint64_t *)(void *)(base + cycle->write_position_at);
    if (ac_load_relaxed_u64(position) < offset) ac_store_release_u64(position, offset);
    ac_store_release_u64(position + 1, (offset << cycle->roll.shift) + seq);
    uint64_t next = ac_cq4_after(offset, (uint32_t)length, cycle->padding);
    if (AC_UNLIKELY(ac_cq4_index_wants(cycle, seq))) {
        uint64_t after = ac_cq4_index_add(cycle, seq, offset, next);
        ac_count_u64(&writer->stats.pages_added, after != next);
        next = after;
    }
    writer->place.offset = next;
    writer->place.seq = seq + 1;
    ac_cq4_turns_count(&writer->turns, elapsed_ns);
    uint64_t index = ac_cq4_index(&writer->queue.roll, cycle->number, seq);
    ac_count_u64(&writer->stats.messages, 1);
    ac_count_u64(&writer->stats.payload_bytes, length);
    ac_store_relaxed_u64(&writer->stats.last_index, index);
    return (int64_t)index;
}

static int64_t explain(ac_cq4_writer_t *writer, int64_t rc, ac_error_t *err) {
    if (rc == AC_E_FULL)
        return ac_cq4_cycle_fail(&writer->cycle, AC_E_FULL, 0, writer->place.offset,
                                 "has as many messages as its index can hold: a roll cycle with a "
                                 "larger index, or a shorter one, has room for more",
                                 err);
    if (ac_map_is_cut(writer->table.map))
        return ac_cq4_writer_give_up(writer, writer->table.name, " was cut", err);
    return fail_page(writer, -EFAULT, err);
}

static int64_t append_slice(ac_cq4_writer_t *writer, const ac_slice_t *item) {
    return item->length ? ac_cq4_writer_append_locked(writer, item->data, item->length)
                        : ac_cq4_writer_append_locked(writer, empty, sizeof empty);
}

/* With the lock: appends more messages after the first. What cannot be appended is left for the next run. */
static void append_more(ac_cq4_writer_t *writer, const ac_slice_t *items, size_t count,
                        ac_cq4_run_t *run) {
    const ac_cq4_turns_t *turns = &writer->turns;
    size_t most = turns->is_ahead ? 1 : turns->is_shared ? RUN_MESSAGES_SHARED : RUN_MESSAGES;
    while (run->messages < count && run->messages < most) {
        const ac_slice_t *item = &items[run->messages];
        if (item->length > RUN_BYTES - run->bytes) return;
        int64_t index = append_slice(writer, item);
        if (index < 0) return;
        run->messages++;
        run->bytes += item->length;
        run->last_index = (uint64_t)index;
    }
}

int64_t ac_cq4_writer_append_run_with_mutex(ac_cq4_writer_t *writer, const ac_slice_t *items,
                                            size_t count, ac_cq4_run_t *run, ac_error_t *err) {
    int64_t rc = AC_CQ4_AGAIN;
    while (rc == AC_CQ4_AGAIN) {
        rc = prepare(writer, items->length ? items->length : sizeof empty, err);
        if (rc == AC_CQ4_AGAIN) continue;
        if (rc == AC_OK) rc = ac_cq4_lock_take(&writer->lock, err);
        if (rc != AC_OK) return rc;
        rc = append_slice(writer, items);
        *run = (ac_cq4_run_t){.messages = 1, .bytes = items->length, .last_index = (uint64_t)rc};
        if (rc >= 0 && items->length <= RUN_BYTES) append_more(writer, items, count, run);
        ac_cq4_lock_release(&writer->lock);
    }
    writer->is_fast = rc >= 0 && !writer->config.sync;
    return rc == AC_E_FULL || rc == AC_E_GONE ? explain(writer, rc, err) : rc;
}

int64_t ac_cq4_writer_append_with_mutex(ac_cq4_writer_t *writer, const void *payload, size_t length,
                                        ac_error_t *err) {
    ac_slice_t item = {.data = payload, .length = length};
    ac_cq4_run_t run;
    return ac_cq4_writer_append_run_with_mutex(writer, &item, 1, &run, err);
}
