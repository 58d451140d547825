/* Order by key over the queues of a topic (csrc/group_turns.c): is one message of a key with one member at a time, does
 * no message overtake an older one of its key, and is every message done?
 *
 *   writer   appends to any queue, with any key. The time of a message is its number. A late message is older than all
 *            that are not late; a queue has late messages only before its others
 *   member   ac_group_next: passes the messages within the windows -> takes one that no member has -> reads the head of
 *            its key; if that is done, passes all queues until the oldest message of the key stays the same, and makes
 *            it the head by compare-and-swap (ac_turns_is_due) -> claims it by compare-and-swap -> ack
 *   kill     of a member at any step: others may take its claims
 *   expire   the lease of any claim ends; its holder does not notice until it settles
 *
 * Slots are as in group.pml but not reused, so a word is (state, attempt). A queue's mark is its oldest message that is
 * not done; its window is the `LIMIT` messages from there on.
 *
 * Checked: at a claim, no other member holds a message of the key with a valid lease, and every older message of the
 * key that is appended already is done. In the end, when no step is left and a member is alive, every message is
 * done. */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef KEYS
#define KEYS 1
#endif
#ifndef LIMIT
#define LIMIT MESSAGES
#endif
#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef EXPIRIES
#define EXPIRIES 0
#endif
#ifndef QUEUES
#define QUEUES 2
#endif
#define FREE 0
#define CLAIMED 1
#define DONE 2
#define NOBODY 7
#define NONE 15

byte appended; /* messages so far */
byte queue[MESSAGES], key[MESSAGES], time[MESSAGES];
bool ordinary[QUEUES]; /* it has a message that was not late */
byte state[MESSAGES], attempt[MESSAGES];
byte head[KEYS];
byte holder[MESSAGES];
bool lasting[MESSAGES], dead_holder[MESSAGES];
byte kills, expiries, idle, changed;

#define CHANGE idle = 0; changed = (1 << MEMBERS) - 1

/* Pass the messages of queue q; `passed` has a bit per message. The newest one in a full window is the horizon. */
inline pass(q) {
    d_step {
        m = 0; room = LIMIT; opened = false;
        do
        :: m < appended && queue[m] == q ->
            if
            :: state[m] != DONE -> opened = true
            :: else -> skip
            fi;
            if
            :: !opened -> passed = passed | (1 << m)
            :: opened && room > 0 -> passed = passed | (1 << m); room--
            :: else -> skip
            fi;
            if
            :: opened && room == 0 && (passed & (1 << m)) != 0 && time[m] < horizon -> horizon = time[m]
            :: else -> skip
            fi;
            m++
        :: m < appended && queue[m] != q -> m++
        :: else -> break
        od;
        m = 0; room = 0; opened = false
    }
}

inline pass_all() {
    d_step { horizon = NONE };
    pass(0);
    pass(1)
#if QUEUES > 2
    ; pass(2)
#endif
}

inline find_oldest(k, out) {
    d_step {
        m = 0; out = NONE;
        do
        :: m < MESSAGES && (passed & (1 << m)) != 0 && key[m] == k && state[m] != DONE &&
           (out == NONE || time[m] < time[out]) -> out = m; m++
        :: m < MESSAGES && !((passed & (1 << m)) != 0 && key[m] == k && state[m] != DONE &&
           (out == NONE || time[m] < time[out])) -> m++
        :: else -> break
        od;
        m = 0
    }
}

