/* Members of a group, and their deliveries: a Delivery is a claimed message, with the word that settles it. */
#include "turns.h"

#include "os.h"

typedef struct {
    Pollable base;
    ac_group_t *group; /* NULL: closed */
    ReaderObject *walker, *again;
    SegmentObject *segments[2]; /* of the newest message of each */
    PyObject *key;              /* function of a message; None: no order */
    PyObject *last;             /* by key, a dict: the seq of the newest message that has it */
    PyObject
        *exhausted; /* takes a Delivery that is not to be delivered again, and the last error */
    keying_t own_keying;
    keying_t *keying;   /* see enter; its own, or that of `turns` */
    TurnsObject *turns; /* by key over all queues of a topic; or NULL */
    uint32_t max_deliver;
    uint32_t retry_first_ms, retry_max_ms;
} GroupObject;

typedef struct {
    PyObject_HEAD
    GroupObject *group;
    PyObject *message;
    uint64_t seq;
    uint64_t word;
    uint32_t attempt;
    enum { OPEN, ACKED, GIVEN_BACK, LOST, LEAVING } state;
} DeliveryObject;

typedef struct {
    PyObject_HEAD
    PyObject *result;
} ImmediateObject;

typedef struct {
    PyObject_HEAD
    GroupObject *group;
} GroupIteratorObject;

static const pollable_ops_t group_ops;
static PyObject *lease_lost, *already_settled; /* exception types of the Python side */

PyObject *hot_set_delivery_errors(PyObject *module, PyObject *args) {
    PyObject *lost, *settled;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &lost, &settled)) return NULL;
    Py_XSETREF(lease_lost, Py_NewRef(lost));
    Py_XSETREF(already_settled, Py_NewRef(settled));
    Py_RETURN_NONE;
}

/* ---- what completes at once: for `async with delivery` ---- */

static PyObject *immediate(PyObject *result) {
    if (!result) return NULL;
    ImmediateObject *self = PyObject_New(ImmediateObject, &Immediate_Type);
    if (self)
        self->result = result;
    else
        Py_DECREF(result);
    return (PyObject *)self;
}

static void immediate_dealloc(ImmediateObject *self) {
    Py_DECREF(self->result);
    PyObject_Free(self);
}

static PySendResult immediate_send(ImmediateObject *self, PyObject *value, PyObject **result) {
    (void)value;
    *result = Py_NewRef(self->result);
    return PYGEN_RETURN;
}

static PyObject *immediate_next(ImmediateObject *self) {
    PyErr_SetObject(PyExc_StopIteration, self->result);
    return NULL;
}

static PyAsyncMethods immediate_async = {.am_await = PyObject_SelfIter,
                                         .am_send = (sendfunc)immediate_send};

PyTypeObject Immediate_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Immediate",
    .tp_basicsize = sizeof(ImmediateObject),
    .tp_dealloc = (destructor)immediate_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)immediate_next,
    .tp_as_async = &immediate_async,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "An awaitable that has its result.",
};

/* ---- deliveries ---- */

static int raise_about(const DeliveryObject *self, PyObject *type, const char *text) {
    PyObject *message =
        PyUnicode_FromFormat("message %llu: %s", (unsigned long long)self->seq, text);
    PyObject *error = message && type ? PyObject_CallOneArg(type, message) : NULL;
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(message);
    return -1;
}

/* 0 = it is open, and the group, too. */
static int check_unsettled(const DeliveryObject *self) {
    ac_error_t err;
    switch (self->state) {
    case ACKED:
        return raise_about(self, already_settled, "it was acknowledged already");
    case GIVEN_BACK:
        return raise_about(self, already_settled, "it was given back already");
    case LEAVING:
        return raise_about(self, already_settled, "it is on its way to the dead-letter queue");
    case LOST:
        return raise_about(self, lease_lost, "its lease ended before, and it is another's now");
    case OPEN:
        break;
    }
    if (!self->group->group) {
        memset(&err, 0, sizeof err);
        err.code = AC_E_CLOSED;
        snprintf(err.detail, sizeof err.detail,
                 "the group is closed, and message %llu was given back",
                 (unsigned long long)self->seq);
        raise_engine_error(&err);
        return -1;
    }
    if (ac_group_check_open(self->group->group, &err) == AC_OK) return 0;
    raise_engine_error(&err);
    return -1;
}

