/* A group: any number of members, in any processes, each message to one of them at a time, and no coordinator.
 *
 * 1. Files. readers/NAME.meta is the position of the group, as any reader's: retention, capacity and lag go by it.
 *    readers/NAME.group is this, mapped by every member:
 *
 *        0    header: settings; whose clock the ticks are of; `low`, the low-water mark
 *        256  256 members of 64 bytes: counters, each written by its member alone
 *        16640  the window: a power of two of slots, one word of 64 bits each
 *
 * 2. Slots. The message with seq s has slot s mod slots while low <= s < low + limit, and limit < slots. All that there
 *    is to know about it is in the one word, so every change is one compare-and-swap, and a process that is killed is
 *    before or after it:
 *
 *        bits 0-1    FREE, CLAIMED or DONE
 *        bits 2-9    the member that claimed it last
 *        bits 10-17  attempt: how often it was claimed; 0 = never, and then the tick says nothing
 *        bits 18-47  tick, in ms of the monotonic clock mod 2^30: CLAIMED until, FREE not before
 *        bits 48-63  lap: s / slots
 *
 *        FREE     -> CLAIMED  the member that reads it, once the tick has come          (attempt + 1)
 *        CLAIMED  -> CLAIMED  its owner, with a later tick: extend
 *        CLAIMED  -> DONE     its owner: ack. Final.
 *        CLAIMED  -> FREE     its owner: nack, with or without a delay
 *        CLAIMED  -> CLAIMED  a member that finds the tick past or the owner dead      (attempt + 1)
 *        older lap-> CLAIMED  a slot of an earlier lap is free: its message is before the mark
 *
 *    Members keep no sorted lists of deadlines or of out-of-order acknowledgements. Such lists (sortedcontainers, in
 *    Python) were measured and left out: a slot is found by its seq, the mark moves over DONE slots, and the scan for
 *    messages that came back runs every few ms at most and reads 8 bytes per message.
 *
 *    The owner settles a claim by the whole word that it got. If another has it by now, the attempt or the owner
 *    differs; if it has itself again, the tick does. So a late ack is refused.
 *
 * 3. The mark. Whatever is before `low` is done. Any member moves it over words that are DONE, by compare-and-swap; it
 *    only grows, and DONE is final as long as the mark has not passed it. After a kill it lags, and the next member
 *    moves it. All accesses to words and mark are seq_cst: see ac_group_advance. tests/models/group.pml has it.
 *
 * 4. The position follows the mark: it is stored by any member that knows where the message before the mark ends,
 *    at most every few ms, when it runs out of work, and when it leaves. `storing` lets one do so at a time. It is no
 *    lock: a member that finds it held for long takes it. What two stores at once could leave is one slot of NAME.meta torn
 *    or older, and there is the other.
 *
 * 5. Members. Each has an entry in the table, and a lock on byte 2^40 + entry of the file, held by its mapping: the
 *    kernel gives it up with the process, in whichever container, and a forked child does not have it. So a member
 *    lives if and only if its byte is locked. Who takes an entry first frees the claims that its last owner left.
 *    NAME.meta they lock together, shared: a reader that wants the name for itself finds it in use.
 *
 * 6. Opening is done under flock on NAME.group. One who finds no other member is alone: claims of members that are
 *    gone are freed, settings may change. The header says in which boot, on whose clock, for which file and queue the
 *    words were written. If one of them is another (a power cut, a copy), the words are not believed, and the window
 *    starts over at the position: what was done after it is delivered again. Of NAME.group nothing
 *    but its being there is ever synced. A position that a power cut left after the end of the queue goes back to
 *    the end. A window of another size is made in a new file, which then takes the name: a kill leaves one of them.
 *
 * 7. Hostile bytes. Every word is read once, and any value of it is a state: the worst that it can do is to have a
 *    message delivered again, or not at all; so can NAME.meta. Where messages stand each member notes for itself. */
#include "group.h"

#include "crc32.h"
#include "error.h"
#include "group_turns.h"
#include "lock_holder.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OPEN_TRIES = 2000,
    OPEN_RETRY_NS = 1000000,
    STORING_TICKS = 200,
    POSITION_TRIES = 100,
    /* Returned messages signal nobody: so sleeping members poll, often if they know of some. */
    LOOK_NS = 20000000,
    /* A member that was woken may hang: others look in its place. */
    LOOK_BESIDE_NS = 100000000,
    LOOK_ALONE_NS = 1000000000
};

_Static_assert(AC_GROUP_SLOTS_AT == 16640, "group file");
_Static_assert(sizeof((ac_group_info_t *)0)->member == AC_GROUP_MEMBERS * sizeof(ac_group_member_t),
               "members");

static uint64_t file_size(uint32_t slots) {
    return AC_GROUP_SLOTS_AT + (uint64_t)slots * sizeof(uint64_t);
}

