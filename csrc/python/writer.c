#include "hot.h"

#include "cq4_lock.h"
#include "error.h"
#include "writer.h"

/* Appends run under the interpreter's lock, or what stands for it, and need nothing else. The slow path may
 * wait (a new segment, a sync, capacity), so it gives the lock up; `busy` then sends every other thread the
 * slow way too, where `turn` makes them queue up. */
typedef struct {
    PyObject_HEAD
    ac_writer_t *writer;
    PyObject *clock; /* NULL: the engine's own */
    PyThread_type_lock turn;
    unsigned long owner; /* the thread that has the turn; 0 = nobody */
    int busy;
} WriterObject;

typedef struct {
    PyObject_HEAD
    WriterObject *writer;
    PyObject *view; /* weak: it holds the reservation, and one that is forgotten has to end */
    ac_map_t *map;  /* of the room; retained as long as anything can point into it */
    void *room;
    Py_ssize_t size;
    Py_ssize_t exports;
    unsigned type_id;
    uint64_t timestamp_ns;
    int has_cause;
    ac_cause_t cause;
    PyObject *trailer; /* bytes, or NULL */
    int open;
    long long seq;
} ReservationObject;

static void have_turn(WriterObject *self) {
    HOT_BEGIN(self); /* an append that saw nobody busy is over then */
    self->busy = 1;
    HOT_END();
    __atomic_store_n(&self->owner, PyThread_get_thread_ident(), __ATOMIC_RELAXED);
}

/* While this thread waits for room, signal handlers run, and they may call us. No other thread can store our
 * number, so a relaxed load is enough. */
static int is_our_turn(const WriterObject *self) {
    return __atomic_load_n(&self->owner, __ATOMIC_RELAXED) == PyThread_get_thread_ident();
}

/* In a child that was forked meanwhile, the turn may be that of a thread which does not exist. */
static int is_forked(const WriterObject *self) {
    return ac_load_relaxed_u32(&self->writer->state) == AC_STATE_FORKED;
}

/* The thread that has the turn may be waiting for room, perhaps forever: signals are handled while we wait. An error
 * means that it is not ours. */
static int begin_slow(WriterObject *self, ac_error_t *err) {
    enum { LOOK_US = 50000 }; /* signals that another thread received interrupt nothing here */
    const char *path = self->writer->dir.path;
    PyLockStatus status = PY_LOCK_FAILURE;
    if (is_our_turn(self))
        return ac_fail(err, AC_E_REENTRANT, 0, path, 0,
                       "a signal handler appends to the writer whose call it interrupted");
    while (status != PY_LOCK_ACQUIRED) {
        if (is_forked(self)) return ac_writer_usable(self->writer, err);
        Py_BEGIN_ALLOW_THREADS;
        status = PyThread_acquire_lock_timed(self->turn, LOOK_US, 1);
        Py_END_ALLOW_THREADS;
        if (status != PY_LOCK_ACQUIRED && PyErr_CheckSignals() < 0)
            return ac_fail(err, AC_E_INTERRUPTED, 0, path, 0, "interrupted");
    }
    have_turn(self);
    return AC_OK;
}

/* For what has to be done in any case: the turn is given up soon. */
static void begin_last(WriterObject *self) {
    Py_BEGIN_ALLOW_THREADS;
    PyThread_acquire_lock(self->turn, WAIT_LOCK);
    Py_END_ALLOW_THREADS;
    have_turn(self);
}

static void end_slow(WriterObject *self) {
    __atomic_store_n(&self->owner, 0, __ATOMIC_RELAXED);
    HOT_BEGIN(self);
    self->busy = 0;
    HOT_END();
    PyThread_release_lock(self->turn);
}

/* What an object holds that was never initialised: a closed writer, so that every call has an answer. */
static ac_writer_t nobody = {.state = AC_STATE_CLOSED,
                             .mutex = PTHREAD_MUTEX_INITIALIZER,
                             .sync_mutex = PTHREAD_MUTEX_INITIALIZER};

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)args;
    (void)keywords;
    WriterObject *self = (WriterObject *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->writer = &nobody;
    self->turn = PyThread_allocate_lock();
    if (self->turn) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

/* Called without the interpreter's lock, out of a wait: what a signal's handler raises ends it. So does a
 * handler that closes the writer. */
static int handle_signals(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    int raised = PyErr_CheckSignals() < 0;
    PyGILState_Release(state);
    return raised;
}

static int writer_init(WriterObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"address", "clock", NULL};
    unsigned long long address;
    PyObject *clock;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "KO", names, &address, &clock)) return -1;
    if (self->writer != &nobody) {
        PyErr_SetString(PyExc_RuntimeError, "writer is initialised already");
        return -1;
    }
    self->clock = clock == Py_None ? NULL : Py_NewRef(clock);
    self->writer = (ac_writer_t *)(uintptr_t)address;
    self->writer->interrupted = handle_signals;
    return 0;
}

