#include "directory.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

unsigned ac_directory_mode(unsigned file_mode) {
    return (file_mode & 0777) | ((file_mode & 0444) >> 2);
}

int ac_directory_set_mode(int fd, unsigned mode) {
    struct stat info;
    int rc = ac_os_stat(fd, &info);
    return rc < 0 ? rc : ac_os_chmod(fd, mode | (info.st_mode & S_ISGID));
}

/* Opens the directory above a path; *name is the last component. */
static int open_above(const char *path, char *name, size_t size) {
    char above[sizeof((ac_directory_t *)0)->path];
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    if (end - start >= size || start >= sizeof above) return -ENAMETOOLONG;
    snprintf(name, size, "%.*s", (int)(end - start), path + start);
    snprintf(above, sizeof above, "%.*s", (int)start, path);
    return ac_os_open_dir(start > 0 ? above : ".");
}

/* A directory that we have just created, by the descriptor of its parent: a process that can change the
 * path to it, or what is in the one above, cannot make us change another directory instead. */
static int open_made(int above, const char *name, unsigned mode) {
    struct stat info;
    int fd = ac_os_open_dir_at(above, name);
    int rc = fd < 0 ? fd : ac_os_stat(fd, &info);
    if (rc == 0 && info.st_uid != geteuid()) rc = -ESTALE;
    if (rc == 0) rc = ac_directory_set_mode(fd, ac_directory_mode(mode));
    if (rc == 0) rc = ac_os_sync_dir(above);
    if (rc == 0) return fd;
    ac_os_close(fd);
    return rc;
}

static int open_or_create(const char *path, unsigned mode, int create) {
    char name[NAME_MAX + 1];
    int fd = ac_os_open_dir(path);
    if (fd != -ENOENT || !create) return fd;
    int above = open_above(path, name, sizeof name);
    if (above < 0) return above;
    int made = ac_os_mkdir_at(above, name, ac_directory_mode(mode));
    fd = made == 0 ? open_made(above, name, mode) : made;
    ac_os_close(above);
    return made == -EEXIST ? ac_os_open_dir(path) : fd;
}

static int check_length(const char *path, ac_error_t *err) {
    if (path[0] && strlen(path) < sizeof((ac_directory_t *)0)->path - 64) return AC_OK;
    return ac_fail(err, AC_E_ARGUMENT, ENAMETOOLONG, path, 0, "path is empty or too long");
}

int ac_directory_init(ac_directory_t *dir, const char *path, unsigned mode, int create,
                      ac_error_t *err) {
    struct stat info;
    if (check_length(path, err) != AC_OK) return AC_E_ARGUMENT;
    int fd = open_or_create(path, mode, create);
    if (fd == -ENOENT)
        return ac_fail(err, AC_E_NOT_FOUND, ENOENT, path, 0,
                       create ? "the directory above it does not exist" : "no such directory");
    if (fd == -ENOTDIR)
        return ac_fail(err, AC_E_NOT_A_QUEUE, ENOTDIR, path, 0, "is not a directory");
    if (fd < 0) return ac_fail_os(err, fd, path, "cannot open directory");
    int rc = ac_os_stat(fd, &info);
    ac_os_close(fd);
    if (rc < 0) return ac_fail_os(err, rc, path, "cannot examine directory");
    memset(dir, 0, sizeof *dir);
    snprintf(dir->path, sizeof dir->path, "%s", path);
    dir->device = info.st_dev;
    dir->inode = info.st_ino;
    dir->owner = info.st_uid;
    dir->mode = mode & 0666;
    return AC_OK;
}

/* An inode number is reused after its file is gone; the owner then tells ours from another user's. */
static int is_remembered(const ac_directory_t *dir, const struct stat *info) {
    return info->st_dev == dir->device && info->st_ino == dir->inode &&
           (!dir->pinned || info->st_uid == dir->owner);
}

