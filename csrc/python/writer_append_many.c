/* Writer.append_many: the arguments become arrays of slices, which the engine appends as one batch. */
#include "writer_object.h"

typedef struct {
    PyObject *sequence;
    ac_slice_t *slices;
    uint64_t *timestamps;
    ac_cause_t room; /* for the cause, if there is one */
    const ac_cause_t *cause;
    int clocked;          /* they all come from one reading of the caller's clock */
    ac_slice_t *trailers; /* NULL: no message has one */
    PyObject *held;       /* list of their bytes */
    Py_buffer *buffers;   /* only for items that are not bytes */
    Py_ssize_t count, buffered;
    uint64_t end; /* the seq after its last one */
} batch_t;

static void batch_clear(batch_t *batch) {
    for (Py_ssize_t i = 0; i < batch->buffered; i++)
        PyBuffer_Release(&batch->buffers[i]);
    PyMem_Free(batch->buffers);
    PyMem_Free(batch->slices);
    PyMem_Free(batch->timestamps);
    PyMem_Free(batch->trailers);
    Py_XDECREF(batch->held);
    Py_XDECREF(batch->sequence);
}

/* Slices point into bytes that perhaps only the caller's list holds, and it can change as soon as other
 * code runs: from then on a tuple holds them. */
static int batch_hold(batch_t *batch) {
    if (PyTuple_CheckExact(batch->sequence)) return 0;
    PyObject *held = PySequence_Tuple(batch->sequence);
    if (!held) return -1;
    Py_SETREF(batch->sequence, held);
    return 0;
}

static int batch_add(batch_t *batch, Py_ssize_t i, PyObject *item) {
    if (AC_LIKELY(PyBytes_CheckExact(item))) {
        batch->slices[i].data = PyBytes_AS_STRING(item);
        batch->slices[i].length = (size_t)PyBytes_GET_SIZE(item);
        return 0;
    }
    if (!batch->buffers) {
        if (batch_hold(batch) < 0) return -1;
        batch->buffers = PyMem_Calloc((size_t)batch->count, sizeof *batch->buffers);
        if (!batch->buffers) {
            PyErr_NoMemory();
            return -1;
        }
    }
    Py_buffer *buffer = &batch->buffers[batch->buffered];
    if (payload_argument("each payload", item, buffer) < 0) return -1;
    batch->buffered++;
    batch->slices[i].data = buffer->buf;
    batch->slices[i].length = (size_t)buffer->len;
    return 0;
}

/* A list or tuple of the iterated items; a single payload is not accepted as a sequence. Without an
 * interpreter lock another thread may change a list at any time, so then it is a tuple. */
static PyObject *sequence_argument(const char *name, const char *wanted, PyObject *object) {
#ifdef Py_GIL_DISABLED
    if (PyList_CheckExact(object)) return PySequence_Tuple(object);
#endif
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) return Py_NewRef(object);
    int alone = PyBytes_Check(object) || PyUnicode_Check(object) || PyByteArray_Check(object);
    PyObject *iterator = alone ? NULL : PyObject_GetIter(object);
    if (!iterator) {
        if (!alone && !PyErr_ExceptionMatches(PyExc_TypeError)) return NULL;
        PyErr_Clear();
        refuse_type(name, wanted, object);
        return NULL;
    }
    PyObject *list = PySequence_List(iterator);
    Py_DECREF(iterator);
    return list;
}

static int batch_timestamps(batch_t *batch, PyObject *object) {
    if (!object || object == Py_None) return 0;
    PyObject *sequence = sequence_argument("timestamps_ns", "a sequence of ints", object);
    if (!sequence) return -1;
    int rc = -1;
    if (PySequence_Fast_GET_SIZE(sequence) != batch->count) {
        PyObject *found = PyLong_FromSsize_t(PySequence_Fast_GET_SIZE(sequence));
        if (found) refuse_value("the number of timestamps_ns", "that of the payloads", found);
        Py_XDECREF(found);
    } else if (!(batch->timestamps =
                     PyMem_Malloc((size_t)batch->count * sizeof *batch->timestamps + 1))) {
        PyErr_NoMemory();
    } else {
        rc = 0;
        for (Py_ssize_t i = 0; i < batch->count && rc == 0; i++)
            rc = timestamp_argument("each of timestamps_ns", PySequence_Fast_GET_ITEM(sequence, i),
                                    &batch->timestamps[i]);
    }
    Py_DECREF(sequence);
    return rc;
}

