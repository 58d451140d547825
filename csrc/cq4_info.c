/* Questions about a whole Java queue, answered without opening it. */
#include "cq4_reader.h"
#include "error.h"
#include "os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What the file of a cycle takes on disk; 0 if it cannot be checked. */
static uint64_t measure_cycle(const ac_cq4_queue_t *queue, int dir_fd, uint32_t cycle) {
    char name[AC_CQ4_NAME_MAX];
    struct stat info;
    if (ac_cq4_roll_file_name(&queue->roll, cycle, name) != AC_OK) return 0;
    return ac_os_stat_at(dir_fd, name, &info) == 0 ? (uint64_t)info.st_blocks * 512 : 0;
}

static int find_holder(const ac_cq4_queue_t *queue) {
    uint64_t word = queue->write_lock ? ac_load_acquire_u64(queue->write_lock) : AC_CQ4_UNLOCKED;
    return word == AC_CQ4_UNLOCKED || (int32_t)word <= 0 ? 0 : (int32_t)word;
}

static int measure(const ac_cq4_queue_t *queue, const uint32_t *cycles, size_t count,
                   ac_queue_info_t *out, ac_error_t *err) {
    const ac_cq4_known_roll_t *known = ac_cq4_roll_by_format(queue->roll.format);
    int dir_fd = ac_directory_open(&queue->dir, err);
    if (dir_fd < 0) return dir_fd;
    for (size_t i = 0; i < count; i++)
        out->disk_bytes += measure_cycle(queue, dir_fd, cycles[i]);
    ac_os_close(dir_fd);
    if (known) snprintf(out->roll_cycle, sizeof out->roll_cycle, "%s", known->name);
    out->holder_pid = find_holder(queue);
    return AC_OK;
}

int ac_cq4_info(const char *path, ac_queue_info_t *out, ac_error_t *err) {
    ac_cq4_tail_t tail;
    uint32_t *cycles;
    size_t count;
    int rc = ac_cq4_tail_open(&tail, path, err);
    if (rc != AC_OK) return rc;
    rc = ac_cq4_queue_cycles(&tail.queue, &cycles, &count, err);
    out->format = AC_FORMAT_CQ4;
    if (rc == AC_OK) rc = measure(&tail.queue, cycles, count, out, err);
    if (rc == AC_OK && count) out->oldest_ns = ac_cq4_roll_moment_ns(&tail.queue.roll, cycles[0]);
    if (rc == AC_OK) rc = ac_cq4_tail_seek_last(&tail, err);
    if (rc == AC_OK) {
        out->segments = count;
        out->first_segment = count ? cycles[0] : 0;
        out->last_segment = count ? cycles[count - 1] : 0;
        out->next_seq = tail.index;
        out->current_segment = tail.segment;
        out->write_offset = tail.offset;
        out->last_timestamp_ns = tail.timestamp_ns;
    }
    free(cycles);
    ac_cq4_tail_close(&tail);
    return rc;
}

typedef struct entries {
    ac_cq4_queue_t *queue;
    ac_reader_entry_t *out;
    size_t count, room;
} entries_t;

/* The name of the tailer whose index a key has; NULL = it is another key. Tailers of Java's replication
 * store two more values each, which are not used here. */
static const char *tailer_of(const char *key) {
    size_t prefix = strlen(AC_CQ4_KEY_NAMED);
    if (strncasecmp(key, AC_CQ4_KEY_NAMED, prefix) != 0) return NULL;
    return strncasecmp(key + prefix, "replicated:", 11) == 0 ? NULL : key + prefix;
}

/* Where an index is; a cycle that does not exist has its start. Whether a reader of this name is open is
 * unknown. */
static void locate(ac_cq4_queue_t *queue, uint64_t index, ac_reader_entry_t *entry) {
    ac_cq4_cycle_t cycle;
    uint64_t number = queue->roll.shift ? ac_cq4_cycle_of_index(&queue->roll, index) : 0;
    if (index == 0 || number > AC_CQ4_CYCLE_MAX) return;
    entry->segment = number;
    if (ac_cq4_queue_open_cycle(queue, (uint32_t)number, &cycle, NULL) != AC_OK) return;
    entry->offset = ac_cq4_cycle_find(&cycle, index & ac_cq4_seq_mask(&queue->roll)).offset;
    ac_cq4_cycle_close(&cycle);
}

