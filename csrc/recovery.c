#include "recovery.h"

#include "crc32.h"
#include "error.h"
#include "os.h"
#include "position.h"
#include "record.h"
#include "seekindex.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ac_durable_read(const ac_directory_t *dir, int dir_fd, ac_durable_t *out) {
    struct stat info;
    memset(out, 0, sizeof *out);
    int fd = ac_file_open(dir, dir_fd, "index.meta", O_RDONLY, &info, NULL);
    if (fd < 0) return 0;
    int got = ac_os_read_at(fd, out, sizeof *out, 0);
    ac_os_close(fd);
    if (got == (int)sizeof *out) return 1;
    memset(out, 0, sizeof *out);
    return 0;
}

static uint32_t clean_checksum(const ac_clean_t *clean) {
    ac_clean_t copy = *clean;
    copy.checksum = 0;
    return ac_crc32(&copy, sizeof copy);
}

int ac_clean_valid(const ac_clean_t *clean) {
    return clean->epoch != 0 && clean->checksum == clean_checksum(clean);
}

void ac_clean_store(ac_control_t *control, const ac_clean_t *clean) {
    ac_clean_t copy = *clean;
    copy.checksum = clean_checksum(clean);
    /* The epoch last, with release: pairs with promise_of, to which a closed writer has nothing more to say. */
    uint8_t *mark = (uint8_t *)control + offsetof(ac_control_t, clean);
    memcpy(mark + sizeof copy.epoch, (uint8_t *)&copy + sizeof copy.epoch,
           sizeof copy - sizeof copy.epoch);
    ac_store_release_u64((void *)mark, copy.epoch);
}

/* State of the walk. */
typedef struct walk {
    const ac_directory_t *dir;
    int dir_fd;
    uint64_t segment_size;
    uint32_t epoch; /* highest epoch a record may have */
    ac_durable_t durable;
    ac_end_t *end;
    ac_recovery_t *report;
    uint64_t expected_seq; /* of the next record of ours; meaningful when previous_ours */
    int previous_ours;
    uint32_t previous_epoch;
    uint64_t records_end; /* behind the last acceptable record of the present segment */
    uint32_t batch_left;  /* records still missing from the batch the walk is in */
    ac_end_t before_batch;
    int before_batch_ours; /* previous_ours there */
    int bad;               /* what ended the queue was a committed but invalid record */
} walk_t;

/* Everything before this offset of the segment is known to have been durable. Whatever index.meta says,
 * that is inside the segment and where a record can start. */
static uint64_t durable_end(const walk_t *walk, const ac_map_t *map) {
    uint64_t offset = walk->durable.offset & ~(uint64_t)(AC_ALIGNMENT - 1);
    if (map->segment > walk->durable.segment) return 0;
    return map->segment == walk->durable.segment && offset < map->size ? offset : map->size;
}

/* Does this valid record also fit behind the ones before it? */
static int in_sequence(const walk_t *walk, const ac_message_t *message, uint32_t epoch,
                       int durable) {
    if (!(message->flags & AC_FLAG_OURS)) return walk->batch_left == 0;
    if (epoch > walk->epoch && !durable) return 0; /* durable: the control block is what lies */
    if (walk->batch_left != 0 && message->batch_left != walk->batch_left - 1) return 0;
    if (!walk->previous_ours) return 1;
    return message->seq == walk->expected_seq && epoch >= walk->previous_epoch;
}

/* There is none behind the largest there can be; ac_recover says so. */
static void note_largest(walk_t *walk, uint64_t seq, uint64_t timestamp_ns) {
    ac_end_t *end = walk->end;
    if (seq >= end->next_seq) end->next_seq = seq < UINT64_MAX ? seq + 1 : seq;
    if (timestamp_ns > end->last_timestamp_ns) end->last_timestamp_ns = timestamp_ns;
}

