/* Closing: what was appended becomes durable, and the next writer finds the end without a search. */
#include "error.h"
#include "recovery.h"
#include "segment.h"
#include "writer.h"

/* A prepared segment that was never entered. */
static void discard_next(ac_writer_t *writer) {
    char name[AC_NAME_MAX];
    /* If the queue was lost to another writer, the name may belong to that one by now. */
    if (!writer->next || ac_writer_check_removed(writer, NULL) != AC_OK) return;
    ac_segment_name(name, writer->next->segment, ".q");
    ac_os_unlink(writer->dir_fd, name);
}

static int leave_clean(ac_writer_t *writer, ac_error_t *err) {
    ac_clean_t clean = {.epoch = ac_load_relaxed_u64(&writer->control->writer_epoch),
                        .segment = writer->map->segment,
                        .offset = writer->offset,
                        .next_seq = writer->seq,
                        .last_timestamp_ns = ac_writer_last_record_ns(writer),
                        .last_record = writer->last_record};
    /* What a flush up to the last seq does not reach: padding after it, without which there would be a gap;
     * and zeros that replaced the bytes of an aborted reservation, which may be on disk: a writer that
     * trusts the clean marker would append before them. */
    uint64_t end = writer->soiled > writer->offset ? writer->soiled : writer->offset;
    int rc = 0;
    if (end > writer->synced)
        rc = ac_os_map_sync(writer->map->base, writer->map->fd, writer->synced,
                            end - writer->synced);
    if (rc == 0) rc = ac_writer_write_durable(writer, clean.segment, clean.offset);
    if (rc == 0) rc = ac_os_sync(writer->index_fd);
    if (rc == 0) {
        ac_clean_store(writer->control, &clean);
        rc = ac_os_map_sync(writer->control_map->base, -1, 0, AC_CONTROL_SIZE);
    }
    return rc < 0 ? ac_fail_os(err, rc, writer->dir.path, "cannot mark the queue as closed")
                  : AC_OK;
}

int ac_writer_close(ac_writer_t *writer, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&writer->state);
    if (state != AC_STATE_OPEN) return AC_OK;
    if (writer->java) return ac_java_close(writer, err);
    if (writer->reserved) ac_writer_abandon(writer);
    ac_writer_stop_housekeeping(writer);
    int64_t flushed = ac_writer_flush(writer, err);
    int rc = flushed < 0 ? (int)flushed : ac_writer_seal_pending(writer, err);
    discard_next(writer);
    if (rc == AC_OK) rc = leave_clean(writer, err);
    /* A caller that removed it need not know; one that goes on appending gets an error before. */
    if (rc == AC_E_GONE && !ac_writer_was_cut(writer)) rc = AC_OK;
    if (writer->attended) ac_wake_targets_close(&writer->targets);
    ac_store_relaxed_u32(&writer->attended, 0);
    ac_writer_end_report(writer);
    ac_writer_close_report(writer);
    pthread_mutex_lock(&writer->sync_mutex);
    pthread_mutex_lock(&writer->mutex);
    ac_store_relaxed_u32(&writer->state, AC_STATE_CLOSED);
    ac_store_relaxed_u64(&writer->limit, 0);
    ac_writer_release(writer);
    pthread_mutex_unlock(&writer->mutex);
    pthread_mutex_unlock(&writer->sync_mutex);
    return rc;
}
