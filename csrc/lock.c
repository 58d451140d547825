#include "lock.h"

#include "error.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOCK_MAPPING = 4096, REPLACED_TRIES = 10, BUSY_TRIES = 10, RETRY_NS = 1000000 };

int ac_lock_take(ac_lock_t *lock, int fd) {
    int error;
    int rc = ac_os_flock(fd);
    if (rc < 0) return rc;
    lock->mapping = ac_os_map(fd, LOCK_MAPPING, 0, &error);
    if (!lock->mapping) return -error; /* closing the fd releases the lock */
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

static void format_date(char *out, size_t size, time_t seconds) {
    struct tm utc;
    if (!gmtime_r(&seconds, &utc) || strftime(out, size, " since %Y-%m-%d %H:%M:%S UTC", &utc) == 0)
        out[0] = 0;
}

/* Who has the queue, according to the kernel's own list of locks and to writer.lock. */
typedef struct keeper {
    int control_pid, file_pid; /* 0: no holder, or none that can be seen from here */
    int has_file, has_text;
    holder_t text;
    time_t since; /* when the text was written */
} keeper_t;

static void find_keeper(keeper_t *keeper, const ac_directory_t *dir, int dir_fd) {
    struct stat info;
    memset(keeper, 0, sizeof *keeper);
    if (ac_os_stat_at(dir_fd, "control.meta", &info) == 0)
        keeper->control_pid = ac_os_flock_holder(&info);
    int fd = ac_file_open(dir, dir_fd, "writer.lock", O_RDONLY, &info, NULL);
    if (fd < 0) return;
    keeper->has_file = 1;
    keeper->file_pid = ac_os_flock_holder(&info);
    keeper->has_text = read_holder(fd, &keeper->text);
    keeper->since = info.st_mtim.tv_sec;
    ac_os_close(fd);
}

/* "PREFIXheld by pid 12 (python router.py)SUFFIX", and the same in the fields of the error. */
static int held_by(ac_error_t *err, const char *path, int pid, time_t since, const char *prefix,
                   const char *suffix) {
    ac_error_t filled;
    char command[sizeof filled.holder_command] = "", date[64] = "";
    int self = pid == (int)getpid();
    if (!self) ac_os_process_command(pid, command, sizeof command);
    if (since > 0) format_date(date, sizeof date, since);
    int rc = ac_fail(&filled, AC_E_LOCKED, 0, path, 0, "%sheld by pid %d%s%.70s%s%s%s", prefix, pid,
                     self         ? " (this process itself"
                     : command[0] ? " ("
                                  : "",
                     command, self || command[0] ? ")" : "", date, suffix);
    filled.holder_pid = pid;
    filled.holder_since_ns = (uint64_t)since * 1000000000u;
    memcpy(filled.holder_command, command, sizeof command);
    if (err) *err = filled;
    return rc;
}

static int say_who(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
                   ac_error_t *err) {
    char path[1200];
    keeper_t keeper;
    find_keeper(&keeper, dir, dir_fd);
    snprintf(path, sizeof path, "%s/writer.lock", dir->path);
    uint64_t space = ac_load_relaxed_u64(&control->writer_namespace);
    if (keeper.has_text && space != 0 && space != ac_os_pid_namespace())
        return ac_fail(err, AC_E_LOCKED, 0, path, 0,
                       "held by pid %d of another container (pid namespace %llu)", keeper.text.pid,
                       (unsigned long long)space);
    int pid = keeper.control_pid ? keeper.control_pid : keeper.file_pid;
    int alive = keeper.has_text && ac_os_process_start(keeper.text.pid) == keeper.text.start;
    if (alive && (pid == 0 || pid == keeper.text.pid))
        return held_by(err, path, keeper.text.pid, keeper.since, "", "");
    if (pid == 0)
        return ac_fail(err, AC_E_LOCKED, 0, path, 0, "another process is opening the queue");
    if (keeper.file_pid == pid)
        return held_by(err, path, pid, 0, "", ", which is opening the queue");
    if (keeper.has_text && keeper.text.pid != pid) /* every process that may read it can lock it */
        return held_by(err, path, pid, 0, "the queue has no writer, but control.meta is ",
                       ", which is none");
    return held_by(err, path, pid, 0,
                   keeper.has_file ? "was replaced, but control.meta is "
                                   : "is missing, but control.meta is ",
                   ": that writer will make it again. Never delete writer.lock");
}

/* Overwrites in place, so that no process finds the file empty. */
static int write_holder(int fd, uint64_t epoch) {
    char text[128];
    int pid = (int)getpid();
    int length = snprintf(text, sizeof text, "%d %llu %llu\n", pid,
                          (unsigned long long)ac_os_process_start(pid), (unsigned long long)epoch);
    int rc = ac_os_write_at(fd, text, (size_t)length, 0);
    return rc < 0 ? rc : ac_os_truncate(fd, (uint64_t)length);
}

enum fate { THERE, REMOVED, REPLACED };

/* What became of a name that stood for the file with this inode. If that cannot be checked, it may well
 * still be there. */
static enum fate fate_of(int dir_fd, const char *name, ino_t inode) {
    struct stat info;
    int rc = ac_os_stat_at(dir_fd, name, &info);
    if (rc == -ENOENT) return REMOVED;
    return rc == 0 && info.st_ino != inode ? REPLACED : THERE;
}

/* Opens and locks a file of the queue, and makes sure that its name still stands for what was locked. The
 * fd; or AC_E_LOCKED, which the caller explains; or another code. */
static int lock_named(ac_lock_t *lock, const ac_directory_t *dir, int dir_fd, const char *name,
                      int create, ino_t *inode, ac_error_t *err) {
    for (int tries = 0; tries < REPLACED_TRIES; tries++) {
        struct stat info, now;
        int fd = ac_file_open(dir, dir_fd, name, O_RDWR | (create ? O_CREAT : 0), &info, err);
        if (fd < 0) return fd;
        int rc = ac_lock_take(lock, fd);
        if (rc == 0) {
            *inode = info.st_ino;
            rc = ac_os_stat_at(dir_fd, name, &now);
            if (rc == 0 && now.st_ino == info.st_ino) return fd;
            ac_lock_release(lock);
        }
        ac_os_close(fd);
        if (rc == -EWOULDBLOCK) return AC_E_LOCKED;
        if (rc < 0 && rc != -ENOENT) return ac_fail_os_in(err, rc, dir->path, name, "cannot lock");
    }
    return ac_fail(err, AC_E_GONE, 0, dir->path, 0, "%s is replaced again and again", name);
}

/* The fd of writer.lock, with both locks held. */
static int take_both(ac_ownership_t *owned, const ac_directory_t *dir, int dir_fd,
                     ac_error_t *err) {
    ino_t inode;
    int fd = lock_named(&owned->control, dir, dir_fd, "control.meta", 0, &inode, err);
    if (fd < 0) return fd;
    ac_os_close(fd);
    if (owned->control_inode != 0 && inode != owned->control_inode)
        fd = ac_fail(err, AC_E_GONE, 0, dir->path, 0, "control.meta was replaced; try again");
    else
        fd = lock_named(&owned->file, dir, dir_fd, "writer.lock", 1, &owned->file_inode, err);
    if (fd < 0) ac_lock_release(&owned->control);
    owned->control_inode = inode;
    return fd;
}

/* Whether the holder that writer.lock names is dead, or was killed and is being torn down: its locks go
 * with its last thread and mapping, after any sync in progress and after all of its pages. */
static int holder_ends(const ac_directory_t *dir, int dir_fd) {
    holder_t holder;
    struct stat info;
    int fd = ac_file_open(dir, dir_fd, "writer.lock", O_RDONLY, &info, NULL);
    if (fd < 0) return 0;
    int known = read_holder(fd, &holder);
    ac_os_close(fd);
    return known &&
           (ac_os_process_start(holder.pid) != holder.start || ac_os_process_ends(holder.pid));
}

/* A dead holder can be outlived by a child between fork and exec, and a killed one takes time to die: both
 * release the lock within moments, so this waits for them before it gives up. */
static int take_over(ac_ownership_t *owned, const ac_directory_t *dir, int dir_fd,
                     ac_error_t *err) {
    int fd = take_both(owned, dir, dir_fd, err);
    uint64_t started = ac_os_monotonic_ns();
    while (fd == AC_E_LOCKED && ac_os_monotonic_ns() - started < owned->takeover_ns &&
           holder_ends(dir, dir_fd)) {
        ac_os_sleep_ns(RETRY_NS);
        fd = take_both(owned, dir, dir_fd, err);
    }
    return fd;
}

int ac_writer_lock(ac_ownership_t *owned, const ac_directory_t *dir, int dir_fd,
                   ac_control_t *control, ac_error_t *err) {
    int fd = take_over(owned, dir, dir_fd, err);
    if (fd == AC_E_LOCKED) return say_who(dir, dir_fd, control, err);
    if (fd < 0) return fd;
    ac_store_relaxed_u64(&control->writer_boot, ac_os_boot_id());
    ac_store_relaxed_u64(&control->writer_namespace, ac_os_pid_namespace());
    int rc = write_holder(fd, ac_load_relaxed_u64(&control->writer_epoch) + 1);
    ac_os_close(fd);
    if (rc == 0) return AC_OK;
    ac_writer_unlock(owned);
    return ac_fail_os_in(err, rc, dir->path, "writer.lock", "cannot write");
}

int ac_writer_lock_note_epoch(const ac_directory_t *dir, int dir_fd, uint64_t epoch,
                              ac_error_t *err) {
    struct stat info;
    int fd = ac_file_open(dir, dir_fd, "writer.lock", O_RDWR, &info, err);
    if (fd < 0) return fd;
    int rc = write_holder(fd, epoch);
    ac_os_close(fd);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, "writer.lock", "cannot write") : AC_OK;
}

