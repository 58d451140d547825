#include "waiter.h"

static PyObject *cancelled_error;

int waiter_init(void) {
    PyObject *exceptions = PyImport_ImportModule("asyncio.exceptions");
    if (exceptions) cancelled_error = PyObject_GetAttrString(exceptions, "CancelledError");
    Py_XDECREF(exceptions);
    return cancelled_error ? 0 : -1;
}

void waiter_enlist(Pollable *source, WaiterObject *waiter) {
    waiter->source = source;
    waiter->previous = source->last;
    waiter->next = NULL;
    *(source->last ? &source->last->next : &source->first) = waiter;
    source->last = (struct Waiter *)Py_NewRef(waiter);
}

void waiter_delist(WaiterObject *waiter) {
    Pollable *source = waiter->source;
    *(waiter->previous ? &waiter->previous->next : &source->first) = waiter->next;
    *(waiter->next ? &waiter->next->previous : &source->last) = waiter->previous;
    waiter->source = NULL;
    waiter->next = waiter->previous = NULL;
}

WaiterObject *waiter_new(Pollable *owner, PyObject *loop) {
    WaiterObject *self = PyObject_GC_New(WaiterObject, &Waiter_Type);
    if (!self) return NULL;
    self->owner = (Pollable *)Py_NewRef(owner);
    self->source = NULL;
    self->next = self->previous = NULL;
    self->loop = Py_NewRef(loop);
    self->callback = self->context = self->cancel_message = NULL;
    self->state = WAITING;
    self->blocking = 1;
    PyObject_GC_Track(self);
    return self;
}

static int waiter_traverse(WaiterObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->owner);
    Py_VISIT(self->loop);
    Py_VISIT(self->callback);
    Py_VISIT(self->context);
    Py_VISIT(self->cancel_message);
    return 0;
}

static int waiter_clear(WaiterObject *self) {
    Py_CLEAR(self->loop);
    Py_CLEAR(self->callback);
    Py_CLEAR(self->context);
    Py_CLEAR(self->cancel_message);
    return 0;
}

static void waiter_dealloc(WaiterObject *self) {
    PyObject_GC_UnTrack(self);
    waiter_clear(self);
    Py_DECREF(self->owner);
    PyObject_GC_Del(self);
}

int waiter_call_on_loop(WaiterObject *self, const char *method) {
    if (!self->callback) return 0;
    PyObject *schedule = PyObject_GetAttrString(self->loop, method);
    PyObject *positional = schedule ? PyTuple_Pack(2, self->callback, (PyObject *)self) : NULL;
    PyObject *named = positional ? PyDict_New() : NULL;
    PyObject *handle = NULL;
    if (named && (!self->context || PyDict_SetItemString(named, "context", self->context) == 0))
        handle = PyObject_Call(schedule, positional, named);
    Py_XDECREF(schedule);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    Py_XDECREF(handle);
    return handle ? 0 : -1;
}

