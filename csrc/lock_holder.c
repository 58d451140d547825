#include "lock_holder.h"

#include "os.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int ac_holder_find(int fd, ac_holder_t *out) {
    memset(out, 0, sizeof *out);
    out->pid = ac_os_flock_owner(fd);
    if (out->pid <= 0) return 0;
    out->started_ns = ac_os_process_started_ns(out->pid);
    ac_os_process_command(out->pid, out->command, sizeof out->command);
    return 1;
}

/* Short enough for an error text of 256 bytes that says more. */
void ac_holder_describe(int fd, char *out, size_t size) {
    ac_holder_t holder;
    struct tm day;
    char since[48] = "";
    if (!ac_holder_find(fd, &holder)) {
        snprintf(out, size, "in a process that cannot be seen from here, as of another container");
        return;
    }
    time_t seconds = (time_t)(holder.started_ns / 1000000000u);
    if (holder.started_ns && gmtime_r(&seconds, &day))
        strftime(since, sizeof since, ", started %Y-%m-%d %H:%M:%S UTC", &day);
    snprintf(out, size, "pid %d%s%s%s", holder.pid, since, holder.command[0] ? ", " : "",
             holder.command);
}

#define FRESH_NS 100000000u
#define MISSED_NS 10000000u /* maximum age of a list that does not contain a file */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list {
    ac_flock_t *locks; /* by inode */
    size_t count, room;
    uint64_t read_ns; /* 0 = it was not read */
} list;

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void register_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* Without memory for it a lock is left out. */
static void add(void *context, const ac_flock_t *found) {
    (void)context;
    if (list.count == list.room) {
        size_t room = list.room ? list.room * 2 : 64;
        ac_flock_t *grown = realloc(list.locks, room * sizeof *grown);
        if (!grown) return;
        list.locks = grown;
        list.room = room;
    }
    list.locks[list.count++] = *found;
}

static int by_inode(const void *left, const void *right) {
    const ac_flock_t *a = left, *b = right;
    if (a->inode != b->inode) return a->inode < b->inode ? -1 : 1;
    return (a->device > b->device) - (a->device < b->device);
}

static void read_list(uint64_t older_ns) {
    uint64_t now_ns = ac_os_monotonic_ns();
    if (list.read_ns != 0 && now_ns - list.read_ns < older_ns) return;
    list.count = 0;
    ac_os_each_flock(add, NULL);
    if (list.count > 0) qsort(list.locks, list.count, sizeof *list.locks, by_inode);
    list.read_ns = now_ns;
}

static int find_pid(const struct stat *file) {
    ac_flock_t wanted = {.device = file->st_dev, .inode = file->st_ino};
    const ac_flock_t *found =
        list.count > 0 ? bsearch(&wanted, list.locks, list.count, sizeof wanted, by_inode) : NULL;
    return found ? found->pid : 0;
}

int ac_holder_pid(const struct stat *file) {
    pthread_mutex_lock(&lock);
    read_list(FRESH_NS);
    int pid = find_pid(file);
    if (pid == 0 || ac_os_process_start(pid) == 0) {
        read_list(MISSED_NS);
        pid = find_pid(file);
    }
    pthread_mutex_unlock(&lock);
    return pid;
}
