/* Reserving space in the segment, which the caller fills before it commits the message. */
#include "segment.h"
#include "writer_append.h"

#include <string.h>

int ac_writer_reserve(ac_writer_t *writer, size_t length, void **room, ac_error_t *err) {
    if (writer->java)
        return ac_java_refuse(
            writer, "reserve: Java's lock would be held for as long as the room is being filled",
            err);
    int rc = ac_writer_check_length(writer, length, err);
    if (rc == AC_OK)
        rc = ac_writer_make_room(writer, ac_record_size(length), writer->last_timestamp_ns, err);
    if (rc != AC_OK) return rc;
    writer->reserved = length + 1;
    ac_store_relaxed_u64(&writer->limit, 0);
    *room = writer->base + writer->offset + AC_HEADER_SIZE;
    return AC_OK;
}

void ac_writer_abort(ac_writer_t *writer) {
    if (!writer->reserved) return;
    uint64_t length = writer->reserved - 1;
    writer->reserved = 0;
    if (ac_load_relaxed_u32(&writer->state) != AC_STATE_OPEN) return;
    memset(writer->base + writer->offset + AC_HEADER_SIZE, 0, length);
    uint64_t end = writer->offset + ac_record_size(length);
    if (end > writer->soiled) writer->soiled = end;
    ac_writer_set_limits(writer);
}

void ac_writer_abandon(ac_writer_t *writer) {
    if (!writer->reserved) return;
    uint32_t length = (uint32_t)(writer->reserved - 1);
    writer->reserved = 0;
    if (ac_load_relaxed_u32(&writer->state) != AC_STATE_OPEN) return;
    uint8_t *at = writer->base + writer->offset;
    ac_stamp_t stamp = {.epoch = writer->epoch, .type_id = AC_TYPE_PADDING};
    ac_record_write_header(at, length, 0, &stamp, writer->seed);
    ac_store_release_u32(ac_record_commit_word(at), length + 1);
    ac_writer_publish(writer, writer->offset + ac_record_size(length), writer->seq);
    ac_writer_set_limits(writer);
}

int64_t ac_writer_commit(ac_writer_t *writer, unsigned type_id, uint64_t timestamp_ns,
                         const ac_cause_t *cause, ac_error_t *err) {
    return ac_writer_commit_trailer(writer, NULL, type_id, timestamp_ns, cause, err);
}

int64_t ac_writer_commit_trailer(ac_writer_t *writer, const ac_slice_t *trailer, unsigned type_id,
                                 uint64_t timestamp_ns, const ac_cause_t *cause, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&writer->state);
    if (state != AC_STATE_OPEN)
        return ac_fail(err, state == AC_STATE_FORKED ? AC_E_FORKED : AC_E_CLOSED, 0,
                       writer->dir.path, 0, "the writer was closed during the reservation");
    if (!writer->reserved)
        return ac_fail(err, AC_E_RESERVED, 0, writer->dir.path, 0, "no reservation is open");
    int rc = ac_writer_check_type(writer, type_id, err);
    if (rc == AC_OK && timestamp_ns != AC_NOW)
        rc = ac_writer_check_ahead(writer, timestamp_ns, err);
    if (timestamp_ns == AC_NOW) timestamp_ns = ac_writer_now(writer, ac_os_now_ns());
    if (rc == AC_OK && trailer && trailer->length > writer->reserved - 1)
        rc = ac_fail(err, AC_E_ARGUMENT, 0, writer->dir.path, 0,
                     "the trailer is larger than what was reserved");
    if (rc == AC_OK && timestamp_ns < writer->last_timestamp_ns)
        rc = ac_fail(err, AC_E_TIMESTAMP, 0, writer->dir.path, 0,
                     "%llu is before the last record or heartbeat, %llu",
                     (unsigned long long)timestamp_ns,
                     (unsigned long long)writer->last_timestamp_ns);
    if (rc != AC_OK) {
        ac_writer_abort(writer);
        return rc;
    }
    uint32_t length = (uint32_t)(writer->reserved - 1);
    uint8_t *at = writer->base + writer->offset;
    if (trailer)
        memcpy(at + AC_HEADER_SIZE + length - trailer->length, trailer->data, trailer->length);
    ac_stamp_t stamp = {
        .seq = writer->seq,
        .timestamp_ns = timestamp_ns,
        .cause = cause,
        .epoch = writer->epoch,
        .type_id = (uint16_t)type_id,
        .flags = (uint16_t)(ac_writer_synced_flag(writer) | (trailer ? AC_FLAG_TRAILER : 0))};
    ac_record_write_header(at, length, ac_crc32(at + AC_HEADER_SIZE, length), &stamp, writer->seed);
    uint64_t size = ac_record_size(length);
    ac_written_t written = {.first = at,
                            .next_seq = stamp.seq + 1,
                            .end = writer->offset + size,
                            .last_record = writer->offset,
                            .newest_ns = timestamp_ns,
                            .payload_bytes = length,
                            .record_bytes = size,
                            .first_length = length};
    writer->reserved = 0;
    if (ac_writer_commit_written(writer, &written) != AC_OK) return ac_writer_fail_cut(writer, err);
    if (written.last_record == AC_SEGMENT_DATA) ac_writer_roll_after(writer, timestamp_ns);
    ac_writer_set_limits(writer);
    return ac_writer_flush_if_due(writer, (int64_t)stamp.seq, err);
}
