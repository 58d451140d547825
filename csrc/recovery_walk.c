/* The walk of a recovery: where the queue ends, and what must be done about it. Reads only. */
#include "error.h"
#include "log.h"
#include "os.h"
#include "position.h"
#include "record.h"
#include "recovery_plan.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What an incomplete batch is rolled back to. */
typedef struct before_batch {
    uint64_t offset, next_seq, last_timestamp_ns, last_record, records_end;
    int ours;
} before_batch_t;

/* State of the walk. */
typedef struct walk {
    ac_plan_t *plan;
    uint64_t expected_seq; /* of the next record of ours; valid if previous_ours */
    int previous_ours;
    uint32_t previous_epoch;
    uint32_t batch_left; /* records still missing from the current batch */
    before_batch_t before;
} walk_t;

static int open_readable(const ac_plan_t *plan, uint32_t id, ac_map_t **map, ac_error_t *err) {
    return ac_segment_open(plan->dir, plan->dir_fd, id, plan->segment_size, 0, map, err);
}

static int check_readable(const walk_t *walk, const ac_map_t *map, ac_error_t *err) {
    return ac_segment_check_readable(walk->plan->dir, map, err);
}

/* Everything before this offset of the segment is known to have been durable. Whatever index.meta says, the
 * result is inside the segment and where a record can start. */
static uint64_t durable_end(const ac_plan_t *plan, const ac_map_t *map) {
    uint64_t offset = plan->durable.offset & ~(uint64_t)(AC_ALIGNMENT - 1);
    if (map->segment > plan->durable.segment) return 0;
    return map->segment == plan->durable.segment && offset < map->size ? offset : map->size;
}

/* Whether this valid record also fits after the previous ones. */
static int in_sequence(const walk_t *walk, const ac_message_t *message, uint32_t epoch,
                       int durable) {
    if (!(message->flags & AC_FLAG_OURS)) return walk->batch_left == 0;
    if (epoch > walk->plan->epoch && !durable) return 0; /* durable: the control block is wrong */
    if (walk->batch_left != 0 && message->batch_left != walk->batch_left - 1) return 0;
    if (!walk->previous_ours) return 1;
    return message->seq == walk->expected_seq && epoch >= walk->previous_epoch;
}

/* There is none after the largest possible seq; ac_recover reports that. */
static void note_largest(ac_plan_t *plan, uint64_t seq, uint64_t timestamp_ns) {
    if (seq >= plan->next_seq) plan->next_seq = seq < UINT64_MAX ? seq + 1 : seq;
    if (timestamp_ns > plan->last_timestamp_ns) plan->last_timestamp_ns = timestamp_ns;
}

static void accept(walk_t *walk, const ac_message_t *message, uint32_t epoch, uint64_t offset) {
    ac_plan_t *plan = walk->plan;
    if (message->batch_left != 0 && walk->batch_left == 0)
        walk->before =
            (before_batch_t){plan->end_offset,  plan->next_seq,    plan->last_timestamp_ns,
                             plan->last_record, plan->records_end, walk->previous_ours};
    walk->batch_left = message->batch_left;
    walk->previous_ours = (message->flags & AC_FLAG_OURS) != 0;
    walk->previous_epoch = epoch;
    if (epoch > plan->epoch) plan->epoch = epoch;
    walk->expected_seq = message->seq + 1;
    note_largest(plan, message->seq, message->timestamp_ns);
    plan->last_record = offset;
    plan->report->records_scanned++;
}

/* Whether a valid record, `bytes` after the last one, can be one of the queue's, and not part of a payload. */
static int can_follow(const walk_t *walk, const ac_message_t *message, uint64_t bytes) {
    const ac_plan_t *plan = walk->plan;
    uint32_t epoch = ((const ac_record_t *)(const void *)message->record)->epoch;
    if (!plan->is_ours || (!walk->previous_ours && plan->report->records_scanned > 0)) return 1;
    if (!(message->flags & AC_FLAG_OURS)) return 0;
    if (!walk->previous_ours || message->type_id == AC_TYPE_PADDING) return 1;
    return epoch >= walk->previous_epoch && message->seq >= walk->expected_seq &&
           message->seq - walk->expected_seq <= bytes / AC_ALIGNMENT;
}

