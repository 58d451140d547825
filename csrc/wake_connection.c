#include "wake_connection.h"

#include "atomics.h"
#include "cq4_table.h"
#include "error.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

enum { EVENTS = 64 };
enum { RETRY_NS = 10000000 };
/* A writer says hello as soon as it is connected. Other processes can make us hold at most SILENT_MAX
 * descriptors. */
enum { SILENT_MAX = 128 };
#define SILENT_NS 5000000000u
#define LOOK_NS 1000000000u
#define COMPLAIN_AGAIN_NS 60000000000u

enum polled_kind {
    POLLED_EVENTFD,
    POLLED_INOTIFY,
    POLLED_LISTENER,
    POLLED_INCOMING,
    POLLED_OUTGOING
};

/* First member of everything that epoll returns. */
typedef struct polled {
    enum polled_kind kind;
    int fd;
    struct polled *next_dead;
} polled_t;

typedef struct ac_listener {
    polled_t polled;
    dev_t device;      /* of the directories in which its file may have names … */
    dev_t file_device; /* … and its own, which differs on some file systems … */
    ino_t file_inode;
    uint32_t users;
    struct ac_listener *next;
} ac_listener_t;

typedef struct ac_connection {
    polled_t polled;
    ac_wake_endpoint_t *endpoint; /* incoming: the reader it is for, after its hello */
    ac_wake_targets_t *targets;   /* outgoing: the writer it belongs to */
    char name[AC_READER_NAME_MAX + 1];
    int eventfd;     /* outgoing: the reader's eventfd, after it arrived */
    uint64_t serial; /* accepted or connected earlier = smaller */
    uint64_t accepted_ns;
    uint32_t silent; /* incoming: no hello yet */
    int answered;    /* incoming: has assigned a bit */
    int outdated;    /* incoming: a process took the writer lock after its hello */
    int replaced;    /* outgoing: a newer reader of that name could not be connected to yet */
    struct ac_connection *next;
} ac_connection_t;

/* Everything below is guarded by `lock`, which the thread releases only while it sleeps. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int started, fork_handlers;
static int epoll = -1;
static polled_t eventfd = {POLLED_EVENTFD, -1, NULL}, inotify = {POLLED_INOTIFY, -1, NULL};
static int last_out = -1; /* holds inotify.fd once more: see let_locks_go_first */
static ac_listener_t *listeners;
static ac_connection_t *connections;
static uint64_t serials;      /* how many connections there have been */
static uint32_t silent;       /* incoming ones without a hello yet … */
static uint64_t heard_ns;     /* … which were last looked through at this time */
static polled_t *closed_list; /* closed, but perhaps still named by events already fetched */
static ac_wake_endpoint_t *announced;
static ac_wake_endpoint_t *expecting; /* readers whose queue does not exist yet */
static ac_wake_targets_t *attending;
static int
    exhausted; /* out of fds or memory: something was left undone and must be tried again … */
static int complained;         /* … and the log says so … */
static uint64_t complained_ns; /* … since then */

/* O_NONBLOCK belongs to the open file that both sides share, and writing to an eventfd has no flag of its
 * own for it: a holder can make the other side block on it. So it passes only between processes of one
 * user, which can stop each other anyway; readers of other users poll. */
static int trusted(uid_t user) {
    return user == geteuid();
}

/* Once, not at every try; if the shortage comes and goes, once a minute. */
static void complain(const char *path, int rc) {
    uint64_t now_ns = ac_os_monotonic_ns();
    if (complained || (complained_ns && now_ns - complained_ns < COMPLAIN_AGAIN_NS)) return;
    complained = 1;
    complained_ns = now_ns;
    ac_log(AC_LOG_WARNING, path,
           "cannot connect readers and writers, so some readers poll: %s; raise the limit",
           strerror(-rc));
}

/* Records whether a call failed for lack of something that may be available again later. A full backlog,
 * EAGAIN, is empty again in a moment. */
static int note(const char *path, int rc) {
    int scarce = rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ENOBUFS;
    if (scarce) complain(path, rc);
    if (scarce || rc == -EAGAIN) exhausted = 1;
    return rc;
}

static void polled_close(polled_t *polled) {
    ac_os_epoll_remove(epoll, polled->fd);
    ac_os_close(polled->fd);
    polled->fd = -1;
    polled->next_dead = closed_list;
    closed_list = polled;
    ac_os_eventfd_signal(eventfd.fd); /* the thread frees it, as soon as it holds no events */
}

