/* Turns: over all queues of a topic with many writers, messages of one key are delivered in order, one at a time.
 *
 * Each queue of the topic has its own group, with slots and a mark; the rules at the head of group.c hold. The queues
 * share one word per key. A key is a number below 65536, a hash of the value that the user's function returned. Two
 * keys with the same number wait for each other.
 *
 * 1. Files. TOPIC/readers/.NAME.turns, mapped by every member:
 *
 *        0       header
 *        4096    ids of queues; the file refers to a queue by the index of its id
 *        135168  heads: per key, (index + 1) << 48 | seq of the message whose turn it is, or that had the last turn
 *
 * 2. Rules. Each change is one compare-and-swap, and no member owns a word: a kill leaves nothing to be freed.
 *
 *      - A member claims a message only if it has seen that the message is the head of its key.
 *      - A member replaces a head only if it has seen that the head's message is DONE, in the slots of its queue.
 *
 *    So only the head of a key can be CLAIMED. A member may see the head and claim it late: if another message is the
 *    head by then, the first one is DONE, and the claim fails. DONE is final, so a head that was replaced does not
 *    come back. The model is tests/models/turns.pml.
 *
 * 3. Order. A member that finds the head DONE passes all available messages of all queues, and repeats that until the
 *    oldest message of the key that is not DONE stays the same: by timestamp, then by index. Timestamps of a queue
 *    never decrease. The last pass began after this message was seen, so it does not overtake an older one that was
 *    appended before it. If the window of a queue is full, older messages of the key may be beyond it: then no message
 *    is chosen that is newer than the last one passed in that queue. This never stops the oldest message of all
 *    windows, so the windows move.
 *
 * 4. Queues that this member has not joined. The owner of the handle has their files read, to see whether a head is
 *    DONE (ac_turns_unknown, ac_turns_settle). If a queue is gone, ac_turns_forget removes its heads and frees its
 *    index. A queue may get two indexes if one is freed while two members look for a free one. That is harmless,
 *    because ids are compared.
 *
 * 5. A shared lock on the file is held as long as it is mapped. A member that opens the file and finds no lock starts
 *    over with an empty file: all earlier claims are of members that are gone. */
#include "group_turns.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEQ_MASK ((1ull << AC_TURNS_SEQ_BITS) - 1)

enum { OPEN_TRIES = 2000, OPEN_RETRY_NS = 1000000, SWAP_TRIES = 16 };

_Static_assert(AC_TURNS_HEADS_AT == 135168, "turns file");

/* ---- the file ---- */

typedef struct place {
    ac_directory_t readers;
    int readers_fd;
    char file[AC_GROUP_FILE_NAME_MAX + 8];
    char path[1300];
} place_t;

static int find_place(place_t *place, const char *topic, const char *name, unsigned mode,
                      ac_error_t *err) {
    ac_directory_t dir;
    place->readers_fd = -1;
    int rc = ac_reader_name_check(name, topic, err);
    if (rc == AC_OK) rc = ac_directory_init(&dir, topic, mode, 0, err);
    if (rc != AC_OK) return rc;
    int fd = ac_directory_open(&dir, err);
    if (fd < 0) return fd;
    place->readers_fd = ac_directory_readers(&dir, fd, 0, &place->readers, err);
    ac_os_close(fd);
    snprintf(place->file, sizeof place->file, ".%s.turns", name);
    snprintf(place->path, sizeof place->path, "%s/%s", place->readers.path, place->file);
    return place->readers_fd < 0 ? place->readers_fd : AC_OK;
}

/* Returns an fd of the locked file; other members cannot open the file until the lock is released. */
static int open_locked(const place_t *place, int flags, struct stat *info, ac_error_t *err) {
    for (int tries = 0, rc = 0;; tries++) {
        if (tries) ac_os_sleep_ns(OPEN_RETRY_NS);
        int fd = ac_file_open(&place->readers, place->readers_fd, place->file, flags, info, err);
        if (fd < 0) return fd;
        rc = ac_os_flock(fd);
        if (rc == 0) rc = ac_os_stat(fd, info);
        if (rc == 0 && info->st_nlink > 0) return fd;
        ac_os_close(fd);
        if (rc == 0 || rc == -EWOULDBLOCK) rc = -EWOULDBLOCK; /* or it has just been forgotten */
        if (rc != -EWOULDBLOCK || tries == OPEN_TRIES)
            return ac_fail_os(err, rc, place->path, "cannot lock");
    }
}