static void accept(walk_t *walk, const ac_message_t *message, uint32_t epoch, uint64_t offset) {
    ac_end_t *end = walk->end;
    if (message->batch_left != 0 && walk->batch_left == 0) {
        walk->before_batch = *end;
        walk->before_batch_ours = walk->previous_ours;
    }
    walk->batch_left = message->batch_left;
    walk->previous_ours = (message->flags & AC_FLAG_OURS) != 0;
    walk->previous_epoch = epoch;
    if (epoch > walk->epoch) walk->epoch = epoch;
    walk->expected_seq = message->seq + 1;
    note_largest(walk, message->seq, message->timestamp_ns);
    end->last_record = offset;
    walk->report->records_scanned++;
}

/* The next offset at which a valid record stands, or `limit`. Only used inside the durable part. */
static uint64_t resynchronise(const ac_map_t *map, uint64_t offset, uint64_t limit) {
    ac_message_t message;
    const char *why;
    for (offset += AC_ALIGNMENT; offset < limit; offset += AC_ALIGNMENT)
        if (ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_PAYLOAD,
                              &message, &why) == AC_RECORD_GOOD)
            break;
    return offset;
}

/* A seq is not given twice, even if nothing but the header of its record is left. Another program's header
 * has no check, so its payload has to speak for it. */
static int has_sound_header(const ac_map_t *map, uint64_t offset, ac_message_t *message) {
    const char *why;
    int found = ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_HEADER,
                                  message, &why);
    if (found == AC_RECORD_GOOD && !(message->flags & AC_FLAG_OURS))
        found = ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_PAYLOAD,
                                  message, &why);
    return found == AC_RECORD_GOOD && message->type_id != AC_TYPE_PADDING;
}

/* The records between two offsets of a segment that is damaged there. */
static void survey_damage(walk_t *walk, const ac_map_t *map, uint64_t offset, uint64_t end) {
    ac_message_t message;
    while (offset < end) {
        int sound = has_sound_header(map, offset, &message);
        if (sound) note_largest(walk, message.seq, message.timestamp_ns);
        offset += sound ? ac_record_size(message.length) : AC_ALIGNMENT;
    }
}

/* Walks one segment; on return end->offset is behind its last acceptable record. 1 = the queue may go
 * on in the next segment, 0 = it ends here. */
static int walk_segment(walk_t *walk, ac_map_t *map) {
    ac_end_t *end = walk->end;
    uint64_t limit = durable_end(walk, map);
    end->map = map;
    end->offset = walk->records_end = AC_SEGMENT_DATA;
    for (;;) {
        ac_message_t message;
        const char *why;
        uint64_t offset = end->offset;
        int found = ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_PAYLOAD,
                                      &message, &why);
        uint32_t epoch = found == AC_RECORD_GOOD
                             ? ((const ac_record_t *)(const void *)message.record)->epoch
                             : 0;
        if (found == AC_RECORD_GOOD && message.type_id == AC_TYPE_PADDING) {
            end->offset += ac_record_size(message.length);
        } else if (found == AC_RECORD_GOOD && in_sequence(walk, &message, epoch, offset < limit)) {
            accept(walk, &message, epoch, offset);
            end->offset += ac_record_size(message.length);
            walk->records_end = end->offset;
        } else if (offset < limit) {
            if (found == AC_RECORD_NONE && ac_segment_sealed(map) && offset >= ac_segment_end(map))
                return 1;
            uint64_t next = resynchronise(map, offset, limit);
            if (found == AC_RECORD_NONE && next >= limit && map->segment < walk->durable.segment)
                return 1; /* finished, but its seal was lost */
            survey_damage(walk, map, offset, next);
            walk->report->corrupt_records++;
            walk->previous_ours = 0;
            walk->batch_left = 0;
            end->offset = next < limit ? next : limit;
        } else {
            walk->bad = found != AC_RECORD_NONE;
            return found == AC_RECORD_NONE;
        }
    }
}

