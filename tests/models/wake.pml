/* The wake-up: can a reader sleep while there is something to read?
 *
 * The model follows the C code step by step; between any two steps any other process may run.
 *
 *   writer           ac_writer_open (lock -> announce -> ac_wake_targets_open), then for each message
 *                    ac_writer_put (commit word) -> ac_writer_publish (increment of notify_seq: the full
 *                    barrier) -> control.parked (load and, in ac_writer_wake, exchange; one step here,
 *                    because no other process clears bits in between) -> ac_wake_targets_signal
 *   writer_wake_thread   wake_connection.c, the writer's side: on_change and call_reader; on_outgoing (add_sleeper ->
 *                    send the bit); the end of a connection (forget_sleeper); with HAND_OVER also
 *                    ac_wake_targets_signal_rest: empty its own eventfd -> take the marks -> signal
 *   reader           ac_reader_eventfd (announce), then ac_reader_next until it finds nothing -> ac_reader_park
 *                    (load the bit -> raise it -> look again) -> sleep on the eventfd; when signalled: drain
 *                    it (on_signal in awaiting.c, ac_reader_sleep) -> look
 *   reader_wake_thread   wake_connection.c, the reader's side: answer_hello; take_bit (bit -> signal);
 *                    connection_close (bit -> signal); on_change of the lock file (suspect -> signal)
 *   memory           the writer's store buffer, as on x86: a store may become visible after later loads of
 *                    the same thread; a full barrier waits until the buffer is empty
 *   ..._fate         kills and restarts at any point between two steps
 *
 * Connections are numbered in the order of connect(), which is the order in which accept() returns them.
 * The packets of one connection arrive in order, but a wake thread serves its connections in any order.
 *
 * Checked when no step is possible any more. Every run ends (polling is modelled as waking up when there is
 * a new record), so no cycle exists in which a reader could starve.
 *   without NET  a live, idle writer implies that every live reader has read everything; nobody polls
 *   with NET     every live reader has read everything that was committed, even if the writer was killed
 *                before it had connected to it: until then the reader polls (ac_wake_endpoint.suspect)
 * Also checked at each signal of the writer: the reader raised its bit once for it. This holds until a
 * process dies: a successor may give a dead sleeper's bit to another reader, which then wakes up once in vain.
 *
 * HAND_OVER=n: sleepers with the n-th bit or a later one are marked, and the wake thread is nudged to signal them. (In
 * C these are all but the first sleeper, if there are many.)
 *
 * Readers and writers of other programs (waiters_pending, signalling_epoch) are left out: those poll. */

#ifndef READERS
#define READERS 2
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef WRITER_KILLS
#define WRITER_KILLS 0
#endif
#ifndef READER_KILLS
#define READER_KILLS 0
#endif
/* TWICE: a reader that announces itself between the writer's watch and its scan is found by both. */
#ifdef TWICE
#define CALLS 2
#else
#define CALLS 1
#endif

#define CONNECTIONS (READERS * CALLS * (1 + WRITER_KILLS) + READER_KILLS)
#define BITS 2
#define NO_BIT BITS
#define NONE 255

/* Shared memory. */
byte head;     /* records visible to all processes */
byte buffered; /* commit words still in the writer's store buffer */
byte parked;   /* control.parked */

/* The readers; state of the current life of each. */
byte read[READERS]; /* position */
bool alive[READERS] = true;
bool listening[READERS]; /* its socket is in wake/ */
byte life[READERS];
bool eventfd[READERS];    /* the eventfd is readable */
byte own_bit[READERS] = NO_BIT; /* ac_wake_endpoint.bit */
byte current[READERS] = NONE; /* ac_wake_endpoint.connection */
byte asked[READERS];   /* how often it raised its bit, less the signals it got for that */
bool announced[READERS]; /* an event of the writer's watch of wake/ is pending */
#ifdef NET
bool suspect[READERS];      /* ac_wake_endpoint.suspect */
bool lock_changed[READERS]; /* an event of the reader's watch of writer.lock is pending */
#endif
#ifdef RAISE_WITHOUT_BARRIER
byte raising[READERS]; /* in the reader's store buffer */
#endif

