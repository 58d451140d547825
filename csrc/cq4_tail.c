#include "cq4_tail.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MILLISECOND_NS 1000000ull

/* Intervals between two checks of the directory: if nothing points to a later file, if nothing could (no
 * modCount), and if there is one that cannot be entered yet. Checks may take 1 % of the time at most. */
#define LOOK_NS (1000 * MILLISECOND_NS)
#define LOOK_BLIND_NS (250 * MILLISECOND_NS)
#define LOOK_SOON_NS (5 * MILLISECOND_NS)
#define LOOK_SHARE 100
#define BUSY_NS (15000 * MILLISECOND_NS)

enum { WINDOW = 256 << 10 };

/* ---- where the reader is ---- */

static void use_map(ac_cq4_tail_t *tail) {
    tail->base = tail->cycle.map ? tail->cycle.map->base : NULL;
    tail->size = tail->cycle.map ? tail->cycle.map->size : 0;
    tail->window_end = 0;
}

static ac_cq4_place_t start_of(const ac_cq4_cycle_t *cycle) {
    return (ac_cq4_place_t){cycle->first, 0, AC_CQ4_NONE};
}

/* Within the current cycle. */
static void move(ac_cq4_tail_t *tail, ac_cq4_place_t place) {
    tail->offset = place.offset;
    tail->index = ac_cq4_index(&tail->queue.roll, tail->cycle.number, place.seq);
    tail->look_again_ns = 0;
    tail->busy_offset = tail->passed_offset = 0;
    use_map(tail);
}

/* Makes the cycle the current one. */
static void enter(ac_cq4_tail_t *tail, const ac_cq4_cycle_t *cycle, ac_cq4_place_t place) {
    ac_cq4_cycle_close(&tail->cycle);
    tail->cycle = *cycle;
    tail->cycles_entered++;
    tail->padding = tail->cycle.padding;
    tail->segment = tail->cycle.number;
    tail->timestamp_ns = ac_cq4_roll_moment_ns(&tail->queue.roll, tail->cycle.number);
    move(tail, place);
}

static void leave(ac_cq4_tail_t *tail) {
    ac_cq4_cycle_close(&tail->cycle);
    tail->offset = tail->index = tail->segment = 0;
    tail->look_again_ns = 0;
    use_map(tail);
}

static int is_after_end(const ac_cq4_tail_t *tail) {
    return tail->segment > tail->end_segment ||
           (tail->segment == tail->end_segment && tail->offset >= tail->end_offset);
}

/* ---- the way into the next cycle ---- */

static uint64_t mod_count(const ac_cq4_tail_t *tail) {
    return tail->queue.mod_count ? ac_load_acquire_u64(tail->queue.mod_count) : 0;
}

static int is_time_to_look(ac_cq4_tail_t *tail) {
    uint64_t now_ns = ac_os_monotonic_ns(), count = mod_count(tail);
    if (tail->look_again_ns && now_ns < tail->look_again_ns && count == tail->looked_mod_count)
        return 0;
    tail->looked_ns = now_ns;
    tail->looked_mod_count = count;
    return 1;
}

static void look_again_after(ac_cq4_tail_t *tail, uint64_t interval_ns) {
    uint64_t now_ns = ac_os_monotonic_ns(), took_ns = (now_ns - tail->looked_ns) * LOOK_SHARE;
    tail->look_again_ns = now_ns + (took_ns > interval_ns ? took_ns : interval_ns);
}

/* Records which file could not be opened, for ac_cq4_tail_pass_damage. */
static int fail_later(ac_cq4_tail_t *tail, int code, uint32_t number) {
    tail->bad_cycle = number + 1ull;
    return code;
}

/* The cycle to be read after this one. If this one has its end mark, the first that exists; otherwise, or
 * if a file between them is being created, the first with messages. 1 = opened, 0 = none, with *some if one
 * may come soon. */
