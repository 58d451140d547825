/* The index of a data file that is being written: see cq4_cycle.h for its layout.
 *
 * Under the write lock. For a message whose seq is a multiple of the spacing, and not below lastIndex:
 * 1. If its page is missing: a new one after the last record, all of its numbers set to 0 (Java trusts what it finds
 *    there), header last; its offset into index2index, and then the number of used entries there.
 * 2. The offset of the message into its slot, and then the number of used slots.
 * 3. lastIndex = seq + spacing: the next seq to be indexed.
 * A kill between these steps leaves an unlisted page, or a missing slot. Both are legal, and cost time only. */
#ifndef AC_CQ4_INDEX_H
#define AC_CQ4_INDEX_H

#include "cq4_cycle.h"

static inline int ac_cq4_index_wants(const ac_cq4_cycle_t *cycle, uint64_t seq) {
    return (seq & (cycle->roll.index_spacing - 1)) == 0;
}

/* How many bytes a new page and what follows it take at most if `seq` is indexed; 0 = its page exists. */
uint64_t ac_cq4_index_page_bytes(ac_cq4_cycle_t *cycle, uint64_t seq);

/* Indexes the message at `position`. `free_offset` is where the next record begins; returns where it begins
 * afterwards. */
uint64_t ac_cq4_index_add(ac_cq4_cycle_t *cycle, uint64_t seq, uint64_t position,
                          uint64_t free_offset);

#endif