/* ---- opening ---- */

typedef struct opening {
    ac_group_t *group;
    const ac_group_config_t *config;
    ac_directory_t readers;
    int readers_fd;
    char file[AC_GROUP_FILE_NAME_MAX], meta[AC_GROUP_FILE_NAME_MAX];
    char path[1300]; /* of the file */
    int fd;          /* locked while we open it */
    int alone;
    int founded; /* there was no such group */
    int created; /* nor a position */
    uint64_t inode;
} opening_t;

static int fail_settings(const opening_t *opening, const char *what, unsigned long long theirs,
                         unsigned long long ours, ac_error_t *err) {
    return ac_fail(err, AC_E_GROUP, 0, opening->path, 0,
                   "the group is in use with %s %llu, not %llu; open it with the same settings, or "
                   "close all members first",
                   what, theirs, ours);
}

static uint32_t slots_for(uint32_t limit) {
    uint32_t slots = AC_GROUP_SLOTS_MIN;
    while (slots <= limit)
        slots *= 2;
    return slots;
}

static ac_group_header_t wanted_header(const opening_t *opening) {
    const ac_group_config_t *config = opening->config;
    ac_group_header_t header = {
        .magic = AC_GROUP_MAGIC,
        .version = AC_GROUP_VERSION,
        .slots = slots_for(config->limit),
        .limit = config->limit,
        .lease_ms = config->lease_ms,
        .max_deliver = config->max_deliver,
        .by_key = (uint32_t)config->by_key,
        .dead_letter = config->dead_letter,
        .boot = ac_os_boot_id(),
        .clock = ac_os_clock_namespace(),
        .inode = opening->inode,
        .queue_id = ac_load_relaxed_u64(&opening->group->walker->control->queue_id)};
    header.checksum = ac_crc32(&header, offsetof(ac_group_header_t, checksum));
    return header;
}

int ac_group_is_sound(const ac_group_header_t *header, uint64_t file_bytes) {
    return header->magic == AC_GROUP_MAGIC && header->version == AC_GROUP_VERSION &&
           header->checksum == ac_crc32(header, offsetof(ac_group_header_t, checksum)) &&
           header->limit >= 1 && header->limit <= AC_GROUP_LIMIT_MAX &&
           header->slots == slots_for(header->limit) && file_bytes >= file_size(header->slots);
}

/* Whether the words of the file are valid: they are of this boot, file and queue. */
static int is_current(const ac_group_header_t *found, const ac_group_header_t *wanted) {
    return found->boot == wanted->boot && found->inode == wanted->inode &&
           found->queue_id == wanted->queue_id;
}

/* There are other members. */
static int check_settings(const opening_t *opening, const ac_group_header_t *found,
                          const ac_group_header_t *wanted, ac_error_t *err) {
    if (found->boot != wanted->boot || found->clock != wanted->clock)
        return ac_fail(err, AC_E_GROUP, EXDEV, opening->path, 0,
                       "the group is in use by members with another clock: on another machine, or "
                       "in another time namespace; their leases cannot be compared with ours");
    if (!is_current(found, wanted))
        return ac_fail(
            err, AC_E_CORRUPT, 0, opening->path, 0,
            "the state of the group is of another queue, and members use it; close them");
    if (found->limit != wanted->limit)
        return fail_settings(opening, "max_in_flight", found->limit, wanted->limit, err);
    if (found->lease_ms != wanted->lease_ms)
        return fail_settings(opening, "a lease in ms of", found->lease_ms, wanted->lease_ms, err);
    if (found->max_deliver != wanted->max_deliver)
        return fail_settings(opening, "max_deliver", found->max_deliver, wanted->max_deliver, err);
    if (found->by_key != wanted->by_key || found->dead_letter != wanted->dead_letter)
        return ac_fail(err, AC_E_GROUP, 0, opening->path, 0,
                       "the group is in use with another %s; open it with the same, or close all "
                       "members first",
                       found->by_key != wanted->by_key ? "order" : "dead_letter");
    return AC_OK;
}

static int open_file(const opening_t *opening, struct stat *info, ac_error_t *err) {
    return ac_file_open(&opening->readers, opening->readers_fd, opening->file, O_RDWR | O_CREAT,
                        info, err);
}

/* flock decides who opens the group at this moment. */
static int lock_file(opening_t *opening, ac_error_t *err) {
    struct stat info;
    int rc = -EWOULDBLOCK;
    for (int tries = 0; tries < OPEN_TRIES && rc == -EWOULDBLOCK; tries++) {
        if (tries) ac_os_sleep_ns(OPEN_RETRY_NS);
        opening->fd = open_file(opening, &info, err);
        if (opening->fd < 0) return opening->fd;
        rc = ac_os_flock(opening->fd);
        /* The group was forgotten, and its name removed. */
        if (rc == 0 && ac_os_stat(opening->fd, &info) == 0 && info.st_nlink == 0) rc = -EWOULDBLOCK;
        if (rc == 0) break;
        ac_os_close(opening->fd);
        opening->fd = -1;
    }
    if (rc < 0) return ac_fail_os(err, rc, opening->path, "cannot lock");
    opening->inode = info.st_ino;
    rc = ac_os_range_claimed(opening->fd, AC_GROUP_LOCKS, AC_GROUP_MEMBERS);
    if (rc < 0) return ac_fail_os(err, rc, opening->path, "cannot ask for members of");
    opening->alone = !rc;
    return AC_OK;
}