/* ---- connections ---- */

static ac_connection_t *connection_new(enum polled_kind kind, int fd) {
    ac_connection_t *connection = ac_os_alloc(sizeof *connection);
    if (connection) {
        connection->polled = (polled_t){kind, fd, NULL};
        connection->eventfd = -1;
        connection->serial = ++serials;
        if (ac_os_epoll_add(epoll, fd, connection) == 0) {
            connection->next = connections;
            connections = connection;
            return connection;
        }
    }
    free(connection);
    ac_os_close(fd);
    return NULL;
}

/* Of the writers that a reader keeps, one that has answered; NULL if there is none. The connection that is
 * being closed is no longer in the list. */
static ac_connection_t *find_another(const ac_wake_endpoint_t *endpoint) {
    ac_connection_t *connection = endpoint->many ? connections : NULL;
    while (connection && (connection->endpoint != endpoint || !connection->answered))
        connection = connection->next;
    return connection;
}

static void connection_close(ac_connection_t *connection) {
    for (ac_connection_t **link = &connections; *link; link = &(*link)->next) {
        if (*link != connection) continue;
        *link = connection->next;
        break;
    }
    if (connection->targets && connection->eventfd >= 0)
        ac_wake_targets_remove(connection->targets, connection->eventfd);
    if (connection->endpoint && connection->endpoint->connection == connection) {
        /* The writer is gone: sleepers wake up once and check. */
        ac_wake_endpoint_t *endpoint = connection->endpoint;
        endpoint->connection = find_another(endpoint);
        if (!endpoint->connection) ac_store_release_u32(&endpoint->bit, AC_NO_BIT);
        ac_os_eventfd_signal(endpoint->eventfd->fd);
    }
    silent -= connection->silent;
    ac_os_close(connection->eventfd);
    polled_close(&connection->polled);
}

static int has_trusted_peer(int fd) {
    uid_t user;
    return ac_os_socket_peer(fd, &user) == 0 && trusted(user);
}

/* ---- the reader's side ---- */

static ac_wake_endpoint_t *find_endpoint(const ac_hello_t *hello) {
    for (ac_wake_endpoint_t *endpoint = announced; endpoint; endpoint = endpoint->next)
        if ((uint64_t)endpoint->dir.device == hello->device &&
            (uint64_t)endpoint->dir.inode == hello->inode &&
            strcmp(endpoint->name, hello->name) == 0)
            return endpoint;
    return NULL;
}

/* A newer writer replaces an older one. */
static void close_older(const ac_wake_endpoint_t *endpoint, uint64_t serial) {
    ac_connection_t *next;
    if (endpoint->many) return;
    for (ac_connection_t *connection = connections; connection; connection = next) {
        next = connection->next;
        if (connection->endpoint == endpoint && connection->serial < serial &&
            endpoint->connection != connection)
            connection_close(connection);
    }
}

/* 0 = keep the connection. */
static int answer_hello(ac_connection_t *connection, ac_hello_t *hello, int length) {
    if (length != (int)sizeof *hello || hello->magic != AC_HELLO_MAGIC ||
        hello->version != AC_HELLO_VERSION)
        return -1;
    hello->name[sizeof hello->name - 1] = 0;
    ac_wake_endpoint_t *endpoint = find_endpoint(hello);
    if (!endpoint) return -1;
    uint8_t yes = 1;
    if (ac_os_send(connection->polled.fd, &yes, sizeof yes, endpoint->eventfd->fd) < 0) return -1;
    silent--;
    connection->silent = 0;
    connection->endpoint = endpoint;
    close_older(endpoint, connection->serial);
    return 0;
}

static int take_bit(ac_connection_t *connection, const uint32_t *bit, int length) {
    ac_wake_endpoint_t *endpoint = connection->endpoint;
    if (length != (int)sizeof *bit || *bit >= AC_BIT_FIRST_MEMBER + AC_MEMBER_BITS) return -1;
    /* A newer writer replaces an older one, in whichever order their packets are processed. */
    connection->answered = 1;
    if (endpoint->connection && endpoint->connection->serial > connection->serial)
        return endpoint->many ? 0 : -1;
    endpoint->connection = connection;
    close_older(endpoint, connection->serial);
    ac_store_release_u32(&endpoint->bit, *bit);
    if (!connection->outdated) ac_store_relaxed_u32(&endpoint->suspect, 0);
    /* What was published before the bit was known was not signalled to us. */
    ac_os_eventfd_signal(endpoint->eventfd->fd);
    return 0;
}

