#include "hot.h"

#include "error.h"
#include "fanin.h"
#include "os.h"

/* Holds the readers it merges; per-source data is indexed by the engine's slot number. */
typedef struct {
    PyObject *reader;
    SegmentObject *segment; /* of its newest message */
    uint32_t id;
} Member;

enum { COMMIT_NOBODY = -1, COMMIT_SEVERAL = INT32_MAX }; /* the latter: all that are due */

typedef struct {
    Pollable base;
    ac_fanin_t *fanin;
    Member *members; /* by slot */
    uint32_t room;
    int64_t commit_slot; /* the source to commit now; or one of COMMIT_* */
    PyObject *on_error;  /* takes a failed source's id and exception; NULL = raise it */
    PyObject *deferred;  /* a list of exceptions to raise before the next message; NULL = none */
    int closed;
} FanInObject;

static const pollable_ops_t fanin_ops;

/* The handle of an object that was never initialised: a closed fan-in, so that every call has an answer. */
static ac_fanin_t nobody;

static PyObject *fanin_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)args;
    (void)keywords;
    FanInObject *self = (FanInObject *)type->tp_alloc(type, 0);
    if (self) {
        self->fanin = &nobody;
        self->closed = 1;
        self->commit_slot = COMMIT_NOBODY;
        self->base.ops = &fanin_ops;
    }
#ifdef Py_GIL_DISABLED
    if (self && !(self->base.lock = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type)))
        Py_CLEAR(self);
#endif
    return (PyObject *)self;
}

static int fanin_init(FanInObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"strict",      "max_wait_ns", "burst", "spin_ns",
                            "poll_max_ns", "on_error",    NULL};
    int strict;
    unsigned burst;
    unsigned long long max_wait_ns, spin_ns, poll_max_ns;
    PyObject *on_error;
    ac_error_t err;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "pKIKKO", names, &strict, &max_wait_ns, &burst,
                                     &spin_ns, &poll_max_ns, &on_error))
        return -1;
    if (self->fanin != &nobody) {
        PyErr_SetString(PyExc_RuntimeError, "fan-in is initialised already");
        return -1;
    }
    if (ac_fanin_new(strict, max_wait_ns, &self->fanin, &err) != AC_OK) {
        raise_engine_error(&err);
        return -1;
    }
    self->closed = 0;
    self->on_error = on_error == Py_None ? NULL : Py_NewRef(on_error);
    self->base.burst = burst;
    self->base.spin_ns = spin_ns;
    self->base.poll_max_ns = self->fanin->poll_given_ns = poll_max_ns;
    return 0;
}

static int fanin_traverse(FanInObject *self, visitproc visit, void *arg) {
    for (uint32_t i = 0; i < self->room; i++)
        Py_VISIT(self->members[i].reader);
    Py_VISIT(self->on_error);
    Py_VISIT(self->deferred);
    return pollable_traverse(&self->base, visit, arg);
}

/* While a reader is attached, its users take the lock of its fan-in; NULL: it is not attached. */
static void set_lock(PyObject *reader, const FanInObject *owner) {
#ifdef Py_GIL_DISABLED
    PyObject *old = ((Pollable *)reader)->lock;
    PyObject *lock = owner ? Py_NewRef(owner->base.lock) : NULL;
    __atomic_store_n(&((Pollable *)reader)->lock, lock, __ATOMIC_RELAXED);
    Py_XDECREF(old);
#else
    (void)reader;
    (void)owner;
#endif
}

static void drop_member(FanInObject *self, uint32_t slot) {
    if (slot >= self->room || !self->members[slot].reader) return;
    PyObject *reader = Py_NewRef(self->members[slot].reader);
    FANIN_AND_READER_SECTION_BEGIN(self, reader);
    if (self->members[slot].reader == reader) { /* no other thread was quicker */
        ac_fanin_detach(self->fanin, slot);
        if (self->commit_slot == (int64_t)slot) self->commit_slot = COMMIT_NOBODY;
        set_lock(reader, NULL);
        Py_CLEAR(self->members[slot].segment);
        Py_CLEAR(self->members[slot].reader);
    }
    FANIN_AND_READER_SECTION_END();
    Py_DECREF(reader);
}

