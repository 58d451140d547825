/* An independent check of the files beside the segments of a queue: control.meta, index.meta, the positions
 * of readers and the seek indexes. Each is compared with the records, with what was promised and with its
 * earlier content. No code of the engine is used.
 *
 * The files are copied as a process left them, and checked when a recovery has shown where the records are:
 * a kill removes no record, so what was there after the kill is still there. */
#ifndef AC_TEST_BESIDE_H
#define AC_TEST_BESIDE_H

#include "walk.h"

enum {
    BESIDE_CONTROL = 512,
    BESIDE_DURABLE = 16,
    BESIDE_SLOT = 40,
    BESIDE_POSITION = 2 * BESIDE_SLOT,
    BESIDE_INDEX_HEADER = 80,
    BESIDE_INDEX = BESIDE_INDEX_HEADER + 24, /* such a small segment has one entry */
    BESIDE_STRIDE = 4096
};

/* The content of a file, with room for one byte more than it may have; -1 = no file. */
#define BESIDE_FILE(bytes_max)                                                                     \
    struct {                                                                                       \
        ssize_t size;                                                                              \
        uint8_t bytes[(bytes_max) + 1];                                                            \
    }

typedef struct beside {
    BESIDE_FILE(BESIDE_CONTROL) control;
    BESIDE_FILE(BESIDE_DURABLE) durable;
    BESIDE_FILE(BESIDE_POSITION) positions[LEDGER_READERS];
    uint32_t indexes;
    struct {
        uint64_t segment;
        ssize_t size;
        uint8_t bytes[BESIDE_INDEX + 1];
    } index[CHART_SEGMENTS_MAX];
} beside_t;

/* The process that has just ended. */
enum beside_after { AFTER_WRITER, AFTER_KILLED_RECOVERY, AFTER_RECOVERY, AFTER_CLOSE };

typedef struct beside_case {
    const beside_t *now;
    const beside_t *before; /* as at the last check */
    enum beside_after after;
    const chart_t *chart;
    const ledger_t *ledger;
    uint64_t segment_size;
    char broken[200]; /* the first rule that is broken; empty = none */
} beside_case_t;

static inline ssize_t beside_read(const char *path, const char *name, uint8_t *bytes, size_t room) {
    char full[1400];
    snprintf(full, sizeof full, "%s/%s", path, name);
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t got = read(fd, bytes, room);
    close(fd);
    return got;
}

#define BESIDE_READ(path, name, file) beside_read(path, name, (file)->bytes, sizeof(file)->bytes)

static inline void beside_take(const char *path, const char *const *readers, beside_t *out) {
    out->control.size = BESIDE_READ(path, "control.meta", &out->control);
    out->durable.size = BESIDE_READ(path, "index.meta", &out->durable);
    for (int i = 0; i < LEDGER_READERS; i++) {
        char name[80];
        snprintf(name, sizeof name, "readers/%s.meta", readers[i]);
        out->positions[i].size = BESIDE_READ(path, name, &out->positions[i]);
    }
    out->indexes = 0;
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char *suffix;
        uint64_t segment = strtoull(entry->d_name, &suffix, 10);
        if (strcmp(suffix, ".idx") != 0 || out->indexes == CHART_SEGMENTS_MAX) continue;
        out->index[out->indexes].segment = segment;
        out->index[out->indexes].size = BESIDE_READ(path, entry->d_name, &out->index[out->indexes]);
        out->indexes++;
    }
    if (directory) closedir(directory);
}

#define BESIDE_RULE(condition, ...)                                                                \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            snprintf(judged->broken, sizeof judged->broken, __VA_ARGS__);                          \
            return -1;                                                                             \
        }                                                                                          \
    } while (0)

static inline uint32_t beside_crc(const uint8_t *bytes, size_t length) {
    return walk_crc(0xEDB88320u, bytes, length);
}