int ac_directory_reopen(const ac_directory_t *dir) {
    struct stat info;
    int fd = dir->pinned ? ac_os_open_dir_at(AT_FDCWD, dir->path) : ac_os_open_dir(dir->path);
    int rc = fd < 0 ? fd : ac_os_stat(fd, &info);
    if (rc == 0 && !is_remembered(dir, &info)) rc = -ESTALE;
    if (rc == 0) return fd;
    ac_os_close(fd);
    return rc;
}

int ac_directory_init_expected(ac_directory_t *dir, const char *path, unsigned mode,
                               const ac_identity_t *expected, ac_error_t *err) {
    if (check_length(path, err) != AC_OK) return AC_E_ARGUMENT;
    memset(dir, 0, sizeof *dir);
    snprintf(dir->path, sizeof dir->path, "%s", path);
    dir->device = (dev_t)expected->device;
    dir->inode = (ino_t)expected->inode;
    dir->owner = (uid_t)expected->owner;
    dir->mode = mode & 0666;
    dir->pinned = 1;
    int fd = ac_directory_reopen(dir);
    ac_os_close(fd);
    if (fd >= 0) return AC_OK;
    if (fd == -ENOENT) return ac_fail(err, AC_E_NOT_FOUND, ENOENT, path, 0, "no such directory");
    if (fd == -ESTALE || fd == -ENOTDIR || fd == -ELOOP)
        return ac_fail(err, AC_E_GONE, -fd, path, 0,
                       "is not the directory that was found here, which was replaced%s; nothing in "
                       "it was touched",
                       fd == -ESTALE ? "" : " by a link or a file");
    return ac_fail_os(err, fd, path, "cannot open directory");
}

int ac_directory_open(const ac_directory_t *dir, ac_error_t *err) {
    int fd = ac_directory_reopen(dir);
    if (fd >= 0) return fd;
    if (fd == -ENOENT || fd == -ENOTDIR)
        return ac_fail(err, AC_E_GONE, -fd, dir->path, 0, "the queue's directory was removed");
    if (fd == -ESTALE || (dir->pinned && fd == -ELOOP))
        return ac_fail(err, AC_E_GONE, 0, dir->path, 0, "the queue's directory was replaced");
    return ac_fail_os(err, fd, dir->path, "cannot open directory");
}

enum { CREATE_TRIES = 10 };

/* What root creates in a queue gets the owner of the directory, whose writers and readers need it
 * afterwards: an operator's command must not lock them out. */
static int create_at(int dir_fd, const char *name, int flags, unsigned mode) {
    int as_owner = ac_os_become_owner(dir_fd);
    int fd = ac_os_open_at(dir_fd, name, flags, mode);
    if (!as_owner) return fd;
    ac_os_become_root();
    return fd == -EACCES ? ac_os_open_at(dir_fd, name, flags, mode) : fd;
}

int ac_directory_create(int dir_fd, const char *name, unsigned mode) {
    int as_owner = ac_os_become_owner(dir_fd);
    int rc = ac_os_mkdir_at(dir_fd, name, mode);
    if (!as_owner) return rc;
    ac_os_become_root();
    return rc == -EACCES ? ac_os_mkdir_at(dir_fd, name, mode) : rc;
}

/* Without O_EXCL it would be unknown whether the file is new, and gets its mode, or existed. */
static int open_or_create_at(int dir_fd, const char *name, int flags, unsigned mode, int *created) {
    int fd = -ENOENT;
    *created = 0;
    for (int tries = 0; tries < CREATE_TRIES; tries++) {
        if (!(flags & O_EXCL)) fd = ac_os_open_at(dir_fd, name, flags & ~O_CREAT, 0);
        if (fd != -ENOENT || !(flags & O_CREAT)) return fd;
        fd = create_at(dir_fd, name, flags | O_EXCL, mode);
        *created = fd >= 0;
        if (fd != -EEXIST || (flags & O_EXCL)) return fd;
    }
    return fd;
}