/* Does the queue go on behind a segment that is not known to be durable as a whole? Seal and records reach
 * the disk in any order. After an unsealed one, or one of ours whose seal is torn, only if the next continues
 * it exactly; after a sealed one not if records are missing before the end that it names, nor if all of
 * them are gone and were ours. One that names its very beginning has none: keep_lost_positions left it. */
static int continues(const walk_t *walk, const ac_map_t *map, const ac_map_t *next) {
    ac_message_t message;
    const char *why;
    if (walk->batch_left != 0) return 0;
    int ours = ac_record_inspect(next->base, next->size, AC_SEGMENT_DATA, next->segment,
                                 AC_CHECK_PAYLOAD, &message, &why) == AC_RECORD_GOOD &&
               (message.flags & AC_FLAG_OURS);
    uint64_t sealed_end = ac_segment_end(map);
    if (sealed_end > walk->end->offset) return 0;
    int said_so = ac_segment_sealed(map) && (sealed_end != 0 || !walk->previous_ours);
    if (!said_so) return ours && walk->previous_ours && message.seq == walk->expected_seq;
    return walk->end->offset > AC_SEGMENT_DATA || walk->previous_ours || !ours ||
           sealed_end == AC_SEGMENT_DATA;
}

static int open_recovered(const walk_t *walk, ac_error_t *err) {
    return ac_directory_sub(walk->dir, walk->dir_fd, "recovered", 1, err);
}

/* Keeps a copy of [end, last non-zero byte] as recovered/SEGMENT-OFFSET-EPOCH.bin. */
static int set_tail_aside(const walk_t *walk, uint64_t last, ac_error_t *err) {
    char name[96];
    struct stat info;
    const ac_end_t *end = walk->end;
    int dir_fd = open_recovered(walk, err);
    if (dir_fd < 0) return dir_fd;
    snprintf(name, sizeof name, "%09u-%llu-%u.bin", end->map->segment,
             (unsigned long long)end->offset, walk->epoch);
    int fd = ac_file_open(walk->dir, dir_fd, name, O_RDWR | O_CREAT | O_TRUNC, &info, err);
    int rc = fd;
    if (fd >= 0) {
        uint64_t length = last - end->offset;
        rc = ac_os_write_at(fd, end->map->base + end->offset, length, 0);
        if (rc == 0) rc = ac_os_sync(fd);
        if (rc == 0) rc = ac_os_sync_dir(dir_fd);
        ac_os_close(fd);
        if (rc < 0)
            rc = ac_fail_os_in(err, rc, walk->dir->path, name, "cannot set aside");
        else
            walk->report->bytes_set_aside += length;
    }
    ac_os_close(dir_fd);
    return rc < 0 ? rc : AC_OK;
}

static int has_record(const ac_map_t *map) {
    return map->size >= AC_SEGMENT_DATA + 4 && ac_record_load_commit(map->base + AC_SEGMENT_DATA);
}

static int set_segment_aside(const walk_t *walk, uint32_t id, ac_error_t *err) {
    char name[AC_NAME_MAX], aside[96], index[AC_NAME_MAX];
    ac_map_t *map = NULL;
    ac_segment_name(name, id, ".q");
    ac_segment_name(index, id, ".idx");
    int rc = ac_segment_open(walk->dir, walk->dir_fd, id, walk->segment_size, 0, &map, NULL);
    int empty = rc == AC_OK && !has_record(map);
    ac_map_release(map);
    ac_os_unlink(walk->dir_fd, index);
    if (empty) { /* prepared in advance and never used */
        rc = ac_os_unlink(walk->dir_fd, name);
        if (rc == 0) rc = ac_os_sync_dir(walk->dir_fd);
        return rc < 0 ? ac_fail_os_in(err, rc, walk->dir->path, name, "cannot remove") : AC_OK;
    }
    int dir_fd = open_recovered(walk, err);
    if (dir_fd < 0) return dir_fd;
    snprintf(aside, sizeof aside, "%09u-%u.q", id, walk->epoch);
    rc = ac_os_move(walk->dir_fd, name, dir_fd, aside);
    if (rc == 0) rc = ac_os_sync_dir(dir_fd);
    if (rc == 0) rc = ac_os_sync_dir(walk->dir_fd);
    ac_os_close(dir_fd);
    if (rc < 0) return ac_fail_os_in(err, rc, walk->dir->path, name, "cannot set aside");
    walk->report->segments_set_aside++;
    return AC_OK;
}