static int settled(DeliveryObject *self, int done, int state) {
    self->state = done ? state : LOST;
    if (done) return 0;
    return raise_about(
        self, lease_lost,
        "its lease has ended, and it was or will be delivered again; extend() a lease "
        "that is too short, or open the group with a longer lease_s");
}

static int ack_locked(DeliveryObject *self) {
    if (AC_UNLIKELY(self->state != OPEN || !self->group->group) && check_unsettled(self) < 0)
        return -1;
    if (AC_UNLIKELY(ac_load_relaxed_u32(&self->group->group->state) != AC_STATE_OPEN) &&
        check_unsettled(self) < 0)
        return -1;
    return settled(self, ac_group_ack(self->group->group, self->seq, self->word), ACKED);
}

static PyObject *delivery_ack(DeliveryObject *self, PyObject *unused) {
    int rc;
    (void)unused;
    POLLABLE_SECTION_BEGIN(self->group);
    rc = ack_locked(self);
    POLLABLE_SECTION_END();
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

static uint32_t retry_ms(const DeliveryObject *self) {
    const GroupObject *group = self->group;
    uint32_t doublings = self->attempt > 0 ? self->attempt - 1 : 0;
    uint64_t delay = (uint64_t)group->retry_first_ms << (doublings < 27 ? doublings : 27);
    return delay < group->retry_max_ms ? (uint32_t)delay : group->retry_max_ms;
}

/* After the last allowed attempt it goes to the dead-letter queue instead, which the Python side does. */
static int leave_for_good(DeliveryObject *self, PyObject *error) {
    self->state = LEAVING;
    PyObject *done =
        PyObject_CallFunctionObjArgs(self->group->exhausted, (PyObject *)self, error, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int nack_locked(DeliveryObject *self, uint32_t delay_ms, PyObject *error) {
    if (check_unsettled(self) < 0) return -1;
    if (self->group->max_deliver && self->attempt >= self->group->max_deliver)
        return leave_for_good(self, error);
    return settled(self, ac_group_nack(self->group->group, self->seq, self->word, delay_ms),
                   GIVEN_BACK);
}

static int milliseconds(const char *name, PyObject *object, int positive, uint32_t *out) {
    double seconds = PyFloat_AsDouble(object);
    if (seconds == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return refuse_type(name, "a number of seconds", object);
    }
    if (!(seconds <= AC_GROUP_DELAY_MAX_MS / 1000.0 && seconds >= (positive ? 0.001 : 0.0)))
        return refuse_value(name, positive ? "0.001 to 86400 seconds" : "0 to 86400 seconds",
                            object);
    *out = (uint32_t)(seconds * 1000.0 + 0.5);
    return 0;
}

static PyObject *delivery_nack(DeliveryObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"delay_s", "error", NULL};
    PyObject *delay = NULL, *error = Py_None;
    uint32_t delay_ms = 0;
    int rc;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO:nack", names, &delay, &error))
        return NULL;
    if (delay && milliseconds("delay_s", delay, 0, &delay_ms) < 0) return NULL;
    POLLABLE_SECTION_BEGIN(self->group);
    rc = nack_locked(self, delay_ms, error);
    POLLABLE_SECTION_END();
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *delivery_extend(DeliveryObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"lease_s", NULL};
    PyObject *lease = Py_None;
    uint32_t lease_ms = 0;
    int rc;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:extend", names, &lease)) return NULL;
    if (lease != Py_None && milliseconds("lease_s", lease, 1, &lease_ms) < 0) return NULL;
    POLLABLE_SECTION_BEGIN(self->group);
    rc = check_unsettled(self);
    if (rc == 0) {
        ac_group_t *group = self->group->group;
        if (lease_ms == 0) lease_ms = group->lease_ms;
        rc = settled(self, ac_group_extend(group, self->seq, &self->word, lease_ms), OPEN);
    }
    POLLABLE_SECTION_END();
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

/* For the Python side, which moves it elsewhere. */
static PyObject *delivery_move(DeliveryObject *self, PyObject *moved) {
    int rc, truth = PyObject_IsTrue(moved);
    if (truth < 0) return NULL;
    POLLABLE_SECTION_BEGIN(self->group);
    if (self->state == LEAVING) self->state = OPEN;
    rc = check_unsettled(self);
    if (rc == 0)
        rc = truth
                 ? settled(self, ac_group_ack(self->group->group, self->seq, self->word), ACKED)
                 : settled(self,
                           ac_group_nack(self->group->group, self->seq, self->word, retry_ms(self)),
                           GIVEN_BACK);
    POLLABLE_SECTION_END();
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *delivery_hold(DeliveryObject *self, PyObject *unused) {
    int rc;
    (void)unused;
    POLLABLE_SECTION_BEGIN(self->group);
    ac_group_t *group = self->group->group;
    rc = group && ac_load_relaxed_u32(&group->state) == AC_STATE_OPEN &&
         ac_group_extend(group, self->seq, &self->word, group->lease_ms);
    POLLABLE_SECTION_END();
    return PyBool_FromLong(rc);
}

/* The end of a `with`: success acknowledges, failure redelivers later, and cancellation redelivers at once
 * without counting as an attempt. */
static int end_of_block(DeliveryObject *self, PyObject *error) {
    int rc = 0;
    POLLABLE_SECTION_BEGIN(self->group);
    if (self->state != OPEN) {
        rc = self->state == LOST && error == Py_None ? check_unsettled(self) : 0;
    } else if (error == Py_None) {
        rc = ack_locked(self);
    } else if (!self->group->group ||
               ac_load_relaxed_u32(&self->group->group->state) != AC_STATE_OPEN) {
        self->state = LOST;
    } else if (PyErr_GivenExceptionMatches(error, PyExc_Exception)) {
        PyObject *text = PyUnicode_FromFormat("%s: %S", Py_TYPE(error)->tp_name, error);
        if (!text) PyErr_Clear();
        rc = nack_locked(self, retry_ms(self), text ? text : Py_None);
        Py_XDECREF(text);
        if (rc < 0 && self->state == LOST) { /* the block's own exception takes precedence */
            PyErr_Clear();
            rc = 0;
        }
    } else {
        ac_group_undo(self->group->group, self->seq, self->word);
        self->state = GIVEN_BACK;
    }
    POLLABLE_SECTION_END();
    return rc;
}

static PyObject *delivery_exit(DeliveryObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "__exit__ takes three arguments");
        return NULL;
    }
    if (end_of_block(self, args[1]) < 0) return NULL;
    Py_RETURN_FALSE;
}

static PyObject *delivery_aexit(DeliveryObject *self, PyObject *const *args, Py_ssize_t count) {
    return immediate(delivery_exit(self, args, count));
}

static PyObject *delivery_enter(DeliveryObject *self, PyObject *unused) {
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *delivery_aenter(DeliveryObject *self, PyObject *unused) {
    return immediate(delivery_enter(self, unused));
}

/* It can no longer be settled: so it does not have to wait for its lease. */
static void delivery_dealloc(DeliveryObject *self) {
    if (AC_UNLIKELY(self->state == OPEN)) {
        POLLABLE_SECTION_BEGIN(self->group);
        ac_group_t *group = self->group->group;
        if (group && ac_load_relaxed_u32(&group->state) == AC_STATE_OPEN)
            ac_group_nack(group, self->seq, self->word, retry_ms(self));
        POLLABLE_SECTION_END();
    }
    Py_DECREF(self->message);
    Py_DECREF(self->group);
    PyObject_Free(self);
}

static PyObject *delivery_repr(DeliveryObject *self) {
    static const char *const states[] = {"open", "acknowledged", "given back", "lost", "leaving"};
    return PyUnicode_FromFormat("<Delivery of message %llu, attempt %u, %s>",
                                (unsigned long long)self->seq, self->attempt, states[self->state]);
}

static PyObject *delivery_message(DeliveryObject *self, void *unused) {
    (void)unused;
    return Py_NewRef(self->message);
}

static PyObject *delivery_seq(DeliveryObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->seq);
}

static PyObject *delivery_attempt(DeliveryObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(self->attempt);
}

static PyObject *delivery_is_settled(DeliveryObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->state != OPEN);
}

static PyMethodDef delivery_methods[] = {
    {"ack", (PyCFunction)delivery_ack, METH_NOARGS,
     "ack($self, /)\n--\n\n"
     "Acknowledge the message: it is not delivered again. Never blocks."},
    {"nack", (PyCFunction)(void (*)(void))delivery_nack, METH_VARARGS | METH_KEYWORDS,
     "nack($self, delay_s=0, error=None)\n--\n\n"
     "Return the message to the group. It is delivered again after delay_s seconds at the "
     "earliest."},
    {"extend", (PyCFunction)(void (*)(void))delivery_extend, METH_VARARGS | METH_KEYWORDS,
     "extend($self, lease_s=None)\n--\n\n"
     "Extend the lease to this many seconds from now; by default the group's lease_s."},
    {"_move", (PyCFunction)delivery_move, METH_O,
     "_move($self, moved, /)\n--\n\n"
     "Settle it as moved elsewhere, or as not moved."},
    {"_hold", (PyCFunction)delivery_hold, METH_NOARGS,
     "_hold($self, /)\n--\n\n"
     "Extend the lease; return whether this member still has the message."},
    {"__enter__", (PyCFunction)delivery_enter, METH_NOARGS,
     "__enter__($self, /)\n--\n\n"
     "Return the delivery."},
    {"__exit__", (PyCFunction)(void (*)(void))delivery_exit, METH_FASTCALL,
     "__exit__($self, exc_type, exc, traceback, /)\n--\n\n"
     "Acknowledge the message; after an exception return it to the group."},
    {"__aenter__", (PyCFunction)delivery_aenter, METH_NOARGS,
     "__aenter__($self, /)\n--\n\n"
     "Return an awaitable of the delivery."},
    {"__aexit__", (PyCFunction)(void (*)(void))delivery_aexit, METH_FASTCALL,
     "__aexit__($self, exc_type, exc, traceback, /)\n--\n\n"
     "Acknowledge the message; after an exception return it to the group."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "__class_getitem__($type, type, /)\n--\n\n"
     "The type that its message decodes to."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef delivery_properties[] = {
    {"message", (getter)delivery_message, NULL, "The message.", NULL},
    {"seq", (getter)delivery_seq, NULL, "Its seq.", NULL},
    {"attempt", (getter)delivery_attempt, NULL, "1 for the first delivery; at most 255.", NULL},
    {"settled", (getter)delivery_is_settled, NULL,
     "Whether it was acknowledged, given back, or found to be lost.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject Delivery_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle.Delivery",
    .tp_basicsize = sizeof(DeliveryObject),
    .tp_dealloc = (destructor)delivery_dealloc,
    .tp_repr = (reprfunc)delivery_repr,
    .tp_methods = delivery_methods,
    .tp_getset = delivery_properties,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A message delivered to a member of a group, which acknowledges it.",
};

/* ---- members ---- */

static PyObject *group_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)args;
    (void)keywords;
    GroupObject *self = (GroupObject *)type->tp_alloc(type, 0);
    if (self) self->base.ops = &group_ops;
    return (PyObject *)self;
}

static int find_before(void *context, const ac_message_t *message, uint64_t *after);
static int engine_closed(ac_error_t *err);
static int enter(GroupObject *self);
static void leave(GroupObject *self);

static int join_turns(GroupObject *self, PyObject *turns) {
    ac_error_t err;
    if (!PyObject_TypeCheck(turns, &Turns_Type)) {
        PyErr_SetString(PyExc_TypeError, "turns must be Turns, or None");
        return -1;
    }
    self->turns = (TurnsObject *)Py_NewRef(turns);
    self->keying = &self->turns->keying;
    if (enter(self) < 0) return -1;
    int rc = self->turns->turns ? ac_turns_join(self->turns->turns, self->group, &err)
                                : engine_closed(&err);
    leave(self);
    if (rc < 0) raise_engine_error(&err);
    return rc < 0 ? -1 : 0;
}

static int group_init(GroupObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"address",   "walker",      "again",          "key",
                            "exhausted", "max_deliver", "retry_first_ms", "retry_max_ms",
                            "burst",     "spin_ns",     "turns",          NULL};
    unsigned long long address, spin_ns;
    unsigned max_deliver, first, most, burst;
    PyObject *walker, *again, *key, *exhausted, *turns;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "KO!O!OOIIIIKO", names, &address, &Reader_Type,
                                     &walker, &Reader_Type, &again, &key, &exhausted, &max_deliver,
                                     &first, &most, &burst, &spin_ns, &turns))
        return -1;
    if (self->walker) {
        PyErr_SetString(PyExc_RuntimeError, "group is initialised already");
        return -1;
    }
    self->last = PyDict_New();
    if (!self->last) return -1;
    self->group = (ac_group_t *)(uintptr_t)address;
    self->walker = (ReaderObject *)Py_NewRef(walker);
    self->again = (ReaderObject *)Py_NewRef(again);
    self->key = Py_NewRef(key);
    self->exhausted = Py_NewRef(exhausted);
    self->keying = &self->own_keying;
    if (turns == Py_None && key != Py_None && !(self->own_keying.lock = PyThread_allocate_lock())) {
        PyErr_NoMemory();
        return -1;
    }
    self->max_deliver = max_deliver;
    self->retry_first_ms = first;
    self->retry_max_ms = most;
    self->base.burst = burst;
    self->base.spin_ns = spin_ns;
    self->group->key = find_before;
    self->group->key_context = self;
    return turns == Py_None ? 0 : join_turns(self, turns);
}

