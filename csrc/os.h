/* Every system call of the engine goes through the os_*.c files, so that tests can fail each of them.
 *
 * All functions return a result >= 0 or a negated errno. EINTR is retried here; callers never see it. */
#ifndef AC_OS_H
#define AC_OS_H

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum ac_call {
    AC_CALL_OPEN,
    AC_CALL_STAT,
    AC_CALL_MKDIR,
    AC_CALL_RENAME,
    AC_CALL_UNLINK,
    AC_CALL_TRUNCATE,
    AC_CALL_ALLOCATE,
    AC_CALL_ZERO,
    AC_CALL_READ,
    AC_CALL_WRITE,
    AC_CALL_SYNC,
    AC_CALL_SYNC_DIR,
    AC_CALL_SYNC_MAP,
    AC_CALL_MAP,
    AC_CALL_POPULATE,
    AC_CALL_MEMLOCK,
    AC_CALL_LOCK,
    AC_CALL_LIST,
    AC_CALL_CHMOD,
    AC_CALL_COPY,
    AC_CALL_WAKE,
    AC_CALL_WAIT,
    AC_CALL_EVENTFD,
    AC_CALL_SIGNAL,
    AC_CALL_THREAD,
    AC_CALL_SOCKET,
    AC_CALL_SEND,
    AC_CALL_RECEIVE,
    AC_CALL_WATCH,
    AC_CALL_POLL,
    AC_CALL_ALLOC,
    AC_CALL_START_WRITING,
    AC_CALL_RING,
    AC_CALL_COUNT
};

/* Relative to a directory fd, never following a final symbolic link, close-on-exec. */
int ac_os_open_at(int dir, const char *name, int flags, unsigned mode);
int ac_os_open_dir(const char *path);
int ac_os_open_dir_at(int dir, const char *name);
void ac_os_close(int fd);
int ac_os_stat(int fd, struct stat *out);
int ac_os_stat_at(int dir, const char *name, struct stat *out);
int ac_os_stat_path(const char *path, struct stat *out); /* follows links */
/* Size and number of names only. If the times are requested as well, as by fstat, the kernel gives the next
 * store a finer timestamp, and the sync after it writes the inode too: a third write to the disk in each
 * flush. */
typedef struct ac_extent {
    uint64_t size;
    uint32_t links;
} ac_extent_t;
int ac_os_extent(int fd, ac_extent_t *out);
/* Inode and time of birth (0 where the file system stores none); an empty name: of the directory itself. */
int ac_os_birth(int dir, const char *name, uint64_t out[2]);
int ac_os_mkdir(const char *path, unsigned mode);
int ac_os_mkdir_at(int dir, const char *name, unsigned mode);
int ac_os_chmod(int fd, unsigned mode);
/* As root, in a directory of another user: what this thread creates from now on belongs to that user. 1 =
 * active, until the second call ends it. Changing the owner afterwards would not be safe: the name of a
 * directory may lead elsewhere by then. */
int ac_os_become_owner(int dir);
void ac_os_become_root(void);
int ac_os_rename(int dir, const char *from, const char *to);     /* replaces */
int ac_os_rename_new(int dir, const char *from, const char *to); /* -EEXIST if `to` exists */
int ac_os_move(int from_dir, const char *from, int to_dir, const char *to);
int ac_os_move_new(int from_dir, const char *from, int to_dir, const char *to);
int ac_os_unlink(int dir, const char *name);
int ac_os_rmdir(const char *path);           /* -ENOTEMPTY if it is not empty */
int ac_os_free_bytes(int fd, uint64_t *out); /* of its file system; -ENOSYS if unknown */
int ac_os_truncate(int fd, uint64_t size);
int ac_os_allocate(int fd, uint64_t size); /* backed by blocks, reads as zero */
int ac_os_zero_range(int fd, uint64_t offset, uint64_t length);
/* Allocates blocks for a part of the file, whose content and size do not change; 0 also where that is not
 * supported. */
int ac_os_reserve(int fd, uint64_t offset, uint64_t length);
/* Frees blocks, where that is supported. */
int ac_os_punch(int fd, uint64_t offset, uint64_t length);
int ac_os_copy(int from_fd, int to_fd, uint64_t offset, uint64_t length);
int ac_os_read_at(int fd, void *buffer, size_t length, uint64_t offset); /* whole or short at EOF */
/* The next part of [from, to) that is not a hole: 1 and its bounds, or 0. Holes read as zeros. */
int ac_os_next_data(int fd, uint64_t from, uint64_t to, uint64_t *start, uint64_t *end);
/* 1 = part of [from, to) has no written blocks, as far as the file system reports; see os_contents.c. */
int ac_os_has_unwritten(int fd, uint64_t from, uint64_t to);
int ac_os_write_at(int fd, const void *buffer, size_t length,
                   uint64_t offset); /* all bytes or an error */
