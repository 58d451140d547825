/* control.meta: the block of shared words through which a writer and its readers coordinate.
 *
 * Written by the one writer (except the waiting group, which readers write too); read by every process. Each
 * 128-byte group changes together and has its own cache lines, so a reader that watches one does not take
 * another from the writer. No word here is trusted: after a crash or a power cut any of them may be stale, and
 * the records decide. Fields marked * are ours and zero in other programs' queues. */
#ifndef AC_CONTROL_H
#define AC_CONTROL_H

#include "aiochronicle.h"
#include "atomics.h"
#include "directory.h"
#include "segment_map.h"

#include <stddef.h>

/* Kind of handle: writer, reader, member of a group. */
enum ac_state { AC_STATE_OPEN = 0, AC_STATE_CLOSED = 1, AC_STATE_FORKED = 2 };

#define AC_CONTROL_MAGIC 0x4348524Eu
#define AC_CONTROL_VERSION 3u
#define AC_CONTROL_READY 2u
#define AC_CONTROL_SIZE 512u

/* A watermark farther ahead of the clock than this is a mistake: the writer that set it keeps it, the next
 * one revokes it. */
#define AC_PROMISE_MAX_NS (3600ull * 1000000000u)

/* Left by a writer that closed properly; valid only together with its epoch. With it, the next writer
 * starts without walking the tail. */
typedef struct ac_clean {
    uint64_t epoch;
    uint32_t segment;
    uint32_t checksum; /* CRC-32 of the other fields */
    uint64_t offset;
    uint64_t next_seq;
    uint64_t last_timestamp_ns;
    uint64_t last_record;
} __attribute__((packed, aligned(4))) ac_clean_t;

/* An identity that the queue had before it was copied: the identity of the segments before `until_segment`. */
typedef struct ac_ancestor {
    uint64_t queue_id; /* 0 = none */
    uint64_t until_segment;
} ac_ancestor_t;

enum { AC_ANCESTORS = 6 };

/* A member raises its own bit and then AC_BIT_MEMBERS; the writer takes AC_BIT_MEMBERS and then the others. */
enum { AC_BIT_MEMBERS = 63, AC_MEMBER_BITS = 512 };

typedef struct ac_control {
    /* 0: cold */
    uint32_t magic;
    uint32_t version;
    uint32_t init_state;
    uint32_t zero0;
    uint64_t writer_epoch;
    uint64_t segment_size;
    uint64_t queue_id;         /* * identity, for causes */
    uint64_t writer_boot;      /* * who holds the lock: boot … */
    uint64_t writer_namespace; /* * … and pid namespace */
    ac_clean_t clean;          /* * how the last writer left the queue */
    uint64_t signalling_epoch; /* * the last writer that wakes sleepers by their eventfds */
    uint64_t removing;         /* * retention removed the segments before it, or is about to */
    uint64_t reader_ttl_ns;    /* * how old a heartbeat may get; 0 = no limit */
    /* 128: changes at a roll */
    uint32_t segment_gen;
    uint32_t current_segment;
    uint64_t home;           /* * which directory and file this is: see ac_control_home */
    uint64_t recovered_boot; /* * the boot in which a writer last found or repaired the end */
    ac_ancestor_t ancestors[AC_ANCESTORS]; /* * newest first */
    uint64_t counting_epoch; /* * the last writer that keeps next_seq and last_timestamp_ns */
    /* 256: changes at every append */
    uint64_t write_offset;
    uint64_t writer_heartbeat_ns;
    uint64_t watermark_ns;      /* * nothing older will be appended: see AC_PROMISE_MAX_NS */
    uint64_t next_seq;          /* * */
    uint64_t last_timestamp_ns; /* * */
    uint64_t last_record;       /* * offset of the newest record in current_segment */
    uint64_t removed_seq;       /* * retention removed everything before it, … */
    uint64_t removed_ns;        /* * … nothing of which is newer than this; */
    uint32_t removed_check;     /* * CRC-32 of the two; without it they are not trusted */
    uint8_t spare2[60];
    /* 384: waking */
    uint32_t notify_seq;
    uint32_t waiters_pending;
    uint64_t
        parked; /* * one bit per reader that sleeps on its eventfd; AC_BIT_MEMBERS: look at … */
    uint64_t parked_members[AC_MEMBER_BITS / 64]; /* * … these: one bit per member of a group */
    uint8_t spare3[48];
} ac_control_t;