/* Zeroes the end segment behind the end, and makes that durable. */
static int clear_tail(const walk_t *walk, ac_error_t *err) {
    char name[AC_NAME_MAX];
    struct stat info;
    const ac_end_t *end = walk->end;
    ac_map_t *map = end->map;
    if (end->offset >= map->size) return AC_OK;
    if (walk->bad) {
        uint64_t last = map->size;
        while (last > end->offset && map->base[last - 1] == 0)
            last--;
        int rc = set_tail_aside(walk, last, err);
        if (rc != AC_OK) return rc;
    }
    /* A segment that was sealed has an index, which knows of the records that go now. */
    ac_segment_name(name, map->segment, ".idx");
    int unlinked = ac_os_unlink(walk->dir_fd, name);
    if (unlinked == 0) unlinked = ac_os_sync_dir(walk->dir_fd);
    if (unlinked < 0 && unlinked != -ENOENT)
        return ac_fail_os_in(err, unlinked, walk->dir->path, name, "cannot remove");
    uint64_t page_end = (end->offset + 4095) & ~4095ull;
    if (page_end > map->size) page_end = map->size;
    /* The word a reader looks at first: from now on nothing behind it is reachable. */
    ac_store_release_u32(ac_record_commit_word(map->base + end->offset), 0);
    memset(map->base + end->offset, 0, page_end - end->offset);
    ac_segment_name(name, map->segment, ".q");
    int fd = ac_file_open(walk->dir, walk->dir_fd, name, O_RDWR, &info, err);
    if (fd < 0) return fd;
    int rc = page_end < map->size ? ac_os_zero_range(fd, page_end, map->size - page_end) : 0;
    if (rc == 0) rc = ac_os_sync(fd);
    ac_os_close(fd);
    return rc < 0 ? ac_fail_os_in(err, rc, walk->dir->path, name, "cannot clear the tail") : AC_OK;
}

/* Largest seq in the segments before `stop`. Foreign writers restart seq, so the tail alone does not
 * tell. */
static int survey_older(walk_t *walk, const uint32_t *ids, size_t stop, ac_error_t *err) {
    for (size_t i = 0; i < stop; i++) {
        ac_index_t index;
        ac_map_t *map;
        int built;
        int rc = ac_segment_open(walk->dir, walk->dir_fd, ids[i], walk->segment_size, 0, &map, err);
        if (rc != AC_OK) return rc;
        rc = ac_index_obtain(&index, walk->dir, walk->dir_fd, map, walk->segment_size, &built, err);
        uint64_t end = ac_segment_end(map);
        if (rc == AC_OK) survey_damage(walk, map, index.end, end ? end : map->size);
        ac_map_release(map);
        if (rc != AC_OK) return rc;
        if (built && index.count > 0)
            ac_index_save(&index, walk->dir, walk->dir_fd, walk->segment_size, NULL);
        if (index.count > 0) note_largest(walk, index.max_seq, index.max_ts_ns);
        ac_index_free(&index);
    }
    return AC_OK;
}

static int open_full(const walk_t *walk, uint32_t id, ac_map_t **map, ac_error_t *err) {
    int rc = ac_segment_open(walk->dir, walk->dir_fd, id, walk->segment_size, 1, map, err);
    if (rc != AC_OK || (*map)->size == walk->segment_size) return rc;
    uint64_t size = (*map)->size;
    ac_map_release(*map);
    *map = NULL;
    char path[1200];
    snprintf(path, sizeof path, "%s/%09u.q", walk->dir->path, id);
    return ac_fail(err, AC_E_CORRUPT, 0, path, size,
                   "segment was cut to %llu of %llu bytes; move it away or restore it",
                   (unsigned long long)size, (unsigned long long)walk->segment_size);
}

