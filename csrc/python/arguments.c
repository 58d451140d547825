/* Arguments, and the errors about wrong ones.
 *
 * A wrong value is an InvalidArgument, a wrong type a WrongType; the Python side makes both
 * (aiochronicle/_base/arguments.py), so that a mistake reads the same whichever side finds it. A call that does not fit the
 * signature is a plain TypeError, as with any function. */
#include "hot.h"

static PyObject *make_wrong_value, *make_wrong_type;

PyObject *hot_set_refusals(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *value, *type;
    if (!PyArg_ParseTuple(args, "OO", &value, &type)) return NULL;
    Py_XSETREF(make_wrong_value, Py_NewRef(value));
    Py_XSETREF(make_wrong_type, Py_NewRef(type));
    Py_RETURN_NONE;
}

static int refuse(PyObject *make, const char *name, const char *wanted, PyObject *given) {
    PyObject *exception = PyObject_CallFunction(make, "ssO", name, wanted, given);
    if (exception) PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_XDECREF(exception);
    return -1;
}

int refuse_value(const char *name, const char *wanted, PyObject *given) {
    return refuse(make_wrong_value, name, wanted, given);
}

int refuse_type(const char *name, const char *wanted, PyObject *given) {
    return refuse(make_wrong_type, name, wanted, given);
}

int only_argument(Py_ssize_t *count, PyObject *names, const char *name) {
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    if (*count + named > 1) {
        PyErr_Format(PyExc_TypeError, "takes one argument, %s; got %zd", name, *count + named);
        return -1;
    }
    if (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), name) != 0) {
        PyErr_Format(PyExc_TypeError, "unexpected keyword argument %R; it is %s",
                     PyTuple_GET_ITEM(names, 0), name);
        return -1;
    }
    *count += named;
    return 0;
}

/* The exception for a failed conversion: a number that is too large is a wrong value. */
static int refuse_integer(const char *name, const char *wanted, PyObject *given) {
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        return refuse_value(name, wanted, given);
    }
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return -1; /* its own __index__ failed */
    PyErr_Clear();
    return refuse_type(name, wanted, given);
}

int integer_argument(const char *name, const char *wanted, PyObject *object, int64_t lowest,
                     int64_t highest, int64_t *out) {
    long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) return refuse_integer(name, wanted, object);
    if (value < lowest || value > highest) return refuse_value(name, wanted, object);
    *out = value;
    return 0;
}

int unsigned_argument(const char *name, const char *wanted, PyObject *object, uint64_t *out) {
    unsigned long long value = PyLong_AsUnsignedLongLong(object);
    if (value == (unsigned long long)-1 && PyErr_Occurred())
        return refuse_integer(name, wanted, object);
    *out = value;
    return 0;
}

int type_argument(PyObject *object, unsigned *out) {
    int64_t value = 0;
    if (object &&
        integer_argument("type_id", "an int from 0 to 65534", object, 0, AC_TYPE_MAX, &value) < 0)
        return -1;
    *out = (unsigned)value;
    return 0;
}

int timestamp_argument(const char *name, PyObject *object, uint64_t *out) {
    int64_t value;
    if (integer_argument(name, "an int of Unix nanoseconds, 0 to 2**63 - 2", object, 0,
                         INT64_MAX - 1, &value) < 0)
        return -1;
    *out = (uint64_t)value;
    return 0;
}

int optional_timestamp_argument(PyObject *object, uint64_t *out) {
    *out = AC_NOW;
    return !object || object == Py_None ? 0 : timestamp_argument("timestamp_ns", object, out);
}

int limit_argument(const char *name, PyObject *object, Py_ssize_t *out) {
    int64_t value;
    if (!object || object == Py_None) return 0;
    if (integer_argument(name, "a positive int", object, 1, PY_SSIZE_T_MAX, &value) < 0) return -1;
    *out = (Py_ssize_t)value;
    return 0;
}

int payload_argument(const char *name, PyObject *object, Py_buffer *out) {
    if (PyObject_GetBuffer(object, out, PyBUF_SIMPLE) == 0) return 0;
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        return refuse_type(name, "bytes or another buffer", object);
    }
    if (PyErr_ExceptionMatches(PyExc_ValueError)) { /* numpy's term */
        PyObject *refusal = take_exception();
        PyErr_Format(PyExc_BufferError, "%s: %S", name, refusal);
        Py_DECREF(refusal);
    }
    return -1;
}
