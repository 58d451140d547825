/* Heartbeats: the promise that no older message will come. */
#include "error.h"
#include "writer.h"

int ac_writer_heartbeat(ac_writer_t *writer, uint64_t timestamp_ns, ac_error_t *err) {
    if (writer->java)
        return ac_java_refuse(
            writer, "heartbeat: nobody can promise what other writers of the queue will append",
            err);
    int rc = ac_writer_usable(writer, err);
    if (rc == AC_OK && timestamp_ns != AC_NOW)
        rc = ac_writer_check_ahead(writer, timestamp_ns, err);
    if (rc != AC_OK) return rc;
    if (timestamp_ns == AC_NOW) timestamp_ns = ac_writer_now(writer, ac_os_now_ns());
    if (timestamp_ns < writer->last_timestamp_ns)
        return ac_fail(err, AC_E_TIMESTAMP, 0, writer->dir.path, 0,
                       "heartbeat %llu is before the last record or heartbeat, %llu",
                       (unsigned long long)timestamp_ns,
                       (unsigned long long)writer->last_timestamp_ns);
    /* From now on an older record would break the promise. */
    ac_store_relaxed_u64(&writer->last_timestamp_ns, timestamp_ns);
    ac_store_release_u64(&writer->control->watermark_ns, timestamp_ns);
    ac_fetch_add_seq_cst_u32(&writer->control->notify_seq, 1);
    ac_writer_wake(writer);
    return AC_OK;
}
