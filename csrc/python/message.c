#include "hot.h"

#include "cq4_reader.h"

#include <structmember.h>

/* ---- segment ---- */

SegmentObject *segment_new(ac_map_t *map, ReaderObject *reader) {
    const ac_cq4_reader_t *java = reader->reader->java;
    PyObject *file = java ? PyUnicode_DecodeFSDefault(java->tail.cycle.name) : NULL;
    if (java && !file) return NULL;
    SegmentObject *self = PyObject_New(SegmentObject, &Segment_Type);
    if (!self) {
        Py_XDECREF(file);
        return NULL;
    }
    ac_map_retain(map);
    self->map = map;
    self->file = file;
    self->source = Py_NewRef(reader->source);
    self->queue_id = reader_id_of(reader, map->segment);
    self->owner_id = reader_queue_id(reader);
    self->device = (uint64_t)reader->reader->dir.device;
    self->inode = (uint64_t)reader->reader->dir.inode;
    self->decoders = Py_NewRef(reader->decoders);
    memset(self->known, 0, sizeof self->known);
    return self;
}

static void segment_dealloc(SegmentObject *self) {
    ac_map_release(self->map);
    Py_DECREF(self->source);
    Py_XDECREF(self->file);
    Py_DECREF(self->decoders);
    for (int i = 0; i < KNOWN_DECODERS; i++)
        Py_XDECREF(self->known[i].decoder);
    PyObject_Free(self);
}

PyTypeObject Segment_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Segment",
    .tp_basicsize = sizeof(SegmentObject),
    .tp_dealloc = (destructor)segment_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A mapped segment that messages keep alive.",
};

/* ---- message ---- */

#if FREE_LIST_SIZE
enum { KEPT_PAYLOAD_MIN = 2, KEPT_PAYLOAD_MAX = 1024 }; /* the interpreter shares shorter ones */
MessageObject *message_free_list[FREE_LIST_SIZE];
int message_free_count;
#endif

MessageObject *message_allocate(void) {
    MessageObject *self = PyObject_New(MessageObject, &Message_Type);
    if (self) self->kept = NULL;
    return self;
}

static void message_dealloc(MessageObject *self) {
    Py_DECREF(self->segment);
#if FREE_LIST_SIZE
    if (AC_LIKELY(message_free_count < FREE_LIST_SIZE)) {
        PyObject *payload = self->payload;
        if (payload) {
            if (Py_REFCNT(payload) == 1 && self->length >= KEPT_PAYLOAD_MIN &&
                self->length <= KEPT_PAYLOAD_MAX)
                self->kept = payload;
            else
                Py_DECREF(payload);
        }
        message_free_list[message_free_count++] = self;
        return;
    }
#endif
    Py_XDECREF(self->payload);
    Py_XDECREF(self->kept);
    PyObject_Free(self);
}

static const char *payload_at(const MessageObject *self) {
    return (const char *)self->record + AC_HEADER_SIZE;
}

/* ---- payload ---- */

static PyObject *find_decoder, *decode_failed, *was_cut; /* see aiochronicle/_typed/decoding.py */

static int read_cut(const MessageObject *self) {
    return map_was_cut(self->segment->map);
}

static __attribute__((noinline, cold)) PyObject *raise_cut(MessageObject *self, PyObject *made) {
    Py_XDECREF(made);
    PyErr_Clear(); /* whatever the zeros led to */
    PyObject *error = PyObject_CallFunctionObjArgs(was_cut, self->segment->decoders, self, NULL);
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

/* What was made of the bytes, if they were those of the message. */
static PyObject *unless_cut(MessageObject *self, PyObject *made) {
    return read_cut(self) ? raise_cut(self, made) : made;
}

#ifdef Py_GIL_DISABLED
/* If several threads make it at once, all use the first one's. */
static PyObject *message_payload(MessageObject *self, void *unused) {
    (void)unused;
    PyObject *payload = __atomic_load_n(&self->payload, __ATOMIC_ACQUIRE);
    if (AC_LIKELY(payload != NULL)) return Py_NewRef(payload);
    PyObject *made =
        unless_cut(self, PyBytes_FromStringAndSize(payload_at(self), (Py_ssize_t)self->length));
    if (!made || __atomic_compare_exchange_n(&self->payload, &payload, made, 0, __ATOMIC_ACQ_REL,
                                             __ATOMIC_ACQUIRE))
        return Py_XNewRef(made);
    Py_DECREF(made);
    return Py_NewRef(payload);
}
#else
static void forget_hash(PyObject *bytes) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    ((PyBytesObject *)bytes)->ob_shash = -1;
#pragma GCC diagnostic pop
}