static inline int beside_is_zero(const uint8_t *bytes, size_t length) {
    while (length > 0 && bytes[length - 1] == 0)
        length--;
    return length == 0;
}

static inline uint64_t beside_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* The state that the writer left: after the call under way, or after the one before it. */
static inline int beside_is_next(const beside_case_t *judged, int64_t seq) {
    if (judged->after >= AFTER_RECOVERY) return seq == (int64_t)judged->chart->next_seq;
    return seq == (int64_t)judged->ledger->acknowledged ||
           seq == (int64_t)judged->ledger->attempted;
}

/* ---- seek indexes: hints that must be true ---- */

static inline int beside_judge_index(beside_case_t *judged, uint64_t id, const uint8_t *at,
                                     ssize_t size) {
    const chart_t *chart = judged->chart;
    const chart_segment_t *segment = chart_find(chart, id);
    BESIDE_RULE(segment && segment->sealed, "an index of segment %" PRIu64 ", not finished", id);
    BESIDE_RULE(
        size >= BESIDE_INDEX_HEADER && memcmp(at, "CHRIDX1", 8) == 0 &&
            walk_number(at + 8, 2) == 1 && walk_number(at + 10, 2) == BESIDE_INDEX_HEADER &&
            walk_number(at + 16, 8) == id && walk_number(at + 24, 8) == judged->segment_size &&
            walk_number(at + 32, 4) == WALK_DATA && walk_number(at + 36, 4) == BESIDE_STRIDE,
        "the index of segment %" PRIu64 " has a bad header", id);
    const chart_record_t *first = &chart->record[segment->first];
    const chart_record_t *last = first + segment->count - 1;
    uint64_t entries = (segment->count + BESIDE_STRIDE - 1) / BESIDE_STRIDE;
    int uniform = 1;
    for (uint32_t i = 1; i < segment->count; i++)
        uniform &= first[i].length == first->length && first[i].type_id == first->type_id;
    BESIDE_RULE(walk_number(at + 12, 4) == (uniform ? 0x80000000u : 0),
                "the index of segment %" PRIu64 " is wrong about its records being alike", id);
    BESIDE_RULE(
        walk_number(at + 72, 8) == entries && size == (ssize_t)(BESIDE_INDEX_HEADER + entries * 24),
        "the index of segment %" PRIu64 " has %zd bytes for %u records", id, size, segment->count);
    if (segment->count == 0) return 0;
    BESIDE_RULE(walk_number(at + 40, 8) == first->seq && walk_number(at + 48, 8) == last->seq &&
                    walk_number(at + 56, 8) == first->timestamp_ns &&
                    walk_number(at + 64, 8) == last->timestamp_ns,
                "the index of segment %" PRIu64 " has wrong bounds", id);
    const uint8_t *entry = at + BESIDE_INDEX_HEADER;
    BESIDE_RULE(walk_number(entry, 8) == first->seq &&
                    walk_number(entry + 8, 8) == first->timestamp_ns &&
                    walk_number(entry + 16, 8) == first->offset,
                "an entry of the index of segment %" PRIu64 " names no record", id);
    return 0;
}

/* ---- positions: two slots, each store into the older one, never back and never ahead ---- */

typedef struct beside_slot {
    int valid;
    uint64_t segment, offset, generation;
} beside_slot_t;

static inline beside_slot_t beside_slot(const uint8_t *at) {
    return (beside_slot_t){.valid = beside_crc(at, 32) == walk_number(at + 32, 4),
                           .segment = walk_number(at, 8),
                           .offset = walk_number(at + 8, 8),
                           .generation = walk_number(at + 24, 8)};
}

static inline int beside_is_behind(const beside_slot_t *slot, const beside_slot_t *than) {
    return slot->segment < than->segment ||
           (slot->segment == than->segment && slot->offset < than->offset);
}

static inline int beside_is_past_epoch(const beside_case_t *judged, uint64_t epoch) {
    const beside_t *now = judged->now;
    return now->control.size < 24 || epoch <= walk_number(now->control.bytes + 16, 8);
}

