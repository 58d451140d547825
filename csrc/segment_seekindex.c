#include "segment_seekindex.h"

#include "error.h"
#include "os.h"
#include "record.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[8] = {'C', 'H', 'R', 'I', 'D', 'X', '1', 0};

void ac_index_free(ac_index_t *index) {
    free(index->entries);
    memset(index, 0, sizeof *index);
}

static int add_entry(ac_index_t *index, const ac_message_t *message, uint64_t offset) {
    if (index->count == index->room) {
        size_t room = index->room ? index->room * 2 : 64;
        ac_index_entry_t *grown = realloc(index->entries, room * sizeof *grown);
        if (!grown) return -ENOMEM;
        index->entries = grown;
        index->room = room;
    }
    index->entries[index->count++] = (ac_index_entry_t){
        .seq = message->seq, .timestamp_ns = message->timestamp_ns, .offset = offset};
    return 0;
}

static void widen(ac_index_t *index, const ac_message_t *message) {
    int first = index->records == 0;
    index->seq_unordered |= !first && message->seq < index->max_seq;
    index->time_unordered |= !first && message->timestamp_ns < index->max_ts_ns;
    if (first || message->seq < index->min_seq) index->min_seq = message->seq;
    if (first || message->seq > index->max_seq) index->max_seq = message->seq;
    if (first || message->timestamp_ns < index->min_ts_ns) index->min_ts_ns = message->timestamp_ns;
    if (first || message->timestamp_ns > index->max_ts_ns) index->max_ts_ns = message->timestamp_ns;
}

/* Padding counts as a difference, too: records are then not at equal distances. So does a trailer: payloads
 * need not be equally long if their records are. */
static void compare(ac_index_t *index, const ac_message_t *message) {
    if (index->records == 0) {
        index->length = message->length;
        index->type_id = message->type_id;
    }
    index->mixed |= message->length != index->length || message->type_id != index->type_id ||
                    message->flags & AC_FLAG_TRAILER;
}

enum { PREFETCHED = 8 };

int ac_index_extend(ac_index_t *index, const ac_map_t *map) {
    ac_message_t message;
    const char *why;
    index->segment = map->segment;
    if (index->end < AC_SEGMENT_DATA) index->end = AC_SEGMENT_DATA;
    int found;
    while ((found = ac_record_inspect(map->base, map->size, index->end, map->segment,
                                      AC_CHECK_HEADER, &message, &why)) == AC_RECORD_GOOD) {
        compare(index, &message);
        if (message.type_id != AC_TYPE_PADDING) {
            if (index->records % AC_INDEX_STRIDE == 0 && add_entry(index, &message, index->end) < 0)
                return -ENOMEM;
            widen(index, &message);
            index->records++;
        }
        uint64_t size = ac_record_size(message.length);
        index->end += size;
        /* Prefetches where the records after the next are if they have the same length: otherwise the walk
         * spends half of its time waiting for headers from memory. */
        uint64_t later = index->end + PREFETCHED * size;
        if (later < map->size) __builtin_prefetch(map->base + later);
    }
    index->broken = found == AC_RECORD_BAD || index->end < ac_segment_end(map);
    return ac_map_is_cut(map) ? -EIO : 0; /* a page that cannot be read is not the end */
}

int ac_index_save(const ac_index_t *index, const ac_directory_t *dir, int dir_fd,
                  uint64_t segment_size, ac_error_t *err) {
    char name[AC_NAME_MAX];
    size_t length = sizeof(ac_index_header_t) + index->count * sizeof *index->entries;
    uint8_t *content = ac_os_alloc(length);
    if (!content) return ac_fail_os(err, -ENOMEM, dir->path, "index");
    ac_index_header_t header = {
        .version = 1,
        .header_len = sizeof header,
        .flags = index->mixed ? 0 : AC_INDEX_UNIFORM,
        .segment_id = index->segment,
        .segment_size = segment_size,
        .data_offset = AC_SEGMENT_DATA,
        .entry_stride = AC_INDEX_STRIDE,
        .min_seq = index->min_seq,
        .max_seq = index->max_seq,
        .min_ts_ns = index->min_ts_ns,
        .max_ts_ns = index->max_ts_ns,
        .entry_count = index->count,
    };
    memcpy(header.magic, magic, sizeof magic);
    memcpy(content, &header, sizeof header);
    if (index->count > 0)
        memcpy(content + sizeof header, index->entries, index->count * sizeof *index->entries);
    ac_segment_name(name, index->segment, ".idx");
    int rc = ac_file_publish(dir, dir_fd, name, content, length, err);
    free(content);
    return rc;
}