static PyObject *make_payload(MessageObject *self) {
    PyObject *kept = self->kept;
    self->kept = NULL;
    if (kept && PyBytes_GET_SIZE(kept) == (Py_ssize_t)self->length) {
        memcpy(PyBytes_AS_STRING(kept), payload_at(self), self->length);
        forget_hash(kept);
        return kept;
    }
    Py_XDECREF(kept);
    return PyBytes_FromStringAndSize(payload_at(self), (Py_ssize_t)self->length);
}

static PyObject *message_payload(MessageObject *self, void *unused) {
    (void)unused;
    if (!self->payload) self->payload = unless_cut(self, make_payload(self));
    return Py_XNewRef(self->payload);
}
#endif

static PyObject *message_view(MessageObject *self, void *unused) {
    (void)unused;
    return PyMemoryView_FromObject((PyObject *)self);
}

static PyObject *message_source(MessageObject *self, void *unused) {
    (void)unused;
    return Py_NewRef(self->segment->source);
}

static PyObject *message_queue_id(MessageObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->segment->queue_id);
}

static PyObject *message_late(MessageObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->flags & MESSAGE_LATE);
}

/* 0: written by another program; or the file was truncated, so it is unknown. */
uint32_t message_epoch(const MessageObject *self) {
    const ac_record_t *record = (const ac_record_t *)(const void *)self->record;
    return self->flags & AC_FLAG_OURS ? ac_load_relaxed_u32(&record->epoch) : 0;
}

static PyObject *message_writer_epoch(MessageObject *self, void *unused) {
    (void)unused;
    return unless_cut(self, PyLong_FromUnsignedLong(message_epoch(self)));
}

static PyObject *message_cause(MessageObject *self, void *unused) {
    (void)unused;
    ac_record_t header;
    if (!(self->flags & AC_FLAG_CAUSE)) Py_RETURN_NONE;
    memcpy(&header, self->record, sizeof header);
    return unless_cut(self, Py_BuildValue("KK", (unsigned long long)header.cause_source,
                                          (unsigned long long)header.cause_seq));
}

static PyObject *message_cause_epoch(MessageObject *self, void *unused) {
    (void)unused;
    const ac_record_t *record = (const ac_record_t *)(const void *)self->record;
    if (!(self->flags & AC_FLAG_CAUSE)) Py_RETURN_NONE;
    return unless_cut(self, PyLong_FromUnsignedLong(ac_load_relaxed_u32(&record->cause_epoch)));
}

static PyObject *message_expires_ns(MessageObject *self, void *unused) {
    (void)unused;
    const ac_record_t *record = (const ac_record_t *)(const void *)self->record;
    if ((self->flags & (AC_FLAG_EXPIRES | AC_FLAG_CAUSE)) != AC_FLAG_EXPIRES) Py_RETURN_NONE;
    uint64_t expires_ns = ac_load_relaxed_u64(&record->cause_source);
    return unless_cut(self, PyLong_FromUnsignedLongLong(expires_ns));
}

static PyObject *message_get_key(MessageObject *self, void *unused) {
    (void)unused;
    return unless_cut(self, message_key(self));
}

static PyObject *message_get_headers(MessageObject *self, void *unused) {
    (void)unused;
    return unless_cut(self, message_headers(self));
}

static PyTypeObject *position_type = &PyTuple_Type;

PyObject *hot_set_position_type(PyObject *module, PyObject *type) {
    (void)module;
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        refuse_type("the type of positions", "a subclass of tuple", type);
        return NULL;
    }
    Py_INCREF(type); /* for good */
    position_type = (PyTypeObject *)type;
    Py_RETURN_NONE;
}

/* As tuple.__new__(Position, (segment, offset)): the class's own __new__ does the same, in Python. */
PyObject *position_new(uint64_t segment, uint64_t offset) {
    PyObject *args =
        Py_BuildValue("((KK))", (unsigned long long)segment, (unsigned long long)offset);
    PyObject *self = args ? PyTuple_Type.tp_new(position_type, args, NULL) : NULL;
    Py_XDECREF(args);
    return self;
}

uint64_t message_offset(const MessageObject *self) {
    uint64_t record = (uint64_t)(self->record - self->segment->map->base);
    return self->segment->file ? record + AC_HEADER_SIZE - AC_CQ4_HEADER_BYTES : record;
}

