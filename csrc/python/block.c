/* Many messages at once, without an object for each: their places in the segment, as arrays.
 *
 * A Block is what Reader.read_block took from one segment. Its seqs are consecutive, so the first one determines them all.
 * The payloads stay where they are, as those of Message.view do. */
#include "hot.h"

#include "reader.h"

#include <structmember.h>

struct BlockObject {
    PyObject_HEAD
    SegmentObject *segment; /* NULL: it is empty */
    uint64_t first_seq;
    Py_ssize_t count, room;
    uint64_t *timestamps_ns, *offsets; /* one allocation, in this order */
    uint32_t *lengths;
    uint16_t *type_ids;
};

/* One of the arrays, or the segment itself, as an object that a memoryview can be made of. */
typedef struct {
    PyObject_HEAD
    PyObject *owner;
    void *start;
    Py_ssize_t count, item_size;
    const char *format;
} ArrayObject;

enum { ROW_BYTES = 2 * sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint16_t) };

BlockObject *block_new(Py_ssize_t room) {
    BlockObject *self = PyObject_New(BlockObject, &Block_Type);
    if (!self) return NULL;
    self->segment = NULL;
    self->first_seq = 0;
    self->count = 0;
    self->room = room;
    self->timestamps_ns =
        room <= PY_SSIZE_T_MAX / ROW_BYTES ? PyMem_Malloc((size_t)room * ROW_BYTES) : NULL;
    if (!self->timestamps_ns) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    self->offsets = self->timestamps_ns + room;
    self->lengths = (uint32_t *)(void *)(self->offsets + room);
    self->type_ids = (uint16_t *)(void *)(self->lengths + room);
    return self;
}

static void block_dealloc(BlockObject *self) {
    Py_XDECREF(self->segment);
    PyMem_Free(self->timestamps_ns);
    PyObject_Free(self);
}

static inline void put(BlockObject *self, const uint8_t *base, const ac_message_t *message) {
    Py_ssize_t row = self->count++;
    self->timestamps_ns[row] = message->timestamp_ns;
    self->offsets[row] = (uint64_t)(message->record + AC_HEADER_SIZE - base);
    self->lengths[row] = ac_payload_length(message);
    self->type_ids[row] = message->type_id;
}

void block_take_run(BlockObject *self, ac_reader_t *reader) {
    ac_message_t message;
    const uint8_t *base = self->segment->map->base;
    while (self->count < self->room && ac_reader_try_next(reader, &message) == 1)
        put(self, base, &message);
}

int block_add(BlockObject *self, SegmentObject *segment, const ac_message_t *message) {
    if (!self->segment) {
        self->segment = (SegmentObject *)Py_NewRef(segment);
        self->first_seq = message->seq;
    }
    if (self->segment != segment || message->seq != self->first_seq + (uint64_t)self->count)
        return 0;
    put(self, segment->map->base, message);
    return 1;
}

int block_is_full(const BlockObject *self) {
    return self->count == self->room;
}

Py_ssize_t block_count(const BlockObject *self) {
    return self->count;
}

static Py_ssize_t block_length(BlockObject *self) {
    return self->count;
}

static PyObject *block_item(BlockObject *self, Py_ssize_t row) {
    if (row < 0 || row >= self->count) {
        PyErr_SetString(PyExc_IndexError, "the block has no such message");
        return NULL;
    }
    const ac_map_t *map = self->segment->map;
    const char *payload = (const char *)map->base + self->offsets[row];
    PyObject *bytes = PyBytes_FromStringAndSize(payload, (Py_ssize_t)self->lengths[row]);
    if (!bytes || !map_was_cut(map)) return bytes;
    Py_DECREF(bytes);
    ac_error_t err = {.code = AC_E_GONE, .offset = ac_load_relaxed_u64(&map->cut_at)};
    static const char detail[] = "the file was cut while it was being read";
    memcpy(err.detail, detail, sizeof detail);
    return raise_engine_error(&err);
}

