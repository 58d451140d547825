#include "writer_settings.h"

#include "error.h"
#include "writer.h"

#include <stdio.h>
#include <string.h>

void ac_settings_of(const ac_writer_config_t *config, ac_settings_t *out) {
    *out = (ac_settings_t){.batch_bytes = config->batch_bytes,
                           .batch_ns = config->batch_ns,
                           .capacity_bytes = config->capacity_bytes,
                           .capacity_timeout_ns = config->capacity_timeout_ns,
                           .reader_ttl_ns = config->reader_ttl_ns,
                           .max_reader_lag = config->max_reader_lag,
                           .retain_ns = config->retain_ns,
                           .retain_bytes = config->retain_bytes,
                           .retention_check_ns = config->retention_check_ns,
                           .opened_ns = config->opened_ns,
                           .flush_mode = config->flush_mode,
                           .capacity_policy = config->capacity_policy,
                           .retention = config->retention,
                           .retain_for_readers = config->retain_for_readers};
    if (config->wait_for) snprintf(out->wait_for, sizeof out->wait_for, "%s", config->wait_for);
    if (config->archive) snprintf(out->archive, sizeof out->archive, "%s", config->archive);
}

void ac_settings_apply(const ac_settings_t *settings, ac_writer_config_t *config) {
    config->batch_bytes = settings->batch_bytes;
    config->batch_ns = settings->batch_ns;
    config->capacity_bytes = settings->capacity_bytes;
    config->capacity_timeout_ns = settings->capacity_timeout_ns;
    config->reader_ttl_ns = settings->reader_ttl_ns;
    config->max_reader_lag = settings->max_reader_lag;
    config->retain_ns = settings->retain_ns;
    config->retain_bytes = settings->retain_bytes;
    config->retention_check_ns = settings->retention_check_ns;
    config->opened_ns = settings->opened_ns;
    config->flush_mode = settings->flush_mode;
    config->capacity_policy = settings->capacity_policy;
    config->retention = settings->retention;
    config->retain_for_readers = settings->retain_for_readers;
    config->wait_for = settings->wait_for[0] ? settings->wait_for : NULL;
    config->archive = settings->archive[0] ? settings->archive : NULL;
}

int ac_settings_check(const char *path, const ac_settings_t *settings, ac_error_t *err) {
    if (settings->flush_mode < AC_FLUSH_ASYNC || settings->flush_mode > AC_FLUSH_BATCH)
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "unknown flush mode %d",
                       settings->flush_mode);
    if (settings->flush_mode == AC_FLUSH_BATCH && (!settings->batch_bytes || !settings->batch_ns))
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "batch flush needs bytes and seconds > 0");
    if (settings->capacity_policy < AC_CAPACITY_FAIL ||
        settings->capacity_policy > AC_CAPACITY_BLOCK)
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "unknown capacity policy %d",
                       settings->capacity_policy);
    if (!memchr(settings->archive, 0, sizeof settings->archive))
        return ac_fail(err, AC_E_ARGUMENT, 0, path, 0, "archive path is too long");
    if (!memchr(settings->wait_for, 0, sizeof settings->wait_for) ||
        (settings->wait_for[0] && !ac_reader_name_valid(settings->wait_for)))
        return ac_fail(err, AC_E_NAME, 0, path, 0, "no reader can be called '%.72s'",
                       settings->wait_for);
    return AC_OK;
}

void ac_writer_settings(ac_writer_t *writer, ac_settings_t *out) {
    pthread_mutex_lock(&writer->mutex);
    *out = writer->settings;
    pthread_mutex_unlock(&writer->mutex);
}

int ac_writer_flush_mode(ac_writer_t *writer, uint64_t *batch_ns) {
    pthread_mutex_lock(&writer->mutex);
    int mode = writer->settings.flush_mode;
    *batch_ns = writer->settings.batch_ns;
    pthread_mutex_unlock(&writer->mutex);
    return mode;
}

/* With the mutex held, or before any other thread has the writer. Readers send heartbeats as often as the
 * ttl requires, once they know it. */
void ac_writer_announce_ttl(ac_writer_t *writer) {
    ac_settings_t *settings = &writer->settings;
    int watched = settings->retention || settings->capacity_bytes;
    uint64_t ttl_ns = watched ? settings->reader_ttl_ns : 0;
    uint64_t *announced = &writer->control->reader_ttl_ns;
    if (settings->opened_ns == 0 || ac_load_relaxed_u64(announced) != ttl_ns)
        settings->opened_ns = ac_os_monotonic_ns();
    ac_store_relaxed_u64(announced, ttl_ns);
}

void ac_writer_adopt_settings(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    ac_exchange_seq_cst_u32(&writer->settings_changed, 0);
    writer->adopted = writer->settings;
    pthread_mutex_unlock(&writer->mutex);
    ac_settings_apply(&writer->adopted, &writer->config);
    writer->capacity_end = 0; /* the capacity may have shrunk: check again */
}

/* With the mutex held. The lane's thread starts with the first writer that has retention. */
static int start_retention(ac_writer_t *writer) {
    if (writer->has_archiving) return 0;
    int rc = ac_housekeeper_add(&writer->archiving);
    writer->has_archiving = rc == 0;
    return rc;
}

/* With the mutex held. */
static int change_locked(ac_writer_t *writer, const ac_settings_t *settings, ac_error_t *err) {
    if (!writer->map || ac_load_relaxed_u32(&writer->closing))
        return ac_fail(err, AC_E_CLOSED, 0, writer->dir.path, 0, "writer is closed");
    int rc = settings->retention ? start_retention(writer) : 0;
    if (rc < 0) return ac_fail_os(err, rc, writer->dir.path, "cannot start retention");
    uint64_t opened_ns = writer->settings.opened_ns;
    writer->settings = *settings;
    writer->settings.opened_ns = opened_ns;
    ac_writer_announce_ttl(writer);
    /* In this order, and read in the opposite order by ac_writer_set_limits: whichever comes second
     * disables the appender's fast path. */
    ac_exchange_seq_cst_u32(&writer->settings_changed, 1);
    ac_exchange_seq_cst_u64(&writer->limit, 0);
    if (writer->config.inline_housekeeping) return AC_OK;
    ac_housekeeper_nudge(&writer->flush);
    if (settings->retention) ac_housekeeper_nudge(&writer->archiving);
    return AC_OK;
}

int ac_writer_configure(ac_writer_t *writer, const ac_settings_t *settings, ac_error_t *err) {
    if (writer->java)
        return ac_java_refuse(writer, "configure: its settings are those that it was opened with",
                              err);
    int rc = ac_writer_usable(writer, err);
    if (rc == AC_OK) rc = ac_settings_check(writer->dir.path, settings, err);
    if (rc != AC_OK) return rc;
    pthread_mutex_lock(&writer->mutex);
    rc = change_locked(writer, settings, err);
    pthread_mutex_unlock(&writer->mutex);
    /* A check after this call sees it. */
    if (rc == AC_OK) ac_writer_report(writer, ac_os_monotonic_ns(), 0);
    return rc;
}