static int sync_map(const walk_t *walk, ac_map_t *map, ac_error_t *err) {
    int rc = ac_os_map_sync(map->base, map->fd, 0, map->size);
    char name[AC_NAME_MAX];
    ac_segment_name(name, map->segment, ".q");
    return rc < 0 ? ac_fail_os_in(err, rc, walk->dir->path, name, "cannot sync") : AC_OK;
}

/* A segment behind which the queue goes on: on disk, and then sealed there. */
static int finish(const walk_t *walk, ac_map_t *map, uint64_t end, ac_error_t *err) {
    int rc = sync_map(walk, map, err);
    if (rc != AC_OK) return rc;
    ac_segment_seal(map, end);
    return sync_map(walk, map, err);
}

/* The segments before the durable one are finished, but another program may have said so in index.meta
 * before their seals were on disk. One with an index has been through all of that. */
static int seal_older(const walk_t *walk, const uint32_t *ids, size_t stop, ac_error_t *err) {
    for (size_t i = stop; i-- > 0;) {
        char name[AC_NAME_MAX];
        struct stat info;
        ac_map_t *map;
        ac_segment_name(name, ids[i], ".idx");
        if (ac_os_stat_at(walk->dir_fd, name, &info) == 0) break;
        int rc = ac_segment_open(walk->dir, walk->dir_fd, ids[i], walk->segment_size, 1, &map, err);
        if (rc != AC_OK) return rc;
        if (!ac_segment_sealed(map)) rc = finish(walk, map, 0, err); /* nobody knows its end */
        ac_map_release(map);
        if (rc != AC_OK) return rc;
    }
    return AC_OK;
}

/* Finds the end by walking ids[start..]; returns the number of segments used, or an error. */
static int64_t walk_all(walk_t *walk, const uint32_t *ids, size_t start, size_t count,
                        ac_error_t *err) {
    ac_map_t *map = NULL;
    size_t i = start;
    int rc = open_full(walk, ids[i], &map, err);
    if (rc != AC_OK) return rc;
    while (walk_segment(walk, map)) {
        int known_durable = ids[i] < walk->durable.segment;
        ac_map_t *next = NULL;
        if (i + 1 >= count) break;
        if (known_durable) {
            rc = open_full(walk, ids[i + 1], &next, err);
            if (walk->batch_left != 0) walk->report->corrupt_records++;
            walk->batch_left = 0;
        } else if (ids[i + 1] == ids[i] + 1) {
            rc = open_full(walk, ids[i + 1], &next, err);
            /* Not durable and no segment: nothing there that was promised. */
            if (rc == AC_E_CORRUPT || rc == AC_E_VERSION || rc == AC_E_NOT_FOUND) break;
            if (rc == AC_OK && !continues(walk, map, next)) {
                ac_map_release(next);
                break;
            }
        } else {
            break;
        }
        /* What a seal says about the durable part stays, or the loss of a record could be hidden. */
        uint64_t sealed_end =
            known_durable && ac_segment_sealed(map) ? ac_segment_end(map) : walk->records_end;
        if (rc == AC_OK) rc = finish(walk, map, sealed_end, err);
        if (rc != AC_OK) {
            ac_map_release(next);
            return rc; /* the caller has `map` as the end */
        }
        ac_map_release(map);
        walk->end->map = map = next;
        i++;
    }
    return (int64_t)i + 1;
}

/* An unfinished batch never happened. It lies within one segment, so the map is the same. */
static void drop_partial_batch(walk_t *walk) {
    if (walk->batch_left == 0) return;
    ac_map_t *map = walk->end->map;
    uint64_t next_seq = walk->before_batch.next_seq;
    *walk->end = walk->before_batch;
    walk->previous_ours = walk->before_batch_ours;
    walk->end->map = map;
    walk->end->next_seq = next_seq;
    walk->bad = 1; /* its bytes are kept */
}

