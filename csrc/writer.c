/* The handle of a writer: created, checked by each call, and released. */
#include "writer.h"

#include "error.h"
#include "segment.h"

#include <stddef.h>
#include <stdlib.h>

static void on_fork(ac_task_t *task) {
    ac_writer_t *writer = (ac_writer_t *)(void *)((char *)task - offsetof(ac_writer_t, pages));
    ac_store_relaxed_u32(&writer->state, AC_STATE_FORKED);
    ac_store_relaxed_u64(&writer->limit, 0);
    ac_writer_lock_forked(&writer->lock);
    ac_store_relaxed_u32(&writer->attended, 0); /* the connections are not inherited either */
    /* Perhaps held by a thread that does not exist here. */
    pthread_mutex_init(&writer->mutex, NULL);
    pthread_mutex_init(&writer->sync_mutex, NULL);
    pthread_mutex_init(&writer->report_mutex, NULL);
}

ac_writer_t *ac_writer_allocate(const ac_writer_config_t *config) {
    ac_writer_t *writer = ac_os_alloc(sizeof *writer);
    if (!writer) return NULL;
    writer->config = *config;
    writer->config.opened_ns = 0;
    ac_settings_of(&writer->config, &writer->settings);
    writer->dir_fd = writer->index_fd = -1;
    writer->sealing_tail = &writer->sealing;
    ac_writer_init_failures(writer);
    writer->ahead = 4 * AC_POPULATE_STEP;
    writer->piece = AC_PIECE_SYNCED;
    writer->pages.run = ac_writer_housekeep_pages;
    writer->pages.forked = on_fork;
    writer->pages.lane = AC_LANE_MEMORY;
    writer->flush.run = ac_writer_housekeep_flush;
    writer->flush.together = ac_writer_flush_batches;
    writer->flush.lane = AC_LANE_FLUSH;
    writer->disk.run = ac_writer_housekeep_disk;
    writer->disk.lane = AC_LANE_DISK;
    writer->archiving.run = ac_writer_housekeep_archive;
    writer->archiving.lane = AC_LANE_ARCHIVE;
    pthread_mutex_init(&writer->mutex, NULL);
    pthread_mutex_init(&writer->sync_mutex, NULL);
    pthread_mutex_init(&writer->retain_mutex, NULL);
    pthread_mutex_init(&writer->report_mutex, NULL);
    pthread_mutex_init(&writer->lock_mutex, NULL);
    pthread_mutex_init(&writer->liveness.mutex, NULL);
    pthread_cond_init(&writer->prepared, NULL);
    pthread_cond_init(&writer->stepped, NULL);
    return writer;
}

int ac_writer_usable(const ac_writer_t *writer, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&writer->state);
    if (state == AC_STATE_OPEN) return ac_writer_check_removed(writer, err);
    if (state == AC_STATE_FORKED)
        return ac_fail(err, AC_E_FORKED, 0, writer->dir.path, 0,
                       "opened before fork; open it again here");
    return ac_fail(err, AC_E_CLOSED, 0, writer->dir.path, 0, "writer is closed");
}

int ac_writer_visit(ac_writer_t *writer, uint64_t *segment, uint64_t *offset, uint64_t *sealing,
                    ac_error_t *err) {
    int rc = ac_writer_usable(writer, err);
    if (rc != AC_OK) return rc;
    pthread_mutex_lock(&writer->mutex);
    int open = writer->map != NULL;
    *segment = open ? writer->map->segment : 0;
    *offset = ac_load_relaxed_u64(&writer->offset);
    *sealing = writer->sealing ? writer->sealing->map->segment : *segment;
    pthread_mutex_unlock(&writer->mutex);
    if (!open) return ac_fail(err, AC_E_CLOSED, 0, writer->dir.path, 0, "writer is closed");
    return ac_directory_open(&writer->dir, err);
}

void ac_writer_release(ac_writer_t *writer) {
    if (writer->attended) ac_wake_targets_close(&writer->targets);
    ac_store_relaxed_u32(&writer->attended, 0);
    while (writer->sealing) {
        ac_sealing_t *sealing = writer->sealing;
        writer->sealing = sealing->next;
        ac_map_release(sealing->map);
        free(sealing);
    }
    writer->sealing_tail = &writer->sealing;
    ac_map_release(writer->next);
    ac_map_release(writer->map);
    ac_map_release(writer->control_map);
    writer->next = writer->map = writer->control_map = NULL;
    ac_os_close(writer->index_fd);
    ac_os_close(writer->dir_fd);
    writer->index_fd = writer->dir_fd = -1;
    ac_writer_unlock(&writer->lock);
}

void ac_writer_free(ac_writer_t *writer) {
    if (!writer) return;
    /* In a forked child the locks may be held by a thread that does not exist here. */
    if (ac_load_relaxed_u32(&writer->state) == AC_STATE_FORKED) {
        ac_writer_close_report(writer);
        ac_writer_release(writer);
    } else
        ac_writer_close(writer, NULL);
    ac_java_free(writer);
    free(writer->liveness.entries);
    free(writer);
}