static int start_over(int fd, const place_t *place, ac_error_t *err) {
    ac_turns_header_t header = {.magic = AC_TURNS_MAGIC, .version = AC_TURNS_VERSION};
    int rc = ac_os_truncate(fd, 0);
    if (rc == 0) rc = ac_os_truncate(fd, AC_TURNS_SIZE);
    /* Allocates blocks first: a store to a page without a block would raise SIGBUS. */
    if (rc == 0) rc = ac_os_allocate(fd, AC_TURNS_SIZE);
    if (rc == 0) rc = ac_os_write_at(fd, &header, sizeof header, 0);
    return rc < 0 ? ac_fail_os(err, rc, place->path, "cannot make") : AC_OK;
}

static int check_header(int fd, const place_t *place, uint64_t size, ac_error_t *err) {
    ac_turns_header_t header = {0};
    int got = ac_os_read_at(fd, &header, sizeof header, 0);
    if (got < 0) return ac_fail_os(err, got, place->path, "cannot read");
    if (got == (int)sizeof header && header.magic == AC_TURNS_MAGIC &&
        header.version == AC_TURNS_VERSION && size == AC_TURNS_SIZE)
        return AC_OK;
    return ac_fail(err, AC_E_CORRUPT, 0, place->path, 0,
                   "the state of the group is damaged, and members use it; close them");
}

/* The mapping holds the lock that shows a member, as with an entry in NAME.group. The claim belongs to another open
 * file than the flock. */
static int map_file(ac_turns_t *turns, const place_t *place, ac_error_t *err) {
    struct stat info;
    int error = 0;
    int fd = ac_file_open(&place->readers, place->readers_fd, place->file, O_RDWR, &info, err);
    if (fd < 0) return fd;
    int rc = ac_os_claim_shared(fd);
    if (rc == 0) turns->map = ac_map_new(fd, AC_TURNS_SIZE, 1, &error);
    if (turns->map) rc = ac_os_map_dontfork(turns->map->base, AC_TURNS_SIZE);
    ac_os_close(fd);
    if (rc < 0 || error < 0) return ac_fail_os(err, rc < 0 ? rc : error, place->path, "cannot map");
    turns->queues = (uint64_t *)(void *)(turns->map->base + AC_TURNS_HEADER_SIZE);
    turns->heads = (uint64_t *)(void *)(turns->map->base + AC_TURNS_HEADS_AT);
    return AC_OK;
}

int ac_turns_open(const char *topic, const char *name, unsigned mode, ac_turns_t **out,
                  ac_error_t *err) {
    place_t place;
    struct stat info;
    int fd = -1;
    ac_turns_t *turns = ac_os_alloc(sizeof *turns);
    if (!turns) return ac_fail_os(err, -ENOMEM, topic, "cannot open a group of");
    turns->pid = getpid();
    int rc = find_place(&place, topic, name, mode, err);
    if (rc == AC_OK) {
        snprintf(turns->path, sizeof turns->path, "%s", place.path);
        fd = rc = open_locked(&place, O_RDWR | O_CREAT, &info, err);
    }
    if (fd >= 0) {
        rc = ac_os_claimed(fd);
        if (rc < 0)
            rc = ac_fail_os(err, rc, place.path, "cannot ask for members of");
        else
            rc = rc ? check_header(fd, &place, (uint64_t)info.st_size, err)
                    : start_over(fd, &place, err);
        if (rc == AC_OK) rc = map_file(turns, &place, err);
    }
    ac_os_close(fd);
    ac_os_close(place.readers_fd);
    if (rc != AC_OK)
        ac_turns_free(turns);
    else
        *out = turns;
    return rc;
}

