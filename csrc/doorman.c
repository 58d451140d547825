#include "doorman.h"

#include "atomics.h"
#include "error.h"
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

enum door_kind { DOOR_BELL, DOOR_INOTIFY, DOOR_LISTENER, DOOR_INCOMING, DOOR_OUTGOING };

/* First member of everything that epoll hands back. */
typedef struct door {
    enum door_kind kind;
    int fd;
    struct door *next_dead;
} door_t;

typedef struct ac_listener {
    door_t door;
    dev_t device;
    uint32_t users;
    struct ac_listener *next;
} ac_listener_t;

typedef struct ac_connection {
    door_t door;
    ac_caller_t *caller;   /* incoming: the reader it is for, once it said so */
    ac_callers_t *callers; /* outgoing: the writer it belongs to */
    char name[AC_READER_NAME_MAX + 1];
    int bell;        /* outgoing: the reader's eventfd, once it came */
    uint64_t serial; /* incoming: accepted earlier = smaller */
    int outdated;    /* incoming: somebody took the writer lock after it said hello */
    struct ac_connection *next;
} ac_connection_t;

/* Everything below is guarded by `lock`, which the thread gives up only while it sleeps. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int started, fork_handlers;
static int epoll = -1;
static door_t bell = {DOOR_BELL, -1, NULL}, inotify = {DOOR_INOTIFY, -1, NULL};
static ac_listener_t *listeners;
static ac_connection_t *connections;
static uint64_t accepted; /* how many connections */
static door_t *graveyard; /* closed, but perhaps still named by events already fetched */
static ac_caller_t *announced;
static ac_caller_t *expecting; /* readers whose queue is not there yet */
static ac_callers_t *attending;
static int
    exhausted; /* out of fds or memory: something was left undone and has to be tried again */

/* O_NONBLOCK belongs to the open file that both sides share, and writing to an eventfd has no flag of its own
 * for it: whoever holds one can let the other side block on it. So it passes only between processes of one
 * user, who can stop each other anyway; readers of anybody else poll. */
static int trusted(uid_t user) {
    return user == geteuid();
}

/* Notes whether a call failed for want of something that may be had again later. */
static int note(int rc) {
    if (rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ENOBUFS || rc == -EAGAIN)
        exhausted = 1;
    return rc;
}

static void door_close(door_t *door) {
    ac_os_epoll_remove(epoll, door->fd);
    ac_os_close(door->fd);
    door->fd = -1;
    door->next_dead = graveyard;
    graveyard = door;
    ac_os_eventfd_signal(bell.fd); /* the thread frees it, once it holds no events any more */
}

/* ---- connections ---- */

