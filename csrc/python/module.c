#include "hot.h"

static PyObject *error_factory;

PyObject *hot_set_error_factory(PyObject *module, PyObject *factory) {
    (void)module;
    Py_XSETREF(error_factory, Py_NewRef(factory));
    Py_RETURN_NONE;
}

PyObject *raise_engine_error(const ac_error_t *err) {
    if (err->code == AC_E_INTERRUPTED) return NULL; /* from the exception that is set */
    if (!error_factory) {
        PyErr_Format(PyExc_RuntimeError, "%s: %s", err->path, err->detail);
        return NULL;
    }
    /* As bytes: a path need not be UTF-8. */
    PyObject *exception = PyObject_CallFunction(
        error_factory, "iiyKy(KK)(KK)K(iyK)", err->code, err->sys_errno, err->path,
        (unsigned long long)err->offset, err->detail, (unsigned long long)err->wanted_segment,
        (unsigned long long)err->wanted_offset, (unsigned long long)err->first_segment,
        (unsigned long long)err->first_offset, (unsigned long long)err->seq, err->holder_pid,
        err->holder_command, (unsigned long long)err->holder_since_ns);
    if (exception) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return NULL;
}

PyObject *take_exception(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

/* The interpreter takes its fast path into a C method only for objects of exactly the type that the method
 * belongs to, and the public classes are subclasses: an inherited append is slower by an eighth. */
static int own_methods_of(PyTypeObject *class, const PyTypeObject *base) {
    for (PyMethodDef *method = base->tp_methods; method && method->ml_name; method++) {
        if ((method->ml_flags & METH_CLASS) ||
            PyDict_GetItemString(class->tp_dict, method->ml_name))
            continue; /* not for instances; or the class, or a nearer base, has it already */
        PyObject *owned = PyDescr_NewMethod(class, method);
        int rc = owned ? PyObject_SetAttrString((PyObject *)class, method->ml_name, owned) : -1;
        Py_XDECREF(owned);
        if (rc < 0) return -1;
    }
    return 0;
}

static PyObject *hot_own_methods(PyObject *module, PyObject *class) {
    (void)module;
    if (!PyType_Check(class)) {
        PyErr_SetString(PyExc_TypeError, "own_methods takes a class");
        return NULL;
    }
    PyTypeObject *base = ((PyTypeObject *)class)->tp_base;
    for (; base != &PyBaseObject_Type; base = base->tp_base)
        if (own_methods_of((PyTypeObject *)class, base) < 0) return NULL;
    return Py_NewRef(class);
}

static PyMethodDef functions[] = {
    {"set_position_type", hot_set_position_type, METH_O,
     "set_position_type($module, kind, /)\n--\n\n"
     "Set the type of all positions: a tuple of segment and offset."},
    {"set_error_factory", hot_set_error_factory, METH_O,
     "set_error_factory($module, factory, /)\n--\n\n"
     "Set factory(code, errno, path, offset, detail, wanted, nearest), which creates exceptions."},
    {"set_refusals", hot_set_refusals, METH_VARARGS,
     "set_refusals($module, wrong_value, wrong_type, /)\n--\n\n"
     "Set the two functions (name, wanted, given) that create exceptions about arguments."},
    {"set_decoding", hot_set_decoding, METH_VARARGS,
     "set_decoding($module, find, failed, cut, /)\n--\n\n"
     "Set find(decoders, message, type), which returns what decodes the message, and "
     "failed(decoders, message, exception) and cut(decoders, message), which make exceptions."},
    {"set_delivery_errors", hot_set_delivery_errors, METH_VARARGS,
     "set_delivery_errors($module, lost, settled, /)\n--\n\n"
     "Set LeaseLost and AlreadySettled."},
    {"timestamp_function", hot_timestamp_function, METH_NOARGS,
     "timestamp_function($module, /)\n--\n\n"
     "Return the address of the function by which the engine calls one of Python, which is its "
     "context."},
    {"timestamp_failure", hot_timestamp_failure, METH_NOARGS,
     "timestamp_failure($module, /)\n--\n\n"
     "Return what that function raised last in this thread, once; or None."},
    {"split_trailer", hot_split_trailer, METH_O,
     "split_trailer($module, area, /)\n--\n\n"
     "Return (payload, key, headers) of a record that has a trailer; None if it is malformed."},
    {"own_methods", hot_own_methods, METH_O,
     "own_methods($module, class, /)\n--\n\n"
     "Copy the C methods of its bases into a subclass; return it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "aiochronicle._hot",
    .m_doc = "CPython types for everything that happens once per message.",
    .m_size = -1,
    .m_methods = functions,
};

static int add_type(PyObject *module, const char *name, PyTypeObject *type) {
    if (PyType_Ready(type) < 0) return -1;
    return PyModule_AddObjectRef(module, name, (PyObject *)type);
}

PyMODINIT_FUNC PyInit__hot(void);

PyMODINIT_FUNC PyInit__hot(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    if (message_ready() < 0 || add_type(module, "Segment", &Segment_Type) < 0 ||
        add_type(module, "Message", &Message_Type) < 0 ||
        add_type(module, "Block", &Block_Type) < 0 || add_type(module, "Array", &Array_Type) < 0 ||
        add_type(module, "Pollable", &Pollable_Type) < 0 ||
        add_type(module, "Reader", &Reader_Type) < 0 ||
        add_type(module, "ReaderIterator", &ReaderIterator_Type) < 0 ||
        add_type(module, "FanIn", &FanIn_Type) < 0 ||
        add_type(module, "FanInIterator", &FanInIterator_Type) < 0 ||
        add_type(module, "Group", &Group_Type) < 0 ||
        add_type(module, "GroupIterator", &GroupIterator_Type) < 0 ||
        add_type(module, "Turns", &Turns_Type) < 0 ||
        add_type(module, "Delivery", &Delivery_Type) < 0 ||
        add_type(module, "Immediate", &Immediate_Type) < 0 ||
        add_type(module, "Writer", &Writer_Type) < 0 ||
        add_type(module, "Reservation", &Reservation_Type) < 0 ||
        add_type(module, "Awaitable", &Awaitable_Type) < 0 ||
        add_type(module, "Waiter", &Waiter_Type) < 0 || awaiting_init() < 0) {
        Py_DECREF(module);
        return NULL;
    }
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