/* A forked child does not inherit the mapping. */
static int is_forked(const ac_turns_t *turns) {
    return turns->pid != getpid();
}

void ac_turns_free(ac_turns_t *turns) {
    if (!turns) return;
    if (!is_forked(turns)) ac_map_release(turns->map);
    free(turns);
}

int ac_turns_remove(const char *topic, const char *name, ac_error_t *err) {
    place_t place;
    struct stat info;
    int rc = find_place(&place, topic, name, 0600, err);
    if (rc != AC_OK) return rc;
    int fd = rc = open_locked(&place, O_RDWR, &info, err);
    if (fd >= 0) {
        rc = ac_os_claimed(fd);
        if (rc > 0)
            rc = ac_fail(err, AC_E_READER_BUSY, 0, place.path, 0,
                         "members of the group '%s' are open; close them first", name);
        else if (rc == 0)
            rc = ac_os_unlink(place.readers_fd, place.file);
        if (rc < 0 && rc != AC_E_READER_BUSY) rc = ac_fail_os(err, rc, place.path, "cannot remove");
    }
    ac_os_close(fd);
    ac_os_close(place.readers_fd);
    return rc == AC_E_NOT_FOUND ? AC_OK : rc;
}

/* ---- queues ---- */

static uint64_t id_of(const ac_group_t *group) {
    return ac_load_relaxed_u64(&group->walker->control->queue_id);
}

