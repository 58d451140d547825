/* Calls of a group's member that step_kill.c kills at every instruction, and checks of what is left.
 *
 * After a kill, acknowledged messages are not delivered again, and every other message is delivered once. After a
 * power cut, which leaves the words of another boot, every message that was not acknowledged is delivered. The call
 * under way may count or not. */
#ifndef AC_TEST_STEP_GROUP_H
#define AC_TEST_STEP_GROUP_H

#include "group.h"

enum { GROUP_MESSAGES = 12, GROUP_LIMIT = 20, GROUP_LEASE_MS = 60000 };

typedef struct member {
    ac_reader_t *walker, *again;
    ac_group_t *group;
    uint64_t words[GROUP_MESSAGES];
} member_t;

static member_t member;

static int member_open(member_t *self, const char *path, uint32_t limit, uint32_t lease_ms,
                       ac_error_t *err) {
    ac_group_config_t config = {.name = "work", .lease_ms = lease_ms, .limit = limit};
    ac_reader_config_t reader_config;
    ac_reader_defaults(&reader_config);
    reader_config.start = AC_START_FIRST;
    memset(self, 0, sizeof *self);
    int rc = ac_reader_open(path, &reader_config, &self->walker, err);
    if (rc == AC_OK) rc = ac_reader_open(path, &reader_config, &self->again, err);
    if (rc == AC_OK) rc = ac_group_open(self->walker, self->again, &config, &self->group, err);
    return rc;
}

static void member_close(member_t *self) {
    ac_group_free(self->group);
    ac_reader_free(self->walker);
    ac_reader_free(self->again);
}

/* ---- in the child ---- */

static void group_join(void) {
    ac_error_t err;
    must(member_open(&member, live, GROUP_LIMIT, GROUP_LEASE_MS, &err), &err);
}

static void group_take(uint64_t count) {
    ac_message_t message;
    ac_reader_t *from;
    ac_error_t err = {0};
    uint64_t word;
    for (; count > 0; count--) {
        must(ac_group_next(member.group, 0, &message, &word, &from, &err) - 1, &err);
        member.words[message.seq] = word;
    }
}

static void group_ack(uint64_t seq) {
    ac_error_t err = {.detail = "an ack was refused"};
    ac_store_release_u64(&ledger->acking, ledger->acking | 1ull << seq);
    must(ac_group_ack(member.group, seq, member.words[seq]) - 1, &err);
    ac_store_release_u64(&ledger->acked, ledger->acked | 1ull << seq);
}

static void group_queue(void) {
    open_writer();
    append(GROUP_MESSAGES);
    act_close();
}

static void group_some(void) {
    group_queue();
    group_join();
    group_take(6);
    group_ack(3);
}

static void group_dies(void) {
    group_some();
    group_ack(0);
}

static void group_left(void) {
    in_dying_process(group_dies);
}

static void group_dies_beside(void) {
    group_join();
    group_take(2); /* 0 and 1: the other member came first and had none */
}

static void group_beside(void) {
    group_queue();
    group_join();
    in_dying_process(group_dies_beside);
}

static void act_group_join(void) {
    group_join();
}

static void act_group_resize(void) {
    ac_error_t err;
    must(member_open(&member, live, 4 * GROUP_LIMIT, GROUP_LEASE_MS, &err), &err);
}

static void act_group_take(void) {
    group_take(2);
}

/* Out of order, so that the mark moves over several messages at once and the position is stored. */
static void act_group_ack(void) {
    group_ack(1);
    group_ack(2);
    group_ack(0);
    ac_group_store(member.group, ac_group_tick() + 1);
    group_ack(4);
}

static void act_group_nack(void) {
    ac_error_t err = {.detail = "a nack was refused"};
    must(ac_group_nack(member.group, 1, member.words[1], 0) - 1, &err);
    must(ac_group_nack(member.group, 2, member.words[2], 50000) - 1, &err);
    ac_group_undo(member.group, 4, member.words[4]);
    group_take(1);
    group_ack(1);
}

static void act_group_extend(void) {
    ac_error_t err = {.detail = "an extension was refused"};
    must(ac_group_extend(member.group, 0, &member.words[0], 5000) - 1, &err);
    group_ack(0);
}

/* The messages of the other member, which is gone. */
static void act_group_take_back(void) {
    member.group->checked_tick = 0;
    group_take(3);
    group_ack(0);
    group_ack(1);
}

static void act_group_leave(void) {
    group_ack(0);
    ac_group_close(member.group);
}

/* ---- in the parent ---- */

/* The state of a group belongs to one file in one boot; this makes a copy valid. */
static void move_group(int fd, int reboots) {
    ac_group_header_t header;
    struct stat info;
    if (fstat(fd, &info) < 0 || pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header)
        return;
    if (!ac_group_is_sound(&header, (uint64_t)info.st_size)) return;
    header.inode = info.st_ino;
    header.boot += (uint64_t)reboots;
    header.checksum = ac_checksum(&header, offsetof(ac_group_header_t, checksum));
    if (pwrite(fd, &header, sizeof header, 0) < 0) die("move_group");
}

static void reboot_group(const char *at) {
    char path[1200];
    snprintf(path, sizeof path, "%s/readers/work.group", at);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    move_group(fd, 1);
    close(fd);
}

/* All messages that a new member gets, one bit per message; *again = a message came twice or was wrong. */
static uint64_t take_all(member_t *self, int *again, ac_error_t *err) {
    ac_message_t message;
    ac_reader_t *from;
    uint64_t word, all = 0;
    uint8_t expected[PAYLOAD_MAX];
    while (ac_group_next(self->group, 0, &message, &word, &from, err) == 1) {
        uint32_t length = payload_fill(salt, message.seq, expected);
        *again |= message.seq >= GROUP_MESSAGES || (all >> message.seq & 1) ||
                  message.length != length || memcmp(message.record + 64, expected, length) != 0;
        all |= 1ull << message.seq;
        if (!ac_group_ack(self->group, message.seq, word)) *again = 1;
    }
    return all;
}

#endif