static int group_traverse(GroupObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->walker);
    Py_VISIT(self->again);
    Py_VISIT(self->key);
    Py_VISIT(self->last);
    Py_VISIT(self->exhausted);
    return pollable_traverse(&self->base, visit, arg);
}

static int group_clear(GroupObject *self) {
    pollable_clear(&self->base);
    Py_CLEAR(self->exhausted);
    return 0;
}

static int is_keying(const GroupObject *self) {
    return self->keying && self->keying->thread == PyThread_get_thread_ident();
}

static void close_engine(GroupObject *self) {
    ac_group_t *group = self->group;
    self->group = NULL;
    Py_CLEAR(self->segments[0]);
    Py_CLEAR(self->segments[1]);
    ac_group_free(group);
}

static void group_dealloc(GroupObject *self) {
    PyObject_GC_UnTrack(self);
    if (pollable_leave_loop(&self->base) < 0) PyErr_WriteUnraisable(NULL);
    group_clear(self);
    /* Other groups of the topic may be at work in another thread. In this one it is a key function that lets it go. */
    int entered = self->turns && self->group && !is_keying(self) && enter(self) == 0;
    close_engine(self);
    if (entered) leave(self);
    Py_XDECREF(self->walker);
    Py_XDECREF(self->again);
    Py_XDECREF(self->key);
    Py_XDECREF(self->last);
    if (self->own_keying.lock) PyThread_free_lock(self->own_keying.lock);
    Py_XDECREF(self->turns);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static SegmentObject *segment_of(GroupObject *self, const ac_reader_t *from) {
    int which = from == self->again->reader;
    ReaderObject *reader = which ? self->again : self->walker;
    SegmentObject *known = self->segments[which];
    if (AC_LIKELY(known && known->map == from->map)) return known;
    SegmentObject *segment = segment_new(from->map, reader);
    if (segment) Py_XSETREF(self->segments[which], segment);
    return segment;
}

/* Keys whose newest message is before the mark need no waiting. */
static int drop_old_keys(GroupObject *self) {
    PyObject *key, *seq, *kept = PyDict_New();
    Py_ssize_t at = 0;
    while (kept && PyDict_Next(self->last, &at, &key, &seq))
        if (PyLong_AsUnsignedLongLong(seq) >= self->group->low &&
            PyDict_SetItem(kept, key, seq) < 0)
            Py_CLEAR(kept);
    if (!kept) return -1;
    Py_SETREF(self->last, kept);
    return 0;
}

/* ac_group_key_t: which message has the same key and comes before it; over a topic, the number of the key. */
static int find_before(void *context, const ac_message_t *message, uint64_t *after) {
    GroupObject *self = context;
    SegmentObject *segment = segment_of(self, self->walker->reader);
    PyObject *object = segment ? message_new(segment, message) : NULL;
    PyObject *key = object ? PyObject_CallOneArg(self->key, object) : NULL;
    Py_XDECREF(object);
    if (!key) return -1;
    if (self->turns) {
        *after = PyLong_AsUnsignedLongLong(key);
        Py_DECREF(key);
        return PyErr_Occurred() ? -1 : 0;
    }
    int rc = 0;
    if ((uint64_t)PyDict_GET_SIZE(self->last) > 2 * self->group->mask) rc = drop_old_keys(self);
    PyObject *seq = rc < 0 ? NULL : PyDict_GetItemWithError(self->last, key);
    *after = seq ? PyLong_AsUnsignedLongLong(seq) + 1 : 0;
    if (PyErr_Occurred()) rc = -1;
    PyObject *mine = rc < 0 ? NULL : PyLong_FromUnsignedLongLong(message->seq);
    rc = mine ? PyDict_SetItem(self->last, key, mine) : -1;
    Py_XDECREF(mine);
    Py_DECREF(key);
    return rc;
}

static DeliveryObject *delivery_new(GroupObject *self, const ac_reader_t *from,
                                    const ac_message_t *message, uint64_t word) {
    SegmentObject *segment = segment_of(self, from);
    PyObject *object = segment ? message_new(segment, message) : NULL;
    DeliveryObject *made = object ? PyObject_New(DeliveryObject, &Delivery_Type) : NULL;
    if (!made) {
        Py_XDECREF(object);
        return NULL;
    }
    made->group = (GroupObject *)Py_NewRef(self);
    made->message = object;
    made->seq = message->seq;
    made->word = word;
    made->attempt = ac_word_unpack(word).attempt;
    made->state = OPEN;
    return made;
}

static int fail_closed(void) {
    ac_error_t err;
    memset(&err, 0, sizeof err);
    err.code = AC_E_CLOSED;
    memcpy(err.detail, "the group is closed", sizeof "the group is closed");
    raise_engine_error(&err);
    return -1;
}

/* By key, the engine calls a function of the user's in the middle of a step, and other threads run then.
 * They must wait, or they would pass the same message, and close what is in use. */
static int enter(GroupObject *self) {
    keying_t *keying = self->keying;
    if (AC_LIKELY(!keying || !keying->lock)) return 0;
    if (is_keying(self)) {
        PyErr_SetString(PyExc_RuntimeError, "the key function of a group uses the group");
        return -1;
    }
    if (!PyThread_acquire_lock(keying->lock, NOWAIT_LOCK)) {
        Py_BEGIN_ALLOW_THREADS;
        PyThread_acquire_lock(keying->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS;
    }
    keying->thread = PyThread_get_thread_ident();
    return 0;
}

static void leave(GroupObject *self) {
    if (AC_LIKELY(!self->keying || !self->keying->lock)) return;
    self->keying->thread = 0;
    PyThread_release_lock(self->keying->lock);
}

static int fail_interrupted(ac_error_t *err) {
    memset(err, 0, sizeof *err);
    return err->code = AC_E_INTERRUPTED;
}

/* The next delivery, or NULL: with an exception set, or nothing available now. */
static PyObject *take_entered(GroupObject *self, int in_loop) {
    ac_message_t message;
    ac_reader_t *from;
    ac_error_t err;
    uint64_t word;
    for (;;) {
        if (AC_UNLIKELY(!self->group)) {
            fail_closed();
            return NULL;
        }
        int rc = ac_group_next(self->group, in_loop, &message, &word, &from, &err);
        if (rc < 0) raise_engine_error(&err);
        if (rc != 1) return NULL;
        DeliveryObject *delivery = delivery_new(self, from, &message, word);
        if (AC_UNLIKELY(!delivery)) {
            ac_group_undo(self->group, message.seq, word);
            return NULL;
        }
        if (AC_LIKELY(!self->max_deliver || delivery->attempt <= self->max_deliver))
            return (PyObject *)delivery;
        rc = leave_for_good(delivery, Py_None);
        Py_DECREF(delivery);
        if (rc < 0) return NULL;
    }
}

static PyObject *group_take(GroupObject *self, int in_loop) {
    if (enter(self) < 0) return NULL;
    PyObject *delivery = take_entered(self, in_loop);
    leave(self);
    return delivery;
}

static PyObject *ops_take(Pollable *self) {
    return group_take((GroupObject *)self, 1);
}

static int ops_commit_due(Pollable *base) {
    GroupObject *self = (GroupObject *)base;
    if (self->group && ac_load_relaxed_u32(&self->group->state) == AC_STATE_OPEN)
        ac_group_store(self->group, ac_group_tick());
    return 0;
}

static int engine_closed(ac_error_t *err) {
    memset(err, 0, sizeof *err);
    memcpy(err->detail, "the group is closed", sizeof "the group is closed");
    return err->code = AC_E_CLOSED;
}

static int ops_ready(Pollable *base, ac_error_t *err) {
    GroupObject *self = (GroupObject *)base;
    if (enter(self) < 0) return fail_interrupted(err);
    if (self->group && base->first && ac_load_relaxed_u32(&self->group->state) == AC_STATE_OPEN)
        ac_count_u64(&self->group->entry->woken, 1);
    int rc = self->group ? ac_group_ready(self->group, 1, err) : engine_closed(err);
    leave(self);
    return rc;
}

static int ops_park(Pollable *base, ac_error_t *err) {
    GroupObject *self = (GroupObject *)base;
    if (enter(self) < 0) return fail_interrupted(err);
    int rc =
        self->group ? ac_group_park(self->group, &base->poll_limit_ns, err) : engine_closed(err);
    leave(self);
    return rc;
}

static int ops_eventfd(Pollable *base, ac_error_t *err) {
    GroupObject *self = (GroupObject *)base;
    return self->group ? ac_reader_eventfd(self->walker->reader, err) : engine_closed(err);
}

static int ops_closed(Pollable *base) {
    const GroupObject *self = (GroupObject *)base;
    return !self->group || ac_load_relaxed_u32(&self->group->state) == AC_STATE_CLOSED;
}

static ac_eventfd_t *ops_eventfd_object(Pollable *base) {
    return ((GroupObject *)base)->walker->reader->eventfd;
}

static const pollable_ops_t group_ops = {ops_take,    ops_commit_due, ops_ready,         ops_park,
                                         ops_eventfd, ops_closed,     ops_eventfd_object};

static PyObject *group_poll(GroupObject *self, PyObject *unused) {
    PyObject *delivery;
    (void)unused;
    POLLABLE_SECTION_BEGIN(self);
    delivery = group_take(self, 0);
    POLLABLE_SECTION_END();
    if (!delivery && !PyErr_Occurred()) Py_RETURN_NONE;
    return delivery;
}

/* An error after the first is raised by the next call: what was claimed is handed over. */
static PyObject *collect(GroupObject *self, Py_ssize_t most) {
    PyObject *list = PyList_New(0);
    while (list && PyList_GET_SIZE(list) < most) {
        PyObject *delivery = group_take(self, 0);
        int rc = delivery ? PyList_Append(list, delivery) : -1;
        Py_XDECREF(delivery); /* if the list has no room it is given back */
        if (rc == 0) continue;
        if (PyErr_Occurred()) {
            if (PyList_GET_SIZE(list) == 0)
                Py_CLEAR(list);
            else
                PyErr_Clear();
        }
        break;
    }
    return list;
}

static PyObject *group_take_batch(GroupObject *self, PyObject *most) {
    PyObject *list;
    Py_ssize_t count = PyLong_AsSsize_t(most);
    if (count == -1 && PyErr_Occurred()) return NULL;
    POLLABLE_SECTION_BEGIN(self);
    list = collect(self, count);
    POLLABLE_SECTION_END();
    return list;
}

/* As reader_wait. */
static PyObject *group_wait(GroupObject *self, PyObject *args) {
    enum { SLICE_NS = 200000000 };
    unsigned long long timeout_ns;
    ac_error_t err;
    if (!PyArg_ParseTuple(args, "K", &timeout_ns)) return NULL;
    uint64_t started = ac_os_monotonic_ns(), interval_ns = 0;
    for (;;) {
        ac_sleep_t sleep = {.poll = 1};
        int rc;
        POLLABLE_SECTION_BEGIN(self);
        rc = self->group ? ops_park(&self->base, &err) : engine_closed(&err);
        if (rc >= 0 && rc != AC_READY) {
            sleep.eventfd = self->walker->reader->eventfd;
            ac_eventfd_retain(sleep.eventfd);
        }
        POLLABLE_SECTION_END();
        if (rc < 0) return raise_engine_error(&err);
        if (rc == AC_READY) Py_RETURN_TRUE;
        interval_ns = ac_poll_interval_ns(interval_ns, self->base.poll_limit_ns);
        sleep.poll_ns = interval_ns < SLICE_NS ? interval_ns : SLICE_NS;
        uint64_t waited = ac_os_monotonic_ns() - started;
        uint64_t left = waited < timeout_ns ? timeout_ns - waited : 0;
        Py_BEGIN_ALLOW_THREADS;
        ac_reader_sleep(&sleep, left);
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals() < 0) return NULL;
        if (left == 0) Py_RETURN_FALSE;
    }
}

static PyObject *group_close(GroupObject *self, PyObject *unused) {
    int rc;
    (void)unused;
    POLLABLE_SECTION_BEGIN(self);
    rc = enter(self);
    if (rc == 0) {
        rc = pollable_leave_loop(&self->base);
        close_engine(self);
        leave(self);
    }
    POLLABLE_SECTION_END();
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *group_aiter(GroupObject *self) {
    return awaitable_new(&self->base, AWAIT_ITERATION);
}

static PyObject *group_iter(GroupObject *self) {
    GroupIteratorObject *iterator = PyObject_New(GroupIteratorObject, &GroupIterator_Type);
    if (iterator) iterator->group = (GroupObject *)Py_NewRef(self);
    return (PyObject *)iterator;
}

static PyObject *group_closed(GroupObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!self->group ||
                           ac_load_relaxed_u32(&self->group->state) != AC_STATE_OPEN);
}

static PyObject *group_in_flight(GroupObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->group ? self->group->in_flight : 0);
}

