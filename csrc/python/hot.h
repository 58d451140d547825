/* _hot: the CPython types for everything that happens once per message. Loops and object construction,
 * no policy: opening, seeking and statistics go through the cffi binding, on the same handles. */
#ifndef AC_HOT_H
#define AC_HOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "aiochronicle.h"
#include "map.h"

/* A mapped segment as messages hold it: while one of them lives, the mapping does. */
typedef struct {
    PyObject_HEAD ac_map_t *map;
    PyObject *source; /* name of the queue */
    uint64_t queue_id;
} SegmentObject;

typedef struct {
    PyObject_HEAD SegmentObject *segment;
    const uint8_t *record;
    uint64_t seq;
    uint64_t timestamp_ns;
    uint32_t length;
    uint16_t type_id;
    uint16_t flags;
    PyObject *payload; /* bytes, made on first use */
} MessageObject;

extern PyTypeObject Segment_Type;
extern PyTypeObject Message_Type;
extern PyTypeObject Reader_Type;
extern PyTypeObject ReaderIterator_Type;
extern PyTypeObject Writer_Type;
extern PyTypeObject Reservation_Type;

SegmentObject *segment_new(ac_map_t *map, PyObject *source, uint64_t queue_id);
PyObject *message_new(SegmentObject *segment, const ac_message_t *message);

/* Raises what the Python side's factory makes of the error record; returns NULL. */
PyObject *raise_engine_error(const ac_error_t *err);
PyObject *hot_set_error_factory(PyObject *module, PyObject *factory);

/* A nanosecond timestamp argument: None or missing = AC_NOW. 0 on success. */
int timestamp_argument(PyObject *object, uint64_t *out);

/* Serialises calls on one object where there is no interpreter lock to do it. */
#ifdef Py_GIL_DISABLED
#define HOT_BEGIN(object) Py_BEGIN_CRITICAL_SECTION(object)
#define HOT_END() Py_END_CRITICAL_SECTION()
#else
#define HOT_BEGIN(object) {
#define HOT_END() }
#endif

#endif
