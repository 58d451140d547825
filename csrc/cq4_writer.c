#include "cq4_writer.h"

#include "cq4_create.h"
#include "cq4_ends.h"
#include "cq4_grow.h"
#include "cq4_index.h"
#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN INT64_MIN /* internal: more has to be prepared before the lock is taken */
#define LOOK_NS 1000000000ull
#define WAIT_NS 1000000u /* between two looks at a clock that is behind */
#define POLITE_NS 3000u
enum {
    WINDOW = 256 << 10, /* pages are populated so far ahead */
    LOOK_APPENDS = 1 << 16,
    POLITE_APPENDS = 64,
    ROLL_TRIES = 4,
    ZEROS = 8, /* that follow a message */
};

struct ac_cq4_writer {
    /* All with the gate of the lock. */
    ac_cq4_lock_t lock;
    ac_cq4_cycle_t cycle;      /* that is appended to; not open before the first append */
    ac_cq4_place_t place;      /* in it: all records before it are counted */
    uint64_t begin_ns, end_ns; /* of the cycle, by the clock */
    uint64_t header_end;       /* headers begin before this: the file is long enough for them */
    uint64_t ready;            /* pages before this are populated */
    uint64_t max_seq;
    int is_ended; /* the cycle has its end mark, and the clock has not left it */
    int polite;   /* for so many appends yet */
    int is_fast;  /* ac_cq4_writer_try_append may try */
    uint64_t looked_ns, look_appends; /* whether all is still there */

    ac_cq4_writer_config_t config;
    ac_cq4_queue_t queue;
    ac_cq4_table_t table; /* the same as the queue's, writable */
    uint64_t *highest, *lowest, *mod_count, *ends_up_to;
    int64_t first_unsynced; /* the oldest cycle that flush has to sync; -1: none */
    int is_dir_unsynced;
    int poisoned, is_gone, is_closed;
    ac_error_t gone;
    ac_cq4_writer_stats_t stats;
};

/* ---- the clock ---- */

static uint64_t now_ns(const ac_cq4_writer_t *writer) {
    return writer->config.clock_ns ? writer->config.clock_ns(writer->config.clock_context)
                                   : ac_os_now_ns();
}

static int64_t current_cycle(const ac_cq4_writer_t *writer, ac_error_t *err) {
    int64_t cycle = ac_cq4_roll_cycle_at(&writer->queue.roll, (int64_t)(now_ns(writer) / 1000000));
    if (cycle >= 0) return cycle;
    return ac_fail(err, AC_E_TIMESTAMP, 0, writer->queue.dir.path, 0,
                   "the clock is before the epoch of the queue, or beyond its last cycle");
}

/* ---- the listing ---- */

/* -1 if it says nothing. */
static int64_t listed(const uint64_t *value) {
    int64_t cycle = (int64_t)ac_load_acquire_u64(value);
    return cycle >= 0 && cycle <= AC_CQ4_CYCLE_MAX ? cycle : -1;
}

/* With the write lock, after the file is there. */
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

/* Where to append, as far as it can be told without the lock. */
static void adopt(ac_cq4_writer_t *writer, ac_cq4_cycle_t *cycle) {
    const ac_cq4_roll_t *roll = &cycle->roll;
    uint64_t count = roll->index_count, most = count * count * roll->index_spacing;
    uint64_t mask = ac_cq4_seq_mask(&writer->queue.roll);
    ac_cq4_cycle_close(&writer->cycle);
    writer->cycle = *cycle;
    memset(cycle, 0, sizeof *cycle);
    writer->place = ac_cq4_cycle_end(&writer->cycle);
    writer->begin_ns = ac_cq4_roll_moment_ns(&writer->queue.roll, writer->cycle.number);
    writer->end_ns = ac_cq4_roll_moment_ns(&writer->queue.roll, writer->cycle.number + 1);
    writer->max_seq = most < mask ? most : mask;
    writer->header_end = writer->ready = 0;
    writer->is_ended = writer->place.kind == AC_CQ4_END;
    if (writer->first_unsynced < 0) writer->first_unsynced = writer->cycle.number;
    ac_count_u64(&writer->stats.cycles_entered, 1);
}

