/* Groups: members that share the messages of one queue. The head of group.c describes what they share, and
 * how. */
#ifndef AC_GROUP_H
#define AC_GROUP_H

#include "aiochronicle.h"
#include "atomics.h"
#include "housekeeper.h"
#include "position.h"
#include "reader.h"
#include "segment_map.h"

#include <pthread.h>
#include <stddef.h>

#define AC_GROUP_MAGIC 0x50524741u /* "AGRP" */
#define AC_GROUP_VERSION 1u
/* A member is a byte of the file that is locked, far beyond its end. */
#define AC_GROUP_LOCKS (1ull << 40)

enum {
    AC_GROUP_HEADER_SIZE = 256,
    AC_GROUP_SLOTS_AT = AC_GROUP_HEADER_SIZE + AC_GROUP_MEMBERS * 64,
    AC_GROUP_FILE_NAME_MAX = AC_READER_NAME_MAX + 8,
    AC_GROUP_SLOTS_MIN = 64
};

/* The word of a slot. */
enum ac_slot_state { AC_SLOT_FREE = 0, AC_SLOT_CLAIMED = 1, AC_SLOT_DONE = 2 };

#define AC_TICK_BITS 30
#define AC_TICK_MASK ((1u << AC_TICK_BITS) - 1)
#define AC_ATTEMPT_MAX 255u

typedef struct ac_word {
    enum ac_slot_state state; /* 3 is read as FREE: we never write it */
    uint32_t owner;           /* 0 to 255 */
    uint32_t attempt;         /* how often it was claimed; stays at AC_ATTEMPT_MAX */
    uint32_t tick;            /* CLAIMED: until when. FREE: not before. */
    uint32_t lap;             /* of its seq, 16 bits */
} ac_word_t;

static inline uint64_t ac_word_pack(ac_word_t word) {
    return (uint64_t)word.state | (uint64_t)(word.owner & 255u) << 2 |
           (uint64_t)(word.attempt & 255u) << 10 | (uint64_t)(word.tick & AC_TICK_MASK) << 18 |
           (uint64_t)(word.lap & 0xffffu) << 48;
}

static inline ac_word_t ac_word_unpack(uint64_t bits) {
    uint32_t state = bits & 3u;
    return (ac_word_t){.state = state == 3 ? AC_SLOT_FREE : (enum ac_slot_state)state,
                       .owner = (uint32_t)(bits >> 2) & 255u,
                       .attempt = (uint32_t)(bits >> 10) & 255u,
                       .tick = (uint32_t)(bits >> 18) & AC_TICK_MASK,
                       .lap = (uint32_t)(bits >> 48)};
}

/* Whether a moment has come. No lease and no delay is longer than a day, so what seems to be farther ahead
 * is long past: ticks wrap around every twelve days. */
static inline int ac_tick_is_past(uint32_t tick, uint32_t now) {
    uint32_t ahead = (tick - now) & AC_TICK_MASK;
    return ahead == 0 || ahead > AC_GROUP_DELAY_MAX_MS + 1000u;
}

/* One per member; written by it alone, read by any process. */
typedef struct ac_group_entry {
    uint64_t since_ns; /* wall clock */
    uint32_t pid;
    uint32_t zero;
    uint64_t claimed;
    uint64_t acked;
    uint64_t nacked;
    uint64_t redelivered; /* of `claimed`, those that had been claimed before */
    uint64_t refused;     /* acknowledged too late */
    uint64_t woken;
} ac_group_entry_t;

_Static_assert(sizeof(ac_group_entry_t) == 64, "group member");

typedef struct ac_group_header {
    /* 0: written once, before anybody else has the group open */
    uint32_t magic;
    uint32_t version;
    uint32_t slots; /* a power of two, more than `limit` */
    uint32_t limit; /* how far from the low-water mark a message may be claimed */
    uint32_t lease_ms;
    uint32_t max_deliver; /* 0 = forever */
    uint32_t by_key;
    uint32_t zero;
    uint64_t dead_letter; /* fingerprint of the path, 0 = there is none */
    uint64_t boot;        /* in which boot … */
    uint64_t clock;       /* … and by whose clock the ticks count: see ac_os_clock_namespace */
    uint64_t inode;       /* of this file: a copy of it is not trusted */
    uint64_t queue_id;
    uint32_t checksum; /* CRC-32 of all before it */
    uint8_t spare0[52];
    /* 128: changes all the time */
    uint64_t low;     /* every message before it is done */
    uint64_t storing; /* who is storing the position: owner + 1, and since which tick; 0 = nobody */
    uint8_t spare1[112];
} ac_group_header_t;

_Static_assert(sizeof(ac_group_header_t) == AC_GROUP_HEADER_SIZE, "group header");
_Static_assert(offsetof(ac_group_header_t, checksum) == 72, "group header");
_Static_assert(offsetof(ac_group_header_t, low) == 128, "group header");

/* A message that this member has passed, and where it is. Private to the member. */
typedef struct ac_passed {
    uint64_t seq;
    uint64_t offset, end;
    uint64_t after; /* by key: claimable when the message before this seq is done; 0 = at once */
    uint64_t then;  /* … and the message that waits for this one; 0 = none was passed yet */
    uint32_t segment;
    uint32_t epoch; /* of the record, for the position after it */
} ac_passed_t;

/* By key, within a queue: the seq of the previous message with the same key, plus one; 0 = there is none in the
 * window. Over all queues of a topic: the number of the key. Negative: failed. */
