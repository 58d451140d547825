/* Creating the data file of a cycle of a Java queue.
 *
 * Java creates it in place, and a process that is killed meanwhile makes all others wait for half a minute.
 * Here a file is built complete before the write lock is taken: header, index2index and the first index page,
 * for the table of roll cycles byte by byte as Java lays them out. Under the lock it is linked to its name.
 *
 *   0            header: writePosition {0, 0}, indexCount, indexSpacing, index2Index, lastIndex 0, dataFormat 1
 *   C8 (mostly)  index2index, one page used, the others 0
 *   then         the first index page, all 0
 *
 * Two kinds of files may already exist at the place where it should be linked:
 *   <cycle name>.precreated   made ahead of time by a JVM. It is completed, and renamed to the data file
 *   an incomplete file        left by a process that was killed. Files are created under the write lock, so the
 *                             process that holds it completes the file in place */
#ifndef AC_CQ4_CREATE_H
#define AC_CQ4_CREATE_H

#include "cq4_queue.h"
#include "cq4_temporary.h"

/* A new file without a name, mapped for writing; `out` has the cycle's name and number. */
int ac_cq4_create_build(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number,
                        char temporary[AC_CQ4_TEMPORARY_MAX], ac_cq4_cycle_t *out, ac_error_t *err);

/* Under the write lock: gives it its name. 1 = done, 0 = there is a file of this cycle now; open that one
 * instead. The temporary name is removed in either case. */
int ac_cq4_create_link(const ac_cq4_queue_t *queue, int dir_fd, const char *temporary,
                       const ac_cq4_cycle_t *cycle, ac_error_t *err);

/* Under the write lock: completes the file of a cycle that has a name, but no header. */
int ac_cq4_create_complete(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number,
                           ac_error_t *err);

#endif