static PyObject *message_position(MessageObject *self, void *unused) {
    (void)unused;
    return position_new(self->segment->map->segment, message_offset(self));
}

static PyObject *message_java_file(MessageObject *self, void *unused) {
    (void)unused;
    return Py_NewRef(self->segment->file ? self->segment->file : Py_None);
}

/* ---- decoding ---- */

PyObject *hot_set_decoding(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *find, *failed, *cut;
    if (!PyArg_ParseTuple(args, "OOO", &find, &failed, &cut)) return NULL;
    Py_XSETREF(find_decoder, Py_NewRef(find));
    Py_XSETREF(decode_failed, Py_NewRef(failed));
    Py_XSETREF(was_cut, Py_NewRef(cut));
    Py_RETURN_NONE;
}

static PyObject *ask_for_decoder(MessageObject *self, PyObject *type) {
    return PyObject_CallFunctionObjArgs(find_decoder, self->segment->decoders, self, type, NULL);
}

/* The decoder for this type_id, looked up once per segment. */
static PyObject *own_decoder(MessageObject *self) {
    SegmentObject *segment = self->segment;
    int slot = self->type_id % KNOWN_DECODERS;
    PyObject *decoder = NULL;
    OBJECT_SECTION_BEGIN(segment);
    if (segment->known[slot].type_id == self->type_id)
        decoder = Py_XNewRef(segment->known[slot].decoder);
    OBJECT_SECTION_END();
    if (AC_LIKELY(decoder != NULL)) return decoder;
    decoder = ask_for_decoder(self, Py_None);
    if (!decoder) return NULL;
    PyObject *replaced;
    OBJECT_SECTION_BEGIN(segment);
    replaced = segment->known[slot].decoder;
    segment->known[slot].decoder = Py_NewRef(decoder);
    segment->known[slot].type_id = self->type_id;
    OBJECT_SECTION_END();
    Py_XDECREF(replaced);
    return decoder;
}

/* Replaces the decoder's exception by one that names the message. */
static __attribute__((noinline)) PyObject *undecodable(MessageObject *self) {
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError))
        return NULL;
    PyObject *cause = take_exception();
    PyObject *error =
        PyObject_CallFunctionObjArgs(decode_failed, self->segment->decoders, self, cause, NULL);
    if (!error) {
        Py_DECREF(cause);
        return NULL;
    }
    PyException_SetCause(error, cause);
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return NULL;
}

static PyObject *message_decode(MessageObject *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
    PyObject *type = count == 1 ? args[0] : Py_None;
    if (names && count == 0 && PyTuple_GET_SIZE(names) == 1 &&
        PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "type") == 0)
        type = args[0];
    else if (AC_UNLIKELY(count > 1 || (names && PyTuple_GET_SIZE(names) > 0))) {
        PyErr_SetString(PyExc_TypeError, "decode takes one argument at most, the type");
        return NULL;
    }
    PyObject *decoder = type == Py_None ? own_decoder(self) : ask_for_decoder(self, type);
    if (!decoder) return NULL;
    PyObject *object = PyObject_CallOneArg(decoder, (PyObject *)self);
    Py_DECREF(decoder);
    return AC_LIKELY(object != NULL) || read_cut(self) ? unless_cut(self, object)
                                                       : undecodable(self);
}

static PyMethodDef message_methods[] = {
    {"decode", (PyCFunction)(void (*)(void))message_decode, METH_FASTCALL | METH_KEYWORDS,
     "decode($self, type=None)\n--\n\n"
     "Return the payload as an object of the reader's codec, or of this type or Codec."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "__class_getitem__($type, type, /)\n--\n\n"
     "Message[T] decodes to a T."},
    {NULL, NULL, 0, NULL},
};

/* Finding a property through the type costs more than making the bytes, and nearly every caller wants the
 * payload or the decoded object: their names are recognised here. Names in code are interned, so comparing
 * addresses is enough; any other string goes the usual way. */
static PyObject *payload_name, *decode_name;

static PyObject *message_getattro(PyObject *self, PyObject *name) {
    if (AC_LIKELY(name == payload_name)) return message_payload((MessageObject *)self, NULL);
    if (name == decode_name) return PyCFunction_New(&message_methods[0], self);
    return PyObject_GenericGetAttr(self, name);
}

