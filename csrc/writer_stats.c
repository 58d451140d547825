/* Queries on a writer: its counters, its readers' lag, what recovery found, which queue it has. */
#include "retention.h"
#include "segment.h"
#include "writer.h"

#include <string.h>

void ac_writer_stats(ac_writer_t *writer, ac_writer_stats_t *out) {
    memset(out, 0, sizeof *out);
    if (writer->java) {
        ac_java_stats(writer, out);
        return;
    }
    pthread_mutex_lock(&writer->mutex);
    out->syncs = writer->syncs;
    out->sync_errors = writer->sync_errors.count;
    out->seals = writer->seals;
    out->seal_errors = writer->seal_errors.count;
    out->prealloc_errors = writer->prealloc_errors.count;
    out->populate_errors = writer->populate_errors.count;
    out->retention_errors = writer->retention_errors.count;
    out->segments_deleted = writer->segments_deleted;
    out->segments_archived = writer->segments_archived;
    out->durable_seq = writer->durable_seq;
    out->segment = writer->map ? writer->map->segment : writer->recovery.end_segment;
    out->slow_appends = writer->slow_log.count;
    out->last_error_errno = writer->last_errno;
    memcpy(out->last_error, writer->last_error, sizeof out->last_error);
    out->queue_id = writer->control_map ? ac_load_relaxed_u64(&writer->control->queue_id) : 0;
    pthread_mutex_unlock(&writer->mutex);
    out->next_seq = ac_load_acquire_u64(&writer->seq);
    out->messages = out->next_seq - writer->first_seq;
    out->offset = ac_load_relaxed_u64(&writer->offset);
    out->payload_bytes = ac_load_relaxed_u64(&writer->payload_bytes);
    out->record_bytes = ac_load_relaxed_u64(&writer->record_bytes);
    out->batches = ac_load_relaxed_u64(&writer->batches);
    out->rolls = ac_load_relaxed_u64(&writer->rolls);
    out->rolls_unprepared = ac_load_relaxed_u64(&writer->rolls_unprepared);
    out->wakeups = ac_load_relaxed_u64(&writer->wakeups);
    out->clock_steps = ac_load_relaxed_u64(&writer->clock_steps);
    out->capacity_waits = ac_load_relaxed_u64(&writer->capacity_waits);
    out->refused_bytes = ac_load_relaxed_u64(&writer->refused_bytes);
    out->last_timestamp_ns = ac_load_relaxed_u64(&writer->last_timestamp_ns);
    out->epoch = writer->epoch;
    out->segment_size = writer->segment_size;
    if (!ac_load_relaxed_u32(&writer->attended)) return;
    pthread_mutex_lock(&writer->targets.mutex);
    out->readers_connected = writer->targets.count;
    pthread_mutex_unlock(&writer->targets.mutex);
}

int ac_writer_reader_lag(ac_writer_t *writer, uint64_t *lag_bytes, uint64_t *live_readers,
                         ac_error_t *err) {
    ac_slowest_t slowest;
    uint64_t segment = 0, offset = 0, sealing;
    ac_settings_t settings;
    ac_writer_config_t config;
    if (writer->java)
        return ac_java_refuse(writer, "reader_lag: a Java queue does not know its readers", err);
    int dir_fd = ac_writer_visit(writer, &segment, &offset, &sealing, err);
    if (dir_fd < 0) return dir_fd;
    ac_writer_settings(writer, &settings);
    ac_settings_apply(&settings, &config);
    int rc = ac_slowest_reader(&writer->dir, dir_fd, &config, &writer->liveness,
                               writer->segment_size, segment, offset, &slowest, err);
    *lag_bytes = *live_readers = 0;
    if (rc == AC_OK && slowest.live) {
        *live_readers = slowest.live;
        *lag_bytes = ac_segment_distance(&writer->dir, dir_fd, writer->segment_size,
                                         slowest.segment, slowest.offset, segment, offset);
    }
    ac_os_close(dir_fd);
    return rc;
}

void ac_writer_recovery(ac_writer_t *writer, ac_recovery_t *out) {
    *out = writer->recovery;
}

const char *ac_writer_path(ac_writer_t *writer) {
    return writer->dir.path;
}

void ac_writer_identity(ac_writer_t *writer, ac_identity_t *out) {
    *out = (ac_identity_t){.device = writer->dir.device, .inode = writer->lock.control_inode};
    if (writer->java) ac_java_identity(writer, out);
}