/* The next offset with a valid record, or `limit`. Only used inside the durable part. */
static uint64_t resynchronise(const walk_t *walk, const ac_map_t *map, uint64_t offset,
                              uint64_t limit) {
    ac_message_t message;
    const char *why;
    uint64_t from = offset;
    for (offset += AC_ALIGNMENT; offset < limit; offset += AC_ALIGNMENT)
        if (ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_PAYLOAD,
                              &message, &why) == AC_RECORD_GOOD &&
            can_follow(walk, &message, offset - from))
            break;
    return offset;
}

/* A seq is not given twice, even if nothing but the header of its record is left. Another program's header
 * has no checksum, so its payload's checksum must prove it. */
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
    uint64_t from = offset;
    while (offset < end) {
        int sound = has_sound_header(map, offset, &message) &&
                    (!walk->plan->is_ours ||
                     ((message.flags & AC_FLAG_OURS) && can_follow(walk, &message, offset - from)));
        if (sound) note_largest(walk->plan, message.seq, message.timestamp_ns);
        offset += sound ? ac_record_size(message.length) : AC_ALIGNMENT;
    }
}

/* ---- what lies after the records ---- */

enum { PIECE = 1 << 16 };

static int fail_read(const ac_plan_t *plan, uint32_t segment, uint64_t offset, int rc,
                     ac_error_t *err) {
    char name[AC_NAME_MAX];
    ac_segment_name(name, segment, ".q");
    rc = ac_fail_os_in(err, rc, plan->dir->path, name, "cannot be read, and nothing was changed");
    if (err) err->offset = offset;
    return rc;
}

static int64_t last_nonzero(const uint8_t *bytes, int64_t length) {
    /* Usually all of it is zero, which memcmp finds in a fraction of the time. */
    if (length > 0 && bytes[0] == 0 && memcmp(bytes, bytes + 1, (size_t)length - 1) == 0) return 0;
    while (length > 0 && bytes[length - 1] == 0)
        length--;
    return length;
}

/* By reading rather than through the mapping: there is no need to map all these pages, and holes are
 * skipped. */
int ac_plan_find_tail_end(const ac_plan_t *plan, const ac_map_t *map, uint64_t from,
                          uint64_t *tail_end, ac_error_t *err) {
    char name[AC_NAME_MAX];
    struct stat info;
    uint64_t start, end, at = from;
    *tail_end = from;
    ac_segment_name(name, map->segment, ".q");
    int fd = ac_file_open(plan->dir, plan->dir_fd, name, O_RDONLY, &info, err);
    if (fd < 0) return fd;
    uint8_t *bytes = ac_os_alloc(PIECE);
    int rc = bytes ? AC_OK : ac_fail_os(err, -ENOMEM, plan->dir->path, "cannot recover");
    while (rc == AC_OK && at < map->size) {
        int more = ac_os_next_data(fd, at, map->size, &start, &end);
        if (more < 0) rc = fail_read(plan, map->segment, at, more, err);
        if (more <= 0) break;
        for (at = start; at < end && rc == AC_OK;) {
            size_t length = end - at < PIECE ? end - at : PIECE;
            int got = ac_os_read_at(fd, bytes, length, at);
            if (got < 0) rc = fail_read(plan, map->segment, at, got, err);
            int64_t used = got > 0 ? last_nonzero(bytes, got) : 0;
            if (used > 0) *tail_end = at + (uint64_t)used;
            at += length;
        }
    }
    free(bytes);
    ac_os_close(fd);
    return rc;
}

/* A sound record which proves that everything before it was on disk when it was appended, and which can be
 * of this queue and later than what the walk has passed. */
static int is_proof(const walk_t *walk, const ac_message_t *message) {
    if (!(message->flags & AC_FLAG_SYNCED)) return 0;
    uint32_t epoch = ((const ac_record_t *)(const void *)message->record)->epoch;
    int later = !walk->previous_ours ||
                (message->seq >= walk->expected_seq && epoch >= walk->previous_epoch);
    return later && epoch <= walk->plan->epoch;
}