static int believe_clean(walk_t *walk, ac_control_t *control, const uint32_t *ids, size_t count) {
    ac_clean_t clean;
    ac_map_t *map;
    ac_message_t message;
    const char *why;
    memcpy(&clean, &control->clean, sizeof clean);
    if (!ac_clean_valid(&clean)) return 0;
    if (clean.epoch != ac_load_relaxed_u64(&control->writer_epoch)) return 0;
    if (clean.segment != walk->durable.segment || clean.offset != walk->durable.offset) return 0;
    if (ids[count - 1] != clean.segment || clean.offset > walk->segment_size ||
        clean.offset < AC_SEGMENT_DATA || clean.offset % AC_ALIGNMENT != 0 ||
        clean.last_record % AC_ALIGNMENT != 0)
        return 0;
    if (open_full(walk, clean.segment, &map, NULL) != AC_OK) return 0;
    int fits = ac_record_inspect(map->base, map->size, clean.offset, map->segment, AC_CHECK_HEADER,
                                 &message, &why) == AC_RECORD_NONE;
    if (fits && clean.offset > AC_SEGMENT_DATA)
        fits = clean.last_record % AC_ALIGNMENT == 0 &&
               ac_record_inspect(map->base, map->size, clean.last_record, map->segment,
                                 AC_CHECK_PAYLOAD, &message, &why) == AC_RECORD_GOOD &&
               clean.last_record + ac_record_size(message.length) == clean.offset &&
               message.seq + 1 == clean.next_seq;
    if (!fits) {
        ac_map_release(map);
        return 0;
    }
    walk->end->map = map;
    walk->end->offset = clean.offset;
    walk->end->next_seq = clean.next_seq;
    walk->end->last_timestamp_ns = clean.last_timestamp_ns;
    walk->end->last_record = clean.last_record;
    return 1;
}

typedef struct beyond {
    const ac_end_t *end;
    int found;
    uint64_t segment;                  /* the last one that somebody had committed in … */
    char name[AC_READER_NAME_MAX + 1]; /* … and who that was */
} beyond_t;

static void look_beyond(void *context, const char *name, const ac_slot_t *slot, int held) {
    beyond_t *beyond = context;
    uint32_t segment = beyond->end->map->segment;
    (void)held;
    if (slot->segment < segment ||
        (slot->segment == segment && slot->offset <= beyond->end->offset))
        return;
    beyond->found = 1;
    if (slot->segment <= beyond->segment) return;
    beyond->segment = slot->segment;
    snprintf(beyond->name, sizeof beyond->name, "%s", name);
}

/* More cannot be lost: a segment stays mapped until it is on disk, and Linux gives a process 65,530 mappings. */
enum { SEGMENTS_LOST_MAX = 1 << 16 };

/* A reader that had committed beyond the end must be told when it comes back. So the places behind the end
 * are not used again: the queue goes on behind the last segment that a position names. Those up to there are
 * empty and sealed, so that other readers come through. */
static int keep_lost_positions(const walk_t *walk, ac_error_t *err) {
    ac_end_t *end = walk->end;
    beyond_t beyond = {.end = end, .segment = end->map->segment};
    int rc = ac_position_each(walk->dir, walk->dir_fd, look_beyond, &beyond, err);
    if (rc != AC_OK || !beyond.found) return rc;
    if (beyond.segment - end->map->segment > SEGMENTS_LOST_MAX) {
        char path[1200];
        snprintf(path, sizeof path, "%s/readers/%s.meta", walk->dir->path, beyond.name);
        return ac_fail(err, AC_E_CORRUPT, 0, path, 0,
                       "names segment %llu, but the queue ends in %u; restore or remove the file",
                       (unsigned long long)beyond.segment, end->map->segment);
    }
    rc = finish(walk, end->map, walk->records_end, err);
    end->next_id = end->map->segment + 1;
    for (; rc == AC_OK && end->next_id <= beyond.segment; end->next_id++)
        rc =
            ac_segment_create_empty(walk->dir, walk->dir_fd, end->next_id, walk->segment_size, err);
    return rc;
}