static void writer_dealloc(WriterObject *self) {
    ac_writer_t *writer = self->writer;
    self->writer = &nobody;
    if (writer != &nobody) {
        Py_BEGIN_ALLOW_THREADS;
        ac_writer_free(writer);
        Py_END_ALLOW_THREADS;
    }
    if (self->turn) PyThread_free_lock(self->turn);
    Py_XDECREF(self->clock);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* ---- append ---- */

typedef struct {
    PyObject *type_id, *timestamp, *cause, *first, *key, *headers;
} options_t;

static int find_options(PyObject *const *args, Py_ssize_t count, PyObject *names, const char *first,
                        const char *key, const char *timestamp, options_t *out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        PyObject *value = args[count + i];
        if (PyUnicode_CompareWithASCIIString(name, "type_id") == 0)
            out->type_id = value;
        else if (PyUnicode_CompareWithASCIIString(name, timestamp) == 0)
            out->timestamp = value;
        else if (PyUnicode_CompareWithASCIIString(name, "cause") == 0)
            out->cause = value;
        else if (PyUnicode_CompareWithASCIIString(name, key) == 0)
            out->key = value == Py_None ? NULL : value;
        else if (PyUnicode_CompareWithASCIIString(name, "headers") == 0)
            out->headers = value == Py_None ? NULL : value;
        else if (count == 0 && PyUnicode_CompareWithASCIIString(name, first) == 0)
            out->first = value;
        else {
            PyErr_Format(PyExc_TypeError, "unexpected keyword argument %R", name);
            return -1;
        }
    }
    return 0;
}

enum clocked { NOT_CLOCKED = 0, CLOCKED = 1 }; /* whether a timestamp is our caller's clock's */

/* Asks the caller's clock, if there is one and it is needed. An enum clocked, or -1. */
static int take_time(WriterObject *self, uint64_t *timestamp_ns) {
    if (*timestamp_ns != AC_NOW || !self->clock) return NOT_CLOCKED;
    PyObject *now = PyObject_CallNoArgs(self->clock);
    if (!now) return -1;
    int rc = timestamp_argument("what the clock returns", now, timestamp_ns);
    Py_DECREF(now);
    return rc < 0 ? rc : CLOCKED;
}

/* To be asked when it is our turn: other threads have appended since the clock was read. */
static uint64_t in_order(WriterObject *self, int clocked, uint64_t timestamp_ns) {
    return clocked ? ac_writer_now(self->writer, timestamp_ns) : timestamp_ns;
}

/* A Message, or (queue_id, seq). *cause is NULL if there is none, else `room`. */
static int cause_argument(PyObject *object, ac_cause_t *room, const ac_cause_t **cause) {
    static const char wanted[] = "a Message or a tuple (queue_id, seq) of unsigned 64-bit ints";
    *cause = NULL;
    if (!object || object == Py_None) return 0;
    *cause = room;
    room->epoch = room->is_expiry = 0;
    if (Py_IS_TYPE(object, &Message_Type)) {
        const MessageObject *message = (MessageObject *)object;
        *room = (ac_cause_t){message->segment->queue_id, message->seq, message_epoch(message), 0};
    } else if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2) {
        return refuse_type("cause", wanted, object);
    } else if (unsigned_argument("cause", wanted, PyTuple_GET_ITEM(object, 0), &room->source) < 0 ||
               unsigned_argument("cause", wanted, PyTuple_GET_ITEM(object, 1), &room->seq) < 0) {
        return -1;
    }
    if (room->source != 0) return 0;
    /* Queues that other programs made have no id: a cause in one of them could not be found again. */
    return refuse_value("cause", "of a queue with an id (those of other programs have no id)",
                        object);
}

/* A Java queue, whose clock is asked by cq4_writer.c: what that of our caller showed. Nothing but the cycle goes
 * by it. */
static void set_java_clock(WriterObject *self, int clocked, uint64_t *timestamp_ns) {
    if (!self->writer->java) return;
    ac_store_relaxed_u64(&self->writer->java_now_ns, clocked ? *timestamp_ns : AC_NOW);
    if (clocked) *timestamp_ns = AC_NOW;
}

/* If Java's lock is free and the message fits into what is mapped, the interpreter's lock need not be given up. */
static int64_t try_append_java(WriterObject *self, const void *data, size_t length,
                               unsigned type_id, uint64_t timestamp_ns, int clocked,
                               const ac_cause_t *cause) {
    int64_t seq = AC_E_SLOW;
    HOT_BEGIN(self);
    if (!self->busy) {
        set_java_clock(self, clocked, &timestamp_ns);
        if (type_id == 0 && timestamp_ns == AC_NOW && !cause)
            seq = ac_java_try_append(self->writer, data, length);
    }
    HOT_END();
    return seq;
}

static int64_t append_slow(WriterObject *self, const void *data, size_t length,
                           const ac_slice_t *trailer, unsigned type_id, uint64_t timestamp_ns,
                           int clocked, const ac_cause_t *cause, ac_error_t *err) {
    int64_t seq = AC_E_SLOW;
    if (self->writer->java && !trailer)
        seq = try_append_java(self, data, length, type_id, timestamp_ns, clocked, cause);
    if (seq != AC_E_SLOW) return seq;
    seq = begin_slow(self, err);
    if (seq < 0) return seq;
    timestamp_ns = in_order(self, clocked, timestamp_ns);
    set_java_clock(self, clocked, &timestamp_ns);
    Py_BEGIN_ALLOW_THREADS;
    seq = ac_writer_append_trailer(self->writer, data, length, trailer, type_id, timestamp_ns,
                                   cause, err);
    Py_END_ALLOW_THREADS;
    end_slow(self);
    return seq;
}

/* A Java queue in which others have begun a cycle that our caller's clock had not reached when it was read: it is read
 * again, as long as it goes on and no append would wait for longer. */