/* The last proof in [offset, end); 0 if there is none. */
static uint64_t find_proof(const walk_t *walk, const ac_map_t *map, uint64_t offset, uint64_t end) {
    uint64_t proof = 0;
    for (; offset < end; offset += AC_ALIGNMENT) {
        ac_message_t message;
        const char *why;
        if (ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_HEADER, &message,
                              &why) == AC_RECORD_GOOD &&
            is_proof(walk, &message))
            proof = offset;
    }
    return proof;
}

static int has_segment(const ac_plan_t *plan, uint64_t id) {
    for (size_t i = 0; i < plan->count; i++)
        if (plan->ids[i] == id) return 1;
    return 0;
}

/* A proof in the next segment holds for all of this one. It is the first record, unless that is damaged,
 * too. */
static int next_proves(const walk_t *walk, uint32_t id, ac_error_t *err) {
    ac_map_t *next;
    uint64_t tail_end;
    if (!has_segment(walk->plan, id)) return 0;
    int rc = open_readable(walk->plan, id, &next, err);
    if (rc == AC_E_CORRUPT || rc == AC_E_VERSION || rc == AC_E_NOT_FOUND) return 0;
    if (rc != AC_OK) return rc;
    uint64_t proof = find_proof(walk, next, AC_SEGMENT_DATA, AC_SEGMENT_DATA + 1);
    if (proof == 0) {
        rc = ac_plan_find_tail_end(walk->plan, next, AC_SEGMENT_DATA, &tail_end, err);
        if (rc == AC_OK) proof = find_proof(walk, next, AC_SEGMENT_DATA, tail_end);
    }
    if (rc == AC_OK) rc = check_readable(walk, next, err);
    ac_map_release(next);
    return rc != AC_OK ? rc : proof != 0;
}

/* Nothing acceptable at the end offset, which is not known to be durable. Looks further, for a proof that
 * it was: 1 = there is one, and the durable position has moved there; 0 = the records end here. */
static int look_behind(walk_t *walk, const ac_map_t *map, ac_error_t *err) {
    ac_plan_t *plan = walk->plan;
    uint64_t sealed_end = ac_segment_end(map);
    if (sealed_end != 0 && plan->end_offset >= sealed_end) return 0;
    if (map->segment < plan->durable.segment) return 0; /* all of it was, and this is its end */
    int rc = ac_plan_find_tail_end(plan, map, plan->end_offset, &plan->tail_end, err);
    if (rc != AC_OK) return rc;
    uint64_t proof = find_proof(walk, map, plan->end_offset + AC_ALIGNMENT, plan->tail_end);
    if (proof != 0) {
        plan->durable = (ac_durable_t){map->segment, proof};
        return 1;
    }
    rc = next_proves(walk, map->segment + 1, err);
    if (rc == 1) plan->durable = (ac_durable_t){map->segment + 1, AC_SEGMENT_DATA};
    return rc;
}

/* ---- one segment ---- */

static int is_sealed_end(const ac_map_t *map, uint64_t offset) {
    return ac_segment_sealed(map) && offset >= ac_segment_end(map);
}

/* Skips what is not acceptable in the durable part. 1 = the segment ends here. */
static int pass_damage(walk_t *walk, const ac_map_t *map, int found, uint64_t limit) {
    ac_plan_t *plan = walk->plan;
    uint64_t offset = plan->end_offset;
    if (found == AC_RECORD_NONE && is_sealed_end(map, offset)) return 1;
    uint64_t next = resynchronise(walk, map, offset, limit);
    if (found == AC_RECORD_NONE && next >= limit && map->segment < plan->durable.segment)
        return 1; /* finished, but its seal was lost */
    survey_damage(walk, map, offset, next);
    plan->report->corrupt_records++;
    walk->previous_ours = 0;
    walk->batch_left = 0;
    plan->end_offset = next < limit ? next : limit;
    return 0;
}

/* What was appended while the files were copied reads as zeros; damage does not. */
static int is_missing_from_copy(const walk_t *walk, int found) {
    return walk->plan->is_torn_copy && found == AC_RECORD_NONE;
}

