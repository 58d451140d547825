#include "position_seq.h"

#include "cq4_reader.h"
#include "error.h"
#include "os.h"
#include "reader.h"
#include "recovery.h"
#include "segment.h"
#include "segment_seekindex.h"

/* The first message at or after *offset in one segment: 1 = found; 0 = nothing more is in it, and *offset
 * is where that begins; -1 = damage. */
static int first_in(const ac_map_t *map, uint64_t *offset, uint64_t *seq) {
    ac_message_t message;
    const char *why;
    int found;
    while ((found = ac_record_inspect(map->base, map->size, *offset, map->segment, AC_CHECK_HEADER,
                                      &message, &why)) == AC_RECORD_GOOD) {
        *seq = message.seq;
        if (message.type_id != AC_TYPE_PADDING) return 1;
        *offset += ac_record_size(message.length);
    }
    return found == AC_RECORD_BAD ? -1 : 0;
}

/* The last writer is one of ours: if it says 0, everything that was there may have been lost. */
static int is_of_ours(const ac_control_t *control) {
    uint64_t counting = ac_load_relaxed_u64(&control->counting_epoch);
    if (counting) return counting == ac_load_relaxed_u64(&control->writer_epoch);
    return ac_load_relaxed_u64(&control->queue_id) != 0;
}

/* The seq of the next message, if the writer is at this place. The writer stores its offset after the seq,
 * and a record's commit word before both: if the offset is read first, and there is still no record after
 * it, the seq read in between is that of this place. */
static int next_by_writer(const ac_control_t *control, const ac_map_t *map, uint64_t offset,
                          uint64_t *seq) {
    uint32_t head;
    uint64_t head_offset, ignored;
    if (!ac_control_position(control, &head, &head_offset)) return 0;
    if (head != map->segment || head_offset != offset) return 0;
    uint64_t next_seq = ac_control_next_seq(control);
    int is_first = map->segment == 0 && offset == AC_SEGMENT_DATA;
    if (next_seq == 0 && !is_first && !is_of_ours(control)) return 0;
    if (first_in(map, &offset, &ignored) != 0) return 0;
    *seq = next_seq;
    return 1;
}

/* The seq after the records before `offset`; 0 = there are none, or not all of them can be counted. */
static int after_records(const ac_directory_t *dir, int dir_fd, const ac_map_t *map,
                         uint64_t segment_size, uint64_t offset, uint64_t *seq) {
    ac_index_t index;
    int built;
    if (ac_index_obtain(&index, dir, dir_fd, map, segment_size, &built, NULL) != AC_OK) return 0;
    int known = index.records > 0 && index.end == offset && !index.broken;
    if (known) *seq = index.max_seq + 1;
    ac_index_free(&index);
    return known;
}

/* The seq after the previous segment. The writer links its next segment a moment before it enters it. Seqs
 * of other programs may start again with a segment. */
static int after_segment_before(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
                                const ac_map_t *map, uint64_t segment_size, uint64_t *seq) {
    ac_map_t *before;
    if (map->segment == 0 || ac_load_relaxed_u64(&control->queue_id) == 0) return 0;
    if (ac_segment_open(dir, dir_fd, map->segment - 1, segment_size, 0, &before, NULL) != AC_OK)
        return 0;
    uint64_t end = ac_segment_end(before);
    int known = end != 0 && after_records(dir, dir_fd, before, segment_size, end, seq);
    ac_map_release(before);
    return known;
}

static int at_end(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
                  const ac_map_t *map, uint64_t segment_size, uint64_t offset, uint64_t *seq) {
    if (next_by_writer(control, map, offset, seq)) return 1;
    if (offset == AC_SEGMENT_DATA)
        return after_segment_before(dir, dir_fd, control, map, segment_size, seq);
    return after_records(dir, dir_fd, map, segment_size, offset, seq);
}

static int is_finished(const ac_map_t *map, uint64_t offset) {
    return ac_segment_sealed(map) || offset + AC_HEADER_SIZE > map->size;
}

