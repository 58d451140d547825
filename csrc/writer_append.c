/* Appending one message. The fast path is ac_writer_try_append in writer.h. */
#include "writer_append.h"

static int not_durable(const ac_writer_t *writer, int64_t seq, const ac_error_t *why,
                       ac_error_t *err) {
    int rc = ac_fail(err, AC_E_NOT_DURABLE, why->sys_errno, writer->dir.path, 0,
                     "appended as %lld, but not made durable: %.180s", (long long)seq, why->detail);
    if (err) err->seq = (uint64_t)seq;
    return rc;
}

int64_t ac_writer_sync_appended(ac_writer_t *writer, int64_t seq, ac_error_t *err) {
    ac_error_t why;
    ac_slow_begin(&writer->slow);
    int64_t durable = ac_writer_sync_data(writer, &why);
    ac_slow_part(&writer->slow, AC_SLOW_SYNC);
    ac_writer_note_slow(writer, (uint64_t)seq);
    if (durable >= 0) return seq;
    if (durable != AC_E_GONE) return not_durable(writer, seq, &why, err);
    if (err) *err = why;
    return durable;
}

int64_t ac_writer_try_append_held(ac_writer_t *writer, const void *payload, size_t payload_length,
                                  const ac_slice_t *trailer, unsigned type_id,
                                  const ac_cause_t *cause) {
    int64_t seq = ac_writer_try_append(writer, payload, payload_length, trailer, type_id,
                                       writer->last_timestamp_ns, cause);
    if (seq != AC_E_SLOW) ac_count_u64(&writer->clock_steps, 1);
    return seq;
}

static __attribute__((noinline)) int64_t append_slow(ac_writer_t *writer, const void *payload,
                                                     size_t payload_length,
                                                     const ac_slice_t *trailer, unsigned type_id,
                                                     uint64_t timestamp_ns, const ac_cause_t *cause,
                                                     ac_error_t *err) {
    size_t length = ac_area_length(payload_length, trailer);
    if (writer->java && trailer) return ac_writer_refuse_trailer(writer, err);
    if (writer->java)
        return ac_java_append(writer, payload, length, type_id, timestamp_ns, cause, err);
    int rc = ac_writer_check_type(writer, type_id, err);
    if (rc == AC_OK) rc = ac_writer_check_length(writer, length, err);
    if (rc == AC_OK && timestamp_ns != AC_NOW)
        rc = ac_writer_check_ahead(writer, timestamp_ns, err);
    if (rc != AC_OK) return rc;
    if (timestamp_ns == AC_NOW) timestamp_ns = ac_writer_now(writer, ac_os_now_ns());
    rc = ac_writer_make_room(writer, ac_record_size(length), timestamp_ns, err);
    if (rc != AC_OK) return rc;
    int64_t seq = ac_writer_put(writer, payload, payload_length, trailer, (uint16_t)type_id,
                                timestamp_ns, cause, ac_writer_synced_flag(writer));
    return seq == AC_E_SLOW ? ac_writer_fail_cut(writer, err)
                            : ac_writer_flush_if_due(writer, seq, err);
}

/* Compiled once for each of the following, so that absent options cost nothing. */
static inline __attribute__((always_inline)) int64_t
append(ac_writer_t *writer, const void *payload, size_t length, const ac_slice_t *trailer,
       unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause, ac_error_t *err) {
    int64_t seq =
        ac_writer_try_append(writer, payload, length, trailer, type_id, timestamp_ns, cause);
    return AC_LIKELY(seq != AC_E_SLOW)
               ? seq
               : append_slow(writer, payload, length, trailer, type_id, timestamp_ns, cause, err);
}

int64_t ac_writer_append(ac_writer_t *writer, const void *payload, size_t length, unsigned type_id,
                         uint64_t timestamp_ns, ac_error_t *err) {
    return append(writer, payload, length, NULL, type_id, timestamp_ns, NULL, err);
}

int64_t ac_writer_append_cause(ac_writer_t *writer, const void *payload, size_t length,
                               unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause,
                               ac_error_t *err) {
    return append(writer, payload, length, NULL, type_id, timestamp_ns, cause, err);
}

int64_t ac_writer_append_trailer(ac_writer_t *writer, const void *payload, size_t length,
                                 const ac_slice_t *trailer, unsigned type_id, uint64_t timestamp_ns,
                                 const ac_cause_t *cause, ac_error_t *err) {
    return append(writer, payload, length, trailer, type_id, timestamp_ns, cause, err);
}
