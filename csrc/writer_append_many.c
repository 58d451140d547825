/* Appending a batch, which becomes visible as a whole. */
#include "writer_append.h"

/* Of the batch's message `i`; NULL: there is none. */
static inline const ac_slice_t *trailer_of(const ac_slice_t *trailers, size_t i) {
    return trailers && trailers[i].length > 0 ? &trailers[i] : NULL;
}

/* Total size of a batch, and whether its timestamps are in order. */
static inline int measure(const ac_writer_t *writer, const ac_slice_t *items,
                          const ac_slice_t *trailers, size_t count, const uint64_t *timestamps_ns,
                          uint64_t *size, ac_error_t *err) {
    *size = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length = ac_area_length(items[i].length, trailer_of(trailers, i));
        int rc = ac_writer_check_length(writer, length, err);
        if (rc != AC_OK) return rc;
        *size += ac_record_size(length);
        if (timestamps_ns && i > 0 && timestamps_ns[i] < timestamps_ns[i - 1])
            return ac_fail(err, AC_E_TIMESTAMP, 0, writer->dir.path, 0,
                           "timestamp %zu of the batch is before the one ahead of it", i);
    }
    return AC_OK;
}

/* Compiled twice, so that batches without trailers do not check for them. */
static inline __attribute__((always_inline)) int64_t append_batch(
    ac_writer_t *writer, const ac_slice_t *items, const ac_slice_t *trailers, size_t count,
    unsigned type_id, const uint64_t *timestamps_ns, const ac_cause_t *cause, ac_error_t *err) {
    uint64_t size, total_payload = 0;
    if (writer->java && trailers) return ac_writer_refuse_trailer(writer, err);
    if (writer->java)
        return ac_java_append_many(writer, items, count, type_id, timestamps_ns, cause, err);
    if (count == 0) return (int64_t)writer->seq;
    if (count > UINT32_MAX)
        return ac_fail(err, AC_E_TOO_LARGE, 0, writer->dir.path, 0, "batch of %zu records", count);
    int rc = ac_writer_check_type(writer, type_id, err);
    if (rc == AC_OK) rc = measure(writer, items, trailers, count, timestamps_ns, &size, err);
    if (rc != AC_OK) return rc;
    uint64_t now = timestamps_ns ? timestamps_ns[0] : ac_writer_now(writer, ac_os_now_ns());
    uint64_t newest = timestamps_ns ? timestamps_ns[count - 1] : now;
    if (writer->offset + size > ac_load_relaxed_u64(&writer->limit) ||
        writer->seq + count > writer->seq_limit || now < writer->last_timestamp_ns ||
        newest >= writer->timestamp_limit) {
        if (timestamps_ns) rc = ac_writer_check_ahead(writer, newest, err);
        if (rc == AC_OK) rc = ac_writer_make_room(writer, size, now, err);
        if (rc != AC_OK) return rc;
    }
    uint64_t first_seq = writer->seq, offset = writer->offset, last_record = writer->last_record;
    uint16_t first_flags = ac_writer_synced_flag(writer);
    for (size_t i = 0; i < count; i++) {
        uint8_t *at = writer->base + offset;
        const ac_slice_t *trailer = trailer_of(trailers, i);
        uint32_t length = (uint32_t)ac_area_length(items[i].length, trailer);
        ac_stamp_t stamp = {
            .seq = first_seq + i,
            .timestamp_ns = timestamps_ns ? timestamps_ns[i] : now,
            .cause = cause,
            .batch_left = (uint32_t)(count - 1 - i),
            .epoch = writer->epoch,
            .type_id = (uint16_t)type_id,
            .flags = (uint16_t)((i == 0 ? first_flags : 0) | (trailer ? AC_FLAG_TRAILER : 0))};
        uint32_t checksum =
            ac_writer_copy(at + AC_HEADER_SIZE, items[i].data, items[i].length, trailer);
        ac_record_write_header(at, length, checksum, &stamp, writer->seed);
        /* The first record's commit word comes last and lets readers at all of them. */
        if (i > 0) ac_store_relaxed_u32(ac_record_commit_word(at), length + 1);
        last_record = offset;
        offset += ac_record_size(length);
        total_payload += length;
    }
    ac_written_t written = {.first = writer->base + writer->offset,
                            .next_seq = first_seq + count,
                            .end = offset,
                            .last_record = last_record,
                            .newest_ns = newest,
                            .payload_bytes = total_payload,
                            .record_bytes = size,
                            .first_length =
                                (uint32_t)ac_area_length(items[0].length, trailer_of(trailers, 0))};
    writer->batch = (uint32_t)count - 1;
    int committed = ac_writer_commit_written(writer, &written);
    writer->batch = 0;
    if (committed != AC_OK) return ac_writer_fail_cut(writer, err);
    ac_count_u64(&writer->batches, 1);
    return ac_writer_flush_if_due(writer, (int64_t)first_seq, err);
}

int64_t ac_writer_append_many(ac_writer_t *writer, const ac_slice_t *items, size_t count,
                              unsigned type_id, const uint64_t *timestamps_ns, ac_error_t *err) {
    return ac_writer_append_many_cause(writer, items, count, type_id, timestamps_ns, NULL, err);
}

int64_t ac_writer_append_many_cause(ac_writer_t *writer, const ac_slice_t *items, size_t count,
                                    unsigned type_id, const uint64_t *timestamps_ns,
                                    const ac_cause_t *cause, ac_error_t *err) {
    return append_batch(writer, items, NULL, count, type_id, timestamps_ns, cause, err);
}

int64_t ac_writer_append_many_trailers(ac_writer_t *writer, const ac_slice_t *items,
                                       const ac_slice_t *trailers, size_t count, unsigned type_id,
                                       const uint64_t *timestamps_ns, const ac_cause_t *cause,
                                       ac_error_t *err) {
    return append_batch(writer, items, trailers, count, type_id, timestamps_ns, cause, err);
}
