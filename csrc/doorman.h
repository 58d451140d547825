/* Who may wake whom: how a reader's eventfd gets into the hands of the writer.
 *
 * A number cannot carry an fd into another process, so it travels over a unix socket. A reader's process
 * listens on one socket (per file system), linked as wake/NAME.efd into every queue it follows. The
 * writer's process watches wake/ and connects to what it finds there:
 *
 *   writer -> reader   hello: which queue, which reader
 *   reader -> writer   its eventfd
 *   writer -> reader   the bit of control.parked that is the reader's from now on
 *
 * and then both keep the connection: its end is how each learns at once that the other died. Parking,
 * raising the bit and signalling do not pass through here (park.c, writer.c); they go on while this
 * thread sleeps.
 *
 * wake/ is made by the writer, never by a reader: where a writer of another program is at home, nothing of
 * ours appears. It is not readers/, because others take that directory for a list of who needs the data.
 *
 * One thread per process, started with the first handle that needs it. It never waits for a peer, and no peer
 * keeps it from the others: each gets one packet's worth of its time per turn. The sockets are for their own user
 * only. A peer of another user is closed before anything is kept of it, whoever says nothing is closed after
 * some seconds, or sooner if there are many; and of a reader's writers only the newest is kept, unless it wants all. */
#ifndef AC_DOORMAN_H
#define AC_DOORMAN_H

#include "bell.h"
#include "directory.h"
#include "position.h"

#include <pthread.h>

#define AC_NO_BIT UINT32_MAX
#define AC_WAKE_DIRECTORY "wake"

/* How the names of readers without one begin; no reader can be given such a name. */
#define AC_ANONYMOUS_PREFIX '_'

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

/* A reader that wants to be woken. `bell` and `bit` are shared with the thread; all else is its own. */
typedef struct ac_caller {
    char name[AC_READER_NAME_MAX + 1];
    ac_directory_t dir;     /* of the queue */
    ac_bell_t *bell;        /* not owned */
    int watch;              /* of the lock file; or, while it expects its queue, of a directory … */
    char step[AC_STEP_MAX]; /* … in which this has to appear next */
    int expects;
    int many; /* it keeps a connection to each writer, of which a Java queue may have many */
    uint32_t
        bit; /* atomic: position in control.parked, or AC_NO_BIT while no writer is connected */
    uint32_t watching; /* atomic: it will be noticed when somebody takes the writer lock */
    uint32_t suspect;  /* atomic: somebody took the writer lock and has not connected (yet) */
    struct ac_listener *listener;
    struct ac_connection *connection;
    struct ac_caller *next;
} ac_caller_t;

/* A writer's side: the readers that are connected now. */
typedef struct ac_sleeper {
    int bell;
    uint32_t bit;
} ac_sleeper_t;

typedef struct ac_callers {
    ac_directory_t dir;
    int watch;
    pthread_mutex_t mutex; /* guards what follows; held for moments only */
    ac_sleeper_t *sleepers;
    uint32_t count, room;
    struct ac_callers *next;
} ac_callers_t;

/* Announces the reader in its queue, in which a writer must have made wake/. The caller's name, bell and
 * directory fields are set. */
int ac_doorman_announce(ac_caller_t *caller, const ac_directory_t *dir, ac_error_t *err);
/* Tries to get the watch that was not to be had, or was lost: see `watching`. */
void ac_doorman_watch(ac_caller_t *caller);
void ac_doorman_retract(ac_caller_t *caller);

/* Rings the bell when the way to a queue that is not there yet gets longer, or its control block appears.
 * To be called again after each ring, and followed by a look: what appeared before the call does not ring.
 * Negative: the way cannot be watched. */
int ac_doorman_expect(ac_caller_t *caller, const char *path);
void ac_doorman_stop_expecting(ac_caller_t *caller);

/* Connects to the readers of a queue, those that are there and those to come. */
int ac_doorman_attend(ac_callers_t *callers, const ac_directory_t *dir, ac_error_t *err);
void ac_doorman_leave(ac_callers_t *callers);

/* callers.c: a reader that was connected, by its eventfd; *bit is the one it has to raise. Negative: no more
 * readers are taken. */
int ac_callers_add(ac_callers_t *callers, int bell, uint32_t *bit);
void ac_callers_forget(ac_callers_t *callers, int bell);
/* Signals every connected reader whose bit is set. Returns how many. */
uint32_t ac_callers_wake(ac_callers_t *callers, uint64_t bits);

#endif