/* The writer; state of its current life. */
bool writer_alive = true;
byte writer_life;
bool watching;      /* its watch of wake/ is in place */
byte published;     /* records committed so far, by all writers */
byte sleeper[BITS] = NONE; /* ac_wake_targets.sleepers: the connection that has this bit */
#ifdef HAND_OVER
byte marked;               /* handed_over of the sleepers, one bit each */
bool nudged;               /* the wake thread's own eventfd is readable */
#endif
bool attending;     /* its wake thread is running */
bool killed;
byte writer_dying, reader_dying; /* threads that have yet to stop, one bit each; nothing else runs */
#define NOBODY_DIES (writer_dying == 0 && reader_dying == 0)

mtype = { UNUSED, HELLO, EVENTFD, BIT, TAKEN, CLOSED }

typedef connection_t {
    mtype state = UNUSED; /* the last packet or event */
    byte from;            /* life of the writer at one end */
    byte to, to_life;     /* the reader at the other end */
    byte given;           /* its bit */
    bool dropped;         /* the writer closed its end */
#ifdef NET
    bool outdated;        /* a writer took the lock since the hello */
#endif
}
connection_t connection[CONNECTIONS];
byte connections;

/* Processes are numbered in the order of the text below. */
#define FIRST_READER_WAKE_THREAD 3
#define FIRST_READER (FIRST_READER_WAKE_THREAD + READERS)

#if CONNECTIONS == 1
#define FOR_EACH_CONNECTION(serve) serve(0)
#elif CONNECTIONS == 2
#define FOR_EACH_CONNECTION(serve) serve(0) serve(1)
#elif CONNECTIONS == 3
#define FOR_EACH_CONNECTION(serve) serve(0) serve(1) serve(2)
#elif CONNECTIONS == 4
#define FOR_EACH_CONNECTION(serve) serve(0) serve(1) serve(2) serve(3)
#else
#define FOR_EACH_CONNECTION(serve) serve(0) serve(1) serve(2) serve(3) serve(4)
#endif

#define IS_OPEN(c) (connection[c].state != UNUSED && connection[c].state != CLOSED)
#define WRITER_ENDED(c) \
    (connection[c].dropped || !writer_alive || connection[c].from != writer_life)
#define READER_ENDED(c) \
    (!alive[connection[c].to] || connection[c].to_life != life[connection[c].to])

#ifdef NET
#define OUTDATED(c, value) connection[c].outdated = value
#else
#define OUTDATED(c, value) skip
#endif

/* All closed connections look the same, so they do not multiply states. */
inline close_connection(c) {
    connection[c].state = CLOSED;
    connection[c].from = 0;
    connection[c].to = 0;
    connection[c].to_life = 0;
    connection[c].given = 0;
    connection[c].dropped = false;
    OUTDATED(c, false)
}

#ifdef HAND_OVER
#define UNMARK(b) marked = marked & ~(1 << b)
#else
#define UNMARK(b) skip
#endif

/* ---- the writer ---- */

inline forget_sleeper(c) {
    for (_b : 0 .. BITS - 1) {
        if
        :: sleeper[_b] == c ->
            sleeper[_b] = NONE;
            UNMARK(_b)
        :: else
        fi
    }
    _b = 0
}

/* A leftover of a dead reader refuses the connection. A new socket under a name is newer than the one that
 * this writer is connected to under that name. */
inline call_reader(r) {
    _found = false;
    for (_c : 0 .. CONNECTIONS - 1) {
        if
        :: IS_OPEN(_c) && !WRITER_ENDED(_c) && connection[_c].to == r && listening[r] ->
#ifdef KEEP_OLD_CONNECTION
            _found = true
#else
            connection[_c].dropped = true;
            forget_sleeper(_c)
#endif
        :: else
        fi
    }
    if
    :: listening[r] && !_found ->
        assert(connections < CONNECTIONS);
        connection[connections].state = HELLO;
        connection[connections].from = writer_life;
        connection[connections].to = r;
        connection[connections].to_life = life[r];
        connections++
    :: else
    fi;
    _c = 0;
    _found = false
}

inline scan() {
    for (_r : 0 .. READERS - 1) { call_reader(_r) }
    _r = 0
}

inline choose_bit(c) {
    do
    :: sleeper[_b] != NONE -> _b++; assert(_b < BITS)
    :: else -> break
    od;
    connection[c].given = _b
}

