/* Filling the caller's error record. */
#ifndef AC_ERROR_H
#define AC_ERROR_H

#include "aiochronicle.h"

/* Fills *err (if not NULL) and returns `code`. */
int ac_fail(ac_error_t *err, int code, int sys_errno, const char *path, uint64_t offset,
            const char *format, ...) __attribute__((format(printf, 6, 7)));

/* For a failed system call: `negative_errno` as os.h returns it; picks the code by errno. */
int ac_fail_os(ac_error_t *err, int negative_errno, const char *path, const char *what);

/* The same for a file inside a directory. */
int ac_fail_os_in(ac_error_t *err, int negative_errno, const char *directory, const char *name,
                  const char *what);

#endif