/* Walks one segment; on return end_offset is after its last acceptable record. 1 = the queue may continue
 * in the next segment, 0 = it ends here. */
static int walk_segment(walk_t *walk, ac_map_t *map, ac_error_t *err) {
    ac_plan_t *plan = walk->plan;
    plan->end_segment = map->segment;
    plan->end_offset = plan->records_end = AC_SEGMENT_DATA;
    plan->tail_end = 0;
    for (;;) {
        ac_message_t message;
        const char *why;
        uint64_t offset = plan->end_offset, limit = durable_end(plan, map);
        int found = ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_PAYLOAD,
                                      &message, &why);
        uint32_t epoch = found == AC_RECORD_GOOD
                             ? ((const ac_record_t *)(const void *)message.record)->epoch
                             : 0;
        int rc = check_readable(walk, map, err);
        if (rc != AC_OK) return rc;
        if (found == AC_RECORD_GOOD && message.type_id == AC_TYPE_PADDING) {
            plan->end_offset += ac_record_size(message.length);
        } else if (found == AC_RECORD_GOOD && in_sequence(walk, &message, epoch, offset < limit)) {
            accept(walk, &message, epoch, offset);
            plan->end_offset += ac_record_size(message.length);
            plan->records_end = plan->end_offset;
        } else if (found == AC_RECORD_GOOD && is_proof(walk, &message)) {
            plan->report->corrupt_records++; /* not this one: those that are missing before it */
            walk->previous_ours = 0;
            walk->batch_left = 0;
        } else if (offset < limit && !is_missing_from_copy(walk, found)) {
            if (pass_damage(walk, map, found, limit)) return 1;
        } else {
            rc = is_missing_from_copy(walk, found) ? 0 : look_behind(walk, map, err);
            if (rc == 1) continue;
            plan->torn = found != AC_RECORD_NONE;
            return rc < 0 ? rc : found == AC_RECORD_NONE;
        }
    }
}

/* ---- from one segment to the next ---- */

/* Whether the queue continues after a segment that is not known to be durable as a whole. Seal and records
 * reach the disk in any order. After an unsealed one, or one of ours whose seal is torn, only if the next
 * continues it exactly; after a sealed one not if records are missing before the end that it names, nor if
 * all of them are gone and were ours. If it names its very beginning as its end, it has none: recovery left
 * it so. */
static int continues(const walk_t *walk, const ac_map_t *map, const ac_map_t *next) {
    const ac_plan_t *plan = walk->plan;
    ac_message_t message;
    const char *why;
    if (walk->batch_left != 0) return 0;
    int ours = ac_record_inspect(next->base, next->size, AC_SEGMENT_DATA, next->segment,
                                 AC_CHECK_PAYLOAD, &message, &why) == AC_RECORD_GOOD &&
               (message.flags & AC_FLAG_OURS);
    uint64_t sealed_end = ac_segment_end(map);
    if (sealed_end > plan->end_offset) return 0;
    int said_so = ac_segment_sealed(map) && (sealed_end != 0 || !walk->previous_ours);
    if (!said_so) return ours && walk->previous_ours && message.seq == walk->expected_seq;
    return plan->end_offset > AC_SEGMENT_DATA || walk->previous_ours || !ours ||
           sealed_end == AC_SEGMENT_DATA;
}

static int open_full(const ac_plan_t *plan, uint32_t id, ac_map_t **map, ac_error_t *err) {
    int rc = open_readable(plan, id, map, err);
    if (rc != AC_OK || (*map)->size == plan->segment_size) return rc;
    uint64_t size = (*map)->size;
    ac_map_release(*map);
    *map = NULL;
    char path[1200];
    snprintf(path, sizeof path, "%s/%09u.q", plan->dir->path, id);
    return ac_fail(err, AC_E_CORRUPT, 0, path, size,
                   "segment was cut to %llu of %llu bytes; move it away or restore it",
                   (unsigned long long)size, (unsigned long long)plan->segment_size);
}

