#include "segment_tail.h"

#include "record.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* An entry covers 4096 records: this many entries are half a gigabyte of small messages. */
enum { TAILS = 64, ENTRIES_MAX = 4096 };

typedef struct tail {
    char *path;
    uint64_t queue_id;
    ac_index_t index;
} tail_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static tail_t tails[TAILS];
static unsigned next_victim;

static void forget(tail_t *tail) {
    free(tail->path);
    ac_index_free(&tail->index);
    memset(tail, 0, sizeof *tail);
}

static tail_t *find(const char *path, uint64_t queue_id, uint32_t segment) {
    for (tail_t *tail = tails; tail < tails + TAILS; tail++)
        if (tail->path && tail->queue_id == queue_id && tail->index.segment == segment &&
            strcmp(tail->path, path) == 0)
            return tail;
    return NULL;
}

static int copy_entries(ac_index_t *to, const ac_index_t *from, size_t count) {
    ac_index_entry_t *entries = malloc(count * sizeof *entries);
    if (!entries) return 0;
    memcpy(entries, from->entries, count * sizeof *entries);
    *to = *from;
    to->entries = entries;
    to->count = to->room = count;
    return 1;
}

void ac_tail_keep(const char *path, uint64_t queue_id, const ac_index_t *index) {
    if (queue_id == 0 || index->count < 2 || index->count > ENTRIES_MAX || index->broken ||
        index->seq_unordered || index->time_unordered || pthread_mutex_trylock(&mutex) != 0)
        return;
    tail_t *tail = find(path, queue_id, index->segment);
    if (!tail || tail->index.count < index->count) {
        ac_index_t copy;
        char *name = strdup(path);
        if (!tail) tail = &tails[next_victim++ % TAILS];
        if (name && copy_entries(&copy, index, index->count)) {
            forget(tail);
            *tail = (tail_t){name, queue_id, copy};
        } else {
            free(name);
        }
    }
    pthread_mutex_unlock(&mutex);
}

static int is_there(const ac_index_entry_t *entry, const ac_map_t *map) {
    ac_message_t message;
    const char *why;
    return ac_record_inspect(map->base, map->size, entry->offset, map->segment, AC_CHECK_PAYLOAD,
                             &message, &why) == AC_RECORD_GOOD &&
           message.type_id != AC_TYPE_PADDING && message.seq == entry->seq &&
           message.timestamp_ns == entry->timestamp_ns;
}

int ac_tail_recall(const char *path, uint64_t queue_id, const ac_map_t *map, ac_index_t *index) {
    if (queue_id == 0 || pthread_mutex_trylock(&mutex) != 0) return 0;
    tail_t *tail = find(path, queue_id, map->segment);
    int recalled = 0;
    if (tail) {
        const ac_index_entry_t *last = &tail->index.entries[tail->index.count - 1];
        if (is_there(last, map))
            recalled = copy_entries(index, &tail->index, tail->index.count - 1);
        if (recalled) { /* the walk that continues at its record makes the last entry again */
            index->complete = 0;
            index->records = index->count * AC_INDEX_STRIDE;
            index->end = last->offset;
            index->max_seq = last->seq;
            index->max_ts_ns = last->timestamp_ns;
        } else {
            forget(tail);
        }
    }
    pthread_mutex_unlock(&mutex);
    return recalled;
}