static ac_connection_t *connection_new(enum door_kind kind, int fd) {
    ac_connection_t *connection = ac_os_alloc(sizeof *connection);
    if (connection) {
        connection->door = (door_t){kind, fd, NULL};
        connection->bell = -1;
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

static void connection_close(ac_connection_t *connection) {
    for (ac_connection_t **link = &connections; *link; link = &(*link)->next) {
        if (*link != connection) continue;
        *link = connection->next;
        break;
    }
    if (connection->callers && connection->bell >= 0)
        ac_callers_forget(connection->callers, connection->bell);
    if (connection->caller && connection->caller->connection == connection) {
        /* The writer is gone: whoever sleeps wakes up once and looks. */
        ac_caller_t *caller = connection->caller;
        caller->connection = NULL;
        ac_store_release_u32(&caller->bit, AC_NO_BIT);
        ac_os_eventfd_signal(caller->bell->fd);
    }
    ac_os_close(connection->bell);
    door_close(&connection->door);
}

/* ---- the reader's side ---- */

static void accept_some(ac_listener_t *listener) {
    for (int i = 0; i < EVENTS; i++) {
        uid_t user;
        int fd = ac_os_socket_accept(listener->door.fd);
        if (fd == -EAGAIN) return;
        if (note(fd) < 0) return;
        if (ac_os_socket_peer(fd, &user) < 0) {
            ac_os_close(fd);
            continue;
        }
        ac_connection_t *connection = connection_new(DOOR_INCOMING, fd);
        if (connection) connection->serial = ++accepted;
    }
}

static ac_caller_t *find_caller(const ac_hello_t *hello, uid_t user) {
    for (ac_caller_t *caller = announced; caller; caller = caller->next)
        if ((uint64_t)caller->device == hello->device && (uint64_t)caller->inode == hello->inode &&
            strcmp(caller->name, hello->name) == 0)
            return trusted(user) ? caller : NULL;
    return NULL;
}

/* 0 = keep the connection. */
static int answer_hello(ac_connection_t *connection, ac_hello_t *hello, int length) {
    uid_t user;
    if (length != (int)sizeof *hello || hello->magic != AC_HELLO_MAGIC ||
        hello->version != AC_HELLO_VERSION || ac_os_socket_peer(connection->door.fd, &user) < 0)
        return -1;
    hello->name[sizeof hello->name - 1] = 0;
    ac_caller_t *caller = find_caller(hello, user);
    if (!caller) return -1;
    uint8_t yes = 1;
    if (ac_os_send(connection->door.fd, &yes, sizeof yes, caller->bell->fd) < 0) return -1;
    connection->caller = caller;
    return 0;
}

static int take_bit(ac_connection_t *connection, const uint32_t *bit, int length) {
    ac_caller_t *caller = connection->caller;
    if (length != (int)sizeof *bit || *bit >= 64) return -1;
    /* A newer writer replaces an older one, in whichever order their packets are looked at. */
    if (caller->connection && caller->connection->serial > connection->serial) return -1;
    caller->connection = connection;
    ac_store_release_u32(&caller->bit, *bit);
    if (!connection->outdated) ac_store_relaxed_u32(&caller->suspect, 0);
    /* What was published before the bit was known was not signalled to us. */
    ac_os_eventfd_signal(caller->bell->fd);
    return 0;
}

/* One packet. Whatever else there is comes up again in the next turn. */
static void on_incoming(ac_connection_t *connection) {
    ac_hello_t packet;
    int unwanted, rc = -1;
    int length = ac_os_receive(connection->door.fd, &packet, sizeof packet, &unwanted);
    ac_os_close(unwanted);
    if (length == -EAGAIN) return;
    if (length > 0 && !connection->caller) {
        rc = answer_hello(connection, &packet, length);
    } else if (length > 0) {
        uint32_t bit;
        memcpy(&bit, &packet, sizeof bit);
        rc = take_bit(connection, &bit, length);
    }
    if (rc < 0) connection_close(connection);
}

/* ---- the writer's side ---- */

static ac_connection_t *find_connection(const ac_callers_t *callers, const char *name) {
    for (ac_connection_t *connection = connections; connection; connection = connection->next)
        if (connection->callers == callers && strcmp(connection->name, name) == 0)
            return connection;
    return NULL;
}

/* Whoever announces itself now is the reader of that name; its predecessor may have died unnoticed yet. */
static void close_predecessor(const ac_callers_t *callers, const char *name) {
    ac_connection_t *connection = find_connection(callers, name);
    if (connection) connection_close(connection);
}

/* NAME.efd appeared in readers/. A leftover of a dead reader refuses the connection; one that nobody can
 * ever use again, because its name was for that reader only, goes. */
static void call_reader(ac_callers_t *callers, int readers_fd, const char *file, int anew) {
    size_t length = strlen(file);
    uid_t user;
    ac_hello_t hello = {.magic = AC_HELLO_MAGIC,
                        .version = AC_HELLO_VERSION,
                        .device = (uint64_t)callers->device,
                        .inode = (uint64_t)callers->inode};
    if (length <= 4 || length - 4 > AC_READER_NAME_MAX || strcmp(file + length - 4, ".efd") != 0)
        return;
    memcpy(hello.name, file, length - 4);
    if (anew)
        close_predecessor(callers, hello.name);
    else if (find_connection(callers, hello.name))
        return;
    int fd = note(ac_os_socket_connect(readers_fd, file));
    if (fd == -ECONNREFUSED && file[0] == AC_ANONYMOUS_PREFIX) ac_os_unlink(readers_fd, file);
    if (fd < 0) return;
    ac_connection_t *connection = connection_new(DOOR_OUTGOING, fd);
    if (!connection) {
        note(-ENOMEM);
        return;
    }
    connection->callers = callers;
    memcpy(connection->name, hello.name, sizeof connection->name);
    if (ac_os_socket_peer(fd, &user) < 0 || !trusted(user) ||
        ac_os_send(fd, &hello, sizeof hello, -1) < 0)
        connection_close(connection);
}

static void on_outgoing(ac_connection_t *connection) {
    uint8_t yes;
    uint32_t bit;
    int received;
    int length = ac_os_receive(connection->door.fd, &yes, sizeof yes, &received);
    if (length == -EAGAIN) return;
    int good = length == 1 && connection->bell < 0 && received >= 0 && ac_os_is_eventfd(received);
    if (!good) {
        ac_os_close(received);
        connection_close(connection);
        return;
    }
    if (ac_callers_add(connection->callers, received, &bit) < 0) {
        ac_os_close(received);
        connection_close(connection);
        return;
    }
    connection->bell = received;
    if (ac_os_send(connection->door.fd, &bit, sizeof bit, -1) < 0) connection_close(connection);
}

static int open_readers(const char *path) {
    int dir_fd = ac_os_open_dir(path);
    if (dir_fd < 0) return dir_fd;
    int readers_fd = ac_os_open_dir_at(dir_fd, "readers");
    ac_os_close(dir_fd);
    return readers_fd;
}

typedef struct scan {
    ac_callers_t *callers;
    int readers_fd;
} scan_t;

static int call_found(void *context, const char *name) {
    scan_t *scan = context;
    call_reader(scan->callers, scan->readers_fd, name, 0);
    return 0;
}

static void call_everybody(ac_callers_t *callers) {
    scan_t scan = {callers, note(open_readers(callers->path))};
    if (scan.readers_fd >= 0) ac_os_list(scan.readers_fd, call_found, &scan);
    ac_os_close(scan.readers_fd);
}

static void on_reader_file(ac_callers_t *callers, const char *name) {
    int readers_fd = note(open_readers(callers->path));
    if (readers_fd >= 0) call_reader(callers, readers_fd, name, 1);
    ac_os_close(readers_fd);
}

/* A reader appeared in a queue we write to, somebody took the lock of a queue we read, or something
 * happened on the way to a queue that is not there yet. A negative watch: events were lost. */
static void on_change(void *unused, int watch, const char *name) {
    (void)unused;
    for (ac_caller_t *caller = announced; caller; caller = caller->next) {
        if (watch >= 0 && caller->watch != watch) continue;
        for (ac_connection_t *connection = connections; connection; connection = connection->next)
            if (connection->caller == caller) connection->outdated = 1;
        ac_store_relaxed_u32(&caller->suspect, 1);
        ac_os_eventfd_signal(caller->bell->fd);
    }
    for (ac_caller_t *caller = expecting; caller; caller = caller->next) {
        if (watch >= 0 && (caller->watch != watch || (name[0] && strcmp(name, caller->step) != 0)))
            continue;
        ac_os_eventfd_signal(caller->bell->fd);
    }
    for (ac_callers_t *callers = attending; callers; callers = callers->next) {
        if (watch < 0)
            call_everybody(callers);
        else if (callers->watch == watch)
            on_reader_file(callers, name);
    }
}

/* ---- the thread ---- */

static void serve(door_t *door) {
    if (door->fd < 0) return; /* closed by an event before this one */
    switch (door->kind) {
    case DOOR_BELL:
        ac_os_eventfd_wait(door->fd, 0);
        break;
    case DOOR_INOTIFY:
        break; /* read before anything else */
    case DOOR_LISTENER:
        accept_some((ac_listener_t *)(void *)door);
        break;
    case DOOR_INCOMING:
        on_incoming((ac_connection_t *)(void *)door);
        break;
    case DOOR_OUTGOING:
        on_outgoing((ac_connection_t *)(void *)door);
        break;
    }
}

static void bury(void) {
    while (graveyard) {
        door_t *door = graveyard;
        graveyard = door->next_dead;
        free(door);
    }
}

/* Called with the lock held; others may use it meanwhile. */
static void retry_later(void) {
    exhausted = 0;
    pthread_mutex_unlock(&lock);
    ac_os_sleep_ns(RETRY_NS);
    pthread_mutex_lock(&lock);
    for (ac_callers_t *callers = attending; callers; callers = callers->next)
        call_everybody(callers);
    if (exhausted) ac_os_eventfd_signal(bell.fd);
}

static void *attend_doors(void *unused) {
    void *doors[EVENTS];
    pthread_mutex_lock(&lock);
    for (;;) {
        bury();
        int fd = epoll;
        pthread_mutex_unlock(&lock);
        int count = ac_os_epoll_wait(fd, doors, EVENTS, UINT64_MAX);
        pthread_mutex_lock(&lock);
        /* First of all: a writer touches the lock file before it connects, so a connection that is
         * served now is newer than every suspicion read here. */
        if (count > 0) ac_os_inotify_read(inotify.fd, on_change, NULL);
        for (int i = 0; i < count; i++)
            serve(doors[i]);
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

/* The child must let go of the connections, or the peers would not notice the parent's death. */
static void after_fork_child(void) {
    for (ac_connection_t *connection = connections; connection; connection = connection->next) {
        ac_os_close(connection->door.fd);
        ac_os_close(connection->bell);
    }
    for (ac_listener_t *listener = listeners; listener; listener = listener->next)
        ac_os_close(listener->door.fd);
    ac_os_close(epoll);
    ac_os_close(bell.fd);
    ac_os_close(inotify.fd);
    epoll = bell.fd = inotify.fd = -1;
    listeners = NULL;
    connections = NULL;
    graveyard = NULL;
    announced = expecting = NULL;
    attending = NULL;
    started = exhausted = 0;
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
    if (rc >= 0 && bell.fd < 0) {
        rc = bell.fd = ac_os_eventfd();
        if (rc >= 0) rc = ac_os_epoll_add(epoll, bell.fd, &bell);
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

static void file_name(char out[AC_READER_NAME_MAX + 8], const ac_caller_t *caller) {
    snprintf(out, AC_READER_NAME_MAX + 8, "%s.efd", caller->name);
}

/* Another reader of ours on the same file system: its socket can serve this one too. */
static int link_existing(const ac_caller_t *caller, int readers_fd, const char *file,
                         ac_listener_t **out) {
    for (ac_caller_t *other = announced; other; other = other->next) {
        char other_file[AC_READER_NAME_MAX + 8];
        if (other->listener->device != caller->device) continue;
        int other_fd = open_readers(other->path);
        if (other_fd < 0) continue;
        file_name(other_file, other);
        int rc = ac_os_link(other_fd, other_file, readers_fd, file);
        ac_os_close(other_fd);
        if (rc < 0) continue;
        *out = other->listener;
        return 0;
    }
    return -ENOENT;
}

/* Binds under a temporary name: whoever sees the final one can connect. */
static int listen_anew(const ac_caller_t *caller, int readers_fd, const char *file,
                       ac_listener_t **out) {
    char temporary[AC_READER_NAME_MAX + 32];
    ac_listener_t *listener = ac_os_alloc(sizeof *listener);
    if (!listener) return -ENOMEM;
    snprintf(temporary, sizeof temporary, "%s.%d.tmp", file, (int)getpid());
    ac_os_unlink(readers_fd, temporary);
    int fd = ac_os_socket_listen(readers_fd, temporary);
    if (fd < 0) {
        free(listener);
        return fd;
    }
    listener->door = (door_t){DOOR_LISTENER, fd, NULL};
    listener->device = caller->device;
    int rc = ac_os_epoll_add(epoll, fd, listener);
    if (rc == 0) rc = ac_os_rename(readers_fd, temporary, file);
    if (rc < 0) {
        ac_os_unlink(readers_fd, temporary);
        ac_os_close(fd);
        free(listener);
        return rc;
    }
    listener->next = listeners;
    listeners = listener;
    *out = listener;
    return 0;
}

/* A writer that does not signal is noticed when it writes its name into the lock file; that the queue is
 * removed, when the file loses its name. */
static int watch_lock_file(int dir_fd) {
    int fd = ac_os_open_at(dir_fd, "writer.lock", O_RDONLY, 0);
    if (fd < 0) return -1;
    int watch = ac_os_inotify_add(inotify.fd, fd, IN_MODIFY | IN_ATTRIB | IN_MASK_ADD);
    ac_os_close(fd);
    return watch;
}

/* One inode has one watch, whoever asked for it; it goes with the last of them. */
static void unwatch(int watch) {
    if (watch < 0) return;
    for (ac_caller_t *caller = announced; caller; caller = caller->next)
        if (caller->watch == watch) return;
    for (ac_caller_t *caller = expecting; caller; caller = caller->next)
        if (caller->watch == watch) return;
    for (ac_callers_t *callers = attending; callers; callers = callers->next)
        if (callers->watch == watch) return;
    ac_os_inotify_remove(inotify.fd, watch);
}

static int list_remove(ac_caller_t **list, const ac_caller_t *caller) {
    for (ac_caller_t **link = list; *link; link = &(*link)->next) {
        if (*link != caller) continue;
        *link = caller->next;
        return 1;
    }
    return 0;
}

int ac_doorman_announce(ac_caller_t *caller, const ac_directory_t *dir, ac_error_t *err) {
    char file[AC_READER_NAME_MAX + 8];
    int dir_fd = ac_directory_open(dir, err);
    if (dir_fd < 0) return dir_fd;
    ac_directory_t readers;
    int readers_fd = ac_directory_readers(dir, dir_fd, 1, &readers, err);
    if (readers_fd < 0) {
        ac_os_close(dir_fd);
        return readers_fd;
    }
    snprintf(caller->path, sizeof caller->path, "%s", dir->path);
    caller->device = dir->device;
    caller->inode = dir->inode;
    caller->bit = AC_NO_BIT;
    file_name(file, caller);
    pthread_mutex_lock(&lock);
    int rc = start_locked();
    if (rc == 0) {
        ac_os_unlink(readers_fd,
                     file); /* a dead reader's; the name is ours, the position is locked */
        rc = link_existing(caller, readers_fd, file, &caller->listener);
        if (rc < 0) rc = listen_anew(caller, readers_fd, file, &caller->listener);
    }
    if (rc == 0) {
        caller->listener->users++;
        caller->watch = watch_lock_file(dir_fd);
        caller->next = announced;
        announced = caller;
    }
    pthread_mutex_unlock(&lock);
    ac_os_close(readers_fd);
    ac_os_close(dir_fd);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, "readers", "cannot announce the reader")
                  : AC_OK;
}

static void listener_release(ac_listener_t *listener) {
    if (--listener->users > 0) return;
    for (ac_listener_t **link = &listeners; *link; link = &(*link)->next) {
        if (*link != listener) continue;
        *link = listener->next;
        break;
    }
    door_close(&listener->door);
}

void ac_doorman_retract(ac_caller_t *caller) {
    char file[AC_READER_NAME_MAX + 8];
    pthread_mutex_lock(&lock);
    if (list_remove(&announced, caller)) {
        ac_connection_t *next;
        for (ac_connection_t *connection = connections; connection; connection = next) {
            next = connection->next;
            if (connection->caller != caller) continue;
            connection->caller = NULL;
            connection_close(connection);
        }
        caller->connection = NULL; /* it may be announced again, with another bell */
        int readers_fd = open_readers(caller->path);
        file_name(file, caller);
        if (readers_fd >= 0) ac_os_unlink(readers_fd, file);
        ac_os_close(readers_fd);
        listener_release(caller->listener);
        unwatch(caller->watch);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- expecting a queue ---- */

/* Opens the longest part of the path that exists. *step = what is missing next in there. */
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

/* Watches that, and makes sure that it was still the longest part when the watch was in place. */
static int watch_nearest(ac_caller_t *caller, const char *path) {
    char step[AC_STEP_MAX];
    int fd = open_nearest(path, caller->step);
    while (fd >= 0) {
        uint32_t mask = IN_CREATE | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_MASK_ADD;
        int watch = ac_os_inotify_add(inotify.fd, fd, mask);
        ac_os_close(fd);
        if (watch < 0) return watch;
        int old = caller->watch;
        caller->watch = watch;
        if (old != watch) unwatch(old);
        fd = open_nearest(path, step);
        if (strcmp(step, caller->step) == 0) {
            ac_os_close(fd);
            return fd < 0 ? fd : 0;
        }
        memcpy(caller->step, step, sizeof step);
    }
    return fd;
}

int ac_doorman_expect(ac_caller_t *caller, const char *path) {
    pthread_mutex_lock(&lock);
    int rc = start_locked();
    if (rc == 0 && !caller->expects) {
        caller->watch = -1;
        caller->expects = 1;
        caller->next = expecting;
        expecting = caller;
    }
    if (rc == 0) rc = watch_nearest(caller, path);
    pthread_mutex_unlock(&lock);
    return rc;
}

void ac_doorman_stop_expecting(ac_caller_t *caller) {
    pthread_mutex_lock(&lock);
    if (caller->expects && list_remove(&expecting, caller)) unwatch(caller->watch);
    caller->expects = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- attending ---- */

int ac_doorman_attend(ac_callers_t *callers, const ac_directory_t *dir, ac_error_t *err) {
    int dir_fd = ac_directory_open(dir, err);
    if (dir_fd < 0) return dir_fd;
    ac_directory_t readers;
    int readers_fd = ac_directory_readers(dir, dir_fd, 1, &readers, err);
    ac_os_close(dir_fd);
    if (readers_fd < 0) return readers_fd;
    snprintf(callers->path, sizeof callers->path, "%s", dir->path);
    callers->device = dir->device;
    callers->inode = dir->inode;
    pthread_mutex_init(&callers->mutex, NULL);
    pthread_mutex_lock(&lock);
    int rc = start_locked();
    if (rc == 0)
        rc = callers->watch =
            ac_os_inotify_add(inotify.fd, readers_fd, IN_CREATE | IN_MOVED_TO | IN_MASK_ADD);
    if (rc >= 0) {
        callers->next = attending;
        attending = callers;
        /* The watch is there: whoever is missed by this scan is reported by it. */
        call_everybody(callers);
        if (exhausted) ac_os_eventfd_signal(bell.fd);
        rc = 0;
    }
    pthread_mutex_unlock(&lock);
    ac_os_close(readers_fd);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, "readers", "cannot watch for readers")
                  : AC_OK;
}

void ac_doorman_leave(ac_callers_t *callers) {
    pthread_mutex_lock(&lock);
    int known = 0;
    for (ac_callers_t **link = &attending; *link; link = &(*link)->next) {
        if (*link != callers) continue;
        *link = callers->next;
        known = 1;
        break;
    }
    if (known) {
        ac_connection_t *next;
        unwatch(callers->watch);
        for (ac_connection_t *connection = connections; connection; connection = next) {
            next = connection->next;
            if (connection->callers == callers) connection_close(connection);
        }
    }
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(&callers->mutex); /* an appender may be about to wake somebody */
    free(callers->sleepers);
    callers->sleepers = NULL;
    callers->count = callers->room = 0;
    pthread_mutex_unlock(&callers->mutex);
}
