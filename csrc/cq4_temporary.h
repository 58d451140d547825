/* Files of a Java queue that are built complete under a temporary name, and then linked to their own.
 *
 * The name is .WHAT.tmp.PID.RANDOM. Java skips names with a dot. The pid says whose file it is, and so whether a killed
 * process left it. The random part makes a wrong removal harmless, which can happen when the pid belongs to another pid
 * namespace: the owner's link fails, and it tries again with a new file. */
#ifndef AC_CQ4_TEMPORARY_H
#define AC_CQ4_TEMPORARY_H

#include "directory.h"

enum { AC_CQ4_TEMPORARY_MAX = 64 };

/* A new open file of that length, all zeros, with the mode of the directory's files; its name is in `name`. */
int ac_cq4_temporary_create(const ac_directory_t *dir, int dir_fd, const char *what,
                            uint64_t length, char name[AC_CQ4_TEMPORARY_MAX], ac_error_t *err);

/* Removes the files of processes that no longer exist. What cannot be removed stays. */
void ac_cq4_temporary_clean(int dir_fd);

#endif
