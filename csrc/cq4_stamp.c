#include "cq4_stamp.h"

#include "error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ac_cq4_stamp_init(ac_cq4_stamp_t *stamp, const ac_reader_config_t *config, const char *path,
                      ac_error_t *err) {
    memset(stamp, 0, sizeof *stamp);
    if (config->timestamp_function) {
        stamp->how = AC_CQ4_BY_FUNCTION;
        stamp->function = config->timestamp_function;
        stamp->context = config->timestamp_context;
    } else if (config->timestamp_field) {
        stamp->how = AC_CQ4_BY_FIELD;
        stamp->field.unit_ns = config->timestamp_unit_ns ? config->timestamp_unit_ns : 1;
        const char *wrong = ac_cq4_field_name(&stamp->field, config->timestamp_field);
        if (wrong) return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "%s", wrong);
    }
    return AC_OK;
}

/* Reports what is wrong with the field. */
static int fail_field(const ac_cq4_field_t *field, const ac_cq4_cycle_t *cycle, uint64_t index,
                      uint64_t offset, const char *wrong, ac_error_t *err) {
    char name[64], why[200];
    ac_cq4_from_latin1(field->name, name, sizeof name);
    snprintf(why, sizeof why, "message 0x%" PRIx64 ": its timestamp field '%s' %s", index, name,
             wrong);
    return ac_cq4_cycle_fail(cycle, AC_E_STAMP, 0, offset, why, err);
}

int ac_cq4_stamp_find(const ac_cq4_stamp_t *stamp, const ac_cq4_cycle_t *cycle, uint64_t index,
                      const uint8_t *payload, uint32_t length, uint64_t *timestamp_ns,
                      ac_error_t *err) {
    uint64_t offset = (uint64_t)(payload - cycle->map->base) - AC_CQ4_HEADER_BYTES;
    if (stamp->how == AC_CQ4_BY_FIELD) {
        const char *wrong = ac_cq4_field_time(&stamp->field, payload, length, timestamp_ns);
        return wrong ? fail_field(&stamp->field, cycle, index, offset, wrong, err) : AC_OK;
    }
    /* Formatted before the call: the cycle may be gone when the function returns. */
    char why[64];
    ac_error_t failed;
    snprintf(why, sizeof why, "message 0x%" PRIx64 ": the timestamp function failed", index);
    ac_cq4_cycle_fail(cycle, AC_E_STAMP, ECANCELED, offset, why, &failed);
    if (stamp->function(stamp->context, payload, length, timestamp_ns) == AC_OK) return AC_OK;
    if (err) *err = failed;
    return AC_E_STAMP;
}

/* ---- seeking ---- */

/* The time of the message at a place. */
static int time_at(const ac_cq4_tail_t *tail, const ac_cq4_stamp_t *stamp,
                   const ac_cq4_cycle_t *cycle, ac_cq4_place_t place, uint64_t *timestamp_ns,
                   ac_error_t *err) {
    uint32_t length;
    *timestamp_ns = ac_cq4_roll_moment_ns(&tail->queue.roll, cycle->number);
    if (stamp->how == AC_CQ4_BY_CYCLE) return AC_OK;
    ac_cq4_inspect(cycle->map->base, cycle->map->size, place.offset, &length);
    return ac_cq4_stamp_find(
        stamp, cycle, ac_cq4_index(&tail->queue.roll, cycle->number, place.seq),
        cycle->map->base + place.offset + AC_CQ4_HEADER_BYTES, length, timestamp_ns, err);
}

typedef struct search {
    ac_cq4_tail_t *tail;
    const ac_cq4_stamp_t *stamp;
    uint64_t timestamp_ns; /* wanted */
} search_t;