int ac_turns_join(ac_turns_t *turns, ac_group_t *group, ac_error_t *err) {
    uint64_t id = id_of(group);
    group->turn = ac_os_alloc((group->mask + 1) * sizeof *group->turn);
    if (!group->turn) return ac_fail_os(err, -ENOMEM, turns->path, "cannot open");
    for (uint64_t i = 0; i < AC_TURNS_QUEUES; i++) {
        uint64_t at = (id + i) % AC_TURNS_QUEUES, found = ac_load_seq_cst_u64(&turns->queues[at]);
        /* Another member may be first, for another queue or for this one: `found` then has the id. */
        if (found == 0 && __atomic_compare_exchange_n(&turns->queues[at], &found, id, 0,
                                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            found = id;
        if (found != id) continue;
        group->turns = turns;
        group->turn_index = (uint32_t)at;
        turns->joined[at] = group;
        group->next_joined = turns->first;
        turns->first = group;
        return AC_OK;
    }
    free(group->turn);
    group->turn = NULL;
    return ac_fail(err, AC_E_GROUP, 0, turns->path, 0,
                   "members have seen %d queues of writers come; close all members once",
                   AC_TURNS_QUEUES);
}

static void unlist(ac_turn_t *turn) {
    ac_turns_t *turns = turn->group->turns;
    if (turn->earlier)
        turn->earlier->later = turn->later;
    else
        turns->oldest[turn->key] = turn->later;
    if (turn->later)
        turn->later->earlier = turn->earlier;
    else
        turns->newest[turn->key] = turn->earlier;
    turn->listed = 0;
}

void ac_turns_leave(ac_group_t *group) {
    ac_turns_t *turns = group->turns;
    if (!turns) return;
    for (uint64_t i = 0; i <= group->mask; i++)
        if (group->turn[i].listed) unlist(&group->turn[i]);
    ac_group_t **at = &turns->first;
    while (*at != group)
        at = &(*at)->next_joined;
    *at = group->next_joined;
    turns->joined[group->turn_index] = NULL;
    free(group->turn);
    group->turn = NULL;
    group->turns = NULL;
}

static ac_group_t *find_joined(const ac_turns_t *turns, uint64_t index) {
    ac_group_t *group = turns->joined[index];
    uint64_t id = ac_load_seq_cst_u64(&turns->queues[index]);
    if (AC_LIKELY(group && id_of(group) == id)) return group;
    for (group = turns->first; group; group = group->next_joined)
        if (id_of(group) == id) return group;
    return NULL;
}

size_t ac_turns_queues(ac_turns_t *turns, uint64_t *ids) {
    size_t count = 0;
    if (is_forked(turns)) return 0;
    for (size_t i = 0; i < AC_TURNS_QUEUES; i++) {
        uint64_t id = ac_load_seq_cst_u64(&turns->queues[i]);
        if (id != 0) ids[count++] = id;
    }
    return count;
}

/* Returns the queue of a head; 0 = no queue. */
static uint64_t queue_of(const ac_turns_t *turns, uint64_t head) {
    uint64_t index = (head >> AC_TURNS_SEQ_BITS) - 1;
    return head == 0 || index >= AC_TURNS_QUEUES ? 0 : ac_load_seq_cst_u64(&turns->queues[index]);
}

size_t ac_turns_unknown(ac_turns_t *turns, uint64_t *ids) {
    size_t count = 0;
    if (!turns->waits_for_unknown || is_forked(turns)) return 0;
    turns->waits_for_unknown = 0;
    uint8_t *seen = ac_os_alloc(AC_TURNS_QUEUES);
    for (size_t i = 0; seen && i < AC_TURNS_KEYS; i++) {
        uint64_t head = ac_load_seq_cst_u64(&turns->heads[i]);
        uint64_t index = (head >> AC_TURNS_SEQ_BITS) - 1, id = queue_of(turns, head);
        if (head == 0 || index >= AC_TURNS_QUEUES || seen[index]) continue;
        seen[index] = 1;
        if (!find_joined(turns, index)) ids[count++] = id;
    }
    free(seen);
    return count;
}

/* Removes the heads of a queue: those that are DONE, or all of them. */
static void drop_heads(ac_turns_t *turns, uint64_t queue_id, const ac_group_done_t *done) {
    for (size_t i = 0; i < AC_TURNS_KEYS && !is_forked(turns); i++) {
        uint64_t head = ac_load_seq_cst_u64(&turns->heads[i]);
        if (head == 0 || queue_of(turns, head) != queue_id) continue;
        if (!done || ac_group_was_done(done, head & SEQ_MASK))
            __atomic_compare_exchange_n(&turns->heads[i], &head, 0, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST);
    }
}

int ac_turns_settle(ac_turns_t *turns, const char *queue, const char *name, ac_error_t *err) {
    ac_group_done_t done;
    int rc = ac_group_read_done(queue, name, &done, err);
    if (rc != AC_OK) return rc;
    if (done.slots) drop_heads(turns, done.queue_id, &done);
    free(done.slots);
    return AC_OK;
}

void ac_turns_forget(ac_turns_t *turns, uint64_t queue_id) {
    drop_heads(turns, queue_id, NULL);
    for (size_t i = 0; i < AC_TURNS_QUEUES && !is_forked(turns); i++) {
        uint64_t id = queue_id;
        __atomic_compare_exchange_n(&turns->queues[i], &id, 0, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    }
}

/* ---- messages that were passed ---- */

static int is_before(const ac_turn_t *one, const ac_turn_t *other) {
    if (one->time_ns != other->time_ns) return one->time_ns < other->time_ns;
    if (one->group != other->group) return one->group->turn_index < other->group->turn_index;
    return one->seq < other->seq;
}

static ac_turn_t *entry_of(ac_group_t *group, uint64_t seq) {
    ac_turn_t *turn = &group->turn[seq & group->mask];
    if (turn->listed) unlist(turn); /* of an earlier lap: DONE */
    return turn;
}

void ac_turns_note(ac_group_t *group, uint64_t seq, uint64_t time_ns, uint32_t key) {
    ac_turns_t *turns = group->turns;
    ac_turn_t *turn = entry_of(group, seq), *earlier;
    key %= AC_TURNS_KEYS;
    *turn = (ac_turn_t){.group = group, .seq = seq, .time_ns = time_ns, .key = key, .listed = 1};
    for (earlier = turns->newest[key]; earlier && is_before(turn, earlier);)
        earlier = earlier->earlier;
    turn->earlier = earlier;
    turn->later = earlier ? earlier->later : turns->oldest[key];
    *(earlier ? &earlier->later : &turns->oldest[key]) = turn;
    *(turn->later ? &turn->later->earlier : &turns->newest[key]) = turn;
}

void ac_turns_note_missing(ac_group_t *group, uint64_t seq) {
    uint64_t time_ns = group->turn[(seq - 1) & group->mask].time_ns;
    *entry_of(group, seq) = (ac_turn_t){.group = group, .seq = seq, .time_ns = time_ns};
}

/* ---- whose turn it is ---- */

/* Passes all available messages of all queues. AC_E_INTERRUPTED: the user's function failed. Any other error concerns
 * one queue, and is raised when a message is taken from that queue. */
static int pass_everything(ac_turns_t *turns, ac_error_t *err) {
    for (ac_group_t *group = turns->first; group; group = group->next_joined) {
        if (ac_group_check_open(group, err) != AC_OK) continue;
        if (ac_group_pass_all(group, turns->in_loop, err) == AC_E_INTERRUPTED)
            return AC_E_INTERRUPTED;
    }
    return AC_OK;
}

/* Newer messages may have to wait for messages beyond a window. */
static uint64_t find_horizon(const ac_turns_t *turns) {
    uint64_t horizon = UINT64_MAX;
    for (const ac_group_t *group = turns->first; group; group = group->next_joined) {
        if (group->next < group->low + group->limit || group->next == 0) continue;
        const ac_turn_t *last = &group->turn[(group->next - 1) & group->mask];
        if (last->group && last->seq == group->next - 1 && last->time_ns < horizon)
            horizon = last->time_ns;
    }
    return horizon;
}

/* Returns the oldest passed message of a key that is not DONE; NULL = none. */
static const ac_turn_t *find_oldest(ac_turns_t *turns, uint32_t key) {
    ac_turn_t *turn;
    while ((turn = turns->oldest[key]) && ac_group_is_done(turn->group, turn->seq))
        unlist(turn);
    return turn;
}

enum standing { DUE, DONE, WAITING };

static enum standing standing_of(ac_turns_t *turns, uint64_t head, const ac_group_t *group,
                                 uint64_t seq) {
    uint64_t index = (head >> AC_TURNS_SEQ_BITS) - 1;
    if (head == 0 || index >= AC_TURNS_QUEUES) return DONE; /* the second is in none of our files */
    ac_group_t *of = find_joined(turns, index);
    if (!of) {
        turns->waits_for_unknown = 1;
        return WAITING;
    }
    if (of == group && (head & SEQ_MASK) == seq) return DUE;
    return ac_group_is_done(of, head & SEQ_MASK) ? DONE : WAITING;
}

int ac_turns_is_due(ac_group_t *group, uint64_t seq, ac_error_t *err) {
    ac_turns_t *turns = group->turns;
    const ac_turn_t *turn = &group->turn[seq & group->mask];
    if (turn->group != group || turn->seq != seq || !turn->listed) return 0;
    uint32_t key = turn->key;
    if (AC_UNLIKELY(ac_map_is_cut(turns->map)))
        return ac_fail(err, AC_E_GONE, 0, turns->path, 0, "was cut");
    for (int tries = 0; tries < SWAP_TRIES; tries++) {
        uint64_t head = ac_load_seq_cst_u64(&turns->heads[key]);
        enum standing standing = standing_of(turns, head, group, seq);
        if (standing != DONE) return standing == DUE;
        int rc = pass_everything(turns, err);
        const ac_turn_t *oldest = rc == AC_OK ? find_oldest(turns, key) : NULL;
        if (oldest) rc = pass_everything(turns, err); /* messages appended before it are seen now */
        if (rc != AC_OK || !oldest) return rc;
        if (oldest != find_oldest(turns, key)) continue;
        if (oldest->time_ns > find_horizon(turns)) return 0;
        uint64_t word = ((uint64_t)oldest->group->turn_index + 1) << AC_TURNS_SEQ_BITS |
                        (oldest->seq & SEQ_MASK);
        __atomic_compare_exchange_n(&turns->heads[key], &head, word, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    }
    return 0;
}