static PyObject *group_queue_id(GroupObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(
        self->group ? ac_load_relaxed_u64(&self->group->walker->control->queue_id) : 0);
}

/* What is in its entry of the table, in the order of ac_group_entry_t. */
static PyObject *group_counters(GroupObject *self, PyObject *unused) {
    PyObject *counters = NULL;
    ac_error_t err;
    (void)unused;
    POLLABLE_SECTION_BEGIN(self);
    if (!self->group) {
        fail_closed();
    } else if (ac_group_check_open(self->group, &err) != AC_OK) {
        raise_engine_error(&err);
    } else {
        const ac_group_entry_t *entry = self->group->entry;
        counters =
            Py_BuildValue("KKKKKKK", (unsigned long long)ac_load_relaxed_u64(&entry->since_ns),
                          (unsigned long long)ac_load_relaxed_u64(&entry->claimed),
                          (unsigned long long)ac_load_relaxed_u64(&entry->acked),
                          (unsigned long long)ac_load_relaxed_u64(&entry->nacked),
                          (unsigned long long)ac_load_relaxed_u64(&entry->redelivered),
                          (unsigned long long)ac_load_relaxed_u64(&entry->refused),
                          (unsigned long long)ac_load_relaxed_u64(&entry->woken));
    }
    POLLABLE_SECTION_END();
    return counters;
}