static int open_later(ac_cq4_tail_t *tail, int is_finished, ac_cq4_cycle_t *out, int *some,
                      ac_error_t *err) {
    uint32_t *cycles;
    size_t count;
    int rc;
    *some = 0;
    /* Usually it is the next one; a directory may have a hundred thousand. */
    if (is_finished && tail->cycle.map && tail->passed_cycle <= tail->segment + 1ull) {
        rc = ac_cq4_queue_open_cycle(&tail->queue, tail->segment + 1, out, err);
        if (rc != AC_E_NOT_FOUND) return rc == AC_OK ? 1 : fail_later(tail, rc, tail->segment + 1);
    }
    rc = ac_cq4_queue_cycles(&tail->queue, &cycles, &count, err);
    for (size_t i = 0; rc == AC_OK && i < count; i++) {
        if ((tail->cycle.map && cycles[i] <= tail->segment) || cycles[i] < tail->passed_cycle)
            continue;
        rc = ac_cq4_queue_open_cycle(&tail->queue, cycles[i], out, err);
        if (rc == AC_OK) {
            if ((is_finished && !*some) || ac_cq4_cycle_has_message(out)) {
                rc = 1;
                break;
            }
            ac_cq4_cycle_close(out);
        } else if (rc == AC_E_NOT_FOUND) {
            rc = AC_OK; /* being created, or removed since the directory was listed */
        } else {
            fail_later(tail, rc, cycles[i]);
        }
        *some = 1;
    }
    free(cycles);
    return rc;
}

/* What is found at the end of the current file: 1 = in the next one, or something has arrived here; 0 =
 * wait. */
static int advance(ac_cq4_tail_t *tail, ac_cq4_kind_t kind, ac_error_t *err) {
    ac_cq4_cycle_t later;
    uint32_t length;
    int some, is_finished = kind == AC_CQ4_END || !tail->cycle.map;
    tail->bad_cycle = 0;
    if (!is_time_to_look(tail)) return 0;
    int rc = open_later(tail, is_finished, &later, &some, err);
    if (rc == 1 && !is_finished) {
        /* The order matters: the second look sees what was written here before that later message, or under
         * a lock that is free by now. */
        int is_held = ac_cq4_queue_is_locked(&tail->queue);
        int has_come = ac_cq4_inspect(tail->base, tail->size, tail->offset, &length) != kind;
        if (is_held || has_come) ac_cq4_cycle_close(&later);
        if (has_come) return 1;
        if (is_held)
            rc = 0;
        else
            tail->missing_ends++;
        some = 1;
    }
    if (rc == 1) enter(tail, &later, start_of(&later));
    uint64_t interval_ns = tail->queue.mod_count ? LOOK_NS : LOOK_BLIND_NS;
    if (rc == 0) look_again_after(tail, some ? LOOK_SOON_NS : interval_ns);
    return rc;
}

/* ---- the slow path of next ---- */

static int fail_at(const ac_cq4_tail_t *tail, int code, const char *why, ac_error_t *err) {
    return ac_cq4_cycle_fail(&tail->cycle, code, 0, tail->offset, why, err);
}

/* A page could not be read: the file was truncated, or the disk has an error. Mapped again, for the next
 * call. */
int ac_cq4_tail_fail_cut(ac_cq4_tail_t *tail, ac_error_t *err) {
    uint64_t at = ac_load_relaxed_u64(&tail->cycle.map->cut_at), size = tail->size;
    int rc = ac_cq4_cycle_refresh(&tail->cycle, err);
    if (rc < 0) return rc;
    use_map(tail);
    if (rc == 0 || tail->size < size)
        return ac_cq4_cycle_fail(&tail->cycle, AC_E_GONE, 0, at,
                                 "the file was cut while it was being read", err);
    return ac_cq4_cycle_fail(&tail->cycle, AC_E_SYSTEM, EIO, at,
                             "a page cannot be read from disk; reading again may help", err);
}

static int widen_window(ac_cq4_tail_t *tail, ac_error_t *err) {
    uint64_t end = tail->offset + WINDOW;
    if (tail->size < AC_CQ4_HEADER_BYTES) return AC_OK;
    if (tail->index >> tail->queue.roll.shift != tail->segment)
        return fail_at(tail, AC_E_CORRUPT, "has more messages than its roll cycle can number", err);
    if (end > tail->size - AC_CQ4_HEADER_BYTES + 1) end = tail->size - AC_CQ4_HEADER_BYTES + 1;
    if (tail->segment == tail->end_segment && tail->end_offset < end) end = tail->end_offset;
    tail->window_end = end;
    return AC_OK;
}

