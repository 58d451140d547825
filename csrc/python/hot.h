/* _hot: the CPython types for everything that happens once per message. Loops and object construction, no
 * policy. What may take long and uses the object exclusively (opening, seeking, columns) goes through the
 * cffi binding, on the same handles. */
#ifndef AC_HOT_H
#define AC_HOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "aiochronicle.h"
#include "atomics.h"
#include "record.h"
#include "segment_map.h"
#include "wake_eventfd.h"

enum { KNOWN_DECODERS = 8 };

/* A mapped segment, which its messages keep mapped. */
typedef struct {
    PyObject_HEAD
    ac_map_t *map;
    PyObject *source;       /* name of the queue */
    PyObject *file;         /* of a Java queue, its name; NULL: the queue is one of ours */
    uint64_t queue_id;      /* of its messages: the queue's, or the one before it was copied */
    uint64_t owner_id;      /* of the queue */
    uint64_t device, inode; /* of its directory: a copy of a queue has its id */
    PyObject *decoders;     /* of the reader: where find_decoder looks */
    struct {
        PyObject *decoder; /* its last result, or NULL */
        uint16_t type_id;
    } known[KNOWN_DECODERS]; /* by the low bits of the type_id */
} SegmentObject;

typedef struct {
    PyObject_HEAD
    SegmentObject *segment;
    const uint8_t *record;
    uint64_t seq;
    uint64_t timestamp_ns;
    uint32_t length; /* of the payload alone */
    uint16_t type_id;
    uint16_t flags;
    uint32_t trailer;  /* size of the trailer; undefined without AC_FLAG_TRAILER */
    PyObject *payload; /* bytes, made on first use */
    PyObject *kept;    /* bytes of an earlier message, referenced only here, for reuse */
} MessageObject;

struct Waiter;
struct Pollable;

/* What awaiting.c needs of a readable object: a reader, or a fan-in of many. */
typedef struct {
    /* The next message, or NULL: with an exception set, or nothing available now. */
    PyObject *(*take)(struct Pollable *self);
    /* What was handed out has been processed. -1 with an exception set. */
    int (*commit_due)(struct Pollable *self);
    int (*ready)(struct Pollable *self, ac_error_t *err);   /* as ac_reader_ready */
    int (*park)(struct Pollable *self, ac_error_t *err);    /* as ac_reader_park */
    int (*eventfd)(struct Pollable *self, ac_error_t *err); /* as ac_reader_eventfd */
    int (*closed)(struct Pollable *self);
    ac_eventfd_t *(*eventfd_object)(struct Pollable *self); /* the object whose fd `eventfd` is */
} pollable_ops_t;

/* First member of every awaitable object. */
typedef struct Pollable {
    PyObject_HEAD
    const pollable_ops_t *ops;
#ifdef Py_GIL_DISABLED
    PyObject *lock; /* used in place of the object itself, or NULL: see POLLABLE_SECTION_BEGIN */
#endif
    PyObject *loop;              /* that watches our eventfd, or NULL */
    int eventfd;                 /* the fd it watches */
    int pid;                     /* of the process in which it does */
    struct Waiter *first, *last; /* tasks that sleep, in order */
    PyObject *poll_timer;        /* scheduled poll, while nothing signals the eventfd; or NULL */
    uint64_t poll_ns;            /* its present interval */
    uint64_t poll_max_ns;        /* 0 = the engine's choice … */
    uint64_t poll_limit_ns;      /* … which was this, when it last parked */
    uint64_t spin_ns;            /* spin for this long before parking */
    uint64_t idle_since_ns;      /* when spinning began; 0 = not spinning */
    uint64_t turn_started_ns;    /* of the present run of messages without a turn of the loop */
    uint32_t turn_messages;
    uint32_t burst;
} Pollable;

typedef struct {
    Pollable base;
    ac_reader_t *reader;
    SegmentObject *segment; /* of the newest message */
    PyObject *source;
    PyObject *decoders;
    PyObject *timestamp; /* function that the engine calls for the time of a message; or None */
    uint64_t queue_id;
    uint64_t commit_every; /* 0 = manual */
    uint64_t uncommitted;  /* messages handed out since the last automatic commit */
} ReaderObject;

uint64_t reader_queue_id(ReaderObject *self); /* of a reader whose queue exists */
/* The identity of messages in a segment: the queue's, or the one before it was copied. */
uint64_t reader_id_of(ReaderObject *self, uint32_t segment);
/* Whether it reads the queue that contains a message, whichever reader returned that. */
int reader_is_of(ReaderObject *self, const SegmentObject *segment);

/* What the Python side makes a Lag from. */
static inline PyObject *lag_tuple(const ac_lag_t *lag) {
    return Py_BuildValue("(KKK)", (unsigned long long)lag->messages, (unsigned long long)lag->bytes,
                         (unsigned long long)lag->age_ns);
}

