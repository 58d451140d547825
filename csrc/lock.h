/* Exclusive ownership of a file by a live process.
 *
 * The lock is flock's, and a *mapping* of the file holds it: the fd is closed at once. So it costs no fd, ends with the
 * process however that dies, means the same in every container, and does not live on in forked children, which do not
 * inherit the mapping. */
#ifndef AC_LOCK_H
#define AC_LOCK_H

#include "control.h"
#include "directory.h"

typedef struct ac_lock {
    void *mapping;
    uint64_t length;
} ac_lock_t;

/* Locks the open file. -EWOULDBLOCK if another process holds it. The fd may be closed afterwards. */
int ac_lock_take(ac_lock_t *lock, int fd);
void ac_lock_release(ac_lock_t *lock);

/* A queue is owned through two files. writer.lock is the one that other programs know, and people delete it
 * as a leftover: the next writer then locks a new file while the owner goes on. control.meta is the second:
 * nobody deletes it and expects the queue to live. A writer of ours holds both, control.meta first, so one
 * that is refused there never touches writer.lock.
 * Readers map control.meta and lock nothing. */
typedef struct ac_ownership {
    ac_lock_t control, file;
    ino_t control_inode; /* of the mapped control block; set before locking, 0 = unknown */
    ino_t file_inode;
    int warned;           /* writer.lock cannot be created again */
    uint64_t takeover_ns; /* how long to wait for a holder that is ending; set before locking */
} ac_ownership_t;

/* Takes both and writes our identity into writer.lock; or reports the holder of the queue. */
int ac_writer_lock(ac_ownership_t *owned, const ac_directory_t *dir, int dir_fd,
                   ac_control_t *control, ac_error_t *err);
void ac_writer_unlock(ac_ownership_t *owned);
/* In a forked child, which inherited neither. */
void ac_writer_lock_forked(ac_ownership_t *owned);

/* Checks whether the two names still lead to the locked files, and creates writer.lock again if it was
 * lost. Returns NULL, or why the queue is no longer ours. What cannot be checked now is checked next time. */
const char *ac_writer_keep_lock(ac_ownership_t *owned, const ac_directory_t *dir, int dir_fd,
                                const ac_control_t *control, uint32_t epoch);

/* Writes the final epoch of the lock's holder; until then it is a guess. */
int ac_writer_lock_note_epoch(const ac_directory_t *dir, int dir_fd, uint64_t epoch,
                              ac_error_t *err);

/* The writer that writer.lock names, by the text alone: tries no lock. */
typedef struct ac_named_writer {
    int pid;
    uint64_t epoch;
    uint64_t since_ns; /* when the text was written */
    int here;          /* its pid is valid in our pid namespace */
    int closed;        /* it closed the queue properly */
    int lives;
} ac_named_writer_t;

/* 1 = *out is the writer; 0 = none is named. */
int ac_writer_named(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
                    ac_named_writer_t *out);

/* Whether the writer named in writer.lock lives and has the queue open, as far as is known. */
int ac_writer_lives(const ac_directory_t *dir, const ac_control_t *control);

#endif
