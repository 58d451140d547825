/* Shared by the groups of all queues of a topic in one member: the turns (csrc/group_turns.c) and a lock. */
#ifndef AC_PYTHON_TURNS_H
#define AC_PYTHON_TURNS_H

#include "group_turns.h"

#include "hot.h"

/* Held while the engine may call the user's key function, which lets other threads run. */
typedef struct {
    PyThread_type_lock lock; /* NULL = no key function */
    unsigned long thread;
} keying_t;

typedef struct {
    PyObject_HEAD
    ac_turns_t *turns;
    keying_t keying;
} TurnsObject;

#endif