static const char *check_header(const ac_index_header_t *header, uint32_t segment,
                                uint64_t segment_size, uint64_t file_size) {
    if (memcmp(header->magic, magic, sizeof magic) != 0) return "not an index";
    if (header->version != 1 || header->header_len != sizeof *header) return "unknown version";
    if (header->segment_id != segment || header->segment_size != segment_size)
        return "belongs to another segment";
    if (header->entry_stride != AC_INDEX_STRIDE) return "stride is not ours";
    if (header->entry_count > (file_size - sizeof *header) / sizeof(ac_index_entry_t))
        return "shorter than it says";
    /* Reads as many entries as the file claims; most of it may be a hole, which costs nothing. */
    if (header->entry_count > segment_size / AC_ALIGNMENT / AC_INDEX_STRIDE + 1)
        return "has more entries than records";
    if (header->min_seq > header->max_seq || header->min_ts_ns > header->max_ts_ns)
        return "bounds are reversed";
    return NULL;
}

static const char *check_entries(ac_index_t *index, uint64_t segment_size) {
    uint64_t previous = 0;
    for (size_t i = 0; i < index->count; i++) {
        const ac_index_entry_t *entry = &index->entries[i];
        index->seq_unordered |= i > 0 && entry->seq < entry[-1].seq;
        index->time_unordered |= i > 0 && entry->timestamp_ns < entry[-1].timestamp_ns;
        uint64_t offset = index->entries[i].offset;
        if (offset < AC_SEGMENT_DATA || offset % AC_ALIGNMENT != 0 || offset >= segment_size ||
            offset <= previous)
            return "entries are not in order";
        previous = offset;
    }
    return NULL;
}

int ac_index_load(ac_index_t *index, const ac_directory_t *dir, int dir_fd, uint32_t segment,
                  uint64_t segment_size, ac_error_t *err) {
    char name[AC_NAME_MAX], path[1200];
    struct stat info;
    ac_index_header_t header;
    const char *wrong = NULL;
    ac_segment_name(name, segment, ".idx");
    snprintf(path, sizeof path, "%s/%s", dir->path, name);
    memset(index, 0, sizeof *index);
    int fd = ac_file_open(dir, dir_fd, name, O_RDONLY, &info, err);
    if (fd < 0) return fd;
    int rc = ac_os_read_at(fd, &header, sizeof header, 0);
    if (rc != (int)sizeof header) wrong = "shorter than a header";
    if (!wrong) wrong = check_header(&header, segment, segment_size, (uint64_t)info.st_size);
    if (!wrong && header.entry_count > 0) {
        size_t length = (size_t)header.entry_count * sizeof *index->entries;
        index->entries = ac_os_alloc(length);
        index->count = index->room = (size_t)header.entry_count;
        if (!index->entries ||
            ac_os_read_at(fd, index->entries, length, sizeof header) != (int)length)
            wrong = "cannot be read";
        else
            wrong = check_entries(index, segment_size);
    }
    ac_os_close(fd);
    if (wrong) {
        ac_index_free(index);
        return ac_fail(err, AC_E_CORRUPT, 0, path, 0, "%s", wrong);
    }
    index->segment = segment;
    index->min_seq = header.min_seq;
    index->max_seq = header.max_seq;
    index->min_ts_ns = header.min_ts_ns;
    index->max_ts_ns = header.max_ts_ns;
    index->mixed = !(header.flags & AC_INDEX_UNIFORM);
    return AC_OK;
}