int ac_seq_at(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
              uint64_t segment_size, uint64_t segment, uint64_t offset, uint64_t *seq) {
    ac_map_t *map, *next;
    uint64_t first = 0;
    if (segment > AC_SEGMENT_ID_MAX || offset < AC_SEGMENT_DATA || offset % AC_ALIGNMENT != 0)
        return 0;
    if (ac_segment_open(dir, dir_fd, (uint32_t)segment, segment_size, 0, &map, NULL) != AC_OK)
        return 0;
    int found;
    for (;;) {
        int finished = is_finished(map, offset); /* read before the look: see segment.h */
        found = offset > map->size ? -1 : first_in(map, &offset, &first);
        if (found != 0) break;
        if (!finished ||
            ac_segment_open(dir, dir_fd, map->segment + 1, segment_size, 0, &next, NULL) != AC_OK) {
            found = at_end(dir, dir_fd, control, map, segment_size, offset, &first);
            break;
        }
        ac_map_release(map);
        map = next;
        offset = AC_SEGMENT_DATA;
    }
    ac_map_release(map);
    if (found == 1) *seq = first; /* otherwise it is unchanged */
    return found == 1;
}

/* For the newest segment that has a record. */
static int last_by_records(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
                           uint64_t segment_size, uint64_t *next_seq, uint64_t *last_ns) {
    uint32_t segment;
    uint64_t ignored;
    ac_control_position(control, &segment, &ignored);
    for (uint64_t left = (uint64_t)segment + 1; left > 0; left--) {
        ac_index_t index;
        ac_map_t *map;
        int built;
        if (ac_segment_open(dir, dir_fd, (uint32_t)(left - 1), segment_size, 0, &map, NULL) !=
            AC_OK)
            return 0;
        int rc = ac_index_obtain(&index, dir, dir_fd, map, segment_size, &built, NULL);
        ac_map_release(map);
        if (rc != AC_OK) return 0;
        uint64_t records = index.records;
        *next_seq = index.max_seq + 1;
        *last_ns = index.max_ts_ns;
        ac_index_free(&index);
        if (records) return 1;
    }
    return 0;
}

void ac_end_at(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
               uint64_t segment_size, uint64_t *next_seq, uint64_t *last_ns) {
    *next_seq = ac_control_next_seq(control);
    *last_ns = *next_seq ? ac_load_relaxed_u64(&control->last_timestamp_ns) : 0;
    if (*next_seq || is_of_ours(control)) return;
    if (!last_by_records(dir, dir_fd, control, segment_size, next_seq, last_ns))
        *next_seq = *last_ns = 0;
}

static int seq_of(ac_reader_t *reader, int dir_fd, uint64_t segment, uint64_t offset,
                  uint64_t *seq) {
    return ac_seq_at(&reader->dir, dir_fd, reader->control, reader->segment_size, segment, offset,
                     seq);
}

int ac_reader_seq_at(ac_reader_t *reader, uint64_t segment, uint64_t offset, uint64_t *seq,
                     ac_error_t *err) {
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK) return rc;
    if (reader->java) return ac_cq4_reader_seq_at(reader, segment, offset, seq, err);
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    int known = seq_of(reader, dir_fd, segment, offset, seq);
    ac_os_close(dir_fd);
    return known;
}

int ac_reader_durable_seq(ac_reader_t *reader, uint64_t *seq, ac_error_t *err) {
    ac_durable_t durable;
    int rc = ac_reader_usable(reader, err);
    if (rc != AC_OK) return rc;
    if (reader->java) return ac_cq4_reader_durable_seq(reader, seq);
    int dir_fd = ac_directory_open(&reader->dir, err);
    if (dir_fd < 0) return dir_fd;
    ac_durable_believe(&reader->dir, dir_fd, reader->control, &durable);
    int known = seq_of(reader, dir_fd, durable.segment, durable.offset, seq);
    ac_os_close(dir_fd);
    return known;
}