/* The segment that continues the current one, or NULL in *next. */
static int open_next(walk_t *walk, const ac_map_t *map, size_t i, ac_map_t **next,
                     ac_error_t *err) {
    const ac_plan_t *plan = walk->plan;
    *next = NULL;
    if (i + 1 >= plan->count) return AC_OK;
    uint32_t id = plan->ids[i + 1];
    if (map->segment < plan->durable.segment && !plan->is_torn_copy) {
        int rc = open_full(plan, id, next, err);
        if (walk->batch_left != 0) plan->report->corrupt_records++;
        walk->batch_left = 0;
        return rc;
    }
    if (id != map->segment + 1) return AC_OK;
    int rc = open_full(plan, id, next, err);
    /* Not durable and not a segment: nothing in it was promised. */
    if (rc == AC_E_CORRUPT || rc == AC_E_VERSION || rc == AC_E_NOT_FOUND) return AC_OK;
    if (rc != AC_OK) return rc;
    int goes_on = continues(walk, map, *next);
    rc = check_readable(walk, *next, err);
    if (rc == AC_OK && goes_on) return AC_OK;
    ac_map_release(*next);
    *next = NULL;
    return rc;
}

static void note_finish(walk_t *walk, const ac_map_t *map) {
    ac_plan_t *plan = walk->plan;
    int known_durable = map->segment < plan->durable.segment;
    /* What a seal says about the durable part stays; otherwise the loss of a record could be hidden. */
    uint64_t sealed_end =
        known_durable && ac_segment_sealed(map) ? ac_segment_end(map) : plan->records_end;
    plan->finish[plan->finish_count++] =
        (ac_finish_t){map->segment, sealed_end, durable_end(plan, map)};
}

/* Finds the end by walking ids[start..]. */
static int walk_all(walk_t *walk, size_t start, ac_error_t *err) {
    ac_plan_t *plan = walk->plan;
    ac_map_t *map = NULL, *next = NULL;
    size_t i = start;
    int rc = open_full(plan, plan->ids[i], &map, err);
    while (rc == AC_OK) {
        rc = walk_segment(walk, map, err);
        plan->end_durable = durable_end(plan, map);
        if (rc != 1) break;
        rc = open_next(walk, map, i, &next, err);
        if (rc != AC_OK || !next) break;
        note_finish(walk, map);
        ac_map_release(map);
        map = next;
        i++;
    }
    ac_map_release(map);
    plan->used = i + 1;
    return rc < 0 ? rc : AC_OK;
}

/* An unfinished batch never happened. It lies within one segment. */
static void drop_partial_batch(walk_t *walk) {
    ac_plan_t *plan = walk->plan;
    if (walk->batch_left == 0) return;
    const before_batch_t *before = &walk->before;
    plan->end_offset = before->offset;
    plan->next_seq = before->next_seq;
    plan->last_timestamp_ns = before->last_timestamp_ns;
    plan->last_record = before->last_record;
    plan->records_end = before->records_end;
    walk->previous_ours = before->ours;
    plan->torn = 1;
    plan->tail_end = 0;
}

/* Unless the walk has passed it. All that will be zeroed is read here, so nothing can be in there unseen. */
static int find_tail(ac_plan_t *plan, ac_error_t *err) {
    ac_map_t *map;
    if (plan->tail_end != 0) return AC_OK;
    int rc = open_full(plan, plan->end_segment, &map, err);
    if (rc != AC_OK) return rc;
    rc = ac_plan_find_tail_end(plan, map, plan->end_offset, &plan->tail_end, err);
    ac_map_release(map);
    return rc;
}

/* Where the last record with a sound header ends; its last non-zero byte may be anywhere in it. */
static uint64_t end_of_last(const ac_map_t *map, uint64_t tail_end) {
    ac_message_t message;
    const char *why;
    uint64_t offset = (tail_end + AC_ALIGNMENT - 1) & ~(uint64_t)(AC_ALIGNMENT - 1);
    while (offset > AC_SEGMENT_DATA) {
        offset -= AC_ALIGNMENT;
        if (ac_record_inspect(map->base, map->size, offset, map->segment, AC_CHECK_HEADER, &message,
                              &why) == AC_RECORD_GOOD)
            return offset + ac_record_size(message.length);
    }
    return AC_SEGMENT_DATA;
}

