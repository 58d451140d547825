/* Copies of Java queues that were made while others appended: see ac_queue_end_java_copy.
 *
 * The bytes of records never change, so a copy of a file is right up to a given message. Numbers that are changed in place
 * may refer to later messages: writePosition, lastIndex, the index, and those in metadata.cq4t. They are reset to what a
 * writer that stopped at that message would have left. */
#include "cq4_cycle.h"
#include "cq4_named.h"
#include "cq4_queue.h"
#include "cq4_reader.h"
#include "error.h"
#include "os.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Stores only where a change is needed: the file may be shared with an older copy. */
static void put(uint64_t *number, uint64_t value) {
    if (ac_load_relaxed_u64(number) != value) ac_store_relaxed_u64(number, value);
}

static uint64_t *number_at(const ac_cq4_cycle_t *cycle, uint64_t offset) {
    return (uint64_t *)(void *)(cycle->map->base + offset);
}

/* Removes from an array what lies at `end` or after it. */
static void cut_array(const ac_cq4_cycle_t *cycle, const ac_cq4_page_t *array, uint64_t end) {
    uint64_t used = 0, *count = number_at(cycle, array->at - sizeof(uint64_t));
    if (array->at % sizeof(uint64_t) != 0) return; /* not made by any program we know */
    for (uint64_t i = 0; i < array->capacity; i++) {
        uint64_t *number = number_at(cycle, array->at + i * sizeof(uint64_t));
        if (ac_load_relaxed_u64(number) >= end) put(number, 0);
        if (ac_load_relaxed_u64(number) != 0) used = i + 1;
    }
    if (ac_load_relaxed_u64(count) > used) put(count, used);
}

static void cut_index(ac_cq4_cycle_t *cycle, uint64_t end) {
    if (!ac_cq4_cycle_load_page(cycle, 0)) return; /* which looks for index2index */
    cut_array(cycle, &cycle->index2index, end);
    for (uint64_t page = 0; page < cycle->index2index.capacity; page++)
        if (ac_cq4_cycle_load_page(cycle, page)) cut_array(cycle, &cycle->page, end);
}

typedef struct extent {
    uint64_t end, last, count; /* of the records; header of the last message; number of messages */
    ac_cq4_kind_t kind;        /* what is at the end */
} extent_t;

static extent_t measure_records(const ac_cq4_cycle_t *cycle) {
    extent_t extent = {.end = cycle->first};
    uint32_t length;
    for (;;) {
        extent.kind = ac_cq4_inspect(cycle->map->base, cycle->map->size, extent.end, &length);
        if (extent.kind != AC_CQ4_DATA && extent.kind != AC_CQ4_META) return extent;
        if (extent.kind == AC_CQ4_DATA) extent.last = extent.end;
        extent.count += extent.kind == AC_CQ4_DATA;
        extent.end = ac_cq4_after(extent.end, length, cycle->padding);
    }
}

static void cut_numbers(ac_cq4_cycle_t *cycle, const extent_t *extent) {
    uint64_t spacing = cycle->roll.index_spacing;
    if (cycle->write_position_at && cycle->write_position_at % sizeof(uint64_t) == 0) {
        uint64_t *position = number_at(cycle, cycle->write_position_at);
        uint64_t seq = extent->count ? extent->count - 1 : 0;
        put(position, extent->last);
        if (cycle->write_positions > 1) put(position + 1, (extent->last << cycle->shift) + seq);
    }
    if (!cycle->last_index_at || cycle->last_index_at % sizeof(uint64_t) != 0) return;
    uint64_t *last = number_at(cycle, cycle->last_index_at);
    uint64_t next = (extent->count + spacing - 1) / spacing * spacing;
    if (ac_load_relaxed_u64(last) > next) put(last, next);
}

static int cut_cycle(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number, uint64_t offset,
                     ac_error_t *err) {
    ac_cq4_cycle_t cycle;
    char name[AC_CQ4_NAME_MAX];
    struct stat info;
    int rc = ac_cq4_roll_file_name(&queue->roll, number, name);
    if (rc != AC_OK) return ac_fail(err, rc, 0, queue->dir.path, 0, "a cycle has no name");
    int fd = ac_file_open(&queue->dir, dir_fd, name, O_RDWR, &info, err);
    if (fd < 0) return fd;
    rc = ac_cq4_cycle_open_fd(&queue->dir, fd, 1, name, number, queue->roll.shift, &cycle, err);
    if (rc != AC_OK) {
        ac_os_close(fd);
        return rc;
    }
    extent_t extent = measure_records(&cycle);
    if (offset != 0 && extent.end != offset)
        rc = ac_cq4_cycle_fail(&cycle, AC_E_CORRUPT, 0, extent.end,
                               "its records end here, and not where they should", err);
    if (rc == AC_OK && (offset != 0 || extent.kind == AC_CQ4_NONE)) {
        cut_index(&cycle, extent.end);
        cut_numbers(&cycle, &extent);
    }
    int synced = rc == AC_OK ? ac_os_sync(cycle.map->fd) : 0;
    if (synced < 0) rc = ac_fail_os_in(err, synced, queue->dir.path, name, "cannot sync");
    ac_cq4_cycle_close(&cycle);
    return rc;
}

