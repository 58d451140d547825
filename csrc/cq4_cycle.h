/* One data file of a Java Chronicle Queue: the messages of one cycle.
 *
 * 1. The first record is metadata: event "header", type SCQStore, a block of
 *      writePosition: i64[2]     indexing: SCQSIndexing { indexCount, indexSpacing, index2Index, lastIndex }
 *      dataFormat: 1             since 5.19.11: records are padded to multiples of four. Absent: they are not
 *      roll, wireType, …         4.x and 5.16.0 to 5.16.8 only
 *    A queue of the wire type FIELDLESS_BINARY has these values without their names, in this order.
 * 2. writePosition[0] is the offset of the last message's header, 0 if there is none; writePosition[1] is
 *    (that offset << shift) + seq, where the shift is that of the roll cycle or, in a file with an index count of
 *    its own that was opened again, the one that follows from this header. While the two do not fit, a writer is
 *    between them. Both may lag after the records.
 * 3. index2Index is the offset of a metadata record "index2index", i64[indexCount], of the offsets of index pages;
 *    0 = none. A page is a metadata record "index", i64[indexCount], of the header offsets of every indexSpacing-th
 *    message. Message seq: slot = seq / spacing, page = slot / count, place in the page = slot % count.
 * 4. Index records stand among the messages. Slots may be missing; those that nobody has set may hold anything.
 *    So a slot counts only if it is a multiple of four (where padded), not after writePosition[0], not below its
 *    predecessor, the header of a message, and as many messages after its predecessor as it should be; and a page only
 *    if one of its first slots is so, counted from the page before. Else it is a hole: the search goes back to the slot before it, and from there forward over the records.
 * 5. The file grows as it is written, and is cut to its end when it is finished, or not. Nothing after st_size
 *    at the time of mapping is checked. A file without size, or whose first header is 0, 80000000 or, in old ones,
 *    C0000000, is being created.
 *
 * Written by the process that holds the queue's write lock. Stale values cost time, not messages: the records
 * themselves say where the messages are. */
#ifndef AC_CQ4_CYCLE_H
#define AC_CQ4_CYCLE_H

#include "cq4_record.h"
#include "cq4_roll.h"
#include "directory.h"
#include "segment_map.h"

/* An i64 array in the file: of index2index, or of an index page. */
typedef struct ac_cq4_page {
    uint64_t number;   /* of the page */
    uint64_t at;       /* offset of the first value; 0 = not known */
    uint64_t capacity; /* all of it is mapped */
} ac_cq4_page_t;

typedef struct ac_cq4_cycle {
    ac_map_t *map; /* as far as the file went when it was mapped; NULL: not open */
    const ac_directory_t *dir;
    char name[AC_CQ4_NAME_MAX];
    dev_t device;
    ino_t inode;
    uint32_t number;
    uint32_t shift;   /* of the roll cycle, for writePosition[1] */
    uint64_t padding; /* 3 where records are padded, else 0 */
    uint64_t first;   /* offset of the first record after the header */
    ac_cq4_roll_t
        roll; /* of this header: index count and spacing, shift; the rest in old files only */
    uint64_t write_position_at, index2index_at, last_index_at; /* offsets of these; 0 = not there */
    uint32_t write_positions;                                  /* 2; 1 in the oldest files */
    ac_cq4_page_t index2index, page;                           /* found last */
    uint64_t page_confirmed; /* number + 1 of the page whose place was verified last */
} ac_cq4_cycle_t;

/* Opens and maps a data file. AC_E_NOT_FOUND if there is none, and with EAGAIN if it is being created.
 * `shift` is that of the queue; 0: take the one that follows from the file. `dir` must outlive the cycle. */
int ac_cq4_cycle_open(const ac_directory_t *dir, int dir_fd, const char *name, uint32_t number,
                      uint32_t shift, ac_cq4_cycle_t *out, ac_error_t *err);
void ac_cq4_cycle_close(ac_cq4_cycle_t *cycle); /* also for one that is all zeros */

/* The same for a file that is open already, whatever its name is now. A writable mapping keeps the fd;
 * otherwise it stays the caller's, as it does on error. */
int ac_cq4_cycle_open_fd(const ac_directory_t *dir, int fd, int writable, const char *name,
                         uint32_t number, uint32_t shift, ac_cq4_cycle_t *out, ac_error_t *err);

/* Maps a writable file again, up to its present size. */
int ac_cq4_cycle_remap(ac_cq4_cycle_t *cycle, ac_error_t *err);

/* Maps the file again if it has grown, or if a page of the mapping could not be read. 1 = mapped again, 0 =
 * unchanged. The old mapping stays with the messages that hold it. AC_E_GONE if another file has its name;
 * a file that no longer has a name is left as it is. */
int ac_cq4_cycle_refresh(ac_cq4_cycle_t *cycle, ac_error_t *err);

/* Where a walk over the records stopped. */
typedef struct ac_cq4_place {
    uint64_t offset; /* of a header */
    uint64_t seq;    /* of the next message at or after it */
    ac_cq4_kind_t kind;
} ac_cq4_place_t;

/* The message with this seq: kind is AC_CQ4_DATA. If there are fewer messages: the end of the messages. */
ac_cq4_place_t ac_cq4_cycle_find(ac_cq4_cycle_t *cycle, uint64_t seq);

/* The place after the last message: its seq is the number of messages. */
ac_cq4_place_t ac_cq4_cycle_end(ac_cq4_cycle_t *cycle);

/* Whether there is nothing at this offset although a later message was written: the page was lost. */
int ac_cq4_cycle_is_hole(const ac_cq4_cycle_t *cycle, uint64_t offset);

/* Continues from a place to the end of the messages, counting them. */
ac_cq4_place_t ac_cq4_cycle_walk(const ac_cq4_cycle_t *cycle, ac_cq4_place_t from);

/* Finds an index page: 1 = it is cycle->page, 0 = there is none. */
int ac_cq4_cycle_load_page(ac_cq4_cycle_t *cycle, uint64_t number);

/* writePosition, if its two numbers fit: 1 with the offset and the seq of the last message. */
int ac_cq4_cycle_last(const ac_cq4_cycle_t *cycle, uint64_t *offset, uint64_t *seq);

/* The record at this offset; if no record begins there, a place with another offset. */
ac_cq4_place_t ac_cq4_cycle_place_at(ac_cq4_cycle_t *cycle, uint64_t offset);

/* The first message after a damaged place that the index or writePosition knows: kind is AC_CQ4_DATA;
 * otherwise there is none. The index is trusted here, because no walk over the records leads there. */
ac_cq4_place_t ac_cq4_cycle_after_damage(ac_cq4_cycle_t *cycle, ac_cq4_place_t damage);

int ac_cq4_cycle_has_message(const ac_cq4_cycle_t *cycle);

/* Offset of the last message according to its writer; 0 = none, or not recorded. */
uint64_t ac_cq4_cycle_write_position(const ac_cq4_cycle_t *cycle);

int ac_cq4_cycle_fail(const ac_cq4_cycle_t *cycle, int code, int sys_errno, uint64_t offset,
                      const char *why, ac_error_t *err);

#endif