int ac_os_sync(int fd);
int ac_os_sync_dir(int dir);

void *ac_os_map(int fd, uint64_t length, int writable, int *error); /* NULL and *error on failure */
void ac_os_unmap(void *base, uint64_t length);
/* `fd` tells the hook which file it is, if the caller has it open; otherwise -1. */
int ac_os_map_sync(void *base, int fd, uint64_t offset, uint64_t length);
/* Starts writing a range of a file without waiting; a failure means what a failed sync means. */
int ac_os_start_writing(int fd, uint64_t offset, uint64_t length);
int ac_os_map_dontfork(void *base, uint64_t length);
int ac_os_populate(void *base, uint64_t offset, uint64_t length, int writable);
/* Removes pages of a shared mapping from the page table; they return when touched. `from` is page-aligned;
 * the page that contains `to` is removed, too. */
void ac_os_unpopulate(void *base, uint64_t from, uint64_t to);
/* Removes a file's pages from the page cache, unless they are dirty or mapped. Advice only. */
void ac_os_drop_cache(int fd);
int ac_os_memlock(void *base, uint64_t length);
uint64_t ac_os_page_size(void);

int ac_os_flock(int fd); /* exclusive, -EWOULDBLOCK if held */
/* A lock whose state can be queried without taking it, which flock does not offer. Like flock's it belongs
 * to the open file; the two are independent. */
int ac_os_claim(int fd);   /* -EAGAIN if claimed */
int ac_os_claimed(int fd); /* 1 = by another open file, 0 = not */
/* The same kind of lock on a part of the file, which excludes Java's FileLock; length 0: to the end. */
int ac_os_claim_range(int fd, uint64_t offset,
                      uint64_t length); /* -EAGAIN if any of it is claimed */
void ac_os_unclaim_range(int fd, uint64_t offset, uint64_t length);
int ac_os_range_claimed(int fd, uint64_t offset, uint64_t length); /* as ac_os_claimed */
/* Both locks at once, shared with other holders of the shared kind: they exclude an exclusive lock. */
int ac_os_flock_shared(int fd); /* -EWOULDBLOCK if held exclusively */
int ac_os_claim_shared(int fd); /* -EAGAIN likewise */

/* Calls `visit` with each entry's name; stops when it returns non-zero and returns that. */
int ac_os_list(int dir, int (*visit)(void *context, const char *name), void *context);

int ac_os_futex_wake(uint32_t *word, int count);
int ac_os_futex_wait(const uint32_t *word, uint32_t expected, uint64_t timeout_ns);
int ac_os_futex_wake_private(uint32_t *word); /* of the whole process */
/* Sleeps until one of the words differs from its expected value, or its sleepers are woken; at most until a
 * moment of the monotonic clock. 0, or a negated errno: -ENOSYS where the kernel has no futex_waitv. */
enum { AC_FUTEX_MAX = 128 };
typedef struct ac_futex {
    const uint32_t *word;
    uint32_t expected;
    int is_private; /* only this process sleeps on it */
} ac_futex_t;
int ac_os_futex_wait_any(const ac_futex_t *futexes, uint32_t count, uint64_t until_ns);

int ac_os_eventfd(void);
int ac_os_eventfd_signal(int fd);
int ac_os_eventfd_wait(int fd, uint64_t timeout_ns); /* 1 signalled and drained, 0 timed out */

int ac_os_thread(void *(*run)(void *), void *argument);

/* Unix sockets by directory fd and name, which have no length limit. Sequenced packets, non-blocking. */
int ac_os_socket_listen(int dir, const char *name); /* for our own user only */
/* -EACCES if it is not a socket, or that of another user. */
int ac_os_socket_connect(int dir, const char *name);
int ac_os_socket_pair(int ends[2]);
int ac_os_socket_accept(int fd);
int ac_os_socket_peer(int fd, uid_t *user);
int ac_os_link(int from_dir, const char *from, int to_dir, const char *to);
/* One packet; `passed_fd` travels with it unless it is -1. */
int ac_os_send(int fd, const void *packet, size_t length, int passed_fd);
/* One packet into `packet`; its length, 0 at the end of the connection, -EAGAIN if there is none. Takes at
 * most one fd, into *passed_fd (-1: none); surplus ones are closed. */