int waiter_resume(WaiterObject *self) {
    PyObject *callback, *context;
    POLLABLE_SECTION_BEGIN(self->owner);
    callback = self->callback;
    context = self->context;
    self->callback = self->context = NULL;
    self->state = WOKEN;
    POLLABLE_SECTION_END();
    if (!callback) return 0;
    PyObject *result = NULL;
    if (!context) {
        result = PyObject_CallOneArg(callback, (PyObject *)self);
    } else if (PyContext_Enter(context) == 0) {
        result = PyObject_CallOneArg(callback, (PyObject *)self);
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (PyContext_Exit(context) < 0)
            Py_CLEAR(result);
        else
            PyErr_Restore(type, value, traceback);
    }
    Py_DECREF(callback);
    Py_XDECREF(context);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static int set_callback(WaiterObject *self, PyObject *callback, PyObject *context) {
    if (self->callback) {
        PyErr_SetString(PyExc_RuntimeError, "another task waits here already");
        return -1;
    }
    self->callback = Py_NewRef(callback);
    self->context = context && context != Py_None ? Py_NewRef(context) : NULL;
    return self->state == WAITING ? 0 : waiter_call_on_loop(self, "call_soon");
}

static PyObject *waiter_add_done_callback(WaiterObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"", "context", NULL};
    PyObject *callback, *context = NULL;
    int rc;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$O", names, &callback, &context))
        return NULL;
    POLLABLE_SECTION_BEGIN(self->owner);
    rc = set_callback(self, callback, context);
    POLLABLE_SECTION_END();
    if (rc < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *waiter_remove_done_callback(WaiterObject *self, PyObject *callback) {
    int same;
    POLLABLE_SECTION_BEGIN(self->owner);
    same = self->callback ? PyObject_RichCompareBool(self->callback, callback, Py_EQ) : 0;
    if (same > 0) {
        Py_CLEAR(self->callback);
        Py_CLEAR(self->context);
    }
    POLLABLE_SECTION_END();
    return same < 0 ? NULL : PyLong_FromLong(same);
}

/* 1 = cancelled by this call, 0 = it was over already. */
static int cancel(WaiterObject *self, PyObject *message) {
    if (self->state != WAITING) return 0;
    self->state = CANCELLED;
    Py_XSETREF(self->cancel_message, Py_XNewRef(message));
    if (self->source) {
        waiter_delist(self);
        Py_DECREF(self); /* the list's; the caller has its own */
    }
    return waiter_call_on_loop(self, "call_soon") < 0 ? -1 : 1;
}

static PyObject *waiter_cancel(WaiterObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"msg", NULL};
    PyObject *message = NULL;
    int cancelled;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O", names, &message)) return NULL;
    POLLABLE_SECTION_BEGIN(self->owner);
    cancelled = cancel(self, message);
    POLLABLE_SECTION_END();
    return cancelled < 0 ? NULL : PyBool_FromLong(cancelled);
}

static PyObject *waiter_result(WaiterObject *self, PyObject *unused) {
    (void)unused;
    if (self->state == WOKEN) Py_RETURN_NONE;
    if (self->state == WAITING) {
        PyErr_SetString(PyExc_RuntimeError, "still waiting");
    } else if (self->cancel_message && self->cancel_message != Py_None) {
        PyObject *error = PyObject_CallOneArg(cancelled_error, self->cancel_message);
        if (error) PyErr_SetObject(cancelled_error, error);
        Py_XDECREF(error);
    } else {
        PyErr_SetNone(cancelled_error);
    }
    return NULL;
}

static PyObject *waiter_get_loop(WaiterObject *self, PyObject *unused) {
    (void)unused;
    return Py_NewRef(self->loop ? self->loop : Py_None);
}

static PyObject *waiter_done(WaiterObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(self->state != WAITING);
}

static PyObject *waiter_cancelled(WaiterObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(self->state == CANCELLED);
}

static PyObject *waiter_get_blocking(WaiterObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->blocking);
}

static int waiter_set_blocking(WaiterObject *self, PyObject *value, void *unused) {
    (void)unused;
    int truth = value ? PyObject_IsTrue(value) : 0;
    if (truth < 0) return -1;
    self->blocking = (char)truth;
    return 0;
}

static PyMethodDef waiter_methods[] = {
    {"add_done_callback", (PyCFunction)(void (*)(void))waiter_add_done_callback,
     METH_VARARGS | METH_KEYWORDS,
     "add_done_callback($self, callback, /, *, context=None)\n--\n\n"
     "Call this when the task may continue, as an asyncio.Future does."},
    {"remove_done_callback", (PyCFunction)waiter_remove_done_callback, METH_O,
     "remove_done_callback($self, callback, /)\n--\n\n"
     "Remove the callback; return how often it was registered."},
    {"cancel", (PyCFunction)(void (*)(void))waiter_cancel, METH_VARARGS | METH_KEYWORDS,
     "cancel($self, msg=None)\n--\n\n"
     "Cancel the wait: the task has taken no message."},
    {"result", (PyCFunction)waiter_result, METH_NOARGS,
     "result($self, /)\n--\n\n"
     "Return None, or raise CancelledError."},
    {"get_loop", (PyCFunction)waiter_get_loop, METH_NOARGS,
     "get_loop($self, /)\n--\n\n"
     "Return the event loop of the task."},
    {"done", (PyCFunction)waiter_done, METH_NOARGS,
     "done($self, /)\n--\n\n"
     "Return whether the task may continue."},
    {"cancelled", (PyCFunction)waiter_cancelled, METH_NOARGS,
     "cancelled($self, /)\n--\n\n"
     "Return whether it was cancelled."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef waiter_properties[] = {
    {"_asyncio_future_blocking", (getter)waiter_get_blocking, (setter)waiter_set_blocking, NULL,
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject Waiter_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Waiter",
    .tp_basicsize = sizeof(WaiterObject),
    .tp_dealloc = (destructor)waiter_dealloc,
    .tp_traverse = (traverseproc)waiter_traverse,
    .tp_clear = (inquiry)waiter_clear,
    .tp_methods = waiter_methods,
    .tp_getset = waiter_properties,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The future on which a task sleeps while a reader is parked.",
};
