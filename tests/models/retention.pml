/* Retention: is a segment that a live reader still needs ever removed?
 *
 * One record per segment, so a position is the id of the segment to be read next.
 *
 *   writer      rolls, which adds a sealed segment
 *   retention   ac_retain: survey (ac_slowest_reader: committed position and heartbeat of each reader, then
 *               the listing) -> removal of the segments before the slowest live reader, one at a time
 *   reader      ac_reader_open of a new name: bounds -> ac_position_open (registers there) -> resume (if the
 *               segment is gone already: at the first one left, because a new name has nothing to lose).
 *               Then read -> hand over -> commit -> next. A restart resumes at the committed position
 *   pause       the reader misses its heartbeats for longer than reader_ttl, or lags by more than
 *               max_reader_lag; it comes back later
 *
 * Checked: if the reader finds a segment gone, retention had found the reader dead, or the reader registered
 * during a removal (excused: it gets PositionLost). It hands over every record from its start, with no gap,
 * even if killed at any point. Opening a new name never fails. */

#ifndef RECORDS
#define RECORDS 4
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef PASSES
#define PASSES 2
#endif

byte head;         /* the active segment; those before it are sealed */
byte first;        /* the oldest segment that exists */
bool registered;   /* readers/NAME.meta exists … */
byte committed;    /* … with this position */
bool lived;        /* … was stored to after its creation (generation > 1) */
bool fresh;        /* … and its heartbeat is younger than reader_ttl */
byte position;     /* the segment that the reader reads next */
byte handed_over;  /* the record after the last one given to the application */
bool removing;     /* between a survey and its last removal */
bool excused;
byte kills;

active proctype writer() {
    do
    :: head < RECORDS -> head++
    :: head == RECORDS -> break
    od
}

#ifdef USE_READ_POSITION
#define SLOWEST position
#else
#define SLOWEST committed
#endif

active proctype retention() {
    byte needed, passes;
    do
    :: passes < PASSES ->
        d_step {
            removing = true;
            needed = head;
            if
            :: registered && fresh && SLOWEST < head -> needed = SLOWEST
            :: registered && !fresh -> excused = true
            :: else
            fi;
            passes++
        };
        do
#ifdef REMOVE_NEEDED_TOO
        :: d_step { first <= needed && first < head -> first++ }
        :: first > needed || first >= head -> break
#else
        :: d_step { first < needed -> first++ }
        :: first >= needed -> break
#endif
        od;
        removing = false;
        needed = 0
    :: passes == PASSES -> break
    od
}

active proctype reader() {
    byte seen;
start:
    {
        if
        :: !registered ->
            seen = first;
            d_step {
                committed = seen;
                registered = true;
                fresh = true;
                excused = removing;
                handed_over = seen;
                seen = 0
            }
        :: registered
        fi;
        position = committed;
        if
        :: position >= first -> d_step { lived = true; fresh = true } /* heartbeats start */
        :: position < first && lived -> assert(excused); goto told
        :: d_step { position < first && !lived ->
#ifdef LOSE_NEW_NAME
                assert(false);
#endif
                position = first;
                committed = first;
                handed_over = first;
                lived = true
            }
        fi;
        do
        :: position < head ->
            if
            :: position < first -> assert(excused); goto told
            :: position >= first
            fi;
#ifdef COMMIT_BEFORE_HANDING_OVER
            committed = position + 1;
#endif
            d_step {
                assert(position <= handed_over);
                position++;
                handed_over = (position > handed_over -> position : handed_over)
            };
#ifndef COMMIT_BEFORE_HANDING_OVER
            if
            :: committed = position
            :: skip /* later */
            fi
#endif
        :: position == RECORDS -> committed = position; break
        od
    } unless { d_step { kills & 1 -> kills++; seen = 0 } };
    if
    :: position < RECORDS || committed < RECORDS -> goto start
    :: else
    fi;
told:
    skip
}

/* `kills` is odd while the reader has yet to die. */
active proctype fate() {
    do
    :: break
    :: d_step { kills < 2 * KILLS && !(kills & 1) && registered -> kills++ }; !(kills & 1)
    :: d_step { registered && fresh -> fresh = false } /* a long pause … */
    :: d_step { registered && !fresh -> fresh = true } /* … then heartbeats resume */
    od
}
