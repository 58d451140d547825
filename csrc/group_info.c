/* A group, as seen from outside. */
#include "error.h"
#include "group.h"
#include "os.h"
#include "position_seq.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct look {
    ac_directory_t dir, readers;
    int dir_fd, readers_fd, fd;
    ac_map_t *control_map;
    ac_group_header_t header;
    ac_slot_t position;
    uint64_t first; /* the seq at the position */
    uint64_t *slots;
} look_t;

static int fail_unknown(const look_t *look, const char *name, ac_error_t *err) {
    return ac_fail(err, AC_E_READER_NOT_FOUND, ENOENT, look->dir.path, 0, "has no group '%s'",
                   name);
}

static int read_position(look_t *look, const char *name, ac_error_t *err) {
    char file[AC_GROUP_FILE_NAME_MAX];
    uint8_t bytes[AC_POSITION_SIZE];
    struct stat info;
    snprintf(file, sizeof file, "%s.meta", name);
    int fd = ac_file_open(&look->readers, look->readers_fd, file, O_RDONLY, &info, err);
    if (fd < 0) return fd == AC_E_NOT_FOUND ? fail_unknown(look, name, err) : fd;
    int found = -1;
    for (int tries = 0; tries < 100 && found < 0; tries++) {
        int got = ac_os_read_at(fd, bytes, sizeof bytes, 0);
        if (got != AC_POSITION_SIZE) break;
        found = ac_position_decode(bytes, &look->position);
    }
    ac_os_close(fd);
    if (found >= 0) return AC_OK;
    return ac_fail(err, AC_E_POSITION_CORRUPT, 0, look->readers.path, 0,
                   "the position of group '%s' is damaged", name);
}

static int open_state(look_t *look, const char *name, ac_group_info_t *out, ac_error_t *err) {
    char file[AC_GROUP_FILE_NAME_MAX];
    struct stat info;
    snprintf(file, sizeof file, "%s.group", name);
    look->fd = ac_file_open(&look->readers, look->readers_fd, file, O_RDONLY, &info, err);
    if (look->fd < 0) return look->fd == AC_E_NOT_FOUND ? fail_unknown(look, name, err) : look->fd;
    int got = ac_os_read_at(look->fd, &look->header, sizeof look->header, 0);
    if (got < 0) return ac_fail_os_in(err, got, look->readers.path, file, "cannot read");
    const ac_control_t *control = ac_control_of(look->control_map);
    if (got != (int)sizeof look->header ||
        !ac_group_is_sound(&look->header, (uint64_t)info.st_size))
        return AC_OK; /* being created, or of another machine: the next member starts over */
    out->current = look->header.boot == ac_os_boot_id() &&
                   look->header.inode == (uint64_t)info.st_ino &&
                   look->header.queue_id == ac_load_relaxed_u64(&control->queue_id);
    out->limit = look->header.limit;
    out->lease_ms = look->header.lease_ms;
    out->max_deliver = look->header.max_deliver;
    out->by_key = (int)look->header.by_key;
    return AC_OK;
}

static int read_slots(look_t *look, ac_error_t *err) {
    size_t size = (size_t)look->header.slots * sizeof *look->slots;
    look->slots = ac_os_alloc(size);
    if (!look->slots) return ac_fail_os(err, -ENOMEM, look->dir.path, "cannot look at a group of");
    int got = ac_os_read_at(look->fd, look->slots, size, AC_GROUP_SLOTS_AT);
    if (got == (int)size) return AC_OK;
    return ac_fail_os(err, got < 0 ? got : -EIO, look->readers.path, "cannot read a group in");
}

/* Counts what the words say; they are a snapshot, in which one may be newer than another. */
static void count_slots(const look_t *look, ac_group_info_t *out, uint64_t in_flight[]) {
    uint32_t slots = look->header.slots, shift = (uint32_t)__builtin_ctz(slots);
    uint32_t now = ac_group_tick();
    uint64_t done = 0;
    for (uint64_t seq = out->low; seq < out->low + slots && seq < out->next_seq; seq++) {
        ac_word_t word = ac_word_unpack(look->slots[seq & (slots - 1)]);
        if (word.lap != ((uint32_t)(seq >> shift) & 0xffffu)) continue;
        done += word.state == AC_SLOT_DONE;
        if (word.state == AC_SLOT_CLAIMED) in_flight[word.owner]++;
        out->in_flight += word.state == AC_SLOT_CLAIMED;
        out->delayed +=
            word.state == AC_SLOT_FREE && word.attempt > 0 && !ac_tick_is_past(word.tick, now);
        out->retried += word.state != AC_SLOT_DONE && word.attempt > 1;
    }
    out->pending = out->next_seq > out->low ? out->next_seq - out->low - done : 0;
}

static void fill_members(const look_t *look, ac_group_info_t *out, const uint64_t in_flight[]) {
    ac_group_entry_t entry;
    for (uint32_t i = 0; i < AC_GROUP_MEMBERS; i++) {
        int alive = ac_os_range_claimed(look->fd, AC_GROUP_LOCKS + i, 1) == 1;
        if (!alive && in_flight[i] == 0) continue;
        if (ac_os_read_at(look->fd, &entry, sizeof entry,
                          AC_GROUP_HEADER_SIZE + i * sizeof entry) != (int)sizeof entry)
            continue;
        out->member[out->members++] = (ac_group_member_t){.alive = alive,
                                                          .pid = (int)(entry.pid & INT32_MAX),
                                                          .since_ns = entry.since_ns,
                                                          .in_flight = in_flight[i],
                                                          .claimed = entry.claimed,
                                                          .acked = entry.acked,
                                                          .nacked = entry.nacked,
                                                          .redelivered = entry.redelivered,
                                                          .refused = entry.refused,
                                                          .woken = entry.woken};
    }
}