/* The record, or its header, extends beyond the mapping. 1 = mapped again; 0 = the file ends here. */
static int at_border(ac_cq4_tail_t *tail, ac_error_t *err) {
    int rc = ac_cq4_cycle_refresh(&tail->cycle, err);
    if (rc != 0) {
        use_map(tail);
        return rc;
    }
    /* A header may lie at the very end, or after it by at most the padding of a record; farther on, the
     * file was truncated. */
    if (tail->offset > tail->size + tail->padding)
        return fail_at(tail, AC_E_GONE, "the file was cut while it was being read", err);
    if (tail->offset + AC_CQ4_HEADER_BYTES > tail->size) return 0;
    return fail_at(tail, AC_E_CORRUPT, "the record reaches beyond the end of the file", err);
}

/* Nothing complete is here. 1 = look again, 0 = wait. */
static int at_gap(ac_cq4_tail_t *tail, ac_cq4_kind_t kind, ac_error_t *err) {
    if (ac_map_is_cut(tail->cycle.map)) return ac_cq4_tail_fail_cut(tail, err);
    if (kind == AC_CQ4_BUSY) {
        uint64_t now_ns = ac_os_monotonic_ns();
        if (tail->busy_offset != tail->offset) tail->busy_since_ns = now_ns;
        tail->busy_offset = tail->offset;
        if (now_ns - tail->busy_since_ns < BUSY_NS) return 0;
    }
    if (kind == AC_CQ4_NONE && ac_cq4_cycle_is_hole(&tail->cycle, tail->offset))
        return fail_at(tail, AC_E_CORRUPT, "there is no message here, but there are later ones",
                       err);
    return advance(tail, kind, err);
}

static int next_slow(ac_cq4_tail_t *tail, ac_message_t *out, ac_error_t *err) {
    int rc = 1;
    while (rc == 1) {
        uint32_t length;
        if (is_after_end(tail)) return 0;
        if (!tail->cycle.map) {
            rc = advance(tail, AC_CQ4_NONE, err);
            continue;
        }
        if (AC_UNLIKELY(tail->passed_offset) && tail->offset == tail->passed_offset) {
            rc = advance(tail, AC_CQ4_END, err);
            continue;
        }
        if (tail->offset >= tail->window_end && (rc = widen_window(tail, err)) != AC_OK) return rc;
        ac_cq4_kind_t kind = ac_cq4_inspect(tail->base, tail->size, tail->offset, &length);
        rc = 1;
        switch (kind) {
        case AC_CQ4_DATA:
            ac_cq4_tail_deliver(tail, length, out);
            return 1;
        case AC_CQ4_META:
            tail->offset = ac_cq4_after(tail->offset, length, tail->padding);
            break;
        case AC_CQ4_END:
            rc = advance(tail, kind, err);
            break;
        case AC_CQ4_BEYOND:
            rc = at_border(tail, err);
            if (rc == 0) rc = at_gap(tail, kind, err);
            break;
        default:
            rc = at_gap(tail, kind, err);
        }
    }
    return rc;
}

int ac_cq4_tail_next(ac_cq4_tail_t *tail, ac_message_t *out, ac_error_t *err) {
    int rc = ac_cq4_tail_try_next(tail, out);
    return AC_LIKELY(rc == 1) ? 1 : next_slow(tail, out, err);
}

uint64_t ac_cq4_tail_pass_damage(ac_cq4_tail_t *tail) {
    tail->look_again_ns = 0;
    if (tail->bad_cycle || !tail->cycle.map) {
        tail->passed_cycle = tail->bad_cycle;
        return 0;
    }
    uint64_t from = tail->offset, seq = tail->index & ac_cq4_seq_mask(&tail->queue.roll);
    ac_cq4_place_t place =
        ac_cq4_cycle_after_damage(&tail->cycle, (ac_cq4_place_t){from, seq, AC_CQ4_NONE});
    if (place.kind == AC_CQ4_DATA) {
        move(tail, place);
        return place.offset - from;
    }
    tail->passed_offset = from;
    return tail->size > from ? tail->size - from : 0;
}

void ac_cq4_tail_unread(ac_cq4_tail_t *tail, const ac_message_t *message) {
    tail->offset = (uint64_t)(message->record - tail->base) + AC_HEADER_SIZE - AC_CQ4_HEADER_BYTES;
    tail->index = message->seq;
    tail->messages--;
    tail->payload_bytes -= message->length;
}

int ac_cq4_tail_ready(ac_cq4_tail_t *tail, ac_error_t *err) {
    ac_message_t message;
    int rc = ac_cq4_tail_next(tail, &message, err);
    if (rc < 0) return 1; /* next will report it */
    if (rc == 1) ac_cq4_tail_unread(tail, &message);
    return rc;
}

