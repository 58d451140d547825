/* The slots of a group (csrc/group.c): is every message done, is none with two members, is the mark right?
 *
 *   member   ac_group_next: the slot of the next message, or of a returned one -> claim by compare-and-swap;
 *            then ack, nack or extend by compare-and-swap against the word of the claim; after an ack of the
 *            message at the mark, ac_group_advance
 *   kill     of a member at any step: its lock is released (alive = false), so others may take its claims
 *   expire   the lease of any claim ends; its holder does not notice until it settles
 *
 * A word is (lap, state, attempt, owner), as in the C code but without the tick: attempts never run out here, so they
 * distinguish two claims. Slots are reused, because there are more messages than slots.
 *
 * Checked: at a claim, no other member holds the message with a valid lease; only the member with the current claim
 * can ack; every message before the mark is done; the messages of the window are at most one lap apart; and in the end,
 * when no step is left and a member is alive, every message is done and the mark is after the last one. */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef EXPIRIES
#define EXPIRIES 1
#endif
#ifndef NACKS
#define NACKS 1
#endif
#define LIMIT SLOTS
#define FREE 0
#define CLAIMED 1
#define DONE 2
#define NOBODY 7

typedef word_t { byte lap, state, attempt, owner }
word_t slot[SLOTS];
byte low;

byte done[MESSAGES];        /* how often its acknowledgement succeeded */
byte holder[MESSAGES];      /* the member that really has it */
bool lasting[MESSAGES];     /* its lease has not ended */
bool alive[MEMBERS];
byte kills, expiries, nacks;
byte idle;    /* members that have found nothing since the last change, one bit each */
byte changed; /* members that have not looked since then; their timer makes them look again */

#define CHANGE idle = 0; changed = (1 << MEMBERS) - 1
#define LAP(s) ((s) / SLOTS)
#define SLOT(s) slot[(s) % SLOTS]
#define SAME(w, v) (w.lap == v.lap && w.state == v.state && w.attempt == v.attempt && w.owner == v.owner)
#define SET(w, l, st, a, o) w.lap = l; w.state = st; w.attempt = a; w.owner = o
#define COPY(w, v) SET(w, v.lap, v.state, v.attempt, v.owner)

/* A killed member leaves its words unchanged. A new one takes its place in the table. */
#define MAY_DIE :: d_step { kills < KILLS -> kills++; alive[me] = false; CHANGE } -> goto dead

inline advance() {
    do
    :: true ->
        d_step { from = low; to = low };
        do
        :: d_step { to < MESSAGES && to - from < LIMIT && SLOT(to).state == DONE && SLOT(to).lap == LAP(to) -> to++ }
        :: else -> break
        od;
        if
        :: to == from -> break
        :: else ->
            /* compare-and-swap */
            d_step {
                if
#ifdef MARK_WITHOUT_COMPARE
                :: true -> assert(low <= to); low = to
#else
                :: low == from -> assert(low <= to); low = to
                :: else -> skip
#endif
                fi;
                CHANGE
            }
        fi
    od;
    skip;
    d_step { from = 0; to = 0 }
}

