/* A Java queue as an ac_writer_t: the Java half of each public call.
 *
 * Native and Java writers are one type, so that callers need not distinguish them. `java` is NULL for a native queue. For
 * a Java queue `limit` is always 0, so that the fast path leaves every message to the full call, which comes here. What
 * cq4_writer.h does is not repeated: this file maintains what the handle shows (seq, counters, state), and refuses what a
 * Java queue does not support.
 *
 * There is no writer lock to hold, nothing to recover, nothing to prepare: other processes append at the same time, and
 * each append takes Java's lock for itself. */
#include "cq4_queue.h"
#include "cq4_writer.h"
#include "error.h"
#include "writer.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

/* An argument that a native queue would take. */
static int unsupported(const char *path, const char *what, ac_error_t *err) {
    return ac_fail(err, AC_E_UNSUPPORTED, ENOTSUP, path, 0, "%s", what);
}

/* The caller's clock, if there is one: read before, since no code of the caller's runs while Java's lock is
 * held. */
static uint64_t shown_time(void *context) {
    const ac_writer_t *writer = context;
    uint64_t now_ns = ac_load_relaxed_u64(&writer->java_now_ns);
    return now_ns == AC_NOW ? ac_os_now_ns() : now_ns;
}

static _Thread_local const ac_writer_t *appending; /* in this thread */

/* Called while a thread waits for its turn, for Java's lock or for the clock. Only appends can be
 * interrupted. The function may close the writer, or fork. */
static int is_interrupted(void *context) {
    const ac_writer_t *writer = context;
    if (appending != writer) return 0;
    if (ac_load_relaxed_u32(&writer->closing)) return 1;
    if (writer->interrupted && writer->interrupted()) return 1;
    return ac_load_relaxed_u32(&writer->closing) ||
           ac_load_relaxed_u32(&writer->state) != AC_STATE_OPEN;
}

static uint64_t rest(ac_task_t *task, uint64_t now_ns) {
    (void)task;
    (void)now_ns;
    return UINT64_MAX;
}

static void on_fork(ac_task_t *task) {
    ac_writer_t *writer = (ac_writer_t *)(void *)((char *)task - offsetof(ac_writer_t, pages));
    ac_store_relaxed_u32(&writer->state, AC_STATE_FORKED);
    pthread_mutex_init(&writer->mutex, NULL);
    pthread_mutex_init(&writer->sync_mutex, NULL);
}

static int check_config(const char *path, const ac_writer_config_t *config, ac_error_t *err) {
    ac_writer_config_t usual;
    ac_writer_defaults(&usual);
    if (config->segment_size != usual.segment_size)
        return unsupported(path, "segment_size: Java decides how large the files of a queue are",
                           err);
    if (config->roll_bytes || config->roll_ns || config->roll_messages)
        return unsupported(path, "roll: a Java queue rolls by its roll_cycle, and by nothing else",
                           err);
    if (config->flush_mode == AC_FLUSH_BATCH)
        return unsupported(
            path, "flush=Batch: Java counts nothing that is not synced; use \"async\" or \"sync\"",
            err);
    if (config->capacity_bytes)
        return unsupported(path, "capacity: a Java queue does not know how far its readers are",
                           err);
    if (config->retention)
        return unsupported(
            path, "retention: a Java queue does not know which of its files are still needed", err);
    if (config->max_ahead_ns)
        return unsupported(path, "max_ahead_s: messages of a Java queue have no timestamps", err);
    if (config->memlock)
        return unsupported(path, "memlock: other processes map the files of a Java queue, too",
                           err);
    if (config->verify)
        return unsupported(path, "verify: messages of a Java queue have no checksums", err);
    if (config->salvage)
        return unsupported(path, "recover=\"salvage\": opening a Java queue sets nothing aside",
                           err);
    return AC_OK;
}

/* The newest message's index plus one, 0 if there is none. For what the handle shows: others may be
 * appending. */
