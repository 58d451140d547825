/* The files that make segments in another directory a queue again: see ac_queue_describe_copy. */
#include "control.h"
#include "error.h"
#include "os.h"
#include "recovery.h"

#include <string.h>

/* What must stay as in the original; everything else is about its writer, readers and directory. */
static ac_control_t control_of_copy(const ac_control_t *original, const ac_copy_t *copy) {
    ac_control_t control;
    uint64_t removed_seq, removed_ns;
    memset(&control, 0, sizeof control);
    control.magic = AC_CONTROL_MAGIC;
    control.version = AC_CONTROL_VERSION;
    control.init_state = AC_CONTROL_READY;
    control.writer_epoch = ac_load_relaxed_u64(&original->writer_epoch);
    control.segment_size = ac_load_relaxed_u64(&original->segment_size);
    control.queue_id = ac_load_relaxed_u64(&original->queue_id);
    memcpy(control.ancestors, original->ancestors, sizeof control.ancestors);
    ac_control_removed(original, &removed_seq, &removed_ns);
    if (removed_seq) ac_control_note_removed(&control, removed_seq, removed_ns);
    control.current_segment = (uint32_t)copy->segment;
    control.write_offset = copy->offset;
    control.counting_epoch = control.writer_epoch;
    control.next_seq = copy->next_seq;
    control.last_timestamp_ns = copy->last_timestamp_ns;
    control.last_record = copy->last_record;
    /* A home that no directory has makes it a copy; no home at all leaves that to the next writer. */
    control.home = copy->new_id ? 2 : 0;
    ac_clean_t clean = {.epoch = control.writer_epoch,
                        .segment = control.current_segment,
                        .offset = copy->offset,
                        .next_seq = copy->next_seq,
                        .last_timestamp_ns = copy->last_timestamp_ns,
                        .last_record = copy->last_record};
    if (clean.epoch) ac_clean_store(&control, &clean);
    return control;
}

static int open_original(const char *path, ac_map_t **out, ac_error_t *err) {
    ac_directory_t dir;
    int rc = ac_directory_init(&dir, path, 0600, 0, err);
    if (rc != AC_OK) return rc;
    int fd = ac_directory_open(&dir, err);
    if (fd < 0) return fd;
    rc = ac_control_open(&dir, fd, AC_CONTROL_READ_ONLY, 1, out, err);
    ac_os_close(fd);
    return rc;
}

int ac_queue_describe_copy(const char *path, const char *to, const ac_copy_t *copy,
                           ac_error_t *err) {
    ac_directory_t dir;
    ac_map_t *original;
    ac_durable_t durable = {copy->segment, copy->offset};
    int rc = open_original(path, &original, err);
    if (rc != AC_OK) return rc;
    ac_control_t control = control_of_copy(ac_control_of(original), copy);
    ac_map_release(original);
    rc = ac_directory_init(&dir, to, copy->mode, 0, err);
    if (rc != AC_OK) return rc;
    int fd = ac_directory_open(&dir, err);
    if (fd < 0) return fd;
    /* The control block last: without it there is no queue. */
    rc = ac_file_publish(&dir, fd, "index.meta", &durable, sizeof durable, err);
    if (rc == AC_OK) rc = ac_file_publish(&dir, fd, "control.meta", &control, sizeof control, err);
    ac_os_close(fd);
    return rc;
}