/* 1 = all records of the segment that index.meta counts exist, as far as their headers show. */
static int reaches_mark(const ac_plan_t *plan, ac_error_t *err) {
    ac_map_t *map;
    uint64_t tail_end;
    /* If no process was writing any more, it was removed: that needs consent. */
    if (!has_segment(plan, plan->durable.segment)) return plan->was_closed;
    if (plan->durable.offset <= AC_SEGMENT_DATA) return 1;
    int rc = open_readable(plan, (uint32_t)plan->durable.segment, &map, err);
    if (rc != AC_OK) return rc;
    rc = ac_plan_find_tail_end(plan, map, AC_SEGMENT_DATA, &tail_end, err);
    int reaches = rc == AC_OK && end_of_last(map, tail_end) >= plan->durable.offset;
    if (rc == AC_OK) rc = ac_segment_check_readable(plan->dir, map, err);
    ac_map_release(map);
    return rc == AC_OK ? reaches : rc;
}

int ac_plan_is_sealed(const ac_plan_t *plan, uint32_t id, ac_error_t *err) {
    ac_map_t *map;
    int rc = open_readable(plan, id, &map, err);
    /* A header that was damaged later: one that did not exist yet when it was copied would be zeros. */
    if (rc == AC_E_CORRUPT && !ac_segment_lacks_header(plan->dir, plan->dir_fd, id)) return 1;
    if (rc != AC_OK) return rc;
    int sealed = ac_segment_sealed(map);
    ac_map_release(map);
    return sealed;
}

/* Where to begin: what lies before the durable segment is finished. But a copy may have been made of files
 * that were being written, of index.meta after the segments. Then either one of them was not sealed yet
 * when it was copied, and the queue goes no further than its records; or index.meta counts more as durable
 * than there is. In a copy of files at rest the records reach as far as index.meta says, damaged or not. */
static int find_start(ac_plan_t *plan, size_t *start, ac_error_t *err) {
    int reaches = plan->options->is_copy ? reaches_mark(plan, err) : 1;
    if (reaches < 0) return reaches;
    plan->is_torn_copy = !reaches;
    *start = 0;
    while (!plan->options->verify && *start + 1 < plan->count &&
           plan->ids[*start] < plan->durable.segment) {
        int sealed = plan->options->is_copy ? ac_plan_is_sealed(plan, plan->ids[*start], err) : 1;
        if (sealed < 0) return sealed;
        if (!sealed) {
            plan->is_torn_copy = 1;
            break;
        }
        ++*start;
    }
    return AC_OK;
}

/* The segments before the durable one are finished, but another program may have said so in index.meta
 * before their seals were on disk. A segment with an index has been through all of that. */
static int find_unsealed(walk_t *walk, size_t start, ac_error_t *err) {
    ac_plan_t *plan = walk->plan;
    for (size_t i = start; i-- > 0;) {
        char name[AC_NAME_MAX];
        struct stat info;
        ac_map_t *map;
        ac_segment_name(name, plan->ids[i], ".idx");
        if (ac_os_stat_at(plan->dir_fd, name, &info) == 0) break;
        int rc = open_readable(plan, plan->ids[i], &map, err);
        if (rc != AC_OK) return rc;
        if (!ac_segment_sealed(map)) /* its end is unknown */
            plan->finish[plan->finish_count++] = (ac_finish_t){plan->ids[i], 0, map->size};
        ac_map_release(map);
    }
    return AC_OK;
}

/* Reads the records of one segment before the walk. 1 = they are ours, and so continue after the largest
 * seq so far. */
static int survey_segment(walk_t *walk, uint32_t id, ac_error_t *err) {
    ac_plan_t *plan = walk->plan;
    ac_index_t index;
    ac_map_t *map;
    int built, continues_all = 0;
    int rc = open_readable(plan, id, &map, err);
    if (rc == AC_E_CORRUPT && plan->is_ours) { /* older damage, which readers will meet */
        plan->report->corrupt_records++;
        return 0;
    }
    if (rc != AC_OK) return rc;
    rc = ac_index_obtain(&index, plan->dir, plan->dir_fd, map, plan->segment_size, &built, err);
    uint64_t end = ac_segment_end(map);
    if (rc == AC_OK) {
        survey_damage(walk, map, index.end, end ? end : map->size);
        if (index.count > 0) note_largest(plan, index.max_seq, index.max_ts_ns);
        continues_all = plan->is_ours && index.count > 0 && !index.broken && !index.seq_unordered;
        rc = check_readable(walk, map, err);
        if (rc == AC_OK && built && index.count > 0)
            plan->indexes[plan->index_count++] = index;
        else
            ac_index_free(&index);
    }
    ac_map_release(map);
    return rc == AC_OK ? continues_all : rc;
}

