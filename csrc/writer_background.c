/* The writer's turns in the housekeeper, one task per lane: pages and the next segment; batches, heartbeats
 * and checks of the queue's files; sealing; retention. See housekeeper.h for why these are separate. */
#include "error.h"
#include "log.h"
#include "retention.h"
#include "writer.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define HEARTBEAT_NS 1000000000u

int ac_writer_retain(ac_writer_t *writer, ac_error_t *err) {
    uint64_t deleted = 0, archived = 0, segment = 0, offset = 0, sealing = 0;
    ac_settings_t settings;
    ac_writer_config_t config;
    if (writer->java)
        return ac_java_refuse(
            writer, "retention: a Java queue does not know which of its files are still needed",
            err);
    int dir_fd = ac_writer_visit(writer, &segment, &offset, &sealing, err);
    if (dir_fd < 0) return dir_fd;
    pthread_mutex_lock(&writer->retain_mutex);
    ac_writer_settings(writer, &settings);
    ac_settings_apply(&settings, &config);
    /* Segments whose sealing is not finished are not touched. */
    int rc = ac_retain(&writer->dir, dir_fd, &config, &writer->liveness, writer->segment_size,
                       segment, offset, sealing, &writer->closing, &deleted, &archived, err);
    /* Counted before the next one finds nothing left to do. */
    pthread_mutex_lock(&writer->mutex);
    writer->segments_deleted += deleted;
    writer->segments_archived += archived;
    pthread_mutex_unlock(&writer->mutex);
    pthread_mutex_unlock(&writer->retain_mutex);
    ac_os_close(dir_fd);
    if (deleted || archived)
        ac_log(AC_LOG_DEBUG, writer->dir.path, "retention: %llu segments %s",
               (unsigned long long)(deleted + archived), archived ? "archived" : "deleted");
    return rc;
}

static void prepare(ac_writer_t *writer) {
    ac_error_t err;
    pthread_mutex_lock(&writer->mutex);
    int wanted =
        writer->want_next && !writer->next && ac_writer_check_removed(writer, NULL) == AC_OK;
    pthread_mutex_unlock(&writer->mutex);
    if (wanted) ac_writer_prepare_next(writer, &err);
}

/* All writers of a process have such turns at the same moments, so that an idle process wakes up once for
 * all of them. */
static uint64_t next_moment(uint64_t now_ns, uint64_t interval_ns) {
    return interval_ns ? (now_ns / interval_ns + 1) * interval_ns : now_ns;
}

uint64_t ac_writer_housekeep_pages(ac_task_t *task, uint64_t now_ns) {
    ac_writer_t *writer = (ac_writer_t *)(void *)((char *)task - offsetof(ac_writer_t, pages));
    (void)now_ns;
    /* A busy writer needs pages until its segment is full, which is too late for the next segment. */
    do
        prepare(writer);
    while (ac_writer_populate_ahead(writer) == 1);
    return writer->config.inline_housekeeping ? UINT64_MAX : ac_writer_refresh_pages(writer);
}

static ac_writer_t *of_flush(ac_task_t *task) {
    return (ac_writer_t *)(void *)((char *)task - offsetof(ac_writer_t, flush));
}

/* One after the other, the syncs of a hundred writers would take longer than the seconds they have. The
 * batch of a writer that is being sealed, or flushed by another thread, is flushed where segments are
 * sealed: the others do not wait for it. A failure poisons its writer: the next append reports it. */
void ac_writer_flush_batches(ac_task_t *const *tasks, size_t count) {
    size_t flushed = 0;
    uint64_t batch_ns;
    ac_writer_t **writers = ac_os_alloc(count * sizeof *writers);
    int64_t *results = ac_os_alloc(count * sizeof *results);
    ac_error_t *errors = ac_os_alloc(count * sizeof *errors);
    for (size_t i = 0; i < count; i++) {
        ac_writer_t *writer = of_flush(tasks[i]);
        ac_error_t err;
        if (ac_writer_flush_mode(writer, &batch_ns) != AC_FLUSH_BATCH) continue;
        if (writers && results && errors)
            writers[flushed++] = writer;
        else
            ac_writer_flush(writer, &err);
    }
    if (flushed > 0) ac_writers_try_flush(writers, flushed, results, errors);
    for (size_t i = 0; i < flushed; i++)
        if (results[i] == AC_E_SLOW) {
            ac_exchange_seq_cst_u32(&writers[i]->batch_due, 1);
            ac_housekeeper_nudge(&writers[i]->disk);
        }
    free(writers);
    free(results);
    free(errors);
}

