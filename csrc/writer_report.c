/* What a writer publishes in statistics.meta: see writer_published.h. */
#include "error.h"
#include "log.h"
#include "writer.h"

#include <string.h>
#include <unistd.h>

void ac_writer_begin_report(ac_writer_t *writer) {
    ac_error_t err;
    if (ac_publisher_open(&writer->publisher, &writer->dir, writer->dir_fd, &err) != AC_OK) {
        ac_log_error(AC_LOG_WARNING, &err, "other processes cannot see the writer's statistics");
        return;
    }
    ac_published_t *content = &writer->publisher->draft.content;
    content->epoch = ac_load_relaxed_u64(&writer->control->writer_epoch);
    content->home = writer->home;
    content->opened_ns = ac_os_now_ns();
    content->pid = (int32_t)getpid();
    content->user = (uint32_t)geteuid();
    content->recovery = writer->recovery;
    ac_os_process_command(content->pid, content->command, sizeof content->command);
    ac_writer_report(writer, ac_os_monotonic_ns(), 1);
}

static void add_sample(ac_published_t *content, const ac_writer_stats_t *stats, uint64_t time_ns,
                       uint64_t monotonic_ns) {
    content->sample[content->samples % AC_SAMPLES] =
        (ac_sample_t){.monotonic_ns = monotonic_ns,
                      .time_ns = time_ns,
                      .messages = stats->messages,
                      .record_bytes = stats->record_bytes,
                      .wakeups = stats->wakeups,
                      .syncs = stats->syncs};
    content->samples++;
}

/* What is kept under the mutex. */
static void take_shared(ac_writer_t *writer, ac_published_t *content) {
    pthread_mutex_lock(&writer->mutex);
    content->slow_appends = writer->slow_log.count;
    memcpy(content->slow_append, writer->slow_log.last, sizeof content->slow_append);
    memcpy(content->slow_total, writer->slow_log.total, sizeof content->slow_total);
    content->errors = writer->recent_count;
    memcpy(content->error, writer->recent, sizeof content->error);
    content->settings = writer->settings;
    pthread_mutex_unlock(&writer->mutex);
}

/* With report_mutex held. */
static void report(ac_writer_t *writer, uint64_t monotonic_ns, int sampled) {
    ac_writer_stats_t stats;
    ac_published_t *content = &writer->publisher->draft.content;
    uint64_t time_ns = ac_os_now_ns();
    ac_writer_stats(writer, &stats);
    memcpy(content->counters, &stats, sizeof content->counters);
    if (sampled) add_sample(content, &stats, time_ns, monotonic_ns);
    take_shared(writer, content);
    ac_publisher_store(writer->publisher, time_ns, monotonic_ns);
}

void ac_writer_report(ac_writer_t *writer, uint64_t monotonic_ns, int sampled) {
    pthread_mutex_lock(&writer->report_mutex);
    if (writer->publisher) report(writer, monotonic_ns, sampled);
    pthread_mutex_unlock(&writer->report_mutex);
}

void ac_writer_end_report(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->report_mutex);
    if (writer->publisher) {
        writer->publisher->draft.content.closed_ns = ac_os_now_ns();
        report(writer, ac_os_monotonic_ns(), 1);
    }
    pthread_mutex_unlock(&writer->report_mutex);
}

void ac_writer_close_report(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->report_mutex);
    ac_publisher_close(writer->publisher);
    writer->publisher = NULL;
    pthread_mutex_unlock(&writer->report_mutex);
}

void ac_writer_note_slow(ac_writer_t *writer, uint64_t seq) {
    ac_slow_append_t append;
    uint64_t slow_ns = writer->config.flush_mode == AC_FLUSH_SYNC ? AC_SLOW_SYNCED_NS : AC_SLOW_NS;
    if (!ac_slow_end(&writer->slow, slow_ns, &append)) return;
    append.seq = seq;
    append.time_ns = ac_os_now_ns();
    pthread_mutex_lock(&writer->mutex);
    ac_slow_note(&writer->slow_log, &append);
    pthread_mutex_unlock(&writer->mutex);
}