static uint64_t end_of_queue(const char *path) {
    ac_cq4_queue_t queue;
    ac_cq4_cycle_t cycle;
    uint32_t *cycles = NULL;
    size_t count = 0;
    uint64_t end = 0;
    if (ac_cq4_queue_open(path, &queue, NULL) != AC_OK) return 0;
    if (ac_cq4_queue_cycles(&queue, &cycles, &count, NULL) != AC_OK) count = 0;
    while (end == 0 && count-- > 0) {
        if (ac_cq4_queue_open_cycle(&queue, cycles[count], &cycle, NULL) != AC_OK) continue;
        uint64_t messages = ac_cq4_cycle_end(&cycle).seq;
        if (messages > 0) end = ac_cq4_index(&queue.roll, cycles[count], messages);
        ac_cq4_cycle_close(&cycle);
    }
    free(cycles);
    ac_cq4_queue_close(&queue);
    return end;
}

int ac_java_open(ac_writer_t *writer, const char *path, ac_error_t *err) {
    const ac_writer_config_t *config = &writer->config;
    ac_cq4_writer_config_t java;
    int rc = check_config(path, config, err);
    if (rc != AC_OK) return rc;
    writer->java_now_ns = config->now_ns;
    ac_cq4_writer_defaults(&java);
    java.roll_cycle = config->roll_cycle;
    java.epoch_ms = config->epoch_ms;
    java.epoch_given = config->epoch_given;
    java.mode = config->mode;
    java.sync = config->flush_mode == AC_FLUSH_SYNC;
    java.clock_ns = config->now_ns == AC_NOW ? NULL : shown_time;
    java.clock_context = writer;
    java.interrupted = is_interrupted;
    java.interrupted_context = writer;
    if (config->lock_timeout_ns) java.lock_timeout_ns = config->lock_timeout_ns;
    rc = ac_cq4_writer_open(path, &java, &writer->java, err);
    if (rc == AC_OK) rc = ac_directory_init(&writer->dir, path, config->mode, 0, err);
    if (rc != AC_OK) return rc;
    writer->recovery.clean = 1;
    writer->seq = writer->durable_seq = end_of_queue(path);
    writer->pages = (ac_task_t){.run = rest, .forked = on_fork, .lane = AC_LANE_MEMORY};
    rc = ac_housekeeper_add(&writer->pages);
    return rc < 0 ? ac_fail_os(err, rc, path, "cannot start the housekeeping threads") : AC_OK;
}

/* What a message of a Java queue can have: a payload only. */
static int check_message(const ac_writer_t *writer, unsigned type_id, int has_timestamp,
                         const ac_cause_t *cause, ac_error_t *err) {
    const char *path = writer->dir.path;
    if (type_id != 0)
        return unsupported(path, "type_id: a message of a Java queue has only its payload", err);
    if (has_timestamp)
        return unsupported(
            path,
            "timestamp_ns: put the time into the payload, and have readers take it from there",
            err);
    if (cause && cause->is_expiry)
        return unsupported(path, "expires_ns: a message of a Java queue has only its payload", err);
    if (cause)
        return unsupported(path, "cause: a message of a Java queue has only its payload", err);
    return AC_OK;
}

/* What was appended and synced, in sync mode. */
static void note_durable(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    writer->durable_seq = ac_load_relaxed_u64(&writer->seq);
    writer->syncs++;
    pthread_mutex_unlock(&writer->mutex);
}

/* After a failure another sync of the same pages succeeds, whether they are on disk or not. */
static void poison(ac_writer_t *writer, int sys_errno) {
    ac_store_release_u32(&writer->poisoned, (uint32_t)(sys_errno ? sys_errno : EIO));
}

static int check_usable(const ac_writer_t *writer, ac_error_t *err) {
    int rc = ac_writer_usable(writer, err);
    uint32_t poisoned = ac_load_acquire_u32(&writer->poisoned);
    if (rc != AC_OK || !poisoned) return rc;
    return ac_fail(err, AC_E_POISONED, (int)poisoned, writer->dir.path, 0,
                   "an earlier sync failed; close the writer and open it again");
}

static void note_run(ac_writer_t *writer, uint64_t messages, uint64_t bytes, uint64_t last_index) {
    ac_store_release_u64(&writer->seq, last_index + 1);
    ac_count_u64(&writer->java_messages, messages);
    ac_count_u64(&writer->payload_bytes, bytes);
}