/* One packet. Any others come up again in the next turn. */
static void on_incoming(ac_connection_t *connection) {
    ac_hello_t packet;
    int unwanted, rc = -1;
    int length = ac_os_receive(connection->polled.fd, &packet, sizeof packet, &unwanted);
    ac_os_close(unwanted);
    if (length == -EAGAIN) return;
    if (length > 0 && !connection->endpoint) {
        rc = answer_hello(connection, &packet, length);
    } else if (length > 0) {
        uint32_t bit;
        memcpy(&bit, &packet, sizeof bit);
        rc = take_bit(connection, &bit, length);
    }
    if (rc < 0 && connection->endpoint)
        ac_log(AC_LOG_DEBUG, connection->endpoint->dir.path,
               "the writer of reader '%s' has closed the queue or died",
               connection->endpoint->name);
    if (rc < 0) connection_close(connection);
}

/* Its packet may not have been processed yet; if it sent none, it is closed. */
static void read_oldest_peer(void) {
    ac_connection_t *oldest = NULL;
    for (ac_connection_t *connection = connections; connection; connection = connection->next)
        if (connection->silent && (!oldest || connection->serial < oldest->serial))
            oldest = connection;
    if (!oldest) return;
    on_incoming(oldest);
    if (oldest->polled.fd >= 0 && oldest->silent) connection_close(oldest);
}

static void accept_some(ac_listener_t *listener) {
    for (int i = 0; i < EVENTS; i++) {
        int fd = ac_os_socket_accept(listener->polled.fd);
        if (fd == -EAGAIN) return;
        if (note(NULL, fd) < 0) return;
        if (!has_trusted_peer(fd)) {
            ac_os_close(fd);
            continue;
        }
        ac_connection_t *connection = connection_new(POLLED_INCOMING, fd);
        if (!connection) continue;
        connection->accepted_ns = ac_os_monotonic_ns();
        connection->silent = 1;
        if (++silent > SILENT_MAX) read_oldest_peer();
    }
}

static void close_silent(void) {
    uint64_t now_ns = ac_os_monotonic_ns();
    ac_connection_t *next;
    if (now_ns - heard_ns < LOOK_NS) return;
    heard_ns = now_ns;
    for (ac_connection_t *connection = connections; connection; connection = next) {
        next = connection->next;
        if (connection->silent && now_ns - connection->accepted_ns >= SILENT_NS)
            connection_close(connection);
    }
}

/* ---- the writer's side ---- */

static ac_connection_t *find_connection(const ac_wake_targets_t *targets, const char *name) {
    for (ac_connection_t *connection = connections; connection; connection = connection->next)
        if (connection->targets == targets && strcmp(connection->name, name) == 0)
            return connection;
    return NULL;
}

/* A reader that has sent its eventfd is the reader of that name; the death of its predecessor may not have
 * been noticed yet. Not earlier: anybody may create a name in wake/, and a reader that loses its live
 * writer would sleep on. A later connection may be a second one to the same reader, which keeps the newest
 * itself: see close_older. */
static void close_predecessors(const ac_connection_t *successor) {
    ac_connection_t *next;
    for (ac_connection_t *connection = connections; connection; connection = next) {
        next = connection->next;
        if (connection->serial < successor->serial && connection->targets == successor->targets &&
            strcmp(connection->name, successor->name) == 0)
            connection_close(connection);
    }
}

/* NAME.efd appeared in wake/. A leftover of a dead reader refuses the connection; it is removed if its name
 * was unique to that reader, and so will never be used again. */