/* The name is free, or a group's, or to be adopted. From here on it is a group's: the file is not empty,
 * and is removed if we fail. This is made durable before there is a position: after a power cut a position
 * alone would be taken for a reader's. */
static int take_name(opening_t *opening, ac_error_t *err) {
    struct stat info;
    int rc = ac_os_stat(opening->fd, &info);
    if (rc < 0) return ac_fail_os(err, rc, opening->path, "cannot examine");
    opening->founded = info.st_size == 0;
    if (!opening->founded) return AC_OK;
    if (!opening->config->adopt &&
        ac_os_stat_at(opening->readers_fd, opening->meta, &info) != -ENOENT)
        return ac_fail(err, AC_E_READER_BUSY, EEXIST, opening->group->walker->dir.path, 0,
                       "'%s' is the name of a reader; choose another, forget the reader, or adopt "
                       "its position",
                       opening->config->name);
    rc = ac_os_truncate(opening->fd, 1);
    if (rc == 0) rc = ac_os_sync(opening->fd);
    if (rc == 0) rc = ac_os_sync_dir(opening->readers_fd);
    return rc < 0 ? ac_fail_os(err, rc, opening->path, "cannot make") : AC_OK;
}

/* Creates the position if there is none, at the walker's place; by the way of a reader, which has it alone. */
static int make_position(opening_t *opening, int dir_fd, ac_error_t *err) {
    ac_reader_t *walker = opening->group->walker;
    ac_position_t position = {0};
    ac_error_t busy;
    int rc = ac_position_open(&position, &walker->dir, dir_fd, opening->config->name,
                              walker->segment, walker->offset, &opening->created, &busy);
    if (rc == AC_OK)
        ac_position_close(&position);
    else if (rc != AC_E_READER_BUSY && err)
        *err = busy;
    return rc == AC_E_READER_BUSY ? AC_OK : rc; /* sharing it shows whose it is */
}

static int load_position(const ac_group_t *group, ac_slot_t *slot) {
    uint8_t bytes[AC_POSITION_SIZE];
    memcpy(bytes, group->position->base, sizeof bytes);
    return ac_position_decode(bytes, slot) < 0 ? AC_E_POSITION_CORRUPT : AC_OK;
}

static int share_position(opening_t *opening, ac_error_t *err) {
    ac_group_t *group = opening->group;
    struct stat info;
    char path[1300], who[160];
    ac_slot_t slot;
    int error = 0;
    int fd =
        ac_file_open(&opening->readers, opening->readers_fd, opening->meta, O_RDWR, &info, err);
    if (fd < 0) return fd;
    snprintf(path, sizeof path, "%s/%s", opening->readers.path, opening->meta);
    int rc = ac_os_flock_shared(fd);
    if (rc == 0) rc = ac_os_claim_shared(fd);
    if (rc == -EWOULDBLOCK) {
        ac_holder_describe(fd, who, sizeof who);
        ac_os_close(fd);
        return ac_fail(err, AC_E_READER_BUSY, 0, path, 0,
                       "a reader has this name (%s); choose another for the group, or close it",
                       who);
    }
    if (rc == 0 && info.st_size >= AC_POSITION_SIZE)
        group->position = ac_map_new(fd, AC_POSITION_SIZE, 1, &error);
    if (group->position) rc = ac_os_map_dontfork(group->position->base, AC_POSITION_SIZE);
    ac_os_close(fd);
    if (rc < 0 || error < 0) return ac_fail_os(err, rc < 0 ? rc : error, path, "cannot share");
    if (!group->position || load_position(group, &slot) != AC_OK)
        return ac_fail(err, AC_E_POSITION_CORRUPT, 0, path, 0,
                       "is damaged; forget the reader '%s' to start the group afresh",
                       opening->config->name);
    return AC_OK;
}

/* *seq is the next message at the walker's place. */
static int tell_seq(ac_reader_t *walker, uint64_t *seq, ac_error_t *err) {
    *seq = 0;
    if (!walker->base && walker->segment == 0) return AC_OK; /* an empty queue */
    int rc = ac_reader_seq_at(walker, walker->segment, walker->offset, seq, err);
    if (rc == 0)
        rc = ac_fail(err, AC_E_CORRUPT, 0, walker->dir.path, walker->offset,
                     "it is unknown which message the group comes to next");
    return rc < 0 ? rc : AC_OK;
}