#define SERVED_BY_WRITER(c) (IS_OPEN(c) && connection[c].from == writer_life && !connection[c].dropped)
#ifdef BIT_BEFORE_SLEEPER
#define GIVE_BIT(c) \
    d_step { choose_bit(c); connection[c].state = BIT }; \
    d_step { sleeper[_b] = c; _b = 0 }
#else
#define GIVE_BIT(c) \
    d_step { choose_bit(c); sleeper[_b] = c; _b = 0 }; \
    connection[c].state = BIT
#endif

#define WRITER_SERVES(c) \
    :: SERVED_BY_WRITER(c) && connection[c].state == EVENTFD -> GIVE_BIT(c) \
    :: d_step { SERVED_BY_WRITER(c) && connection[c].state != EVENTFD && READER_ENDED(c) -> \
            forget_sleeper(c); close_connection(c) }

inline signal(c) {
    eventfd[connection[c].to] = true;
    if
    :: !killed ->
        assert(asked[connection[c].to] > 0);
        asked[connection[c].to]--
    :: else
    fi
}

/* Signal the sleepers in `bits` from one bit to another. */
inline signal_between(low, high) {
    for (_b : low .. high) {
        _c = sleeper[_b];
        if
        :: (bits >> _b & 1) && _c != NONE && !READER_ENDED(_c) -> signal(_c)
        :: else
        fi
    }
    _b = 0;
    _c = 0
}

#ifdef HAND_OVER
#define TAKE_MARKS d_step { bits = marked; marked = 0 }
#ifdef DRAIN_AFTER_MARKS
#define SIGNAL_REST :: nudged -> TAKE_MARKS; nudged = false; d_step { signal_between(0, BITS - 1); bits = 0 }
#else
#define SIGNAL_REST :: d_step { nudged -> nudged = false }; TAKE_MARKS; d_step { signal_between(0, BITS - 1); bits = 0 }
#endif
#else
#define SIGNAL_REST
#endif

active proctype writer_wake_thread() provided (reader_dying == 0) {
    byte bits, _b, _c, _r;
    bool _found;
start:
    {
        attending;
        do
        :: d_step { announced[0] -> announced[0] = false; call_reader(0) }
#if READERS > 1
        :: d_step { announced[1] -> announced[1] = false; call_reader(1) }
#endif
        FOR_EACH_CONNECTION(WRITER_SERVES)
        SIGNAL_REST
        od
    } unless { d_step { writer_dying & 2 -> _b = 0; bits = 0; writer_dying = writer_dying & 1 } };
    goto start
}

inline open_writer() {
#ifdef NET
    d_step { /* writes its name into the lock file, which readers watch */
        for (_r : 0 .. READERS - 1) { lock_changed[_r] = listening[_r] }
        _r = 0
    }
#endif
#ifndef RESET_AFTER_ATTEND
    parked = 0;
#endif
#ifdef SCAN_BEFORE_WATCH
    d_step { scan() }
    watching = true;
#elif defined(TWICE)
    watching = true;
    d_step { scan() }
#else
    d_step { watching = true; scan() }
#endif
    attending = true;
#ifdef RESET_AFTER_ATTEND
    parked = 0;
#endif
}

/* Each is one step, under the mutex of the list. */
#ifndef HAND_OVER
#define WAKE_SLEEPERS d_step { signal_between(0, BITS - 1); bits = 0 }
#else
inline mark_from(low) {
    for (_b : low .. BITS - 1) {
        if
        :: (bits >> _b & 1) && sleeper[_b] != NONE -> marked = marked | (1 << _b)
        :: else
        fi
    }
    _b = 0
}
#define MARK d_step { signal_between(0, HAND_OVER - 1); mark_from(HAND_OVER) }
#define NUDGE d_step { nudged = nudged || (bits >> HAND_OVER) != 0; bits = 0 }
#ifdef NUDGE_BEFORE_MARK
#define WAKE_SLEEPERS d_step { nudged = nudged || (bits >> HAND_OVER) != 0 }; MARK; bits = 0
#else
#define WAKE_SLEEPERS MARK; NUDGE
#endif
#endif