static void call_reader(ac_wake_targets_t *targets, int wake_fd, const char *file, int is_new) {
    size_t length = strlen(file);
    ac_hello_t hello = {.magic = AC_HELLO_MAGIC,
                        .version = AC_HELLO_VERSION,
                        .device = (uint64_t)targets->dir.device,
                        .inode = (uint64_t)targets->dir.inode};
    if (length <= 4 || length - 4 > AC_READER_NAME_MAX || strcmp(file + length - 4, ".efd") != 0)
        return;
    memcpy(hello.name, file, length - 4);
    ac_connection_t *known = find_connection(targets, hello.name);
    if (!is_new && known && !known->replaced) return;
    int fd = note(targets->dir.path, ac_os_socket_connect(wake_fd, file));
    if (known && is_new)
        known->replaced = fd < 0; /* retry_later must not take it for the new one */
    if (fd == -ECONNREFUSED && file[0] == AC_ANONYMOUS_PREFIX) ac_os_unlink(wake_fd, file);
    if (fd < 0) return;
    if (!has_trusted_peer(fd)) {
        ac_os_close(fd);
        return;
    }
    ac_connection_t *connection = connection_new(POLLED_OUTGOING, fd);
    if (!connection) {
        note(targets->dir.path, -ENOMEM);
        return;
    }
    connection->targets = targets;
    memcpy(connection->name, hello.name, sizeof connection->name);
    if (ac_os_send(fd, &hello, sizeof hello, -1) < 0) connection_close(connection);
}

static void on_outgoing(ac_connection_t *connection) {
    uint8_t yes;
    uint32_t bit;
    int received;
    int length = ac_os_receive(connection->polled.fd, &yes, sizeof yes, &received);
    if (length == -EAGAIN) return;
    int good =
        length == 1 && connection->eventfd < 0 && received >= 0 && ac_os_is_eventfd(received);
    if (!good) {
        if (connection->eventfd >= 0)
            ac_log(AC_LOG_DEBUG, connection->targets->dir.path, "reader '%s' was closed or died",
                   connection->name);
        ac_os_close(received);
        connection_close(connection);
        return;
    }
    close_predecessors(connection);
    if (ac_wake_targets_add(connection->targets, received, connection->name, &bit) < 0) {
        ac_os_close(received);
        connection_close(connection);
        return;
    }
    connection->eventfd = received;
    if (ac_os_send(connection->polled.fd, &bit, sizeof bit, -1) < 0) connection_close(connection);
}

static int open_wake(const ac_directory_t *dir) {
    int dir_fd = ac_directory_reopen(dir);
    if (dir_fd < 0) return dir_fd;
    int wake_fd = ac_os_open_dir_at(dir_fd, AC_WAKE_DIRECTORY);
    ac_os_close(dir_fd);
    return wake_fd;
}

typedef struct scan {
    ac_wake_targets_t *targets;
    int wake_fd;
} scan_t;

static int call_found(void *context, const char *name) {
    scan_t *scan = context;
    call_reader(scan->targets, scan->wake_fd, name, 0);
    return 0;
}

static void call_everybody(ac_wake_targets_t *targets) {
    scan_t scan = {targets, note(targets->dir.path, open_wake(&targets->dir))};
    if (scan.wake_fd >= 0) ac_os_list(scan.wake_fd, call_found, &scan);
    ac_os_close(scan.wake_fd);
}

static void on_reader_file(ac_wake_targets_t *targets, const char *name) {
    int wake_fd = note(targets->dir.path, open_wake(&targets->dir));
    if (wake_fd >= 0) call_reader(targets, wake_fd, name, 1);
    ac_os_close(wake_fd);
}

/* ---- watching who takes the lock ---- */

/* A writer that does not signal is noticed when it writes its name into the lock file; the removal of the
 * queue, when the file loses its name. */
static int watch_lock_file(int dir_fd) {
    int fd = ac_os_open_at(dir_fd, "writer.lock", O_RDONLY, 0);
    if (fd < 0) return -1;
    int watch = ac_os_inotify_add(inotify.fd, fd, IN_MODIFY | IN_ATTRIB | IN_MASK_ADD);
    ac_os_close(fd);
    return watch;
}

/* One inode has one watch for all its users; the last of them removes it. */
static void unwatch(int watch) {
    if (watch < 0) return;
    for (ac_wake_endpoint_t *endpoint = announced; endpoint; endpoint = endpoint->next)
        if (endpoint->watch == watch) return;
    for (ac_wake_endpoint_t *endpoint = expecting; endpoint; endpoint = endpoint->next)
        if (endpoint->watch == watch) return;
    for (ac_wake_targets_t *targets = attending; targets; targets = targets->next)
        if (targets->watch == watch) return;
    ac_os_inotify_remove(inotify.fd, watch);
}

/* By name: the file that was watched may have been removed, and another one created in its place. Without a
 * watch, a reader that has no writer may not sleep: ac_reader_park. */
