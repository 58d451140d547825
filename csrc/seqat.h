/* Positions as seqs. */
#ifndef AC_SEQAT_H
#define AC_SEQAT_H

#include "control.h"
#include "directory.h"

/* The seq of the first message at or after a position: 1 = *seq is it, or will be that of the next message to be
 * appended; 0 = it cannot be told, because the position is not in the queue, or only damage is there. [any thread] */
int ac_seq_at(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
              uint64_t segment_size, uint64_t segment, uint64_t offset, uint64_t *seq);

#endif