active proctype writer() provided (reader_dying == 0) {
    byte bits, _b, _c, _r;
    bool _found;
start:
    {
        writer_alive;
        open_writer();
        do
        :: d_step { published < MESSAGES -> buffered++; published++ };
#ifndef NO_BARRIER
            buffered == 0;
#endif
            if
            :: parked == 0
#ifdef LOAD_THEN_STORE
            :: d_step { parked != 0 -> bits = parked };
                parked = 0;
#elif defined(LOAD_ONLY)
            :: d_step { parked != 0 -> bits = parked };
#else
            :: d_step { parked != 0 -> bits = parked; parked = 0 };
#endif
                WAKE_SLEEPERS
            fi
        od
    } unless { d_step { writer_dying & 1 -> bits = 0; writer_dying = writer_dying & 2 } };
    goto start
}

active proctype memory() provided (NOBODY_DIES) {
    do
    :: d_step { buffered > 0 -> buffered--; head++ }
#ifdef RAISE_WITHOUT_BARRIER
    :: d_step { raising[0] != 0 -> parked = parked | raising[0]; raising[0] = 0 }
#if READERS > 1
    :: d_step { raising[1] != 0 -> parked = parked | raising[1]; raising[1] = 0 }
#endif
#endif
    od
}

/* ---- the readers ---- */

#ifdef ANY_CONNECTION_REPLACES
#define IS_NEWER(c) true
#else
#define IS_NEWER(c) (current[r] == NONE || c > current[r])
#endif

#ifdef NET
#ifdef TRUST_ANY_WRITER
#define TRUST(c) suspect[r] = false
#else
#define TRUST(c) suspect[r] = suspect[r] && connection[c].outdated
#endif
#else
#define TRUST(c) skip
#endif

#ifdef NO_RING_WITH_BIT
#define TAKE_BIT(c) d_step { own_bit[r] = connection[c].given; TRUST(c) }
#elif defined(RING_BEFORE_BIT)
#define TAKE_BIT(c) eventfd[r] = true; d_step { own_bit[r] = connection[c].given; TRUST(c) }
#else
#define TAKE_BIT(c) d_step { own_bit[r] = connection[c].given; TRUST(c) }; eventfd[r] = true
#endif

#ifdef NO_RING_AT_END
#define DROP_BIT() own_bit[r] = NO_BIT
#elif defined(KEEP_BIT_AT_END)
#define DROP_BIT() eventfd[r] = true
#else
#define DROP_BIT() own_bit[r] = NO_BIT; eventfd[r] = true
#endif

#define SERVED_BY_READER(c) \
    (IS_OPEN(c) && connection[c].to == r && connection[c].to_life == life[r])

#define READER_SERVES(c) \
    :: d_step { SERVED_BY_READER(c) && connection[c].state == HELLO -> \
        if \
        :: WRITER_ENDED(c) -> close_connection(c) \
        :: else -> connection[c].state = EVENTFD \
        fi } \
    :: d_step { SERVED_BY_READER(c) && connection[c].state == BIT && !IS_NEWER(c) -> \
        close_connection(c) } \
    :: d_step { SERVED_BY_READER(c) && connection[c].state == BIT && IS_NEWER(c) -> \
        current[r] = c; connection[c].state = TAKEN }; \
        TAKE_BIT(c) \
    :: d_step { SERVED_BY_READER(c) && WRITER_ENDED(c) && current[r] != c && \
        connection[c].state != HELLO && connection[c].state != BIT -> \
        close_connection(c) } \
    :: d_step { SERVED_BY_READER(c) && WRITER_ENDED(c) && current[r] == c && \
        connection[c].state == TAKEN -> \
        close_connection(c); current[r] = NONE }; \
        DROP_BIT()

active [READERS] proctype reader_wake_thread() provided (writer_dying == 0) {
    byte r = _pid - FIRST_READER_WAKE_THREAD;
    byte _c;
start:
    {
        listening[r];
        do
#ifdef NET
        :: d_step { lock_changed[r] ->
                lock_changed[r] = false;
                suspect[r] = true;
                for (_c : 0 .. CONNECTIONS - 1) {
                    if
                    :: SERVED_BY_READER(_c) && connection[_c].state != HELLO -> OUTDATED(_c, true)
                    :: else
                    fi
                }
                _c = 0
            };
            eventfd[r] = true
#endif
        FOR_EACH_CONNECTION(READER_SERVES)
        od
    } unless { d_step { r == 0 && reader_dying & 2 -> reader_dying = reader_dying & 1 } };
    goto start
}

