/* The engine's log: what an operator should know and no caller is waiting for.
 *
 * The failure of a background worker, a repair, a clock that jumped. Entries wait in a bounded ring until the binding takes
 * them (ac_log_next) and passes them to its own logging. Entries below the chosen level take no room. When the ring is
 * full the newest entry is dropped and counted: the first failure explains more than the last. */
#ifndef AC_LOG_H
#define AC_LOG_H

#include "aiochronicle.h"

/* [any thread] One line that names the file. `path` may be NULL. 1 = recorded, 0 = there was no room. Never
 * blocks on I/O. */
int ac_log(int level, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* [any thread] The same from an error record. */
void ac_log_error(int level, const ac_error_t *err, const char *what);

#endif
