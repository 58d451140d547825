/* Questions about a whole Java queue, answered without opening it for anything. */
#include "cq4_reader.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

int ac_cq4_info(const char *path, ac_queue_info_t *out, ac_error_t *err) {
    ac_cq4_tail_t tail;
    uint32_t *cycles;
    size_t count;
    int rc = ac_cq4_tail_open(&tail, path, err);
    if (rc != AC_OK) return rc;
    rc = ac_cq4_queue_cycles(&tail.queue, &cycles, &count, err);
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

/* Tailers of Java's replication keep two more values each. */
static int is_name(const char *name) {
    return strncasecmp(name, "replicated:", 11) != 0;
}

/* Where an index is; a cycle that is not there has its start. Whether a reader of this name is open, nobody knows. */
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
    size_t prefix = strlen(AC_CQ4_KEY_NAMED);
    if (strncasecmp(key, AC_CQ4_KEY_NAMED, prefix) != 0 || !is_name(key + prefix)) return 0;
    if (entries->count < entries->room) {
        ac_reader_entry_t *entry = &entries->out[entries->count];
        memset(entry, 0, sizeof *entry);
        ac_cq4_from_latin1(key + prefix, entry->name, sizeof entry->name);
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