#define ASK(r, b) asked[r] = asked[r] + (!killed && !(parked >> b & 1) -> 1 : 0)
#ifdef RAISE_NOT_ATOMIC
#define RAISE(r, b) \
    d_step { ASK(r, b); seen = parked }; \
    d_step { parked = seen | (1 << b); seen = 0 }
#elif defined(RAISE_WITHOUT_BARRIER)
#define RAISE(r, b) d_step { ASK(r, b); raising[r] = 1 << b }
#else
#define RAISE(r, b) d_step { ASK(r, b); parked = parked | (1 << b) }
#endif

#ifdef NET
#define POLLS(r) (mine == NO_BIT && suspect[r])
#else
#define POLLS(r) false
#endif

active [READERS] proctype reader() provided (writer_dying == 0) {
    byte r = _pid - FIRST_READER;
    byte mine, seen;
start:
    {
        alive[r];
        d_step {
            own_bit[r] = NO_BIT;
            current[r] = NONE;
            listening[r] = true;
            announced[r] = watching;
#if defined(NET) && !defined(TRUST_UNSEEN_WRITER)
            suspect[r] = writer_alive; /* a writer holds the lock */
#endif
            skip
        };
        do
        :: d_step { read[r] = head; mine = own_bit[r] };
#ifdef LOOK_BEFORE_RAISE
            if
            :: read[r] == head
            :: else -> goto again
            fi;
#endif
            if
            :: mine != NO_BIT -> RAISE(r, mine)
            :: else
            fi;
#if !defined(NO_SECOND_LOOK) && !defined(LOOK_BEFORE_RAISE)
            if
            :: read[r] == head
            :: else -> goto again
            fi;
#endif
#ifdef DRAIN_BEFORE_SLEEP
            eventfd[r] = false;
#endif
            if
            :: d_step { eventfd[r] -> eventfd[r] = false }
            :: POLLS(r) && read[r] < head
            fi;
again:      mine = 0
        od
    } unless {
        d_step { r == 0 && reader_dying & 1 -> mine = 0; seen = 0; reader_dying = reader_dying & 2 }
    };
    goto start
}

/* ---- kills ---- */

#if WRITER_KILLS > 0
active proctype writer_fate() provided (NOBODY_DIES) {
    byte _r;
    do
    :: break
    :: d_step { writer_life < WRITER_KILLS ->
            killed = true;
            writer_alive = false;
            writer_dying = 3;
            head = head + buffered; /* the kernel empties the buffer before anything else is seen */
            buffered = 0;
            watching = false;
            attending = false;
            for (_r : 0 .. READERS - 1) { announced[_r] = false; asked[_r] = 0 }
            for (_r : 0 .. BITS - 1) { sleeper[_r] = NONE }
#ifdef HAND_OVER
            marked = 0;
            nudged = false;
#endif
            _r = 0
        };
        if
        :: d_step { writer_life++; writer_alive = true }
        :: break /* no successor */
        fi
    od
}

#endif

#if READER_KILLS > 0
/* Kills the first reader; the second one shows whether that disturbs others. */
active proctype reader_fate() provided (NOBODY_DIES) {
    byte _r;
    do
    :: break
    :: d_step { life[0] < READER_KILLS ->
            killed = true;
            reader_dying = 3;
            alive[0] = false;
            listening[0] = false;
            eventfd[0] = false;
            announced[0] = false;
#ifdef NET
            suspect[0] = false;
            lock_changed[0] = false;
#endif
            for (_r : 0 .. READERS - 1) { asked[_r] = 0 }
            _r = 0
        };
        d_step { life[0]++; alive[0] = true }
    od
}

#endif

active proctype verdict() provided (NOBODY_DIES) {
    byte r;
    timeout;
    for (r : 0 .. READERS - 1) {
#ifdef NET
        assert(!alive[r] || read[r] == head)
#else
        assert(!alive[r] || read[r] == head || !writer_alive)
#endif
    }
}