static void watch_writers(ac_wake_endpoint_t *endpoint) {
    int old = endpoint->watch;
    int dir_fd = ac_directory_reopen(&endpoint->dir);
    int watch = dir_fd < 0 ? -1 : watch_lock_file(dir_fd);
    ac_os_close(dir_fd);
    endpoint->watch = watch;
    ac_store_release_u32(&endpoint->watching, watch >= 0);
    if (old != watch) unwatch(old);
}

/* In the directory itself, a Java queue may be appearing. */
static int is_step(const ac_wake_endpoint_t *endpoint, const char *name) {
    return strcmp(name, endpoint->step) == 0 ||
           (strcmp(endpoint->step, "control.meta") == 0 &&
            (strcmp(name, AC_CQ4_METADATA) == 0 || strcmp(name, AC_CQ4_LISTING) == 0));
}

/* A reader appeared in a queue we write to, a process took the lock of a queue we read, or something
 * happened on the path to a missing queue. A negative watch: events were lost. */
static void on_change(void *unused, int watch, const char *name) {
    (void)unused;
    for (ac_wake_endpoint_t *endpoint = announced; endpoint; endpoint = endpoint->next) {
        if (watch >= 0 && endpoint->watch != watch) continue;
        for (ac_connection_t *connection = connections; connection; connection = connection->next)
            if (connection->endpoint == endpoint) connection->outdated = 1;
        ac_store_relaxed_u32(&endpoint->suspect, 1);
        watch_writers(endpoint);
        ac_os_eventfd_signal(endpoint->eventfd->fd);
    }
    for (ac_wake_endpoint_t *endpoint = expecting; endpoint; endpoint = endpoint->next) {
        if (watch >= 0 && (endpoint->watch != watch || (name[0] && !is_step(endpoint, name))))
            continue;
        ac_os_eventfd_signal(endpoint->eventfd->fd);
    }
    for (ac_wake_targets_t *targets = attending; targets; targets = targets->next) {
        if (watch < 0)
            call_everybody(targets);
        else if (targets->watch == watch)
            on_reader_file(targets, name);
    }
}

/* ---- the thread ---- */

static void serve(polled_t *polled) {
    if (polled->fd < 0) return; /* closed by an event before this one */
    switch (polled->kind) {
    case POLLED_EVENTFD:
    case POLLED_INOTIFY:
        break; /* read before anything else */
    case POLLED_LISTENER:
        accept_some((ac_listener_t *)(void *)polled);
        break;
    case POLLED_INCOMING:
        on_incoming((ac_connection_t *)(void *)polled);
        break;
    case POLLED_OUTGOING:
        on_outgoing((ac_connection_t *)(void *)polled);
        break;
    }
}

static void bury(void) {
    while (closed_list) {
        polled_t *polled = closed_list;
        closed_list = polled->next_dead;
        free(polled);
    }
}

int ac_wake_nudge(void) {
    return ac_os_eventfd_signal(eventfd.fd);
}

/* For all writers: the signals that their appenders have left to this thread since the eventfd was drained. */
static void signal_rest(void) {
    for (ac_wake_targets_t *targets = attending; targets; targets = targets->next)
        ac_wake_targets_signal_rest(targets);
}

/* Called with the lock held, which it releases meanwhile. */
static void retry_later(void) {
    exhausted = 0;
    pthread_mutex_unlock(&lock);
    ac_os_eventfd_wait(eventfd.fd, RETRY_NS);
    pthread_mutex_lock(&lock);
    signal_rest();
    for (ac_wake_targets_t *targets = attending; targets; targets = targets->next)
        call_everybody(targets);
    if (exhausted) ac_os_eventfd_signal(eventfd.fd);
    if (!exhausted && complained) {
        complained = 0;
        ac_log(AC_LOG_INFO, NULL, "readers and writers can be connected again");
    }
}