/* timestamp.c: a function of the caller's, as the engine calls it. */
PyObject *hot_timestamp_function(PyObject *module, PyObject *unused);
PyObject *hot_timestamp_failure(PyObject *module, PyObject *unused);
void timestamp_forget(void); /* discards what it raised, which would keep its frames alive */

/* Where a message's record begins in its file. */
uint64_t message_offset(const MessageObject *self);

/* Of payload and trailer, as in ac_message_t. */
static inline uint32_t message_area_length(const MessageObject *self) {
    return self->flags & AC_FLAG_TRAILER ? self->length + self->trailer : self->length;
}

/* trailer.c: *out is bytes for ac_writer_append_trailer, or NULL if neither is given. */
int trailer_argument(PyObject *key, PyObject *headers, PyObject **out);
int trailer_ready(void);
PyObject *hot_split_trailer(PyObject *module, PyObject *area);
PyObject *message_key(const MessageObject *self);
PyObject *message_headers(const MessageObject *self);

/* message.c: a Position, whose type is a tuple of two that the Python side provides. */
PyObject *position_new(uint64_t segment, uint64_t offset);
PyObject *hot_set_position_type(PyObject *module, PyObject *type);

/* awaiting.c */
enum { AWAIT_ITERATION, AWAIT_NEXT, AWAIT_READY };
PyObject *awaitable_new(Pollable *source, int kind);
int pollable_leave_loop(Pollable *self); /* wakes every waiter; it is closed or closing */
int pollable_traverse(Pollable *self, visitproc visit, void *arg);
void pollable_clear(Pollable *self);
extern PyTypeObject Pollable_Type; /* base type, with _next, _ready, _ring and _poll_timer */
int awaiting_init(void);

/* In Message.flags, never on disk: a fan-in delivered it after newer messages. */
enum { MESSAGE_LATE = 0x8000 };

/* group.c: takes the exception types LeaseLost and AlreadySettled. */
PyObject *hot_set_delivery_errors(PyObject *module, PyObject *args);

/* block.c. Builds a Block step by step: the first message by block_add, which returns 0 if the message does
 * not belong into this block, and then those that simply follow. */
typedef struct BlockObject BlockObject;
struct BlockObject *block_new(Py_ssize_t room);
int block_add(BlockObject *self, SegmentObject *segment, const ac_message_t *message);
void block_take_run(BlockObject *self, ac_reader_t *reader);
int block_is_full(const BlockObject *self);
Py_ssize_t block_count(const BlockObject *self);

extern PyTypeObject Block_Type;
extern PyTypeObject Array_Type;
extern PyTypeObject Group_Type;
extern PyTypeObject GroupIterator_Type;
extern PyTypeObject Turns_Type;
extern PyTypeObject Delivery_Type;
extern PyTypeObject Immediate_Type;
extern PyTypeObject FanIn_Type;
extern PyTypeObject FanInIterator_Type;
extern PyTypeObject Waiter_Type;
extern PyTypeObject Awaitable_Type;
extern PyTypeObject Segment_Type;
extern PyTypeObject Message_Type;
extern PyTypeObject Reader_Type;
extern PyTypeObject ReaderIterator_Type;
extern PyTypeObject Writer_Type;
extern PyTypeObject Reservation_Type;

SegmentObject *segment_new(ac_map_t *map, ReaderObject *reader);
int message_ready(void); /* prepares the type */
MessageObject *message_allocate(void);
uint32_t message_epoch(const MessageObject *self);

/* To be called after bytes of a mapping were read: if the file was truncated, they may have been zeros.
 * Touching its last byte makes the SIGBUS handler record that; the bytes that were read may lie in the page
 * that the file now ends in, where zeros come without a signal. */
static inline int map_was_cut(const ac_map_t *map) {
    (void)*(const volatile uint8_t *)(map->base + map->size - 1);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* pairs with `mend` in sigbus.c */
    return AC_UNLIKELY(ac_map_is_cut(map));
}

/* Messages come and go one at a time: a free list of a few saves the allocator's work. A message whose
 * payload has no other owner keeps these bytes too, and if the next message is as long they are filled
 * again. */
#ifdef Py_GIL_DISABLED
#define FREE_LIST_SIZE 0
#else
#define FREE_LIST_SIZE 64
extern MessageObject *message_free_list[FREE_LIST_SIZE];
extern int message_free_count;
#endif

static inline MessageObject *message_obtain(void) {
#if FREE_LIST_SIZE
    if (AC_LIKELY(message_free_count > 0)) {
        MessageObject *self = message_free_list[--message_free_count];
#ifdef Py_TRACE_REFS
        _Py_NewReference((PyObject *)self);
#else
        Py_SET_REFCNT(self, 1); /* all that a new reference does, without a call */
#endif
        return self;
    }
#endif
    return message_allocate();
}