static int64_t follow_clock(WriterObject *self, const void *data, size_t length, unsigned type_id,
                            uint64_t shown_ns, ac_error_t *err) {
    uint64_t wait_ns = self->writer->config.lock_timeout_ns;
    uint64_t deadline_ns = ac_os_monotonic_ns() + (wait_ns ? wait_ns : AC_CQ4_LOCK_TIMEOUT_NS);
    int64_t seq = AC_E_TIMESTAMP;
    while (seq == AC_E_TIMESTAMP && ac_os_monotonic_ns() < deadline_ns) {
        uint64_t now_ns = AC_NOW;
        if (PyErr_CheckSignals() < 0 || take_time(self, &now_ns) < 0) {
            err->code = AC_E_INTERRUPTED;
            return AC_E_INTERRUPTED;
        }
        if (now_ns <= shown_ns) break;
        shown_ns = now_ns;
        seq = append_slow(self, data, length, NULL, type_id, now_ns, CLOCKED, NULL, err);
    }
    return seq;
}

/* A clock that went back, or was overtaken by another thread's, takes the slow path. Compiled twice: without a
 * trailer nobody looks for one. */
static inline __attribute__((always_inline)) PyObject *
append_area(WriterObject *self, const void *data, Py_ssize_t length, const ac_slice_t *trailer,
            unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause) {
    ac_error_t err;
    int64_t seq = AC_E_SLOW;
    int clocked = NOT_CLOCKED;
    if (AC_UNLIKELY(self->clock != NULL) && (clocked = take_time(self, &timestamp_ns)) < 0)
        return NULL;
    HOT_BEGIN(self);
    if (AC_LIKELY(!self->busy))
        seq = ac_writer_try_append(self->writer, data, (size_t)length, trailer, type_id,
                                   timestamp_ns, cause);
    HOT_END();
    if (AC_UNLIKELY(seq == AC_E_SLOW))
        seq = append_slow(self, data, (size_t)length, trailer, type_id, timestamp_ns, clocked,
                          cause, &err);
    if (AC_UNLIKELY(seq == AC_E_TIMESTAMP) && clocked && self->writer->java)
        seq = follow_clock(self, data, (size_t)length, type_id, timestamp_ns, &err);
    return seq < 0 ? raise_engine_error(&err) : PyLong_FromLongLong(seq);
}

static PyObject *append_buffer(WriterObject *self, const void *data, Py_ssize_t length,
                               unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause) {
    return append_area(self, data, length, NULL, type_id, timestamp_ns, cause);
}

static ac_slice_t slice_of(PyObject *bytes) {
    return (ac_slice_t){PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes)};
}

/* With key and headers. `payload` is any buffer. */
static __attribute__((noinline)) PyObject *
append_with_trailer(WriterObject *self, PyObject *payload, PyObject *key, PyObject *headers,
                    unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause) {
    PyObject *bytes, *result;
    Py_buffer buffer;
    if (payload_argument("payload", payload, &buffer) < 0) return NULL;
    if (trailer_argument(key, headers, &bytes) < 0) {
        result = NULL;
    } else if (!bytes) {
        result = append_buffer(self, buffer.buf, buffer.len, type_id, timestamp_ns, cause);
    } else {
        ac_slice_t trailer = slice_of(bytes);
        result = append_area(self, buffer.buf, buffer.len, &trailer, type_id, timestamp_ns, cause);
        Py_DECREF(bytes);
    }
    PyBuffer_Release(&buffer);
    return result;
}

/* Everything but a call with bytes alone. */
static __attribute__((noinline)) PyObject *
append_with_options(WriterObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    options_t options = {.first = count > 0 ? args[0] : NULL};
    unsigned type_id = 0;
    uint64_t timestamp_ns = AC_NOW;
    ac_cause_t room;
    const ac_cause_t *cause = NULL;
    if (names &&
        (find_options(args, count, names, "payload", "key", "timestamp_ns", &options) < 0 ||
         type_argument(options.type_id, &type_id) < 0 ||
         optional_timestamp_argument(options.timestamp, &timestamp_ns) < 0 ||
         cause_argument(options.cause, &room, &cause) < 0))
        return NULL;
    PyObject *payload = options.first;
    if (AC_UNLIKELY(!payload || count > 1)) {
        PyErr_Format(PyExc_TypeError, "append takes 1 positional argument, the payload; got %zd",
                     count);
        return NULL;
    }
    if (AC_UNLIKELY(options.key || options.headers))
        return append_with_trailer(self, payload, options.key, options.headers, type_id,
                                   timestamp_ns, cause);
    if (AC_LIKELY(PyBytes_CheckExact(payload)))
        return append_buffer(self, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), type_id,
                             timestamp_ns, cause);
    Py_buffer buffer;
    if (payload_argument("payload", payload, &buffer) < 0) return NULL;
    PyObject *result = append_buffer(self, buffer.buf, buffer.len, type_id, timestamp_ns, cause);
    PyBuffer_Release(&buffer);
    return result;
}

static PyObject *writer_append(WriterObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names) {
    if (AC_LIKELY(!names && count == 1 && PyBytes_CheckExact(args[0])))
        return append_area(self, PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), NULL, 0,
                           AC_NOW, NULL);
    return append_with_options(self, args, count, names);
}

