/* Members of a group sleep, and one is woken per message: can one of them sleep on while a message waits?
 *
 *   member   ac_group_park: raise_bit (its own bit in control.parked_members, then AC_BIT_MEMBERS in control.parked),
 *            a second look, sleep until its eventfd is signalled. A member that is given a message although it said
 *            that it sleeps lowers its own bit (ac_reader_unpark)
 *   writer   commit and notify_seq, ac_writer_wake: takes AC_BIT_MEMBERS, then all bits of members (signal_members),
 *            signals one of these members and gives the bits of the others back, own bits first
 *
 * All of these steps are atomic operations with a full barrier, and the commit is followed by one, so they are steps of
 * one total order here. wake.pml has the barriers, and who comes and goes.
 *
 * Checked: when everybody sleeps, no message is left. A member that has work to do is one that will look again: that a
 * message wakes one that sleeps, and not one that is busy, is not checked. A bit that the writer gives back may be that
 * of a member which has lowered it by then. Members therefore look by themselves every 100 ms, which is left out here.
 */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef MEMBERS
#define MEMBERS 2
#endif

byte head;    /* messages that were appended … */
byte claimed; /* … and claimed, in order */
bool parked;  /* AC_BIT_MEMBERS of control.parked */
byte members; /* control.parked_members */
bool rung[MEMBERS];

#define BIT(me) (1 << me)

inline raise_own() { members = members | BIT(me) }
inline raise_common() { parked = true }

proctype member(byte me) {
    do
    :: d_step { claimed < head -> claimed++ }
    :: claimed >= head ->
#ifdef COMMON_BIT_FIRST
        raise_common();
        raise_own();
#else
        raise_own();
        raise_common();
#endif
        if
#ifndef NO_SECOND_LOOK_OF_MEMBER
        :: d_step { claimed < head -> claimed++ };
            members = members & (255 - BIT(me))
        :: claimed >= head ->
#else
        :: true ->
#endif
end_sleep:
            d_step { rung[me] -> rung[me] = false }
        fi
    od
}

inline take_common() { parked = false }
inline take_own() {
    d_step {
        taken = members;
        members = 0
    }
}

proctype writer() {
    byte taken, one;
    do
    :: head < MESSAGES ->
        head++;
        if
        :: !parked
        :: parked ->
#ifdef MEMBERS_BITS_FIRST
            take_own();
            take_common();
#else
            take_common();
            take_own();
#endif
            if
            :: taken == 0
            :: taken != 0 ->
                one = 0;
                do
                :: taken & BIT(one) -> break
                :: one < MEMBERS - 1 -> one++
                :: one > 0 && !(taken & BIT(one)) -> one = 0
                od;
                rung[one] = true;
                taken = taken & (255 - BIT(one));
                if
                :: taken == 0
                :: taken != 0 ->
                    members = members | taken;
                    parked = true
                fi
            fi
        fi;
        taken = 0;
        one = 0
    :: head == MESSAGES -> break
    od
}

init {
    byte i;
    atomic {
        run writer();
        do
        :: i < MEMBERS -> run member(i); i++
        :: i == MEMBERS -> break
        od
    };
    timeout;
    assert(claimed == head)
}