int ac_file_create(int dir_fd, const char *name, unsigned mode) {
    int fd = -EEXIST;
    for (int tries = 0; tries < CREATE_TRIES && fd == -EEXIST; tries++) {
        int rc = tries > 0 ? ac_os_unlink(dir_fd, name) : 0;
        if (rc < 0 && rc != -ENOENT) return rc;
        fd = create_at(dir_fd, name, O_RDWR | O_CREAT | O_EXCL, mode);
    }
    int rc = fd < 0 ? fd : ac_os_chmod(fd, mode); /* regardless of the umask */
    if (rc == 0) return fd;
    if (fd >= 0) ac_os_unlink(dir_fd, name);
    ac_os_close(fd);
    return rc;
}

/* Whether an open file has this name and no other. The link that gave it the name may have been removed
 * again between opening it and reading its link count. */
static int is_only_name(int dir_fd, const char *name, const struct stat *file) {
    struct stat now;
    return ac_os_stat_at(dir_fd, name, &now) == 0 && now.st_dev == file->st_dev &&
           now.st_ino == file->st_ino && now.st_nlink == 1;
}

int ac_file_open(const ac_directory_t *dir, int dir_fd, const char *name, int flags,
                 struct stat *info, ac_error_t *err) {
    char path[1200];
    int created;
    int fd = open_or_create_at(dir_fd, name, flags, dir->mode, &created);
    snprintf(path, sizeof path, "%s/%s", dir->path, name);
    if (fd == -ENOENT) return ac_fail(err, AC_E_NOT_FOUND, ENOENT, path, 0, "no such file");
    if (fd == -ELOOP)
        return ac_fail(err, AC_E_NOT_A_QUEUE, ELOOP, path, 0, "is a symbolic link; not followed");
    if (fd < 0) return ac_fail_os(err, fd, path, "cannot open");
    int rc = ac_os_stat(fd, info);
    if (rc == 0 && created) rc = ac_os_chmod(fd, dir->mode);
    if (rc < 0) {
        ac_os_close(fd);
        return ac_fail_os(err, rc, path, "cannot examine");
    }
    uid_t me = geteuid();
    const char *wrong = NULL;
    if (!S_ISREG(info->st_mode))
        wrong = "is not a regular file";
    else if (info->st_nlink > 1 && info->st_uid != dir->owner)
        wrong = "has more than one link, and belongs to another user than its directory";
    else if (!dir->shared && info->st_uid != dir->owner && info->st_uid != me && info->st_uid != 0)
        wrong = "belongs to another user than its directory";
    else if (info->st_uid != dir->owner && !is_only_name(dir_fd, name, info))
        wrong = "belongs to another user than its directory, and was put there or taken away "
                "while it was opened";
    if (!wrong) return fd;
    ac_os_close(fd);
    return ac_fail(err, AC_E_NOT_A_QUEUE, 0, path, 0, "%s", wrong);
}

static int publish(const ac_directory_t *dir, int dir_fd, const char *temporary, const char *name,
                   const void *content, size_t length, int replace, ac_error_t *err) {
    struct stat info;
    int fd = ac_file_open(dir, dir_fd, temporary, O_RDWR | O_CREAT | O_EXCL, &info, err);
    if (fd < 0) return fd;
    int rc = ac_os_write_at(fd, content, length, 0);
    if (rc == 0) rc = ac_os_sync(fd);
    ac_os_close(fd);
    if (rc == 0)
        rc = replace ? ac_os_rename(dir_fd, temporary, name)
                     : ac_os_rename_new(dir_fd, temporary, name);
    if (rc == 0) rc = ac_os_sync_dir(dir_fd);
    if (rc == 0) return AC_OK;
    ac_os_unlink(dir_fd, temporary);
    /* Another process was first; or it was, and removed our temporary file as a leftover. */
    if (!replace && (rc == -EEXIST || (rc == -ENOENT && ac_os_stat_at(dir_fd, name, &info) == 0)))
        return AC_OK;
    return ac_fail_os_in(err, rc, dir->path, name, "cannot publish");
}