/* Not an option of append, so that appends without it do not pay for it. */
static PyObject *writer_append_expiring(WriterObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"payload", "expires_ns", "type_id", "timestamp_ns",
                            "key",     "headers",    NULL};
    PyObject *payload, *expires, *type_object = NULL, *timestamp = NULL;
    PyObject *key = NULL, *headers = NULL;
    unsigned type_id = 0;
    uint64_t timestamp_ns = AC_NOW;
    ac_cause_t expiry = {.is_expiry = 1};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|$OOOO", names, &payload, &expires,
                                     &type_object, &timestamp, &key, &headers) ||
        timestamp_argument("expires_ns", expires, &expiry.source) < 0 ||
        type_argument(type_object, &type_id) < 0 ||
        optional_timestamp_argument(timestamp, &timestamp_ns) < 0)
        return NULL;
    return append_with_trailer(self, payload, key, headers, type_id, timestamp_ns, &expiry);
}

/* ---- append_many ---- */

typedef struct {
    PyObject *sequence;
    ac_slice_t *slices;
    uint64_t *timestamps;
    ac_cause_t room; /* for the cause, if there is one */
    const ac_cause_t *cause;
    int clocked;          /* they are all one reading of the caller's clock */
    ac_slice_t *trailers; /* NULL: no message has one */
    PyObject *held;       /* list of their bytes */
    Py_buffer *buffers;   /* only for items that are not bytes */
    Py_ssize_t count, buffered;
    uint64_t end; /* the seq after its last one */
} batch_t;

static void batch_clear(batch_t *batch) {
    for (Py_ssize_t i = 0; i < batch->buffered; i++)
        PyBuffer_Release(&batch->buffers[i]);
    PyMem_Free(batch->buffers);
    PyMem_Free(batch->slices);
    PyMem_Free(batch->timestamps);
    PyMem_Free(batch->trailers);
    Py_XDECREF(batch->held);
    Py_XDECREF(batch->sequence);
}

/* Slices point into bytes that only the caller's list may hold, and it can change as soon as other code
 * runs: from then on a tuple holds them. */
static int batch_hold(batch_t *batch) {
    if (PyTuple_CheckExact(batch->sequence)) return 0;
    PyObject *held = PySequence_Tuple(batch->sequence);
    if (!held) return -1;
    Py_SETREF(batch->sequence, held);
    return 0;
}

static int batch_add(batch_t *batch, Py_ssize_t i, PyObject *item) {
    if (AC_LIKELY(PyBytes_CheckExact(item))) {
        batch->slices[i].data = PyBytes_AS_STRING(item);
        batch->slices[i].length = (size_t)PyBytes_GET_SIZE(item);
        return 0;
    }
    if (!batch->buffers) {
        if (batch_hold(batch) < 0) return -1;
        batch->buffers = PyMem_Calloc((size_t)batch->count, sizeof *batch->buffers);
        if (!batch->buffers) {
            PyErr_NoMemory();
            return -1;
        }
    }
    Py_buffer *buffer = &batch->buffers[batch->buffered];
    if (payload_argument("each payload", item, buffer) < 0) return -1;
    batch->buffered++;
    batch->slices[i].data = buffer->buf;
    batch->slices[i].length = (size_t)buffer->len;
    return 0;
}

/* A list or tuple of what it iterates over; one payload is no sequence of them. Without an interpreter lock
 * another thread may change a list at any time, so then it is a tuple. */
static PyObject *sequence_argument(const char *name, const char *wanted, PyObject *object) {
#ifdef Py_GIL_DISABLED
    if (PyList_CheckExact(object)) return PySequence_Tuple(object);
#endif
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) return Py_NewRef(object);
    int alone = PyBytes_Check(object) || PyUnicode_Check(object) || PyByteArray_Check(object);
    PyObject *iterator = alone ? NULL : PyObject_GetIter(object);
    if (!iterator) {
        if (!alone && !PyErr_ExceptionMatches(PyExc_TypeError)) return NULL;
        PyErr_Clear();
        refuse_type(name, wanted, object);
        return NULL;
    }
    PyObject *list = PySequence_List(iterator);
    Py_DECREF(iterator);
    return list;
}

static int batch_timestamps(batch_t *batch, PyObject *object) {
    if (!object || object == Py_None) return 0;
    PyObject *sequence = sequence_argument("timestamps_ns", "a sequence of ints", object);
    if (!sequence) return -1;
    int rc = -1;
    if (PySequence_Fast_GET_SIZE(sequence) != batch->count) {
        PyObject *found = PyLong_FromSsize_t(PySequence_Fast_GET_SIZE(sequence));
        if (found) refuse_value("the number of timestamps_ns", "that of the payloads", found);
        Py_XDECREF(found);
    } else if (!(batch->timestamps =
                     PyMem_Malloc((size_t)batch->count * sizeof *batch->timestamps + 1))) {
        PyErr_NoMemory();
    } else {
        rc = 0;
        for (Py_ssize_t i = 0; i < batch->count && rc == 0; i++)
            rc = timestamp_argument("each of timestamps_ns", PySequence_Fast_GET_ITEM(sequence, i),
                                    &batch->timestamps[i]);
    }
    Py_DECREF(sequence);
    return rc;
}