static PyObject *array_view(BlockObject *self, void *start, Py_ssize_t count, Py_ssize_t item_size,
                            const char *format) {
    ArrayObject *array = PyObject_New(ArrayObject, &Array_Type);
    if (!array) return NULL;
    array->owner = Py_NewRef(self);
    array->start = start;
    array->count = count;
    array->item_size = item_size;
    array->format = format;
    PyObject *view = PyMemoryView_FromObject((PyObject *)array);
    Py_DECREF(array);
    return view;
}

static PyObject *block_buffer(BlockObject *self, void *unused) {
    (void)unused;
    static uint8_t nothing[1];
    const ac_map_t *map = self->segment ? self->segment->map : NULL;
    return map ? array_view(self, map->base, (Py_ssize_t)map->size, 1, "B")
               : array_view(self, nothing, 0, 1, "B");
}

static PyObject *block_offsets(BlockObject *self, void *unused) {
    (void)unused;
    return array_view(self, self->offsets, self->count, sizeof *self->offsets, "Q");
}

static PyObject *block_timestamps(BlockObject *self, void *unused) {
    (void)unused;
    return array_view(self, self->timestamps_ns, self->count, sizeof *self->timestamps_ns, "Q");
}

static PyObject *block_lengths(BlockObject *self, void *unused) {
    (void)unused;
    return array_view(self, self->lengths, self->count, sizeof *self->lengths, "I");
}

static PyObject *block_type_ids(BlockObject *self, void *unused) {
    (void)unused;
    return array_view(self, self->type_ids, self->count, sizeof *self->type_ids, "H");
}

static PyMemberDef block_members[] = {
    {"first_seq", T_ULONGLONG, offsetof(BlockObject, first_seq), READONLY,
     "Seq of the first message; those of the others follow it one by one."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef block_properties[] = {
    {"buffer", (getter)block_buffer, NULL,
     "The segment that holds the payloads: a read-only memoryview, without copying.", NULL},
    {"offsets", (getter)block_offsets, NULL,
     "Where each payload begins in `buffer`: memoryview of format Q.", NULL},
    {"lengths", (getter)block_lengths, NULL,
     "Length of each payload in bytes: memoryview of format I.", NULL},
    {"timestamps_ns", (getter)block_timestamps, NULL, "Unix nanoseconds: memoryview of format Q.",
     NULL},
    {"type_ids", (getter)block_type_ids, NULL, "The writer's types: memoryview of format H.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PySequenceMethods block_sequence = {.sq_length = (lenfunc)block_length,
                                           .sq_item = (ssizeargfunc)block_item};

PyTypeObject Block_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle.Block",
    .tp_basicsize = sizeof(BlockObject),
    .tp_dealloc = (destructor)block_dealloc,
    .tp_as_sequence = &block_sequence,
    .tp_iter = PySeqIter_New,
    .tp_members = block_members,
    .tp_getset = block_properties,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = PyDoc_STR(
        "Messages of one segment as arrays, without an object for each; block[i] is the payload of "
        "message i as bytes. Keeps the segment mapped."),
};

static void array_dealloc(ArrayObject *self) {
    Py_DECREF(self->owner);
    PyObject_Free(self);
}

static int array_getbuffer(ArrayObject *self, Py_buffer *view, int flags) {
    if (PyBuffer_FillInfo(view, (PyObject *)self, self->start, self->count * self->item_size, 1,
                          flags) < 0)
        return -1;
    view->itemsize = self->item_size;
    if (flags & PyBUF_FORMAT) view->format = (char *)(uintptr_t)self->format;
    if (view->shape) view->shape = &self->count;
    if (view->strides) view->strides = &self->item_size;
    return 0;
}

static PyBufferProcs array_buffer = {.bf_getbuffer = (getbufferproc)array_getbuffer};

PyTypeObject Array_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aiochronicle._hot.Array",
    .tp_basicsize = sizeof(ArrayObject),
    .tp_dealloc = (destructor)array_dealloc,
    .tp_as_buffer = &array_buffer,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "An array of a Block.",
};
