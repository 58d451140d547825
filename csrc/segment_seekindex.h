/* The sparse seek index of a segment: an entry for its first record and every 4096th after it.
 *
 * Only a hint: a user of an entry checks that the record it points to is the one it names,
 * and walks from the segment's start otherwise. */
#ifndef AC_SEGMENT_SEEKINDEX_H
#define AC_SEGMENT_SEEKINDEX_H

#include "directory.h"
#include "segment_map.h"

#include <stddef.h>

enum { AC_INDEX_STRIDE = 4096 };

/* In the header's flags, ours: every record of the segment has the type and the length of the first. */
#define AC_INDEX_UNIFORM 0x80000000u

typedef struct ac_index_header {
    uint8_t magic[8];
    uint16_t version;
    uint16_t header_len;
    uint32_t flags;
    uint64_t segment_id;
    uint64_t segment_size;
    uint32_t data_offset;
    uint32_t entry_stride;
    uint64_t min_seq;
    uint64_t max_seq;
    uint64_t min_ts_ns;
    uint64_t max_ts_ns;
    uint64_t entry_count;
} ac_index_header_t;

typedef struct ac_index_entry {
    uint64_t seq;
    uint64_t timestamp_ns;
    uint64_t offset;
} ac_index_entry_t;

_Static_assert(sizeof(ac_index_header_t) == 80, "index header");
_Static_assert(sizeof(ac_index_entry_t) == 24, "index entry");

/* An index in memory, of a whole segment or of the part that existed when it was built. */
typedef struct ac_index {
    uint32_t segment;
    uint64_t records;
    uint64_t end; /* offset after the last record seen */
    uint64_t min_seq, max_seq, min_ts_ns, max_ts_ns;
    int complete; /* the segment was sealed before the walk: there is nothing to add */
    int seq_unordered, time_unordered; /* a foreign writer's: only a walk finds the first match */
    int broken;       /* the walk ended at a bad record, or before the recorded end */
    int mixed;        /* not all records have the type and length of the first */
    uint32_t length;  /* of the first … */
    uint16_t type_id; /* … likewise */
    size_t count, room;
    ac_index_entry_t *entries;
} ac_index_t;

void ac_index_free(ac_index_t *index);

/* Continues from index->end (initially {0}) over the records that exist. Stops at the first that is not
 * committed or not valid. 0, -ENOMEM, or -EIO if a page could not be read. */
int ac_index_extend(ac_index_t *index, const ac_map_t *map);

/* Publishes it as %09d.idx. */
int ac_index_save(const ac_index_t *index, const ac_directory_t *dir, int dir_fd,
                  uint64_t segment_size, ac_error_t *err);

/* Reads %09d.idx and checks everything that can be checked without the segment. AC_E_NOT_FOUND,
 * AC_E_CORRUPT. */
int ac_index_load(ac_index_t *index, const ac_directory_t *dir, int dir_fd, uint32_t segment,
                  uint64_t segment_size, ac_error_t *err);

/* The index of a mapped segment, verified against its records: the file's if its first and last entries are
 * right, otherwise built again (*built = 1). Out of memory and pages that cannot be read are errors. */
int ac_index_obtain(ac_index_t *index, const ac_directory_t *dir, int dir_fd, const ac_map_t *map,
                    uint64_t segment_size, int *built, ac_error_t *err);

/* The offset from which a walk finds the first record with seq (or timestamp) >= value; verified against
 * the segment, so a wrong index does no harm. */
uint64_t ac_index_lookup(const ac_index_t *index, const ac_map_t *map, int by_time, uint64_t value);

#endif
