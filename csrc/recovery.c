/* Opening for writing: the clean case, and the repair of what the walk has found. */
#include "recovery.h"

#include "crc32.h"
#include "error.h"
#include "log.h"
#include "os.h"
#include "position.h"
#include "reader.h"
#include "record.h"
#include "recovery_plan.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ac_durable_read(const ac_directory_t *dir, int dir_fd, ac_durable_t *out, ac_error_t *err) {
    struct stat info;
    memset(out, 0, sizeof *out);
    int fd = ac_file_open(dir, dir_fd, "index.meta", O_RDONLY, &info, err);
    if (fd == AC_E_NOT_FOUND) return AC_OK;
    if (fd < 0) return fd;
    int got = ac_os_read_at(fd, out, sizeof *out, 0);
    ac_os_close(fd);
    if (got != (int)sizeof *out) memset(out, 0, sizeof *out);
    return got < 0 ? ac_fail_os_in(err, got, dir->path, "index.meta", "cannot read") : AC_OK;
}

void ac_durable_believe(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
                        ac_durable_t *out) {
    uint64_t home;
    if (ac_durable_read(dir, dir_fd, out, NULL) == AC_OK &&
        ac_control_home(dir, dir_fd, &home, NULL) == AC_OK &&
        (ac_control_is_clean(control) || !ac_control_is_copy(control, home)))
        return;
    memset(out, 0, sizeof *out);
}

static uint32_t clean_checksum(const ac_clean_t *clean) {
    ac_clean_t copy = *clean;
    copy.checksum = 0;
    return ac_crc32(&copy, sizeof copy);
}

int ac_clean_valid(const ac_clean_t *clean) {
    return clean->epoch != 0 && clean->checksum == clean_checksum(clean);
}

void ac_clean_store(ac_control_t *control, const ac_clean_t *clean) {
    ac_clean_t copy = *clean;
    copy.checksum = clean_checksum(clean);
    /* The epoch last, with release: pairs with promise_of, for which a closed writer's promises are void. */
    uint8_t *mark = (uint8_t *)control + offsetof(ac_control_t, clean);
    memcpy(mark + sizeof copy.epoch, (uint8_t *)&copy + sizeof copy.epoch,
           sizeof copy - sizeof copy.epoch);
    ac_store_release_u64((void *)mark, copy.epoch);
}

int ac_control_is_clean(const ac_control_t *control) {
    ac_clean_t clean;
    memcpy(&clean, &control->clean, sizeof clean);
    return ac_clean_valid(&clean) && clean.epoch == ac_load_relaxed_u64(&control->writer_epoch);
}

static int open_writable(const ac_plan_t *plan, uint32_t id, ac_map_t **map, ac_error_t *err) {
    return ac_segment_open(plan->dir, plan->dir_fd, id, plan->segment_size, 1, map, err);
}

static int sync_map(const ac_plan_t *plan, ac_map_t *map, ac_error_t *err) {
    int rc = ac_segment_check_readable(plan->dir, map, err);
    if (rc != AC_OK) return rc;
    rc = ac_os_map_sync(map->base, map->fd, 0, map->size);
    char name[AC_NAME_MAX];
    ac_segment_name(name, map->segment, ".q");
    return rc < 0 ? ac_fail_os_in(err, rc, plan->dir->path, name, "cannot sync") : AC_OK;
}

/* After a failed sync, the page cache has what the disk does not, and counts as clean: another sync would
 * succeed and write nothing. A store makes a page dirty, even with the value it already has. */
