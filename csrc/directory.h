/* The directory of a queue: how files in it are opened, checked and published.
 *
 * No directory fd is kept: a process may follow a thousand queues. Each use opens the path again and verifies that it is
 * still the same directory before it looks at anything inside; so it does not matter which links led there. */
#ifndef AC_DIRECTORY_H
#define AC_DIRECTORY_H

#include "aiochronicle.h"

#include <sys/stat.h>

typedef struct ac_directory {
    char path[1024];
    dev_t device;
    ino_t inode;
    uid_t owner;
    unsigned mode; /* of new files */
    int shared;    /* its mode lets other users create files in it, so files may be theirs */
    int pinned;    /* it must be this one, of this owner, and not be reached through a link */
} ac_directory_t;

/* Remembers the directory at `path`. AC_E_NOT_FOUND if there is nothing. With `create`, creates it. */
int ac_directory_init(ac_directory_t *dir, const char *path, unsigned mode, int create,
                      ac_error_t *err);

/* The same, if it is the one that the caller has seen: AC_E_GONE otherwise. A path through directories of
 * other users may lead elsewhere by now. */
int ac_directory_init_expected(ac_directory_t *dir, const char *path, unsigned mode,
                               const ac_identity_t *expected, ac_error_t *err);

/* An fd of the directory, or an AC_E_* code: AC_E_GONE if it is not the one remembered. */
int ac_directory_open(const ac_directory_t *dir, ac_error_t *err);

/* The same with a negated errno; -ESTALE if it is not the one remembered. */
int ac_directory_reopen(const ac_directory_t *dir);

/* Opens a regular file whose owner is trusted. A second name of it is harmless if it belongs to the owner
 * of the directory; otherwise a user may have linked another user's file into it. AC_E_NOT_FOUND if
 * missing, unless O_CREAT is given. A file that existed is not changed. */
int ac_file_open(const ac_directory_t *dir, int dir_fd, const char *name, int flags,
                 struct stat *info, ac_error_t *err);

/* A new file that will be renamed later: an fd, or a negated errno. Removes any file of its name first: it
 * is a leftover of a killed process, or belongs to another process that may have it open. */
int ac_file_create(int dir_fd, const char *name, unsigned mode);

/* Creates NAME.tmp with `content`, syncs it, renames it to NAME and syncs the directory. */
int ac_file_publish(const ac_directory_t *dir, int dir_fd, const char *name, const void *content,
                    size_t length, ac_error_t *err);

/* The same, unless NAME exists already (AC_OK as well); several processes may do this at the same time. */
int ac_file_publish_new(const ac_directory_t *dir, int dir_fd, const char *name,
                        const void *content, size_t length, ac_error_t *err);

/* A sub-directory's fd, created when missing and `create`; sticky if others may write into it. */
int ac_directory_sub(const ac_directory_t *dir, int dir_fd, const char *name, int create,
                     ac_error_t *err);

/* Creates a directory in another one: 0 or a negated errno. */
int ac_directory_create(int dir_fd, const char *name, unsigned mode);

/* The fd of readers/, with *readers to open files in it by. Its mode follows from that of the queue's
 * directory: users who may read the queue as members of its group may store positions there, too, and
 * remove only their own; the files get the directory's group. */
int ac_directory_readers(const ac_directory_t *dir, int dir_fd, int create, ac_directory_t *readers,
                         ac_error_t *err);

/* Users who may read the files may search the directory. */
unsigned ac_directory_mode(unsigned file_mode);
/* Gives a new directory its mode, regardless of the umask; in a setgid directory it stays setgid, so that
 * what is created in it belongs to the group that shares the root. */
int ac_directory_set_mode(int fd, unsigned mode);

#endif