/* The slot that counts; the other one, if valid, holds the previous generation. */
static inline int beside_judge_slots(beside_case_t *judged, const uint8_t *at, ssize_t size,
                                     const char *name, beside_slot_t *out) {
    BESIDE_RULE(size == BESIDE_POSITION, "the position of %s has %zd bytes", name, size);
    beside_slot_t slots[2] = {beside_slot(at), beside_slot(at + BESIDE_SLOT)};
    BESIDE_RULE(slots[0].valid || slots[1].valid, "neither slot of %s is valid", name);
    for (int i = 0; i < 2; i++)
        BESIDE_RULE(!slots[i].valid ||
                        (slots[i].generation % 2 == (uint64_t)!i &&
                         beside_is_past_epoch(judged, walk_number(at + i * BESIDE_SLOT + 36, 4))),
                    "generation %" PRIu64 " of %s is in slot %d", slots[i].generation, name, i);
    int newer = slots[1].valid && (!slots[0].valid || slots[1].generation > slots[0].generation);
    *out = slots[newer];
    if (!slots[!newer].valid) return 0;
    BESIDE_RULE(slots[!newer].generation + 1 == out->generation,
                "the slots of %s are of generations %" PRIu64 " and %" PRIu64, name,
                slots[!newer].generation, out->generation);
    BESIDE_RULE(!beside_is_behind(out, &slots[!newer]), "the position of %s went back", name);
    return 0;
}

static inline int beside_judge_position(beside_case_t *judged, int reader, const char *name) {
    const ledger_reader_t *known = &judged->ledger->readers[reader];
    const uint8_t *at = judged->now->positions[reader].bytes;
    ssize_t size = judged->now->positions[reader].size;
    beside_slot_t slot, before;
    BESIDE_RULE(size >= 0 || known->committed == NEVER_COMMITTED, "the position of %s is gone",
                name);
    if (size < 0) return 0;
    if (beside_judge_slots(judged, at, size, name, &slot) < 0) return -1;
    if (judged->before->positions[reader].size >= 0) {
        if (beside_judge_slots(judged, judged->before->positions[reader].bytes,
                               judged->before->positions[reader].size, name, &before) < 0)
            return -1;
        BESIDE_RULE(slot.generation >= before.generation && !beside_is_behind(&slot, &before),
                    "the position of %s is older than it was before", name);
    }
    int64_t seq = chart_locate(judged->chart, slot.segment, slot.offset);
    if (known->committed != NEVER_COMMITTED) {
        BESIDE_RULE(seq >= 0 && (seq == known->committed || seq == known->attempted),
                    "%s is at seq %" PRId64 ", committed were %" PRId64 " and perhaps %" PRId64,
                    name, seq, known->committed, known->attempted);
    } else {
        /* A new name begins with a segment, which retention may have removed since. */
        int first_commit = known->attempted != NEVER_COMMITTED && seq == known->attempted;
        BESIDE_RULE(first_commit || slot.offset == WALK_DATA,
                    "%s begins at offset %" PRIu64 " of segment %" PRIu64, name, slot.offset,
                    slot.segment);
    }
    return 0;
}

/* ---- index.meta: agrees with the records, never goes back ---- */