static int names(const ac_index_entry_t *entry, const ac_message_t *message) {
    return message->seq == entry->seq && message->timestamp_ns == entry->timestamp_ns;
}

/* Whether a walk from the last entry, and the distances of the entries, agree with records that are all
 * like the first. */
static int is_uniform(const ac_index_t *index, const ac_index_t *tail) {
    uint64_t stride = ac_record_size(index->length);
    for (size_t i = 0; i < index->count; i++)
        if (index->entries[i].offset != AC_SEGMENT_DATA + i * AC_INDEX_STRIDE * stride) return 0;
    return !tail->mixed && tail->length == index->length && tail->type_id == index->type_id &&
           index->end == AC_SEGMENT_DATA + index->records * stride;
}

/* Whether the bounds are right. In an ordered segment they are those of the first and the last record;
 * otherwise the segment is walked. */
static int confirm(ac_index_t *index, const ac_map_t *map) {
    ac_message_t message;
    const char *why;
    if (index->count == 0 || index->seq_unordered || index->time_unordered) return 0;
    const ac_index_entry_t *first = index->entries, *last = &index->entries[index->count - 1];
    if (first->offset != AC_SEGMENT_DATA || first->seq != index->min_seq ||
        first->timestamp_ns != index->min_ts_ns ||
        ac_record_inspect(map->base, map->size, first->offset, map->segment, AC_CHECK_HEADER,
                          &message, &why) != AC_RECORD_GOOD ||
        !names(first, &message))
        return 0;
    index->length = message.length;
    index->type_id = message.type_id;
    ac_index_t tail = {.end = last->offset, .segment = map->segment};
    if (ac_index_extend(&tail, map) < 0) return 0;
    int fits = tail.count > 0 && tail.entries[0].offset == last->offset &&
               tail.entries[0].seq == last->seq &&
               tail.entries[0].timestamp_ns == last->timestamp_ns && !tail.seq_unordered &&
               !tail.time_unordered && tail.max_seq == index->max_seq &&
               tail.max_ts_ns == index->max_ts_ns;
    index->end = tail.end;
    index->records = (index->count - 1) * AC_INDEX_STRIDE + tail.records;
    index->mixed = index->mixed || !is_uniform(index, &tail);
    ac_index_free(&tail);
    return fits;
}

int ac_index_obtain(ac_index_t *index, const ac_directory_t *dir, int dir_fd, const ac_map_t *map,
                    uint64_t segment_size, int *built, ac_error_t *err) {
    *built = 0;
    int rc = ac_index_load(index, dir, dir_fd, map->segment, segment_size, NULL);
    if (rc == AC_OK && confirm(index, map)) return AC_OK;
    ac_index_free(index);
    *built = 1;
    rc = ac_index_extend(index, map);
    if (rc == 0) return AC_OK;
    ac_index_free(index);
    if (ac_map_is_cut(map)) return ac_segment_check_readable(dir, map, err);
    return ac_fail_os(err, rc, dir->path, "index");
}

static uint64_t key_of(const ac_index_entry_t *entry, int by_time) {
    return by_time ? entry->timestamp_ns : entry->seq;
}

uint64_t ac_index_lookup(const ac_index_t *index, const ac_map_t *map, int by_time,
                         uint64_t value) {
    if (by_time ? index->time_unordered : index->seq_unordered) return AC_SEGMENT_DATA;
    /* The last entry whose key is below the value: records with an equal key may precede an entry. */
    size_t low = 0, high = index->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (key_of(&index->entries[middle], by_time) < value)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0) return AC_SEGMENT_DATA;
    const ac_index_entry_t *entry = &index->entries[low - 1];
    ac_message_t message;
    const char *why;
    if (ac_record_inspect(map->base, map->size, entry->offset, map->segment, AC_CHECK_PAYLOAD,
                          &message, &why) != AC_RECORD_GOOD ||
        !names(entry, &message))
        return AC_SEGMENT_DATA;
    return entry->offset;
}
