/* From one data file of a Java queue to the next. */
#include "cq4_create.h"
#include "cq4_ends.h"
#include "cq4_grow.h"
#include "cq4_writer_state.h"
#include "error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_NS 1000000u /* between two reads of a clock that is too early */
enum { ROLL_TRIES = 4 };

static int64_t current_cycle(const ac_cq4_writer_t *writer, ac_error_t *err) {
    int64_t cycle = ac_cq4_roll_cycle_at(&writer->queue.roll,
                                         (int64_t)(ac_cq4_writer_now_ns(writer) / 1000000));
    if (cycle >= 0) return cycle;
    return ac_fail(err, AC_E_TIMESTAMP, ETIME, writer->queue.dir.path, 0,
                   "the clock is before the epoch of the queue, or beyond its last cycle");
}

/* ---- the listing ---- */

/* -1 if it has no value. */
static int64_t listed(const uint64_t *value) {
    int64_t cycle = (int64_t)ac_load_acquire_u64(value);
    return cycle >= 0 && cycle <= AC_CQ4_CYCLE_MAX ? cycle : -1;
}

/* With the write lock, after the file exists. */
static void list_cycle(ac_cq4_writer_t *writer, int64_t cycle) {
    int64_t lowest = (int64_t)ac_load_relaxed_u64(writer->lowest);
    int64_t highest = (int64_t)ac_load_relaxed_u64(writer->highest);
    if (cycle >= lowest && cycle <= highest) return;
    if (cycle < lowest) ac_store_release_u64(writer->lowest, (uint64_t)cycle);
    if (cycle > highest) ac_store_release_u64(writer->highest, (uint64_t)cycle);
    ac_fetch_add_seq_cst_u64(writer->mod_count, 1);
}

static void note_ends(ac_cq4_writer_t *writer, int64_t up_to) {
    if (writer->ends_up_to && up_to > (int64_t)ac_load_relaxed_u64(writer->ends_up_to))
        ac_store_release_u64(writer->ends_up_to, (uint64_t)up_to);
}

/* With the write lock. */
static int write_ends(ac_cq4_writer_t *writer, int dir_fd, const ac_cq4_ends_t *ends,
                      ac_error_t *err) {
    for (size_t i = 0; i < ends->count; i++) {
        int rc = ac_cq4_ends_write(&writer->queue, dir_fd, ends->missing[i], err);
        if (rc < 0) return rc;
        ac_count_u64(&writer->stats.ends_written, (uint64_t)rc);
    }
    note_ends(writer, ends->before);
    return AC_OK;
}

static int find_ends(ac_cq4_writer_t *writer, uint32_t limit, ac_cq4_ends_t *out, ac_error_t *err) {
    uint64_t up_to = writer->ends_up_to ? ac_load_acquire_u64(writer->ends_up_to) : 0;
    return ac_cq4_ends_find(&writer->queue, limit, up_to, out, err);
}

/* ---- entering a cycle ---- */

/* Where to append, as far as is known without the lock. */
static int adopt(ac_cq4_writer_t *writer, ac_cq4_cycle_t *cycle, ac_error_t *err) {
    const ac_cq4_roll_t *roll = &cycle->roll;
    uint64_t count = roll->index_count, most = count * count * roll->index_spacing;
    uint64_t mask = ac_cq4_seq_mask(&writer->queue.roll);
    uint64_t written = ac_cq4_cycle_write_position(cycle); /* before others append more */
    ac_cq4_place_t end = ac_cq4_cycle_end(cycle);
    if (written >= end.offset)
        return ac_cq4_cycle_fail(cycle, AC_E_CORRUPT, 0, end.offset,
                                 "messages after this one were lost, and their indexes would be "
                                 "given again: move the file away, or wait for the next cycle",
                                 err);
    ac_cq4_cycle_close(&writer->cycle);
    writer->cycle = *cycle;
    memset(cycle, 0, sizeof *cycle);
    writer->place = end;
    ac_cq4_turns_enter(&writer->turns, end.seq);
    writer->begin_ns = ac_cq4_roll_moment_ns(&writer->queue.roll, writer->cycle.number);
    writer->end_ns = ac_cq4_roll_moment_ns(&writer->queue.roll, writer->cycle.number + 1);
    writer->max_seq = most < mask ? most : mask;
    writer->header_end = writer->ready = 0;
    writer->is_ended = writer->place.kind == AC_CQ4_END;
    ac_cq4_unsynced_t *unsynced = &writer->unsynced;
    if (!unsynced->entered || writer->cycle.number < unsynced->first)
        unsynced->first = writer->cycle.number;
    if (writer->cycle.number > unsynced->last) unsynced->last = writer->cycle.number;
    unsynced->entered++;
    ac_count_u64(&writer->stats.cycles_entered, 1);
    return AC_OK;
}

