/* The Writer type: construction, heartbeats, closing, properties. How it appends is in writer_append.c,
 * writer_append_many.c and reservation.c. */
#include "writer_object.h"

/* The handle of an object that was never initialised: a closed writer, so that every call has an answer. */
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

/* Called without the interpreter's lock, during a wait: an exception of a signal handler ends the wait. So
 * does a handler that closes the writer. */
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

static PyObject *writer_heartbeat(WriterObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"timestamp_ns", NULL};
    PyObject *timestamp = NULL;
    uint64_t timestamp_ns;
    ac_error_t err;
    int rc, clocked;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O", names, &timestamp) ||
        optional_timestamp_argument(timestamp, &timestamp_ns) < 0 ||
        (clocked = writer_take_time(self, &timestamp_ns)) < 0)
        return NULL;
    if (writer_begin_slow(self, &err) != AC_OK) return raise_engine_error(&err);
    timestamp_ns = writer_in_order(self, clocked, timestamp_ns);
    rc = ac_writer_heartbeat(self->writer, timestamp_ns, &err);
    writer_end_slow(self);
    if (rc != AC_OK) return raise_engine_error(&err);
    Py_RETURN_NONE;
}

/* For the thread that sends the heartbeats of all writers: it may not wait for one that is busy, perhaps
 * waiting for room. False: it is. */
static PyObject *writer_try_heartbeat(WriterObject *self, PyObject *unused) {
    (void)unused;
    ac_error_t err;
    int rc;
    if (!PyThread_acquire_lock(self->turn, NOWAIT_LOCK)) Py_RETURN_FALSE;
    writer_have_turn(self);
    rc = ac_writer_heartbeat(self->writer, AC_NOW, &err);
    writer_end_slow(self);
    if (rc != AC_OK) return raise_engine_error(&err);
    Py_RETURN_TRUE;
}

/* In a signal handler of the call that has the turn there is no turn to wait for: that call only waits for
 * room, and finds the writer closed when it looks again. */
static PyObject *writer_close(WriterObject *self, PyObject *unused) {
    (void)unused;
    ac_error_t err;
    int rc, nested = writer_is_our_turn(self);
    if (writer_is_forked(self)) Py_RETURN_NONE;
    ac_store_relaxed_u32(&self->writer->closing,
                         1); /* the thread that has the turn may wait without limit */
    if (nested && self->writer->java) Py_RETURN_NONE; /* the call closes it: see ac_java_append */
    if (!nested) writer_begin_last(self);
    Py_BEGIN_ALLOW_THREADS;
    rc = ac_writer_close(self->writer, &err);
    Py_END_ALLOW_THREADS;
    if (!nested) writer_end_slow(self);
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
     "Append a message that expires at this time, in Unix nanoseconds. Readers get it all "
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
     "Send heartbeat() of now, unless that would have to wait; return whether it was sent."},
    {"close", (PyCFunction)writer_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Sync everything, mark the queue as cleanly closed and release the lock."},
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