static int note(void *context, const char *key, uint64_t *value) {
    entries_t *entries = context;
    const char *name = tailer_of(key);
    if (!name) return 0;
    if (entries->count < entries->room) {
        ac_reader_entry_t *entry = &entries->out[entries->count];
        memset(entry, 0, sizeof *entry);
        ac_cq4_from_latin1(name, entry->name, sizeof entry->name);
        locate(entries->queue, ac_load_acquire_u64(value), entry);
    }
    entries->count++;
    return 0;
}

int64_t ac_cq4_readers(const char *path, ac_reader_entry_t *out, size_t room, ac_error_t *err) {
    ac_cq4_queue_t queue;
    int rc = ac_cq4_queue_open(path, &queue, err);
    if (rc != AC_OK) return rc;
    entries_t entries = {&queue, out, 0, room};
    if (queue.dialect == AC_CQ4_DIALECT_V5) ac_cq4_table_each(&queue.table, note, &entries, NULL);
    ac_cq4_queue_close(&queue);
    return (int64_t)entries.count;
}

/* ---- files ---- */

typedef struct tailer {
    char name[sizeof((ac_kept_segment_t *)0)->reader];
    uint64_t index;
} tailer_t;

typedef struct tailers {
    tailer_t *tailers;
    size_t count, room;
} tailers_t;

static int note_tailer(void *context, const char *key, uint64_t *value) {
    tailers_t *tailers = context;
    const char *name = tailer_of(key);
    if (!name) return 0;
    if (tailers->count == tailers->room) {
        size_t room = tailers->room ? tailers->room * 2 : 16;
        tailer_t *grown = realloc(tailers->tailers, room * sizeof *grown);
        if (!grown) return -ENOMEM;
        tailers->tailers = grown;
        tailers->room = room;
    }
    tailer_t *tailer = &tailers->tailers[tailers->count++];
    ac_cq4_from_latin1(name, tailer->name, sizeof tailer->name);
    tailer->index = ac_load_acquire_u64(value);
    return 0;
}

static void explain_cycle(const ac_cq4_queue_t *queue, const tailers_t *tailers, int is_last,
                          ac_kept_segment_t *out) {
    const tailer_t *slowest = NULL;
    for (size_t i = 0; i < tailers->count; i++) {
        const tailer_t *tailer = &tailers->tailers[i];
        if (ac_cq4_cycle_of_index(&queue->roll, tailer->index) > out->segment) continue;
        out->readers++;
        if (!slowest || tailer->index < slowest->index) slowest = tailer;
    }
    if (slowest) snprintf(out->reader, sizeof out->reader, "%s", slowest->name);
    out->why = is_last ? AC_KEPT_ACTIVE : slowest ? AC_KEPT_TAILER : AC_KEPT_OPERATOR;
}

int64_t ac_cq4_why_kept(const char *path, ac_kept_segment_t *out, size_t room, ac_error_t *err) {
    ac_cq4_queue_t queue;
    tailers_t tailers = {0};
    uint32_t *cycles = NULL;
    size_t count = 0;
    int rc = ac_cq4_queue_open(path, &queue, err);
    if (rc != AC_OK) return rc;
    rc = ac_cq4_queue_learn(&queue, err);
    if (rc >= 0) rc = ac_cq4_queue_cycles(&queue, &cycles, &count, err);
    if (rc == AC_OK && queue.dialect == AC_CQ4_DIALECT_V5 &&
        ac_cq4_table_each(&queue.table, note_tailer, &tailers, NULL) < 0)
        rc = ac_fail(err, AC_E_SYSTEM, ENOMEM, path, 0, "no memory for its tailers");
    int dir_fd = rc == AC_OK ? ac_directory_open(&queue.dir, err) : rc;
    for (size_t i = 0; dir_fd >= 0 && i < count && i < room; i++) {
        out[i] = (ac_kept_segment_t){.segment = cycles[i],
                                     .bytes = measure_cycle(&queue, dir_fd, cycles[i])};
        ac_cq4_roll_file_name(&queue.roll, cycles[i], out[i].file);
        explain_cycle(&queue, &tailers, i + 1 == count, &out[i]);
    }
    if (dir_fd >= 0) ac_os_close(dir_fd);
    free(cycles);
    free(tailers.tailers);
    ac_cq4_queue_close(&queue);
    return dir_fd < 0 ? dir_fd : (int64_t)count;
}
