/* Turns: by key over a topic with many writers, which message of each key comes next. See the head of group_turns.c. */
#ifndef AC_GROUP_TURNS_H
#define AC_GROUP_TURNS_H

#include "group.h"

#define AC_TURNS_MAGIC 0x4e525554u /* "TURN" */
#define AC_TURNS_VERSION 1u

enum {
    AC_TURNS_KEYS = 65536,
    AC_TURNS_HEADER_SIZE = 4096,
    AC_TURNS_HEADS_AT = AC_TURNS_HEADER_SIZE + AC_TURNS_QUEUES * 8,
    AC_TURNS_SIZE = AC_TURNS_HEADS_AT + AC_TURNS_KEYS * 8,
    AC_TURNS_SEQ_BITS = 48
};

typedef struct ac_turns_header {
    uint32_t magic;
    uint32_t version;
} ac_turns_header_t;

_Static_assert(sizeof(ac_turns_header_t) == 8, "turns header");
_Static_assert(AC_TURNS_QUEUES < 1 << (64 - AC_TURNS_SEQ_BITS),
               "an index, plus one, fits in a head");

/* A message that this member has passed, in the list of its key, which orders the messages of all queues by time.
 * Private to the member. */
typedef struct ac_turn {
    struct ac_turn *earlier, *later;
    ac_group_t *group;
    uint64_t seq;
    uint64_t time_ns;
    uint32_t key;
    int listed;
} ac_turn_t;

struct ac_turns {
    ac_map_t *map;
    uint64_t *queues;                    /* ids, by index; 0 = free */
    uint64_t *heads;                     /* by key, as in the file; 0 = none */
    ac_group_t *joined[AC_TURNS_QUEUES]; /* by index */
    ac_group_t *first;                   /* of a list, by `next_joined` */
    ac_turn_t *oldest[AC_TURNS_KEYS], *newest[AC_TURNS_KEYS];
    int waits_for_unknown; /* for a queue not joined, since ac_turns_unknown */
    int in_loop;
    int pid; /* of the process that opened it */
    char path[1300];
};

/* Notes a passed message with its key. */
void ac_turns_note(ac_group_t *group, uint64_t seq, uint64_t time_ns, uint32_t key);
/* Notes that the seq was passed without a message. */
void ac_turns_note_missing(ac_group_t *group, uint64_t seq);
/* Returns 1 if it is the turn of this message, 0 if not, or an error. */
int ac_turns_is_due(ac_group_t *group, uint64_t seq, ac_error_t *err);
/* Adds a queue, or removes it. */
int ac_turns_join(ac_turns_t *turns, ac_group_t *group, ac_error_t *err);
void ac_turns_leave(ac_group_t *group);

#endif
