/* What members do with the slots: claim, settle, move the mark. The rules are at the head of group.c. */
#include "group.h"

#include "error.h"
#include "group_turns.h"
#include "os.h"

#include <string.h>

/* How often the slots are scanned while new messages keep a member busy; and how often it is checked which
 * members live, which costs a system call per member. */
enum { SCAN_TICKS = 4, CHECK_TICKS = 10, STORE_MESSAGES = 256 };
enum { STEPPED_OVER = 2 };

uint32_t ac_group_tick(void) {
    return (uint32_t)(ac_os_coarse_ns() / 1000000u) & AC_TICK_MASK;
}

/* Pairs with the other accesses to slots and mark: all of them are seq_cst, see ac_group_advance. */
static int swap_word(uint64_t *slot, uint64_t before, uint64_t after) {
    return __atomic_compare_exchange_n(slot, &before, after, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* What the word of a slot means for this seq. A word of an earlier lap belongs to a message before the
 * mark, which is done: for this seq the slot is new. A word of a later lap means that we are late: our
 * message is done. */
static ac_word_t word_for(const ac_group_t *group, uint64_t seq, uint64_t bits) {
    ac_word_t word = ac_word_unpack(bits);
    int16_t ahead = (int16_t)(uint16_t)(word.lap - ac_group_lap(group, seq));
    if (ahead < 0) return (ac_word_t){.state = AC_SLOT_FREE, .lap = ac_group_lap(group, seq)};
    if (ahead > 0) word.state = AC_SLOT_DONE;
    return word;
}

/* `attempt` is 0 only in a slot that is untouched in this lap. */
static int is_due(const ac_word_t *word, uint32_t now) {
    return word->attempt == 0 || ac_tick_is_past(word->tick, now);
}

int ac_group_is_done(const ac_group_t *group, uint64_t seq) {
    if (seq < group->low) return 1;
    ac_word_t word = word_for(group, seq, ac_load_seq_cst_u64(ac_group_slot(group, seq)));
    return word.state == AC_SLOT_DONE;
}

/* Claims the slot whose word was `bits`; 0 = another member was quicker. */
static int claim(ac_group_t *group, uint64_t seq, uint64_t bits, const ac_word_t *before,
                 uint32_t now, uint64_t *word) {
    ac_word_t after = {.state = AC_SLOT_CLAIMED,
                       .owner = group->owner,
                       .attempt =
                           before->attempt < AC_ATTEMPT_MAX ? before->attempt + 1 : AC_ATTEMPT_MAX,
                       .tick = now + group->lease_ms + 1,
                       .lap = ac_group_lap(group, seq)};
    *word = ac_word_pack(after);
    if (!swap_word(ac_group_slot(group, seq), bits, *word)) return 0;
    ac_count_u64(&group->entry->claimed, 1);
    if (after.attempt > 1) ac_count_u64(&group->entry->redelivered, 1);
    group->in_flight++;
    return 1;
}

/* Any member moves the mark over finished messages. It is enough that the one whose message stands at the
 * mark does it: another that finishes a later one meanwhile either sees the mark at its own message, or is
 * seen here, because after each move the slot at the mark is checked again. That needs a total order of the
 * four accesses. */
uint64_t ac_group_advance(ac_group_t *group) {
    uint64_t *mark = &group->header->low;
    uint64_t low = ac_load_seq_cst_u64(mark);
    for (;;) {
        uint64_t to = low;
        while (to - low < group->limit) {
            ac_word_t word = ac_word_unpack(ac_load_seq_cst_u64(ac_group_slot(group, to)));
            if (word.state != AC_SLOT_DONE || word.lap != ac_group_lap(group, to)) break;
            to++;
        }
        if (to == low) break;
        uint64_t seen = low;
        if (__atomic_compare_exchange_n(mark, &seen, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            low = to;
        else
            low = seen;
    }
    /* The mark never moves back; a value that says so was not written by us. */
    if (low > group->low) group->low = low;
    return group->low;
}

static int is_full(ac_group_t *group) {
    if (AC_LIKELY(group->next < group->low + group->limit)) return 0;
    ac_group_advance(group);
    return group->full = group->next >= group->low + group->limit;
}

/* ---- along the queue ---- */

static void note_passed(ac_group_t *group, const ac_message_t *message, uint64_t after) {
    const ac_reader_t *walker = group->walker;
    group->passed[message->seq & group->mask] =
        (ac_passed_t){.seq = message->seq,
                      .offset = walker->offset - ac_record_size(message->length),
                      .end = walker->offset,
                      .after = after,
                      .segment = walker->segment,
                      .epoch = ((const ac_record_t *)(const void *)message->record)->epoch};
    ac_passed_t *before = &group->passed[(after - 1) & group->mask];
    if (after != 0 && before->seq == after - 1) before->then = message->seq;
    group->next = message->seq + 1;
}

/* Messages that the queue no longer has, after damage that was repaired or skipped: done, as far as there
 * is room. 1 = all of them. */
static int pass_missing(ac_group_t *group, uint64_t until) {
    while (group->next < until) {
        if (is_full(group)) return 0;
        uint64_t seq = group->next, *slot = ac_group_slot(group, seq);
        uint64_t bits = ac_load_seq_cst_u64(slot);
        ac_word_t word = word_for(group, seq, bits);
        if (word.state != AC_SLOT_DONE && seq >= group->low) {
            word.state = AC_SLOT_DONE;
            swap_word(slot, bits, ac_word_pack(word)); /* or another did it */
        }
        ac_passed_t before = group->passed[(seq - 1) & group->mask];
        before.seq = seq;
        before.offset = before.end;
        group->passed[seq & group->mask] = before;
        if (group->turns) ac_turns_note_missing(group, seq);
        group->next++;
        ac_group_advance(group);
    }
    return 1;
}

/* Others were so much quicker that retention has removed the next messages: 1 = the walker is at the
 * group's position. */
static int catch_up(ac_group_t *group) {
    ac_error_t ignored;
    uint64_t seq;
    if (ac_group_advance(group) <= group->next) return 0;
    if (ac_group_go_to_position(group, &seq, &ignored) != AC_OK || seq <= group->next) return 0;
    group->next = seq;
    return 1;
}

static int read_next(ac_group_t *group, int in_loop, ac_message_t *out, ac_error_t *err) {
    ac_reader_t *walker = group->walker;
    int rc = ac_reader_try_next(walker, out);
    while (AC_UNLIKELY(rc != 1)) {
        rc = in_loop ? ac_reader_next_in_loop(walker, out, err) : ac_reader_next(walker, out, err);
        if (rc != AC_E_POSITION_LOST || !catch_up(group)) break;
    }
    return rc;
}

static int is_next_there(ac_group_t *group, int in_loop, ac_error_t *err) {
    ac_reader_t *walker = group->walker;
    int rc;
    do
        rc = in_loop ? ac_reader_ready_in_loop(walker, err) : ac_reader_ready(walker, err);
    while (rc == AC_E_POSITION_LOST && catch_up(group));
    return rc;
}

/* The next record, of which only the header is checked if others have claimed it. 1, 0 or an error; it is
 * passed. */
static int pass_one(ac_group_t *group, int in_loop, int wanted, ac_message_t *out,
                    ac_error_t *err) {
    ac_reader_t *walker = group->walker;
    uint64_t after = 0;
    walker->check = wanted ? group->check : AC_CHECK_HEADER;
    int rc = read_next(group, in_loop, out, err);
    walker->check = group->check;
    if (rc != 1) return rc;
    if (AC_UNLIKELY(out->seq != group->next)) {
        if (out->seq < group->next) {
            ac_reader_unread(walker, out);
            return ac_fail(err, AC_E_UNSUPPORTED, 0, walker->dir.path, 0,
                           "seq %llu comes after %llu: a group needs seqs that grow",
                           (unsigned long long)out->seq, (unsigned long long)group->next - 1);
        }
        if (!pass_missing(group, out->seq) || is_full(group)) {
            ac_reader_unread(walker, out);
            return 0;
        }
    }
    if (group->by_key && group->key(group->key_context, out, &after) < 0) {
        ac_reader_unread(walker, out);
        return ac_fail(err, AC_E_INTERRUPTED, 0, walker->dir.path, 0, "the key is not known");
    }
    note_passed(group, out, group->turns ? 0 : after);
    if (group->turns) ac_turns_note(group, out->seq, out->timestamp_ns, (uint32_t)after);
    return 1;
}

int ac_group_pass(ac_group_t *group, ac_message_t *out, ac_error_t *err) {
    return pass_one(group, 0, 0, out, err);
}

/* Whether a message that was not passed yet can be claimed, as far as its slot tells. */
static int is_claimable(const ac_group_t *group, uint64_t seq, uint64_t *bits, ac_word_t *word,
                        uint32_t now) {
    if (seq < group->low) return 0;
    *bits = ac_load_seq_cst_u64(ac_group_slot(group, seq));
    *word = word_for(group, seq, *bits);
    return word->state == AC_SLOT_FREE && is_due(word, now);
}

static int claim_next(ac_group_t *group, int in_loop, uint32_t now, ac_message_t *out,
                      uint64_t *word, ac_error_t *err) {
    for (;;) {
        uint64_t bits, seq = group->next;
        ac_word_t before;
        if (AC_UNLIKELY(is_full(group))) return 0;
        int wanted = is_claimable(group, seq, &bits, &before, now);
        int rc = pass_one(group, in_loop, wanted, out, err);
        if (rc != 1) return rc;
        if (wanted && out->seq == seq && claim(group, seq, bits, &before, now, word)) return 1;
    }
}

/* By key, everything that there is room for is passed before a message is chosen. */
int ac_group_pass_all(ac_group_t *group, int in_loop, ac_error_t *err) {
    ac_message_t message;
    int rc = 1;
    while (rc == 1 && !is_full(group))
        rc = pass_one(group, in_loop, 1, &message, err);
    return rc < 0 ? rc : 0;
}

/* ---- what was passed ---- */

enum life { NOT_ASKED = 0, ALIVE, DEAD };

typedef struct lives {
    int ask;
    uint8_t known[AC_GROUP_MEMBERS]; /* an enum life each */
} lives_t;

static int is_dead(const ac_group_t *group, lives_t *lives, uint32_t owner) {
    if (!lives->ask || owner == group->owner) return 0;
    if (lives->known[owner] == NOT_ASKED)
        lives->known[owner] = ac_group_is_member_alive(group, owner) ? ALIVE : DEAD;
    return lives->known[owner] == DEAD;
}

static int is_back(const ac_group_t *group, const ac_word_t *word, lives_t *lives, uint32_t now) {
    if (word->state == AC_SLOT_FREE) return is_due(word, now);
    return word->state == AC_SLOT_CLAIMED &&
           (ac_tick_is_past(word->tick, now) || is_dead(group, lives, word->owner));
}

/* The first passed message from `seq` on that is not claimed: 1 = found, 0 = none, or an error. */
static int find_back(ac_group_t *group, uint64_t *seq, uint64_t *bits, ac_word_t *word,
                     lives_t *lives, uint32_t now, ac_error_t *err) {
    int rc;
    for (; *seq < group->next; ++*seq) {
        *bits = ac_load_seq_cst_u64(ac_group_slot(group, *seq));
        *word = word_for(group, *seq, *bits);
        if (word->state == AC_SLOT_DONE) continue;
        const ac_passed_t *passed = &group->passed[*seq & group->mask];
        if (passed->after != 0 && !ac_group_is_done(group, passed->after - 1)) continue;
        if (is_back(group, word, lives, now)) {
            /* The word was read before: see the head of group_turns.c. */
            rc = group->turns ? ac_turns_is_due(group, *seq, err) : 1;
            if (rc != 0) return rc;
            group->others = 1;
        } else if (word->state == AC_SLOT_FREE)
            group->delayed = 1;
        else if (word->owner != group->owner)
            group->others = 1;
    }
    return 0;
}

/* The next call of ac_group_next scans the slots, whenever that was done last. */
static void look_again(ac_group_t *group, uint32_t now) {
    group->scanned_tick = (now - SCAN_TICKS) & AC_TICK_MASK;
    group->checked_tick = (now - CHECK_TICKS) & AC_TICK_MASK;
}

static void begin_scan(ac_group_t *group, lives_t *lives, uint32_t now) {
    memset(lives, 0, sizeof *lives);
    lives->ask = ((now - group->checked_tick) & AC_TICK_MASK) >= CHECK_TICKS;
    if (lives->ask) group->checked_tick = now;
    group->scanned_tick = now;
    group->others = group->delayed = 0;
    ac_group_advance(group);
}

/* Reads a message that was passed. STEPPED_OVER: it was damaged since, and the reader skips it. */
static int read_again(ac_group_t *group, uint64_t seq, ac_message_t *out, ac_error_t *err) {
    const ac_passed_t *passed = &group->passed[seq & group->mask];
    ac_reader_t *again = group->again;
    int rc = ac_reader_seek_position(again, passed->segment, passed->offset, err);
    if (rc == AC_OK) rc = ac_reader_next(again, out, err);
    if (rc < 0) return rc;
    if (rc == 1 && out->seq == seq) return 1;
    if (rc == 1 && out->seq > seq) return STEPPED_OVER;
    return ac_fail(err, AC_E_GONE, 0, again->dir.path, passed->offset,
                   "message %llu is not where it was", (unsigned long long)seq);
}

/* The first returned message from `seq` on. */
static int claim_back_from(ac_group_t *group, uint64_t seq, lives_t *lives, uint32_t now,
                           ac_message_t *out, uint64_t *word, ac_error_t *err) {
    uint64_t bits;
    ac_word_t before;
    int rc;
    for (; (rc = find_back(group, &seq, &bits, &before, lives, now, err)) == 1; seq++) {
        if (!claim(group, seq, bits, &before, now, word)) continue;
        rc = read_again(group, seq, out, err);
        if (rc == STEPPED_OVER) {
            ac_group_ack(group, seq, *word);
            continue;
        }
        if (rc == 1) group->back = seq + 1;
        if (rc != 1) ac_group_undo(group, seq, *word);
        return rc;
    }
    return rc;
}

/* Where many messages came back, the next scan continues where this one found something; from the mark on
 * when that is through, and by key, where every message is claimed here, also when the last scan from there
 * is some ticks ago. */
static int claim_back(ac_group_t *group, uint32_t now, ac_message_t *out, uint64_t *word,
                      ac_error_t *err) {
    lives_t lives;
    uint32_t scanned = group->scanned_tick;
    int due = ((now - scanned) & AC_TICK_MASK) >= SCAN_TICKS;
    begin_scan(group, &lives, now);
    uint64_t from = group->back < group->low || (group->by_key && due) ? group->low : group->back;
    group->back = 0;
    int rc = claim_back_from(group, from, &lives, now, out, word, err);
    if (rc == 0 && from > group->low)
        rc = claim_back_from(group, group->low, &lives, now, out, word, err);
    else if (group->by_key && from > group->low)
        group->scanned_tick = scanned;
    return rc;
}

/* ---- for the binding ---- */

static int next_by_key(ac_group_t *group, int in_loop, uint32_t now, ac_message_t *out,
                       uint64_t *word, ac_reader_t **from, ac_error_t *err) {
    *from = group->again;
    int rc = ac_group_pass_all(group, in_loop, err);
    return rc < 0 ? rc : claim_back(group, now, out, word, err);
}

static int next_in_any_order(ac_group_t *group, int in_loop, uint32_t now, ac_message_t *out,
                             uint64_t *word, ac_reader_t **from, ac_error_t *err) {
    int rc;
    if (group->back || ((now - group->scanned_tick) & AC_TICK_MASK) >= SCAN_TICKS) {
        *from = group->again;
        rc = claim_back(group, now, out, word, err);
        if (rc != 0) return rc;
    }
    *from = group->walker;
    rc = claim_next(group, in_loop, now, out, word, err);
    if (rc != 0 || group->scanned_tick == now) return rc;
    *from = group->again;
    return claim_back(group, now, out, word, err);
}

int ac_group_next(ac_group_t *group, int in_loop, ac_message_t *out, uint64_t *word,
                  ac_reader_t **from, ac_error_t *err) {
    int rc = ac_group_check_open(group, err);
    if (rc != AC_OK) return rc;
    if (group->turns) group->turns->in_loop = in_loop;
    uint32_t now = ac_group_tick();
    rc = group->by_key ? next_by_key(group, in_loop, now, out, word, from, err)
                       : next_in_any_order(group, in_loop, now, out, word, from, err);
    if (AC_UNLIKELY(group->parked && rc == 1)) {
        group->parked = 0;
        ac_reader_unpark(group->walker);
    }
    return rc;
}

int ac_group_ready(ac_group_t *group, int in_loop, ac_error_t *err) {
    lives_t lives;
    uint64_t bits, seq;
    ac_word_t word;
    ac_message_t message;
    int rc = ac_group_check_open(group, err);
    if (rc != AC_OK) return rc;
    uint32_t now = ac_group_tick();
    if (group->turns) group->turns->in_loop = in_loop;
    group->full = 0;
    if (group->by_key) {
        rc = ac_group_pass_all(group, in_loop, err);
        if (rc < 0) return rc;
    }
    begin_scan(group, &lives, now);
    seq = group->low;
    rc = find_back(group, &seq, &bits, &word, &lives, now, err);
    if (rc != 0) {
        look_again(group, now);
        return rc;
    }
    while (!group->by_key && !is_full(group)) {
        rc = is_next_there(group, in_loop, err);
        if (rc != 1 || is_claimable(group, group->next, &bits, &word, now)) return rc;
        rc = pass_one(group, in_loop, 0, &message, err);
        if (rc != 1) return rc;
    }
    return 0;
}

static void settle(ac_group_t *group) {
    if (group->in_flight > 0) group->in_flight--;
}

/* By key: the message that waited for this one is checked next. */
static void look_at_next_of_key(ac_group_t *group, uint64_t seq) {
    const ac_passed_t *passed = &group->passed[seq & group->mask];
    if (passed->seq == seq && passed->then != 0 && passed->then < group->back)
        group->back = passed->then;
}

int ac_group_ack(ac_group_t *group, uint64_t seq, uint64_t word) {
    ac_word_t after = ac_word_unpack(word);
    after.state = AC_SLOT_DONE;
    settle(group);
    if (group->by_key) look_at_next_of_key(group, seq);
    if (!swap_word(ac_group_slot(group, seq), word, ac_word_pack(after))) {
        ac_count_u64(&group->entry->refused, 1);
        return 0;
    }
    ac_count_u64(&group->entry->acked, 1);
    if (ac_load_seq_cst_u64(&group->header->low) == seq) ac_group_advance(group);
    uint32_t now = ac_group_tick();
    if (now != group->stored_tick || group->low - group->stored_seq >= STORE_MESSAGES)
        ac_group_store(group, now);
    return 1;
}

int ac_group_nack(ac_group_t *group, uint64_t seq, uint64_t word, uint32_t delay_ms) {
    ac_word_t after = ac_word_unpack(word);
    uint32_t now = ac_group_tick();
    after.state = AC_SLOT_FREE;
    after.tick = now + delay_ms + (delay_ms > 0);
    settle(group);
    look_again(group, now);
    if (!swap_word(ac_group_slot(group, seq), word, ac_word_pack(after))) {
        ac_count_u64(&group->entry->refused, 1);
        return 0;
    }
    ac_count_u64(&group->entry->nacked, 1);
    return 1;
}

int ac_group_extend(ac_group_t *group, uint64_t seq, uint64_t *word, uint32_t lease_ms) {
    ac_word_t after = ac_word_unpack(*word);
    after.tick = ac_group_tick() + lease_ms + 1;
    uint64_t bits = ac_word_pack(after);
    if (!swap_word(ac_group_slot(group, seq), *word, bits)) return 0;
    *word = bits;
    return 1;
}

void ac_group_undo(ac_group_t *group, uint64_t seq, uint64_t word) {
    ac_word_t after = ac_word_unpack(word);
    uint32_t now = ac_group_tick();
    after.state = AC_SLOT_FREE;
    after.tick = now;
    if (after.attempt > 0) after.attempt--;
    settle(group);
    look_again(group, now);
    swap_word(ac_group_slot(group, seq), word, ac_word_pack(after));
}

void ac_group_free_claims(uint64_t *slots, uint64_t count, uint32_t owner, uint32_t now) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = ac_load_seq_cst_u64(&slots[i]);
        ac_word_t word = ac_word_unpack(bits);
        if (word.state != AC_SLOT_CLAIMED || word.owner != owner) continue;
        word.state = AC_SLOT_FREE;
        word.tick = now;
        swap_word(&slots[i], bits, ac_word_pack(word));
    }
}
