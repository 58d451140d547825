/* The options of a message: keywords, parsed without building a dict, and its cause. */
#include "writer_object.h"

int writer_find_options(PyObject *const *args, Py_ssize_t count, PyObject *names, const char *first,
                        const char *key, const char *timestamp, writer_options_t *out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        PyObject *value = args[count + i];
        if (PyUnicode_CompareWithASCIIString(name, "type_id") == 0)
            out->type_id = value;
        else if (PyUnicode_CompareWithASCIIString(name, timestamp) == 0)
            out->timestamp = value;
        else if (PyUnicode_CompareWithASCIIString(name, "cause") == 0)
            out->cause = value;
        else if (PyUnicode_CompareWithASCIIString(name, key) == 0)
            out->key = value == Py_None ? NULL : value;
        else if (PyUnicode_CompareWithASCIIString(name, "headers") == 0)
            out->headers = value == Py_None ? NULL : value;
        else if (count == 0 && PyUnicode_CompareWithASCIIString(name, first) == 0)
            out->first = value;
        else {
            PyErr_Format(PyExc_TypeError, "unexpected keyword argument %R", name);
            return -1;
        }
    }
    return 0;
}

int cause_argument(PyObject *object, ac_cause_t *room, const ac_cause_t **cause) {
    static const char wanted[] = "a Message or a tuple (queue_id, seq) of unsigned 64-bit ints";
    *cause = NULL;
    if (!object || object == Py_None) return 0;
    *cause = room;
    room->epoch = room->is_expiry = 0;
    if (Py_IS_TYPE(object, &Message_Type)) {
        const MessageObject *message = (MessageObject *)object;
        *room = (ac_cause_t){message->segment->queue_id, message->seq, message_epoch(message), 0};
    } else if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2) {
        return refuse_type("cause", wanted, object);
    } else if (unsigned_argument("cause", wanted, PyTuple_GET_ITEM(object, 0), &room->source) < 0 ||
               unsigned_argument("cause", wanted, PyTuple_GET_ITEM(object, 1), &room->seq) < 0) {
        return -1;
    }
    if (room->source != 0) return 0;
    /* Queues made by other programs have no id: a cause in one of them could not be found again. */
    return refuse_value("cause", "of a queue with an id (those of other programs have no id)",
                        object);
}