static int fanin_clear(FanInObject *self) {
    for (uint32_t i = 0; i < self->room; i++)
        drop_member(self, i);
    Py_CLEAR(self->on_error);
    Py_CLEAR(self->deferred);
    pollable_clear(&self->base);
    return 0;
}

static void fanin_dealloc(FanInObject *self) {
    PyObject_GC_UnTrack(self);
    if (pollable_leave_loop(&self->base) < 0) PyErr_WriteUnraisable(NULL);
    fanin_clear(self);
    if (self->fanin != &nobody) ac_fanin_free(self->fanin);
    PyMem_Free(self->members);
#ifdef Py_GIL_DISABLED
    Py_XDECREF(self->base.lock);
#endif
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static __attribute__((noinline)) int is_closed_error(void) {
    ac_error_t err = {.code = AC_E_CLOSED, .detail = "fan-in is closed"};
    raise_engine_error(&err);
    return -1;
}

static int refuse_closed(const FanInObject *self) {
    return AC_LIKELY(!self->closed) ? 0 : is_closed_error();
}

/* A source failed and was set aside. 0 = on_error was called: continue. */
static int source_failed(FanInObject *self, uint32_t slot, const ac_error_t *err) {
    raise_engine_error(err);
    if (!self->on_error) return -1;
    PyObject *error = take_exception();
    PyObject *done = PyObject_CallFunction(self->on_error, "IN", self->members[slot].id, error);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Raises it before the next message. Takes over the reference. */
static int defer(FanInObject *self, PyObject *error) {
    if (!self->deferred) self->deferred = PyList_New(0);
    int rc = self->deferred ? PyList_Append(self->deferred, error) : -1;
    if (self->deferred && PyList_GET_SIZE(self->deferred) == 0) Py_CLEAR(self->deferred);
    Py_DECREF(error);
    return rc;
}

static void raise_deferred(FanInObject *self) {
    PyObject *error = Py_NewRef(PyList_GET_ITEM(self->deferred, 0));
    if (PyList_GET_SIZE(self->deferred) == 1)
        Py_CLEAR(self->deferred);
    else if (PySequence_DelItem(self->deferred, 0) < 0)
        PyErr_Clear(); /* no memory: it is raised once more */
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
}

static int commit_one(FanInObject *self, uint32_t slot) {
    ac_error_t err;
    ReaderObject *reader = (ReaderObject *)self->members[slot].reader;
    if (!reader || !reader->commit_every || reader->uncommitted < reader->commit_every) return 0;
    reader->uncommitted = 0;
    if (ac_fanin_commit(self->fanin, slot, &err) == AC_OK) return 0;
    raise_engine_error(&err);
    return -1;
}

/* For readers that commit automatically: what was handed out before has been processed now. */
static __attribute__((noinline)) int commit_automatically(FanInObject *self) {
    int64_t due = self->commit_slot;
    self->commit_slot = COMMIT_NOBODY;
    if (due != COMMIT_SEVERAL) return commit_one(self, (uint32_t)due);
    for (uint32_t slot = 0; slot < self->room; slot++)
        if (commit_one(self, slot) < 0) return -1;
    return 0;
}

static int commit_when_due(FanInObject *self) {
    return AC_LIKELY(self->commit_slot == COMMIT_NOBODY) ? 0 : commit_automatically(self);
}

static void count_uncommitted(FanInObject *self, ReaderObject *reader, uint32_t slot) {
    if (!reader->commit_every || ++reader->uncommitted < reader->commit_every) return;
    int alone = self->commit_slot == COMMIT_NOBODY || self->commit_slot == (int64_t)slot;
    self->commit_slot = alone ? (int64_t)slot : COMMIT_SEVERAL;
}

/* In the segment that the last message of this source was in. */
static inline __attribute__((always_inline)) PyObject *
deliver(FanInObject *self, const ac_message_t *message, uint32_t slot) {
    const Member *member = &self->members[slot];
    PyObject *made = message_new(member->segment, message);
    if (AC_LIKELY(made != NULL))
        count_uncommitted(self, (ReaderObject *)member->reader, slot);
    else
        ac_fanin_give_back(self->fanin, NULL, message->flags & MESSAGE_LATE);
    return made;
}

static PyObject *deliver_anywhere(FanInObject *self, const ac_message_t *message, uint32_t slot) {
    Member *member = &self->members[slot];
    ac_map_t *map = self->fanin->sources[slot].map;
    if (AC_UNLIKELY(!member->segment || member->segment->map != map)) {
        SegmentObject *segment = segment_new(map, (ReaderObject *)member->reader);
        if (!segment) {
            ac_fanin_give_back(self->fanin, NULL, message->flags & MESSAGE_LATE);
            return NULL;
        }
        Py_XSETREF(member->segment, segment);
    }
    return deliver(self, message, slot);
}

static __attribute__((noinline)) PyObject *fetch_slowly(FanInObject *self) {
    ac_message_t *message;
    ac_error_t err;
    uint32_t slot;
    int late;
    if (AC_UNLIKELY(self->deferred != NULL)) {
        raise_deferred(self);
        return NULL;
    }
    do {
        if (refuse_closed(self) < 0) return NULL;
        int rc = ac_fanin_take(self->fanin, &message, &slot, &late, &err);
        if (rc == 0) return NULL;
        if (AC_LIKELY(rc == 1)) {
            if (AC_UNLIKELY(late)) message->flags |= MESSAGE_LATE;
            return deliver_anywhere(self, message, slot);
        }
    } while (source_failed(self, slot, &err) == 0);
    return NULL;
}

static PyObject *fetch(FanInObject *self) {
    const ac_source_t *source;
    uint32_t slot;
    if (AC_UNLIKELY(self->closed || self->deferred) ||
        !(source = ac_fanin_try_take(self->fanin, &slot)))
        return fetch_slowly(self);
    return deliver(self, &source->head, slot);
}

/* The next message, or NULL: with an exception set, or nothing there now. */
static PyObject *fanin_take(FanInObject *self) {
    return commit_when_due(self) < 0 ? NULL : fetch(self);
}

static PyObject *ops_take(Pollable *self) {
    return fanin_take((FanInObject *)self);
}

static int ops_commit_due(Pollable *self) {
    return commit_when_due((FanInObject *)self);
}

static int ops_ready(Pollable *self, ac_error_t *err) {
    FanInObject *fanin = (FanInObject *)self;
    return fanin->closed || fanin->deferred ? 1 : ac_fanin_ready(fanin->fanin, err);
}

static int ops_park(Pollable *self, ac_error_t *err) {
    FanInObject *fanin = (FanInObject *)self;
    if (fanin->closed || fanin->deferred) return AC_READY;
    int rc = ac_fanin_park(fanin->fanin, err);
    self->poll_limit_ns = self->poll_max_ns ? self->poll_max_ns : fanin->fanin->poll_max_ns;
    return rc;
}

static int ops_eventfd(Pollable *self, ac_error_t *err) {
    return ac_fanin_eventfd(((FanInObject *)self)->fanin, err);
}

static int ops_closed(Pollable *self) {
    return ((FanInObject *)self)->closed;
}

static ac_eventfd_t *ops_eventfd_object(Pollable *self) {
    return ((FanInObject *)self)->fanin->eventfd;
}

static const pollable_ops_t fanin_ops = {ops_take,    ops_commit_due, ops_ready,         ops_park,
                                         ops_eventfd, ops_closed,     ops_eventfd_object};

static PyObject *fanin_poll(FanInObject *self, PyObject *unused) {
    (void)unused;
    PyObject *message;
    POLLABLE_SECTION_BEGIN(self);
    message = fanin_take(self);
    POLLABLE_SECTION_END();
    if (!message && !PyErr_Occurred()) Py_RETURN_NONE;
    return message;
}

/* It does not fit, or there is no memory to hand it over. */
static void take_back(FanInObject *self, const MessageObject *message,
                      const ac_heap_entry_t *newest) {
    uint32_t slot = self->fanin->heap[0].slot;
    ReaderObject *reader = (ReaderObject *)self->members[slot].reader;
    if (reader->commit_every) reader->uncommitted--;
    ac_fanin_give_back(self->fanin, newest, message->flags & MESSAGE_LATE);
}

/* Nothing of the batch is committed while it is collected: the caller has not seen any of it. An exception
 * after the first message is kept for the next call. */
static PyObject *collect(FanInObject *self, Py_ssize_t max_messages, Py_ssize_t max_bytes) {
    PyObject *list = commit_when_due(self) < 0 ? NULL : PyList_New(0);
    Py_ssize_t bytes = 0;
    while (list && PyList_GET_SIZE(list) < max_messages) {
        ac_heap_entry_t newest = ac_fanin_newest(self->fanin);
        PyObject *message = fetch(self);
        Py_ssize_t length = message ? (Py_ssize_t)((MessageObject *)message)->length : 0;
        int fits = length <= max_bytes - bytes || PyList_GET_SIZE(list) == 0;
        int taken = message && fits && PyList_Append(list, message) == 0;
        bytes += length;
        if (message && !taken) take_back(self, (MessageObject *)message, &newest);
        Py_XDECREF(message);
        if (taken) continue;
        if (PyErr_Occurred() && (PyList_GET_SIZE(list) == 0 || defer(self, take_exception()) < 0))
            Py_CLEAR(list);
        break;
    }
    return list;
}

static PyObject *fanin_read_batch(FanInObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"max_messages", "max_bytes", NULL};
    Py_ssize_t max_messages = 1024, max_bytes = PY_SSIZE_T_MAX;
    PyObject *messages = NULL, *bytes = NULL, *list;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO", names, &messages, &bytes) ||
        limit_argument(names[0], messages, &max_messages) < 0 ||
        limit_argument(names[1], bytes, &max_bytes) < 0)
        return NULL;
    POLLABLE_SECTION_BEGIN(self);
    list = collect(self, max_messages, max_bytes);
    POLLABLE_SECTION_END();
    return list;
}

