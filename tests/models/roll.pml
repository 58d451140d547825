/* The roll: does a reader that crosses the end of a segment see every record, once and in order?
 *
 *   writer     ac_writer_put (commit word) -> ac_writer_publish (write_offset); when the segment is full, or
 *              earlier (roll by time or count): writer_roll.c roll = obtain_next -> ac_segment_seal ->
 *              ac_writer_enter (ac_control_set_position: generation odd -> segment -> offset ->
 *              generation even); the housekeeper's ac_writer_prepare_next runs at any time before
 *   its end    killed or closed at any point between two steps. Then the successor: recovery (or, at a
 *              close, discard_next) removes a segment that was prepared but not entered, which is an empty
 *              one after an unsealed one, and continues at the end
 *   reader     ac_reader_next: read the commit word -> at_gap (read the seal -> read the commit
 *              word again -> advance); at the end of a full segment, advance without a seal. FROM_END: it
 *              starts at the writer's position in the control block (ac_reader_seek_last)
 *   observer   ac_control_position
 *
 * A file is an inode: a removed file lives on in existing mappings, and a later file of the same name is
 * another inode. The stores of one thread become visible in order (release stores); mutations of the model
 * break that order.
 *
 * Checked: the reader meets each seq in turn; it never reports a removed segment (the model has
 * no retention); a last pass after the last writer has ended finds everything. A segment and an offset that
 * the observer accepts belong together (OBSERVER: without the reader, to check the two separately). */

#ifndef MESSAGES
#define MESSAGES 4
#endif
#ifndef ENDS
#define ENDS 1 /* of writers that have a successor */
#endif
#define ROOM 2 /* records in a segment */
#define SEGMENTS (MESSAGES + 2)
#define INODES (SEGMENTS + ENDS)
#define NONE 255

byte file[SEGMENTS] = NONE; /* the directory: id -> inode */
byte created;               /* inodes so far */
byte committed[INODES];     /* visible records */
bool sealed[INODES];
byte first_seq[INODES];

/* control.meta */
byte generation;
byte current_segment;
byte write_offset;
byte offset_segment; /* the segment of write_offset, which the observer must not mix up */

byte next_seq; /* of the queue, as the writer or recovery knows it */
byte ends;
bool ending; /* the writer has to stop at its current step */
bool finished;

/* ---- the writer ---- */

inline create(id) {
    assert(created < INODES && id < SEGMENTS && file[id] == NONE);
    file[id] = created;
    created++
}

inline set_position(id) {
    generation = generation | 1;
    current_segment = id;
    d_step { write_offset = committed[file[id]]; offset_segment = id };
    generation = generation + 1
}

inline roll() {
    if
    :: file[here + 1] == NONE -> d_step { create(here + 1) }
    :: else
    fi;
    d_step { first_seq[file[here + 1]] = next_seq };
#ifdef SEAL_AFTER_RECORD
    old = file[here];
#else
#ifndef SEAL_AFTER_POSITION
    sealed[file[here]] = true;
#endif
#endif
    set_position(here + 1);
#ifdef SEAL_AFTER_POSITION
    sealed[file[here]] = true;
#endif
    here++
}

inline append() {
#ifdef SEAL_BEFORE_RECORD
    if
    :: committed[file[here]] == ROOM - 1 -> sealed[file[here]] = true
    :: else
    fi;
#endif
    d_step { committed[file[here]]++; next_seq++ };
    write_offset = committed[file[here]];
#ifdef SEAL_AFTER_RECORD
    if
    :: old != NONE -> sealed[old] = true; old = NONE
    :: else
    fi
#endif
}

/* ac_recover: the end is the last reachable segment. */
inline recover() {
    here = 0;
    do
    :: file[here + 1] == NONE -> break
    :: file[here + 1] != NONE && (sealed[file[here]] || committed[file[here + 1]] > 0) -> here++
    :: else -> file[here + 1] = NONE; break
    od;
#ifdef REMOVE_EMPTY_END
    if
    :: here > 0 && committed[file[here]] == 0 -> file[here] = NONE; create(here)
    :: else
    fi;
#endif
    first_seq[file[here]] = next_seq - committed[file[here]]
}