int ac_os_receive(int fd, void *packet, size_t length, int *passed_fd);
int ac_os_is_eventfd(int fd); /* also makes it non-blocking */

int ac_os_epoll(void);
int ac_os_epoll_add(int epoll, int fd, void *tag);
void ac_os_epoll_remove(int epoll, int fd);
int ac_os_epoll_wait(int epoll, void **tags, int room, uint64_t timeout_ns);

int ac_os_inotify(void);
int ac_os_inotify_add(int inotify, int dir, uint32_t mask);
void ac_os_inotify_remove(int inotify, int watch);
/* Calls `visit` for each pending event; one that arrives meanwhile waits for the next call. */
void ac_os_inotify_read(int inotify, void (*visit)(void *context, int watch, const char *name),
                        void *context);

/* Syncs through io_uring: queued, submitted together, and their results collected in any order. The hook
 * sees each as an AC_CALL_SYNC_MAP when it is queued. */
typedef struct ac_ring {
    int fd;
    void *rings, *entries;
    uint64_t rings_size, entries_size;
    uint32_t *tail, *slots, *completed_head, *completed_tail;
    uint32_t mask, completed_mask;
    void *completions;
} ac_ring_t;

/* With `workers` threads of the kernel. Fails where io_uring does not exist, or is not allowed. */
int ac_os_ring_open(ac_ring_t *ring, unsigned entries, unsigned workers);
int ac_os_ring_sync(ac_ring_t *ring, int fd, uint64_t offset, uint64_t length, uint64_t tag);
/* How many of the queued ones the kernel took; it never saw the rest. */
size_t ac_os_ring_submit(ac_ring_t *ring, size_t queued);
/* Waits until `expected` of the submitted ones are completed, unless one is already: returns that one. */
int ac_os_ring_wait(ac_ring_t *ring, size_t expected, uint64_t *tag, int *result);
void ac_os_ring_close(ac_ring_t *ring);

/* calloc that the fault hook can fail. */
void *ac_os_alloc(size_t size);

void ac_os_sleep_ns(uint64_t ns);
void ac_os_yield(void);      /* yields the processor to a waiting thread */
uint64_t ac_os_now_ns(void); /* wall clock */
uint64_t ac_os_monotonic_ns(void);
uint64_t ac_os_coarse_ns(void); /* the same, some milliseconds late, and much cheaper */
uint64_t ac_os_boot_ns(void);   /* when the machine was booted, by the wall clock */

/* Counters of the calling thread since it began. */
typedef struct ac_usage {
    uint64_t minor_faults, major_faults;
    uint64_t waits;    /* it gave up the processor … */
    uint64_t switches; /* … or lost it to others */
} ac_usage_t;
void ac_os_thread_usage(ac_usage_t *out);
uint64_t ac_os_thread_cpu_ns(void);

/* Identity of a process for lock files: start time in clock ticks, 0 if there is no such process. */
uint64_t ac_os_process_start(int pid);
int ac_os_process_exists(int pid);  /* also as a zombie, and as another user's */
int ac_os_process_ends(int pid);    /* was killed, or is a zombie: it runs no more code */
int ac_os_process_stopped(int pid); /* by a signal, or by a debugger; also as another user's */
/* Its command line, with blanks between the words; empty if unknown. */
void ac_os_process_command(int pid, char *out, size_t size);
/* The holder of flock's lock on the file; 0 = none, or none with a pid in our namespace. */
int ac_os_flock_holder(const struct stat *file);
/* Calls `visit` for every such lock on this machine. */
typedef struct ac_flock {
    dev_t device;
    ino_t inode;
    int pid;
} ac_flock_t;
void ac_os_each_flock(void (*visit)(void *context, const ac_flock_t *lock), void *context);
uint64_t ac_os_boot_id(void);
uint64_t ac_os_process_started_ns(int pid); /* wall clock; 0 if unknown */
/* Its command line in one printable line, as much as fits; empty if unknown. */
void ac_os_process_command(int pid, char *out, size_t size);
/* The pid of the holder of this file's flock, as far as this pid namespace knows; 0 = none. */
int ac_os_flock_owner(int fd);
uint64_t ac_os_pid_namespace(void);
uint64_t ac_os_clock_namespace(void); /* in another one the monotonic clock may differ */
int ac_os_random(void *buffer, size_t length);

#endif