/* Blocks without the interpreter's lock; checks for signals a few times a second. */
static PyObject *fanin_wait(FanInObject *self, PyObject *args) {
    enum { SLICE_NS = 200000000 };
    unsigned long long timeout_ns;
    ac_error_t err;
    if (!PyArg_ParseTuple(args, "K", &timeout_ns)) return NULL;
    uint64_t started = ac_os_monotonic_ns(), poll_ns = 0;
    for (;;) {
        int rc = AC_READY, closed;
        uint64_t poll_max_ns = 0;
        ac_eventfd_t *eventfd = NULL;
        POLLABLE_SECTION_BEGIN(self);
        closed = refuse_closed(self) < 0;
        if (!closed) rc = ops_park(&self->base, &err);
        if (rc == AC_PARKED || rc == AC_POLL) {
            eventfd = self->fanin->eventfd;
            poll_max_ns = self->fanin->poll_max_ns;
            ac_eventfd_retain(eventfd); /* another thread may close us */
        }
        POLLABLE_SECTION_END();
        if (closed) return NULL;
        if (!eventfd) Py_RETURN_TRUE; /* an error is for the call that takes */
        uint64_t waited = ac_os_monotonic_ns() - started;
        uint64_t left = waited < timeout_ns ? timeout_ns - waited : 0;
        poll_ns = ac_poll_interval_ns(poll_ns, poll_max_ns);
        uint64_t slice = rc == AC_POLL ? poll_ns : SLICE_NS;
        Py_BEGIN_ALLOW_THREADS;
        if (left) ac_os_eventfd_wait(eventfd->fd, left < slice ? left : slice);
        ac_eventfd_release(eventfd);
        Py_END_ALLOW_THREADS;
        if (!left) Py_RETURN_FALSE;
        if (PyErr_CheckSignals() < 0) return NULL;
    }
}

