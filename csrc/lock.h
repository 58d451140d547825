/* Exclusive ownership of a file by a live process.
 *
 * The lock is flock's, and what holds it is a *mapping* of the file: the fd is closed at once. So it
 * costs no fd, dies with the process however that dies, means the same in every container, and (the
 * mapping is not inherited) does not live on in forked children. */
#ifndef AC_LOCK_H
#define AC_LOCK_H

#include "control.h"
#include "directory.h"

typedef struct ac_lock {
    void *mapping;
    uint64_t length;
} ac_lock_t;

/* Locks the open file. -EWOULDBLOCK if another holds it. The fd may be closed afterwards. */
int ac_lock_take(ac_lock_t *lock, int fd);
void ac_lock_release(ac_lock_t *lock);

/* writer.lock: takes it and writes who we are, or says who has it. */
int ac_writer_lock(ac_lock_t *lock, const ac_directory_t *dir, int dir_fd, ac_control_t *control,
                   ac_error_t *err);

/* Writes the epoch that the holder of the lock has in the end; until then it is a guess. */
int ac_writer_lock_note_epoch(const ac_directory_t *dir, int dir_fd, uint64_t epoch,
                              ac_error_t *err);

/* Does the writer that is named in writer.lock live and have the queue open, as far as can be told? */
int ac_writer_lives(const ac_directory_t *dir, const ac_control_t *control);

#endif
