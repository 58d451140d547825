/* The length of data files of Java queues that are open for writing.
 *
 * Java maps a file in chunks of 64 MiB, each with 16 MiB of the next one, and makes the file as long as the chunk that it
 * maps last. So a file is never shorter than (n + 1) * 64 MiB + 16 MiB, where n is the chunk in which its newest record
 * begins, and most of it is a hole. A JVM with another block size makes other lengths; ours always have the usual one. A
 * file grows under an fcntl lock on all of it, as with Java, and is never truncated here. */
#ifndef AC_CQ4_GROW_H
#define AC_CQ4_GROW_H

#include "cq4_queue.h"

#define AC_CQ4_CHUNK (64ull << 20)
#define AC_CQ4_OVERLAP (16ull << 20)

/* For a file with a record that begins at this offset. */
static inline uint64_t ac_cq4_length_for(uint64_t offset) {
    return (offset / AC_CQ4_CHUNK + 1) * AC_CQ4_CHUNK + AC_CQ4_OVERLAP;
}

/* Opens the data file of a cycle for writing, at its present length. AC_E_NOT_FOUND as ac_cq4_cycle_open;
 * AC_E_UNSUPPORTED if its records are not padded, or numbers to be changed in place are not aligned. */
int ac_cq4_grow_open(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number, ac_cq4_cycle_t *out,
                     ac_error_t *err);

/* Makes sure that a record can begin at this offset, and that the whole file is mapped. */
int ac_cq4_grow(ac_cq4_cycle_t *cycle, uint64_t offset, ac_error_t *err);

/* Whether we can append to the file; fills err if not. */
int ac_cq4_grow_check(const ac_cq4_cycle_t *cycle, ac_error_t *err);

#endif