static inline int beside_judge_durable(beside_case_t *judged) {
    const uint8_t *at = judged->now->durable.bytes;
    ssize_t size = judged->now->durable.size;
    uint64_t segment = walk_number(at, 8), offset = walk_number(at + 8, 8);
    int recovered = judged->after >= AFTER_RECOVERY;
    BESIDE_RULE(size == BESIDE_DURABLE || (size <= 0 && !recovered && !judged->ledger->opened),
                "index.meta has %zd bytes", size);
    if (size <= 0) return 0;
    BESIDE_RULE(segment + 1 >= judged->chart->first_segment,
                "index.meta names segment %" PRIu64 ", but the queue begins with %" PRIu64, segment,
                judged->chart->first_segment);
    /* It names a finished segment, which may have been removed since. */
    int removed = segment < judged->chart->first_segment && !recovered;
    BESIDE_RULE(removed || chart_locate(judged->chart, segment, offset) >= 0,
                "index.meta names segment %" PRIu64 " offset %" PRIu64 ", where no record ends",
                segment, offset);
    if (judged->before->durable.size == BESIDE_DURABLE) {
        const uint8_t *before = judged->before->durable.bytes;
        uint64_t before_segment = walk_number(before, 8);
        BESIDE_RULE(segment > before_segment ||
                        (segment == before_segment && offset >= walk_number(before + 8, 8)),
                    "index.meta went back from segment %" PRIu64 " offset %" PRIu64, before_segment,
                    walk_number(before + 8, 8));
    }
    return 0;
}

/* ---- control.meta ---- */

/* Its fields, by their offsets. */
enum {
    CONTROL_EPOCH = 16,
    CONTROL_SEGMENT_SIZE = 24,
    CONTROL_QUEUE_ID = 32,
    CONTROL_CLEAN = 56,
    CONTROL_CLEAN_SEGMENT = 64,
    CONTROL_CLEAN_CHECKSUM = 68,
    CONTROL_CLEAN_OFFSET = 72,
    CONTROL_CLEAN_NEXT_SEQ = 80,
    CONTROL_CLEAN_LAST_RECORD = 96,
    CONTROL_SIGNALLING_EPOCH = 104,
    CONTROL_REMOVING = 112,
    CONTROL_GENERATION = 128,
    CONTROL_SEGMENT = 132,
    CONTROL_COUNTING_EPOCH = 248,
    CONTROL_OFFSET = 256,
    CONTROL_WATERMARK = 272,
    CONTROL_NEXT_SEQ = 280,
    CONTROL_LAST_TIMESTAMP = 288,
    CONTROL_LAST_RECORD = 296,
    CONTROL_REMOVED_SEQ = 304,
    CONTROL_REMOVED_NS = 312,
    CONTROL_REMOVED_CHECK = 320
};

static inline uint64_t beside_word(const beside_t *beside, int offset) {
    return walk_number(beside->control.bytes + offset, 8);
}

static inline int beside_judge_constants(beside_case_t *judged) {
    const uint8_t *at = judged->now->control.bytes;
    BESIDE_RULE(judged->now->control.size == BESIDE_CONTROL, "control.meta has %zd bytes",
                judged->now->control.size);
    BESIDE_RULE(walk_number(at, 4) == 0x4348524E && walk_number(at + 4, 4) == 3 &&
                    walk_number(at + 8, 4) == 2,
                "control.meta begins with %08" PRIx64, walk_number(at, 4));
    BESIDE_RULE(beside_word(judged->now, CONTROL_SEGMENT_SIZE) == judged->segment_size,
                "control.meta has another segment size");
    BESIDE_RULE(beside_word(judged->now, CONTROL_QUEUE_ID) != 0, "the queue has no id");
    BESIDE_RULE(beside_is_zero(at + 12, 4) && beside_is_zero(at + 152, 96) &&
                    beside_is_zero(at + 324, 60) && beside_is_zero(at + 400, 112),
                "spare bytes of control.meta are used");
    BESIDE_RULE(beside_word(judged->now, CONTROL_SIGNALLING_EPOCH) <=
                    beside_word(judged->now, CONTROL_EPOCH),
                "a writer of the future signals");
    return 0;
}

