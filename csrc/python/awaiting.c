/* Reading in an event loop.
 *
 * One awaitable type drives `async for` and `await reader.next()`. While messages are available it completes at once,
 * without suspending anything. When there are none, the reader parks (the engine raises its bit and looks again) and the
 * task sleeps on a Waiter, a future-like object of our own: when the eventfd is readable, the loop calls _on_signal, which
 * resumes the waiting task directly, not through another turn of the loop.
 *
 * The position moves in exactly one place, reader_take, in the same synchronous step that hands the message over. A task
 * that is cancelled while it sleeps has taken nothing; its Waiter leaves the list.
 *
 * Several tasks may wait on one reader: they are served in order, and each message goes to one of them. */
#include "hot.h"

#include "atomics.h"
#include "os.h"
#include "reader.h"
#include "waiter.h"

#include <unistd.h>

enum { TURN_NS = 200000, TURN_CHECK_MASK = 31 };

typedef struct {
    PyObject_HEAD
    Pollable *source;
    int kind;
    uint32_t awaited; /* so it may be iterated over, by a delegating `yield from` */
} AwaitableObject;

static PyObject *get_running_loop, *running_loop_or_none;

int awaiting_init(void) {
    PyObject *events = PyImport_ImportModule("asyncio.events");
    if (events) {
        get_running_loop = PyObject_GetAttrString(events, "get_running_loop");
        running_loop_or_none = PyObject_GetAttrString(events, "_get_running_loop");
    }
    Py_XDECREF(events);
    return get_running_loop && running_loop_or_none ? waiter_init() : -1;
}

int pollable_traverse(Pollable *self, visitproc visit, void *arg) {
    Py_VISIT(self->loop);
    Py_VISIT(self->poll_timer);
    for (WaiterObject *waiter = self->first; waiter; waiter = waiter->next)
        Py_VISIT(waiter);
    return 0;
}

void pollable_clear(Pollable *self) {
    Py_CLEAR(self->loop);
    Py_CLEAR(self->poll_timer);
    while (self->first) {
        WaiterObject *waiter = self->first;
        waiter_delist(waiter);
        Py_DECREF(waiter);
    }
}

/* ---- the reader in its loop ---- */

static int truth_of(PyObject *object) {
    int truth = object ? PyObject_IsTrue(object) : -1;
    Py_XDECREF(object);
    return truth;
}