typedef struct ends {
    const ac_cq4_queue_t *queue;
    uint64_t index; /* of the next message */
    uint64_t lowest, highest, moved;
} ends_t;

static int end_key(void *context, const char *key, uint64_t *value) {
    ends_t *ends = context;
    uint64_t now = ac_load_relaxed_u64(value);
    size_t prefix = strlen(AC_CQ4_KEY_NAMED);
    if (strcasecmp(key, AC_CQ4_KEY_WRITE_LOCK) == 0 || strcasecmp(key, AC_CQ4_KEY_APPEND_LOCK) == 0)
        put(value, AC_CQ4_UNLOCKED);
    else if (strcasecmp(key, AC_CQ4_KEY_HIGHEST) == 0)
        put(value, ends->highest);
    else if (strcasecmp(key, AC_CQ4_KEY_LOWEST) == 0)
        put(value, ends->lowest);
    else if (strcasecmp(key, AC_CQ4_KEY_MOD_COUNT) == 0)
        put(value, now + 1);
    else if (strcasecmp(key, AC_CQ4_KEY_LAST_SYNCED) == 0 && (int64_t)now > (int64_t)ends->index)
        put(value, UINT64_MAX);
    else if (strcasecmp(key, AC_CQ4_KEY_ENDS_UP_TO) == 0 && (int64_t)now > (int64_t)ends->highest)
        put(value, 0);
    else if (strncasecmp(key, AC_CQ4_KEY_NAMED, prefix) == 0 && now > ends->index &&
             !strchr(key + prefix, ':')) {
        put(value, ends->index);
        ends->moved++;
    }
    return 0;
}

static int64_t end_table(const ac_cq4_queue_t *queue, int dir_fd, ends_t *ends, ac_error_t *err) {
    ac_cq4_table_t table;
    int rc = ac_cq4_table_open(&queue->dir, dir_fd, AC_CQ4_METADATA, 1, &table, err);
    if (rc != AC_OK) return rc;
    ac_cq4_table_each(&table, end_key, ends, NULL);
    ac_cq4_table_close(&table);
    struct stat info;
    int fd = ac_file_open(&queue->dir, dir_fd, AC_CQ4_METADATA, O_RDWR, &info, err);
    if (fd < 0) return fd;
    rc = ac_os_sync(fd);
    ac_os_close(fd);
    if (rc < 0) return ac_fail_os_in(err, rc, queue->dir.path, AC_CQ4_METADATA, "cannot sync");
    return (int64_t)ends->moved;
}

int64_t ac_queue_end_java_copy(const char *path, uint64_t segment, uint64_t offset, uint64_t index,
                               ac_error_t *err) {
    ac_cq4_queue_t queue;
    uint32_t *cycles = NULL;
    size_t count = 0;
    int rc = ac_cq4_queue_open(path, &queue, err);
    if (rc != AC_OK) return rc;
    rc = ac_cq4_queue_cycles(&queue, &cycles, &count, err);
    ends_t ends = {.queue = &queue,
                   .index = index,
                   .lowest = count ? cycles[0] : INT32_MAX,
                   .highest = count ? cycles[count - 1] : (uint64_t)INT64_MIN};
    free(cycles);
    int dir_fd = rc == AC_OK ? ac_directory_open(&queue.dir, err) : rc;
    int64_t done = dir_fd;
    if (dir_fd >= 0) {
        rc = count && offset ? cut_cycle(&queue, dir_fd, (uint32_t)segment, offset, err) : AC_OK;
        done = rc == AC_OK ? end_table(&queue, dir_fd, &ends, err) : rc;
        ac_os_close(dir_fd);
    }
    ac_cq4_queue_close(&queue);
    return done;
}

int ac_queue_end_java_file(const char *path, uint64_t segment, ac_error_t *err) {
    ac_cq4_queue_t queue;
    int rc = ac_cq4_queue_open(path, &queue, err);
    if (rc != AC_OK) return rc;
    int dir_fd = ac_directory_open(&queue.dir, err);
    rc = dir_fd < 0 ? dir_fd : cut_cycle(&queue, dir_fd, (uint32_t)segment, 0, err);
    if (dir_fd >= 0) ac_os_close(dir_fd);
    ac_cq4_queue_close(&queue);
    return rc;
}