static int64_t note(ac_writer_t *writer, size_t length, int64_t index) {
    if (index >= 0) {
        note_run(writer, 1, length, (uint64_t)index);
        if (writer->config.flush_mode == AC_FLUSH_SYNC) note_durable(writer);
    }
    if (index == AC_E_NOT_DURABLE) poison(writer, 0);
    if (index == AC_E_GONE)
        __atomic_store_n(&writer->gone, "the queue's files were removed or replaced",
                         __ATOMIC_RELEASE);
    return index;
}

int64_t ac_java_try_append(ac_writer_t *writer, const void *payload, size_t length) {
    if (check_usable(writer, NULL) != AC_OK) return AC_E_SLOW;
    int64_t index = ac_cq4_writer_try_append(writer->java, payload, length);
    return index < 0 ? AC_E_SLOW : note(writer, length, index);
}

int ac_writer_may_wait(ac_writer_t *writer) {
    if (!writer->java) return 0;
    if (pthread_mutex_trylock(&writer->mutex) != 0) return 1; /* it is being closed, or synced */
    int may_wait = check_usable(writer, NULL) == AC_OK && ac_cq4_writer_may_wait(writer->java);
    pthread_mutex_unlock(&writer->mutex);
    return may_wait;
}

/* A signal handler cannot close a writer that has its turn: it leaves that to the append that it
 * interrupted. */
static int64_t end_wait(ac_writer_t *writer, ac_error_t *err) {
    if (ac_load_relaxed_u32(&writer->state) != AC_STATE_OPEN) return ac_writer_usable(writer, err);
    if (!ac_load_relaxed_u32(&writer->closing)) return AC_E_INTERRUPTED;
    int rc = ac_java_close(writer, err);
    return rc < 0 ? rc
                  : ac_fail(err, AC_E_CLOSED, 0, writer->dir.path, 0,
                            "the writer was closed while it waited to append");
}

/* Appends as many of these as one lock allows; only one if each must be on disk before the next. */
static int64_t append_run(ac_writer_t *writer, const ac_slice_t *items, size_t count,
                          size_t *appended, ac_error_t *err) {
    const ac_writer_t *before = appending; /* not NULL: a signal handler appends to another queue */
    ac_cq4_run_t run;
    int64_t index;
    int is_alone = count == 1 || writer->config.flush_mode == AC_FLUSH_SYNC;
    appending = writer;
    if (is_alone)
        index = ac_cq4_writer_append(writer->java, items->data, items->length, err);
    else
        index = ac_cq4_writer_append_run(writer->java, items, count, &run, err);
    appending = before;
    *appended = is_alone || index < 0 ? 1 : run.messages;
    if (is_alone || index < 0)
        note(writer, items->length, index);
    else
        note_run(writer, run.messages, run.bytes, run.last_index);
    return index == AC_E_INTERRUPTED ? end_wait(writer, err) : index;
}

static int64_t append(ac_writer_t *writer, const void *payload, size_t length, ac_error_t *err) {
    ac_slice_t item = {.data = payload, .length = length};
    size_t appended;
    return append_run(writer, &item, 1, &appended, err);
}

int64_t ac_java_append(ac_writer_t *writer, const void *payload, size_t length, unsigned type_id,
                       uint64_t timestamp_ns, const ac_cause_t *cause, ac_error_t *err) {
    int rc = check_usable(writer, err);
    if (rc == AC_OK) rc = check_message(writer, type_id, timestamp_ns != AC_NOW, cause, err);
    return rc == AC_OK ? append(writer, payload, length, err) : rc;
}

/* Run by run: others may append in between, and a failure leaves the messages before it in the queue. */
int64_t ac_java_append_many(ac_writer_t *writer, const ac_slice_t *items, size_t count,
                            unsigned type_id, const uint64_t *timestamps_ns,
                            const ac_cause_t *cause, ac_error_t *err) {
    int rc = check_usable(writer, err);
    if (rc == AC_OK) rc = check_message(writer, type_id, timestamps_ns != NULL, cause, err);
    if (rc != AC_OK) return rc;
    int64_t first = (int64_t)ac_load_relaxed_u64(&writer->seq);
    for (size_t i = 0, appended; i < count; i += appended) {
        ac_error_t why;
        int64_t index = append_run(writer, &items[i], count - i, &appended, &why);
        if (index < 0) {
            if (err) *err = why;
            if (err && i > 0 && index != AC_E_INTERRUPTED)
                ac_fail(err, why.code, why.sys_errno, why.path, why.offset,
                        "the first %zu of %zu messages were appended, then: %.180s", i, count,
                        why.detail);
            return index;
        }
        if (i == 0) first = index;
    }
    if (count > 0) ac_count_u64(&writer->batches, 1);
    return first;
}