int ac_group_go_to_position(ac_group_t *group, uint64_t *seq, ac_error_t *err) {
    ac_reader_t *walker = group->walker;
    ac_slot_t slot, tried = {0};
    for (int rc = AC_OK, tries = 0;; tries++, tried = slot) {
        if (load_position(group, &slot) != AC_OK)
            return ac_fail(err, AC_E_POSITION_CORRUPT, 0, walker->dir.path, 0,
                           "the position of group '%s' is damaged", group->name);
        int moved = tries == 0 || slot.segment != tried.segment || slot.offset != tried.offset;
        if (!moved || tries == POSITION_TRIES) return rc;
        rc = ac_reader_seek_position(walker, slot.segment, slot.offset, err);
        if (rc == AC_OK) rc = ac_reader_confirm_epoch(walker, slot.epoch, err);
        if (rc == AC_OK) rc = tell_seq(walker, seq, err);
        if (rc == AC_OK) return rc;
    }
}

/* Where to continue if the position is no longer valid, and no undone message of the group was lost with
 * it:
 *   - retention was quicker than a new group;
 *   - a power cut removed messages that the group had done from the end of the queue, and left the position. */
static int go_on_elsewhere(const opening_t *opening, const ac_error_t *lost, ac_error_t *err) {
    ac_reader_t *walker = opening->group->walker;
    if (opening->created) return ac_reader_seek_first(walker, err);
    int removed =
        lost->first_segment > lost->wanted_segment ||
        (lost->first_segment == lost->wanted_segment && lost->first_offset > lost->wanted_offset);
    if (removed || !opening->alone) return AC_E_POSITION_LOST;
    ac_log(AC_LOG_WARNING, walker->dir.path,
           "at the position of group '%s' are not the messages that it had done: it goes on at "
           "segment %llu, offset %llu",
           opening->config->name, (unsigned long long)lost->first_segment,
           (unsigned long long)lost->first_offset);
    return ac_reader_seek_position(walker, lost->first_segment, lost->first_offset, err);
}

static int go_to_position(opening_t *opening, uint64_t *seq, ac_error_t *err) {
    ac_group_t *group = opening->group;
    ac_reader_t *walker = group->walker;
    int rc = ac_group_go_to_position(group, seq, err);
    if (rc != AC_E_POSITION_LOST) return rc;
    ac_error_t lost = *err;
    rc = go_on_elsewhere(opening, &lost, err);
    if (rc != AC_OK) return rc;
    ac_position_store_shared(group->position->base, walker->segment, walker->offset, 0,
                             ac_os_now_ns());
    return tell_seq(walker, seq, err);
}

/* A new window, at `low`. */
static void begin_window(ac_group_header_t *header, const ac_group_header_t *wanted,
                         uint64_t *slots, uint64_t low, uint32_t shift) {
    memset(header, 0, AC_GROUP_SLOTS_AT);
    __atomic_signal_fence(
        __ATOMIC_SEQ_CST); /* if we are killed from here on, nothing in it counts */
    for (uint64_t seq = low; seq < low + wanted->slots; seq++) {
        ac_word_t word = {.state = AC_SLOT_FREE, .lap = (uint32_t)(seq >> shift) & 0xffffu};
        ac_store_relaxed_u64(&slots[seq & (wanted->slots - 1)], ac_word_pack(word));
    }
    ac_store_relaxed_u64(&header->low, low);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    memcpy(header, wanted, offsetof(ac_group_header_t, spare0));
}

/* The group has no other member: all claims are of members that are gone, and delays by another clock mean
 * nothing. */
static void free_all(uint64_t *slots, uint64_t count, int same_clock, uint32_t now) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = ac_load_relaxed_u64(&slots[i]);
        ac_word_t word = ac_word_unpack(bits);
        if (word.state == AC_SLOT_DONE || (word.state == AC_SLOT_FREE && word.attempt == 0))
            continue;
        if (word.state == AC_SLOT_FREE && same_clock && !ac_tick_is_past(word.tick, now)) continue;
        word.state = AC_SLOT_FREE;
        word.tick = now;
        ac_store_relaxed_u64(&slots[i], ac_word_pack(word));
    }
}

static uint32_t shift_of(uint32_t slots) {
    return (uint32_t)__builtin_ctz(slots);
}

/* The words of a window of another size, as far as they are in both. */
static void carry_over(const uint64_t *from, uint32_t from_slots, uint64_t low, uint64_t *to,
                       uint32_t to_slots) {
    uint32_t from_shift = shift_of(from_slots), to_shift = shift_of(to_slots);
    uint32_t both = from_slots < to_slots ? from_slots : to_slots;
    for (uint64_t seq = low; seq < low + both; seq++) {
        ac_word_t word = ac_word_unpack(from[seq & (from_slots - 1)]);
        if (word.lap != ((uint32_t)(seq >> from_shift) & 0xffffu)) continue;
        word.lap = (uint32_t)(seq >> to_shift) & 0xffffu;
        to[seq & (to_slots - 1)] = ac_word_pack(word);
    }
}