static inline int beside_judge_against_before(beside_case_t *judged) {
    static const int growing[] = {CONTROL_EPOCH, CONTROL_WATERMARK, CONTROL_NEXT_SEQ,
                                  CONTROL_LAST_TIMESTAMP};
    if (judged->before->control.size < 0) return 0;
    BESIDE_RULE(beside_word(judged->now, CONTROL_QUEUE_ID) ==
                    beside_word(judged->before, CONTROL_QUEUE_ID),
                "the queue has another id than before");
    for (size_t i = 0; i < sizeof growing / sizeof *growing; i++)
        BESIDE_RULE(beside_word(judged->now, growing[i]) >= beside_word(judged->before, growing[i]),
                    "the word at %d of control.meta went back", growing[i]);
    BESIDE_RULE(judged->after < AFTER_RECOVERY || beside_word(judged->now, CONTROL_EPOCH) >
                                                      beside_word(judged->before, CONTROL_EPOCH),
                "an epoch was used twice");
    return 0;
}

/* The writer's position, on which readers and successors rely. */
static inline int beside_judge_head(beside_case_t *judged) {
    const uint8_t *at = judged->now->control.bytes;
    const chart_t *chart = judged->chart;
    uint64_t segment = walk_number(at + CONTROL_SEGMENT, 4);
    uint64_t offset = beside_word(judged->now, CONTROL_OFFSET);
    uint64_t next_seq = beside_word(judged->now, CONTROL_NEXT_SEQ);
    BESIDE_RULE(beside_word(judged->now, CONTROL_COUNTING_EPOCH) <=
                    beside_word(judged->now, CONTROL_EPOCH),
                "a writer of the future counts");
    uint64_t last_record = beside_word(judged->now, CONTROL_LAST_RECORD);
    int between = (int)(walk_number(at + CONTROL_GENERATION, 4) % 2);
    BESIDE_RULE(beside_is_next(judged, (int64_t)next_seq), "control.meta has next seq %" PRIu64,
                next_seq);
    BESIDE_RULE(!between || judged->after < AFTER_RECOVERY, "the segment is still being changed");
    if (between) return 0;
    int64_t seq = chart_locate(chart, segment, offset);
    BESIDE_RULE(beside_is_next(judged, seq) && seq <= (int64_t)next_seq,
                "control.meta names segment %" PRIu64 " offset %" PRIu64 ", seq %" PRId64, segment,
                offset, seq);
    BESIDE_RULE(last_record == 0 || (offset > WALK_DATA && last_record % 64 == 0 &&
                                     chart_locate(chart, segment, last_record) >= 0),
                "control.meta names a last record at %" PRIu64 ", where none is", last_record);
    if (judged->after < AFTER_RECOVERY) return 0;
    const uint8_t *durable = judged->now->durable.bytes;
    BESIDE_RULE(walk_number(durable, 8) == segment && walk_number(durable + 8, 8) == offset,
                "index.meta and control.meta name different ends");
    BESIDE_RULE(!chart_find(chart, segment)->sealed, "the writer is in a finished segment");
    BESIDE_RULE(offset == WALK_DATA ||
                    chart_locate(chart, segment, last_record) + 1 == (int64_t)next_seq,
                "the record at %" PRIu64 " is not the last one", last_record);
    return 0;
}

static inline int beside_judge_times(beside_case_t *judged) {
    const chart_t *chart = judged->chart;
    uint64_t watermark_ns = beside_word(judged->now, CONTROL_WATERMARK);
    uint64_t last_ns = beside_word(judged->now, CONTROL_LAST_TIMESTAMP);
    uint64_t newest_ns = chart->records ? chart->record[chart->records - 1].timestamp_ns : 0;
    uint64_t promised_ns = beside_max(newest_ns, watermark_ns);
    BESIDE_RULE(watermark_ns >= judged->ledger->watermark_ns, "a heartbeat is lost");
    BESIDE_RULE(last_ns <= beside_max(promised_ns, beside_word(judged->now, CONTROL_REMOVED_NS)),
                "control.meta has a time that no record has");
    BESIDE_RULE(judged->after < AFTER_RECOVERY || last_ns >= promised_ns,
                "the next record may be older than the last one or a heartbeat");
    return 0;
}

