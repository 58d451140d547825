/* The two slots of a reader's position: is there always a valid one, and never a false one?
 *
 *   committer   ac_reader_commit: ac_position_store = mutex -> store_locked (generation + 1 into the other
 *               slot, word by word in any order, which is what memcpy may do) -> mutex
 *   heart       the housekeeper's ac_position_heartbeat: the same with an unchanged position
 *   kill        of the process, at every store; then ac_position_open of its successor: ac_position_decode
 *               must find a valid slot. It wipes a torn one: the remains of an unfinished store could
 *               complete the next store half-way, because both have the same generation
 *   survey      ac_position_each in the writer's process: read() copies the slots, word by word here, while
 *               they are being stored to. If both are torn, two stores took place meanwhile: it reads again
 *
 * A slot has three words: the position, the generation, and a checksum that fits only these two.
 *
 * Checked: after each kill the position is that of the last commit that returned, or of the one in progress.
 * The slots hold the last commit that returned. The survey finds a committed position, perhaps an older one
 * (a read that spans two lives of the reader is not judged), and it always finds one, so retention never
 * forgets a live reader. */

#ifndef COMMITS
#define COMMITS 2
#endif
#ifndef BEATS
#define BEATS 1
#endif
#ifndef KILLS
#define KILLS 1
#endif

typedef slot_t { byte place, generation, checksum }
slot_t slot[2];

#define CHECKSUM(place, generation) (1 + place * 16 + generation)
#ifdef NO_CHECKSUM
#define VALID(s) (s.generation != 0)
#else
#define VALID(s) (s.checksum == CHECKSUM(s.place, s.generation))
#endif

/* ac_position_t of the current process */
bool locked;
byte place, generation, newest; /* `current`, and its slot */

byte returned;  /* the newest position whose commit returned */
byte attempted; /* the newest position for which a commit began */
byte kills;
bool alive;
byte dying; /* threads that have yet to stop, one bit each; nothing else runs until then */

/* ac_position_decode */
#define NEWER(a, b) (VALID(b) && (!VALID(a) || b.generation > a.generation) -> 1 : 0)

inline lock() {
#ifdef NO_MUTEX
    skip
#else
    d_step { !locked -> locked = true }
#endif
}

inline store(new_place) {
    d_step {
        place = new_place;
        generation++;
#ifndef OVERWRITE_VALID
        newest = 1 - newest;
#endif
        mine = newest;
        my_place = place;
        my_generation = generation;
        left = 7
    };
    do
    :: d_step { left & 1 -> slot[mine].place = my_place; left = left & 6 }
    :: d_step { left & 2 -> slot[mine].generation = my_generation; left = left & 5 }
    :: d_step { left & 4 -> slot[mine].checksum = CHECKSUM(my_place, my_generation); left = left & 3 }
    :: left == 0 -> break
    od;
    mine = 0;
    my_place = 0;
    my_generation = 0
}

#define STORE_LOCALS byte mine, my_place, my_generation, left
#define FORGET_LOCALS mine = 0; my_place = 0; my_generation = 0; left = 0

active proctype committer() {
    STORE_LOCALS;
start:
    {
        alive;
        do
        :: returned < COMMITS ->
            attempted = returned + 1;
            lock();
            store(attempted);
            d_step {
                locked = false;
                returned = attempted;
                mine = NEWER(slot[0], slot[1]);
                assert(VALID(slot[mine]) && slot[mine].place == returned);
                mine = 0
            }
        od
    } unless { d_step { dying & 1 -> dying = dying & 2; FORGET_LOCALS } };
    goto start
}

active proctype heart() {
    STORE_LOCALS;
    byte beats;
start:
    {
        alive;
        do
        :: beats < BEATS ->
            lock();
            beats++;
            store(place);
            locked = false
        od
    } unless { d_step { dying & 2 -> dying = dying & 1; FORGET_LOCALS } };
    goto start
}

/* Open, kill, open again. */
active proctype process() provided (dying == 0) {
    d_step { /* create() */
        slot[0].generation = 1;
        slot[0].checksum = CHECKSUM(0, 1)
    };
    do
    :: d_step {
            newest = NEWER(slot[0], slot[1]);
            assert(VALID(slot[newest]));
            place = slot[newest].place;
            generation = slot[newest].generation;
            assert(place == returned || place == attempted);
            returned = place;
            attempted = place;
            locked = false
        };
#ifndef NO_WIPE
        if
        :: !VALID(slot[1 - newest]) ->
            slot[1 - newest].place = 0;
            slot[1 - newest].generation = 0;
            slot[1 - newest].checksum = 0
        :: else
        fi;
#endif
        alive = true;
        if
        :: break
        :: d_step { kills < KILLS -> kills++; alive = false; dying = 3 };
            dying == 0
        fi
    od
}

active proctype survey() provided (dying == 0) {
    slot_t a, b;
    byte winner, since;
    alive;
    do
    :: since = kills;
        a.place = slot[0].place;
        a.generation = slot[0].generation;
        a.checksum = slot[0].checksum;
        b.place = slot[1].place;
        b.generation = slot[1].generation;
        b.checksum = slot[1].checksum;
#ifdef NO_SECOND_READ
        assert(VALID(a) || VALID(b));
#endif
        d_step {
            winner = NEWER(a, b);
            assert(kills != since || !VALID(a) || winner == 1 || a.place <= attempted);
            assert(kills != since || !VALID(b) || winner == 0 || b.place <= attempted);
            a.place = 0; a.generation = 0; a.checksum = 0;
            b.place = 0; b.generation = 0; b.checksum = 0;
            winner = 0;
            since = 0
        }
    od
}
