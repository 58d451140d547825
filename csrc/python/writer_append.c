/* Writer.append: by the engine's fast path with the interpreter's lock held, or without it when that may
 * take long. */
#include "writer_object.h"

#include "cq4_lock.h"

/* A Java queue, for which cq4_writer.c needs the caller's clock, as read before. Only the cycle depends on
 * it. */
static void set_java_clock(WriterObject *self, int clocked, uint64_t *timestamp_ns) {
    if (!self->writer->java) return;
    ac_store_relaxed_u64(&self->writer->java_now_ns, clocked ? *timestamp_ns : AC_NOW);
    if (clocked) *timestamp_ns = AC_NOW;
}

/* If Java's lock is free and the message fits into what is mapped, the interpreter's lock need not be
 * released. */
static int64_t try_append_java(WriterObject *self, const void *data, size_t length,
                               unsigned type_id, uint64_t timestamp_ns, int clocked,
                               const ac_cause_t *cause) {
    int64_t seq = AC_E_SLOW;
    OBJECT_SECTION_BEGIN(self);
    if (!self->busy) {
        set_java_clock(self, clocked, &timestamp_ns);
        if (type_id == 0 && timestamp_ns == AC_NOW && !cause)
            seq = ac_java_try_append(self->writer, data, length);
    }
    OBJECT_SECTION_END();
    return seq;
}

static int64_t append_slow(WriterObject *self, const void *data, size_t length,
                           const ac_slice_t *trailer, unsigned type_id, uint64_t timestamp_ns,
                           int clocked, const ac_cause_t *cause, ac_error_t *err) {
    int64_t seq = AC_E_SLOW;
    if (self->writer->java && !trailer)
        seq = try_append_java(self, data, length, type_id, timestamp_ns, clocked, cause);
    if (seq != AC_E_SLOW) return seq;
    seq = writer_begin_slow(self, err);
    if (seq < 0) return seq;
    timestamp_ns = writer_in_order(self, clocked, timestamp_ns);
    set_java_clock(self, clocked, &timestamp_ns);
    Py_BEGIN_ALLOW_THREADS;
    seq = ac_writer_append_trailer(self->writer, data, length, trailer, type_id, timestamp_ns,
                                   cause, err);
    Py_END_ALLOW_THREADS;
    writer_end_slow(self);
    return seq;
}

/* A Java queue in which others have begun a cycle that the caller's clock had not reached when it was read:
 * it is read again, as long as it advances and no append would wait for longer. */
static int64_t follow_clock(WriterObject *self, const void *data, size_t length, unsigned type_id,
                            uint64_t shown_ns, ac_error_t *err) {
    uint64_t wait_ns = self->writer->config.lock_timeout_ns;
    uint64_t deadline_ns = ac_os_monotonic_ns() + (wait_ns ? wait_ns : AC_CQ4_LOCK_TIMEOUT_NS);
    int64_t seq = AC_E_TIMESTAMP;
    while (seq == AC_E_TIMESTAMP && ac_os_monotonic_ns() < deadline_ns) {
        uint64_t now_ns = AC_NOW;
        if (PyErr_CheckSignals() < 0 || writer_take_time(self, &now_ns) < 0) {
            err->code = AC_E_INTERRUPTED;
            return AC_E_INTERRUPTED;
        }
        if (now_ns <= shown_ns) break;
        shown_ns = now_ns;
        seq = append_slow(self, data, length, NULL, type_id, now_ns, CLOCKED, NULL, err);
    }
    return seq;
}

/* A clock that went back, or was overtaken by another thread's, takes the slow path. Compiled twice, so
 * that messages without a trailer do not check for one. */
static inline __attribute__((always_inline)) PyObject *
append_area(WriterObject *self, const void *data, Py_ssize_t length, const ac_slice_t *trailer,
            unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause) {
    ac_error_t err;
    int64_t seq = AC_E_SLOW;
    int clocked = NOT_CLOCKED;
    if (AC_UNLIKELY(self->clock != NULL) && (clocked = writer_take_time(self, &timestamp_ns)) < 0)
        return NULL;
    OBJECT_SECTION_BEGIN(self);
    if (AC_LIKELY(!self->busy))
        seq = ac_writer_try_append(self->writer, data, (size_t)length, trailer, type_id,
                                   timestamp_ns, cause);
    OBJECT_SECTION_END();
    if (AC_UNLIKELY(seq == AC_E_SLOW))
        seq = append_slow(self, data, (size_t)length, trailer, type_id, timestamp_ns, clocked,
                          cause, &err);
    if (AC_UNLIKELY(seq == AC_E_TIMESTAMP) && clocked && self->writer->java)
        seq = follow_clock(self, data, (size_t)length, type_id, timestamp_ns, &err);
    return seq < 0 ? raise_engine_error(&err) : PyLong_FromLongLong(seq);
}

PyObject *writer_append_buffer(WriterObject *self, const void *data, Py_ssize_t length,
                               unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause) {
    return append_area(self, data, length, NULL, type_id, timestamp_ns, cause);
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
        result = writer_append_buffer(self, buffer.buf, buffer.len, type_id, timestamp_ns, cause);
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
    writer_options_t options = {.first = count > 0 ? args[0] : NULL};
    unsigned type_id = 0;
    uint64_t timestamp_ns = AC_NOW;
    ac_cause_t room;
    const ac_cause_t *cause = NULL;
    if (names &&
        (writer_find_options(args, count, names, "payload", "key", "timestamp_ns", &options) < 0 ||
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
        return writer_append_buffer(self, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload),
                                    type_id, timestamp_ns, cause);
    Py_buffer buffer;
    if (payload_argument("payload", payload, &buffer) < 0) return NULL;
    PyObject *result =
        writer_append_buffer(self, buffer.buf, buffer.len, type_id, timestamp_ns, cause);
    PyBuffer_Release(&buffer);
    return result;
}

PyObject *writer_append(WriterObject *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *names) {
    if (AC_LIKELY(!names && count == 1 && PyBytes_CheckExact(args[0])))
        return append_area(self, PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), NULL, 0,
                           AC_NOW, NULL);
    return append_with_options(self, args, count, names);
}

/* Not an option of append, so that appends without it do not pay for it. */
PyObject *writer_append_expiring(WriterObject *self, PyObject *args, PyObject *keywords) {
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