/* With the write lock: the clock is still in this cycle, and nobody is in a later one. */
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
    char temporary[AC_CQ4_TEMPORARY_MAX];
    ac_cq4_cycle_t cycle;
    ac_cq4_ends_t ends;
    uint64_t mod_count;
} roll_t;

/* Opens the file of the target, or builds one. */
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

/* With the write lock: 1 = the file of the target is open and listed, 0 = once more. */
static int enter_locked(roll_t *roll, ac_error_t *err) {
    ac_cq4_writer_t *writer = roll->writer;
    int rc = write_ends(writer, roll->dir_fd, &roll->ends, err);
    if (rc < 0) return rc;
    if (roll->is_unfinished) {
        rc = ac_cq4_create_complete(&writer->queue, roll->dir_fd, roll->target, err);
        return rc < 0 ? rc : 0;
    }
    if (roll->is_new) {
        roll->is_new = 0; /* its temporary name is gone then */
        rc = ac_cq4_create_link(&writer->queue, roll->dir_fd, roll->temporary, &roll->cycle, err);
        if (rc <= 0) return rc;
        ac_count_u64(&writer->stats.cycles_created, 1);
        writer->is_dir_unsynced = 1;
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

/* Opens or creates the file of this cycle, and finishes all before it. AGAIN: others were at it, or the clock went on. */
static int64_t roll_to(ac_cq4_writer_t *writer, uint32_t target, ac_error_t *err) {
    roll_t roll = {.writer = writer, .target = target};
    int rc = 0;
    roll.dir_fd = ac_directory_open(&writer->queue.dir, err);
    if (roll.dir_fd < 0) return roll.dir_fd;
    for (int tries = 1; rc == 0 && tries <= ROLL_TRIES; tries++) {
        rc = try_roll(&roll, tries == ROLL_TRIES, err);
        if (rc == 1 && !roll.is_over) adopt(writer, &roll.cycle);
        drop_roll(&roll);
    }
    ac_os_close(roll.dir_fd);
    return rc < 0 ? rc : AGAIN;
}

/* ---- a clock that is behind ---- */

/* Files are never created below the highest cycle; but one that is there, and not finished, is appended to. */
static int64_t enter_below(ac_cq4_writer_t *writer, uint32_t target, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    int dir_fd = ac_directory_open(&writer->queue.dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_cq4_grow_open(&writer->queue, dir_fd, target, &cycle, err);
    ac_os_close(dir_fd);
    if (rc == AC_E_NOT_FOUND) return AC_E_TIMESTAMP;
    if (rc != AC_OK) return rc;
    adopt(writer, &cycle);
    return writer->is_ended ? AC_E_TIMESTAMP : AGAIN;
}

static int64_t fail_behind(const ac_cq4_writer_t *writer, uint32_t cycle, ac_error_t *err) {
    return ac_fail(err, AC_E_TIMESTAMP, 0, writer->queue.dir.path, 0,
                   "the clock is in cycle %u, which is finished, or was never begun, and others "
                   "are in cycle %lld: set the clock right, or wait for it",
                   cycle, (long long)listed(writer->highest));
}

/* Until the clock is out of a cycle that nothing can be appended to. */
static int64_t wait_for_clock(ac_cq4_writer_t *writer, uint32_t cycle, ac_error_t *err) {
    uint64_t deadline_ns = ac_os_monotonic_ns() + writer->config.lock_timeout_ns;
    int64_t now;
    while ((now = current_cycle(writer, err)) >= 0 && now <= (int64_t)cycle) {
        if (ac_os_monotonic_ns() >= deadline_ns) return fail_behind(writer, cycle, err);
        ac_os_sleep_ns(WAIT_NS);
    }
    return now < 0 ? now : AGAIN;
}

/* To the cycle that the clock is in. */
static int64_t follow_clock(ac_cq4_writer_t *writer, ac_error_t *err) {
    int64_t now = current_cycle(writer, err);
    if (now < 0) return now;
    uint32_t target = (uint32_t)now;
    int is_here = writer->cycle.map && writer->cycle.number == target;
    int64_t done = AGAIN;
    if (is_here && !writer->is_ended) return AGAIN;
    if (is_here)
        done = AC_E_TIMESTAMP;
    else if ((int64_t)target < listed(writer->highest))
        done = enter_below(writer, target, err);
    else
        done = roll_to(writer, target, err);
    if (done == AGAIN && writer->is_ended) done = AC_E_TIMESTAMP;
    return done == AC_E_TIMESTAMP ? wait_for_clock(writer, target, err) : done;
}

/* ---- whether all is still there ---- */

static int give_up(ac_cq4_writer_t *writer, const char *name, const char *why, ac_error_t *err) {
    ac_fail(&writer->gone, AC_E_GONE, ENOENT, writer->queue.dir.path, 0,
            "%s%s; what was appended since is not in the queue", name, why);
    writer->is_gone = 1;
    writer->is_fast = 0;
    if (err) *err = writer->gone;
    return AC_E_GONE;
}

static int check_file(ac_cq4_writer_t *writer, ac_error_t *err) {
    const ac_map_t *map = writer->cycle.map;
    struct stat info;
    if (!map || ac_os_stat(map->fd, &info) < 0) return AC_OK;
    if (info.st_nlink == 0) return give_up(writer, writer->cycle.name, " was removed", err);
    if ((uint64_t)info.st_size < map->size)
        return give_up(writer, writer->cycle.name, " was cut", err);
    return AC_OK;
}

/* A mapping outlives the name of its file: without a look nobody would notice. */
static int look_around(ac_cq4_writer_t *writer, ac_error_t *err) {
    struct stat info;
    writer->look_appends = writer->stats.messages + LOOK_APPENDS;
    int dir_fd = ac_directory_open(&writer->queue.dir, err);
    if (dir_fd == AC_E_GONE) return give_up(writer, "", "the queue's directory was removed", err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_os_stat_at(dir_fd, writer->table.name, &info);
    ac_os_close(dir_fd);
    if (rc == -ENOENT ||
        (rc == 0 && (info.st_dev != writer->table.device || info.st_ino != writer->table.inode)))
        return give_up(writer, writer->table.name, " was removed or replaced", err);
    if (ac_map_is_cut(writer->table.map) ||
        (rc == 0 && (uint64_t)info.st_size < writer->table.map->size))
        return give_up(writer, writer->table.name, " was cut", err);
    return check_file(writer, err);
}

static int is_time_to_look(const ac_cq4_writer_t *writer, uint64_t now) {
    return now - writer->looked_ns >= LOOK_NS || /* also if the clock was set back */
           writer->stats.messages >= writer->look_appends;
}

/* ---- room ---- */

static int fail_page(ac_cq4_writer_t *writer, int rc, ac_error_t *err) {
    if (check_file(writer, err) != AC_OK) return AC_E_GONE;
    /* The disk is full, as a rule; asking for blocks tells. */
    if (rc == -EFAULT) {
        rc = ac_os_reserve(writer->cycle.map->fd, writer->place.offset, WINDOW);
        if (rc == 0) rc = -EIO;
    }
    return ac_fail_os_in(err, rc, writer->queue.dir.path, writer->cycle.name,
                         "a page cannot be written");
}

/* Length, mapping and pages for a message of this length at the place. */
static int make_room(ac_cq4_writer_t *writer, size_t length, ac_error_t *err) {
    ac_cq4_cycle_t *cycle = &writer->cycle;
    uint64_t page_bytes = 0, offset = writer->place.offset;
    if (ac_cq4_index_wants(cycle, writer->place.seq))
        page_bytes = ac_cq4_index_page_bytes(cycle, writer->place.seq);
    uint64_t end = offset + AC_CQ4_HEADER_BYTES + length;
    uint64_t last_header = page_bytes ? end + ZEROS : offset;
    if (ac_map_is_cut(cycle->map) || writer->place.kind == AC_CQ4_BEYOND ||
        cycle->map->size < ac_cq4_length_for(last_header)) {
        int rc = ac_cq4_grow(cycle, last_header, err);
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

static int has_foreign(const ac_cq4_writer_t *writer) {
    return writer->place.offset < writer->header_end &&
           ac_cq4_load_header(writer->cycle.map->base + writer->place.offset) != 0;
}

/* Until another has appended, or for some microseconds. */
static void be_polite(ac_cq4_writer_t *writer) {
    if (!writer->polite || !writer->ready) return;
    uint64_t until_ns = ac_os_monotonic_ns() + POLITE_NS;
    while (!has_foreign(writer) && ac_os_monotonic_ns() < until_ns)
        ac_cpu_relax();
}

/* ---- appending ---- */

/* What has to be done before the lock is taken: AC_OK, AGAIN, or an error. */
static int64_t prepare(ac_cq4_writer_t *writer, size_t length, ac_error_t *err) {
    uint64_t now = now_ns(writer);
    if (is_time_to_look(writer, now)) {
        writer->looked_ns = now;
        int rc = look_around(writer, err);
        if (rc != AC_OK) return rc;
    }
    if (!writer->cycle.map || writer->is_ended || now < writer->begin_ns || now >= writer->end_ns) {
        int64_t rc = follow_clock(writer, err);
        if (rc != AGAIN || !writer->cycle.map) return rc;
    }
    be_polite(writer);
    return make_room(writer, length, err);
}

/* With the lock: on over what others have appended. */
static void catch_up(ac_cq4_writer_t *writer) {
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
    writer->polite = POLITE_APPENDS;
}

/* With the lock: the place is at a header that is 0, and there is room for the message; or AGAIN. */
static int find_place(ac_cq4_writer_t *writer, size_t length) {
    uint64_t now = now_ns(writer);
    if (AC_UNLIKELY(now < writer->begin_ns || now >= writer->end_ns)) return 0;
    if (AC_UNLIKELY(now - writer->looked_ns >= LOOK_NS)) writer->look_appends = 0;
    if (AC_UNLIKELY(writer->place.offset >= writer->header_end)) return 0;
    if (AC_UNLIKELY(has_foreign(writer))) {
        catch_up(writer);
        writer->is_ended = writer->place.kind == AC_CQ4_END;
        /* Nobody else has the lock: whoever began this is dead. */
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

/* With the lock: the index of the message, AGAIN, or an error; nothing was appended then. */
static int64_t append_locked(ac_cq4_writer_t *writer, const void *payload, size_t length) {
    ac_cq4_cycle_t *cycle = &writer->cycle;
    if (AC_UNLIKELY(!find_place(writer, length))) return AGAIN;
    uint64_t offset = writer->place.offset, seq = writer->place.seq;
    if (AC_UNLIKELY(seq >= writer->max_seq)) return AC_E_FULL;
    uint8_t *base = cycle->map->base, *at = base + offset;
    uint64_t end = offset + AC_CQ4_HEADER_BYTES + length;
    memcpy(at + AC_CQ4_HEADER_BYTES, payload, length);
    memset(base + end, 0, end + ZEROS <= cycle->map->size ? ZEROS : cycle->map->size - end);
    if (AC_UNLIKELY(is_cut(writer))) return AC_E_GONE;
    /* Pairs with the load of whoever reads the header. From here on the message is there. */
    ac_store_release_u32((uint32_t *)(void *)at, (uint32_t)length);
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
    if (writer->polite) writer->polite--;
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
        return give_up(writer, writer->table.name, " was cut", err);
    return fail_page(writer, -EFAULT, err);
}

/* With the gate. */
static int64_t append_gated(ac_cq4_writer_t *writer, const void *payload, size_t length,
                            ac_error_t *err) {
    int64_t rc = AGAIN;
    while (rc == AGAIN) {
        rc = prepare(writer, length, err);
        if (rc == AGAIN) continue;
        if (rc == AC_OK) rc = ac_cq4_lock_take(&writer->lock, err);
        if (rc != AC_OK) return rc;
        rc = append_locked(writer, payload, length);
        ac_cq4_lock_release(&writer->lock);
    }
    writer->is_fast = rc >= 0 && !writer->config.sync;
    return rc == AC_E_FULL || rc == AC_E_GONE ? explain(writer, rc, err) : rc;
}

static int check_open(const ac_cq4_writer_t *writer, ac_error_t *err) {
    const char *path = writer->queue.dir.path;
    if (writer->is_closed) return ac_fail(err, AC_E_CLOSED, 0, path, 0, "the writer is closed");
    if (writer->is_gone) {
        if (err) *err = writer->gone;
        return AC_E_GONE;
    }
    if (writer->poisoned)
        return ac_fail(err, AC_E_POISONED, 0, path, 0,
                       "an earlier sync failed: what is on disk is not known");
    return AC_OK;
}

static int enter(ac_cq4_writer_t *writer, ac_error_t *err) {
    if (writer->is_closed)
        return ac_fail(err, AC_E_CLOSED, 0, writer->queue.dir.path, 0, "the writer is closed");
    int rc = ac_cq4_gate_enter(&writer->lock, err);
    if (rc != AC_OK) return rc;
    rc = check_open(writer, err);
    if (rc != AC_OK) ac_cq4_gate_leave(writer->lock.gate);
    return rc;
}

/* ---- on disk ---- */

/* Of a cycle that is not open any more. */
static int sync_cycle(ac_cq4_writer_t *writer, int dir_fd, uint32_t number, ac_error_t *err) {
    char name[AC_CQ4_NAME_MAX];
    struct stat info;
    if (ac_cq4_roll_file_name(&writer->queue.roll, number, name) != AC_OK) return AC_OK;
    int fd = ac_file_open(&writer->queue.dir, dir_fd, name, O_RDONLY, &info, err);
    if (fd == AC_E_NOT_FOUND) return AC_OK; /* removed since */
    if (fd < 0) return fd;
    int rc = ac_os_sync(fd);
    ac_os_close(fd);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->queue.dir.path, name, "cannot sync") : AC_OK;
}

/* The files of the cycles that were left since the last time, and the names of new ones. */
static int sync_older(ac_cq4_writer_t *writer, ac_error_t *err) {
    uint32_t *cycles;
    size_t count;
    int64_t from = writer->first_unsynced;
    if (from >= (int64_t)writer->cycle.number && !writer->is_dir_unsynced) return AC_OK;
    int dir_fd = ac_directory_open(&writer->queue.dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_cq4_queue_cycles(&writer->queue, &cycles, &count, err);
    for (size_t i = 0; rc == AC_OK && i < count; i++)
        if (cycles[i] >= from && cycles[i] < writer->cycle.number)
            rc = sync_cycle(writer, dir_fd, cycles[i], err);
    free(cycles);
    if (rc == AC_OK && writer->is_dir_unsynced) {
        rc = ac_os_sync_dir(dir_fd);
        if (rc < 0) rc = ac_fail_os(err, rc, writer->queue.dir.path, "cannot sync the directory");
    }
    ac_os_close(dir_fd);
    return rc;
}

/* A failed sync is not tried again: the system may have dropped what it could not write. */
static int sync_all(ac_cq4_writer_t *writer, ac_error_t *err) {
    if (!writer->cycle.map) return AC_OK;
    int rc = sync_older(writer, err);
    if (rc == AC_OK) {
        rc = ac_os_sync(writer->cycle.map->fd);
        if (rc < 0)
            rc = ac_fail_os_in(err, rc, writer->queue.dir.path, writer->cycle.name, "cannot sync");
    }
    if (rc == AC_OK) {
        writer->first_unsynced = writer->cycle.number;
        writer->is_dir_unsynced = 0;
        return AC_OK;
    }
    writer->poisoned = 1;
    writer->is_fast = 0;
    return rc;
}

int ac_cq4_writer_flush(ac_cq4_writer_t *writer, ac_error_t *err) {
    int rc = enter(writer, err);
    if (rc != AC_OK) return rc;
    rc = look_around(writer, err);
    if (rc == AC_OK) rc = sync_all(writer, err);
    if (rc == AC_OK) {
        const ac_map_t *map = writer->table.map;
        int synced = ac_os_map_sync(map->base, -1, 0, map->size);
        if (synced < 0)
            rc = ac_fail_os_in(err, synced, writer->queue.dir.path, writer->table.name,
                               "cannot sync");
    }
    ac_cq4_gate_leave(writer->lock.gate);
    return rc;
}

/* ---- the public append ---- */

/* Java writes an empty document as one byte of padding: a record has no length of 0. */
static const uint8_t empty[1] = {0x8F};

int64_t ac_cq4_writer_append(ac_cq4_writer_t *writer, const void *payload, size_t length,
                             ac_error_t *err) {
    ac_error_t unused;
    if (!err) err = &unused;
    if (length > AC_CQ4_PAYLOAD_MAX)
        return ac_fail(err, AC_E_TOO_LARGE, 0, writer->queue.dir.path, 0,
                       "%zu bytes; Java can read no more than %u", length, AC_CQ4_PAYLOAD_MAX);
    int64_t index = enter(writer, err);
    if (index != AC_OK) return index;
    index = length ? append_gated(writer, payload, length, err)
                   : append_gated(writer, empty, sizeof empty, err);
    int rc = AC_OK;
    if (index >= 0 && writer->config.sync) rc = sync_all(writer, err);
    ac_cq4_gate_leave(writer->lock.gate);
    if (rc == AC_OK) return index;
    err->code = AC_E_NOT_DURABLE;
    err->seq = (uint64_t)index;
    return AC_E_NOT_DURABLE;
}

int64_t ac_cq4_writer_try_append(ac_cq4_writer_t *writer, const void *payload, size_t length) {
    ac_cq4_lock_t *lock = &writer->lock;
    int64_t rc = AC_E_SLOW;
    if (AC_UNLIKELY(length - 1 >= AC_CQ4_PAYLOAD_MAX || ac_cq4_lock_is_forked(lock)))
        return AC_E_SLOW;
    if (AC_UNLIKELY(!ac_cq4_gate_try(lock->gate))) return AC_E_SLOW;
    if (AC_LIKELY(writer->is_fast && writer->stats.messages < writer->look_appends &&
                  (!writer->polite || has_foreign(writer)) && !ac_cq4_lock_is_append_locked(lock) &&
                  ac_cq4_lock_try(lock))) {
        rc = append_locked(writer, payload, length);
        ac_cq4_lock_release(lock);
    }
    ac_cq4_gate_leave(lock->gate);
    return AC_LIKELY(rc >= 0) ? rc : AC_E_SLOW;
}

/* ---- opening ---- */

void ac_cq4_writer_defaults(ac_cq4_writer_config_t *config) {
    memset(config, 0, sizeof *config);
    config->mode = 0600;
    config->lock_timeout_ns = AC_CQ4_LOCK_TIMEOUT_NS;
}

static int wanted_roll(const char *path, const ac_cq4_writer_config_t *config, ac_cq4_roll_t *out,
                       ac_error_t *err) {
    const char *name = config->roll_cycle ? config->roll_cycle : "FAST_DAILY";
    const ac_cq4_known_roll_t *known = ac_cq4_roll_by_name(name);
    if (!known)
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0,
                       "there is no roll cycle '%.40s', or it is not supported", name);
    *out = (ac_cq4_roll_t){.length_ms = known->length_ms, .epoch_ms = config->epoch_ms};
    snprintf(out->format, sizeof out->format, "%s", known->format);
    const char *problem = ac_cq4_roll_problem(out);
    return problem ? ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "%s", problem) : AC_OK;
}

/* A queue of our own format, or anything else that is not meant to become a Java queue. */
static int refuse_other(void *context, const char *name) {
    (void)context;
    return strcmp(name, "control.meta") == 0;
}

static int create_queue(const char *path, const ac_cq4_writer_config_t *config, ac_error_t *err) {
    ac_cq4_roll_t roll;
    ac_directory_t dir;
    int rc = wanted_roll(path, config, &roll, err);
    if (rc != AC_OK) return rc;
    rc = ac_directory_init(&dir, path, config->mode, 1, err);
    if (rc != AC_OK) return rc;
    int dir_fd = ac_directory_open(&dir, err);
    if (dir_fd < 0) return dir_fd;
    rc = ac_os_list(dir_fd, refuse_other, NULL);
    if (rc == 1)
        rc = ac_fail(err, AC_E_NOT_A_QUEUE, 0, path, 0,
                     "is a queue already, of another format than Java's");
    else
        rc = rc < 0 ? ac_fail_os(err, rc, path, "cannot list")
                    : ac_cq4_table_create(&dir, dir_fd, &roll, err);
    ac_os_close(dir_fd);
    return rc;
}

/* Opens the queue; one that somebody is creating just now is waited for. */
static int open_queue(const char *path, const ac_cq4_writer_config_t *config, ac_cq4_queue_t *out,
                      ac_error_t *err) {
    uint64_t deadline_ns = ac_os_monotonic_ns() + config->lock_timeout_ns;
    for (;;) {
        int rc = ac_cq4_is_queue(path);
        if (rc < 0) return ac_fail_os(err, rc, path, "cannot list");
        if (rc == 0) rc = create_queue(path, config, err);
        if (rc < 0) return rc;
        rc = ac_cq4_queue_open(path, out, err);
        if (rc != AC_E_NOT_FOUND || err->sys_errno != EAGAIN || ac_os_monotonic_ns() >= deadline_ns)
            return rc;
        ac_os_sleep_ns(WAIT_NS);
    }
}

static int check_settings(const ac_cq4_writer_t *writer, ac_error_t *err) {
    const ac_cq4_roll_t *roll = &writer->queue.roll;
    const char *path = writer->queue.dir.path, *name = writer->config.roll_cycle;
    const ac_cq4_known_roll_t *is = ac_cq4_roll_by_format(roll->format);
    if (writer->queue.dialect != AC_CQ4_DIALECT_V5)
        return ac_fail(err, AC_E_UNSUPPORTED, 0, path, 0,
                       "was written by a version before 5.16.9: it can be read, but not appended "
                       "to");
    if (name && (!is || strcmp(is->name, name) != 0))
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "the queue's roll cycle is %s, not %.40s",
                       is ? is->name : roll->format, name);
    if (writer->config.epoch_given && writer->config.epoch_ms != roll->epoch_ms)
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "the queue's epoch is %lld ms, not %lld",
                       (long long)roll->epoch_ms, (long long)writer->config.epoch_ms);
    if (!roll->shift)
        return ac_fail(err, AC_E_UNSUPPORTED, 0, path, 0,
                       "its roll cycle is not one of Java's own, and it has no data file yet that "
                       "would tell its index");
    return AC_OK;
}

/* A queue has all of them, unless its creator was killed. */
static int find_keys(ac_cq4_writer_t *writer, ac_error_t *err) {
    const ac_directory_t *dir = &writer->queue.dir;
    const ac_cq4_table_t *table = &writer->table;
    uint64_t *lock;
    int rc =
        ac_cq4_table_add(table, dir, AC_CQ4_KEY_HIGHEST, AC_CQ4_UNLOCKED, &writer->highest, err);
    if (rc == AC_OK)
        rc = ac_cq4_table_add(table, dir, AC_CQ4_KEY_LOWEST, INT32_MAX, &writer->lowest, err);
    if (rc == AC_OK)
        rc = ac_cq4_table_add(table, dir, AC_CQ4_KEY_MOD_COUNT, 0, &writer->mod_count, err);
    if (rc == AC_OK)
        rc = ac_cq4_table_add(table, dir, AC_CQ4_KEY_WRITE_LOCK, AC_CQ4_UNLOCKED, &lock, err);
    if (rc == AC_OK) ac_cq4_table_find(table, AC_CQ4_KEY_ENDS_UP_TO, &writer->ends_up_to);
    return rc;
}

/* With the gate: the lock of a dead process is freed, what is missing since is made good. */
static int repair(ac_cq4_writer_t *writer, int dir_fd, ac_error_t *err) {
    ac_cq4_ends_t ends;
    int64_t now = current_cycle(writer, err);
    if (now < 0) return (int)now;
    int rc = find_ends(writer, (uint32_t)now, &ends, err);
    if (rc != AC_OK) return rc;
    /* The newest file is left open: others may be appending to it. */
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

/* Appending to a queue of unaligned records is refused before anything is done to it. */
static int check_newest(ac_cq4_writer_t *writer, ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    uint32_t *cycles;
    size_t count;
    int rc = ac_cq4_queue_cycles(&writer->queue, &cycles, &count, err);
    if (rc == AC_OK && count > 0) {
        rc = ac_cq4_queue_open_cycle(&writer->queue, cycles[count - 1], &cycle, err);
        if (rc == AC_OK) {
            rc = ac_cq4_grow_check(&cycle, err);
            ac_cq4_cycle_close(&cycle);
        } else if (rc == AC_E_NOT_FOUND) {
            rc = AC_OK; /* not completed yet */
        }
    }
    free(cycles);
    return rc;
}

static int open_parts(ac_cq4_writer_t *writer, int dir_fd, ac_error_t *err) {
    const char *path = writer->queue.dir.path;
    int rc = check_settings(writer, err);
    if (rc == AC_OK) rc = check_newest(writer, err);
    if (rc == AC_OK)
        rc = ac_cq4_table_open(&writer->queue.dir, dir_fd, AC_CQ4_METADATA, 1, &writer->table, err);
    if (rc != AC_OK) return rc;
    writer->queue.dir.mode = writer->table.mode;
    rc = find_keys(writer, err);
    if (rc == AC_OK)
        rc = ac_cq4_lock_open(&writer->lock, &writer->table, path, writer->config.lock_timeout_ns,
                              err);
    if (rc == AC_OK) rc = ac_cq4_gate_enter(&writer->lock, err);
    if (rc != AC_OK) return rc;
    ac_cq4_temporary_clean(dir_fd);
    rc = repair(writer, dir_fd, err);
    ac_cq4_gate_leave(writer->lock.gate);
    return rc;
}

int ac_cq4_writer_open(const char *path, const ac_cq4_writer_config_t *config,
                       ac_cq4_writer_t **out, ac_error_t *err) {
    ac_error_t unused;
    if (!err) err = &unused;
    *out = NULL;
    ac_cq4_writer_t *writer = ac_os_alloc(sizeof *writer);
    if (!writer) return ac_fail_os(err, -ENOMEM, path, "cannot allocate");
    if (config)
        writer->config = *config;
    else
        ac_cq4_writer_defaults(&writer->config);
    writer->first_unsynced = -1;
    writer->stats.last_index = UINT64_MAX;
    int rc = open_queue(path, &writer->config, &writer->queue, err);
    int dir_fd = rc == AC_OK ? ac_directory_open(&writer->queue.dir, err) : rc;
    if (dir_fd >= 0) {
        rc = open_parts(writer, dir_fd, err);
        ac_os_close(dir_fd);
    } else {
        rc = dir_fd;
    }
    writer->config.roll_cycle = NULL; /* the caller's */
    if (rc == AC_OK)
        *out = writer;
    else
        ac_cq4_writer_free(writer);
    return rc;
}

void ac_cq4_writer_close(ac_cq4_writer_t *writer) {
    if (!writer || writer->is_closed) return;
    writer->is_closed = 1;
    writer->is_fast = 0;
    ac_cq4_cycle_close(&writer->cycle);
    ac_cq4_lock_close(&writer->lock);
    ac_cq4_table_close(&writer->table);
    ac_cq4_queue_close(&writer->queue);
}

void ac_cq4_writer_free(ac_cq4_writer_t *writer) {
    ac_cq4_writer_close(writer);
    free(writer);
}

/* ---- what others ask ---- */

void ac_cq4_writer_position(ac_cq4_writer_t *writer, uint64_t *cycle, uint64_t *offset) {
    int is_inside = !writer->is_closed && ac_cq4_gate_enter(&writer->lock, NULL) == AC_OK;
    int64_t now = ac_cq4_roll_cycle_at(&writer->queue.roll, (int64_t)(now_ns(writer) / 1000000));
    int is_placed = is_inside && writer->cycle.map;
    *cycle = is_placed ? writer->cycle.number : now < 0 ? 0 : (uint64_t)now;
    *offset = is_placed ? writer->place.offset : 0;
    if (is_inside) ac_cq4_gate_leave(writer->lock.gate);
}

void ac_cq4_writer_stats(ac_cq4_writer_t *writer, ac_cq4_writer_stats_t *out) {
    const ac_cq4_writer_stats_t *stats = &writer->stats;
    *out = (ac_cq4_writer_stats_t){
        .messages = ac_load_relaxed_u64(&stats->messages),
        .payload_bytes = ac_load_relaxed_u64(&stats->payload_bytes),
        .last_index = ac_load_relaxed_u64(&stats->last_index),
        .cycles_created = ac_load_relaxed_u64(&stats->cycles_created),
        .cycles_entered = ac_load_relaxed_u64(&stats->cycles_entered),
        .ends_written = ac_load_relaxed_u64(&stats->ends_written),
        .pages_added = ac_load_relaxed_u64(&stats->pages_added),
        .lock_waits = ac_load_relaxed_u64(&writer->lock.waits),
        .locks_freed = ac_load_relaxed_u64(&writer->lock.freed),
        .locks_stolen = ac_load_relaxed_u64(&writer->lock.stolen),
    };
}

const ac_cq4_queue_t *ac_cq4_writer_queue(const ac_cq4_writer_t *writer) {
    return &writer->queue;
}