/* A tuple with an item for each message, or NULL: nothing was given, or with an exception. */
static PyObject *one_for_each(const batch_t *batch, const char *name, const char *wanted,
                              PyObject *object) {
    if (!object) return NULL;
    PyObject *given = sequence_argument(name, wanted, object);
    PyObject *tuple = given ? PySequence_Tuple(given) : NULL;
    Py_XDECREF(given);
    if (!tuple || PyTuple_GET_SIZE(tuple) == batch->count) return tuple;
    PyObject *found = PyLong_FromSsize_t(PyTuple_GET_SIZE(tuple));
    if (found) refuse_value(name, "as many as there are payloads", found);
    Py_XDECREF(found);
    Py_DECREF(tuple);
    return NULL;
}

static int batch_fill_trailers(batch_t *batch, PyObject *keys, PyObject *headers) {
    batch->trailers = PyMem_Calloc((size_t)batch->count + 1, sizeof *batch->trailers);
    batch->held = PyList_New(0);
    if (!batch->trailers || !batch->held) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        PyObject *bytes;
        if (trailer_argument(keys ? PyTuple_GET_ITEM(keys, i) : NULL,
                             headers ? PyTuple_GET_ITEM(headers, i) : NULL, &bytes) < 0)
            return -1;
        if (!bytes) continue;
        batch->trailers[i] = slice_of(bytes);
        int rc = PyList_Append(batch->held, bytes);
        Py_DECREF(bytes);
        if (rc < 0) return -1;
    }
    if (PyList_GET_SIZE(batch->held) > 0) return 0;
    PyMem_Free(batch->trailers);
    batch->trailers = NULL;
    return 0;
}

static int batch_trailers(batch_t *batch, const writer_options_t *options) {
    if (!options->key && !options->headers) return 0;
    int rc = -1;
    PyObject *keys = one_for_each(batch, "keys", "a sequence of bytes or None", options->key);
    PyObject *headers =
        PyErr_Occurred()
            ? NULL
            : one_for_each(batch, "headers", "a sequence of mappings or None", options->headers);
    if (!PyErr_Occurred()) rc = batch_fill_trailers(batch, keys, headers);
    Py_XDECREF(keys);
    Py_XDECREF(headers);
    return rc;
}

/* One reading of the caller's clock serves the whole batch, as the engine's own would. */
static int batch_clock(WriterObject *self, batch_t *batch) {
    uint64_t now = AC_NOW;
    if (!self->clock || batch->timestamps || batch->count == 0) return 0;
    if (writer_take_time(self, &now) < 0) return -1;
    batch->clocked = 1;
    batch->timestamps = PyMem_Malloc((size_t)batch->count * sizeof *batch->timestamps);
    if (!batch->timestamps) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < batch->count; i++)
        batch->timestamps[i] = now;
    return 0;
}

static void batch_in_order(WriterObject *self, const batch_t *batch) {
    if (!batch->clocked) return;
    uint64_t now = writer_in_order(self, CLOCKED, batch->timestamps[0]);
    for (Py_ssize_t i = 0; i < batch->count; i++)
        batch->timestamps[i] = now;
}

static int64_t append_batch(WriterObject *self, batch_t *batch, unsigned type_id, ac_error_t *err) {
    batch_in_order(self, batch);
    int64_t first;
    if (AC_UNLIKELY(batch->trailers != NULL))
        first = ac_writer_append_many_trailers(self->writer, batch->slices, batch->trailers,
                                               (size_t)batch->count, type_id, batch->timestamps,
                                               batch->cause, err);
    else
        first = ac_writer_append_many_cause(self->writer, batch->slices, (size_t)batch->count,
                                            type_id, batch->timestamps, batch->cause, err);
    batch->end = self->writer->seq;
    return first;
}