static void make_dirty(ac_map_t *map, uint64_t from, uint64_t to) {
    uint64_t page = ac_os_page_size();
    if (from < to) ac_os_populate(map->base, from, to - from, 1); /* all faults in one call */
    for (uint64_t at = from & ~(page - 1); at < to; at += page) {
        uint8_t *byte = map->base + at;
        __atomic_store_n(byte, __atomic_load_n(byte, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    }
}

/* Its blocks may not count as written (see ac_os_has_unwritten), and nothing done to this file changes
 * that: its records go into a new file, which takes its name. Readers that have the old one mapped find it
 * sealed, and go on after it. */
static int rewrite_segment(const ac_plan_t *plan, ac_map_t **map, uint64_t end, uint64_t sealed_end,
                           ac_error_t *err) {
    char name[AC_NAME_MAX], temporary[AC_NAME_MAX];
    ac_segment_name(name, (*map)->segment, ".q");
    ac_segment_name(temporary, (*map)->segment, ".q.tmp");
    int fd = ac_file_create(plan->dir_fd, temporary, plan->dir->mode);
    int rc = fd < 0 ? fd : ac_os_allocate(fd, plan->segment_size);
    if (rc == 0) rc = ac_os_write_at(fd, (*map)->base, end, 0);
    if (rc == 0) rc = ac_os_sync(fd);
    /* Before it loses its name: after a kill in between, no process would seal it for those who read it. */
    if (rc == 0) ac_segment_seal(*map, sealed_end);
    if (rc == 0) rc = ac_os_rename(plan->dir_fd, temporary, name);
    if (rc == 0) rc = ac_os_sync_dir(plan->dir_fd);
    ac_os_close(fd);
    if (rc < 0) {
        ac_os_unlink(plan->dir_fd, temporary);
        return ac_fail_os_in(err, rc, plan->dir->path, name, "cannot write again");
    }
    uint32_t segment = (*map)->segment;
    ac_map_release(*map);
    *map = NULL;
    return open_writable(plan, segment, map, err);
}

/* Syncs a segment of which [from, end) was made dirty, and makes sure that it really is on disk. 1 = it is,
 * in another file. */
static int make_durable(const ac_plan_t *plan, ac_map_t **map, uint64_t from, uint64_t end,
                        uint64_t sealed_end, ac_error_t *err) {
    int rc = sync_map(plan, *map, err);
    if (rc != AC_OK || from >= end) return rc;
    int unwritten = ac_os_has_unwritten((*map)->fd, from, end);
    if (unwritten == 0) return AC_OK;
    if (unwritten < 0) return ac_fail_os(err, unwritten, plan->dir->path, "cannot ask for blocks");
    rc = rewrite_segment(plan, map, end, sealed_end, err);
    return rc == AC_OK ? 1 : rc;
}

/* A segment after which the queue continues: on disk, and then sealed there. */
static int seal(const ac_plan_t *plan, ac_map_t *map, uint64_t end, ac_error_t *err) {
    int rc = sync_map(plan, map, err);
    if (rc != AC_OK) return rc;
    ac_segment_seal(map, end);
    return sync_map(plan, map, err);
}

static int finish(const ac_plan_t *plan, const ac_finish_t *task, ac_error_t *err) {
    ac_map_t *map;
    int rc = open_writable(plan, task->segment, &map, err);
    if (rc != AC_OK) return rc;
    if (task->durable_end < map->size || !ac_segment_sealed(map)) {
        uint64_t end = task->sealed_end ? task->sealed_end : map->size;
        make_dirty(map, task->durable_end, end);
        rc = make_durable(plan, &map, task->durable_end, end, task->sealed_end, err);
        if (rc >= 0) rc = seal(plan, map, task->sealed_end, err);
    }
    ac_map_release(map);
    return rc;
}

/* ---- what is no longer part of the queue ---- */

static int open_recovered(const ac_plan_t *plan, ac_error_t *err) {
    return ac_directory_sub(plan->dir, plan->dir_fd, "recovered", 1, err);
}

enum { COPIES_MAX = 1000 };

/* A separate file each time: an interrupted recovery may have zeroed part of what it had saved. */
static int create_copy(const ac_plan_t *plan, int dir_fd, char name[96], ac_error_t *err) {
    struct stat info;
    int fd = AC_E_SYSTEM;
    for (int i = 0; i < COPIES_MAX; i++) {
        ac_error_t local;
        int length = snprintf(name, 96, "%09u-%llu-%u", plan->end_segment,
                              (unsigned long long)plan->end_offset, plan->epoch);
        if (i > 0) length += snprintf(name + length, 96 - (size_t)length, "-%d", i);
        snprintf(name + length, 96 - (size_t)length, ".bin");
        fd = ac_file_open(plan->dir, dir_fd, name, O_RDWR | O_CREAT | O_EXCL, &info, &local);
        if (fd < 0 && err) *err = local;
        if (fd >= 0 || local.sys_errno != EEXIST) break;
    }
    return fd;
}

/* Keeps a copy of [end, tail_end) as recovered/SEGMENT-OFFSET-EPOCH.bin. */
static int set_tail_aside(const ac_plan_t *plan, const ac_map_t *map, ac_error_t *err) {
    char name[96], path[1200];
    uint64_t length = plan->tail_end - plan->end_offset;
    int dir_fd = open_recovered(plan, err);
    if (dir_fd < 0) return dir_fd;
    int fd = create_copy(plan, dir_fd, name, err);
    int rc = fd;
    if (fd >= 0) {
        rc = ac_os_write_at(fd, map->base + plan->end_offset, length, 0);
        if (rc == 0) rc = ac_os_sync(fd);
        if (rc == 0) rc = ac_os_sync_dir(dir_fd);
        ac_os_close(fd);
        snprintf(path, sizeof path, "%s/recovered", plan->dir->path);
        if (rc < 0) {
            ac_os_unlink(dir_fd, name);
            rc = ac_fail_os_in(err, rc, path, name, "cannot set aside");
        }
    }
    ac_os_close(dir_fd);
    if (rc >= 0) plan->report->bytes_set_aside += length;
    return rc < 0 ? rc : AC_OK;
}

/* Prepared in advance and never used. Not if the first record is missing but others follow; nor if it
 * cannot be read to the end. */
static int is_unused(const ac_plan_t *plan, const ac_map_t *map) {
    uint64_t tail_end;
    if (map->size < AC_SEGMENT_DATA + 4) return 1;
    if (ac_record_load_commit(map->base + AC_SEGMENT_DATA)) return 0;
    return ac_plan_find_tail_end(plan, map, AC_SEGMENT_DATA, &tail_end, NULL) == AC_OK &&
           tail_end == AC_SEGMENT_DATA;
}

static int set_segment_aside(const ac_plan_t *plan, uint32_t id, ac_error_t *err) {
    char name[AC_NAME_MAX], aside[96], index[AC_NAME_MAX];
    ac_map_t *map = NULL;
    ac_segment_name(name, id, ".q");
    ac_segment_name(index, id, ".idx");
    int rc = ac_segment_open(plan->dir, plan->dir_fd, id, plan->segment_size, 0, &map, NULL);
    int unused = rc == AC_OK && is_unused(plan, map);
    int readable = rc == AC_OK ? ac_segment_check_readable(plan->dir, map, err) : AC_OK;
    ac_map_release(map);
    if (readable != AC_OK) return readable;
    ac_os_unlink(plan->dir_fd, index);
    if (unused) {
        rc = ac_os_unlink(plan->dir_fd, name);
        if (rc == 0) rc = ac_os_sync_dir(plan->dir_fd);
        return rc < 0 ? ac_fail_os_in(err, rc, plan->dir->path, name, "cannot remove") : AC_OK;
    }
    int dir_fd = open_recovered(plan, err);
    if (dir_fd < 0) return dir_fd;
    snprintf(aside, sizeof aside, "%09u-%u.q", id, plan->epoch);
    rc = ac_os_move(plan->dir_fd, name, dir_fd, aside);
    if (rc == 0) rc = ac_os_sync_dir(dir_fd);
    if (rc == 0) rc = ac_os_sync_dir(plan->dir_fd);
    ac_os_close(dir_fd);
    if (rc < 0) return ac_fail_os_in(err, rc, plan->dir->path, name, "cannot set aside");
    plan->report->segments_set_aside++;
    return AC_OK;
}

/* The last one first, and each on disk before the next: wherever this is interrupted, there is no gap
 * before a segment. Readers that come before the next writer would take a gap for the work of retention. */
static int set_segments_aside(const ac_plan_t *plan, ac_error_t *err) {
    int rc = AC_OK;
    for (size_t i = plan->count; rc == AC_OK && i-- > plan->used;)
        rc = set_segment_aside(plan, plan->ids[i], err);
    return rc;
}

/* Zeroes the end segment after the end, and makes that durable. */
static int clear_tail(const ac_plan_t *plan, ac_map_t *map, ac_error_t *err) {
    char name[AC_NAME_MAX];
    if (plan->end_offset >= map->size) return AC_OK;
    if (plan->tail_end > plan->end_offset) {
        int rc = set_tail_aside(plan, map, err);
        if (rc != AC_OK) return rc;
    }
    /* A sealed segment has an index, which covers the records that are removed now. */
    ac_segment_name(name, map->segment, ".idx");
    int unlinked = ac_os_unlink(plan->dir_fd, name);
    if (unlinked == 0) unlinked = ac_os_sync_dir(plan->dir_fd);
    if (unlinked < 0 && unlinked != -ENOENT)
        return ac_fail_os_in(err, unlinked, plan->dir->path, name, "cannot remove");
    uint64_t inside = ac_os_page_size() - 1;
    uint64_t page_end = (plan->end_offset + inside) & ~inside;
    if (page_end > map->size) page_end = map->size;
    /* The word a reader looks at first: from now on nothing after it can be reached. */
    if (map->size - plan->end_offset >= AC_HEADER_SIZE)
        ac_store_release_u32(ac_record_commit_word(map->base + plan->end_offset), 0);
    memset(map->base + plan->end_offset, 0, page_end - plan->end_offset);
    int rc = page_end < map->size ? ac_os_zero_range(map->fd, page_end, map->size - page_end) : 0;
    if (rc == 0) rc = ac_os_sync(map->fd);
    ac_segment_name(name, map->segment, ".q");
    return rc < 0 ? ac_fail_os_in(err, rc, plan->dir->path, name, "cannot clear the tail") : AC_OK;
}

static int repair_end(const ac_plan_t *plan, ac_end_t *end, ac_error_t *err) {
    /* Before the tail is synced, so that it is written once. */
    make_dirty(end->map, plan->end_durable, plan->end_offset);
    int rc = clear_tail(plan, end->map, err);
    if (rc == AC_OK)
        rc = make_durable(plan, &end->map, plan->end_durable, plan->end_offset, plan->records_end,
                          err);
    if (rc < 0) return rc;
    end->torn = rc; /* in the old file readers are past the end */
    if (ac_segment_sealed(end->map)) ac_segment_seal(end->map, plan->records_end);
    return sync_map(plan, end->map, err);
}

/* ---- readers ---- */

/* A reader that had committed past the end must get PositionLost. So the places after the end are not
 * reused: the queue continues after the last segment that a position names. The segments up to there are
 * empty and sealed, so that other readers come through. */
static int keep_lost_positions(const ac_plan_t *plan, ac_end_t *end, ac_error_t *err) {
    int rc = seal(plan, end->map, plan->records_end, err);
    end->next_id = end->map->segment + 1;
    for (; rc == AC_OK && end->next_id <= plan->lost_segment; end->next_id++)
        rc =
            ac_segment_create_empty(plan->dir, plan->dir_fd, end->next_id, plan->segment_size, err);
    return rc;
}

/* In a copy nothing is lost: the reader committed in the original what was not copied. */
static int answer_lost_positions(const ac_plan_t *plan, ac_end_t *end, ac_error_t *err) {
    if (!plan->lost) return AC_OK;
    if (!plan->options->is_copy) return keep_lost_positions(plan, end, err);
    return ac_position_pull_back(plan->dir, plan->dir_fd, plan->end_segment, plan->end_offset, err);
}

/* ---- all of it ---- */

static int repair(const ac_plan_t *plan, ac_end_t *end, ac_error_t *err) {
    int rc = AC_OK;
    for (size_t i = 0; rc == AC_OK && i < plan->finish_count; i++)
        rc = finish(plan, &plan->finish[i], err);
    for (size_t i = 0; i < plan->index_count; i++) /* hints */
        ac_index_save(&plan->indexes[i], plan->dir, plan->dir_fd, plan->segment_size, NULL);
    if (rc == AC_OK) rc = set_segments_aside(plan, err);
    if (rc == AC_OK) rc = open_writable(plan, plan->end_segment, &end->map, err);
    if (rc != AC_OK) return rc;
    end->offset = plan->end_offset;
    end->next_seq = plan->next_seq;
    end->last_timestamp_ns = plan->last_timestamp_ns;
    end->last_record = plan->last_record;
    rc = repair_end(plan, end, err);
    return rc == AC_OK ? answer_lost_positions(plan, end, err) : rc;
}

/* A queue may have been closed while it was copied: then the marker is newer than what was copied before,
 * and a segment that was being written at that time is not sealed. */
static int was_copied_at_rest(const ac_plan_t *plan) {
    if (!plan->options->is_copy) return 1;
    for (size_t i = 0; i + 1 < plan->count; i++)
        if (ac_plan_is_sealed(plan, plan->ids[i], NULL) != 1) return 0;
    return 1;
}

static int believe_clean(const ac_plan_t *plan, const ac_control_t *control, ac_end_t *end) {
    ac_clean_t clean;
    ac_map_t *map;
    ac_message_t message;
    const char *why;
    if (!ac_control_is_clean(control) || !was_copied_at_rest(plan)) return 0;
    memcpy(&clean, &control->clean, sizeof clean);
    if (clean.segment != plan->durable.segment || clean.offset != plan->durable.offset) return 0;
    if (plan->ids[plan->count - 1] != clean.segment || clean.offset > plan->segment_size ||
        clean.offset < AC_SEGMENT_DATA || clean.offset % AC_ALIGNMENT != 0 ||
        clean.last_record % AC_ALIGNMENT != 0)
        return 0;
    if (open_writable(plan, clean.segment, &map, NULL) != AC_OK) return 0;
    int fits = map->size == plan->segment_size &&
               ac_record_inspect(map->base, map->size, clean.offset, map->segment, AC_CHECK_HEADER,
                                 &message, &why) == AC_RECORD_NONE;
    if (fits && clean.offset > AC_SEGMENT_DATA)
        fits = ac_record_inspect(map->base, map->size, clean.last_record, map->segment,
                                 AC_CHECK_PAYLOAD, &message, &why) == AC_RECORD_GOOD &&
               clean.last_record + ac_record_size(message.length) == clean.offset &&
               message.seq + 1 == clean.next_seq;
    if (!fits || ac_map_is_cut(map)) {
        ac_map_release(map);
        return 0;
    }
    *end = (ac_end_t){.map = map,
                      .offset = clean.offset,
                      .next_seq = clean.next_seq,
                      .last_timestamp_ns = clean.last_timestamp_ns,
                      .last_record = clean.last_record};
    return 1;
}

static void raise_durable(ac_plan_t *plan, uint64_t segment, uint64_t offset) {
    if (segment < plan->durable.segment ||
        (segment == plan->durable.segment && offset <= plan->durable.offset))
        return;
    plan->durable = (ac_durable_t){segment, offset};
}

/* index.meta has no checksum, and may have been lost or damaged. Two other things prove that messages were
 * durable: the marker of the last writer that closed the queue, and the seek index of a segment, which is
 * published when all of the segment is durable. */
static void find_durable(ac_plan_t *plan, const ac_control_t *control) {
    ac_clean_t clean;
    memcpy(&clean, &control->clean, sizeof clean);
    plan->is_ours = ac_load_relaxed_u64(&control->queue_id) != 0;
    plan->was_closed = ac_control_is_clean(control);
    if (!plan->is_ours || plan->options->is_copy) return;
    if (ac_clean_valid(&clean)) raise_durable(plan, clean.segment, clean.offset);
    for (size_t i = plan->count; i-- > 0;) {
        char name[AC_NAME_MAX];
        struct stat info;
        ac_segment_name(name, plan->ids[i], ".idx");
        if (ac_os_stat_at(plan->dir_fd, name, &info) != 0) continue;
        raise_durable(plan, plan->ids[i], plan->segment_size);
        break;
    }
}

/* Another program publishes a segment and then writes its header. If it died in between, the segment is
 * empty. */
static void leave_out_headerless(ac_plan_t *plan, const ac_control_t *control) {
    if (plan->count == 0 || !ac_segment_awaited(plan->dir, plan->dir_fd, plan->ids[plan->count - 1],
                                                control, &plan->durable))
        return;
    plan->has_headerless = 1;
    plan->count--;
}

/* Only another program's records can have got this far. */
static int check_room(const ac_plan_t *plan, uint64_t next_seq, ac_error_t *err) {
    if (next_seq <= INT64_MAX) return AC_OK;
    return ac_fail(err, AC_E_CORRUPT, 0, plan->dir->path, 0,
                   "the largest seq leaves no room for more");
}

/* The walk only reads; what follows changes the queue. */
static int walk_and_repair(ac_plan_t *plan, int is_clean, ac_end_t *end, ac_error_t *err) {
    int rc = is_clean ? AC_OK : ac_plan_make(plan, err);
    if (rc == AC_OK) rc = check_room(plan, plan->next_seq, err);
    if (rc == AC_OK && plan->has_headerless)
        rc = set_segment_aside(plan, plan->ids[plan->count], err);
    if (rc == AC_OK && !is_clean) rc = repair(plan, end, err);
    ac_plan_free(plan);
    return rc;
}

/* What retention removed counts, too. */
static int take_up_counters(ac_control_t *control, const ac_plan_t *plan, ac_end_t *end,
                            ac_error_t *err) {
    uint64_t known_epoch = ac_load_relaxed_u64(&control->writer_epoch);
    if (plan->epoch > (uint32_t)known_epoch) /* otherwise it would be reused */
        ac_store_relaxed_u64(&control->writer_epoch,
                             known_epoch - (uint32_t)known_epoch + plan->epoch);
    uint64_t removed_seq, removed_ns;
    ac_control_removed(control, &removed_seq, &removed_ns);
    if (end->next_seq < removed_seq) end->next_seq = removed_seq;
    if (end->last_timestamp_ns < removed_ns) end->last_timestamp_ns = removed_ns;
    /* The seqs of a writer that closed are not given again, even if its messages are damaged now. */
    ac_clean_t clean;
    memcpy(&clean, &control->clean, sizeof clean);
    if (plan->is_ours && !plan->options->is_copy && ac_clean_valid(&clean) &&
        clean.next_seq > end->next_seq)
        end->next_seq = clean.next_seq;
    return check_room(plan, end->next_seq, err);
}

static int recover(ac_plan_t *plan, ac_control_t *control, ac_end_t *end, ac_error_t *err) {
    ac_recovery_t *report = plan->report;
    int rc = ac_segment_list(plan->dir, plan->dir_fd, &plan->ids, &plan->count, err);
    if (rc == AC_OK) rc = ac_durable_read(plan->dir, plan->dir_fd, &plan->durable, err);
    if (rc != AC_OK) return rc;
    leave_out_headerless(plan, control);
    report->durable_segment = plan->durable.segment;
    report->durable_offset = plan->durable.offset;
    report->clean =
        plan->count == 0 || (!plan->options->verify && believe_clean(plan, control, end));
    find_durable(plan, control);
    rc = walk_and_repair(plan, report->clean, end, err);
    if (rc == AC_OK) rc = take_up_counters(control, plan, end, err);
    if (rc != AC_OK || !end->map) return rc;
    end->sealed = ac_segment_sealed(end->map);
    if (end->next_id == 0) end->next_id = end->map->segment + 1;
    report->end_segment = end->map->segment;
    report->end_offset = end->offset;
    end->torn |= plan->torn || report->segments_set_aside > 0;
    return AC_OK;
}

int ac_recover(const ac_directory_t *dir, int dir_fd, ac_control_t *control, uint64_t segment_size,
               const ac_recovery_options_t *options, ac_end_t *end, ac_recovery_t *report,
               ac_error_t *err) {
    memset(end, 0, sizeof *end);
    memset(report, 0, sizeof *report);
    ac_plan_t plan = {.dir = dir,
                      .dir_fd = dir_fd,
                      .segment_size = segment_size,
                      .options = options,
                      .epoch = (uint32_t)ac_load_relaxed_u64(&control->writer_epoch),
                      .report = report};
    int rc = recover(&plan, control, end, err);
    if (rc != AC_OK) {
        ac_map_release(end->map);
        end->map = NULL;
    }
    free(plan.ids);
    return rc;
}