/* ---- opening and seeking ---- */

static void init(ac_cq4_tail_t *tail) {
    memset(tail, 0, sizeof *tail);
    tail->end_segment = tail->end_offset = UINT64_MAX;
}

int ac_cq4_tail_open(ac_cq4_tail_t *tail, const char *path, ac_error_t *err) {
    init(tail);
    return ac_cq4_queue_open(path, &tail->queue, err);
}

int ac_cq4_tail_open_in(ac_cq4_tail_t *tail, const ac_directory_t *dir, ac_error_t *err) {
    init(tail);
    return ac_cq4_queue_open_in(dir, &tail->queue, err);
}

void ac_cq4_tail_close(ac_cq4_tail_t *tail) {
    leave(tail);
    ac_cq4_queue_close(&tail->queue);
}

void ac_cq4_tail_position(const ac_cq4_tail_t *tail, uint64_t *segment, uint64_t *offset) {
    *segment = tail->segment;
    *offset = tail->offset;
}

void ac_cq4_tail_end_at(ac_cq4_tail_t *tail, uint64_t segment, uint64_t offset) {
    tail->end_segment = segment;
    tail->end_offset = offset;
    tail->window_end = 0;
}

int ac_cq4_tail_ended(const ac_cq4_tail_t *tail) {
    return is_after_end(tail);
}

/* Whether a file that cannot be opened counts as missing. */
static int is_left_out(const ac_cq4_tail_t *tail, int code) {
    return code == AC_E_NOT_FOUND || (code == AC_E_CORRUPT && tail->skips_damage);
}

/* The first cycle at or after `number` whose file is complete: 1 and *out, or 0. */
static int open_from(ac_cq4_tail_t *tail, uint64_t number, ac_cq4_cycle_t *out, ac_error_t *err) {
    uint32_t *cycles;
    size_t count;
    int rc = ac_cq4_queue_cycles(&tail->queue, &cycles, &count, err);
    for (size_t i = 0; rc == AC_OK && i < count; i++) {
        if (cycles[i] < number) continue;
        rc = ac_cq4_queue_open_cycle(&tail->queue, cycles[i], out, err);
        rc = rc == AC_OK ? 1 : is_left_out(tail, rc) ? AC_OK : rc;
    }
    free(cycles);
    return rc;
}

int ac_cq4_tail_open_first(ac_cq4_tail_t *tail, ac_cq4_cycle_t *out, ac_error_t *err) {
    return open_from(tail, 0, out, err);
}

int ac_cq4_tail_seek_first(ac_cq4_tail_t *tail, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    int rc = ac_cq4_tail_open_first(tail, &cycle, err);
    if (rc < 0) return rc;
    if (rc == 1)
        enter(tail, &cycle, start_of(&cycle));
    else
        leave(tail);
    return AC_OK;
}

/* In the last cycle with a message: a later one may have been created ahead of time. */
int ac_cq4_tail_seek_last(ac_cq4_tail_t *tail, ac_error_t *err) {
    ac_cq4_cycle_t cycle = {0};
    uint32_t *cycles;
    size_t count;
    int rc = ac_cq4_queue_cycles(&tail->queue, &cycles, &count, err);
    for (size_t i = count; rc == AC_OK && i-- > 0;) {
        rc = ac_cq4_queue_open_cycle(&tail->queue, cycles[i], &cycle, err);
        if (rc == AC_OK && ac_cq4_cycle_has_message(&cycle)) rc = 1;
        if (rc == AC_OK) ac_cq4_cycle_close(&cycle);
        if (rc < 0 && is_left_out(tail, rc)) rc = AC_OK;
    }
    free(cycles);
    if (rc < 0) return rc;
    if (rc == 0) return ac_cq4_tail_seek_first(tail, err);
    enter(tail, &cycle, ac_cq4_cycle_end(&cycle));
    return AC_OK;
}

