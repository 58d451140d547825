/* When a mapped file is truncated, the next access raises SIGBUS. The engine registers its mappings here;
 * the handler puts a zero page under the faulting address and marks the mapping as cut, so the access
 * continues and the next check reports an error instead of killing the process. A page that cannot be read
 * from disk, or cannot be written to because the disk is full, is handled in the same way. */
#ifndef AC_SIGBUS_H
#define AC_SIGBUS_H

#include <stdint.h>

/* A slot number >= 0, or a negated errno. When a fault hits the mapping, `cut_at` gets the offset of the
 * page, and then `cut` is set to 1. */
int ac_sigbus_register(void *base, uint64_t length, uint32_t *cut, uint64_t *cut_at);
void ac_sigbus_forget(int slot);

#endif