/* Retention has removed what it announced; only the first segment may be about to go. */
static inline int beside_judge_removal(beside_case_t *judged) {
    const uint8_t *at = judged->now->control.bytes;
    const chart_t *chart = judged->chart;
    uint64_t removing = beside_word(judged->now, CONTROL_REMOVING);
    uint64_t removed_seq = beside_word(judged->now, CONTROL_REMOVED_SEQ);
    BESIDE_RULE(removing >= chart->first_segment && removing <= chart->first_segment + 1,
                "%" PRIu64 " segments were to be removed, and the queue begins with %" PRIu64,
                removing, chart->first_segment);
    if (beside_crc(at + CONTROL_REMOVED_SEQ, 16) != walk_number(at + CONTROL_REMOVED_CHECK, 4))
        return 0; /* new or torn: then the segment it was noted for is still there */
    BESIDE_RULE(removed_seq >= chart_seq(chart, 0) &&
                    removed_seq <= chart_seq(chart, chart->segment[0].count),
                "removed was noted up to seq %" PRIu64 ", and the queue begins with %" PRIu64,
                removed_seq, chart_seq(chart, 0));
    return 0;
}

static inline int beside_judge_clean(beside_case_t *judged) {
    uint8_t clean[CONTROL_SIGNALLING_EPOCH - CONTROL_CLEAN];
    const uint8_t *at = judged->now->control.bytes;
    const uint8_t *durable = judged->now->durable.bytes;
    memcpy(clean, at + CONTROL_CLEAN, sizeof clean);
    memset(clean + CONTROL_CLEAN_CHECKSUM - CONTROL_CLEAN, 0, 4);
    uint64_t epoch = beside_word(judged->now, CONTROL_CLEAN);
    int is_clean = epoch != 0 && epoch == beside_word(judged->now, CONTROL_EPOCH) &&
                   beside_crc(clean, sizeof clean) == walk_number(at + CONTROL_CLEAN_CHECKSUM, 4);
    int closed =
        judged->after == AFTER_CLOSE || (judged->after == AFTER_WRITER && judged->ledger->closed);
    BESIDE_RULE(is_clean || !closed, "a clean close left no mark");
    BESIDE_RULE(!is_clean || judged->after != AFTER_RECOVERY, "closed without a close");
    if (!is_clean) return 0;
    uint64_t segment = walk_number(at + CONTROL_CLEAN_SEGMENT, 4);
    uint64_t offset = beside_word(judged->now, CONTROL_CLEAN_OFFSET);
    BESIDE_RULE(
        beside_word(judged->now, CONTROL_CLEAN_NEXT_SEQ) == judged->chart->next_seq &&
            chart_locate(judged->chart, segment, offset) == (int64_t)judged->chart->next_seq &&
            walk_number(durable, 8) == segment && walk_number(durable + 8, 8) == offset,
        "the mark of a clean close names segment %" PRIu64 " offset %" PRIu64, segment, offset);
    return 0;
}

static inline int beside_judge_control(beside_case_t *judged) {
    if (judged->now->control.size < 0 && judged->after < AFTER_RECOVERY && !judged->ledger->opened)
        return 0;
    return beside_judge_constants(judged) < 0 || beside_judge_against_before(judged) < 0 ||
                   beside_judge_head(judged) < 0 || beside_judge_times(judged) < 0 ||
                   beside_judge_removal(judged) < 0 || beside_judge_clean(judged) < 0
               ? -1
               : 0;
}

static inline int beside_judge(beside_case_t *judged, const char *const *readers) {
    judged->broken[0] = 0;
    if (beside_judge_control(judged) < 0 || beside_judge_durable(judged) < 0) return -1;
    for (int i = 0; i < LEDGER_READERS; i++)
        if (beside_judge_position(judged, i, readers[i]) < 0) return -1;
    for (uint32_t i = 0; i < judged->now->indexes; i++)
        if (beside_judge_index(judged, judged->now->index[i].segment, judged->now->index[i].bytes,
                               judged->now->index[i].size) < 0)
            return -1;
    return 0;
}

#endif