/* Largest seq in the segments before `stop`, newest first. Foreign writers restart seq, so all of theirs
 * are read. */
static int survey_older(walk_t *walk, size_t stop, ac_error_t *err) {
    ac_plan_t *plan = walk->plan;
    plan->indexes = ac_os_alloc((stop + 1) * sizeof *plan->indexes);
    if (!plan->indexes) return ac_fail_os(err, -ENOMEM, plan->dir->path, "cannot recover");
    int rc = 0;
    for (size_t i = stop; rc == 0 && i-- > 0;)
        rc = survey_segment(walk, plan->ids[i], err);
    return rc < 0 ? rc : AC_OK;
}

/* ---- what is set aside ---- */

/* 1 = it has a valid record, 0 = it has none, or no header. */
static int has_valid_record(walk_t *walk, uint32_t id, int *has_header, ac_error_t *err) {
    ac_map_t *map;
    ac_message_t message;
    const char *why;
    int rc = open_readable(walk->plan, id, &map, err);
    *has_header = rc == AC_OK;
    if (rc == AC_E_CORRUPT || rc == AC_E_VERSION || rc == AC_E_NOT_FOUND) return 0;
    if (rc != AC_OK) return rc;
    int valid = 0;
    for (uint64_t at = AC_SEGMENT_DATA; at < map->size && !valid; at += AC_ALIGNMENT)
        valid = ac_record_inspect(map->base, map->size, at, id, AC_CHECK_PAYLOAD, &message, &why) ==
                AC_RECORD_GOOD;
    rc = check_readable(walk, map, err);
    ac_map_release(map);
    return rc != AC_OK ? rc : valid;
}

static int needs_consent(const ac_plan_t *plan) {
    return !plan->options->salvage && !plan->is_torn_copy;
}

/* Of a queue of ours, which records this only for an existing segment. */
static int is_durable_missing(const ac_plan_t *plan) {
    uint64_t segment = plan->durable.segment;
    return plan->is_ours && segment > plan->ids[0] && segment < plan->ids[plan->count - 1] &&
           !has_segment(plan, segment);
}

/* A power cut leaves segments without a gap between them: they appear and vanish one after the other, each
 * on disk before the next. So a missing one was removed, and what follows may have been durable. */
static int check_set_aside(walk_t *walk, ac_error_t *err) {
    const ac_plan_t *plan = walk->plan;
    uint32_t missing = 0, has_gap = 0;
    if (is_durable_missing(plan) && needs_consent(plan))
        return ac_fail(err, AC_E_SALVAGE, 0, plan->dir->path, 0,
                       "segment %llu, which was on disk, is missing; restore it, or open with "
                       "recover=\"salvage\" to go on without it",
                       (unsigned long long)plan->durable.segment);
    for (size_t i = plan->used; i < plan->count; i++) {
        uint32_t previous = plan->ids[i - 1], id = plan->ids[i];
        int has_header;
        if (!has_gap && id != previous + 1) {
            has_gap = 1;
            missing = previous + 1;
        }
        int valid = has_valid_record(walk, id, &has_header, err);
        if (valid < 0) return valid;
        if (valid && has_gap && needs_consent(plan))
            return ac_fail(
                err, AC_E_SALVAGE, 0, plan->dir->path, 0,
                "segment %u is missing, but segment %u after it holds messages; restore "
                "it, or open with recover=\"salvage\" to move what follows to recovered/",
                missing, id);
        /* Other programs do not record what was durable. */
        if (valid && !plan->is_ours && needs_consent(plan))
            return ac_fail(
                err, AC_E_SALVAGE, 0, plan->dir->path, 0,
                "segment %u is damaged, and segment %u after it holds messages; restore "
                "it, or open with recover=\"salvage\" to move what follows to recovered/",
                plan->end_segment, id);
        if (!has_header && !has_gap) {
            has_gap = 1;
            missing = id;
        }
    }
    if (plan->options->salvage && plan->durable.segment > plan->end_segment)
        ac_log(AC_LOG_WARNING, plan->dir->path,
               "opened with recover=\"salvage\": segment %llu was on disk, but the queue ends in "
               "segment %u",
               (unsigned long long)plan->durable.segment, plan->end_segment);
    if (plan->durable.segment > plan->end_segment && needs_consent(plan))
        return ac_fail(
            err, AC_E_SALVAGE, 0, plan->dir->path, 0,
            "index.meta says that segment %llu was on disk, but the queue ends in segment "
            "%u; restore what is missing, or open with recover=\"salvage\"",
            (unsigned long long)plan->durable.segment, plan->end_segment);
    return AC_OK;
}