static int read_words(const opening_t *opening, uint64_t *words, uint32_t slots, ac_error_t *err) {
    size_t size = slots * sizeof *words;
    int got = ac_os_read_at(opening->fd, words, size, AC_GROUP_SLOTS_AT);
    if (got == (int)size) return AC_OK;
    return ac_fail_os(err, got < 0 ? got : -EIO, opening->path, "cannot read");
}

/* The file of another size: locked like the old one, and complete when it gets the name. A process that
 * waits for the old one finds that it no longer has a name. */
static int replace_file(opening_t *opening, uint8_t *content, size_t size,
                        ac_group_header_t *wanted, ac_error_t *err) {
    char temporary[AC_GROUP_FILE_NAME_MAX + 8];
    struct stat info;
    snprintf(temporary, sizeof temporary, "%s.tmp", opening->file);
    int fd = ac_file_create(opening->readers_fd, temporary, opening->readers.mode);
    if (fd < 0) return ac_fail_os(err, fd, opening->path, "cannot resize");
    int rc = ac_os_stat(fd, &info);
    if (rc == 0) {
        wanted->inode = opening->inode = info.st_ino;
        wanted->checksum = ac_crc32(wanted, offsetof(ac_group_header_t, checksum));
        memcpy(content, wanted, offsetof(ac_group_header_t, spare0));
        rc = ac_os_flock(fd);
    }
    if (rc == 0) rc = ac_os_write_at(fd, content, size, 0);
    if (rc == 0) rc = ac_os_sync(fd); /* an empty file would not be a group's: see take_name */
    if (rc == 0) rc = ac_os_rename(opening->readers_fd, temporary, opening->file);
    if (rc < 0) {
        ac_os_unlink(opening->readers_fd, temporary);
        ac_os_close(fd);
        return ac_fail_os(err, rc, opening->path, "cannot resize");
    }
    ac_os_close(opening->fd);
    opening->fd = fd;
    return AC_OK;
}

/* Gives the window another size. After a kill at any point, the old one or the new one exists. */
static int resize(opening_t *opening, ac_group_header_t *was, ac_group_header_t *wanted,
                  uint64_t low, ac_error_t *err) {
    size_t size = file_size(wanted->slots);
    uint64_t *old = ac_os_alloc(was->slots * sizeof *old);
    uint8_t *content = ac_os_alloc(size);
    int rc = old && content ? read_words(opening, old, was->slots, err)
                            : ac_fail_os(err, -ENOMEM, opening->path, "cannot resize");
    if (rc == AC_OK) {
        uint64_t *slots = (uint64_t *)(void *)(content + AC_GROUP_SLOTS_AT);
        ac_group_header_t *header = (ac_group_header_t *)(void *)content;
        begin_window(header, wanted, slots, low, shift_of(wanted->slots));
        carry_over(old, was->slots, low, slots, wanted->slots);
        rc = replace_file(opening, content, size, wanted, err);
        if (rc == AC_OK) {
            uint64_t clock = was->clock;
            *was = *header;
            was->clock = clock;
        }
    }
    free(old);
    free(content);
    return rc;
}

/* Brings the file into the state that the first member needs. *was is its previous header. */
static void prepare_alone(opening_t *opening, const ac_group_header_t *was, int believed,
                          const ac_group_header_t *wanted, uint64_t low) {
    ac_group_t *group = opening->group;
    if (!believed) begin_window(group->header, wanted, group->slots, low, group->shift);
    memset((uint8_t *)group->header + AC_GROUP_HEADER_SIZE, 0,
           AC_GROUP_SLOTS_AT - AC_GROUP_HEADER_SIZE);
    free_all(group->slots, wanted->slots, believed && was->clock == wanted->clock, ac_group_tick());
    ac_store_relaxed_u64(&group->header->storing, 0);
    ac_store_relaxed_u64(&group->header->low, low);
    memcpy(group->header, wanted, offsetof(ac_group_header_t, spare0));
}