/* With the write lock: the clock is still in this cycle, and no writer is in a later one. */
static int is_due(const ac_cq4_writer_t *writer, uint32_t target) {
    return current_cycle(writer, NULL) == (int64_t)target &&
           listed(writer->highest) <= (int64_t)target;
}

typedef struct roll {
    ac_cq4_writer_t *writer;
    int dir_fd;
    uint32_t target;
    int is_over;       /* it is time for another cycle */
    int is_new;        /* the file was built here */
    int is_unfinished; /* the file is there, but has no header */
    int is_completed;  /* here, so it has one, unless it is damaged */
    char temporary[AC_CQ4_TEMPORARY_MAX];
    ac_cq4_cycle_t cycle;
    ac_cq4_ends_t ends;
    uint64_t mod_count;
} roll_t;

/* Opens the file of the target cycle, or builds one. */
static int prepare_file(roll_t *roll, ac_error_t *err) {
    ac_cq4_writer_t *writer = roll->writer;
    roll->is_new = roll->is_unfinished = 0;
    int rc = ac_cq4_grow_open(&writer->queue, roll->dir_fd, roll->target, &roll->cycle, err);
    if (rc != AC_E_NOT_FOUND) return rc;
    roll->is_unfinished = err->sys_errno == EAGAIN;
    if (roll->is_unfinished) return AC_OK;
    rc = ac_cq4_create_build(&writer->queue, roll->dir_fd, roll->target, roll->temporary,
                             &roll->cycle, err);
    roll->is_new = rc == AC_OK;
    return rc;
}

/* With the write lock: 1 = the target's file is open and listed, 0 = try again. */
static int enter_locked(roll_t *roll, ac_error_t *err) {
    ac_cq4_writer_t *writer = roll->writer;
    int rc = write_ends(writer, roll->dir_fd, &roll->ends, err);
    if (rc < 0) return rc;
    if (roll->is_unfinished) {
        if (roll->is_completed++)
            return ac_fail(err, AC_E_CORRUPT, 0, writer->queue.dir.path, 0,
                           "the file of cycle %u begins with what is no header: move it away, or "
                           "wait for the next cycle",
                           roll->target);
        rc = ac_cq4_create_complete(&writer->queue, roll->dir_fd, roll->target, err);
        return rc < 0 ? rc : 0;
    }
    if (roll->is_new) {
        roll->is_new = 0; /* its temporary name is gone then */
        rc = ac_cq4_create_link(&writer->queue, roll->dir_fd, roll->temporary, &roll->cycle, err);
        if (rc <= 0) return rc;
        ac_count_u64(&writer->stats.cycles_created, 1);
        writer->unsynced.is_dir = 1;
    }
    list_cycle(writer, roll->target);
    return 1;
}

static int try_roll(roll_t *roll, int is_last, ac_error_t *err) {
    ac_cq4_writer_t *writer = roll->writer;
    roll->mod_count = ac_load_acquire_u64(writer->mod_count);
    int rc = prepare_file(roll, err);
    if (rc != AC_OK) return rc;
    rc = find_ends(writer, roll->target, &roll->ends, err);
    if (rc == AC_OK) rc = ac_cq4_lock_take(&writer->lock, err);
    if (rc != AC_OK) return rc;
    if (!is_due(writer, roll->target))
        rc = roll->is_over = 1;
    else if (is_last || ac_load_acquire_u64(writer->mod_count) == roll->mod_count)
        rc = enter_locked(roll, err);
    ac_cq4_lock_release(&writer->lock);
    return rc;
}

static void drop_roll(roll_t *roll) {
    if (roll->is_new) ac_os_unlink(roll->dir_fd, roll->temporary);
    ac_cq4_cycle_close(&roll->cycle);
    free(roll->ends.missing);
    roll->ends.missing = NULL;
    roll->is_new = 0;
}

/* Opens or creates the file of this cycle, and finishes all files before it. AC_CQ4_AGAIN: others were
 * doing the same, or the clock went on. */
static int64_t roll_to(ac_cq4_writer_t *writer, uint32_t target, ac_error_t *err) {
    roll_t roll = {.writer = writer, .target = target};
    int rc = 0;
    roll.dir_fd = ac_directory_open(&writer->queue.dir, err);
    if (roll.dir_fd < 0) return roll.dir_fd;
    for (int tries = 1; rc == 0 && tries <= ROLL_TRIES + roll.is_completed; tries++) {
        rc = try_roll(&roll, tries >= ROLL_TRIES, err);
        if (rc == 1 && !roll.is_over && adopt(writer, &roll.cycle, err) != AC_OK) rc = AC_E_CORRUPT;
        drop_roll(&roll);
    }
    ac_os_close(roll.dir_fd);
    return rc < 0 ? rc : AC_CQ4_AGAIN;
}