static int make_room(FanInObject *self, uint32_t slot) {
    if (slot < self->room) return 0;
    uint32_t room = self->room ? self->room * 2 : 16;
    Member *grown = PyMem_Realloc(self->members, room * sizeof *grown);
    if (!grown) {
        PyErr_NoMemory();
        return -1;
    }
    memset(grown + self->room, 0, (room - self->room) * sizeof *grown);
    self->members = grown;
    self->room = room;
    return 0;
}

/* The engine would report this too, but may not even look at it: it is in use under another lock. */
static int refuse_attached_elsewhere(const FanInObject *self, const ReaderObject *reader) {
#ifdef Py_GIL_DISABLED
    ac_error_t err;
    if (!reader->base.lock || reader->base.lock == self->base.lock) return 0;
    ac_fail(&err, AC_E_ARGUMENT, 0, ac_reader_path(reader->reader), 0,
            "this reader is attached to another fan-in; detach it there first");
    raise_engine_error(&err);
    return -1;
#else
    (void)self;
    (void)reader;
    return 0;
#endif
}

/* The source id, or -1. */
static int64_t attach(FanInObject *self, PyObject *reader) {
    ac_error_t err;
    uint32_t slot, id;
    if (refuse_closed(self) < 0 || refuse_attached_elsewhere(self, (ReaderObject *)reader) < 0)
        return -1;
    /* A loop that watches the reader's own eventfd would miss the fan-in's. */
    if (pollable_leave_loop((Pollable *)reader) < 0) return -1;
    if (ac_fanin_attach(self->fanin, ((ReaderObject *)reader)->reader, &slot, &id, &err) != AC_OK) {
        raise_engine_error(&err);
        return -1;
    }
    if (make_room(self, slot) < 0) {
        ac_fanin_detach(self->fanin, slot);
        return -1;
    }
    self->members[slot].reader = Py_NewRef(reader);
    self->members[slot].segment = NULL;
    self->members[slot].id = id;
    set_lock(reader, self);
    return id;
}