_Static_assert(sizeof(ac_control_t) == AC_CONTROL_SIZE, "control block");
_Static_assert(offsetof(ac_control_t, writer_epoch) == 16, "control");
_Static_assert(offsetof(ac_control_t, clean.epoch) % 8 == 0, "control");
_Static_assert(offsetof(ac_control_t, segment_gen) == 128, "control");
_Static_assert(offsetof(ac_control_t, write_offset) == 256, "control");
_Static_assert(offsetof(ac_control_t, notify_seq) == 384, "control");

enum ac_control_access {
    AC_CONTROL_READ_ONLY,
    AC_CONTROL_WRITABLE,
    AC_CONTROL_WRITABLE_IF_PERMITTED
};

/* Maps the control block of an existing queue and checks it. Other programs create theirs in several steps:
 * `patient` waits for the last step; without it an incomplete one gives AC_E_NOT_FOUND with EAGAIN. */
int ac_control_open(const ac_directory_t *dir, int dir_fd, enum ac_control_access access,
                    int patient, ac_map_t **out, ac_error_t *err);
/* The same, and which file it is. */
int ac_control_open_file(const ac_directory_t *dir, int dir_fd, enum ac_control_access access,
                         int patient, ac_map_t **out, struct stat *info, ac_error_t *err);

/* Publishes a new control block. AC_OK also if another process was first. */
int ac_control_create(const ac_directory_t *dir, int dir_fd, uint64_t segment_size,
                      ac_error_t *err);

/* Publishes the control block of a directory that holds segments of the same queue up to `segment`, for
 * readers of that directory; it has no writer. AC_E_NOT_A_QUEUE if the directory belongs to another queue. */
int ac_control_copy(const ac_control_t *original, const ac_directory_t *dir, int dir_fd,
                    uint32_t segment, uint64_t next_seq, uint64_t last_timestamp_ns,
                    ac_error_t *err);

int ac_segment_size_valid(uint64_t size);

/* The seq of the next message according to the writer. 0 = it says nothing: it is another program, or has
 * only begun. A foreign writer that follows ours leaves the words as ours had them. */
uint64_t ac_control_next_seq(const ac_control_t *control);

/* Identifies the directory and this control.meta as one number, from inodes and times of birth. A queue
 * that is moved keeps it; a copy or a restored backup has another one. */
int ac_control_home(const ac_directory_t *dir, int dir_fd, uint64_t *home, ac_error_t *err);

/* 1 = the queue was copied to here, and no writer has opened it since. 0 also if that is unknown. */
int ac_control_is_copy(const ac_control_t *control, uint64_t home);

/* Gives a copy an identity of its own. Segments before `first_segment` keep their former identity, by which
 * other queues may have named their messages as causes. The oldest of several former identities is
 * forgotten. */
int ac_control_adopt(ac_control_t *control, uint64_t home, uint64_t first_segment);

/* The identity that the messages of a segment have. */
uint64_t ac_control_id_of(const ac_control_t *control, uint64_t segment);

/* The epoch of a writer that opens the queue now: later than its predecessor's, and later than that of any
 * writer of the original since a copy was made of it. */
uint64_t ac_control_next_epoch(const ac_control_t *control, int is_copy);

/* The control block of a reader that is closed, or still waits for its queue: all zeros, and never written
 * to, so that reading it is harmless at any time. */
extern ac_control_t ac_control_of_nobody;

static inline ac_control_t *ac_control_of(const ac_map_t *map) {
    return (ac_control_t *)(void *)map->base;
}

/* How far retention has removed the queue; zeros if this was not recorded, or the record is not sound. */
void ac_control_removed(const ac_control_t *control, uint64_t *seq, uint64_t *timestamp_ns);
void ac_control_note_removed(ac_control_t *control, uint64_t seq, uint64_t timestamp_ns);

/* Writer: moves to another segment. An odd generation marks a change in progress. */
void ac_control_set_position(ac_control_t *control, uint32_t segment, uint64_t offset);

/* 1 = a consistent pair; 0 = what a bounded number of tries found (a writer that died half-way leaves the
 * generation odd; the caller checks the values anyway). */
int ac_control_position(const ac_control_t *control, uint32_t *segment, uint64_t *offset);

#endif