/* A free entry of the table: its lock, and the mapping that holds it. */
static int take_entry(opening_t *opening, uint64_t size, ac_error_t *err) {
    ac_group_t *group = opening->group;
    struct stat info;
    int error = 0;
    int fd = open_file(opening, &info, err);
    if (fd < 0) return fd;
    int rc = -EAGAIN;
    for (group->owner = 0; group->owner < AC_GROUP_MEMBERS; group->owner++) {
        rc = ac_os_claim_range(fd, AC_GROUP_LOCKS + group->owner, 1);
        if (rc != -EAGAIN) break;
    }
    if (rc == 0) group->map = ac_map_new(fd, size, 1, &error);
    if (group->map) rc = ac_os_map_dontfork(group->map->base, size);
    ac_os_close(fd);
    if (rc == -EAGAIN)
        return ac_fail(err, AC_E_TOO_MANY_READERS, 0, opening->path, 0,
                       "the group has %d members; let tasks of a process share one",
                       AC_GROUP_MEMBERS);
    if (rc < 0 || error < 0)
        return ac_fail_os(err, rc < 0 ? rc : error, opening->path, "cannot map");
    group->header = (ac_group_header_t *)(void *)group->map->base;
    group->slots = (uint64_t *)(void *)(group->map->base + AC_GROUP_SLOTS_AT);
    group->entry =
        (ac_group_entry_t *)(void *)(group->map->base + AC_GROUP_HEADER_SIZE) + group->owner;
    return AC_OK;
}

/* Alone: gives the file the wanted size. *low: where the window begins. */
static int size_window(opening_t *opening, ac_group_header_t *was, uint64_t bytes, int believed,
                       ac_group_header_t *wanted, uint64_t *low, ac_error_t *err) {
    /* A mark before the position was left by members that did not move it. */
    if (believed && was->low > *low) *low = was->low;
    if (believed && was->slots != wanted->slots) return resize(opening, was, wanted, *low, err);
    /* Blocks first: a page without space on the disk would be a SIGBUS. */
    uint64_t size = file_size(wanted->slots);
    int rc = bytes < size ? ac_os_truncate(opening->fd, size) : 0;
    if (rc == 0) rc = ac_os_allocate(opening->fd, size);
    return rc < 0 ? ac_fail_os(err, rc, opening->path, "cannot allocate") : AC_OK;
}

static int enter_window(opening_t *opening, uint64_t first, ac_error_t *err) {
    ac_group_t *group = opening->group;
    ac_group_header_t was = {0}, wanted = wanted_header(opening);
    int got = ac_os_read_at(opening->fd, &was, sizeof was, 0);
    if (got < 0) return ac_fail_os(err, got, opening->path, "cannot read");
    struct stat info;
    int rc = ac_os_stat(opening->fd, &info);
    if (rc < 0) return ac_fail_os(err, rc, opening->path, "cannot examine");
    int sound = got == (int)sizeof was && ac_group_is_sound(&was, (uint64_t)info.st_size);
    uint64_t low = first, end = ac_load_relaxed_u64(&group->walker->control->next_seq);
    int believed = sound && is_current(&was, &wanted) && !opening->created &&
                   was.low <= (end > first ? end : first);
    if (opening->alone)
        rc = size_window(opening, &was, (uint64_t)info.st_size, believed, &wanted, &low, err);
    else if (!sound)
        rc = ac_fail(err, AC_E_CORRUPT, 0, opening->path, 0,
                     "the state of the group is damaged, and members use it; close them");
    else
        rc = check_settings(opening, &was, &wanted, err);
    if (rc != AC_OK) return rc;
    group->mask = wanted.slots - 1;
    group->shift = shift_of(wanted.slots);
    group->limit = wanted.limit;
    group->lease_ms = wanted.lease_ms;
    group->max_deliver = wanted.max_deliver;
    group->by_key = (int)wanted.by_key;
    rc = take_entry(opening, file_size(wanted.slots), err);
    if (rc != AC_OK) return rc;
    if (opening->alone)
        prepare_alone(opening, &was, believed, &wanted, low);
    else
        ac_group_free_claims(group->slots, wanted.slots, group->owner, ac_group_tick());
    return AC_OK;
}

static uint64_t beat(ac_task_t *task, uint64_t now_ns);
static void on_fork(ac_task_t *task);

static int open_steps(opening_t *opening, ac_error_t *err) {
    ac_group_t *group = opening->group;
    ac_reader_t *walker = group->walker;
    uint64_t first = 0;
    int dir_fd = ac_directory_open(&walker->dir, err);
    if (dir_fd < 0) return dir_fd;
    opening->readers_fd = ac_directory_readers(&walker->dir, dir_fd, 1, &opening->readers, err);
    int rc = opening->readers_fd < 0 ? opening->readers_fd : AC_OK;
    snprintf(opening->path, sizeof opening->path, "%s/%s", opening->readers.path, opening->file);
    if (rc == AC_OK) rc = lock_file(opening, err);
    if (rc == AC_OK) rc = take_name(opening, err);
    if (rc == AC_OK) rc = make_position(opening, dir_fd, err);
    if (rc == AC_OK) rc = share_position(opening, err);
    ac_os_close(dir_fd);
    if (rc == AC_OK) rc = go_to_position(opening, &first, err);
    if (rc == AC_OK) rc = enter_window(opening, first, err);
    if (rc != AC_OK) return rc;
    struct stat info;
    group->members_fd = open_file(opening, &info, err);
    if (group->members_fd < 0) return group->members_fd;
    group->passed = ac_os_alloc((group->mask + 1) * sizeof *group->passed);
    if (!group->passed) return ac_fail_os(err, -ENOMEM, opening->path, "cannot open");
    group->next = group->stored_seq = group->low = first;
    ac_group_advance(group);
    memset(group->entry, 0, sizeof *group->entry);
    group->entry->pid = (uint32_t)getpid();
    group->entry->since_ns = ac_os_now_ns();
    group->task.forked = on_fork;
    group->task.run = beat;
    group->task.lane = AC_LANE_MEMORY;
    rc = ac_housekeeper_add(&group->task);
    if (rc < 0) return ac_fail_os(err, rc, opening->path, "cannot start the housekeeping thread");
    ac_housekeeper_nudge(&group->task);
    return AC_OK;
}