/* The batch itself was flushed together with those of others. */
uint64_t ac_writer_housekeep_flush(ac_task_t *task, uint64_t now_ns) {
    ac_writer_t *writer = of_flush(task);
    if (now_ns >= writer->heartbeat_due_ns) {
        ac_store_relaxed_u64(&writer->control->writer_heartbeat_ns, ac_os_now_ns());
        /* Sleepers on it that were taken for dead: see wake_other_programs. */
        if (ac_load_relaxed_u32(&writer->control->waiters_pending))
            ac_os_futex_wake(&writer->control->notify_seq, INT_MAX);
        ac_writer_check_files(writer);
        ac_writer_log_clock(writer, now_ns);
        ac_writer_notice_settings(writer);
        ac_writer_report(writer, now_ns, 1);
        if (ac_load_relaxed_u64(&writer->offset) != ac_load_relaxed_u64(&writer->refreshed_offset))
            ac_housekeeper_nudge(&writer->pages);
        writer->heartbeat_due_ns = next_moment(now_ns, HEARTBEAT_NS);
        enum ac_write_back due = ac_writer_find_write_back(writer, now_ns);
        if (due != AC_WRITE_BACK_NOTHING) {
            ac_exchange_seq_cst_u32(&writer->write_back_due, due);
            ac_housekeeper_nudge(&writer->disk);
        }
    }
    uint64_t due = writer->heartbeat_due_ns, batch_ns;
    int batches = ac_writer_flush_mode(writer, &batch_ns) == AC_FLUSH_BATCH;
    return batches && now_ns + batch_ns < due ? now_ns + batch_ns : due;
}

/* One at a time: a writer that is far ahead of its disk must not keep other writers' segments from being
 * sealed. A failure poisons the writer, which reports it. */
uint64_t ac_writer_housekeep_disk(ac_task_t *task, uint64_t now_ns) {
    ac_writer_t *writer = (ac_writer_t *)(void *)((char *)task - offsetof(ac_writer_t, disk));
    ac_error_t err;
    int sealed = ac_writer_seal_next(writer, &err);
    if (ac_exchange_seq_cst_u32(&writer->batch_due, 0)) ac_writer_flush(writer, &err);
    ac_writer_write_back(writer,
                         (enum ac_write_back)ac_exchange_seq_cst_u32(&writer->write_back_due, 0));
    return sealed == 1 ? now_ns : UINT64_MAX;
}

uint64_t ac_writer_housekeep_archive(ac_task_t *task, uint64_t now_ns) {
    ac_writer_t *writer = (ac_writer_t *)(void *)((char *)task - offsetof(ac_writer_t, archiving));
    ac_error_t err;
    ac_settings_t settings;
    ac_writer_settings(writer, &settings);
    if (!settings.retention) return UINT64_MAX; /* no longer */
    int rc = ac_writer_retain(writer, &err);
    if (rc == AC_OK)
        ac_writer_note_success(writer, &writer->retention_errors);
    else if (rc != AC_E_CLOSED)
        ac_writer_note_error(writer, &writer->retention_errors, &err);
    return next_moment(now_ns, settings.retention_check_ns);
}

enum { TASKS = 4 };

/* Returns how many to start: the last one only with retention. */
static int tasks_of(ac_writer_t *writer, ac_task_t *tasks[TASKS]) {
    tasks[0] = &writer->pages;
    tasks[1] = &writer->flush;
    tasks[2] = &writer->disk;
    tasks[3] = &writer->archiving;
    return writer->settings.retention ? TASKS : TASKS - 1;
}

int ac_writer_start_housekeeping(ac_writer_t *writer, ac_error_t *err) {
    ac_task_t *tasks[TASKS];
    int count = tasks_of(writer, tasks), added = 0, rc = 0;
    while (added < count && (rc = ac_housekeeper_add(tasks[added])) == 0)
        added++;
    while (rc < 0 && added > 0)
        ac_housekeeper_remove(tasks[--added]);
    writer->has_archiving = added == TASKS;
    return rc < 0 ? ac_fail_os(err, rc, writer->dir.path, "cannot start the housekeeping threads")
                  : AC_OK;
}

void ac_writer_nudge_housekeeping(ac_writer_t *writer) {
    ac_task_t *tasks[TASKS];
    int count = tasks_of(writer, tasks);
    for (int i = 0; i < count; i++)
        ac_housekeeper_nudge(tasks[i]);
}

void ac_writer_stop_housekeeping(ac_writer_t *writer) {
    ac_task_t *tasks[TASKS];
    tasks_of(writer, tasks);
    /* A change of settings checks this before it starts retention, with the mutex held. */
    pthread_mutex_lock(&writer->mutex);
    ac_store_relaxed_u32(&writer->closing, 1);
    pthread_mutex_unlock(&writer->mutex);
    for (int i = 0; i < TASKS; i++)
        ac_housekeeper_remove(tasks[i]); /* one that was not started is not in the list */
}