static int stop_poll_timer(Pollable *self) {
    PyObject *timer = self->poll_timer;
    self->poll_timer = NULL;
    if (!timer) return 0;
    PyObject *done = PyObject_CallMethod(timer, "cancel", NULL);
    Py_DECREF(timer);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* While Python code runs, another thread may close us, and wakes the sleepers: the timer then expires
 * without effect, or there is no loop left to start one. */
static int start_poll_timer(Pollable *self) {
    if (self->poll_timer) return 0;
    PyObject *callback = PyObject_GetAttrString((PyObject *)self, "_poll_timer");
    if (!callback) return -1;
    PyObject *loop = Py_XNewRef(self->loop);
    if (!loop) {
        Py_DECREF(callback);
        return 0;
    }
    self->poll_ns = ac_poll_interval_ns(self->poll_ns, self->poll_limit_ns);
    PyObject *timer =
        PyObject_CallMethod(loop, "call_later", "dO", (double)self->poll_ns / 1e9, callback);
    int started = timer != NULL;
    if (self->loop == loop)
        Py_XSETREF(self->poll_timer, timer);
    else
        Py_XDECREF(timer);
    Py_DECREF(loop);
    Py_DECREF(callback);
    return started ? 0 : -1;
}

/* Makes this loop watch our eventfd; a closed loop is forgotten together with its tasks. */
static int enter_loop(Pollable *self, PyObject *loop) {
    ac_error_t err;
    if (self->loop == loop) return 0;
    if (self->loop) {
        int closed = truth_of(PyObject_CallMethod(self->loop, "is_closed", NULL));
        if (closed < 0) return -1;
        if (!closed && self->first) {
            PyErr_SetString(PyExc_RuntimeError, "the reader is waiting in another event loop");
            return -1;
        }
        if (pollable_leave_loop(self) < 0) return -1;
    }
    int fd = self->ops->eventfd(self, &err);
    if (fd < 0) {
        raise_engine_error(&err);
        return -1;
    }
    /* Before the loop knows it: a thread that closes us meanwhile then makes the loop forget the eventfd,
     * and keeps it open until that is done. */
    self->loop = Py_NewRef(loop);
    self->eventfd = fd;
    self->pid = (int)getpid();
    PyObject *on_signal = PyObject_GetAttrString((PyObject *)self, "_on_signal");
    PyObject *added =
        on_signal ? PyObject_CallMethod(loop, "add_reader", "iO", fd, on_signal) : NULL;
    if (!added && self->loop == loop) Py_CLEAR(self->loop);
    Py_XDECREF(on_signal);
    Py_XDECREF(added);
    return added ? 0 : -1;
}

/* An event loop may be changed from its own thread only: another thread asks it to forget the eventfd, and
 * keeps the eventfd open until then, so that its number is not reused before. */
static void release_eventfd(PyObject *capsule) {
    ac_eventfd_release(PyCapsule_GetPointer(capsule, NULL));
}

static PyObject *forget_eventfd(PyObject *capsule, PyObject *loop) {
    const ac_eventfd_t *eventfd = PyCapsule_GetPointer(capsule, NULL);
    return PyObject_CallMethod(loop, "remove_reader", "i", eventfd->fd);
}

static int ask_to_forget(Pollable *self, PyObject *loop) {
    static PyMethodDef method = {"forget_eventfd", forget_eventfd, METH_O, NULL};
    ac_eventfd_t *eventfd = self->ops->eventfd_object(self);
    PyObject *capsule = PyCapsule_New(eventfd, NULL, release_eventfd);
    if (!capsule) return -1;
    ac_eventfd_retain(eventfd);
    PyObject *forget = PyCFunction_New(&method, capsule);
    Py_DECREF(capsule);
    PyObject *asked =
        forget ? PyObject_CallMethod(loop, "call_soon_threadsafe", "OO", forget, loop) : NULL;
    Py_XDECREF(forget);
    Py_XDECREF(asked);
    return asked ? 0 : -1;
}

/* Makes the loop stop watching our eventfd, and stops the poll timer. */
static int stop_watching(Pollable *self, PyObject *loop) {
    PyObject *mine = PyObject_CallNoArgs(running_loop_or_none);
    Py_XDECREF(mine); /* only compared */
    int running = mine ? truth_of(PyObject_CallMethod(loop, "is_running", NULL)) : -1;
    if (running < 0) return -1;
    if (running && mine != loop) return ask_to_forget(self, loop); /* a timer runs out by itself */
    int rc = stop_poll_timer(self);
    PyObject *removed = PyObject_CallMethod(loop, "remove_reader", "i", self->eventfd);
    Py_XDECREF(removed);
    return removed ? rc : -1;
}

/* Another thread may have closed the loop since we checked: then there is nothing left to notify. */
static int forgive_closed(PyObject *loop) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (truth_of(PyObject_CallMethod(loop, "is_closed", NULL)) <= 0) {
        PyErr_Restore(type, value, traceback);
        return -1;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return 0;
}

static int leave_once(Pollable *self) {
    PyObject *loop = self->loop;
    int rc = 0;
    self->loop = NULL;
    int closed = truth_of(PyObject_CallMethod(loop, "is_closed", NULL));
    /* In a forked child the loop's epoll is still the parent's. */
    int reachable = closed == 0 && self->pid == (int)getpid();
    if (reachable) rc = stop_watching(self, loop);
    Py_CLEAR(self->poll_timer);
    while (self->first) {
        WaiterObject *waiter = self->first;
        waiter_delist(waiter);
        waiter->state = WOKEN;
        if (reachable && waiter_call_on_loop(waiter, "call_soon_threadsafe") < 0) rc = -1;
        Py_DECREF(waiter);
    }
    if (rc < 0) rc = forgive_closed(loop);
    Py_DECREF(loop);
    return closed < 0 ? -1 : rc;
}

/* Whenever Python code runs in there, a task of the loop may find that we are not watched, and come back. */
int pollable_leave_loop(Pollable *self) {
    int rc = 0;
    while (self->loop && rc == 0)
        rc = leave_once(self);
    return rc;
}

/* Parks for the tasks that still sleep. */
static int park(Pollable *self) {
    ac_error_t err;
    int rc = self->ops->park(self, &err);
    if (rc < 0) return AC_READY; /* the next call meets the error itself */
    if (rc == AC_POLL && start_poll_timer(self) < 0) return -1;
    return rc;
}

/* The first sleeping task, woken, if there is something to read; a reference for the caller. */
static WaiterObject *take_first(Pollable *self) {
    ac_error_t err;
    WaiterObject *waiter = self->first;
    if (!waiter || self->ops->ready(self, &err) == 0) return NULL;
    waiter_delist(waiter);
    self->poll_ns = 0;
    self->turn_messages = 0;
    return waiter;
}

/* Sleeping tasks were passed over. */
static int see_to_the_rest(Pollable *self, int failed) {
    if (failed) { /* a task ended the loop's turn, for example by KeyboardInterrupt: continue in the
                     next */
        ac_os_eventfd_signal(self->eventfd);
        return -1;
    }
    int parked = park(self);
    if (parked == AC_READY) ac_os_eventfd_signal(self->eventfd);
    return parked < 0 ? -1 : 0;
}

/* Resumes sleeping tasks while there is something to read; each at most once, so that the loop gets its
 * turn. The tasks run without the critical section. */
static int dispatch(Pollable *self) {
    WaiterObject *stop, *waiter;
    int more, rc = 0;
    POLLABLE_SECTION_BEGIN(self);
    stop = (WaiterObject *)Py_XNewRef(self->last);
    POLLABLE_SECTION_END();
    more = stop != NULL;
    while (more && rc == 0) {
        POLLABLE_SECTION_BEGIN(self);
        waiter = take_first(self);
        POLLABLE_SECTION_END();
        if (!waiter) break;
        more = waiter != stop;
        rc = waiter_resume(waiter);
        Py_DECREF(waiter);
    }
    Py_XDECREF(stop);
    /* A task that went to sleep in between has parked; those that were passed over have not. If there is no
     * loop, another thread is closing us, and wakes them. */
    POLLABLE_SECTION_BEGIN(self);
    if (self->first && self->loop && (rc < 0 || more)) rc = see_to_the_rest(self, rc < 0);
    POLLABLE_SECTION_END();
    return rc;
}

static PyObject *on_signal(Pollable *self, PyObject *unused) {
    (void)unused;
    POLLABLE_SECTION_BEGIN(self);
    if (self->loop) ac_os_eventfd_wait(self->eventfd, 0);
    POLLABLE_SECTION_END();
    if (dispatch(self) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *poll_timer(Pollable *self, PyObject *unused) {
    (void)unused;
    int watched;
    POLLABLE_SECTION_BEGIN(self);
    Py_CLEAR(self->poll_timer);
    watched = self->loop != NULL;
    POLLABLE_SECTION_END();
    if (watched && dispatch(self) < 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- the awaitable ---- */

PyObject *awaitable_new(Pollable *source, int kind) {
    AwaitableObject *self = PyObject_GC_New(AwaitableObject, &Awaitable_Type);
    if (!self) return NULL;
    self->source = (Pollable *)Py_NewRef(source);
    self->kind = kind;
    self->awaited = 0;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int awaitable_traverse(AwaitableObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->source);
    return 0;
}

static int awaitable_clear(AwaitableObject *self) {
    Py_CLEAR(self->source);
    return 0;
}

static void awaitable_dealloc(AwaitableObject *self) {
    PyObject_GC_UnTrack(self);
    awaitable_clear(self);
    PyObject_GC_Del(self);
}

static PyObject *awaitable_self(PyObject *self) {
    return Py_NewRef(self);
}

static PyObject *awaitable_await(AwaitableObject *self) {
    ac_store_relaxed_u32(&self->awaited, 1);
    return Py_NewRef(self);
}

/* `for message in reader.next()` would take a message and discard it. */
static PyObject *awaitable_iter(AwaitableObject *self) {
    if (ac_load_relaxed_u32(&self->awaited)) return Py_NewRef(self);
    PyErr_SetString(PyExc_TypeError, "this must be awaited, not iterated over: use `await`, or "
                                     "`for message in reader`");
    return NULL;
}

/* After `burst` messages, or some time, the loop gets a turn although there is more to read. The clock is
 * read after 1, 2, 4, 8, 16 and every 32 messages, so that it is cheap for fast consumers and exact for
 * slow ones. */
static int turn_is_over(Pollable *source) {
    uint32_t count = source->turn_messages;
    if (AC_UNLIKELY(count == 0)) {
        source->turn_started_ns = ac_os_monotonic_ns();
        return 0;
    }
    if (AC_LIKELY(count < source->burst) &&
        (((count & (count - 1)) && (count & TURN_CHECK_MASK)) ||
         ac_os_monotonic_ns() - source->turn_started_ns < TURN_NS))
        return 0;
    source->turn_messages = 0;
    return 1;
}

/* Whether to come back in the next turn of the loop instead of parking. */
static int keep_spinning(Pollable *source) {
    if (source->spin_ns == 0) return 0;
    if (source->spin_ns == UINT64_MAX) return 1;
    uint64_t now = ac_os_monotonic_ns();
    if (source->idle_since_ns == 0) source->idle_since_ns = now;
    if (now - source->idle_since_ns < source->spin_ns) return 1;
    source->idle_since_ns = 0;
    return 0;
}

/* Nothing to read: returns what the task sleeps on. Py_None = just a turn of the loop; NULL without an
 * exception = there is something after all. */
static PyObject *go_to_sleep(Pollable *source) {
    source->turn_messages = 0;
    if (keep_spinning(source)) return Py_NewRef(Py_None);
    PyObject *loop = PyObject_CallNoArgs(get_running_loop);
    if (!loop) return NULL;
    WaiterObject *waiter = NULL;
    int parked = enter_loop(source, loop);
    if (parked == 0)
        parked = source->loop == loop ? park(source) : AC_READY; /* or taken out again */
    if (parked == AC_PARKED || parked == AC_POLL) waiter = waiter_new(source, loop);
    /* A timer of the loop and a garbage collection run Python code, in which another thread may have closed
     * us: a task that enlisted after that would never be woken. */
    if (waiter && source->loop == loop)
        waiter_enlist(source, waiter);
    else
        Py_CLEAR(waiter);
    Py_DECREF(loop);
    return (PyObject *)waiter;
}

static PySendResult end_of_reading(int kind, PyObject **result) {
    ac_error_t err;
    *result = NULL;
    if (kind == AWAIT_READY) {
        *result = Py_NewRef(Py_False);
        return PYGEN_RETURN;
    }
    if (kind == AWAIT_ITERATION) {
        PyErr_SetNone(PyExc_StopAsyncIteration);
    } else {
        memset(&err, 0, sizeof err);
        err.code = AC_E_CLOSED;
        memcpy(err.detail, "reader is closed", sizeof "reader is closed");
        raise_engine_error(&err);
    }
    return PYGEN_ERROR;
}

static __attribute__((noinline)) PyObject *look(Pollable *source) {
    ac_error_t err;
    int ready = source->ops->ready(source, &err);
    if (ready < 0) return raise_engine_error(&err);
    return ready ? Py_NewRef(Py_True) : NULL;
}

/* What is available now for this kind of awaitable: a result, or NULL as from reader_take. */
static PyObject *try_complete(Pollable *source, int kind) {
    PyObject *result = AC_LIKELY(kind != AWAIT_READY) ? source->ops->take(source) : look(source);
    if (AC_LIKELY(result != NULL)) {
        source->turn_messages++;
        source->idle_since_ns = 0;
    }
    return result;
}

/* There is nothing, or an exception. */
static __attribute__((noinline)) PySendResult sleep_or_end(const AwaitableObject *self,
                                                           PyObject **result) {
    Pollable *source = self->source;
    do {
        if (source->ops->closed(source)) {
            PyErr_Clear();
            return end_of_reading(self->kind, result);
        }
        if (PyErr_Occurred()) return PYGEN_ERROR;
        *result = go_to_sleep(source);
        if (*result) return PYGEN_NEXT;
        if (PyErr_Occurred()) return PYGEN_ERROR;
        *result = try_complete(source, self->kind);
    } while (!*result);
    return PYGEN_RETURN;
}

static PySendResult complete_or_sleep(const AwaitableObject *self, PyObject **result) {
    Pollable *source = self->source;
    if (AC_UNLIKELY(turn_is_over(source))) {
        *result = Py_NewRef(Py_None);
        return PYGEN_NEXT;
    }
    *result = try_complete(source, self->kind);
    return AC_LIKELY(*result != NULL) ? PYGEN_RETURN : sleep_or_end(self, result);
}

static PySendResult awaitable_send(AwaitableObject *self, PyObject *value, PyObject **result) {
    (void)value;
    PySendResult rc;
    POLLABLE_SECTION_BEGIN(self->source);
    rc = complete_or_sleep(self, result);
    POLLABLE_SECTION_END();
    return rc;
}

static PyObject *awaitable_iternext(AwaitableObject *self) {
    PyObject *result;
    switch (awaitable_send(self, Py_None, &result)) {
    case PYGEN_NEXT:
        return result;
    case PYGEN_RETURN:
        PyErr_SetObject(PyExc_StopIteration, result);
        Py_DECREF(result);
        return NULL;
    default:
        return NULL;
    }
}

/* asyncio takes it for a coroutine because it has send, throw and close; so create_task accepts
 * reader.next(). An exception thrown into it is raised again: it has no unfinished work to undo. */
static PyObject *awaitable_send_method(AwaitableObject *self, PyObject *value) {
    (void)value;
    return awaitable_iternext(self);
}

static PyObject *awaitable_throw(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count < 1 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "throw takes one to three arguments");
    } else if (PyExceptionInstance_Check(args[0])) {
        PyErr_SetObject((PyObject *)Py_TYPE(args[0]), args[0]);
    } else if (PyExceptionClass_Check(args[0])) {
        if (count > 1 && args[1] != Py_None)
            PyErr_SetObject(args[0], args[1]);
        else
            PyErr_SetNone(args[0]);
    } else {
        PyErr_SetString(PyExc_TypeError, "throw takes an exception");
    }
    return NULL;
}

static PyObject *awaitable_close(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    Py_RETURN_NONE;
}

static PyMethodDef awaitable_methods[] = {
    {"send", (PyCFunction)awaitable_send_method, METH_O,
     "send($self, value, /)\n--\n\n"
     "Continue; for the caller that drives the coroutine."},
    {"throw", (PyCFunction)(void (*)(void))awaitable_throw, METH_FASTCALL,
     "throw($self, typ, val=None, tb=None, /)\n--\n\n"
     "Raise this exception; there is nothing to undo."},
    {"close", awaitable_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "End the wait. No message was taken."},
    {NULL, NULL, 0, NULL},
};

static PyAsyncMethods awaitable_async = {
    .am_await = (unaryfunc)awaitable_await,
    .am_aiter = awaitable_self,
    .am_anext = awaitable_self,
    .am_send = (sendfunc)awaitable_send,
};

PyTypeObject Awaitable_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Awaitable",
    .tp_basicsize = sizeof(AwaitableObject),
    .tp_dealloc = (destructor)awaitable_dealloc,
    .tp_traverse = (traverseproc)awaitable_traverse,
    .tp_clear = (inquiry)awaitable_clear,
    .tp_iter = (getiterfunc)awaitable_iter,
    .tp_iternext = (iternextfunc)awaitable_iternext,
    .tp_as_async = &awaitable_async,
    .tp_methods = awaitable_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "Completes with the next message of a reader.",
};

/* ---- methods that every pollable has ---- */

static PyObject *next_awaitable(Pollable *self, PyObject *unused) {
    (void)unused;
    return awaitable_new(self, AWAIT_NEXT);
}

static PyObject *ready_awaitable(Pollable *self, PyObject *unused) {
    (void)unused;
    return awaitable_new(self, AWAIT_READY);
}

static PyObject *commit_due(Pollable *self, PyObject *unused) {
    (void)unused;
    int rc;
    POLLABLE_SECTION_BEGIN(self);
    rc = self->ops->commit_due(self);
    POLLABLE_SECTION_END();
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

/* Makes the sleeping tasks look again, in the next turn of their loop. */
static PyObject *wake(Pollable *self, PyObject *unused) {
    (void)unused;
    POLLABLE_SECTION_BEGIN(self);
    if (self->first) ac_os_eventfd_signal(self->eventfd);
    POLLABLE_SECTION_END();
    Py_RETURN_NONE;
}

static PyMethodDef pollable_methods[] = {
    {"_next", (PyCFunction)next_awaitable, METH_NOARGS,
     "_next($self, /)\n--\n\n"
     "Return an awaitable of the next message."},
    {"_ready", (PyCFunction)ready_awaitable, METH_NOARGS,
     "_ready($self, /)\n--\n\n"
     "Return an awaitable: True when there is something to read, False when closed."},
    {"_on_signal", (PyCFunction)on_signal, METH_NOARGS,
     "_on_signal($self, /)\n--\n\n"
     "The event loop's callback."},
    {"_commit_due", (PyCFunction)commit_due, METH_NOARGS,
     "_commit_due($self, /)\n--\n\n"
     "Make the automatic commits that are due."},
    {"_wake", (PyCFunction)wake, METH_NOARGS,
     "_wake($self, /)\n--\n\n"
     "Look again: there may be something to read."},
    {"_poll_timer", (PyCFunction)poll_timer, METH_NOARGS,
     "_poll_timer($self, /)\n--\n\n"
     "The event loop's timer."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "__class_getitem__($type, type, /)\n--\n\n"
     "The type that messages decode to."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Pollable_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Pollable",
    .tp_basicsize = sizeof(Pollable),
    .tp_traverse = (traverseproc)pollable_traverse,
    .tp_methods = pollable_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "An object that an event loop can wait for.",
};