/* A tuple with something for each message, or NULL: nothing was given, or with an exception. */
static PyObject *one_for_each(const batch_t *batch, const char *name, const char *wanted,
                              PyObject *object) {
    if (!object) return NULL;
    PyObject *given = sequence_argument(name, wanted, object);
    PyObject *tuple = given ? PySequence_Tuple(given) : NULL;
    Py_XDECREF(given);
    if (!tuple || PyTuple_GET_SIZE(tuple) == batch->count) return tuple;
    PyObject *found = PyLong_FromSsize_t(PyTuple_GET_SIZE(tuple));
    if (found) refuse_value(name, "as many as there are payloads", found);
    Py_XDECREF(found);
    Py_DECREF(tuple);
    return NULL;
}

static int batch_fill_trailers(batch_t *batch, PyObject *keys, PyObject *headers) {
    batch->trailers = PyMem_Calloc((size_t)batch->count + 1, sizeof *batch->trailers);
    batch->held = PyList_New(0);
    if (!batch->trailers || !batch->held) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        PyObject *bytes;
        if (trailer_argument(keys ? PyTuple_GET_ITEM(keys, i) : NULL,
                             headers ? PyTuple_GET_ITEM(headers, i) : NULL, &bytes) < 0)
            return -1;
        if (!bytes) continue;
        batch->trailers[i] = slice_of(bytes);
        int rc = PyList_Append(batch->held, bytes);
        Py_DECREF(bytes);
        if (rc < 0) return -1;
    }
    if (PyList_GET_SIZE(batch->held) > 0) return 0;
    PyMem_Free(batch->trailers);
    batch->trailers = NULL;
    return 0;
}

static int batch_trailers(batch_t *batch, const options_t *options) {
    if (!options->key && !options->headers) return 0;
    int rc = -1;
    PyObject *keys = one_for_each(batch, "keys", "a sequence of bytes or None", options->key);
    PyObject *headers =
        PyErr_Occurred()
            ? NULL
            : one_for_each(batch, "headers", "a sequence of mappings or None", options->headers);
    if (!PyErr_Occurred()) rc = batch_fill_trailers(batch, keys, headers);
    Py_XDECREF(keys);
    Py_XDECREF(headers);
    return rc;
}

/* One reading of the caller's clock serves the whole batch, as the engine's own would. */
static int batch_clock(WriterObject *self, batch_t *batch) {
    uint64_t now = AC_NOW;
    if (!self->clock || batch->timestamps || batch->count == 0) return 0;
    if (take_time(self, &now) < 0) return -1;
    batch->clocked = 1;
    batch->timestamps = PyMem_Malloc((size_t)batch->count * sizeof *batch->timestamps);
    if (!batch->timestamps) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < batch->count; i++)
        batch->timestamps[i] = now;
    return 0;
}

static void batch_in_order(WriterObject *self, const batch_t *batch) {
    if (!batch->clocked) return;
    uint64_t now = in_order(self, CLOCKED, batch->timestamps[0]);
    for (Py_ssize_t i = 0; i < batch->count; i++)
        batch->timestamps[i] = now;
}

static int64_t append_batch(WriterObject *self, batch_t *batch, unsigned type_id, ac_error_t *err) {
    batch_in_order(self, batch);
    int64_t first;
    if (AC_UNLIKELY(batch->trailers != NULL))
        first = ac_writer_append_many_trailers(self->writer, batch->slices, batch->trailers,
                                               (size_t)batch->count, type_id, batch->timestamps,
                                               batch->cause, err);
    else
        first = ac_writer_append_many_cause(self->writer, batch->slices, (size_t)batch->count,
                                            type_id, batch->timestamps, batch->cause, err);
    batch->end = self->writer->seq;
    return first;
}

/* The first seq; AC_E_SLOW if that may take a while. */
static int64_t try_append_batch(WriterObject *self, batch_t *batch, unsigned type_id,
                                ac_error_t *err) {
    uint64_t size = 0;
    int64_t seq = AC_E_SLOW;
    for (Py_ssize_t i = 0; i < batch->count; i++)
        size += ac_record_size(batch->slices[i].length);
    for (Py_ssize_t i = 0; batch->trailers && i < batch->count; i++)
        size += ac_record_size(batch->trailers[i].length);
    HOT_BEGIN(self);
    if (!self->busy && self->writer->offset + size <= ac_load_relaxed_u64(&self->writer->limit))
        seq = append_batch(self, batch, type_id, err);
    HOT_END();
    return seq;
}

static int64_t append_batch_slow(WriterObject *self, batch_t *batch, unsigned type_id,
                                 ac_error_t *err) {
    int64_t seq = begin_slow(self, err);
    if (seq < 0) return seq;
    Py_BEGIN_ALLOW_THREADS;
    seq = append_batch(self, batch, type_id, err);
    Py_END_ALLOW_THREADS;
    end_slow(self);
    return seq;
}

static PyObject *new_range(int64_t first, uint64_t end) {
    return PyObject_CallFunction((PyObject *)&PyRange_Type, "LL", (long long)first, (long long)end);
}

/* To a Java queue by our caller's clock, which is asked for each message: the cycle may end in between. */
static PyObject *append_each(WriterObject *self, const batch_t *batch, unsigned type_id) {
    long long first = (long long)ac_load_acquire_u64(&self->writer->seq), last = first - 1;
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        PyObject *seq =
            append_buffer(self, batch->slices[i].data, (Py_ssize_t)batch->slices[i].length, type_id,
                          AC_NOW, batch->cause);
        if (!seq) return NULL;
        last = PyLong_AsLongLong(seq);
        if (i == 0) first = last;
        Py_DECREF(seq);
    }
    return new_range(first, (uint64_t)last + 1);
}