int ac_file_publish(const ac_directory_t *dir, int dir_fd, const char *name, const void *content,
                    size_t length, ac_error_t *err) {
    char temporary[128];
    snprintf(temporary, sizeof temporary, "%s.tmp", name);
    ac_os_unlink(dir_fd, temporary); /* a leftover of a killed process, or nothing */
    return publish(dir, dir_fd, temporary, name, content, length, 1, err);
}

int ac_file_publish_new(const ac_directory_t *dir, int dir_fd, const char *name,
                        const void *content, size_t length, ac_error_t *err) {
    char temporary[128];
    uint64_t unique;
    int rc = ac_os_random(&unique, sizeof unique);
    if (rc < 0) return ac_fail_os(err, rc, dir->path, "cannot get random bytes");
    snprintf(temporary, sizeof temporary, "%s.%016llx.tmp", name, (unsigned long long)unique);
    return publish(dir, dir_fd, temporary, name, content, length, 0, err);
}

static int open_sub(const ac_directory_t *dir, int dir_fd, const char *name, int create,
                    unsigned mode, ac_error_t *err) {
    int fd = ac_os_open_dir_at(dir_fd, name);
    if (fd >= 0) return fd;
    if (fd == -ENOENT && create) {
        int rc = ac_directory_create(dir_fd, name, mode & 0777);
        if (rc < 0 && rc != -EEXIST)
            return ac_fail_os_in(err, rc, dir->path, name, "cannot create");
        fd = ac_os_open_dir_at(dir_fd, name);
        if (fd >= 0 && rc == 0) {
            rc = ac_directory_set_mode(fd, mode);
            if (rc == 0) rc = ac_os_sync_dir(dir_fd);
            if (rc < 0) {
                ac_os_close(fd);
                fd = rc;
            }
        }
        if (fd >= 0) return fd;
    }
    if (fd == -ENOENT)
        return ac_fail(err, AC_E_NOT_FOUND, ENOENT, dir->path, 0, "has no directory '%s'", name);
    return ac_fail_os_in(err, fd, dir->path, name, "cannot open directory");
}

/* Where several users may create files, none may remove those of another. */
int ac_directory_sub(const ac_directory_t *dir, int dir_fd, const char *name, int create,
                     ac_error_t *err) {
    unsigned mode = ac_directory_mode(dir->mode);
    return open_sub(dir, dir_fd, name, create, mode & 0022 ? mode | S_ISVTX : mode, err);
}

static unsigned readers_mode(mode_t queue) {
    unsigned mode = 0700 | (queue & 0077);
    if ((queue & 0050) == 0050) mode |= S_ISGID | S_ISVTX | 0070;
    if (queue & 0002) mode |= S_ISVTX;
    return mode;
}

int ac_directory_readers(const ac_directory_t *dir, int dir_fd, int create, ac_directory_t *readers,
                         ac_error_t *err) {
    struct stat info;
    int rc = ac_os_stat(dir_fd, &info);
    int fd =
        rc < 0 ? rc : open_sub(dir, dir_fd, "readers", create, readers_mode(info.st_mode), err);
    if (rc == 0 && fd < 0) return fd;
    if (rc == 0) rc = ac_os_stat(fd, &info);
    if (rc < 0) {
        ac_os_close(fd);
        return ac_fail_os_in(err, rc, dir->path, "readers", "cannot examine directory");
    }
    *readers = *dir;
    snprintf(readers->path, sizeof readers->path, "%.*s/readers", (int)sizeof readers->path - 64,
             dir->path);
    readers->shared = (info.st_mode & 0022) != 0;
    /* The writer must see the positions of every user whom the directory lets in. */
    readers->mode = dir->mode | (info.st_mode & 0044);
    return fd;
}