typedef int (*ac_group_key_t)(void *context, const ac_message_t *message, uint64_t *after);

struct ac_group {
    /* Hot. */
    ac_reader_t *walker; /* its position is after the last passed message; not ours to close */
    ac_reader_t *again;  /* for messages already passed; likewise */
    ac_group_header_t *header;
    uint64_t *slots;
    ac_passed_t *passed; /* by seq, like the slots */
    uint64_t mask;
    uint64_t next; /* the seq of the next message to pass */
    uint64_t low;  /* the low-water mark when it was checked last */
    uint64_t
        back; /* seq before one that came back in the last scan, with possibly more after it; 0 = it
                 was the last */
    uint32_t shift;
    uint32_t limit, lease_ms;
    uint32_t owner;
    uint32_t scanned_tick; /* when the slots were last scanned for messages that came back */
    uint32_t stored_tick;
    uint32_t checked_tick; /* when the members' liveness was last checked */
    enum ac_check check;
    int by_key;
    ac_turns_t *turns;    /* by key, over all queues of a topic; NULL = within this queue */
    struct ac_turn *turn; /* … by seq, as the slots */
    uint64_t stored_seq;  /* the position that we stored last is after this one; 0 = none */
    uint64_t in_flight;   /* claimed by this handle and not settled, as far as it knows */
    ac_group_entry_t *entry;

    /* Cold. */
    uint32_t max_deliver;
    uint32_t turn_index;
    ac_group_t *next_joined;
    uint32_t state; /* an enum ac_state */
    int others;     /* the last scan of the slots found claims of others … */
    int delayed;    /* … or messages whose delay is not over */
    int parked;     /* it has got nothing since it was parked */
    int full;       /* the next one cannot be claimed before the mark moves */
    ac_group_key_t key;
    void *key_context;
    ac_map_t *map;
    ac_map_t *position; /* NAME.meta; this mapping holds our share of its lock */
    pthread_mutex_t mutex;
    int members_fd; /* to ask which members live; holds no lock */
    ac_task_t task;
    char name[AC_READER_NAME_MAX + 1];
};

static inline uint64_t *ac_group_slot(const ac_group_t *group, uint64_t seq) {
    return &group->slots[seq & group->mask];
}

static inline uint32_t ac_group_lap(const ac_group_t *group, uint64_t seq) {
    return (uint32_t)(seq >> group->shift) & 0xffffu;
}

uint32_t ac_group_tick(void);

/* group_slots.c. The protocol; `in_loop` as for ac_reader_next_in_loop.
 *
 * 1 = *out is claimed for this member, with the word to settle it by; *from is the reader that has it mapped.
 * 0 = nothing is available for this member now. */
int ac_group_next(ac_group_t *group, int in_loop, ac_message_t *out, uint64_t *word,
                  ac_reader_t **from, ac_error_t *err);
/* 1 = ac_group_next would probably return a message. */
int ac_group_ready(ac_group_t *group, int in_loop, ac_error_t *err);
/* Each is one compare-and-swap: 1 = done, 0 = the claim is no longer ours. */
int ac_group_ack(ac_group_t *group, uint64_t seq, uint64_t word);
int ac_group_nack(ac_group_t *group, uint64_t seq, uint64_t word, uint32_t delay_ms);
int ac_group_extend(ac_group_t *group, uint64_t seq, uint64_t *word, uint32_t lease_ms);
/* Takes back a claim whose message was not handed out. */
void ac_group_undo(ac_group_t *group, uint64_t seq, uint64_t word);
/* Moves the mark over everything that is done; returns it. */
uint64_t ac_group_advance(ac_group_t *group);
/* Passes the next message, claimed or not: 1; 0 = there is none; or an error. */
int ac_group_pass(ac_group_t *group, ac_message_t *out, ac_error_t *err);
/* Passes everything that there is room for: 0, or an error. */
int ac_group_pass_all(ac_group_t *group, int in_loop, ac_error_t *err);
int ac_group_is_done(const ac_group_t *group, uint64_t seq);
/* Frees the claims of a member that is gone. */
void ac_group_free_claims(uint64_t *slots, uint64_t count, uint32_t owner, uint32_t now);

/* group.c. Stores the mark as the position of the group, as far as this member knows its place. */
void ac_group_store(ac_group_t *group, uint32_t now);
/* Seeks the walker to the position of the group; *seq is the next message there. Other members move it on
 * all the time, and retention follows them: a missing segment means that the position has moved on. */
int ac_group_go_to_position(ac_group_t *group, uint64_t *seq, ac_error_t *err);
int ac_group_is_member_alive(const ac_group_t *group, uint32_t owner);
int ac_group_check_open(const ac_group_t *group, ac_error_t *err);
/* Whether a file's header, once read, may be used: its checksum is right, and its sizes fit together. */
int ac_group_is_sound(const ac_group_header_t *header, uint64_t file_bytes);
/* As ac_reader_park. */
int ac_group_park(ac_group_t *group, uint64_t *poll_max_ns, ac_error_t *err);

/* group_info.c. What a group has done, as its files say; `slots` is NULL if they do not, and is the caller's to free. */
typedef struct ac_group_done {
    uint64_t *slots;
    uint32_t count;
    uint64_t low;
    uint64_t queue_id;
} ac_group_done_t;

int ac_group_read_done(const char *path, const char *name, ac_group_done_t *out, ac_error_t *err);
int ac_group_was_done(const ac_group_done_t *read, uint64_t seq);

#endif
