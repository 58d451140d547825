/* Positions as seqs. */
#ifndef AC_POSITION_SEQ_H
#define AC_POSITION_SEQ_H

#include "control.h"
#include "directory.h"

/* The seq of the first message at or after a position: 1 = *seq is it, or will be that of the next message to be
 * appended; 0 = it is unknown and *seq unchanged, because the position is not in the queue, or only damage is
 * there. [any thread] */
int ac_seq_at(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
              uint64_t segment_size, uint64_t segment, uint64_t offset, uint64_t *seq);

/* The seq of the next message, and the time of the last one: by the writer's words, or by the records of
 * the newest segment if the writer is another program. 0 = there is none, or it is unknown. */
void ac_end_at(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
               uint64_t segment_size, uint64_t *next_seq, uint64_t *last_ns);

#endif