static PyMethodDef group_methods[] = {
    {"poll", (PyCFunction)group_poll, METH_NOARGS,
     "poll($self, /)\n--\n\n"
     "Return a delivery for this member if there is one now, else None."},
    {"_take_batch", (PyCFunction)group_take_batch, METH_O,
     "_take_batch($self, most, /)\n--\n\n"
     "Return at most this many deliveries."},
    {"_wait", (PyCFunction)group_wait, METH_VARARGS,
     "_wait($self, timeout_ns, /)\n--\n\n"
     "Block until there is something to take; False after the timeout."},
    {"_counters", (PyCFunction)group_counters, METH_NOARGS,
     "_counters($self, /)\n--\n\n"
     "Return since_ns, claimed, acked, nacked, redelivered, refused, woken."},
    {"_leave", (PyCFunction)group_close, METH_NOARGS,
     "_leave($self, /)\n--\n\n"
     "Return all claimed messages to the group and close."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef group_properties[] = {
    {"closed", (getter)group_closed, NULL, "True after close(), and in a forked child.", NULL},
    {"in_flight", (getter)group_in_flight, NULL,
     "How many deliveries of this member are not settled yet.", NULL},
    {"queue_id", (getter)group_queue_id, NULL, "Identity of the queue; 0 after close().", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyAsyncMethods group_async = {.am_aiter = (unaryfunc)group_aiter};

PyTypeObject Group_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Group",
    .tp_basicsize = sizeof(GroupObject),
    .tp_base = &Pollable_Type,
    .tp_new = group_new,
    .tp_init = (initproc)group_init,
    .tp_dealloc = (destructor)group_dealloc,
    .tp_traverse = (traverseproc)group_traverse,
    .tp_clear = (inquiry)group_clear,
    .tp_iter = (getiterfunc)group_iter,
    .tp_as_async = &group_async,
    .tp_methods = group_methods,
    .tp_getset = group_properties,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Per-message half of a member of a group; takes over an engine handle.",
};

static void iterator_dealloc(GroupIteratorObject *self) {
    Py_DECREF(self->group);
    PyObject_Free(self);
}

static PyObject *iterator_next(GroupIteratorObject *self) {
    PyObject *delivery;
    POLLABLE_SECTION_BEGIN(self->group);
    delivery = group_take(self->group, 0);
    POLLABLE_SECTION_END();
    return delivery;
}

PyTypeObject GroupIterator_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.GroupIterator",
    .tp_basicsize = sizeof(GroupIteratorObject),
    .tp_dealloc = (destructor)iterator_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)iterator_next,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "Iterates over the messages available now.",
};