/* In this order: a process that finds control.meta free finds the other one free too. */
void ac_writer_unlock(ac_ownership_t *owned) {
    ac_lock_release(&owned->file);
    ac_lock_release(&owned->control);
}

void ac_writer_lock_forked(ac_ownership_t *owned) {
    owned->file.mapping = owned->control.mapping = NULL;
}

static const char taken_over[] =
    "writer.lock was removed or replaced, and another program opened the queue for writing";

/* No writer of ours can have the new file, since we hold control.meta; a program that only tests whether it
 * can be locked releases it again. */
static const char *lock_again(ac_ownership_t *owned, const ac_directory_t *dir, int dir_fd,
                              uint32_t epoch) {
    ac_lock_t lock = {0};
    ac_error_t err;
    ino_t inode;
    int fd = AC_E_LOCKED;
    for (int tries = 0; fd == AC_E_LOCKED && tries < BUSY_TRIES; tries++) {
        if (tries > 0) ac_os_sleep_ns(RETRY_NS);
        fd = lock_named(&lock, dir, dir_fd, "writer.lock", 1, &inode, &err);
    }
    if (fd == AC_E_LOCKED) return taken_over;
    if (fd < 0) {
        if (!owned->warned)
            ac_log_error(AC_LOG_WARNING, &err,
                         "writer.lock was removed and cannot be made again yet");
        owned->warned = 1;
        return NULL;
    }
    owned->warned = 0;
    ac_lock_release(&owned->file);
    owned->file = lock;
    owned->file_inode = inode;
    int rc = write_holder(fd, epoch);
    ac_os_close(fd);
    ac_log(AC_LOG_WARNING, dir->path, "writer.lock was removed or replaced; it was made again%s",
           rc < 0 ? ", but who holds it could not be written" : "");
    return NULL;
}