proctype member(byte me) {
    byte m, room, passed, horizon, s, h, seen, first, second;
    bool opened;
look:
    skip;
    d_step { changed = changed & ((1 << MEMBERS) - 1 - (1 << me)); passed = 0 };
    pass_all();
    s = 0;
    do
    :: s >= MESSAGES -> break
    :: s < MESSAGES && (passed & (1 << s)) == 0 -> s++
    :: s < MESSAGES && (passed & (1 << s)) != 0 ->
        atomic { /* the word of the slot */
            if
            :: state[s] == FREE || (state[s] == CLAIMED && (!lasting[s] || dead_holder[s])) ->
                seen = state[s] * 16 + attempt[s]
            :: else -> goto next
            fi
        };
due:
        h = head[key[s]];
        if
        :: h == s -> goto claim
#ifdef HEAD_WITHOUT_DONE
        :: h != s -> skip
#else
        :: h != s && h != NONE && state[h] != DONE -> goto next
        :: h != s && (h == NONE || state[h] == DONE) -> skip
#endif
        fi;
        pass_all();
        find_oldest(key[s], first);
        if
        :: first == NONE -> goto next
        :: else -> skip
        fi;
#ifndef ONE_LOOK
        pass_all();
        find_oldest(key[s], second);
        if
        :: first != second -> goto next
        :: else -> skip
        fi;
#endif
#ifndef NO_HORIZON
        if
        :: horizon != NONE && time[first] > horizon -> goto next
        :: else -> skip
        fi;
#endif
        atomic { /* compare-and-swap */
            if
#ifdef HEAD_WITHOUT_COMPARE
            :: true -> head[key[s]] = first; CHANGE
#else
            :: head[key[s]] == h -> head[key[s]] = first; CHANGE
            :: else -> skip
#endif
            fi;
            h = 0; first = 0; second = 0
        };
        goto due;
claim:
        atomic { /* compare-and-swap */
            if
#ifdef CLAIM_WITHOUT_COMPARE
            :: true ->
#else
            :: seen == state[s] * 16 + attempt[s] ->
#endif
                m = 0;
                do
                :: m < MESSAGES && key[m] == key[s] ->
                    assert(!(holder[m] != NOBODY && lasting[m] && !dead_holder[m])); /* one at a time */
                    assert(!(m < s && time[m] < time[s] && state[m] != DONE));       /* in order */
                    m++
                :: m < MESSAGES && key[m] != key[s] -> m++
                :: else -> break
                od;
                m = 0;
                state[s] = CLAIMED; attempt[s]++; holder[s] = me; lasting[s] = true;
                dead_holder[s] = false; seen = attempt[s]; h = 0;
                CHANGE;
                goto claimed
            :: else -> goto next
            fi
        };
next:
        atomic { s++; h = 0; first = 0; second = 0; seen = 0 }
    od;
    atomic { /* found nothing */
        s = 0; passed = 0; horizon = 0;
        if
        :: (changed & (1 << me)) != 0 -> goto look
        :: else -> idle = idle | (1 << me)
        fi
    };
    if
    :: (changed & (1 << me)) != 0 -> goto look
    :: appended == MESSAGES && idle == (1 << MEMBERS) - 1 -> goto end
    fi;
claimed:
    if
    :: atomic { kills < KILLS -> kills++; /* a new member takes its place */
        if
        :: state[s] == CLAIMED && holder[s] == me -> dead_holder[s] = true
        :: else -> skip
        fi;
        CHANGE } -> goto look
    :: atomic { /* ack */
        if
        :: state[s] == CLAIMED && holder[s] == me && attempt[s] == seen ->
            state[s] = DONE; holder[s] = NOBODY; lasting[s] = false; CHANGE
        :: else -> skip
        fi } -> goto look
    fi;
end:
    skip
}

proctype clock() {
    byte s;
end_clock:
    do
    :: expiries < EXPIRIES ->
        atomic {
            s = 0;
            do
            :: s < MESSAGES && lasting[s] -> lasting[s] = false; expiries++; CHANGE; break
            :: s < MESSAGES && !lasting[s] -> s++
            :: else -> break
            od;
            s = 0
        }
    :: appended == MESSAGES && idle == (1 << MEMBERS) - 1 -> break
    od
}

proctype writer() {
    byte k;
    do
    :: appended < MESSAGES ->
        atomic {
            if
            :: queue[appended] = 0
            :: queue[appended] = 1
#if QUEUES > 2
            :: queue[appended] = 2
#endif
            fi;
            if
            :: time[appended] = MESSAGES + appended; ordinary[queue[appended]] = true
#ifdef LATE
            :: !ordinary[queue[appended]] -> time[appended] = appended
#endif
            fi;
            k = 0;
            do
            :: k < KEYS - 1 -> k++
            :: break
            od;
            key[appended] = k; k = 0;
            appended++;
            CHANGE
        }
    :: else -> break
    od
}

init {
    byte m;
    atomic {
        do
        :: m < MESSAGES -> holder[m] = NOBODY; queue[m] = QUEUES; m++
        :: else -> break
        od;
        m = 0;
        do
        :: m < KEYS -> head[m] = NONE; m++
        :: else -> break
        od;
        m = 0;
        run writer(); run clock();
        do
        :: m < MEMBERS -> run member(m); m++
        :: else -> break
        od;
        m = 0
    };
    (appended == MESSAGES && idle == (1 << MEMBERS) - 1);
    do
    :: m < MESSAGES -> assert(state[m] == DONE); m++ /* nothing is left behind */
    :: else -> break
    od
}
