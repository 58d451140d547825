/* Segments: `%09d.q` files of equal size, a 64-byte header and then records.
 *
 *   0 u32 magic   4 u32 version   8 u32 segment_id   12 u32 flags (bit 0 sealed)
 *  16 u64 end, ours: after the last record of a sealed segment, 0 = not known   24 40 spare bytes
 *
 * How a reader walks: 1. at an uncommitted header, or with less than a header's room left, look whether
 * the segment is sealed; 2. if it is, look at the header again (it may have been committed just before
 * the seal); 3. still nothing: continue at offset 64 of the next id. A segment appears under its name
 * only after its header is on disk. */
#ifndef AC_SEGMENT_H
#define AC_SEGMENT_H

#include "directory.h"
#include "segment_map.h"

#define AC_SEGMENT_MAGIC 0x53454730u
#define AC_SEGMENT_VERSION 2u
#define AC_SEGMENT_DATA 64u
#define AC_SEGMENT_SEALED 1u
#define AC_SEGMENT_ID_MAX (UINT32_MAX - 2) /* so that incrementing an id cannot overflow */

typedef struct ac_segment_header {
    uint32_t magic;
    uint32_t version;
    uint32_t segment_id;
    uint32_t flags;
    uint64_t end;
    uint8_t spare[40];
} ac_segment_header_t;

_Static_assert(sizeof(ac_segment_header_t) == AC_SEGMENT_DATA, "segment header");

enum { AC_NAME_MAX = 32 };
void ac_segment_name(char name[AC_NAME_MAX], uint32_t id, const char *suffix);

/* Allocates, syncs and publishes an empty segment; maps it writable. AC_E_SYSTEM with EEXIST if there
 * is one with this id. */
int ac_segment_create(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t size,
                      ac_map_t **out, ac_error_t *err);

/* The same for a segment that stays empty: sealed from the start, and not mapped. */
int ac_segment_create_empty(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t size,
                            ac_error_t *err);

/* Whether there is room for a segment, before anything is created. Costs one system call unless the file
 * system reports that there is none: then it is tried, because some file systems know only then. */
int ac_segment_check_room(const ac_directory_t *dir, int dir_fd, uint64_t size, ac_error_t *err);

/* Maps an existing segment. A file shorter than `size` is mapped up to its end (see map->size); one without
 * a proper header is AC_E_CORRUPT. AC_E_NOT_FOUND if there is none. */
int ac_segment_open(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t size, int writable,
                    ac_map_t **out, ac_error_t *err);

/* AC_E_SYSTEM with EIO and the offset if a page of the mapping could not be read: act on nothing that was
 * read from there. */
int ac_segment_check_readable(const ac_directory_t *dir, const ac_map_t *map, ac_error_t *err);
/* Whether the file has no header, or only a part of one: 1 or 0; 0 also if that is unknown. In the newest
 * segment this is no damage unless something else says that it has records: other programs publish the file
 * first. See ac_segment_awaited. */
int ac_segment_lacks_header(const ac_directory_t *dir, int dir_fd, uint32_t id);

/* Prepares [from, to) of a segment that is being written for stores without a page fault. Nothing may have
 * been stored there yet: the range is filled with the zeros it holds anyway, because on ext4 large writes
 * make large folios, and those are mapped in much less time than single holes.
 *
 * It is written in pieces of `piece` bytes, each a folio. The kernel writes back whole folios, and a store
 * that faults meanwhile waits for the folio: with 1 MiB, appends beside a busy disk took 2 to 3 ms, and an
 * ordinary fault 6 us. Hosts that lend memory to virtual machines take free huge pages back, and touching
 * such a page again costs 10 us for each of its 512 pages: with 1 MiB, appending for long took twice as
 * long. With less than AC_PIECE, reading takes longer, because a reader faults once per folio: 11 ns per
 * message with 1 MiB, 13 with 256 KiB, 16 with 128 KiB. A sync writes whole folios, too: for a writer that
 * syncs every few records they are smaller still. */
enum { AC_POPULATE_STEP = 1 << 20, AC_PIECE = 256 << 10, AC_PIECE_SYNCED = 16 << 10 };
/* From here on a sync is large enough for folios of AC_PIECE. */
enum { AC_FEW_BYTES = AC_POPULATE_STEP / 4 };
static inline uint64_t ac_populate_step_end(uint64_t offset) {
    return (offset / AC_POPULATE_STEP + 1) * AC_POPULATE_STEP;
}
int ac_segment_populate(ac_map_t *map, uint64_t from, uint64_t to, uint64_t piece);

static inline int ac_segment_sealed(const ac_map_t *map) {
    const ac_segment_header_t *header = (const ac_segment_header_t *)(const void *)map->base;
    return (ac_load_acquire_u32(&header->flags) & AC_SEGMENT_SEALED) != 0;
}

/* Where the records of a sealed segment end; 0 if that is not recorded, or impossible. */
static inline uint64_t ac_segment_end(const ac_map_t *map) {
    const ac_segment_header_t *header = (const ac_segment_header_t *)(const void *)map->base;
    uint64_t end = ac_load_relaxed_u64(&header->end);
    return ac_segment_sealed(map) && end <= map->size && end % 64 == 0 ? end : 0;
}

static inline void ac_segment_seal(ac_map_t *map, uint64_t end) {
    ac_segment_header_t *header = (ac_segment_header_t *)(void *)map->base;
    ac_store_relaxed_u64(&header->end, end);
    ac_store_release_u32(&header->flags, ac_load_relaxed_u32(&header->flags) | AC_SEGMENT_SEALED);
}

/* Bytes of records from one position to a later one, without the unused rest of sealed segments. A segment
 * that cannot be checked counts as full. */
uint64_t ac_segment_distance(const ac_directory_t *dir, int dir_fd, uint64_t segment_size,
                             uint64_t from_segment, uint64_t from_offset, uint64_t to_segment,
                             uint64_t to_offset);

/* What a segment takes on disk: its full size, or nothing if it was created to stay empty. */
uint64_t ac_segment_room(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t segment_size);

/* The ids of all published segments, ascending; *ids is malloc'd. */
int ac_segment_list(const ac_directory_t *dir, int dir_fd, uint32_t **ids, size_t *count,
                    ac_error_t *err);

/* Smallest id and largest id, or *count 0. */
int ac_segment_bounds(const ac_directory_t *dir, int dir_fd, uint32_t *first, uint32_t *last,
                      size_t *count, ac_error_t *err);

#endif