static PyObject *fanin_attach(FanInObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names) {
    int64_t id;
    if (only_argument(&count, names, "reader") < 0) return NULL;
    PyObject *reader = count == 1 ? args[0] : Py_None;
    if (!PyObject_TypeCheck(reader, &Reader_Type)) {
        refuse_type("reader", "a Reader", reader);
        return NULL;
    }
    FANIN_AND_READER_SECTION_BEGIN(self, reader);
    id = attach(self, reader);
    FANIN_AND_READER_SECTION_END();
    return id < 0 ? NULL : PyLong_FromLongLong(id);
}

/* The slot of a source id, or -1 with an exception. */
static int64_t slot_of(FanInObject *self, PyObject *source) {
    int64_t id;
    if (integer_argument("source", "the id that attach returned", source, INT64_MIN, INT64_MAX,
                         &id) < 0)
        return -1;
    for (uint32_t slot = 0; slot < self->room; slot++)
        if (self->members[slot].reader && self->members[slot].id == id) return slot;
    PyErr_Format(PyExc_KeyError, "no source %lld is attached", (long long)id);
    return -1;
}

static PyObject *fanin_detach(FanInObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names) {
    if (only_argument(&count, names, "source") < 0) return NULL;
    PyObject *reader = NULL;
    POLLABLE_SECTION_BEGIN(self);
    int64_t slot = slot_of(self, count == 1 ? args[0] : Py_None);
    if (slot >= 0) {
        reader = Py_NewRef(self->members[slot].reader);
        drop_member(self, (uint32_t)slot);
    }
    POLLABLE_SECTION_END();
    return reader;
}

static PyObject *fanin_sources(FanInObject *self, PyObject *unused) {
    (void)unused;
    PyObject *sources = PyDict_New();
    POLLABLE_SECTION_BEGIN(self);
    for (uint32_t slot = 0; sources && slot < self->room; slot++) {
        const Member *member = &self->members[slot];
        if (!member->reader) continue;
        PyObject *id = PyLong_FromUnsignedLong(member->id);
        if (!id || PyDict_SetItem(sources, id, member->reader) < 0) Py_CLEAR(sources);
        Py_XDECREF(id);
    }
    POLLABLE_SECTION_END();
    return sources;
}

/* After this message, in its own queue. */
static PyObject *commit_message(FanInObject *self, MessageObject *message) {
    for (uint32_t slot = 0; slot < self->room; slot++) {
        ReaderObject *reader = (ReaderObject *)self->members[slot].reader;
        if (reader && reader_is_of(reader, message->segment))
            return PyObject_CallMethod((PyObject *)reader, "commit", "O", message);
    }
    PyErr_Format(PyExc_KeyError, "the message's queue %R is not attached",
                 message->segment->source);
    return NULL;
}