proctype member(byte me) {
    byte s, from, to, seen;
    word_t before, mine;
    /* Each member has its own reader, and all messages exist. It searches from the mark to the end of the window. */
look:
    skip;
    d_step { changed = changed & ((1 << MEMBERS) - 1 - (1 << me)) };
    advance();
    d_step { seen = low; s = low };
    do
#ifdef NO_LIMIT
    :: s >= MESSAGES -> break
#else
    :: s >= MESSAGES || s - seen >= LIMIT -> break
#endif
    :: else ->
        d_step { COPY(before, SLOT(s)) };
        if
        :: before.lap > LAP(s) -> skip /* too late: already done */
#ifdef NO_LAP
        :: before.state == DONE -> skip
#else
        :: before.lap == LAP(s) && before.state == DONE -> skip
#endif
        :: before.lap == LAP(s) && before.state == CLAIMED && alive[before.owner] &&
           lasting[s] && holder[s] == before.owner -> skip
        :: else ->
            atomic { /* compare-and-swap of the claim */
                if
#ifdef CLAIM_WITHOUT_COMPARE
                :: true ->
#else
                :: SAME(SLOT(s), before) ->
#endif
                    assert(!(holder[s] != NOBODY && lasting[s] && alive[holder[s]])); /* one at a time */
                    assert(done[s] == 0);                                              /* not twice */
                    SET(mine, LAP(s), CLAIMED, (before.lap == LAP(s) -> before.attempt + 1 : 1), me);
                    COPY(SLOT(s), mine);
                    holder[s] = me;
                    lasting[s] = true;
                    CHANGE;
                    goto claimed
                :: else -> skip
                fi
            }
        fi;
        s++
    od;
    /* Found nothing. */
    atomic {
        s = 0; seen = 0; SET(before, 0, 0, 0, 0); SET(mine, 0, 0, 0, 0);
        if
        :: (changed & (1 << me)) != 0 -> goto look
        :: else -> idle = idle | (1 << me)
        fi
    };
    if
    :: (changed & (1 << me)) != 0 -> goto look
    :: low == MESSAGES -> goto end
    MAY_DIE
    fi;

claimed:
    if
    MAY_DIE
    :: atomic { nacks < NACKS -> /* nack */
        nacks++;
        if
        :: SAME(SLOT(s), mine) -> SLOT(s).state = FREE; holder[s] = NOBODY; lasting[s] = false; CHANGE
        :: else -> skip
        fi } -> goto look
    :: atomic { /* ack */
        if
#ifdef ACK_WITHOUT_TOKEN
        :: SLOT(s).lap == LAP(s) && SLOT(s).state == CLAIMED ->
#else
        :: SAME(SLOT(s), mine) ->
#endif
            assert(holder[s] == me && SLOT(s).attempt == mine.attempt); /* a late ack is refused */
            SLOT(s).state = DONE;
            done[s]++;
            holder[s] = NOBODY;
            lasting[s] = false;
            CHANGE
        :: else -> goto look
        fi }
    fi;
    if
    MAY_DIE
    :: skip
    fi;
    if
    :: low == s -> advance()
    :: else -> skip
    fi;
    goto look;

dead: /* a new member takes its place and frees the claims that it left: ac_group_free_claims */
    s = 0;
    do
    :: s < SLOTS ->
        atomic {
            if
            :: slot[s].state == CLAIMED && slot[s].owner == me -> slot[s].state = FREE
            :: else -> skip
            fi };
        s++
    :: else -> break
    od;
    skip;
    d_step {
        s = 0;
        do
        :: s < MESSAGES && holder[s] == me -> holder[s] = NOBODY; s++
        :: s < MESSAGES && holder[s] != me -> s++
        :: else -> break
        od;
        alive[me] = true; CHANGE; s = 0; from = 0; to = 0; seen = 0;
        SET(before, 0, 0, 0, 0); SET(mine, 0, 0, 0, 0)
    };
    goto look;
end:
    skip
}

/* The lease of a claim expires while its member still works on the message. */
active proctype clock() {
    byte s;
    do
    :: expiries < EXPIRIES ->
        atomic {
            s = 0;
            do
            :: s < MESSAGES && lasting[s] -> lasting[s] = false; expiries++; CHANGE; break
            :: s < MESSAGES -> s++
            :: else -> break
            od;
            s = 0
        }
    :: low == MESSAGES -> break
    od
}

/* At any time, every message before the mark is done. */
active proctype auditor() {
    byte s;
    atomic {
        do
        :: s < MESSAGES && s < low -> assert(done[s] == 1); s++
        :: else -> break
        od;
        s = 0
    }
}

init {
    byte m;
    atomic {
        do
        :: m < MESSAGES -> holder[m] = NOBODY; m++
        :: else -> break
        od;
        m = 0;
        do
        :: m < MEMBERS -> alive[m] = true; run member(m); m++
        :: else -> break
        od;
        m = 0
    };
    /* When all members look and find nothing: */
    (idle == (1 << MEMBERS) - 1 && low != MESSAGES) -> assert(low == MESSAGES)
}
