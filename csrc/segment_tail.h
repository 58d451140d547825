/* Seek indexes of unsealed segments, kept for the next reader of the process.
 *
 * Such a segment has no index file, so a reader must walk over all of its records before it can find one. A program that
 * opens a queue repeatedly, such as a task that reads parts of it, would walk each time.
 *
 * Any thread reads and writes them, under a mutex; while another thread has it, nothing is stored or recalled. A recalled
 * index is a hint, as in an index file: its last entry is checked against the segment, and the walk continues from there. */
#ifndef AC_SEGMENT_TAIL_H
#define AC_SEGMENT_TAIL_H

#include "segment_seekindex.h"

/* Of the queue with this id in this directory. */
void ac_tail_keep(const char *path, uint64_t queue_id, const ac_index_t *index);

/* Fills an empty index with what was kept: 1; ac_index_extend adds what is missing. 0: nothing was kept, or
 * the segment is another one now. */
int ac_tail_recall(const char *path, uint64_t queue_id, const ac_map_t *map, ac_index_t *index);

#endif
