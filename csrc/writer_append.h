/* What all ways to append have in common: one message, a batch, a reservation. */
#ifndef AC_WRITER_APPEND_H
#define AC_WRITER_APPEND_H

#include "error.h"
#include "writer.h"

static inline int ac_writer_check_type(const ac_writer_t *writer, unsigned type_id,
                                       ac_error_t *err) {
    if (type_id <= AC_TYPE_MAX) return AC_OK;
    return ac_fail(err, AC_E_ARGUMENT, 0, writer->dir.path, 0, "type_id %u: must be 0 to %u",
                   type_id, AC_TYPE_MAX);
}

static inline int ac_writer_check_length(const ac_writer_t *writer, size_t length,
                                         ac_error_t *err) {
    if (length < UINT32_MAX - AC_HEADER_SIZE) return AC_OK;
    return ac_fail(err, AC_E_TOO_LARGE, 0, writer->dir.path, 0, "%zu bytes are too many", length);
}

/* writer_append.c: syncs what was appended as `seq`, and returns the seq. A failure leaves it appended. */
int64_t ac_writer_sync_appended(ac_writer_t *writer, int64_t seq, ac_error_t *err);

/* In sync mode nothing may return before it is durable; in batch mode no more than the configured bytes may
 * wait. Readers have the record by now: an ordinary error would make the caller append it again. */
static inline int64_t ac_writer_flush_if_due(ac_writer_t *writer, int64_t seq, ac_error_t *err) {
    int mode = writer->config.flush_mode;
    if (mode == AC_FLUSH_ASYNC || seq < 0) return seq;
    if (mode == AC_FLUSH_BATCH && ac_writer_unsynced(writer) <= writer->config.batch_bytes)
        return seq;
    return ac_writer_sync_appended(writer, seq, err);
}

/* In sync mode, which has no fast path, each record proves that those before it are durable. So does a
 * record after a flush of a single record; unless there is padding in between, which no flush covered. */
static inline uint16_t ac_writer_synced_flag(ac_writer_t *writer) {
    if (writer->config.flush_mode != AC_FLUSH_SYNC) {
        if (!ac_load_relaxed_u32(&writer->flushed_single)) return 0;
        ac_store_relaxed_u32(&writer->flushed_single, 0);
    }
    pthread_mutex_lock(&writer->mutex);
    int all = writer->durable_seq == writer->seq && writer->synced == writer->offset;
    pthread_mutex_unlock(&writer->mutex);
    return all ? AC_FLAG_SYNCED : 0;
}

/* Java reads the documents of a Java queue, and does not know our trailer. */
static inline int ac_writer_refuse_trailer(const ac_writer_t *writer, ac_error_t *err) {
    return ac_java_refuse(writer, "key and headers: its messages are documents of Java's", err);
}

#endif