/* Commits this source, or all sources if it is NULL. */
static PyObject *commit_sources(FanInObject *self, PyObject *source) {
    ac_error_t err;
    int64_t only = -1;
    if (source) {
        only = slot_of(self, source);
        if (only < 0) return NULL;
    }
    if (only < 0 || only == self->commit_slot) self->commit_slot = COMMIT_NOBODY;
    for (uint32_t slot = 0; slot < self->room; slot++) {
        ReaderObject *reader = (ReaderObject *)self->members[slot].reader;
        if (!reader || (only >= 0 && slot != (uint32_t)only)) continue;
        if (only < 0 && !reader->reader->named) continue; /* anonymous ones have no position */
        if (ac_fanin_commit(self->fanin, slot, &err) != AC_OK) return raise_engine_error(&err);
        reader->uncommitted = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *fanin_commit(FanInObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names) {
    PyObject *done = NULL;
    if (only_argument(&count, names, "source") < 0) return NULL;
    PyObject *what = count == 1 && args[0] != Py_None ? args[0] : NULL;
    POLLABLE_SECTION_BEGIN(self);
    if (refuse_closed(self) == 0)
        done = what && Py_IS_TYPE(what, &Message_Type) ? commit_message(self, (MessageObject *)what)
                                                       : commit_sources(self, what);
    POLLABLE_SECTION_END();
    return done;
}

/* Makes the source deliver again from an earlier position: see ac_fanin_go_back. */
static PyObject *fanin_go_back(FanInObject *self, PyObject *args) {
    PyObject *source;
    unsigned long long segment, offset, last_timestamp_ns;
    ac_error_t err;
    int rc = AC_OK;
    int64_t slot;
    if (!PyArg_ParseTuple(args, "OKKK", &source, &segment, &offset, &last_timestamp_ns))
        return NULL;
    POLLABLE_SECTION_BEGIN(self);
    slot = slot_of(self, source);
    if (slot >= 0)
        rc =
            ac_fanin_go_back(self->fanin, (uint32_t)slot, segment, offset, last_timestamp_ns, &err);
    POLLABLE_SECTION_END();
    if (slot < 0) return NULL;
    if (rc < 0) return raise_engine_error(&err);
    Py_RETURN_NONE;
}

/* Makes a failed source continue at its reader's position: see ac_fanin_resume. */
static PyObject *fanin_resume(FanInObject *self, PyObject *source) {
    ac_error_t err;
    int rc = AC_OK;
    int64_t slot;
    POLLABLE_SECTION_BEGIN(self);
    slot = slot_of(self, source);
    if (slot >= 0) rc = ac_fanin_resume(self->fanin, (uint32_t)slot, &err);
    POLLABLE_SECTION_END();
    if (slot < 0) return NULL;
    if (rc < 0) return raise_engine_error(&err);
    Py_RETURN_NONE;
}

/* Raises an exception out of the iteration, once, before the next message. */
static PyObject *fanin_fail(FanInObject *self, PyObject *error) {
    int rc = 0;
    if (!PyExceptionInstance_Check(error)) {
        refuse_type("error", "an exception", error);
        return NULL;
    }
    POLLABLE_SECTION_BEGIN(self);
    if (!self->closed) {
        rc = defer(self, Py_NewRef(error));
        ac_os_eventfd_signal(self->fanin->eventfd->fd); /* sleepers get it now */
    }
    POLLABLE_SECTION_END();
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *fanin_lag(FanInObject *self, PyObject *unused) {
    (void)unused;
    ac_lag_t lag;
    ac_ways_t ways;
    POLLABLE_SECTION_BEGIN(self);
    ac_fanin_begin_lag(self->fanin, &lag, &ways);
    POLLABLE_SECTION_END();
    if (ways.count > 0) {
        Py_BEGIN_ALLOW_THREADS;
        ac_fanin_end_lag(&ways, &lag);
        Py_END_ALLOW_THREADS;
    }
    timestamp_forget();
    return lag_tuple(&lag);
}

static PyObject *fanin_stats(FanInObject *self, PyObject *unused) {
    (void)unused;
    ac_fanin_stats_t stats;
    POLLABLE_SECTION_BEGIN(self);
    ac_fanin_stats(self->fanin, &stats);
    POLLABLE_SECTION_END();
    return PyBytes_FromStringAndSize((const char *)&stats, sizeof stats);
}

static PyObject *fanin_source_stats(FanInObject *self, PyObject *source) {
    PyObject *name = NULL;
    ac_source_stats_t stats;
    ac_error_t err;
    int rc = AC_OK;
    int64_t slot;
    POLLABLE_SECTION_BEGIN(self);
    slot = slot_of(self, source);
    if (slot >= 0) {
        rc = ac_fanin_source_stats(self->fanin, (uint32_t)slot, &stats, &err);
        name = Py_NewRef(((ReaderObject *)self->members[slot].reader)->source);
    }
    POLLABLE_SECTION_END();
    PyObject *answer = NULL;
    if (rc < 0)
        raise_engine_error(&err);
    else if (name)
        answer = Py_BuildValue("(Oy#)", name, (const char *)&stats, (Py_ssize_t)sizeof stats);
    Py_XDECREF(name);
    return answer;
}

static PyObject *fanin_check(FanInObject *self, PyObject *unused) {
    (void)unused;
    int line;
    POLLABLE_SECTION_BEGIN(self);
    line = ac_fanin_check(self->fanin);
    POLLABLE_SECTION_END();
    return PyLong_FromLong(line);
}

static uint32_t begin_retract(FanInObject *self, ReaderObject **readers) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->room; i++) {
        ReaderObject *reader = (ReaderObject *)self->members[i].reader;
        if (reader && ac_reader_begin_retract(reader->reader))
            readers[count++] = (ReaderObject *)Py_NewRef(reader);
    }
    return count;
}

/* Retracts the announcements of all sources without the interpreter's lock, which a loop may be waiting
 * for. What is left undone, for lack of memory, is done by detaching. */
static void retract_members(FanInObject *self) {
    uint32_t count = 0;
    ReaderObject **readers = PyMem_Calloc(self->room ? self->room : 1, sizeof *readers);
    if (!readers) return;
    POLLABLE_SECTION_BEGIN(self);
    count = begin_retract(self, readers);
    POLLABLE_SECTION_END();
    Py_BEGIN_ALLOW_THREADS;
    for (uint32_t i = 0; i < count; i++)
        ac_wake_retract(&readers[i]->reader->endpoint);
    Py_END_ALLOW_THREADS;
    for (uint32_t i = 0; i < count; i++) {
        POLLABLE_SECTION_BEGIN(readers[i]);
        ac_reader_end_retract(readers[i]->reader);
        POLLABLE_SECTION_END();
        Py_DECREF(readers[i]);
    }
    PyMem_Free(readers);
}

static PyObject *fanin_close(FanInObject *self, PyObject *unused) {
    (void)unused;
    int rc = 0, was_closed;
    ac_map_t *maps = NULL, **before;
    POLLABLE_SECTION_BEGIN(self);
    was_closed = self->closed;
    self->closed = 1; /* nothing can be attached from now on */
    if (!was_closed) rc = pollable_leave_loop(&self->base);
    POLLABLE_SECTION_END();
    if (!was_closed) retract_members(self);
    POLLABLE_SECTION_BEGIN(self);
    before = ac_map_collect(&maps);
    for (uint32_t i = 0; i < self->room && !was_closed; i++)
        drop_member(self, i);
    ac_map_collect(before);
    POLLABLE_SECTION_END();
    Py_BEGIN_ALLOW_THREADS;
    ac_map_unmap(maps);
    Py_END_ALLOW_THREADS;
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *fanin_aiter(FanInObject *self) {
    return awaitable_new(&self->base, AWAIT_ITERATION);
}

static PyObject *fanin_iternext(FanInObject *self) {
    PyObject *message;
    POLLABLE_SECTION_BEGIN(self);
    message = fanin_take(self);
    POLLABLE_SECTION_END();
    return message;
}

/* Its own iterator type: one type with both __next__ and am_send would confuse `yield from`. */
typedef struct {
    PyObject_HEAD
    FanInObject *fanin;
} FanInIteratorObject;

static void iterator_dealloc(FanInIteratorObject *self) {
    Py_DECREF(self->fanin);
    PyObject_Free(self);
}

static PyObject *iterator_next(FanInIteratorObject *self) {
    return fanin_iternext(self->fanin);
}

PyTypeObject FanInIterator_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.FanInIterator",
    .tp_basicsize = sizeof(FanInIteratorObject),
    .tp_dealloc = (destructor)iterator_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)iterator_next,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "Iterates over the messages available now.",
};

