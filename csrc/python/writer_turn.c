/* Turns: one thread at a time is in a call of a writer that may wait. */
#include "writer_object.h"

#include "error.h"

void writer_have_turn(WriterObject *self) {
    OBJECT_SECTION_BEGIN(self); /* an append that saw the writer not busy is over then */
    self->busy = 1;
    OBJECT_SECTION_END();
    __atomic_store_n(&self->owner, PyThread_get_thread_ident(), __ATOMIC_RELAXED);
}

/* The thread that has the turn may be waiting for room without limit: signals are handled while this one
 * waits. */
int writer_begin_slow(WriterObject *self, ac_error_t *err) {
    enum { LOOK_US = 50000 }; /* signals that another thread received interrupt nothing here */
    const char *path = self->writer->dir.path;
    PyLockStatus status = PY_LOCK_FAILURE;
    if (writer_is_our_turn(self))
        return ac_fail(err, AC_E_REENTRANT, 0, path, 0,
                       "a signal handler appends to the writer whose call it interrupted");
    while (status != PY_LOCK_ACQUIRED) {
        if (writer_is_forked(self)) return ac_writer_usable(self->writer, err);
        Py_BEGIN_ALLOW_THREADS;
        status = PyThread_acquire_lock_timed(self->turn, LOOK_US, 1);
        Py_END_ALLOW_THREADS;
        if (status != PY_LOCK_ACQUIRED && PyErr_CheckSignals() < 0)
            return ac_fail(err, AC_E_INTERRUPTED, 0, path, 0, "interrupted");
    }
    writer_have_turn(self);
    return AC_OK;
}

void writer_begin_last(WriterObject *self) {
    Py_BEGIN_ALLOW_THREADS;
    PyThread_acquire_lock(self->turn, WAIT_LOCK);
    Py_END_ALLOW_THREADS;
    writer_have_turn(self);
}
