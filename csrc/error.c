#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int ac_fail(ac_error_t *err, int code, int sys_errno, const char *path, uint64_t offset,
            const char *format, ...) {
    va_list arguments;
    if (!err) return code;
    memset(err, 0, sizeof *err);
    err->code = code;
    err->sys_errno = sys_errno;
    err->offset = offset;
    if (path) snprintf(err->path, sizeof err->path, "%s", path);
    va_start(arguments, format);
    vsnprintf(err->detail, sizeof err->detail, format, arguments);
    va_end(arguments);
    return code;
}

static int code_of_errno(int error) {
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return AC_E_NO_SPACE;
    case EACCES:
    case EPERM:
    case EROFS:
        return AC_E_ACCESS;
    case ELOOP:
    case ENOTDIR:
        return AC_E_NOT_A_QUEUE;
    default:
        return AC_E_SYSTEM;
    }
}

int ac_fail_os(ac_error_t *err, int negative_errno, const char *path, const char *what) {
    int error = -negative_errno;
    return ac_fail(err, code_of_errno(error), error, path, 0, "%s: %s", what, strerror(error));
}

int ac_fail_os_in(ac_error_t *err, int negative_errno, const char *directory, const char *name,
                  const char *what) {
    char path[sizeof err->path];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return ac_fail_os(err, negative_errno, path, what);
}

const char *ac_code_name(int code) {
    static const char *const names[] = {"ok",          "system",        "no_space",
                                        "not_found",   "not_a_queue",   "version",
                                        "corrupt",     "locked",        "reader_busy",
                                        "closed",      "forked",        "too_large",
                                        "timestamp",   "position_lost", "position_corrupt",
                                        "name",        "full",          "timeout",
                                        "poisoned",    "reserved",      "argument",
                                        "gone",        "access",        "slow",
                                        "interrupted", "not_durable",   "too_many_readers",
                                        "salvage",     "reentrant",     "reader_not_found",
                                        "unsupported", "stamp",         "group"};
    int index = -code;
    return index >= 0 && index < (int)(sizeof names / sizeof *names) ? names[index] : "unknown";
}