static int check_config(const ac_reader_t *walker, const ac_group_config_t *config,
                        ac_error_t *err) {
    int rc = ac_reader_name_check(config->name, walker->dir.path, err);
    if (rc != AC_OK) return rc;
    if (walker->pending)
        return ac_fail(err, AC_E_NOT_FOUND, ENOENT, walker->dir.path, 0, "there is no queue yet");
    if (walker->java || ac_load_relaxed_u64(&walker->control->queue_id) == 0)
        return ac_fail(err, AC_E_UNSUPPORTED, 0, walker->dir.path, 0,
                       "a group needs the seqs of a queue that aiochronicle wrote; this one is "
                       "another program's");
    if (config->limit < 1 || config->limit > AC_GROUP_LIMIT_MAX || config->lease_ms < 1 ||
        config->lease_ms > AC_GROUP_DELAY_MAX_MS || config->max_deliver >= AC_ATTEMPT_MAX ||
        config->by_key < 0 || config->by_key > 2)
        return ac_fail(err, AC_E_ARGUMENT, 0, walker->dir.path, 0,
                       "settings of a group: 1 to %u messages in flight, a lease of 1 ms to a day, "
                       "at most %u deliveries",
                       AC_GROUP_LIMIT_MAX, AC_ATTEMPT_MAX - 1);
    return AC_OK;
}

static void release(ac_group_t *group) {
    ac_map_release(group->map);
    ac_map_release(group->position);
    group->map = group->position = NULL;
    ac_os_close(group->members_fd);
    group->members_fd = -1;
    free(group->passed);
    group->passed = NULL;
}

int ac_group_open(ac_reader_t *walker, ac_reader_t *again, const ac_group_config_t *config,
                  ac_group_t **out, ac_error_t *err) {
    int rc = check_config(walker, config, err);
    if (rc != AC_OK) return rc;
    ac_group_t *group = ac_os_alloc(sizeof *group);
    if (!group) return ac_fail_os(err, -ENOMEM, walker->dir.path, "cannot open");
    group->walker = walker;
    group->again = again;
    group->check = walker->check;
    group->members_fd = -1;
    pthread_mutex_init(&group->mutex, NULL);
    snprintf(group->name, sizeof group->name, "%s", config->name);
    walker->group_tag = ac_crc32(config->name, strlen(config->name)) | 1u;
    opening_t opening = {.group = group, .config = config, .readers_fd = -1, .fd = -1};
    snprintf(opening.file, sizeof opening.file, "%s.group", config->name);
    snprintf(opening.meta, sizeof opening.meta, "%s.meta", config->name);
    rc = open_steps(&opening, err);
    if (rc != AC_OK && opening.founded) ac_os_unlink(opening.readers_fd, opening.file);
    ac_os_close(opening.fd);
    ac_os_close(opening.readers_fd);
    if (rc != AC_OK) {
        release(group);
        pthread_mutex_destroy(&group->mutex);
        free(group);
        return rc;
    }
    *out = group;
    return AC_OK;
}

/* ---- the position ---- */

