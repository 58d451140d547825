/* Where an opened queue continues: at the end that recovery found, in the same segment or in a new one. */
#include "error.h"
#include "log.h"
#include "recovery.h"
#include "segment.h"
#include "writer.h"

/* Whether the queue continues in a new segment. Positions stored elsewhere must not end up inside later
 * records, so it does after anything was cut off, and after a possible power cut. Nor may a segment hold
 * messages of two identities. */
static int needs_new_segment(const ac_writer_t *writer, const ac_end_t *end, int is_copy) {
    uint64_t boot = ac_load_relaxed_u64(&writer->control->recovered_boot);
    int is_empty = end->offset == AC_SEGMENT_DATA;
    if (!end->map || end->sealed || (is_empty && boot == 0)) return 0;
    if (is_copy) return !is_empty;
    return !writer->recovery.clean && (end->torn || boot != ac_os_boot_id());
}

/* Seals the segment with the end; readers that wait there go on. Frees the blocks that it will not use. */
static int leave_segment(ac_writer_t *writer, ac_end_t *end, ac_error_t *err) {
    char name[AC_NAME_MAX];
    ac_map_t *map = end->map;
    ac_segment_name(name, map->segment, ".q");
    ac_segment_seal(map, end->offset);
    int rc = ac_os_map_sync(map->base, map->fd, 0, AC_SEGMENT_DATA);
    uint64_t inside = ac_os_page_size() - 1, unused = (end->offset + inside) & ~inside;
    if (rc == 0 && unused < map->size) rc = ac_os_punch(map->fd, unused, map->size - unused);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->dir.path, name, "cannot seal") : AC_OK;
}

/* A copy gets an identity of its own. */
int ac_writer_find_place(ac_writer_t *writer, ac_end_t *end, int is_copy, ac_error_t *err) {
    ac_control_t *control = writer->control;
    ac_recovery_options_t options = {
        .verify = writer->config.verify, .salvage = writer->config.salvage, .is_copy = is_copy};
    int rc = ac_recover(&writer->dir, writer->dir_fd, control, writer->segment_size, &options, end,
                        &writer->recovery, err);
    if (rc == AC_OK && needs_new_segment(writer, end, is_copy)) {
        rc = leave_segment(writer, end, err);
        end->sealed = 1;
    }
    if (rc != AC_OK) return rc;
    writer->recovery.is_copy = is_copy;
    uint64_t first = end->map && !end->sealed ? end->map->segment : end->next_id;
    if (!is_copy) {
        ac_store_relaxed_u64(&control->home, writer->home);
        return AC_OK;
    }
    ac_log(AC_LOG_WARNING, writer->dir.path,
           "is a copy, or was restored from one, and gets an identity of its own; its messages "
           "from segment "
           "%llu on have it",
           (unsigned long long)first);
    rc = ac_control_adopt(control, writer->home, first);
    return rc < 0 ? ac_fail_os(err, rc, writer->dir.path, "cannot get random bytes") : AC_OK;
}

/* A queue that was never opened, because its first segment could not be created, is as good as new. Readers
 * may be waiting for it: see ac_reader_open_segment. */
int ac_writer_take_segment_size(ac_writer_t *writer, const ac_end_t *end, ac_error_t *err) {
    uint64_t size = writer->config.segment_size;
    if (end->map || ac_load_relaxed_u64(&writer->control->writer_epoch) != 0 ||
        size == writer->segment_size)
        return AC_OK;
    writer->segment_size = size;
    ac_store_release_u64(&writer->control->segment_size, size);
    int rc = ac_os_map_sync(writer->control_map->base, -1, 0, AC_CONTROL_SIZE);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->dir.path, "control.meta", "cannot sync") : AC_OK;
}

/* The first record tells when the filling of this segment began, and with which seq. */
static void resume_roll_limits(ac_writer_t *writer) {
    ac_message_t first;
    const char *why;
    if (ac_record_inspect(writer->base, writer->segment_size, AC_SEGMENT_DATA, writer->map->segment,
                          AC_CHECK_HEADER, &first, &why) != AC_RECORD_GOOD)
        return;
    writer->segment_first_seq = first.seq;
    ac_writer_roll_after(writer, first.timestamp_ns);
}

int ac_writer_enter_end(ac_writer_t *writer, ac_end_t *end, ac_error_t *err) {
    uint64_t offset = end->offset;
    writer->seq = writer->first_seq = end->next_seq;
    writer->last_timestamp_ns = ac_writer_first_timestamp(writer, end->last_timestamp_ns);
    writer->durable_seq = end->next_seq;
    if (end->map && !end->sealed) {
        writer->map = end->map;
        end->map = NULL;
    } else {
        int rc = ac_segment_create(&writer->dir, writer->dir_fd, end->next_id, writer->segment_size,
                                   &writer->map, err);
        if (rc != AC_OK) return rc;
        offset = AC_SEGMENT_DATA;
    }
    writer->synced = offset;
    writer->populated = offset;
    ac_writer_enter(writer, writer->map, offset);
    writer->entered_ns = ac_os_monotonic_ns();
    writer->cached_from = writer->map->segment;
    if (offset > AC_SEGMENT_DATA) {
        writer->last_record = end->last_record;
        resume_roll_limits(writer);
    }
    if (writer->config.memlock) {
        int rc = ac_os_memlock(writer->map->base, writer->map->size);
        if (rc < 0)
            return ac_fail_os(err, rc, writer->dir.path,
                              "cannot lock the segment into memory (raise RLIMIT_MEMLOCK)");
    }
    int rc = ac_writer_write_durable(writer, writer->map->segment, offset);
    if (rc == 0) rc = ac_os_sync(writer->index_fd);
    if (rc == 0) ac_store_relaxed_u32(&writer->mark_unsynced, 0);
    return rc < 0 ? ac_fail_os_in(err, rc, writer->dir.path, "index.meta", "cannot write") : AC_OK;
}
