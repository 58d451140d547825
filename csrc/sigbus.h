/* A file that is cut while it is mapped turns the next access into SIGBUS. The engine registers its
 * mappings here; the handler puts a zero page under the faulting address and marks the mapping as cut,
 * so the access goes on and the next check reports an error instead of killing the process. A page that
 * cannot be read from disk, or be written to for want of space, comes the same way. */
#ifndef AC_SIGBUS_H
#define AC_SIGBUS_H

#include <stdint.h>

/* A slot number >= 0, or a negated errno. When the mapping is hit, `cut_at` gets the offset of the page, and
 * then `cut` is set to 1. */
int ac_sigbus_register(void *base, uint64_t length, uint32_t *cut, uint64_t *cut_at);
void ac_sigbus_forget(int slot);

#endif