static inline PyObject *message_new(SegmentObject *segment, const ac_message_t *message) {
    MessageObject *self = message_obtain();
    if (AC_UNLIKELY(!self)) return NULL;
    self->segment = (SegmentObject *)Py_NewRef(segment);
    self->record = message->record;
    self->seq = message->seq;
    self->timestamp_ns = message->timestamp_ns;
    self->length = message->length;
    self->type_id = message->type_id;
    self->flags = message->flags;
    if (AC_UNLIKELY(message->flags & AC_FLAG_TRAILER)) {
        self->trailer = message->trailer;
        self->length -= message->trailer;
    }
    self->payload = NULL;
    return (PyObject *)self;
}

/* Raises what the Python side's factory makes of the error record; returns NULL. */
PyObject *raise_engine_error(const ac_error_t *err);
PyObject *hot_set_error_factory(PyObject *module, PyObject *factory);
PyObject *take_exception(void); /* the current exception, removed; with its traceback */

/* Takes the three functions of the Python side that decode messages. */
PyObject *hot_set_decoding(PyObject *module, PyObject *args);

/* arguments.c. Each returns 0, or -1 with an exception that names the argument. */
PyObject *hot_set_refusals(PyObject *module, PyObject *args);
/* "NAME must be WANTED, not GIVEN" */
int refuse_value(const char *name, const char *wanted, PyObject *given);
int refuse_type(const char *name, const char *wanted, PyObject *given);
/* For calls with at most one argument, by position or by this name: *count becomes the number given. */
int only_argument(Py_ssize_t *count, PyObject *names, const char *name);
int integer_argument(const char *name, const char *wanted, PyObject *object, int64_t lowest,
                     int64_t highest, int64_t *out);
int unsigned_argument(const char *name, const char *wanted, PyObject *object, uint64_t *out);
int type_argument(PyObject *object, unsigned *out); /* NULL = 0 */
int timestamp_argument(const char *name, PyObject *object, uint64_t *out);
int optional_timestamp_argument(PyObject *object, uint64_t *out);        /* None or NULL = AC_NOW */
int limit_argument(const char *name, PyObject *object, Py_ssize_t *out); /* None, NULL: unchanged */
int payload_argument(const char *name, PyObject *object, Py_buffer *out);

/* ---- without an interpreter lock ----
 *
 * With the lock, other threads see every call here as one step, except where Python code runs or the lock is released.
 * Without one, the interpreter's critical sections do the same per object, and are suspended at the same places.
 *
 * OBJECT_SECTION_BEGIN begins the critical section of one object.
 *
 * POLLABLE_SECTION_BEGIN does it for a reader, a fan-in or a group. A fan-in uses its readers all the time, so an attached
 * reader has the critical section of its fan-in's lock, an object that exists for nothing else. A reader that is not
 * attached has its own. It changes from the one to the other only inside both. */
#ifdef Py_GIL_DISABLED
#define OBJECT_SECTION_BEGIN(object) Py_BEGIN_CRITICAL_SECTION(object)
#define OBJECT_SECTION_END() Py_END_CRITICAL_SECTION()

typedef struct {
    PyCriticalSection section;
    PyObject *lock;
} pollable_section_t;

static inline void pollable_section_begin(Pollable *self, pollable_section_t *entered) {
    for (;;) {
        PyCriticalSection_Begin(&entered->section, (PyObject *)self);
        entered->lock = Py_XNewRef(self->lock);
        if (!entered->lock) return;
        PyCriticalSection_End(&entered->section);
        PyCriticalSection_Begin(&entered->section, entered->lock);
        if (__atomic_load_n(&self->lock, __ATOMIC_RELAXED) == entered->lock) return;
        PyCriticalSection_End(&entered->section); /* attached or detached meanwhile */
        Py_DECREF(entered->lock);
    }
}

static inline void pollable_section_end(pollable_section_t *entered) {
    PyCriticalSection_End(&entered->section);
    Py_XDECREF(entered->lock);
}

#define POLLABLE_SECTION_BEGIN(pollable)                                                           \
    {                                                                                              \
        pollable_section_t entered;                                                                \
        pollable_section_begin((Pollable *)(pollable), &entered);
#define POLLABLE_SECTION_END()                                                                     \
    pollable_section_end(&entered);                                                                \
    }
#define FANIN_AND_READER_SECTION_BEGIN(fanin, reader)                                              \
    Py_BEGIN_CRITICAL_SECTION2((fanin)->base.lock, reader)
#define FANIN_AND_READER_SECTION_END() Py_END_CRITICAL_SECTION2()
#else
#define OBJECT_SECTION_BEGIN(object) {
#define OBJECT_SECTION_END() }
#define POLLABLE_SECTION_BEGIN(pollable) {
#define POLLABLE_SECTION_END() }
#define FANIN_AND_READER_SECTION_BEGIN(fanin, reader) {
#define FANIN_AND_READER_SECTION_END() }
#endif

#endif
