/* Members of a group sleep, and each message wakes one: can a member keep sleeping while a message waits?
 *
 *   member   ac_group_park: raise_bit (its own bit in control.parked_members, then AC_BIT_MEMBERS in control.parked),
 *            a second look, sleep until its eventfd is signalled. A member that gets a message after it raised
 *            its bit lowers the bit again (ac_reader_unpark)
 *   writer   commit and notify_seq, ac_writer_wake: takes AC_BIT_MEMBERS, then all bits of members (signal_members),
 *            signals one of these members and restores the bits of the others, own bits first
 *
 * All of these steps are atomic operations with a full barrier, and a full barrier follows the commit. Here they are
 * therefore steps of one total order. wake.pml models the barriers, and processes that start and end.
 *
 * Checked: when all members sleep, no message is left. A busy member will look again, so the model does not check that
 * a message wakes a sleeping member rather than a busy one. The writer may restore a bit that its member has lowered by
 * then. Members therefore also look every 100 ms, which the model leaves out.
 */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef MEMBERS
#define MEMBERS 2
#endif

byte head;    /* messages appended … */
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