static PyObject *fanin_iter(FanInObject *self) {
    FanInIteratorObject *iterator = PyObject_New(FanInIteratorObject, &FanInIterator_Type);
    if (iterator) iterator->fanin = (FanInObject *)Py_NewRef(self);
    return (PyObject *)iterator;
}

static PyObject *fanin_is_closed(FanInObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->closed);
}

static PyMethodDef fanin_methods[] = {
    {"poll", (PyCFunction)fanin_poll, METH_NOARGS,
     "poll($self, /)\n--\n\n"
     "Return the next message of all sources if one may be delivered now, else None."},
    {"read_batch", (PyCFunction)(void (*)(void))fanin_read_batch, METH_VARARGS | METH_KEYWORDS,
     "read_batch($self, max_messages=1024, max_bytes=None)\n--\n\n"
     "Return the messages that may be delivered now, at most this many. Never waits."},
    {"_wait", (PyCFunction)fanin_wait, METH_VARARGS,
     "_wait($self, timeout_ns, /)\n--\n\n"
     "Block until a message may be delivered; False after the timeout."},
    {"attach", (PyCFunction)(void (*)(void))fanin_attach, METH_FASTCALL | METH_KEYWORDS,
     "attach($self, reader)\n--\n\n"
     "Start to merge this reader's messages. Return the source id."},
    {"detach", (PyCFunction)(void (*)(void))fanin_detach, METH_FASTCALL | METH_KEYWORDS,
     "detach($self, source)\n--\n\n"
     "Stop merging a source. Return its reader, positioned after the last message delivered from "
     "it."},
    {"sources", (PyCFunction)fanin_sources, METH_NOARGS,
     "sources($self, /)\n--\n\n"
     "Return the attached readers by source id."},
    {"commit", (PyCFunction)(void (*)(void))fanin_commit, METH_FASTCALL | METH_KEYWORDS,
     "commit($self, source=None)\n--\n\n"
     "Commit what was delivered from this source, or from all named readers; given a message, "
     "commit the position after it in its queue."},
    {"_go_back", (PyCFunction)fanin_go_back, METH_VARARGS,
     "_go_back($self, source, segment, offset, last_timestamp_ns, /)\n--\n\n"
     "Move a source back to where it was."},
    {"_resume", (PyCFunction)fanin_resume, METH_O,
     "_resume($self, source, /)\n--\n\n"
     "Let a source that failed continue at its reader's position."},
    {"_fail", (PyCFunction)fanin_fail, METH_O,
     "_fail($self, error, /)\n--\n\n"
     "Raise this exception from the iteration, once, before the next message."},
    {"_lag", (PyCFunction)fanin_lag, METH_NOARGS,
     "_lag($self, /)\n--\n\n"
     "Return (messages, bytes, age_ns)."},
    {"_stats", (PyCFunction)fanin_stats, METH_NOARGS,
     "_stats($self, /)\n--\n\n"
     "Return an ac_fanin_stats_t as bytes."},
    {"_source_stats", (PyCFunction)fanin_source_stats, METH_O,
     "_source_stats($self, source, /)\n--\n\n"
     "Return a source's name and its ac_source_stats_t as bytes."},
    {"_check_merge", (PyCFunction)fanin_check, METH_NOARGS,
     "_check_merge($self, /)\n--\n\n"
     "Return 0, or the line of csrc/fanin.c whose invariant does not hold."},
    {"close", (PyCFunction)fanin_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Detach everything and end iteration. The readers stay open."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef fanin_properties[] = {
    {"closed", (getter)fanin_is_closed, NULL, "True after close().", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyAsyncMethods fanin_async = {.am_aiter = (unaryfunc)fanin_aiter};

PyTypeObject FanIn_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.FanIn",
    .tp_basicsize = sizeof(FanInObject),
    .tp_base = &Pollable_Type,
    .tp_new = fanin_new,
    .tp_init = (initproc)fanin_init,
    .tp_dealloc = (destructor)fanin_dealloc,
    .tp_traverse = (traverseproc)fanin_traverse,
    .tp_clear = (inquiry)fanin_clear,
    .tp_iter = (getiterfunc)fanin_iter,
    .tp_as_async = &fanin_async,
    .tp_methods = fanin_methods,
    .tp_getset = fanin_properties,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Per-message half of a fan-in.",
};
