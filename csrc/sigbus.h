/* A file that is cut while it is mapped turns the next access into SIGBUS. The engine registers its
 * mappings here; the handler puts a zero page under the faulting address and marks the mapping as cut,
 * so the access goes on and the next check reports an error instead of killing the process. */
#ifndef AC_SIGBUS_H
#define AC_SIGBUS_H

#include <stdint.h>

/* A slot number >= 0, or a negated errno. `cut` is set to 1 when the mapping is hit. */
int ac_sigbus_register(void *base, uint64_t length, uint32_t *cut);
void ac_sigbus_forget(int slot);

#endif
