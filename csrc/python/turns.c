/* The turns of a topic for the Python side, which knows the directories of the queues. */
#include "turns.h"

static int turns_init(TurnsObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"address", NULL};
    unsigned long long address;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "K", names, &address)) return -1;
    if (self->keying.lock) {
        PyErr_SetString(PyExc_RuntimeError, "turns are initialised already");
        return -1;
    }
    self->keying.lock = PyThread_allocate_lock();
    if (!self->keying.lock) {
        PyErr_NoMemory();
        return -1;
    }
    self->turns = (ac_turns_t *)(uintptr_t)address;
    return 0;
}

static void turns_dealloc(TurnsObject *self) {
    ac_turns_free(self->turns);
    if (self->keying.lock) PyThread_free_lock(self->keying.lock);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int check_open(const TurnsObject *self) {
    ac_error_t err;
    if (self->turns) return 0;
    memset(&err, 0, sizeof err);
    err.code = AC_E_CLOSED;
    memcpy(err.detail, "the group is closed", sizeof "the group is closed");
    raise_engine_error(&err);
    return -1;
}

static PyObject *list_ids(TurnsObject *self, size_t (*get)(ac_turns_t *, uint64_t *)) {
    if (check_open(self) < 0) return NULL;
    uint64_t *ids = PyMem_Malloc(AC_TURNS_QUEUES * sizeof *ids);
    if (!ids) return PyErr_NoMemory();
    size_t count = get(self->turns, ids);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *id = PyLong_FromUnsignedLongLong(ids[i]);
        if (id)
            PyList_SET_ITEM(list, (Py_ssize_t)i, id);
        else
            Py_CLEAR(list);
    }
    PyMem_Free(ids);
    return list;
}

static PyObject *turns_queues(TurnsObject *self, PyObject *unused) {
    (void)unused;
    return list_ids(self, ac_turns_queues);
}

static PyObject *turns_unknown(TurnsObject *self, PyObject *unused) {
    (void)unused;
    return list_ids(self, ac_turns_unknown);
}

static PyObject *turns_settle(TurnsObject *self, PyObject *args) {
    const char *queue, *name;
    ac_error_t err;
    if (!PyArg_ParseTuple(args, "yy", &queue, &name) || check_open(self) < 0) return NULL;
    if (ac_turns_settle(self->turns, queue, name, &err) < 0) return raise_engine_error(&err);
    Py_RETURN_NONE;
}

static PyObject *turns_forget(TurnsObject *self, PyObject *args) {
    unsigned long long id;
    if (!PyArg_ParseTuple(args, "K", &id) || check_open(self) < 0) return NULL;
    ac_turns_forget(self->turns, id);
    Py_RETURN_NONE;
}

/* Closes the turns after the groups: deliveries that the user keeps must not keep the file open. */
static PyObject *turns_close(TurnsObject *self, PyObject *unused) {
    (void)unused;
    if (self->turns && self->turns->first) {
        PyErr_SetString(PyExc_RuntimeError, "turns are in use");
        return NULL;
    }
    ac_turns_free(self->turns);
    self->turns = NULL;
    Py_RETURN_NONE;
}

static PyMethodDef turns_methods[] = {
    {"queues", (PyCFunction)turns_queues, METH_NOARGS,
     "queues($self, /)\n--\n\n"
     "Return the ids of the queues that members have joined."},
    {"unknown", (PyCFunction)turns_unknown, METH_NOARGS,
     "unknown($self, /)\n--\n\n"
     "Return the ids of queues that are not joined, and that keys have waited for since the last "
     "call."},
    {"settle", (PyCFunction)turns_settle, METH_VARARGS,
     "settle($self, queue, name, /)\n--\n\n"
     "Let no key wait for messages of this queue that are done."},
    {"forget", (PyCFunction)turns_forget, METH_VARARGS,
     "forget($self, queue_id, /)\n--\n\n"
     "Let no key wait for any message of this queue: it is gone."},
    {"close", (PyCFunction)turns_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Close it after all groups that joined."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Turns_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Turns",
    .tp_basicsize = sizeof(TurnsObject),
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)turns_init,
    .tp_dealloc = (destructor)turns_dealloc,
    .tp_methods = turns_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Whose turn it is, by key, in all queues of a topic; takes over an engine handle.",
};
