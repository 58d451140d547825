/* Key and headers: from arguments into the bytes of a trailer, and out of a message. */
#include "trailer.h"

#include "error.h"
#include "hot.h"

typedef struct {
    PyObject *items; /* list of (name, value) */
    ac_header_t headers[AC_HEADERS_MAX];
    Py_buffer values[AC_HEADERS_MAX];
    Py_ssize_t count; /* number of those filled in */
} headers_t;

static void headers_clear(headers_t *self) {
    for (Py_ssize_t i = 0; i < self->count; i++)
        PyBuffer_Release(&self->values[i]);
    Py_CLEAR(self->items);
}

static int refuse_size(const char *name, const char *wanted, Py_ssize_t found) {
    PyObject *given = PyLong_FromSsize_t(found);
    if (given) refuse_value(name, wanted, given);
    Py_XDECREF(given);
    return -1;
}

static int header_add(headers_t *self, PyObject *item) {
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2)
        return refuse_type("headers", "a mapping of names to bytes", item);
    PyObject *name = PyTuple_GET_ITEM(item, 0);
    ac_header_t *header = &self->headers[self->count];
    Py_buffer *value = &self->values[self->count];
    Py_ssize_t length;
    if (!PyUnicode_Check(name)) return refuse_type("the name of a header", "a str", name);
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (!text) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) return -1;
        PyErr_Clear();
        return refuse_value("the name of a header", "text that UTF-8 has", name);
    }
    if (length < 1 || length > AC_HEADER_NAME_MAX)
        return refuse_value("the name of a header", "1 to 255 bytes of UTF-8", name);
    if (payload_argument("the value of a header", PyTuple_GET_ITEM(item, 1), value) < 0) return -1;
    header->name = (ac_slice_t){text, (size_t)length};
    header->value = (ac_slice_t){value->buf, (size_t)value->len};
    self->count++;
    return 0;
}

/* Any mapping: its items are kept alive while their memory is used, whatever happens to it meanwhile. */
static int headers_fill(headers_t *self, PyObject *object) {
    static const char wanted[] = "a mapping of names to bytes";
    if (!object || object == Py_None) return 0;
    if (!PyMapping_Check(object) || PyUnicode_Check(object))
        return refuse_type("headers", wanted, object);
    self->items = PyMapping_Items(object);
    if (!self->items) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
        PyErr_Clear();
        return refuse_type("headers", wanted, object);
    }
    Py_ssize_t count = PyList_GET_SIZE(self->items);
    if (count > AC_HEADERS_MAX) return refuse_size("the number of headers", "at most 64", count);
    for (Py_ssize_t i = 0; i < count; i++)
        if (header_add(self, PyList_GET_ITEM(self->items, i)) < 0) return -1;
    return 0;
}

static PyObject *trailer_of(const ac_slice_t *key, const headers_t *headers) {
    const char *why;
    int64_t size = ac_trailer_measure(key, headers->headers, (size_t)headers->count, &why);
    if (size < 0) { /* names and their number were checked before */
        size_t given = key ? key->length : 0;
        for (Py_ssize_t i = 0; i < headers->count; i++)
            given += headers->headers[i].name.length + headers->headers[i].value.length;
        refuse_size("the number of bytes in key and headers",
                    "at most 65535, with a few for each of them", (Py_ssize_t)given);
        return NULL;
    }
    PyObject *trailer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (trailer && size > 0)
        ac_trailer_write((uint8_t *)PyBytes_AS_STRING(trailer), key, headers->headers,
                         (size_t)headers->count);
    return trailer;
}

int trailer_argument(PyObject *key, PyObject *headers, PyObject **out) {
    headers_t found = {.count = 0};
    Py_buffer buffer;
    ac_slice_t bytes;
    int has_key = key && key != Py_None;
    *out = NULL;
    if (has_key && payload_argument("key", key, &buffer) < 0) return -1;
    if (has_key) bytes = (ac_slice_t){buffer.buf, (size_t)buffer.len};
    int rc = headers_fill(&found, headers);
    if (rc == 0 && (has_key || found.count > 0)) {
        *out = trailer_of(has_key ? &bytes : NULL, &found);
        if (!*out) rc = -1;
    }
    headers_clear(&found);
    if (has_key) PyBuffer_Release(&buffer);
    return rc;
}