int ac_cq4_tail_seek_index(ac_cq4_tail_t *tail, uint64_t index, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    int rc = ac_cq4_queue_learn(&tail->queue, err);
    if (rc < 0) return rc;
    if (rc == 0) return ac_cq4_tail_seek_first(tail, err);
    uint64_t number = ac_cq4_cycle_of_index(&tail->queue.roll, index);
    uint64_t seq = index & ac_cq4_seq_mask(&tail->queue.roll);
    /* A message that exists, in the current file, needs no check of the directory. */
    if (tail->cycle.map && tail->segment == number && !ac_map_is_cut(tail->cycle.map)) {
        ac_cq4_place_t place = ac_cq4_cycle_find(&tail->cycle, seq);
        if (place.kind == AC_CQ4_DATA) {
            move(tail, place);
            return AC_OK;
        }
    }
    rc = open_from(tail, number, &cycle, err);
    if (rc < 0) return rc;
    if (rc == 0) return ac_cq4_tail_seek_last(tail, err);
    if (cycle.number > number)
        enter(tail, &cycle, start_of(&cycle));
    else
        enter(tail, &cycle, ac_cq4_cycle_find(&cycle, seq));
    return AC_OK;
}

static int position_lost(const ac_cq4_tail_t *tail, uint64_t segment, uint64_t offset,
                         uint64_t near_segment, uint64_t near_offset, const char *why,
                         ac_error_t *err) {
    int rc = ac_fail(err, AC_E_POSITION_LOST, 0, tail->queue.dir.path, offset, "%s", why);
    if (err) {
        err->wanted_segment = segment;
        err->wanted_offset = offset;
        err->first_segment = near_segment;
        err->first_offset = near_offset;
    }
    return rc;
}

int ac_cq4_tail_seek_position(ac_cq4_tail_t *tail, uint64_t segment, uint64_t offset,
                              ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    if (segment == 0 && offset == 0) return ac_cq4_tail_seek_first(tail, err);
    int rc = open_from(tail, segment, &cycle, err);
    if (rc < 0) return rc;
    if (rc == 0 || cycle.number != segment) {
        uint64_t near_segment = rc ? cycle.number : 0, near_offset = rc ? cycle.first : 0;
        if (rc) ac_cq4_cycle_close(&cycle);
        return position_lost(tail, segment, offset, near_segment, near_offset,
                             "the file of this cycle was removed", err);
    }
    ac_cq4_place_t place = offset ? ac_cq4_cycle_place_at(&cycle, offset) : start_of(&cycle);
    if (offset && place.offset != offset) {
        ac_cq4_cycle_close(&cycle);
        return position_lost(tail, segment, offset, segment, place.offset,
                             "no record begins at this position", err);
    }
    enter(tail, &cycle, place);
    return AC_OK;
}

/* ---- lag ---- */

static int add_later_cycles(ac_cq4_tail_t *tail, ac_lag_t *out, ac_error_t *err) {
    uint32_t *cycles;
    size_t count;
    int rc = ac_cq4_queue_cycles(&tail->queue, &cycles, &count, err);
    for (size_t i = 0; rc == AC_OK && i < count; i++) {
        ac_cq4_cycle_t cycle;
        if (tail->cycle.map && cycles[i] <= tail->segment) continue;
        rc = ac_cq4_queue_open_cycle(&tail->queue, cycles[i], &cycle, err);
        if (rc == AC_E_NOT_FOUND) {
            rc = AC_OK;
            continue;
        }
        if (rc != AC_OK) break;
        ac_cq4_place_t end = ac_cq4_cycle_end(&cycle);
        if (out->messages == 0 && end.seq > 0)
            out->age_ns = ac_cq4_roll_moment_ns(&tail->queue.roll, cycle.number);
        out->messages += end.seq;
        if (end.seq > 0) out->bytes += end.offset - cycle.first;
        ac_cq4_cycle_close(&cycle);
    }
    free(cycles);
    return rc;
}

int ac_cq4_tail_lag(ac_cq4_tail_t *tail, ac_lag_t *out, ac_error_t *err) {
    *out = (ac_lag_t){0};
    if (tail->cycle.map) {
        int rc = ac_cq4_cycle_refresh(&tail->cycle, err);
        if (rc < 0) return rc;
        if (rc == 1) use_map(tail);
        ac_cq4_place_t end = ac_cq4_cycle_end(&tail->cycle);
        uint64_t seq = tail->index & ac_cq4_seq_mask(&tail->queue.roll);
        if (end.seq > seq) {
            out->messages = end.seq - seq;
            out->bytes = end.offset - tail->offset;
            out->age_ns = tail->timestamp_ns;
        }
    }
    int rc = add_later_cycles(tail, out, err);
    if (rc != AC_OK) return rc;
    uint64_t now_ns = ac_os_now_ns();
    out->age_ns = out->messages > 0 && now_ns > out->age_ns ? now_ns - out->age_ns : 0;
    return AC_OK;
}