/* ---- readers ---- */

typedef struct beyond {
    ac_plan_t *plan;
    char name[AC_READER_NAME_MAX + 1]; /* the reader that has committed furthest */
} beyond_t;

static void look_beyond(void *context, const char *name, const ac_slot_t *slot, int held) {
    beyond_t *beyond = context;
    ac_plan_t *plan = beyond->plan;
    (void)held;
    if (slot->segment < plan->end_segment ||
        (slot->segment == plan->end_segment && slot->offset <= plan->end_offset))
        return;
    plan->lost = 1;
    if (slot->segment <= plan->lost_segment) return;
    plan->lost_segment = slot->segment;
    snprintf(beyond->name, sizeof beyond->name, "%s", name);
}

/* More cannot be lost: a segment stays mapped until it is on disk, and Linux gives a process 65,530
 * mappings. */
enum { SEGMENTS_LOST_MAX = 1 << 16 };

static int find_lost_positions(ac_plan_t *plan, ac_error_t *err) {
    beyond_t beyond = {.plan = plan};
    plan->lost_segment = plan->end_segment;
    int rc = ac_position_each(plan->dir, plan->dir_fd, look_beyond, &beyond, err);
    if (rc != AC_OK || plan->lost_segment - plan->end_segment <= SEGMENTS_LOST_MAX) return rc;
    if (plan->options->is_copy) return AC_OK; /* it is put back */
    char path[1200];
    snprintf(path, sizeof path, "%s/readers/%s.meta", plan->dir->path, beyond.name);
    return ac_fail(err, AC_E_CORRUPT, 0, path, 0,
                   "names segment %llu, but the queue ends in %u; restore or remove the file",
                   (unsigned long long)plan->lost_segment, plan->end_segment);
}

int ac_plan_make(ac_plan_t *plan, ac_error_t *err) {
    walk_t walk = {.plan = plan};
    size_t start = 0;
    plan->finish = ac_os_alloc(plan->count * sizeof *plan->finish);
    if (!plan->finish) return ac_fail_os(err, -ENOMEM, plan->dir->path, "cannot recover");
    int rc = find_start(plan, &start, err);
    if (rc == AC_OK) rc = find_unsealed(&walk, start, err);
    if (rc == AC_OK) rc = walk_all(&walk, start, err);
    if (rc == AC_OK) drop_partial_batch(&walk);
    if (rc == AC_OK) rc = find_tail(plan, err);
    /* A record of ours continues after the largest seq so far; only without one are the other segments
     * read. */
    if (rc == AC_OK && !walk.previous_ours) rc = survey_older(&walk, start, err);
    if (rc == AC_OK) rc = check_set_aside(&walk, err);
    if (rc == AC_OK) rc = find_lost_positions(plan, err);
    if (plan->records_end > plan->end_offset) plan->records_end = plan->end_offset;
    plan->report->torn_records = plan->torn;
    return rc;
}

void ac_plan_free(ac_plan_t *plan) {
    for (size_t i = 0; i < plan->index_count; i++)
        ac_index_free(&plan->indexes[i]);
    free(plan->indexes);
    free(plan->finish);
}
