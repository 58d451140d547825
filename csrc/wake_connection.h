/* Who may wake whom: how a reader's eventfd gets into the hands of the writer.
 *
 * A number cannot carry an fd into another process, so it travels over a unix socket. A reader's process
 * listens on one socket (per file system), linked as wake/NAME.efd into every queue it follows. The
 * writer's process watches wake/ and connects to what it finds there:
 *
 *   writer -> reader   hello: which queue, which reader
 *   reader -> writer   its eventfd
 *   writer -> reader   the bit of control.parked that is the reader's from now on; from AC_BIT_FIRST_MEMBER on one
 *                      of control.parked_members, which is no other's
 *
 * and then both keep the connection: its end is how each learns at once that the other died. Parking,
 * raising the bit and signalling do not pass through here (reader_park.c, writer_wake.c); they go on while this
 * thread sleeps. Only when an append has many readers to wake does it leave them to this thread.
 *
 * wake/ is made by the writer, never by a reader: where a writer of another program is at home, nothing of
 * ours appears. It is not readers/, because others take that directory for a list of who needs the data.
 *
 * One thread per process, started with the first handle that needs it. It never waits for a peer, and no peer
 * keeps it from the others: each gets one packet's worth of its time per turn. The sockets are for their own user
 * only. A peer of another user is closed before anything is kept of it, a silent peer after
 * some seconds, or sooner if there are many; and of a reader's writers only the newest is kept, unless it wants all. */
#ifndef AC_WAKE_CONNECTION_H
#define AC_WAKE_CONNECTION_H

#include "control.h"
#include "directory.h"
#include "position.h"
#include "wake_eventfd.h"

#include <pthread.h>

#define AC_NO_BIT UINT32_MAX
#define AC_BIT_FIRST_MEMBER 64u
#define AC_WAKE_DIRECTORY "wake"

/* Prefix of the names of anonymous readers; no reader can be given such a name. */
#define AC_ANONYMOUS_PREFIX '_'
/* A member of a group is _gTAG-..., TAG being 8 hex digits for the group: each message wakes one of the
 * members that sleep. */
#define AC_MEMBER_PREFIX "_g"

/* The first packet of a connection. */
enum { AC_HELLO_MAGIC = 0x4143574b, AC_HELLO_VERSION = 1 };

typedef struct ac_hello {
    uint32_t magic, version;
    uint64_t device, inode; /* of the queue's directory */
    char name[AC_READER_NAME_MAX + 8];
} ac_hello_t;

enum { AC_STEP_MAX = 256 };

struct ac_connection;
struct ac_listener;

/* A reader that wants to be woken. `eventfd` and `bit` are shared with the wake thread; the other fields
 * are the thread's own. */
typedef struct ac_wake_endpoint {
    char name[AC_READER_NAME_MAX + 1];
    ac_directory_t dir;     /* of the queue */
    ac_eventfd_t *eventfd;  /* not owned */
    int watch;              /* of the lock file; or, while the reader expects its queue, of a
                               directory … */
    char step[AC_STEP_MAX]; /* … in which this has to appear next */
    int expects;
    int many;     /* it keeps a connection to each writer; a Java queue may have many */
    uint32_t bit; /* atomic: assigned by the writer, or AC_NO_BIT while no writer is connected */
    uint32_t watching; /* atomic: the thread will notice when the writer lock is taken */
    uint32_t suspect;  /* atomic: a process took the writer lock and has not connected (yet) */
    struct ac_listener *listener;
    struct ac_connection *connection;
    struct ac_wake_endpoint *next;
} ac_wake_endpoint_t;

/* A writer's side: the readers that are connected now. */
typedef struct ac_wake_target {
    int eventfd;
    uint32_t bit;
    uint32_t group;       /* 0 = it is woken whenever it sleeps; otherwise no other reader has its
                             bit */
    uint32_t handed_over; /* an appender has left the signal to the wake thread */
} ac_wake_target_t;

typedef struct ac_wake_targets {
    ac_directory_t dir;
    int watch;
    pthread_mutex_t mutex; /* guards the fields below; held for moments only */
    ac_wake_target_t *sleepers;
    uint32_t count, room;
    uint32_t turn; /* where the search for the next member to wake starts */
    struct ac_wake_targets *next;
} ac_wake_targets_t;

/* Announces the reader in its queue, in which a writer must have created wake/. The caller sets the
 * endpoint's name, eventfd and directory fields. */
int ac_wake_announce(ac_wake_endpoint_t *endpoint, const ac_directory_t *dir, ac_error_t *err);
/* Tries again to get a watch that could not be had, or was lost: see `watching`. */
void ac_wake_watch_lock(ac_wake_endpoint_t *endpoint);
void ac_wake_retract(ac_wake_endpoint_t *endpoint);

/* Signals the eventfd when more of the path to a missing queue appears, or its control block does. Call it
 * again after each signal, and then look: what appeared before the call gives no signal. Negative: the path
 * cannot be watched. */
int ac_wake_expect_queue(ac_wake_endpoint_t *endpoint, const char *path);
void ac_wake_stop_expecting(ac_wake_endpoint_t *endpoint);

/* Connects to the readers of a queue, present and future ones. */
int ac_wake_targets_open(ac_wake_targets_t *targets, const ac_directory_t *dir, ac_error_t *err);
void ac_wake_targets_close(ac_wake_targets_t *targets);

/* wake_targets.c: adds a reader that was connected, by its eventfd and its name; *bit is the bit assigned
 * to it. Negative: no more readers are accepted. */
int ac_wake_targets_add(ac_wake_targets_t *targets, int eventfd, const char *name, uint32_t *bit);
/* Makes other members of its group look at once: it may have died with claimed messages. */
void ac_wake_targets_remove(ac_wake_targets_t *targets, int eventfd);
/* Signals every connected reader whose bit is set in the word taken from control.parked; but of each group
 * no more members than there are messages: the bits of its other members stay up. `control` is NULL for a
 * Java queue, which has no groups. If the readers are many, the wake thread signals all but the first.
 * Returns how many are signalled, once each. */
uint32_t ac_wake_targets_signal(ac_wake_targets_t *targets, ac_control_t *control, uint64_t bits,
                                uint32_t messages);
/* Sends the signals that were left to the wake thread. Only that thread may call it: it holds the lock
 * without which no eventfd of a connection is closed. */
void ac_wake_targets_signal_rest(ac_wake_targets_t *targets);

/* Makes the wake thread signal them. [any thread] */
int ac_wake_nudge(void);

#endif
