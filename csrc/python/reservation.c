/* Writer.reserve: space in the segment that Python code fills through a memoryview. */
#include "writer_object.h"

typedef struct {
    PyObject_HEAD
    WriterObject *writer;
    PyObject *view; /* weak: it holds the reservation, and a forgotten one must end */
    ac_map_t *map;  /* of the space; retained while anything can point into it */
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

PyObject *writer_reserve(WriterObject *self, PyObject *args, PyObject *keywords) {
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

/* Ends an open reservation in one of the engine's ways to drop it. Other threads may be trying to append
 * meanwhile, so this needs its turn too. */
static void give_up(WriterObject *writer, void (*how)(ac_writer_t *)) {
    if (writer_is_forked(writer)) {
        how(writer->writer);
        return;
    }
    writer_begin_last(writer);
    how(writer->writer);
    writer_end_slow(writer);
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
    rc = writer_begin_slow(writer, &err);
    if (rc != AC_OK) return raise_engine_error(&err);
    Py_BEGIN_ALLOW_THREADS;
    rc = ac_writer_reserve(writer->writer, (size_t)self->size + trailer_size(self), &self->room,
                           &err);
    Py_END_ALLOW_THREADS;
    if (rc == AC_OK) {
        self->map = writer->writer->map;
        ac_map_retain(self->map);
    }
    writer_end_slow(writer);
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
        if (!released) PyErr_Clear(); /* a buffer exported from it: counted below */
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
        PyErr_Clear(); /* the exception of the block takes precedence */
        Py_RETURN_FALSE;
    }
    if (type != Py_None) {
        give_up(writer, ac_writer_abort);
        Py_RETURN_FALSE;
    }
    uint64_t timestamp_ns = self->timestamp_ns;
    int clocked = writer_take_time(writer, &timestamp_ns);
    if (clocked < 0) {
        give_up(writer, ac_writer_abort);
        return NULL;
    }
    if (writer_begin_slow(writer, &err) != AC_OK) {
        raise_engine_error(&err);
        give_up(writer, ac_writer_abort);
        return NULL;
    }
    timestamp_ns = writer_in_order(writer, clocked, timestamp_ns);
    ac_slice_t trailer = {0};
    if (self->trailer) trailer = slice_of(self->trailer);
    Py_BEGIN_ALLOW_THREADS;
    seq = ac_writer_commit_trailer(writer->writer, self->trailer ? &trailer : NULL, self->type_id,
                                   timestamp_ns, self->has_cause ? &self->cause : NULL, &err);
    Py_END_ALLOW_THREADS;
    writer_end_slow(writer);
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
    OBJECT_SECTION_BEGIN(self);
    self->exports++;
    OBJECT_SECTION_END();
    return 0;
}

static void reservation_releasebuffer(ReservationObject *self, Py_buffer *view) {
    (void)view;
    OBJECT_SECTION_BEGIN(self);
    self->exports--;
    OBJECT_SECTION_END();
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