static int find_end(walk_t *walk, const uint32_t *ids, size_t count, int verify, ac_error_t *err) {
    size_t start = 0;
    while (!verify && start + 1 < count && ids[start] < walk->durable.segment)
        start++;
    int rc = seal_older(walk, ids, start, err);
    int64_t used = rc == AC_OK ? walk_all(walk, ids, start, count, err) : rc;
    if (used < 0) return (int)used;
    drop_partial_batch(walk);
    walk->report->torn_records = walk->bad;
    /* A record of ours continues after the largest seq there was; only without one the rest is asked. */
    if (!walk->previous_ours) {
        rc = survey_older(walk, ids, start, err);
        if (rc != AC_OK) return rc;
    }
    /* The last one first, and each on disk before the next: whatever interrupts it, there is no gap in front
     * of a segment. Readers who come before the next writer would take that for the work of retention. */
    for (size_t i = count; i-- > (size_t)used;) {
        rc = set_segment_aside(walk, ids[i], err);
        if (rc != AC_OK) return rc;
    }
    rc = clear_tail(walk, err);
    if (walk->records_end > walk->end->offset) walk->records_end = walk->end->offset;
    if (ac_segment_sealed(walk->end->map)) ac_segment_seal(walk->end->map, walk->records_end);
    if (rc == AC_OK) rc = sync_map(walk, walk->end->map, err);
    return rc == AC_OK ? keep_lost_positions(walk, err) : rc;
}

int ac_recover(const ac_directory_t *dir, int dir_fd, ac_control_t *control, uint64_t segment_size,
               int verify, ac_end_t *end, ac_recovery_t *report, ac_error_t *err) {
    uint32_t *ids = NULL;
    size_t count = 0;
    int rc = ac_segment_list(dir, dir_fd, &ids, &count, err);
    if (rc != AC_OK) return rc;
    memset(end, 0, sizeof *end);
    memset(report, 0, sizeof *report);
    walk_t walk = {.dir = dir,
                   .dir_fd = dir_fd,
                   .segment_size = segment_size,
                   .epoch = (uint32_t)ac_load_relaxed_u64(&control->writer_epoch),
                   .end = end,
                   .report = report};
    ac_durable_read(dir, dir_fd, &walk.durable);
    report->durable_segment = walk.durable.segment;
    report->durable_offset = walk.durable.offset;
    if (count == 0) {
        report->clean = 1;
    } else if (!verify && believe_clean(&walk, control, ids, count)) {
        report->clean = 1;
    } else {
        rc = find_end(&walk, ids, count, verify, err);
    }
    uint64_t known_epoch = ac_load_relaxed_u64(&control->writer_epoch);
    if (walk.epoch > (uint32_t)known_epoch) /* or it would be used again */
        ac_store_relaxed_u64(&control->writer_epoch,
                             known_epoch - (uint32_t)known_epoch + walk.epoch);
    uint64_t removed_seq, removed_ns;
    ac_control_removed(control, &removed_seq, &removed_ns);
    if (end->next_seq < removed_seq) end->next_seq = removed_seq;
    if (end->last_timestamp_ns < removed_ns) end->last_timestamp_ns = removed_ns;
    /* Only another program's records can have come so far. */
    if (rc == AC_OK && end->next_seq > INT64_MAX)
        rc = ac_fail(err, AC_E_CORRUPT, 0, dir->path, 0, "the largest seq leaves no room for more");
    if (rc == AC_OK && end->map) {
        end->sealed = ac_segment_sealed(end->map);
        if (end->next_id == 0) end->next_id = end->map->segment + 1;
        report->end_segment = end->map->segment;
        report->end_offset = end->offset;
    } else if (rc != AC_OK) {
        ac_map_release(end->map);
        end->map = NULL;
    }
    free(ids);
    return rc;
}