const char *ac_writer_keep_lock(ac_ownership_t *owned, const ac_directory_t *dir, int dir_fd,
                                const ac_control_t *control, uint32_t epoch) {
    enum fate control_fate = fate_of(dir_fd, "control.meta", owned->control_inode);
    if (control_fate == REMOVED) return "control.meta was removed";
    if (control_fate == REPLACED) return "control.meta was replaced";
    const char *lost = NULL;
    if (fate_of(dir_fd, "writer.lock", owned->file_inode) != THERE)
        lost = lock_again(owned, dir, dir_fd, epoch);
    /* A writer that came and went meanwhile left its epoch. */
    if (!lost && (uint32_t)ac_load_relaxed_u64(&control->writer_epoch) != epoch) lost = taken_over;
    return lost;
}

/* If a process cannot be checked, its heartbeat decides, which comes once a second. */
#define SILENT_NS 5000000000u

static int lives(const holder_t *holder, const ac_control_t *control, int here) {
    uint64_t boot = ac_load_relaxed_u64(&control->writer_boot);
    if (boot != 0 && boot != ac_os_boot_id()) return 0;
    if (here)
        return ac_os_process_start(holder->pid) == holder->start &&
               !ac_os_process_ends(holder->pid);
    uint64_t beat_ns = ac_load_relaxed_u64(&control->writer_heartbeat_ns), now_ns = ac_os_now_ns();
    return beat_ns + SILENT_NS > now_ns || beat_ns > now_ns;
}

int ac_writer_named(const ac_directory_t *dir, int dir_fd, const ac_control_t *control,
                    ac_named_writer_t *out) {
    holder_t holder;
    struct stat info;
    memset(out, 0, sizeof *out);
    int fd = ac_file_open(dir, dir_fd, "writer.lock", O_RDONLY, &info, NULL);
    if (fd < 0) return 0;
    int known = read_holder(fd, &holder);
    ac_os_close(fd);
    if (!known) return 0;
    const void *clean = (const uint8_t *)control + offsetof(ac_control_t, clean);
    uint64_t space = ac_load_relaxed_u64(&control->writer_namespace);
    out->pid = holder.pid;
    out->epoch = holder.epoch;
    out->since_ns = (uint64_t)info.st_mtim.tv_sec * 1000000000u + (uint64_t)info.st_mtim.tv_nsec;
    out->here = space == 0 || space == ac_os_pid_namespace();
    out->closed = ac_load_relaxed_u64(clean) == holder.epoch;
    out->lives = !out->closed && lives(&holder, control, out->here);
    return 1;
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
