/* The writer's turns in the housekeeper: pages and the next segment, which an appender may be about to
 * need, in one lane; what only costs time later in the other. */
#include "error.h"
#include "log.h"
#include "retention.h"
#include "writer.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define HEARTBEAT_NS 1000000000u

void ac_writer_note_error(ac_writer_t *writer, uint64_t *counter, const ac_error_t *err) {
    pthread_mutex_lock(&writer->mutex);
    ++*counter;
    writer->last_errno = err->sys_errno;
    memcpy(writer->last_error, err->detail, sizeof writer->last_error);
    pthread_mutex_unlock(&writer->mutex);
}

/* Once, as long as it goes on failing for the same reason. */
static void note_retention_error(ac_writer_t *writer, const ac_error_t *err) {
    pthread_mutex_lock(&writer->mutex);
    int known = strncmp(writer->last_error, err->detail, sizeof writer->last_error) == 0;
    pthread_mutex_unlock(&writer->mutex);
    if (!known) ac_log_error(AC_LOG_ERROR, err, "retention fails, so nothing is removed");
    ac_writer_note_error(writer, &writer->retention_errors, err);
}

int ac_writer_retain(ac_writer_t *writer, ac_error_t *err) {
    uint64_t deleted = 0, archived = 0, segment = 0, offset = 0, sealing = 0;
    int dir_fd = ac_writer_visit(writer, &segment, &offset, &sealing, err);
    if (dir_fd < 0) return dir_fd;
    pthread_mutex_lock(&writer->retain_mutex);
    /* Segments whose sealing is not finished are not touched. */
    int rc = ac_retain(&writer->dir, dir_fd, &writer->config, &writer->signs, writer->segment_size,
                       segment, offset, sealing, &deleted, &archived, err);
    /* Counted before the next one finds nothing left to do. */
    pthread_mutex_lock(&writer->mutex);
    writer->segments_deleted += deleted;
    writer->segments_archived += archived;
    pthread_mutex_unlock(&writer->mutex);
    pthread_mutex_unlock(&writer->retain_mutex);
    ac_os_close(dir_fd);
    return rc;
}

static void prepare(ac_writer_t *writer) {
    ac_error_t err;
    pthread_mutex_lock(&writer->mutex);
    int wanted = writer->want_next && !writer->next;
    pthread_mutex_unlock(&writer->mutex);
    if (wanted && ac_writer_prepare_next(writer, &err) != AC_OK)
        ac_writer_note_error(writer, &writer->prealloc_errors, &err);
}

/* Everything that has its own clock; returns when the next of it is due. */
static uint64_t periodic(ac_writer_t *writer, uint64_t now_ns) {
    const ac_writer_config_t *config = &writer->config;
    ac_error_t err;
    uint64_t due = UINT64_MAX;
    if (config->flush_mode == AC_FLUSH_BATCH) due = now_ns + config->batch_ns;
    if (config->retention) {
        if (now_ns >= writer->retention_due_ns) {
            if (ac_writer_retain(writer, &err) != AC_OK) note_retention_error(writer, &err);
            writer->retention_due_ns = now_ns + config->retention_check_ns;
        }
        if (writer->retention_due_ns < due) due = writer->retention_due_ns;
    }
    if (now_ns >= writer->heartbeat_due_ns) {
        ac_store_relaxed_u64(&writer->control->writer_heartbeat_ns, ac_os_now_ns());
        ac_writer_look_around(writer);
        writer->heartbeat_due_ns = now_ns + HEARTBEAT_NS;
    }
    if (writer->heartbeat_due_ns < due) due = writer->heartbeat_due_ns;
    return due;
}

uint64_t ac_writer_housekeep_pages(ac_task_t *task, uint64_t now_ns) {
    ac_writer_t *writer = (ac_writer_t *)(void *)((char *)task - offsetof(ac_writer_t, pages));
    (void)now_ns;
    /* A busy writer needs pages until its segment is full, and that is too late for the next one. */
    do
        prepare(writer);
    while (ac_writer_populate_ahead(writer) == 1);
    return UINT64_MAX;
}

static ac_writer_t *of_disk(ac_task_t *task) {
    return (ac_writer_t *)(void *)((char *)task - offsetof(ac_writer_t, disk));
}

/* One after the other, the syncs of a hundred writers would take longer than the seconds they have. A failure
 * poisons its writer: the next append reports it. */
void ac_writer_flush_batches(ac_task_t *const *tasks, size_t count) {
    size_t flushed = 0;
    ac_writer_t **writers = ac_os_alloc(count * sizeof *writers);
    int64_t *results = ac_os_alloc(count * sizeof *results);
    ac_error_t *errors = ac_os_alloc(count * sizeof *errors);
    for (size_t i = 0; i < count; i++) {
        ac_writer_t *writer = of_disk(tasks[i]);
        ac_error_t err;
        if (writers && results && errors)
            writers[flushed++] = writer;
        else
            ac_writer_flush(writer, &err);
    }
    if (flushed > 0) ac_writers_flush(writers, flushed, results, errors);
    free(writers);
    free(results);
    free(errors);
}

uint64_t ac_writer_housekeep_disk(ac_task_t *task, uint64_t now_ns) {
    ac_writer_t *writer = of_disk(task);
    ac_error_t err;
    /* One at a time: a writer that is far ahead of its disk must not keep everything else from being done. A
     * failure poisons the writer, which reports it. */
    int sealed = ac_writer_seal_next(writer, &err);
    uint64_t due = periodic(writer, now_ns);
    return sealed == 1 ? now_ns : due;
}
