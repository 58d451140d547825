/* Files of a Java queue that are built complete under another name, and then linked to their own.
 *
 * The name is .WHAT.tmp.PID.RANDOM: Java passes over names with a dot; the pid tells whose it is, and so whether it
 * was left by a killed process; the random part makes it safe to remove one by mistake, when the pid belongs to
 * another pid namespace: its owner's link fails, and is tried again with a new file. */
#ifndef AC_CQ4_TEMPORARY_H
#define AC_CQ4_TEMPORARY_H

#include "directory.h"

enum { AC_CQ4_TEMPORARY_MAX = 64 };

/* An open file of that length, all zeros, with the mode of the directory's files; its name is in `name`. */
int ac_cq4_temporary_create(const ac_directory_t *dir, int dir_fd, const char *what,
                            uint64_t length, char name[AC_CQ4_TEMPORARY_MAX], ac_error_t *err);

/* Removes those of processes that do not exist. What cannot be removed stays. */
void ac_cq4_temporary_clean(int dir_fd);

#endif