int message_ready(void) {
    payload_name = PyUnicode_InternFromString("payload");
    decode_name = PyUnicode_InternFromString("decode");
    return payload_name && decode_name && trailer_ready() == 0 ? PyType_Ready(&Message_Type) : -1;
}

static PyObject *message_repr(MessageObject *self) {
    enum { SHOWN = 32 };
    Py_ssize_t shown = self->length < SHOWN ? (Py_ssize_t)self->length : SHOWN;
    PyObject *start = PyBytes_FromStringAndSize(payload_at(self), shown);
    if (!start) return NULL;
    PyObject *text = PyUnicode_FromFormat(
        "<Message seq=%llu timestamp_ns=%llu type_id=%u source=%R payload=%R%s (%u bytes)>",
        (unsigned long long)self->seq, (unsigned long long)self->timestamp_ns,
        (unsigned)self->type_id, self->segment->source, start, self->length > SHOWN ? "…" : "",
        (unsigned)self->length);
    Py_DECREF(start);
    return text;
}

static Py_ssize_t message_length(MessageObject *self) {
    return (Py_ssize_t)self->length;
}

/* If the file is truncated later, that is visible through the buffer. */
static int message_getbuffer(MessageObject *self, Py_buffer *view, int flags) {
    if (read_cut(self)) {
        raise_cut(self, NULL);
        view->obj = NULL;
        return -1;
    }
    return PyBuffer_FillInfo(view, (PyObject *)self, (void *)(uintptr_t)payload_at(self),
                             (Py_ssize_t)self->length, 1, flags);
}

static PyMemberDef message_members[] = {
    {"seq", T_ULONGLONG, offsetof(MessageObject, seq), READONLY,
     "Number of the message in its queue: 0, 1, 2 …"},
    {"timestamp_ns", T_ULONGLONG, offsetof(MessageObject, timestamp_ns), READONLY,
     "Unix time in nanoseconds; never smaller than the message before it."},
    {"type_id", T_USHORT, offsetof(MessageObject, type_id), READONLY, "The writer's message type."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef message_properties[] = {
    {"payload", (getter)message_payload, NULL, "The payload as bytes, copied on first use.", NULL},
    {"view", (getter)message_view, NULL,
     "The payload as a read-only memoryview into the segment, without copying.", NULL},
    {"source", (getter)message_source, NULL, "Name of the queue the message came from.", NULL},
    {"queue_id", (getter)message_queue_id, NULL, "Identity of that queue.", NULL},
    {"epoch", (getter)message_writer_epoch, NULL,
     "Which writer of the queue appended it: 1, 2 … in the order they were opened; 0 is another "
     "program. A power cut can have a seq given twice, but not by the same writer.",
     NULL},
    {"late", (getter)message_late, NULL,
     "True if a fan-in delivered it after a message that should have come later.", NULL},
    {"cause", (getter)message_cause, NULL,
     "(queue_id, seq) of the message that caused this one, or None.", NULL},
    {"expires_ns", (getter)message_expires_ns, NULL,
     "When the message expires, in Unix nanoseconds, or None.", NULL},
    {"cause_epoch", (getter)message_cause_epoch, NULL,
     "The epoch of the message that caused this one, 0 if it is not known, or None.", NULL},
    {"key", (getter)message_get_key, NULL, "The key it was appended with, as bytes, or None.",
     NULL},
    {"headers", (getter)message_get_headers, NULL,
     "The headers it was appended with: a read-only mapping of names to bytes, empty if it has "
     "none. "
     "Made at each access.",
     NULL},
    {"position", (getter)message_position, NULL, "Where the record is, a Position.", NULL},
    {"_java_file", (getter)message_java_file, NULL,
     "Name of the file that a message of a Java queue is in; None for one of a queue of ours.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PySequenceMethods message_sequence = {.sq_length = (lenfunc)message_length};
static PyBufferProcs message_buffer = {.bf_getbuffer = (getbufferproc)message_getbuffer};

PyTypeObject Message_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle.Message",
    .tp_basicsize = sizeof(MessageObject),
    .tp_dealloc = (destructor)message_dealloc,
    .tp_repr = (reprfunc)message_repr,
    .tp_getattro = message_getattro,
    .tp_as_sequence = &message_sequence,
    .tp_as_buffer = &message_buffer,
    .tp_methods = message_methods,
    .tp_members = message_members,
    .tp_getset = message_properties,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc =
        PyDoc_STR("One message. Keeps its segment mapped as long as it, or a view of it, lives."),
};
