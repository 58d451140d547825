/* What a task sleeps on while a reader is parked: as much of a future as asyncio's tasks need, and a place
 * in the reader's list of sleepers. */
#ifndef AC_PYTHON_WAITER_H
#define AC_PYTHON_WAITER_H

#include "hot.h"

enum waiter_state { WAITING, WOKEN, CANCELLED };

typedef struct Waiter {
    PyObject_HEAD
    Pollable *owner;  /* in whose critical section it is used */
    Pollable *source; /* the same, or NULL after it left the list */
    struct Waiter *next, *previous;
    PyObject *loop;
    PyObject *callback, *context; /* of the task that sleeps on it */
    PyObject *cancel_message;
    enum waiter_state state;
    char blocking;
} WaiterObject;

int waiter_init(void);
WaiterObject *waiter_new(Pollable *owner, PyObject *loop);

/* The list of sleeping tasks, in order; it has a reference to each. */
void waiter_enlist(Pollable *source, WaiterObject *waiter);
void waiter_delist(WaiterObject *waiter); /* passes the list's reference to the caller */

/* loop.METHOD(callback, self, context=context), where METHOD is a way to call soon. */
int waiter_call_on_loop(WaiterObject *self, const char *method);
/* Resumes the task from within this call. Only from a callback of the loop, where no task is running. */
int waiter_resume(WaiterObject *self);

#endif