static PyObject *writer_append_many(WriterObject *self, PyObject *const *args, Py_ssize_t count,
                                    PyObject *names) {
    options_t options = {.first = count > 0 ? args[0] : NULL};
    unsigned type_id = 0;
    ac_error_t err;
    batch_t batch = {0};
    PyObject *result = NULL;
    if (names &&
        (find_options(args, count, names, "payloads", "keys", "timestamps_ns", &options) < 0 ||
         type_argument(options.type_id, &type_id) < 0 ||
         cause_argument(options.cause, &batch.room, &batch.cause) < 0))
        return NULL;
    if (!options.first || count > 1) {
        PyErr_Format(PyExc_TypeError,
                     "append_many takes 1 positional argument, the payloads; got %zd", count);
        return NULL;
    }
    batch.sequence = sequence_argument("payloads", "a sequence of payloads", options.first);
    if (!batch.sequence) return NULL;
    if ((options.timestamp || options.key || options.headers || self->clock) &&
        batch_hold(&batch) < 0)
        goto done;
    batch.count = PySequence_Fast_GET_SIZE(batch.sequence);
    batch.slices = PyMem_Malloc((size_t)batch.count * sizeof *batch.slices + 1);
    if (!batch.slices) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < batch.count; i++)
        if (batch_add(&batch, i, PySequence_Fast_GET_ITEM(batch.sequence, i)) < 0) goto done;
    if (batch_timestamps(&batch, options.timestamp) < 0 || batch_trailers(&batch, &options) < 0)
        goto done;
    if (self->writer->java && self->clock && !batch.timestamps && !batch.trailers) {
        result = append_each(self, &batch, type_id);
        goto done;
    }
    if (batch_clock(self, &batch) < 0) goto done;
    int64_t first = try_append_batch(self, &batch, type_id, &err);
    if (first == AC_E_SLOW) {
        if (batch_hold(&batch) < 0) goto done;
        first = append_batch_slow(self, &batch, type_id, &err);
    }
    if (first < 0)
        raise_engine_error(&err);
    else
        result = new_range(first, batch.end);
done:
    batch_clear(&batch);
    return result;
}

/* ---- reserve ---- */

static PyObject *writer_reserve(WriterObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"size", "type_id", "timestamp_ns", "cause", "key", "headers", NULL};
    PyObject *size_object, *type_object = NULL, *timestamp = NULL, *cause_object = NULL;
    PyObject *key = NULL, *headers = NULL, *trailer;
    int64_t size;
    unsigned type_id;
    uint64_t timestamp_ns;
    ac_cause_t room;
    const ac_cause_t *cause;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOOOO", names, &size_object, &type_object,
                                     &timestamp, &cause_object, &key, &headers) ||
        integer_argument("size", "an int from 0 to 2**63 - 1", size_object, 0, PY_SSIZE_T_MAX,
                         &size) < 0 ||
        type_argument(type_object, &type_id) < 0 ||
        optional_timestamp_argument(timestamp, &timestamp_ns) < 0 ||
        cause_argument(cause_object, &room, &cause) < 0 ||
        trailer_argument(key, headers, &trailer) < 0)
        return NULL;
    ReservationObject *reservation = PyObject_New(ReservationObject, &Reservation_Type);
    if (!reservation) {
        Py_XDECREF(trailer);
        return NULL;
    }
    reservation->trailer = trailer;
    reservation->writer = (WriterObject *)Py_NewRef(self);
    reservation->view = NULL;
    reservation->map = NULL;
    reservation->room = NULL;
    reservation->size = (Py_ssize_t)size;
    reservation->exports = 0;
    reservation->type_id = type_id;
    reservation->timestamp_ns = timestamp_ns;
    reservation->has_cause = cause != NULL;
    if (cause) reservation->cause = *cause;
    reservation->open = 0;
    reservation->seq = -1;
    return (PyObject *)reservation;
}

/* Ends an open reservation by one of the engine's ways to give it up. Other threads may be trying to append
 * meanwhile, so this needs its turn too. */
static void give_up(WriterObject *writer, void (*how)(ac_writer_t *)) {
    if (is_forked(writer)) {
        how(writer->writer);
        return;
    }
    begin_last(writer);
    how(writer->writer);
    end_slow(writer);
}

static size_t trailer_size(const ReservationObject *self) {
    return self->trailer ? (size_t)PyBytes_GET_SIZE(self->trailer) : 0;
}

static PyObject *reservation_enter(ReservationObject *self, PyObject *unused) {
    (void)unused;
    ac_error_t err;
    int rc;
    WriterObject *writer = self->writer;
    if (self->open || self->seq >= 0) {
        PyErr_SetString(PyExc_RuntimeError, "a reservation can be entered once");
        return NULL;
    }
    rc = begin_slow(writer, &err);
    if (rc != AC_OK) return raise_engine_error(&err);
    Py_BEGIN_ALLOW_THREADS;
    rc = ac_writer_reserve(writer->writer, (size_t)self->size + trailer_size(self), &self->room,
                           &err);
    Py_END_ALLOW_THREADS;
    if (rc == AC_OK) {
        self->map = writer->writer->map;
        ac_map_retain(self->map);
    }
    end_slow(writer);
    if (rc != AC_OK) return raise_engine_error(&err);
    self->open = 1;
    PyObject *view = PyMemoryView_FromObject((PyObject *)self);
    self->view = view ? PyWeakref_NewRef(view, NULL) : NULL;
    if (!self->view) {
        Py_XDECREF(view);
        self->open = 0;
        give_up(writer, ac_writer_abort);
        return NULL;
    }
    return view;
}