/* ---- of a message ---- */

static PyObject *no_headers; /* true of nearly every message */

int trailer_ready(void) {
    PyObject *empty = PyDict_New();
    if (empty) no_headers = PyDictProxy_New(empty);
    Py_XDECREF(empty);
    return no_headers ? 0 : -1;
}

static int put_header(PyObject *headers, const ac_header_t *header) {
    PyObject *name = PyUnicode_DecodeUTF8(header->name.data, (Py_ssize_t)header->name.length, NULL);
    PyObject *value =
        name ? PyBytes_FromStringAndSize(header->value.data, (Py_ssize_t)header->value.length)
             : NULL;
    int rc = value ? PyDict_SetItem(headers, name, value) : -1;
    Py_XDECREF(name);
    Py_XDECREF(value);
    return rc;
}

/* A dict of the remaining headers; NULL with an exception; NULL without one: they are malformed. */
static PyObject *take_headers(ac_trailer_t *trailer) {
    ac_header_t header;
    int found = 0;
    PyObject *headers = PyDict_New();
    while (headers && (found = ac_trailer_next(trailer, &header)) == 1)
        if (put_header(headers, &header) < 0) Py_CLEAR(headers);
    if (!headers && PyErr_ExceptionMatches(PyExc_UnicodeError)) PyErr_Clear();
    if (found < 0) Py_CLEAR(headers);
    return headers;
}

static PyObject *take_key(const ac_trailer_t *trailer) {
    if (!trailer->key.data) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(trailer->key.data, (Py_ssize_t)trailer->key.length);
}

/* split_trailer(area) -> (payload, key, headers) of bytes that no one else writes to, or None: it is
 * malformed. */
PyObject *hot_split_trailer(PyObject *module, PyObject *area) {
    (void)module;
    ac_trailer_t trailer;
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(area, &bytes, &length) < 0) return NULL;
    uint32_t size =
        length > UINT32_MAX ? 0 : ac_trailer_find((const uint8_t *)bytes, (uint32_t)length);
    Py_ssize_t payload = length - (Py_ssize_t)size;
    if (size == 0 || !ac_trailer_open(&trailer, (const uint8_t *)bytes + payload, size))
        Py_RETURN_NONE;
    PyObject *key = take_key(&trailer), *headers = key ? take_headers(&trailer) : NULL;
    PyObject *parts = headers ? Py_BuildValue("y#OO", bytes, payload, key, headers) : NULL;
    Py_XDECREF(key);
    Py_XDECREF(headers);
    if (!parts && !PyErr_Occurred()) Py_RETURN_NONE;
    return parts;
}

/* They were checked when the message was read: they were overwritten since. */
static PyObject *raise_malformed(const MessageObject *self) {
    ac_error_t err;
    const char *source = PyUnicode_AsUTF8(self->segment->source);
    PyErr_Clear();
    ac_fail(&err, AC_E_CORRUPT, 0, source ? source : "", message_offset(self),
            "key and headers of message %llu were overwritten", (unsigned long long)self->seq);
    return raise_engine_error(&err);
}

static int open_trailer(const MessageObject *self, ac_trailer_t *trailer) {
    const uint8_t *payload = self->record + AC_HEADER_SIZE;
    return ac_trailer_open(trailer, payload + self->length, self->trailer);
}

PyObject *message_key(const MessageObject *self) {
    ac_trailer_t trailer;
    if (!(self->flags & AC_FLAG_TRAILER)) Py_RETURN_NONE;
    return open_trailer(self, &trailer) ? take_key(&trailer) : raise_malformed(self);
}

PyObject *message_headers(const MessageObject *self) {
    ac_trailer_t trailer;
    if (!(self->flags & AC_FLAG_TRAILER)) return Py_NewRef(no_headers);
    PyObject *headers = open_trailer(self, &trailer) ? take_headers(&trailer) : NULL;
    if (!headers) return PyErr_Occurred() ? NULL : raise_malformed(self);
    PyObject *proxy = PyDictProxy_New(headers);
    Py_DECREF(headers);
    return proxy;
}