active proctype writer() {
    byte here;
#ifdef SEAL_AFTER_RECORD
    byte old = NONE;
#endif
    d_step { create(0) };
start:
    {
        set_position(here);
        do
        :: next_seq < MESSAGES && committed[file[here]] < ROOM -> append()
        :: next_seq < MESSAGES && committed[file[here]] > 0 -> roll(); append()
        :: d_step { next_seq < MESSAGES && file[here + 1] == NONE -> create(here + 1) } /* housekeeper */
        :: next_seq == MESSAGES -> break
        od
    } unless { ending };
    if
    :: d_step { ending -> ending = false; recover() };
        goto start
    :: ends == ENDS && !ending
    fi;
    finished = true
}

active proctype fate() {
    do
    :: d_step { ends < ENDS && !ending -> ends++; ending = true }
    :: d_step { ends < ENDS && !ending -> ends = ENDS }; break
    :: ends == ENDS -> break
    od
}

#ifndef OBSERVER
/* ---- the reader ---- */

inline place() {
    segment++;
    inode = opened;
    at = 0;
    opened = NONE
}

/* ac_reader_enter_next: read the seal -> open the next file -> check it -> enter it. */
inline enter_next() {
#ifndef OPEN_BEFORE_SEAL
    certain = sealed[inode];
#endif
    d_step { opened = file[segment + 1]; entered = false; spare = false };
#ifdef OPEN_BEFORE_SEAL
    certain = sealed[inode];
#endif
    if
    :: opened == NONE
#ifdef ENTER_SPARE
    :: d_step { opened != NONE -> place(); entered = true }
#else
    :: opened != NONE && !certain ->
        if
        :: d_step { committed[opened] == 0 && !sealed[opened] -> spare = true; opened = NONE }
        :: d_step { committed[opened] > 0 || sealed[opened] -> place(); entered = true }
        fi
    :: d_step { opened != NONE && certain -> place(); entered = true }
#endif
    fi;
    certain = false
}

inline advance() {
#ifdef JUDGE_THEN_OPEN
    if
    :: !sealed[inode] && file[segment + 1] != NONE && committed[file[segment + 1]] == 0 ->
        spare = true
    :: else ->
        d_step {
            opened = file[segment + 1];
            entered = opened != NONE;
            spare = false;
            if
            :: entered -> place()
            :: else
            fi
        }
    fi;
#else
    enter_next();
#endif
    if
    :: entered || spare
    :: !entered && !spare && current_segment <= segment + 1
    :: !entered && !spare && current_segment > segment + 1 ->
#ifndef NO_SECOND_TRY
        enter_next();
#endif
        assert(entered || spare) /* otherwise it would be reported as removed */
    fi;
    spare = false
}

active proctype reader() {
    byte segment, inode, at, expected, opened = NONE;
    bool certain, entered, spare, last_pass;
    file[0] != NONE;
#ifdef FROM_END
    segment = current_segment;
    d_step { inode = file[segment]; at = committed[inode]; expected = first_seq[inode] + at };
#endif
    do
    :: last_pass = finished;
        do
        :: d_step { at < committed[inode] ->
                assert(first_seq[inode] + at == expected);
                at++;
                expected++
            }
        :: at == committed[inode] ->
            entered = false;
            if
            :: sealed[inode] ->
#ifdef NO_SECOND_LOOK
                advance()
#else
                if
                :: at < committed[inode] -> entered = true
                :: at == committed[inode] -> advance()
                fi
#endif
            :: !sealed[inode] && at == ROOM -> advance()
            :: else
            fi;
            if
            :: entered
            :: !entered -> break
            fi
        od;
        if
        :: last_pass -> assert(expected == MESSAGES); break
        :: else
        fi
    od
}

#else
/* ---- an observer of the writer's position ---- */

active proctype observer() {
    byte before, segment, owner;
    do
    :: before = generation;
        segment = current_segment;
        owner = offset_segment;
#ifdef NO_GENERATION
        assert(owner == segment);
#else
        assert(before & 1 || before != generation || owner == segment);
#endif
        d_step { before = 0; segment = 0; owner = 0 };
        if
        :: finished -> break
        :: else
        fi
    od
}
#endif