static int begin_storing(ac_group_t *group, uint64_t *mine, uint32_t now) {
    uint64_t held = ac_load_seq_cst_u64(&group->header->storing);
    *mine = (uint64_t)now << 16 | (group->owner + 1);
    if (held != 0) {
        uint32_t since = (uint32_t)(held >> 16) & AC_TICK_MASK;
        if (((now - since) & AC_TICK_MASK) < STORING_TICKS) return 0;
    }
    return __atomic_compare_exchange_n(&group->header->storing, &held, *mine, 0, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

static int store_position(ac_group_t *group, uint64_t segment, uint64_t offset, uint32_t epoch,
                          uint32_t now) {
    uint64_t mine;
    pthread_mutex_lock(&group->mutex);
    int stored = begin_storing(group, &mine, now);
    if (stored) {
        ac_position_store_shared(group->position->base, segment, offset, epoch, ac_os_now_ns());
        __atomic_compare_exchange_n(&group->header->storing, &mine, 0, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&group->mutex);
    return stored;
}

/* Another member may be farther, and then stores that; or this one does when it gets there. */
void ac_group_store(ac_group_t *group, uint32_t now) {
    uint64_t seq = group->low < group->next ? group->low : group->next;
    group->stored_tick = now;
    if (seq <= group->stored_seq) return;
    const ac_passed_t *passed = &group->passed[(seq - 1) & group->mask];
    if (passed->seq != seq - 1) return;
    if (store_position(group, passed->segment, passed->end, passed->epoch, now))
        group->stored_seq = seq;
}

/* A sign of life, so that reader_ttl does not take an idle group for gone. */
static uint64_t beat(ac_task_t *task, uint64_t now_ns) {
    ac_group_t *group = (ac_group_t *)(void *)((char *)task - offsetof(ac_group_t, task));
    uint64_t interval_ns = ac_reader_heartbeat_ns(group->walker->control);
    store_position(group, 0, 0, 0, ac_group_tick());
    return (now_ns / interval_ns + 1) * interval_ns;
}

/* ---- members ---- */

int ac_group_is_member_alive(const ac_group_t *group, uint32_t owner) {
    /* What cannot be asked may well live: the lease decides. */
    return ac_os_range_claimed(group->members_fd, AC_GROUP_LOCKS + owner, 1) != 0;
}

int ac_group_check_open(const ac_group_t *group, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&group->state);
    if (AC_UNLIKELY(state != AC_STATE_OPEN))
        return state == AC_STATE_FORKED
                   ? ac_fail(err, AC_E_FORKED, 0, NULL, 0,
                             "the group was opened before fork; open it in the child")
                   : ac_fail(err, AC_E_CLOSED, 0, NULL, 0, "the group is closed");
    if (AC_UNLIKELY(ac_map_is_cut(group->map) || ac_map_is_cut(group->position)))
        return ac_fail(err, AC_E_GONE, 0, group->walker->dir.path, 0,
                       "a file of group '%s' was cut", group->name);
    return AC_OK;
}

static int has_members(const ac_group_t *group, uint32_t from, uint32_t until) {
    return until > from &&
           ac_os_range_claimed(group->members_fd, AC_GROUP_LOCKS + from, until - from) != 0;
}

static int is_alone(const ac_group_t *group) {
    return !has_members(group, 0, group->owner) &&
           !has_members(group, group->owner + 1, AC_GROUP_MEMBERS);
}

int ac_group_park(ac_group_t *group, uint64_t *poll_max_ns, ac_error_t *err) {
    int rc = ac_group_check_open(group, err);
    if (rc == AC_OK) rc = ac_reader_eventfd(group->walker, err);
    if (rc < 0) return rc;
    ac_group_store(group, ac_group_tick());
    rc = ac_group_ready(group, 1, err);
    if (rc != 0) return rc < 0 ? rc : AC_READY;
    *poll_max_ns = group->full || group->others || group->delayed ? LOOK_NS
                   : is_alone(group)                              ? LOOK_ALONE_NS
                                                                  : LOOK_BESIDE_NS;
    if (group->full) return AC_POLL;
    group->parked = 1;
    rc = ac_reader_park(group->walker, err);
    if (rc == AC_POLL) *poll_max_ns = ac_reader_poll_max_ns(group->walker);
    return rc == AC_PARKED ? AC_POLL : rc;
}

static void on_fork(ac_task_t *task) {
    ac_group_t *group = (ac_group_t *)(void *)((char *)task - offsetof(ac_group_t, task));
    ac_store_relaxed_u32(&group->state, AC_STATE_FORKED);
    group->map = group->position = NULL;
}

void ac_group_close(ac_group_t *group) {
    ac_error_t ignored;
    ac_message_t message;
    ac_turns_leave(group);
    if (ac_load_relaxed_u32(&group->state) != AC_STATE_OPEN) return;
    ac_housekeeper_remove(&group->task);
    ac_group_free_claims(group->slots, group->mask + 1, group->owner, ac_group_tick());
    ac_group_advance(group);
    /* So that the position equals the mark if this is the last member: it reads the headers up to there. */
    group->walker->check = AC_CHECK_HEADER;
    while (!group->by_key && group->next < group->low &&
           ac_group_pass(group, &message, &ignored) == 1)
        ;
    group->walker->check = group->check;
    ac_group_store(group, ac_group_tick());
    ac_store_relaxed_u32(&group->state, AC_STATE_CLOSED);
    release(group);
}

void ac_group_free(ac_group_t *group) {
    if (!group) return;
    if (ac_load_relaxed_u32(&group->state) == AC_STATE_FORKED)
        release(group);
    else
        ac_group_close(group);
    pthread_mutex_destroy(&group->mutex);
    free(group);
}