/* ---- a clock that is too early ---- */

/* Files are never created below the highest cycle; but one that exists and is not finished is appended to. */
static int64_t enter_below(ac_cq4_writer_t *writer, uint32_t target, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    int dir_fd = ac_directory_open(&writer->queue.dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_cq4_grow_open(&writer->queue, dir_fd, target, &cycle, err);
    ac_os_close(dir_fd);
    if (rc == AC_E_NOT_FOUND) return AC_E_TIMESTAMP;
    if (rc != AC_OK) return rc;
    rc = adopt(writer, &cycle, err);
    if (rc != AC_OK) {
        ac_cq4_cycle_close(&cycle);
        return rc;
    }
    return writer->is_ended ? AC_E_TIMESTAMP : AC_CQ4_AGAIN;
}

static int64_t fail_behind(const ac_cq4_writer_t *writer, uint32_t cycle, ac_error_t *err) {
    return ac_fail(err, AC_E_TIMESTAMP, ETIME, writer->queue.dir.path, 0,
                   "the clock is in cycle %u, which is finished, or was never begun, and others "
                   "are in cycle %lld: set the clock right, or wait for it",
                   cycle, (long long)listed(writer->highest));
}

/* Waits until the clock has left a cycle that cannot be appended to, which never happens with a clock that
 * stands still. */
static int64_t wait_for_clock(ac_cq4_writer_t *writer, uint32_t cycle, ac_error_t *err) {
    uint64_t deadline_ns = ac_os_monotonic_ns() + writer->config.lock_timeout_ns, shown_ns = 0;
    int64_t now;
    while ((now = current_cycle(writer, err)) >= 0 && now <= (int64_t)cycle) {
        uint64_t before_ns = shown_ns;
        shown_ns = ac_cq4_writer_now_ns(writer);
        if (shown_ns == before_ns || ac_os_monotonic_ns() >= deadline_ns)
            return fail_behind(writer, cycle, err);
        ac_os_sleep_ns(WAIT_NS);
        int rc = ac_cq4_lock_is_interrupted(&writer->lock, err);
        if (rc != 0) return rc;
    }
    return now < 0 ? now : AC_CQ4_AGAIN;
}

/* Enters the cycle of the clock. */
int64_t ac_cq4_writer_follow_clock(ac_cq4_writer_t *writer, ac_error_t *err) {
    int64_t now = current_cycle(writer, err);
    if (now < 0) return now;
    uint32_t target = (uint32_t)now;
    int is_here = writer->cycle.map && writer->cycle.number == target;
    int64_t done = AC_CQ4_AGAIN;
    if (is_here && !writer->is_ended) return AC_CQ4_AGAIN;
    if (is_here)
        done = AC_E_TIMESTAMP;
    else if ((int64_t)target < listed(writer->highest))
        done = enter_below(writer, target, err);
    else
        done = roll_to(writer, target, err);
    if (done == AC_CQ4_AGAIN && writer->is_ended) done = AC_E_TIMESTAMP;
    return done == AC_E_TIMESTAMP ? wait_for_clock(writer, target, err) : done;
}

/* ---- at the start ---- */

/* With the mutex held: frees the lock of a dead process, and completes what it left unfinished. */
int ac_cq4_writer_repair(ac_cq4_writer_t *writer, int dir_fd, ac_error_t *err) {
    ac_cq4_ends_t ends;
    int64_t now = current_cycle(writer, err);
    if (now < 0) return (int)now;
    int rc = find_ends(writer, (uint32_t)now, &ends, err);
    if (rc != AC_OK) return rc;
    /* The newest file stays open: others may be appending to it. */
    while (ends.count > 0 && ends.missing[ends.count - 1] >= ends.newest)
        ends.count--;
    if (ends.before == ends.newest) ends.before = -1;
    rc = ac_cq4_lock_take(&writer->lock, err);
    if (rc == AC_OK) {
        rc = write_ends(writer, dir_fd, &ends, err);
        if (rc == AC_OK && ends.newest >= 0) {
            list_cycle(writer, ends.oldest);
            list_cycle(writer, ends.newest);
        }
        ac_cq4_lock_release(&writer->lock);
    }
    free(ends.missing);
    return rc;
}