/* Whether the first message of a cycle is of that time or later: 1, 0, or AC_E_NOT_FOUND: it has none. */
static int is_reached(const search_t *search, uint32_t number, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    uint64_t found = 0;
    /* Without opening each file: there may be a hundred thousand. */
    if (search->stamp->how == AC_CQ4_BY_CYCLE)
        return ac_cq4_roll_moment_ns(&search->tail->queue.roll, number) >= search->timestamp_ns;
    int rc = ac_cq4_queue_open_cycle(&search->tail->queue, number, &cycle, err);
    if (rc != AC_OK) return rc;
    ac_cq4_place_t place = ac_cq4_cycle_find(&cycle, 0);
    rc = place.kind == AC_CQ4_DATA
             ? time_at(search->tail, search->stamp, &cycle, place, &found, err)
             : AC_E_NOT_FOUND;
    ac_cq4_cycle_close(&cycle);
    return rc < 0 ? rc : found >= search->timestamp_ns;
}

/* The first seq of that time or later in a cycle, or the number of its messages. */
static int find_seq(const search_t *search, uint32_t number, uint64_t *seq, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    int rc = ac_cq4_queue_open_cycle(&search->tail->queue, number, &cycle, err);
    if (rc != AC_OK) return rc;
    uint64_t low = 0, high = ac_cq4_cycle_end(&cycle).seq;
    while (rc == AC_OK && low < high) {
        uint64_t middle = low + (high - low) / 2, found;
        ac_cq4_place_t place = ac_cq4_cycle_find(&cycle, middle);
        if (place.kind != AC_CQ4_DATA) { /* the file was truncated meanwhile */
            high = middle;
            continue;
        }
        rc = time_at(search->tail, search->stamp, &cycle, place, &found, err);
        if (found >= search->timestamp_ns)
            high = middle;
        else
            low = middle + 1;
    }
    *seq = low;
    ac_cq4_cycle_close(&cycle);
    return rc;
}

/* The first cycle whose first message is of that time or later, or the number of cycles; and the last cycle
 * before it that has messages, or -1. A cycle without messages decides nothing, so the next one is
 * examined. */
static int find_cycle(const search_t *search, const uint32_t *cycles, size_t count, size_t *first,
                      int64_t *before, ac_error_t *err) {
    size_t low = 0, high = count;
    *before = -1;
    while (low < high) {
        size_t middle = low + (high - low) / 2, at = middle;
        int rc = AC_E_NOT_FOUND;
        while (at < high && (rc = is_reached(search, cycles[at], err)) == AC_E_NOT_FOUND)
            at++;
        if (rc < 0 && rc != AC_E_NOT_FOUND) return rc;
        if (rc == 0) {
            *before = cycles[at];
            low = at + 1;
        } else {
            high = middle;
        }
    }
    *first = low;
    return AC_OK;
}

int ac_cq4_seek_time(ac_cq4_tail_t *tail, const ac_cq4_stamp_t *stamp, uint64_t timestamp_ns,
                     ac_error_t *err) {
    search_t search = {tail, stamp, timestamp_ns};
    uint32_t *cycles;
    size_t count, first = 0;
    int64_t before;
    uint64_t seq = 0, number = 0;
    int rc = ac_cq4_queue_cycles(&tail->queue, &cycles, &count, err);
    if (rc == AC_OK) rc = find_cycle(&search, cycles, count, &first, &before, err);
    int is_later = rc == AC_OK && first < count;
    if (is_later) number = cycles[first];
    free(cycles);
    /* The first message of a cycle may be later, with earlier ones in the cycle before it. */
    if (rc == AC_OK && before >= 0 && stamp->how != AC_CQ4_BY_CYCLE) {
        rc = find_seq(&search, (uint32_t)before, &seq, err);
        number = (uint64_t)before;
        is_later = 1;
    }
    if (rc != AC_OK) return rc;
    if (!is_later) return ac_cq4_tail_seek_last(tail, err);
    return ac_cq4_tail_seek_index(tail, ac_cq4_index(&tail->queue.roll, (uint32_t)number, seq),
                                  err);
}
