/* What the files of the Writer type share. */
#ifndef AC_PYTHON_WRITER_OBJECT_H
#define AC_PYTHON_WRITER_OBJECT_H

#include "hot.h"
#include "writer.h"

/* Appends run under the interpreter's lock, or its substitute, and need nothing else. The slow path may
 * wait (a new segment, a sync, capacity), so it releases the lock; `busy` then sends every other thread the
 * slow way too, where `turn` makes them queue up. */
typedef struct {
    PyObject_HEAD
    ac_writer_t *writer;
    PyObject *clock; /* NULL: the engine's own */
    PyThread_type_lock turn;
    unsigned long owner; /* the thread that has the turn; 0 = none */
    int busy;
} WriterObject;

/* writer_turn.c: takes the turn for this thread, for calls that may wait. After an error the turn is not
 * ours. */
int writer_begin_slow(WriterObject *self, ac_error_t *err);
/* For what must be done in any case: the turn is given up soon. */
void writer_begin_last(WriterObject *self);
void writer_have_turn(WriterObject *self);

static inline void writer_end_slow(WriterObject *self) {
    __atomic_store_n(&self->owner, 0, __ATOMIC_RELAXED);
    OBJECT_SECTION_BEGIN(self);
    self->busy = 0;
    OBJECT_SECTION_END();
    PyThread_release_lock(self->turn);
}

/* While this thread waits for room, signal handlers run, and they may call us. No other thread can store
 * our id, so a relaxed load is enough. */
static inline int writer_is_our_turn(const WriterObject *self) {
    return __atomic_load_n(&self->owner, __ATOMIC_RELAXED) == PyThread_get_thread_ident();
}

/* In a forked child, the turn may be that of a thread which does not exist. */
static inline int writer_is_forked(const WriterObject *self) {
    return ac_load_relaxed_u32(&self->writer->state) == AC_STATE_FORKED;
}

/* writer_options.c: the keywords of append and append_many, and a cause. */
typedef struct {
    PyObject *type_id, *timestamp, *cause, *first, *key, *headers;
} writer_options_t;

int writer_find_options(PyObject *const *args, Py_ssize_t count, PyObject *names, const char *first,
                        const char *key, const char *timestamp, writer_options_t *out);
/* A Message, or (queue_id, seq). *cause is NULL if there is none, else `room`. */
int cause_argument(PyObject *object, ac_cause_t *room, const ac_cause_t **cause);

enum clocked { NOT_CLOCKED = 0, CLOCKED = 1 }; /* whether a timestamp is our caller's clock's */

/* Reads the caller's clock, if there is one and it is needed. An enum clocked, or -1. */
static inline int writer_take_time(WriterObject *self, uint64_t *timestamp_ns) {
    if (*timestamp_ns != AC_NOW || !self->clock) return NOT_CLOCKED;
    PyObject *now = PyObject_CallNoArgs(self->clock);
    if (!now) return -1;
    int rc = timestamp_argument("what the clock returns", now, timestamp_ns);
    Py_DECREF(now);
    return rc < 0 ? rc : CLOCKED;
}

/* To be called when it is our turn: other threads have appended since the clock was read. */
static inline uint64_t writer_in_order(WriterObject *self, int clocked, uint64_t timestamp_ns) {
    return clocked ? ac_writer_now(self->writer, timestamp_ns) : timestamp_ns;
}

static inline ac_slice_t slice_of(PyObject *bytes) {
    return (ac_slice_t){PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes)};
}

/* writer_append.c: appends without key and headers; a seq, or NULL with an exception. */
PyObject *writer_append_buffer(WriterObject *self, const void *data, Py_ssize_t length,
                               unsigned type_id, uint64_t timestamp_ns, const ac_cause_t *cause);

/* The methods that have files of their own; writer_reserve is in reservation.c. */
PyObject *writer_append(WriterObject *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *names);
PyObject *writer_append_expiring(WriterObject *self, PyObject *args, PyObject *keywords);
PyObject *writer_append_many(WriterObject *self, PyObject *const *args, Py_ssize_t count,
                             PyObject *names);
PyObject *writer_reserve(WriterObject *self, PyObject *args, PyObject *keywords);

#endif