static void *attend_doors(void *unused) {
    void *ready[EVENTS];
    pthread_mutex_lock(&lock);
    for (;;) {
        bury();
        int fd = epoll, waits_for_silent = silent > 0;
        pthread_mutex_unlock(&lock);
        uint64_t timeout_ns = waits_for_silent ? LOOK_NS : UINT64_MAX;
        int count = ac_os_epoll_wait(fd, ready, EVENTS, timeout_ns);
        pthread_mutex_lock(&lock);
        if (ac_os_eventfd_wait(eventfd.fd, 0) > 0) signal_rest();
        /* Before anything is served: a writer touches the lock file before it connects, so a connection
         * that is served now is newer than every suspicion read here. */
        if (count > 0) ac_os_inotify_read(inotify.fd, on_change, NULL);
        for (int i = 0; i < count; i++)
            serve(ready[i]);
        if (silent > 0) close_silent();
        if (exhausted) retry_later();
    }
    return unused;
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* The child must release the connections, or the peers would not notice the parent's death. */
static void after_fork_child(void) {
    for (ac_connection_t *connection = connections; connection; connection = connection->next) {
        ac_os_close(connection->polled.fd);
        ac_os_close(connection->eventfd);
    }
    for (ac_listener_t *listener = listeners; listener; listener = listener->next)
        ac_os_close(listener->polled.fd);
    ac_os_close(epoll);
    ac_os_close(eventfd.fd);
    ac_os_close(inotify.fd);
    ac_os_close(last_out);
    epoll = eventfd.fd = inotify.fd = last_out = -1;
    listeners = NULL;
    connections = NULL;
    closed_list = NULL;
    announced = expecting = NULL;
    attending = NULL;
    started = exhausted = complained = 0;
    complained_ns = 0;
    silent = 0;
    pthread_mutex_init(&lock, NULL);
}

static int start_locked(void) {
    if (started) return 0;
    if (!fork_handlers) {
        int rc = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
        if (rc != 0) return -rc;
        fork_handlers = 1;
    }
    int rc = 0;
    if (epoll < 0) rc = epoll = ac_os_epoll();
    if (rc >= 0 && eventfd.fd < 0) {
        rc = eventfd.fd = ac_os_eventfd();
        if (rc >= 0) rc = ac_os_epoll_add(epoll, eventfd.fd, &eventfd);
    }
    if (rc >= 0 && inotify.fd < 0) {
        rc = inotify.fd = ac_os_inotify();
        if (rc >= 0) rc = ac_os_epoll_add(epoll, inotify.fd, &inotify);
    }
    if (rc >= 0) rc = ac_os_thread(attend_doors, NULL);
    started = rc >= 0;
    return rc < 0 ? rc : 0;
}

/* ---- announcing ---- */

static void file_name(char out[AC_READER_NAME_MAX + 8], const ac_wake_endpoint_t *endpoint) {
    snprintf(out, AC_READER_NAME_MAX + 8, "%s.efd", endpoint->name);
}

/* Every process that may write into wake/ can replace a socket by something else. */
static int is_file_of(const ac_listener_t *listener, int wake_fd, const char *file) {
    struct stat info;
    return ac_os_stat_at(wake_fd, file, &info) == 0 && S_ISSOCK(info.st_mode) &&
           info.st_dev == listener->file_device && info.st_ino == listener->file_inode;
}

/* Another reader of ours on the same file system: its socket can serve this one too. */
static int link_existing(const ac_wake_endpoint_t *endpoint, int wake_fd, const char *file,
                         ac_listener_t **out) {
    for (ac_wake_endpoint_t *other = announced; other; other = other->next) {
        char other_file[AC_READER_NAME_MAX + 8];
        if (other->listener->device != endpoint->dir.device) continue;
        int other_fd = open_wake(&other->dir);
        if (other_fd < 0) continue;
        file_name(other_file, other);
        int rc = ac_os_link(other_fd, other_file, wake_fd, file);
        ac_os_close(other_fd);
        if (rc < 0) continue;
        *out = other->listener;
        if (is_file_of(other->listener, wake_fd, file)) return 0;
        ac_os_unlink(wake_fd, file);
    }
    return -ENOENT;
}

/* Binds under a temporary name, so that the final name accepts connections as soon as it exists. */
static int listen_anew(const ac_wake_endpoint_t *endpoint, int wake_fd, const char *file,
                       ac_listener_t **out) {
    char temporary[AC_READER_NAME_MAX + 32];
    ac_listener_t *listener = ac_os_alloc(sizeof *listener);
    if (!listener) return -ENOMEM;
    snprintf(temporary, sizeof temporary, "%s.%d.tmp", file, (int)getpid());
    ac_os_unlink(wake_fd, temporary);
    int fd = ac_os_socket_listen(wake_fd, temporary);
    if (fd < 0) {
        free(listener);
        return fd;
    }
    struct stat info;
    listener->polled = (polled_t){POLLED_LISTENER, fd, NULL};
    listener->device = endpoint->dir.device;
    int rc = ac_os_stat_at(wake_fd, temporary, &info);
    if (rc == 0) {
        listener->file_device = info.st_dev;
        listener->file_inode = info.st_ino;
        rc = ac_os_epoll_add(epoll, fd, listener);
    }
    if (rc == 0) rc = ac_os_rename(wake_fd, temporary, file);
    if (rc < 0) {
        ac_os_unlink(wake_fd, temporary);
        ac_os_close(fd);
        free(listener);
        return rc;
    }
    listener->next = listeners;
    listeners = listener;
    *out = listener;
    return 0;
}

static int list_remove(ac_wake_endpoint_t **list, const ac_wake_endpoint_t *endpoint) {
    for (ac_wake_endpoint_t **link = list; *link; link = &(*link)->next) {
        if (*link != endpoint) continue;
        *link = endpoint->next;
        return 1;
    }
    return 0;
}

int ac_wake_announce(ac_wake_endpoint_t *endpoint, const ac_directory_t *dir, ac_error_t *err) {
    char file[AC_READER_NAME_MAX + 8];
    int dir_fd = ac_directory_open(dir, err);
    if (dir_fd < 0) return dir_fd;
    int wake_fd = ac_directory_sub(dir, dir_fd, AC_WAKE_DIRECTORY, 0, err);
    if (wake_fd < 0) {
        ac_os_close(dir_fd);
        return wake_fd;
    }
    endpoint->dir = *dir;
    endpoint->bit = AC_NO_BIT;
    file_name(file, endpoint);
    pthread_mutex_lock(&lock);
    int rc = start_locked();
    if (rc == 0) {
        ac_os_unlink(wake_fd, file); /* a dead reader's; the name is ours, the position is locked */
        rc = link_existing(endpoint, wake_fd, file, &endpoint->listener);
        if (rc < 0) rc = listen_anew(endpoint, wake_fd, file, &endpoint->listener);
    }
    if (rc == 0) {
        endpoint->listener->users++;
        endpoint->watch = -1;
        endpoint->next = announced;
        announced = endpoint;
        watch_writers(endpoint);
    }
    pthread_mutex_unlock(&lock);
    ac_os_close(wake_fd);
    ac_os_close(dir_fd);
    return rc < 0
               ? ac_fail_os_in(err, rc, dir->path, AC_WAKE_DIRECTORY, "cannot announce the reader")
               : AC_OK;
}

void ac_wake_watch_lock(ac_wake_endpoint_t *endpoint) {
    pthread_mutex_lock(&lock);
    watch_writers(endpoint);
    pthread_mutex_unlock(&lock);
}

static void listener_release(ac_listener_t *listener) {
    if (--listener->users > 0) return;
    for (ac_listener_t **link = &listeners; *link; link = &(*link)->next) {
        if (*link != listener) continue;
        *link = listener->next;
        break;
    }
    polled_close(&listener->polled);
}

void ac_wake_retract(ac_wake_endpoint_t *endpoint) {
    char file[AC_READER_NAME_MAX + 8];
    pthread_mutex_lock(&lock);
    if (list_remove(&announced, endpoint)) {
        ac_connection_t *next;
        for (ac_connection_t *connection = connections; connection; connection = next) {
            next = connection->next;
            if (connection->endpoint != endpoint) continue;
            connection->endpoint = NULL;
            connection_close(connection);
        }
        endpoint->connection = NULL; /* it may be announced again, with another eventfd */
        int wake_fd = open_wake(&endpoint->dir);
        file_name(file, endpoint);
        if (wake_fd >= 0) ac_os_unlink(wake_fd, file);
        ac_os_close(wake_fd);
        listener_release(endpoint->listener);
        unwatch(endpoint->watch);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- expecting a queue ---- */

/* Opens the longest part of the path that exists. *step = the next component, which is missing. */
static int open_nearest(const char *path, char step[AC_STEP_MAX]) {
    char part[1024];
    snprintf(part, sizeof part, "%s", path);
    snprintf(step, AC_STEP_MAX, "control.meta");
    for (;;) {
        int fd = ac_os_open_dir(part);
        char *slash = strrchr(part, '/');
        if (fd != -ENOENT || !slash || !slash[1]) return fd;
        snprintf(step, AC_STEP_MAX, "%s", slash + 1);
        slash[slash == part] = 0;
    }
}

/* Watches that directory, and makes sure that it was still the longest existing part when the watch was in
 * place. */
static int watch_nearest(ac_wake_endpoint_t *endpoint, const char *path) {
    char step[AC_STEP_MAX];
    int fd = open_nearest(path, endpoint->step);
    while (fd >= 0) {
        uint32_t mask = IN_CREATE | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_MASK_ADD;
        int watch = ac_os_inotify_add(inotify.fd, fd, mask);
        ac_os_close(fd);
        if (watch < 0) return watch;
        int old = endpoint->watch;
        endpoint->watch = watch;
        if (old != watch) unwatch(old);
        fd = open_nearest(path, step);
        if (strcmp(step, endpoint->step) == 0) {
            ac_os_close(fd);
            return fd < 0 ? fd : 0;
        }
        memcpy(endpoint->step, step, sizeof step);
    }
    return fd;
}

int ac_wake_expect_queue(ac_wake_endpoint_t *endpoint, const char *path) {
    pthread_mutex_lock(&lock);
    int rc = start_locked();
    if (rc == 0 && !endpoint->expects) {
        endpoint->watch = -1;
        endpoint->expects = 1;
        endpoint->next = expecting;
        expecting = endpoint;
    }
    if (rc == 0) rc = watch_nearest(endpoint, path);
    pthread_mutex_unlock(&lock);
    return rc;
}

void ac_wake_stop_expecting(ac_wake_endpoint_t *endpoint) {
    pthread_mutex_lock(&lock);
    if (endpoint->expects && list_remove(&expecting, endpoint)) unwatch(endpoint->watch);
    endpoint->expects = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- attending ---- */

/* A process that is killed closes its files before those that only its mappings hold, among them the
 * writer's locks; and closing an inotify instance that has watches takes the kernel 10 ms and more, in
 * which the successor waits. So inotify.fd is also in the queue of a socket: when that is closed, all other
 * files are being closed already. Without it, the successor waits. */
static void let_locks_go_first(void) {
    int ends[2];
    uint8_t byte = 0;
    if (last_out >= 0 || ac_os_socket_pair(ends) < 0) return;
    if (ac_os_send(ends[0], &byte, sizeof byte, inotify.fd) >= 0)
        last_out = ends[1];
    else
        ac_os_close(ends[1]);
    ac_os_close(ends[0]);
}

int ac_wake_targets_open(ac_wake_targets_t *targets, const ac_directory_t *dir, ac_error_t *err) {
    int dir_fd = ac_directory_open(dir, err);
    if (dir_fd < 0) return dir_fd;
    int wake_fd = ac_directory_sub(dir, dir_fd, AC_WAKE_DIRECTORY, 1, err);
    ac_os_close(dir_fd);
    if (wake_fd < 0) return wake_fd;
    targets->dir = *dir;
    pthread_mutex_init(&targets->mutex, NULL);
    pthread_mutex_lock(&lock);
    int rc = start_locked();
    if (rc == 0)
        rc = targets->watch =
            ac_os_inotify_add(inotify.fd, wake_fd, IN_CREATE | IN_MOVED_TO | IN_MASK_ADD);
    if (rc >= 0) {
        targets->next = attending;
        attending = targets;
        let_locks_go_first();
        /* The watch is in place: it reports readers that this scan misses. */
        call_everybody(targets);
        if (exhausted) ac_os_eventfd_signal(eventfd.fd);
        rc = 0;
    }
    pthread_mutex_unlock(&lock);
    ac_os_close(wake_fd);
    if (rc >= 0) return AC_OK;
    ac_log(AC_LOG_WARNING, dir->path,
           "cannot watch for readers, so they poll: %s (see fs.inotify.max_user_instances and "
           "max_user_watches, and the limit of open files)",
           strerror(-rc));
    return ac_fail_os_in(err, rc, dir->path, AC_WAKE_DIRECTORY, "cannot watch for readers");
}

void ac_wake_targets_close(ac_wake_targets_t *targets) {
    pthread_mutex_lock(&lock);
    int known = 0;
    for (ac_wake_targets_t **link = &attending; *link; link = &(*link)->next) {
        if (*link != targets) continue;
        *link = targets->next;
        known = 1;
        break;
    }
    if (known) {
        ac_connection_t *next;
        unwatch(targets->watch);
        for (ac_connection_t *connection = connections; connection; connection = next) {
            next = connection->next;
            if (connection->targets == targets) connection_close(connection);
        }
    }
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(&targets->mutex); /* an appender may be about to wake a reader */
    free(targets->sleepers);
    targets->sleepers = NULL;
    targets->count = targets->room = 0;
    pthread_mutex_unlock(&targets->mutex);
}