static int reservation_release_view(ReservationObject *self) {
    PyObject *view = PyObject_CallNoArgs(self->view);
    if (view && view != Py_None) {
        PyObject *released = PyObject_CallMethod(view, "release", NULL);
        if (!released) PyErr_Clear(); /* something exported from it: counted below */
        Py_XDECREF(released);
    }
    Py_XDECREF(view);
    if (self->exports == 0) return 0;
    PyErr_SetString(PyExc_BufferError,
                    "the reserved memory is still referenced (a slice, an array); nothing was "
                    "written. Release it before leaving the with block");
    return -1;
}

static PyObject *reservation_exit(ReservationObject *self, PyObject *args) {
    PyObject *type, *value, *traceback;
    ac_error_t err;
    int64_t seq;
    WriterObject *writer = self->writer;
    if (!PyArg_ParseTuple(args, "OOO", &type, &value, &traceback)) return NULL;
    if (!self->open) Py_RETURN_FALSE;
    self->open = 0;
    if (reservation_release_view(self) < 0) {
        give_up(writer, ac_writer_abandon);
        if (type == Py_None) return NULL;
        PyErr_Clear(); /* the exception of the block goes first */
        Py_RETURN_FALSE;
    }
    if (type != Py_None) {
        give_up(writer, ac_writer_abort);
        Py_RETURN_FALSE;
    }
    uint64_t timestamp_ns = self->timestamp_ns;
    int clocked = take_time(writer, &timestamp_ns);
    if (clocked < 0) {
        give_up(writer, ac_writer_abort);
        return NULL;
    }
    if (begin_slow(writer, &err) != AC_OK) {
        raise_engine_error(&err);
        give_up(writer, ac_writer_abort);
        return NULL;
    }
    timestamp_ns = in_order(writer, clocked, timestamp_ns);
    ac_slice_t trailer = {0};
    if (self->trailer) trailer = slice_of(self->trailer);
    Py_BEGIN_ALLOW_THREADS;
    seq = ac_writer_commit_trailer(writer->writer, self->trailer ? &trailer : NULL, self->type_id,
                                   timestamp_ns, self->has_cause ? &self->cause : NULL, &err);
    Py_END_ALLOW_THREADS;
    end_slow(writer);
    if (seq < 0) return raise_engine_error(&err);
    self->seq = seq;
    Py_RETURN_FALSE;
}

static int reservation_getbuffer(ReservationObject *self, Py_buffer *view, int flags) {
    if (!self->open) {
        PyErr_SetString(PyExc_BufferError, "the reservation is not open");
        return -1;
    }
    if (PyBuffer_FillInfo(view, (PyObject *)self, self->room, self->size, 0, flags) < 0) return -1;
    HOT_BEGIN(self);
    self->exports++;
    HOT_END();
    return 0;
}

static void reservation_releasebuffer(ReservationObject *self, Py_buffer *view) {
    (void)view;
    HOT_BEGIN(self);
    self->exports--;
    HOT_END();
}

static void reservation_dealloc(ReservationObject *self) {
    if (self->open) give_up(self->writer, ac_writer_abort);
    ac_map_release(self->map);
    Py_XDECREF(self->view);
    Py_XDECREF(self->trailer);
    Py_DECREF(self->writer);
    PyObject_Free(self);
}

static PyObject *reservation_seq(ReservationObject *self, void *unused) {
    (void)unused;
    if (self->seq < 0) Py_RETURN_NONE;
    return PyLong_FromLongLong(self->seq);
}

static PyMethodDef reservation_methods[] = {
    {"__enter__", (PyCFunction)reservation_enter, METH_NOARGS,
     "__enter__($self, /)\n--\n\n"
     "Return the reserved bytes as a writable memoryview."},
    {"__exit__", (PyCFunction)reservation_exit, METH_VARARGS,
     "__exit__($self, exc_type, exc, traceback, /)\n--\n\n"
     "Commit the message; after an exception nothing is written."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef reservation_properties[] = {
    {"seq", (getter)reservation_seq, NULL, "The message's seq once it is committed, else None.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyBufferProcs reservation_buffer = {
    .bf_getbuffer = (getbufferproc)reservation_getbuffer,
    .bf_releasebuffer = (releasebufferproc)reservation_releasebuffer,
};

PyTypeObject Reservation_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle.Reservation",
    .tp_basicsize = sizeof(ReservationObject),
    .tp_dealloc = (destructor)reservation_dealloc,
    .tp_as_buffer = &reservation_buffer,
    .tp_methods = reservation_methods,
    .tp_getset = reservation_properties,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = PyDoc_STR("Room for one message inside the segment; a context manager."),
};

/* ---- the rest of the writer ---- */

static PyObject *writer_heartbeat(WriterObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"timestamp_ns", NULL};
    PyObject *timestamp = NULL;
    uint64_t timestamp_ns;
    ac_error_t err;
    int rc, clocked;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O", names, &timestamp) ||
        optional_timestamp_argument(timestamp, &timestamp_ns) < 0 ||
        (clocked = take_time(self, &timestamp_ns)) < 0)
        return NULL;
    if (begin_slow(self, &err) != AC_OK) return raise_engine_error(&err);
    timestamp_ns = in_order(self, clocked, timestamp_ns);
    rc = ac_writer_heartbeat(self->writer, timestamp_ns, &err);
    end_slow(self);
    if (rc != AC_OK) return raise_engine_error(&err);
    Py_RETURN_NONE;
}

