#include "hot.h"

#include "cq4_reader.h"
#include "os.h"

typedef struct {
    PyObject_HEAD
    ReaderObject *reader;
} ReaderIteratorObject;

static const pollable_ops_t reader_ops;

/* The handle of an object that was never initialised: a closed reader, so that every call has an answer. */
static ac_reader_t nobody = {.state = AC_STATE_CLOSED, .control = &ac_control_of_nobody};

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)args;
    (void)keywords;
    ReaderObject *self = (ReaderObject *)type->tp_alloc(type, 0);
    if (self) {
        self->reader = &nobody;
        self->base.ops = &reader_ops;
    }
    return (PyObject *)self;
}

static int reader_init(ReaderObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"address", "source",      "queue_id", "commit_every", "burst",
                            "spin_ns", "poll_max_ns", "decoders", "timestamp",    NULL};
    unsigned long long address, queue_id, commit_every, spin_ns, poll_max_ns;
    unsigned burst;
    PyObject *source, *decoders, *timestamp;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "KUKKIKKOO", names, &address, &source,
                                     &queue_id, &commit_every, &burst, &spin_ns, &poll_max_ns,
                                     &decoders, &timestamp))
        return -1;
    if (self->reader != &nobody) {
        PyErr_SetString(PyExc_RuntimeError, "reader is initialised already");
        return -1;
    }
    self->reader = (ac_reader_t *)(uintptr_t)address;
    self->source = Py_NewRef(source);
    self->decoders = Py_NewRef(decoders);
    self->timestamp = Py_NewRef(timestamp);
    self->queue_id = queue_id;
    self->commit_every = commit_every;
    self->base.burst = burst;
    self->base.spin_ns = spin_ns;
    self->base.poll_max_ns = self->reader->poll_max_ns = poll_max_ns;
    return 0;
}

static int reader_traverse(ReaderObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->decoders);
    Py_VISIT(self->timestamp);
    return pollable_traverse(&self->base, visit, arg);
}

static int reader_clear(ReaderObject *self) {
    pollable_clear(&self->base);
    return 0;
}