/* The first seq; AC_E_SLOW if that may take a while. */
static int64_t try_append_batch(WriterObject *self, batch_t *batch, unsigned type_id,
                                ac_error_t *err) {
    uint64_t size = 0;
    int64_t seq = AC_E_SLOW;
    for (Py_ssize_t i = 0; i < batch->count; i++)
        size += ac_record_size(batch->slices[i].length);
    for (Py_ssize_t i = 0; batch->trailers && i < batch->count; i++)
        size += ac_record_size(batch->trailers[i].length);
    OBJECT_SECTION_BEGIN(self);
    if (!self->busy && self->writer->offset + size <= ac_load_relaxed_u64(&self->writer->limit))
        seq = append_batch(self, batch, type_id, err);
    OBJECT_SECTION_END();
    return seq;
}

static int64_t append_batch_slow(WriterObject *self, batch_t *batch, unsigned type_id,
                                 ac_error_t *err) {
    int64_t seq = writer_begin_slow(self, err);
    if (seq < 0) return seq;
    Py_BEGIN_ALLOW_THREADS;
    seq = append_batch(self, batch, type_id, err);
    Py_END_ALLOW_THREADS;
    writer_end_slow(self);
    return seq;
}

static PyObject *new_range(int64_t first, uint64_t end) {
    return PyObject_CallFunction((PyObject *)&PyRange_Type, "LL", (long long)first, (long long)end);
}

/* To a Java queue by the caller's clock, which is read for each message: the cycle may end in between. */
static PyObject *append_each(WriterObject *self, const batch_t *batch, unsigned type_id) {
    long long first = (long long)ac_load_acquire_u64(&self->writer->seq), last = first - 1;
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        PyObject *seq =
            writer_append_buffer(self, batch->slices[i].data, (Py_ssize_t)batch->slices[i].length,
                                 type_id, AC_NOW, batch->cause);
        if (!seq) return NULL;
        last = PyLong_AsLongLong(seq);
        if (i == 0) first = last;
        Py_DECREF(seq);
    }
    return new_range(first, (uint64_t)last + 1);
}

PyObject *writer_append_many(WriterObject *self, PyObject *const *args, Py_ssize_t count,
                             PyObject *names) {
    writer_options_t options = {.first = count > 0 ? args[0] : NULL};
    unsigned type_id = 0;
    ac_error_t err;
    batch_t batch = {0};
    PyObject *result = NULL;
    if (names && (writer_find_options(args, count, names, "payloads", "keys", "timestamps_ns",
                                      &options) < 0 ||
                  type_argument(options.type_id, &type_id) < 0 ||
                  cause_argument(options.cause, &batch.room, &batch.cause) < 0))
        return NULL;
    if (!options.first || count > 1) {
        PyErr_Format(PyExc_TypeError,
                     "append_many takes 1 positional argument, the payloads; got %zd", count);
        return NULL;
    }
    batch.sequence = sequence_argument("payloads", "a sequence of payloads", options.first);
    if (!batch.sequence) return NULL;
    if ((options.timestamp || options.key || options.headers || self->clock) &&
        batch_hold(&batch) < 0)
        goto done;
    batch.count = PySequence_Fast_GET_SIZE(batch.sequence);
    batch.slices = PyMem_Malloc((size_t)batch.count * sizeof *batch.slices + 1);
    if (!batch.slices) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < batch.count; i++)
        if (batch_add(&batch, i, PySequence_Fast_GET_ITEM(batch.sequence, i)) < 0) goto done;
    if (batch_timestamps(&batch, options.timestamp) < 0 || batch_trailers(&batch, &options) < 0)
        goto done;
    if (self->writer->java && self->clock && !batch.timestamps && !batch.trailers) {
        result = append_each(self, &batch, type_id);
        goto done;
    }
    if (batch_clock(self, &batch) < 0) goto done;
    int64_t first = try_append_batch(self, &batch, type_id, &err);
    if (first == AC_E_SLOW) {
        if (batch_hold(&batch) < 0) goto done;
        first = append_batch_slow(self, &batch, type_id, &err);
    }
    if (first < 0)
        raise_engine_error(&err);
    else
        result = new_range(first, batch.end);
done:
    batch_clear(&batch);
    return result;
}