/* For the thread that gives the heartbeats of all writers: it may not wait for one that is busy, perhaps with
 * waiting for room. False: it is. */
static PyObject *writer_try_heartbeat(WriterObject *self, PyObject *unused) {
    (void)unused;
    ac_error_t err;
    int rc;
    if (!PyThread_acquire_lock(self->turn, NOWAIT_LOCK)) Py_RETURN_FALSE;
    have_turn(self);
    rc = ac_writer_heartbeat(self->writer, AC_NOW, &err);
    end_slow(self);
    if (rc != AC_OK) return raise_engine_error(&err);
    Py_RETURN_TRUE;
}

/* In a handler of the call that has the turn there is no turn to wait for: that call only waits for room, and
 * finds the writer closed when it looks again. */
static PyObject *writer_close(WriterObject *self, PyObject *unused) {
    (void)unused;
    ac_error_t err;
    int rc, nested = is_our_turn(self);
    if (is_forked(self)) Py_RETURN_NONE;
    ac_store_relaxed_u32(&self->writer->closing,
                         1); /* the thread that has the turn may wait forever */
    if (nested && self->writer->java) Py_RETURN_NONE; /* the call closes it: see ac_java_append */
    if (!nested) begin_last(self);
    Py_BEGIN_ALLOW_THREADS;
    rc = ac_writer_close(self->writer, &err);
    Py_END_ALLOW_THREADS;
    if (!nested) end_slow(self);
    if (rc != AC_OK) return raise_engine_error(&err);
    Py_RETURN_NONE;
}

static PyObject *writer_address(WriterObject *self, void *unused) {
    (void)unused;
    return PyLong_FromVoidPtr(self->writer);
}

static PyObject *writer_next_seq(WriterObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(ac_load_acquire_u64(&self->writer->seq));
}

static PyObject *writer_closed(WriterObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(ac_load_relaxed_u32(&self->writer->state) != AC_STATE_OPEN);
}

static PyObject *writer_gone(WriterObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(ac_writer_check_removed(self->writer, NULL) != AC_OK);
}

static PyMethodDef writer_methods[] = {
    {"append", (PyCFunction)(void (*)(void))writer_append, METH_FASTCALL | METH_KEYWORDS,
     "append($self, payload, *, type_id=0, timestamp_ns=None, cause=None, key=None, "
     "headers=None)\n--\n\n"
     "Append one message and return its seq. Readers can see it before append returns."},
    {"append_expiring", (PyCFunction)(void (*)(void))writer_append_expiring,
     METH_VARARGS | METH_KEYWORDS,
     "append_expiring($self, payload, expires_ns, *, type_id=0, timestamp_ns=None, key=None, "
     "headers=None)\n--\n\n"
     "Append a message that is of no use after this time, in Unix nanoseconds. Readers get it all "
     "the same; its expires_ns tells them. It has no cause."},
    {"append_many", (PyCFunction)(void (*)(void))writer_append_many, METH_FASTCALL | METH_KEYWORDS,
     "append_many($self, payloads, *, type_id=0, timestamps_ns=None, cause=None, keys=None, "
     "headers=None)\n--\n\n"
     "Append all messages so that readers see either none or all of them; return their seqs. To a "
     "Java queue they are appended one by one, and the seqs of others may lie between."},
    {"reserve", (PyCFunction)(void (*)(void))writer_reserve, METH_VARARGS | METH_KEYWORDS,
     "reserve($self, size, *, type_id=0, timestamp_ns=None, cause=None, key=None, "
     "headers=None)\n--\n\n"
     "Reserve room for a message: `with writer.reserve(n) as room` gives a writable memoryview "
     "inside the segment. After an exception in the block nothing is written."},
    {"heartbeat", (PyCFunction)(void (*)(void))writer_heartbeat, METH_VARARGS | METH_KEYWORDS,
     "heartbeat($self, timestamp_ns=None)\n--\n\n"
     "Promise that no message older than this, or than now, will be appended."},
    {"_try_heartbeat", (PyCFunction)writer_try_heartbeat, METH_NOARGS,
     "_try_heartbeat($self, /)\n--\n\n"
     "heartbeat() of now, unless that would have to wait; return whether it was made."},
    {"close", (PyCFunction)writer_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Sync everything, mark the queue as cleanly closed, release the lock."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef writer_properties[] = {
    {"_address", (getter)writer_address, NULL, "The engine's handle.", NULL},
    {"next_seq", (getter)writer_next_seq, NULL, "The seq that the next message will get.", NULL},
    {"closed", (getter)writer_closed, NULL, "True after close(), and in a forked child.", NULL},
    {"gone", (getter)writer_gone, NULL,
     "True once the queue was found to be removed or moved away: appending raises QueueGone.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject Writer_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Writer",
    .tp_basicsize = sizeof(WriterObject),
    .tp_new = writer_new,
    .tp_init = (initproc)writer_init,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_methods = writer_methods,
    .tp_getset = writer_properties,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Per-message half of a writer; takes over an engine handle.",
};
