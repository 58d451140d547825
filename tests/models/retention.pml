/* Retention: is a segment that a live reader still needs ever removed?
 *
 * One record per segment, so a position is the id of the segment to be read next.
 *
 *   writer      rolls: one more sealed segment
 *   retention   ac_retain: survey (ac_slowest_reader: committed position and heartbeat of each reader, then
 *               the listing) -> removal of what is before the slowest live one, one segment after another
 *   reader      ac_reader_open of a new name: bounds -> ac_position_open (registers there) -> resume (if the
 *               segment is gone already: what is first now, because a new name has nothing to lose).
 *               Then read -> hand over -> commit -> next; kills and restarts go back to what was committed
 *   pause       the reader misses its heartbeats for longer than reader_ttl, or lags by more than
 *               max_reader_lag; comes back to life later
 *
 * Checked: whatever the reader finds gone, it had been found dead before, or it registered while a
 * removal was under way (excused: it is told by PositionLost); it hands over every record from where it
 * began, none left out, even if killed at any point; opening a new name never fails. */

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
byte first;        /* the oldest segment that is there */
bool registered;   /* readers/NAME.meta is there … */
byte committed;    /* … and says this */
bool lived;        /* … and was stored to after its creation (generation > 1) */
bool fresh;        /* … with a heartbeat younger than reader_ttl */
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
        :: position >= first -> d_step { lived = true; fresh = true } /* its heart begins to beat */
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

/* Odd: a kill that the reader has yet to die of. */
active proctype fate() {
    do
    :: break
    :: d_step { kills < 2 * KILLS && !(kills & 1) && registered -> kills++ }; !(kills & 1)
    :: d_step { registered && fresh -> fresh = false } /* sleeps for long … */
    :: d_step { registered && !fresh -> fresh = true } /* … and its heart beats again */
    od
}