int ac_java_refuse(const ac_writer_t *writer, const char *what, ac_error_t *err) {
    int rc = ac_writer_usable(writer, err);
    return rc == AC_OK ? ac_fail(err, AC_E_UNSUPPORTED, 0, writer->dir.path, 0, "%s", what) : rc;
}

/* Everything that this writer has appended, and with it what others have in the same files. */
int64_t ac_java_flush(ac_writer_t *writer, ac_error_t *err) {
    if (ac_load_relaxed_u32(&writer->state) == AC_STATE_FORKED)
        return ac_writer_usable(writer, err);
    uint64_t seq = ac_load_acquire_u64(&writer->seq);
    pthread_mutex_lock(&writer->sync_mutex);
    pthread_mutex_lock(&writer->mutex);
    uint64_t durable = writer->durable_seq;
    pthread_mutex_unlock(&writer->mutex);
    int rc = AC_OK;
    if (durable < seq) {
        ac_error_t why;
        rc = check_usable(writer, err);
        int synced = rc == AC_OK ? ac_cq4_writer_flush(writer->java, &why) : AC_OK;
        if (synced != AC_OK && synced != AC_E_GONE) poison(writer, why.sys_errno);
        if (synced != AC_OK && err) *err = why;
        if (rc == AC_OK) rc = synced;
        if (rc == AC_OK) {
            pthread_mutex_lock(&writer->mutex);
            writer->durable_seq = seq;
            writer->syncs++;
            pthread_mutex_unlock(&writer->mutex);
        }
    }
    pthread_mutex_unlock(&writer->sync_mutex);
    return rc == AC_OK ? (int64_t)(durable < seq ? seq : durable) : rc;
}

void ac_java_stats(ac_writer_t *writer, ac_writer_stats_t *out) {
    ac_cq4_writer_stats_t java;
    pthread_mutex_lock(&writer->mutex);
    ac_cq4_writer_stats(writer->java, &java);
    ac_cq4_writer_position(writer->java, &out->segment, &out->offset);
    out->durable_seq = writer->durable_seq;
    out->syncs = writer->syncs;
    pthread_mutex_unlock(&writer->mutex);
    out->messages = ac_load_relaxed_u64(&writer->java_messages);
    out->payload_bytes = ac_load_relaxed_u64(&writer->payload_bytes);
    out->batches = ac_load_relaxed_u64(&writer->batches);
    out->next_seq = ac_load_acquire_u64(&writer->seq);
    out->rolls = java.cycles_entered > 0 ? java.cycles_entered - 1 : 0;
}

void ac_java_identity(const ac_writer_t *writer, ac_identity_t *out) {
    const ac_cq4_table_t *table = &ac_cq4_writer_queue(writer->java)->table;
    *out = (ac_identity_t){.device = table->device, .inode = table->inode};
}

void ac_java_free(ac_writer_t *writer) {
    ac_cq4_writer_free(writer->java);
    writer->java = NULL;
}

int ac_java_close(ac_writer_t *writer, ac_error_t *err) {
    int64_t flushed = ac_java_flush(writer, err);
    ac_housekeeper_remove(&writer->pages);
    pthread_mutex_lock(&writer->sync_mutex);
    pthread_mutex_lock(&writer->mutex);
    ac_store_relaxed_u32(&writer->state, AC_STATE_CLOSED);
    ac_cq4_writer_close(writer->java);
    pthread_mutex_unlock(&writer->mutex);
    pthread_mutex_unlock(&writer->sync_mutex);
    /* A caller that removed it need not know; one that goes on appending gets an error before. */
    return flushed < 0 && flushed != AC_E_GONE ? (int)flushed : AC_OK;
}
