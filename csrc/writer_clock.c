/* Timestamps that are ahead of the clock, and a clock that is too early. A queue's timestamps never
 * decrease, so one from the future holds all later ones at its value. */
#include "error.h"
#include "log.h"
#include "segment.h"
#include "writer.h"

#include <errno.h>

/* A queue that is less far ahead when it is opened has met the usual corrections of a clock. */
#define AHEAD_NS (10ull * 1000000000u)
#define LOG_EVERY_NS (60ull * 1000000000u)

static double seconds(uint64_t ns) {
    return (double)ns / 1e9;
}

static uint64_t excess(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

uint64_t ac_writer_first_timestamp(ac_writer_t *writer, uint64_t last_timestamp_ns) {
    ac_control_t *control = writer->control;
    uint64_t now_ns = ac_os_now_ns();
    uint64_t ahead_ns = excess(last_timestamp_ns, now_ns);
    writer->opened_timestamp_ns = last_timestamp_ns;
    if (ahead_ns > AHEAD_NS)
        ac_log(AC_LOG_WARNING, writer->dir.path,
               "the last message is %.3f s in the future; until then new ones get its timestamp. "
               "Check the clock, and where the timestamp is from",
               seconds(ahead_ns));
    uint64_t watermark_ns = ac_load_relaxed_u64(&control->watermark_ns);
    if (watermark_ns <= last_timestamp_ns) return last_timestamp_ns;
    ahead_ns = excess(watermark_ns, now_ns);
    if (ahead_ns <= AC_PROMISE_MAX_NS) return watermark_ns;
    /* Readers must not rely on a promise that is not kept. They read it together with the epoch, which
     * follows. */
    ac_store_release_u64(&control->watermark_ns, last_timestamp_ns);
    ac_log(AC_LOG_WARNING, writer->dir.path,
           "takes back the promise of the last writer, whose heartbeat was %.3f s in the future",
           seconds(ahead_ns));
    return last_timestamp_ns;
}

uint64_t ac_writer_last_record_ns(const ac_writer_t *writer) {
    if (writer->seq == writer->first_seq) return writer->opened_timestamp_ns;
    if (writer->last_record < AC_SEGMENT_DATA) return writer->last_timestamp_ns;
    const ac_record_t *record =
        (const ac_record_t *)(const void *)(writer->base + writer->last_record);
    return ac_load_relaxed_u64(&record->timestamp_ns);
}

void ac_writer_limit_time(ac_writer_t *writer) {
    uint64_t max_ahead_ns = writer->config.max_ahead_ns;
    writer->timestamp_limit = writer->roll_limit_ns;
    if (!max_ahead_ns) return;
    uint64_t now_ns = ac_os_now_ns();
    uint64_t limit_ns = now_ns <= UINT64_MAX - max_ahead_ns ? now_ns + max_ahead_ns : UINT64_MAX;
    if (limit_ns < writer->timestamp_limit) writer->timestamp_limit = limit_ns;
}

int ac_writer_check_ahead(const ac_writer_t *writer, uint64_t timestamp_ns, ac_error_t *err) {
    if (!writer->config.max_ahead_ns) return AC_OK;
    uint64_t ahead_ns = excess(timestamp_ns, ac_os_now_ns());
    if (ahead_ns <= writer->config.max_ahead_ns) return AC_OK;
    return ac_fail(err, AC_E_TIMESTAMP, ERANGE, writer->dir.path, 0,
                   "%llu is %.3f s ahead of the clock; max_ahead_s allows %.3f",
                   (unsigned long long)timestamp_ns, seconds(ahead_ns),
                   seconds(writer->config.max_ahead_ns));
}

void ac_writer_log_clock(ac_writer_t *writer, uint64_t monotonic_ns) {
    uint64_t steps = ac_load_relaxed_u64(&writer->clock_steps);
    uint64_t held = steps - writer->clock_steps_logged;
    if (held == 0 || monotonic_ns < writer->clock_log_due_ns) return;
    writer->clock_steps_logged = steps;
    writer->clock_log_due_ns = monotonic_ns + LOG_EVERY_NS;
    uint64_t behind_ns = excess(ac_load_relaxed_u64(&writer->last_timestamp_ns), ac_os_now_ns());
    if (behind_ns > 0)
        ac_log(AC_LOG_WARNING, writer->dir.path,
               "the clock is %.3f s before the last timestamp, which %llu messages got instead of "
               "the time: the clock was set back, or a timestamp or heartbeat was in the future",
               seconds(behind_ns), (unsigned long long)held);
    else
        ac_log(AC_LOG_WARNING, writer->dir.path,
               "the clock went back for a moment; %llu messages got the last timestamp instead",
               (unsigned long long)held);
}