static int fill(look_t *look, ac_group_info_t *out, ac_error_t *err) {
    uint64_t in_flight[AC_GROUP_MEMBERS] = {0};
    const ac_control_t *control = ac_control_of(look->control_map);
    uint64_t ignored, size = ac_load_relaxed_u64(&control->segment_size);
    out->next_seq = out->low = 0;
    if (ac_segment_size_valid(size)) {
        ac_end_at(&look->dir, look->dir_fd, control, size, &out->next_seq, &ignored);
        ac_seq_at(&look->dir, look->dir_fd, control, size, look->position.segment,
                  look->position.offset, &out->low);
    }
    out->pending = out->next_seq > out->low ? out->next_seq - out->low : 0;
    if (!out->current) return AC_OK;
    int rc = read_slots(look, err);
    if (rc != AC_OK) return rc;
    if (look->header.low > out->low && look->header.low <= out->next_seq)
        out->low = look->header.low;
    count_slots(look, out, in_flight);
    fill_members(look, out, in_flight);
    return AC_OK;
}

/* When the oldest message that is not done was written. */
static void find_oldest(const char *path, ac_group_info_t *out) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_message_t message;
    ac_error_t ignored;
    ac_reader_defaults(&config);
    config.start = AC_START_SEQ;
    config.start_value = out->low;
    config.verify = 0;
    if (out->pending == 0 || ac_reader_open(path, &config, &reader, &ignored) != AC_OK) return;
    if (ac_reader_next(reader, &message, &ignored) == 1) out->oldest_ns = message.timestamp_ns;
    ac_reader_free(reader);
}

static int open_look(look_t *look, const char *path, const char *name, ac_group_info_t *out,
                     ac_error_t *err) {
    int rc = ac_reader_name_check(name, path, err);
    if (rc == AC_OK) rc = ac_directory_init(&look->dir, path, 0600, 0, err);
    if (rc != AC_OK) return rc;
    look->dir_fd = ac_directory_open(&look->dir, err);
    if (look->dir_fd < 0) return look->dir_fd;
    rc =
        ac_control_open(&look->dir, look->dir_fd, AC_CONTROL_READ_ONLY, 0, &look->control_map, err);
    if (rc == AC_OK) {
        look->readers_fd = ac_directory_readers(&look->dir, look->dir_fd, 0, &look->readers, err);
        rc = look->readers_fd == AC_E_NOT_FOUND ? fail_unknown(look, name, err)
             : look->readers_fd < 0             ? look->readers_fd
                                                : AC_OK;
    }
    return rc == AC_OK ? open_state(look, name, out, err) : rc;
}

static void close_look(look_t *look) {
    free(look->slots);
    ac_map_release(look->control_map);
    ac_os_close(look->fd);
    ac_os_close(look->readers_fd);
    ac_os_close(look->dir_fd);
}

int ac_group_inspect(const char *path, const char *name, ac_group_info_t *out, ac_error_t *err) {
    look_t look = {.dir_fd = -1, .readers_fd = -1, .fd = -1};
    memset(out, 0, sizeof *out);
    int rc = open_look(&look, path, name, out, err);
    if (rc == AC_OK) rc = read_position(&look, name, err);
    if (rc == AC_OK) rc = fill(&look, out, err);
    if (rc == AC_OK) find_oldest(path, out);
    close_look(&look);
    return rc;
}

int ac_group_read_done(const char *path, const char *name, ac_group_done_t *out, ac_error_t *err) {
    look_t look = {.dir_fd = -1, .readers_fd = -1, .fd = -1};
    ac_group_info_t info = {0};
    int rc = open_look(&look, path, name, &info, err);
    if (rc == AC_OK && info.current) rc = read_slots(&look, err);
    if (rc == AC_OK) {
        *out = (ac_group_done_t){.slots = look.slots,
                                 .count = look.header.slots,
                                 .low = look.header.low,
                                 .queue_id = look.header.queue_id};
        look.slots = NULL;
    }
    close_look(&look);
    return rc;
}

int ac_group_was_done(const ac_group_done_t *read, uint64_t seq) {
    if (!read->slots) return 0;
    ac_word_t word = ac_word_unpack(read->slots[seq & (read->count - 1)]);
    int16_t ahead = (int16_t)(uint16_t)(word.lap - (uint32_t)(seq >> __builtin_ctz(read->count)));
    return seq < read->low || ahead > 0 || (ahead == 0 && word.state == AC_SLOT_DONE);
}

static int is_done(const look_t *look, const ac_group_info_t *info, uint64_t seq) {
    uint32_t slots = look->header.slots;
    if (!look->slots || seq - info->low >= slots) return 0;
    ac_word_t word = ac_word_unpack(look->slots[seq & (slots - 1)]);
    return word.state == AC_SLOT_DONE &&
           word.lap == ((uint32_t)(seq >> __builtin_ctz(slots)) & 0xffffu);
}

int64_t ac_group_undone(const char *path, const char *name, uint64_t *out, size_t room,
                        ac_error_t *err) {
    look_t look = {.dir_fd = -1, .readers_fd = -1, .fd = -1};
    ac_group_info_t info = {0};
    size_t count = 0;
    int rc = open_look(&look, path, name, &info, err);
    if (rc == AC_OK) rc = read_position(&look, name, err);
    if (rc == AC_OK) rc = fill(&look, &info, err);
    for (uint64_t seq = info.low; rc == AC_OK && seq < info.next_seq && count < room; seq++)
        if (!is_done(&look, &info, seq)) out[count++] = seq;
    close_look(&look);
    return rc == AC_OK ? (int64_t)count : rc;
}
