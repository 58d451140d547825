/* The time of a Java queue's message, from a function of the caller's. The engine calls it, with or without
 * the interpreter's lock. An exception of the function is kept until the engine's error becomes an
 * exception, in the same thread. */
#include "hot.h"

static const char *const kept = "aiochronicle.timestamp_failure";

static void keep_failure(void) {
    PyObject *failure = take_exception();
    PyObject *state = PyThreadState_GetDict(); /* borrowed */
    if (!state || PyDict_SetItemString(state, kept, failure) < 0) PyErr_Clear();
    Py_DECREF(failure);
}

static int time_of(PyObject *function, const uint8_t *payload, uint32_t length, uint64_t *out) {
    int64_t nanoseconds = 0;
    PyObject *copy = PyBytes_FromStringAndSize((const char *)payload, (Py_ssize_t)length);
    PyObject *moment = copy ? PyObject_CallOneArg(function, copy) : NULL;
    Py_XDECREF(copy);
    int rc = moment ? integer_argument("what the timestamp function returns",
                                       "Unix nanoseconds, an int from 0 to 2**63 - 1", moment, 0,
                                       INT64_MAX, &nanoseconds)
                    : -1;
    Py_XDECREF(moment);
    *out = (uint64_t)nanoseconds;
    return rc;
}

static int call_function(void *context, const uint8_t *payload, uint32_t length,
                         uint64_t *timestamp_ns) {
    PyObject *type, *value, *traceback;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *function = Py_NewRef((PyObject *)context);
    PyErr_Fetch(&type, &value, &traceback);
    int rc = time_of(function, payload, length, timestamp_ns);
    if (rc < 0) keep_failure();
    PyErr_Restore(type, value, traceback);
    Py_DECREF(function);
    PyGILState_Release(state);
    return rc < 0 ? AC_E_STAMP : AC_OK;
}

void timestamp_forget(void) {
    PyObject *none = hot_timestamp_failure(NULL, NULL);
    Py_XDECREF(none);
}

PyObject *hot_timestamp_function(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromVoidPtr((void *)(uintptr_t)call_function);
}

PyObject *hot_timestamp_failure(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyObject *state = PyThreadState_GetDict();
    PyObject *failure = state ? PyDict_GetItemString(state, kept) : NULL;
    if (!failure) Py_RETURN_NONE;
    Py_INCREF(failure);
    if (PyDict_DelItemString(state, kept) < 0) PyErr_Clear();
    return failure;
}
