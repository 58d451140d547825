#include "lock.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOCK_MAPPING = 4096, TAKEOVER_MS = 500 };

int ac_lock_take(ac_lock_t *lock, int fd) {
    int error;
    int rc = ac_os_flock(fd);
    if (rc < 0) return rc;
    lock->mapping = ac_os_map(fd, LOCK_MAPPING, 0, &error);
    if (!lock->mapping) return -error; /* closing the fd gives the lock back */
    lock->length = LOCK_MAPPING;
    rc = ac_os_map_dontfork(lock->mapping, LOCK_MAPPING);
    if (rc < 0) ac_lock_release(lock);
    return rc;
}

void ac_lock_release(ac_lock_t *lock) {
    ac_os_unmap(lock->mapping, lock->length);
    lock->mapping = NULL;
}

typedef struct holder {
    int pid;
    unsigned long long start, epoch;
} holder_t;

static int read_holder(int fd, holder_t *holder) {
    char text[128];
    int got = ac_os_read_at(fd, text, sizeof text - 1, 0);
    if (got <= 0) return 0;
    text[got] = 0;
    return sscanf(text, "%d %llu %llu", &holder->pid, &holder->start, &holder->epoch) == 3 &&
           holder->pid > 0;
}

static int say_who(int fd, const char *path, const ac_control_t *control, ac_error_t *err) {
    holder_t holder;
    if (!read_holder(fd, &holder))
        return ac_fail(err, AC_E_LOCKED, 0, path, 0, "another process is opening the queue");
    uint64_t space = ac_load_relaxed_u64(&control->writer_namespace);
    if (space != 0 && space != ac_os_pid_namespace())
        return ac_fail(err, AC_E_LOCKED, 0, path, 0,
                       "held by pid %d of another container (pid namespace %llu)", holder.pid,
                       (unsigned long long)space);
    int alive = ac_os_process_start(holder.pid) == holder.start;
    if (alive && holder.pid == (int)getpid())
        return ac_fail(err, AC_E_LOCKED, 0, path, 0, "held by pid %d (this process itself)",
                       holder.pid);
    return ac_fail(err, AC_E_LOCKED, 0, path, 0,
                   alive
                       ? "held by pid %d (started at tick %llu, writer epoch %llu)"
                       : "taken at this moment by the successor of pid %d (tick %llu, epoch %llu)",
                   holder.pid, holder.start, holder.epoch);
}

/* Over what is there, so that nobody finds the file empty. */
static int write_text(int fd, uint64_t epoch) {
    char text[128];
    int pid = (int)getpid();
    int length = snprintf(text, sizeof text, "%d %llu %llu\n", pid,
                          (unsigned long long)ac_os_process_start(pid), (unsigned long long)epoch);
    int rc = ac_os_write_at(fd, text, (size_t)length, 0);
    return rc < 0 ? rc : ac_os_truncate(fd, (uint64_t)length);
}

static int write_holder(int fd, ac_control_t *control) {
    ac_store_relaxed_u64(&control->writer_boot, ac_os_boot_id());
    ac_store_relaxed_u64(&control->writer_namespace, ac_os_pid_namespace());
    return write_text(fd, ac_load_relaxed_u64(&control->writer_epoch) + 1);
}

int ac_writer_lock_note_epoch(const ac_directory_t *dir, int dir_fd, uint64_t epoch,
                              ac_error_t *err) {
    struct stat info;
    int fd = ac_file_open(dir, dir_fd, "writer.lock", O_RDWR, &info, err);
    if (fd < 0) return fd;
    int rc = write_text(fd, epoch);
    ac_os_close(fd);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, "writer.lock", "cannot write") : AC_OK;
}

/* A holder that is named in the file but dead can only be outlived by a child caught between fork and
 * exec: it lets go within moments, so wait those moments before giving up. */
static int take_over(ac_lock_t *lock, int fd) {
    int rc = ac_lock_take(lock, fd);
    for (int tries = 0; rc == -EWOULDBLOCK && tries < TAKEOVER_MS; tries++) {
        holder_t holder;
        if (!read_holder(fd, &holder) || ac_os_process_start(holder.pid) == holder.start) break;
        ac_os_sleep_ns(1000000);
        rc = ac_lock_take(lock, fd);
    }
    return rc;
}

int ac_writer_lock(ac_lock_t *lock, const ac_directory_t *dir, int dir_fd, ac_control_t *control,
                   ac_error_t *err) {
    char path[1200];
    struct stat info;
    snprintf(path, sizeof path, "%s/writer.lock", dir->path);
    int fd = ac_file_open(dir, dir_fd, "writer.lock", O_RDWR, &info, err);
    if (fd == AC_E_NOT_FOUND)
        fd = ac_file_open(dir, dir_fd, "writer.lock", O_RDWR | O_CREAT, &info, err);
    if (fd < 0) return fd;
    int rc = take_over(lock, fd);
    if (rc == -EWOULDBLOCK) {
        rc = say_who(fd, path, control, err);
    } else if (rc == 0) {
        rc = write_holder(fd, control);
        if (rc < 0) {
            ac_lock_release(lock);
            rc = ac_fail_os(err, rc, path, "cannot write");
        }
    } else {
        rc = ac_fail_os(err, rc, path, "cannot lock");
    }
    ac_os_close(fd);
    return rc;
}

int ac_writer_lives(const ac_directory_t *dir, const ac_control_t *control) {
    holder_t holder;
    struct stat info;
    int dir_fd = ac_directory_open(dir, NULL);
    if (dir_fd < 0) return 0;
    int fd = ac_file_open(dir, dir_fd, "writer.lock", O_RDONLY, &info, NULL);
    ac_os_close(dir_fd);
    if (fd < 0) return 0;
    int known = read_holder(fd, &holder);
    ac_os_close(fd);
    const void *clean = (const uint8_t *)control + offsetof(ac_control_t, clean);
    uint64_t closed_epoch = ac_load_relaxed_u64(clean);
    if (!known || closed_epoch == holder.epoch) return 0;
    uint64_t boot = ac_load_relaxed_u64(&control->writer_boot);
    uint64_t space = ac_load_relaxed_u64(&control->writer_namespace);
    if (boot != 0 && boot != ac_os_boot_id()) return 0;
    if (space != 0 && space != ac_os_pid_namespace()) return 1;
    return ac_os_process_start(holder.pid) == holder.start;
}