static void reader_dealloc(ReaderObject *self) {
    PyObject_GC_UnTrack(self);
    if (pollable_leave_loop(&self->base) < 0) PyErr_WriteUnraisable(NULL);
    reader_clear(self);
    ac_reader_t *reader = self->reader;
    self->reader = &nobody;
    if (reader != &nobody) {
        Py_BEGIN_ALLOW_THREADS;
        ac_reader_free(reader);
        Py_END_ALLOW_THREADS;
    }
    Py_XDECREF(self->segment);
    Py_XDECREF(self->source);
    Py_XDECREF(self->decoders);
    Py_XDECREF(self->timestamp);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

uint64_t reader_queue_id(ReaderObject *self) {
    uint64_t id = ac_load_relaxed_u64(&self->queue_id);
    if (id != 0) return id;
    /* Perhaps the queue did not exist yet when the reader was opened. */
    id = ac_load_relaxed_u64(&self->reader->control->queue_id);
    ac_store_relaxed_u64(&self->queue_id, id);
    return id;
}

uint64_t reader_id_of(ReaderObject *self, uint32_t segment) {
    uint64_t id = ac_control_id_of(self->reader->control, segment);
    return id ? id : reader_queue_id(self);
}

/* Queues of other programs have no id: for those, only messages that this very reader returned are known to
 * be its own, since a removed directory's inode number may be reused. A Java queue's messages have an
 * index, which is checked. */
int reader_is_of(ReaderObject *self, const SegmentObject *segment) {
    const ac_directory_t *dir = &self->reader->dir;
    int is_same = segment->file
                      ? self->reader->java != NULL
                      : segment->queue_id != 0 && segment->queue_id == reader_queue_id(self);
    return segment->decoders == self->decoders ||
           (is_same && segment->device == (uint64_t)dir->device &&
            segment->inode == (uint64_t)dir->inode);
}

static PyObject *reader_is_of_message(ReaderObject *self, PyObject *message) {
    if (!Py_IS_TYPE(message, &Message_Type)) {
        refuse_type("message", "a Message", message);
        return NULL;
    }
    return PyBool_FromLong(reader_is_of(self, ((MessageObject *)message)->segment));
}

static int enter_segment(ReaderObject *self) {
    SegmentObject *segment = segment_new(self->reader->map, self);
    if (!segment) return -1;
    Py_XSETREF(self->segment, segment);
    return 0;
}

/* What was handed out before has been processed: the caller is asking for more. What a fan-in has read
 * ahead was not handed out. */
static int commit_when_due(ReaderObject *self) {
    ac_error_t err;
    uint64_t segment, offset;
    if (!self->commit_every || self->uncommitted < self->commit_every) return 0;
    self->uncommitted = 0;
    ac_reader_position(self->reader, &segment, &offset);
    if (ac_reader_commit(self->reader, segment, offset, 0, &err) == AC_OK) return 0;
    raise_engine_error(&err);
    return -1;
}

/* Whatever is not simply the next message of the current segment. 1 = taken, 0 = nothing available now. */
static __attribute__((noinline)) int take_slow(ReaderObject *self, ac_message_t *message,
                                               int in_loop) {
    ac_error_t err;
    if (ac_cq4_reader_try_next(self->reader, message) == 1) return 1;
    int rc = in_loop ? ac_reader_next_in_loop(self->reader, message, &err)
                     : ac_reader_next(self->reader, message, &err);
    if (rc < 0) raise_engine_error(&err);
    return rc;
}

static inline PyObject *fetch(ReaderObject *self, int in_loop) {
    ac_message_t message;
    if (AC_UNLIKELY(ac_reader_try_next(self->reader, &message) != 1) &&
        take_slow(self, &message, in_loop) != 1)
        return NULL;
    PyObject *made = NULL;
    if (AC_LIKELY(self->segment && self->segment->map == self->reader->map) ||
        enter_segment(self) == 0)
        made = message_new(self->segment, &message);
    if (AC_LIKELY(made != NULL))
        self->uncommitted++;
    else
        ac_reader_unread(self->reader, &message); /* no memory: it is there for the next call */
    return made;
}

/* The next message, or NULL: with an exception set, or nothing available now. */
static inline PyObject *reader_take(ReaderObject *self, int in_loop) {
    return commit_when_due(self) < 0 ? NULL : fetch(self, in_loop);
}

static PyObject *ops_take(Pollable *self) {
    return reader_take((ReaderObject *)self, 1);
}

static int ops_commit_due(Pollable *self) {
    return commit_when_due((ReaderObject *)self);
}

static int ops_ready(Pollable *self, ac_error_t *err) {
    return ac_reader_ready_in_loop(((ReaderObject *)self)->reader, err);
}

static int ops_park(Pollable *self, ac_error_t *err) {
    ac_reader_t *reader = ((ReaderObject *)self)->reader;
    reader->poll_max_ns = self->poll_max_ns; /* a fan-in may have had it */
    int rc = ac_reader_park(reader, err);
    self->poll_limit_ns = ac_reader_poll_max_ns(reader);
    return rc;
}

static int ops_eventfd(Pollable *self, ac_error_t *err) {
    return ac_reader_eventfd(((ReaderObject *)self)->reader, err);
}

static int ops_closed(Pollable *self) {
    return ac_load_relaxed_u32(&((ReaderObject *)self)->reader->state) == 1;
}

static ac_eventfd_t *ops_eventfd_object(Pollable *self) {
    return ((ReaderObject *)self)->reader->eventfd;
}

static const pollable_ops_t reader_ops = {ops_take,    ops_commit_due, ops_ready,         ops_park,
                                          ops_eventfd, ops_closed,     ops_eventfd_object};

static PyObject *reader_poll(ReaderObject *self, PyObject *unused) {
    (void)unused;
    PyObject *message;
    POLLABLE_SECTION_BEGIN(self);
    message = reader_take(self, 0);
    POLLABLE_SECTION_END();
    if (!message && !PyErr_Occurred()) Py_RETURN_NONE;
    return message;
}

static int batch_limits(PyObject *const *args, Py_ssize_t count, PyObject *names,
                        Py_ssize_t *max_messages, Py_ssize_t *max_bytes) {
    PyObject *values[2] = {NULL, NULL};
    static const char *const known[2] = {"max_messages", "max_bytes"};
    if (count > 2) {
        PyErr_SetString(PyExc_TypeError, "read_batch takes at most 2 positional arguments");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        values[i] = args[i];
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        int found = 0;
        for (int k = 0; k < 2; k++)
            if (PyUnicode_CompareWithASCIIString(name, known[k]) == 0) {
                values[k] = args[count + i];
                found = 1;
            }
        if (!found) {
            PyErr_Format(PyExc_TypeError, "read_batch has no argument %R", name);
            return -1;
        }
    }
    *max_messages = 1024;
    *max_bytes = PY_SSIZE_T_MAX;
    return limit_argument(known[0], values[0], max_messages) < 0 ||
                   limit_argument(known[1], values[1], max_bytes) < 0
               ? -1
               : 0;
}

/* Nothing of the batch is committed while it is collected: the caller has not seen any of it. An error
 * after the first message is not lost: the position stays, and the next call raises it. */
static PyObject *collect(ReaderObject *self, Py_ssize_t max_messages, Py_ssize_t max_bytes) {
    PyObject *list = commit_when_due(self) < 0 ? NULL : PyList_New(0);
    Py_ssize_t bytes = 0;
    while (list && PyList_GET_SIZE(list) < max_messages) {
        ac_mark_t mark = ac_reader_mark(self->reader);
        PyObject *message = fetch(self, 0);
        if (!message) {
            if (!PyErr_Occurred()) break;
            if (PyList_GET_SIZE(list) == 0)
                Py_CLEAR(list);
            else
                PyErr_Clear();
            break;
        }
        uint32_t length = ((MessageObject *)message)->length;
        int fits = (Py_ssize_t)length <= max_bytes - bytes || PyList_GET_SIZE(list) == 0;
        ac_message_t last = {.record = ((MessageObject *)message)->record,
                             .seq = ((MessageObject *)message)->seq,
                             .length = message_area_length((MessageObject *)message)};
        int taken = fits && PyList_Append(list, message) == 0;
        Py_DECREF(message);
        if (!taken) {
            ac_reader_return(self->reader, &mark, &last);
            self->uncommitted--;
            if (PyList_GET_SIZE(list) == 0)
                Py_CLEAR(list);
            else
                PyErr_Clear();
            break;
        }
        bytes += (Py_ssize_t)length;
    }
    return list;
}

static PyObject *reader_read_batch(ReaderObject *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names) {
    Py_ssize_t max_messages, max_bytes;
    PyObject *list;
    if (batch_limits(args, count, names, &max_messages, &max_bytes) < 0) return NULL;
    POLLABLE_SECTION_BEGIN(self);
    list = collect(self, max_messages, max_bytes);
    POLLABLE_SECTION_END();
    return list;
}

/* The next message, if it belongs into the block. 0 = it does not, or nothing is available; an error after
 * the first one is not lost: the position stays, and the next call raises it. */
static int add_one(ReaderObject *self, BlockObject *block) {
    ac_message_t message;
    ac_mark_t mark = ac_reader_mark(self->reader);
    if (ac_reader_try_next(self->reader, &message) != 1 && take_slow(self, &message, 0) != 1) {
        if (!PyErr_Occurred()) return 0;
        if (block_count(block) == 0) return -1;
        PyErr_Clear();
        return 0;
    }
    int has_segment =
        (self->segment && self->segment->map == self->reader->map) || enter_segment(self) == 0;
    if (has_segment && block_add(block, self->segment, &message)) return 1;
    ac_reader_return(self->reader, &mark, &message);
    return has_segment ? 0 : -1;
}

static int fill_block(ReaderObject *self, BlockObject *block) {
    int rc = commit_when_due(self) < 0 ? -1 : 1;
    while (rc == 1 && !block_is_full(block)) {
        rc = add_one(self, block);
        if (rc == 1) block_take_run(block, self->reader);
    }
    if (rc >= 0) self->uncommitted += (uint64_t)block_count(block);
    return rc;
}

static PyObject *reader_read_block(ReaderObject *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names) {
    Py_ssize_t max_messages = 1024;
    int rc;
    if (only_argument(&count, names, "max_messages") < 0 ||
        limit_argument("max_messages", count ? args[0] : NULL, &max_messages) < 0)
        return NULL;
    BlockObject *block = block_new(max_messages);
    if (!block) return NULL;
    POLLABLE_SECTION_BEGIN(self);
    rc = fill_block(self, block);
    POLLABLE_SECTION_END();
    if (rc < 0) Py_CLEAR(block);
    return (PyObject *)block;
}

/* For messages that leave in columns instead of one by one: with _commit_due, the steps of reader_take. */
static PyObject *reader_took(ReaderObject *self, PyObject *messages) {
    unsigned long long count = PyLong_AsUnsignedLongLong(messages);
    if (PyErr_Occurred()) return NULL;
    POLLABLE_SECTION_BEGIN(self);
    self->uncommitted += count;
    POLLABLE_SECTION_END();
    Py_RETURN_NONE;
}

static int commit_behind(ReaderObject *self, const MessageObject *message, ac_error_t *err) {
    uint64_t segment, offset;
    self->uncommitted = 0;
    if (!message) {
        ac_reader_position(self->reader, &segment, &offset);
        return ac_reader_commit(self->reader, segment, offset, 0, err);
    }
    if (self->reader->java) return ac_cq4_reader_commit_seq(self->reader, message->seq + 1, 0, err);
    segment = message->segment->map->segment;
    offset = message_offset(message) + ac_record_size(message_area_length(message));
    return ac_reader_commit_epoch(self->reader, segment, offset, message_epoch(message), 0, err);
}

static PyObject *reader_commit(ReaderObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names) {
    const MessageObject *message = NULL;
    ac_error_t err;
    int rc;
    if (only_argument(&count, names, "message") < 0) return NULL;
    if (count == 1 && args[0] != Py_None) {
        if (!Py_IS_TYPE(args[0], &Message_Type)) {
            refuse_type("message", "a Message", args[0]);
            return NULL;
        }
        message = (const MessageObject *)args[0];
    }
    int is_ours = 1;
    POLLABLE_SECTION_BEGIN(self);
    if (message) is_ours = reader_is_of(self, message->segment);
    rc = is_ours ? commit_behind(self, message, &err) : AC_OK;
    POLLABLE_SECTION_END();
    if (!is_ours) {
        refuse_value("message", "one of this reader's queue", args[0]);
        return NULL;
    }
    if (rc != AC_OK) return raise_engine_error(&err);
    Py_RETURN_NONE;
}

/* Blocks without the interpreter's lock; checks for signals a few times a second. */
static PyObject *reader_wait(ReaderObject *self, PyObject *args) {
    enum { SLICE_NS = 200000000 };
    unsigned long long timeout_ns, spin_ns;
    ac_error_t err;
    if (!PyArg_ParseTuple(args, "KK", &timeout_ns, &spin_ns)) return NULL;
    uint64_t started = ac_os_monotonic_ns();
    ac_sleep_t sleep = {0};
    for (;;) {
        int rc;
        POLLABLE_SECTION_BEGIN(self);
        rc = ac_reader_ready(self->reader, &err);
        POLLABLE_SECTION_END();
        uint64_t waited = ac_os_monotonic_ns() - started;
        if (rc == 0 && waited < timeout_ns && waited < spin_ns) {
            Py_BEGIN_ALLOW_THREADS;
            for (int i = 0; i < 64; i++)
                ac_cpu_relax();
            Py_END_ALLOW_THREADS;
            if (PyErr_CheckSignals() < 0) return NULL;
            continue;
        }
        if (rc == 0 && waited < timeout_ns) {
            POLLABLE_SECTION_BEGIN(self);
            rc = ac_reader_prepare_sleep(self->reader, &sleep, &err);
            POLLABLE_SECTION_END();
            if (rc == 0) {
                uint64_t left = timeout_ns - waited;
                Py_BEGIN_ALLOW_THREADS;
                ac_reader_sleep(&sleep, left < SLICE_NS ? left : SLICE_NS);
                Py_END_ALLOW_THREADS;
                if (PyErr_CheckSignals() < 0) return NULL;
                continue;
            }
        }
        if (rc < 0) return raise_engine_error(&err);
        return PyBool_FromLong(rc);
    }
}

/* ---- questions that are answered at once ----
 *
 * Here and not through the cffi binding, which releases the interpreter's lock for every call: another thread could read
 * on, or close the reader, in the middle of the answer. */

static PyObject *reader_lag(ReaderObject *self, PyObject *unused) {
    (void)unused;
    ac_lag_t lag;
    ac_way_t way;
    ac_error_t err;
    int rc;
    POLLABLE_SECTION_BEGIN(self);
    rc = ac_reader_begin_lag(self->reader, &lag, &way, &err);
    POLLABLE_SECTION_END();
    if (rc >= 0) {
        Py_BEGIN_ALLOW_THREADS;
        rc = ac_reader_lag_bytes(&way, &lag, &err);
        Py_END_ALLOW_THREADS;
    }
    if (rc < 0) return raise_engine_error(&err);
    timestamp_forget();
    return lag_tuple(&lag);
}

static PyObject *reader_stats(ReaderObject *self, PyObject *unused) {
    (void)unused;
    ac_reader_stats_t stats;
    POLLABLE_SECTION_BEGIN(self);
    ac_reader_stats(self->reader, &stats);
    POLLABLE_SECTION_END();
    return PyBytes_FromStringAndSize((const char *)&stats, sizeof stats);
}

static PyObject *reader_position(ReaderObject *self, PyObject *unused) {
    (void)unused;
    uint64_t segment, offset;
    POLLABLE_SECTION_BEGIN(self);
    ac_reader_position(self->reader, &segment, &offset);
    POLLABLE_SECTION_END();
    return position_new(segment, offset);
}

static PyObject *reader_committed(ReaderObject *self, PyObject *unused) {
    (void)unused;
    uint64_t segment, offset;
    ac_error_t err;
    int rc;
    POLLABLE_SECTION_BEGIN(self);
    rc = ac_reader_committed(self->reader, &segment, &offset, &err);
    POLLABLE_SECTION_END();
    return rc < 0 ? raise_engine_error(&err) : position_new(segment, offset);
}

static PyObject *reader_commit_at(ReaderObject *self, PyObject *args) {
    unsigned long long segment, offset;
    ac_error_t err;
    int rc;
    if (!PyArg_ParseTuple(args, "KK", &segment, &offset)) return NULL;
    POLLABLE_SECTION_BEGIN(self);
    rc = ac_reader_commit(self->reader, segment, offset, 0, &err);
    POLLABLE_SECTION_END();
    if (rc != AC_OK) return raise_engine_error(&err);
    Py_RETURN_NONE;
}

static PyObject *reader_attended(ReaderObject *self, void *unused) {
    (void)unused;
    int attended;
    POLLABLE_SECTION_BEGIN(self);
    attended = ac_reader_attended(self->reader);
    POLLABLE_SECTION_END();
    return PyBool_FromLong(attended);
}

static PyObject *reader_ended(ReaderObject *self, void *unused) {
    (void)unused;
    int ended;
    POLLABLE_SECTION_BEGIN(self);
    ended = ac_reader_ended(self->reader);
    POLLABLE_SECTION_END();
    return PyBool_FromLong(ended);
}

/* What waits for the disk, or takes long, is done without the interpreter's lock: a loop goes on meanwhile. */
static PyObject *reader_close(ReaderObject *self, PyObject *unused) {
    (void)unused;
    int rc = 0, announced;
    ac_map_t *maps = NULL, **before;
    ac_opening_t *opening;
    POLLABLE_SECTION_BEGIN(self);
    announced = ac_reader_begin_retract(self->reader);
    POLLABLE_SECTION_END();
    if (announced) {
        Py_BEGIN_ALLOW_THREADS;
        ac_wake_retract(&self->reader->endpoint);
        Py_END_ALLOW_THREADS;
    }
    POLLABLE_SECTION_BEGIN(self);
    if (announced) ac_reader_end_retract(self->reader);
    rc = pollable_leave_loop(&self->base);
    before = ac_map_collect(&maps);
    opening = ac_reader_take_opening(self->reader);
    ac_reader_close(self->reader);
    Py_CLEAR(self->segment);
    ac_map_collect(before);
    POLLABLE_SECTION_END();
    Py_BEGIN_ALLOW_THREADS;
    ac_opening_free(opening);
    ac_map_unmap(maps);
    Py_END_ALLOW_THREADS;
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *reader_aiter(ReaderObject *self) {
    return awaitable_new(&self->base, AWAIT_ITERATION);
}

static PyObject *reader_iter(ReaderObject *self) {
    ReaderIteratorObject *iterator = PyObject_New(ReaderIteratorObject, &ReaderIterator_Type);
    if (iterator) iterator->reader = (ReaderObject *)Py_NewRef(self);
    return (PyObject *)iterator;
}

static PyObject *reader_address(ReaderObject *self, void *unused) {
    (void)unused;
    return PyLong_FromVoidPtr(self->reader);
}

static PyObject *reader_closed(ReaderObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(ac_load_relaxed_u32(&self->reader->state) != 0);
}

static PyObject *reader_source(ReaderObject *self, void *unused) {
    (void)unused;
    return Py_NewRef(self->source);
}

static PyMethodDef reader_methods[] = {
    {"poll", (PyCFunction)reader_poll, METH_NOARGS,
     "poll($self, /)\n--\n\n"
     "Return the next message if there is one now, else None."},
    {"read_batch", (PyCFunction)(void (*)(void))reader_read_batch, METH_FASTCALL | METH_KEYWORDS,
     "read_batch($self, max_messages=1024, max_bytes=None)\n--\n\n"
     "Return the messages available now, at most this many; at least one if there is any. "
     "Never waits."},
    {"read_block", (PyCFunction)(void (*)(void))reader_read_block, METH_FASTCALL | METH_KEYWORDS,
     "read_block($self, max_messages=1024)\n--\n\n"
     "Return the messages of one segment available now, at most this many, as arrays: a "
     "Block, empty if there is nothing. Never waits."},
    {"commit", (PyCFunction)(void (*)(void))reader_commit, METH_FASTCALL | METH_KEYWORDS,
     "commit($self, message=None)\n--\n\n"
     "Store the position after this message, or after the last one delivered: a reader of this "
     "name resumes there."},
    {"_took", (PyCFunction)reader_took, METH_O,
     "_took($self, messages, /)\n--\n\n"
     "Record that this many messages were handed out."},
    {"_lag", (PyCFunction)reader_lag, METH_NOARGS,
     "_lag($self, /)\n--\n\n"
     "Return (messages, bytes, age_ns)."},
    {"_is_of", (PyCFunction)reader_is_of_message, METH_O,
     "_is_of($self, message, /)\n--\n\n"
     "Return whether the message is from the queue that this reader reads."},
    {"_stats", (PyCFunction)reader_stats, METH_NOARGS,
     "_stats($self, /)\n--\n\n"
     "Return an ac_reader_stats_t as bytes."},
    {"_position", (PyCFunction)reader_position, METH_NOARGS,
     "_position($self, /)\n--\n\n"
     "Return where the next message is."},
    {"_committed", (PyCFunction)reader_committed, METH_NOARGS,
     "_committed($self, /)\n--\n\n"
     "Return the committed position."},
    {"_commit_at", (PyCFunction)reader_commit_at, METH_VARARGS,
     "_commit_at($self, segment, offset, /)\n--\n\n"
     "Commit this position."},
    {"_wait", (PyCFunction)reader_wait, METH_VARARGS,
     "_wait($self, timeout_ns, spin_ns, /)\n--\n\n"
     "Block until there is something to read; False after the timeout."},
    {"close", (PyCFunction)reader_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Release the queue. Messages and views stay valid."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef reader_properties[] = {
    {"_address", (getter)reader_address, NULL, "The engine's handle.", NULL},
    {"attended", (getter)reader_attended, NULL,
     "Whether a writer that wakes this reader is connected now; turns False when it dies.", NULL},
    {"closed", (getter)reader_closed, NULL, "True after close(), and in a forked child.", NULL},
    {"ended", (getter)reader_ended, NULL,
     "Whether the reader has reached the end that end_at() set.", NULL},
    {"source", (getter)reader_source, NULL, "Name of the queue.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyAsyncMethods reader_async = {.am_aiter = (unaryfunc)reader_aiter};

PyTypeObject Reader_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Reader",
    .tp_basicsize = sizeof(ReaderObject),
    .tp_base = &Pollable_Type,
    .tp_new = reader_new,
    .tp_init = (initproc)reader_init,
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_traverse = (traverseproc)reader_traverse,
    .tp_clear = (inquiry)reader_clear,
    .tp_iter = (getiterfunc)reader_iter,
    .tp_as_async = &reader_async,
    .tp_methods = reader_methods,
    .tp_getset = reader_properties,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Per-message half of a reader; takes over an engine handle.",
};

static void iterator_dealloc(ReaderIteratorObject *self) {
    Py_DECREF(self->reader);
    PyObject_Free(self);
}

static PyObject *iterator_next(ReaderIteratorObject *self) {
    PyObject *message;
    POLLABLE_SECTION_BEGIN(self->reader);
    message = reader_take(self->reader, 0);
    POLLABLE_SECTION_END();
    return message;
}

PyTypeObject ReaderIterator_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.ReaderIterator",
    .tp_basicsize = sizeof(ReaderIteratorObject),
    .tp_dealloc = (destructor)iterator_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)iterator_next,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "Iterates over the messages available now.",
};
