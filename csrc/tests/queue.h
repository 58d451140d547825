/* Helpers for whole queues: payloads that follow from the seq, short ways to write and read, and a copy of
 * the directory as a killed writer or a power cut would leave it. */
#ifndef AC_TESTS_QUEUE_H
#define AC_TESTS_QUEUE_H

#include "aiochronicle.h"
#include "check.h"

#include "control.h"
#include "directory.h"
#include "os.h"
#include "record.h"
#include "segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>

enum { PAYLOAD_MAX = 512 };

__attribute__((unused)) static size_t payload_of(uint64_t seq, uint8_t *out) {
    size_t length = (size_t)(seq * 37 % 300);
    for (size_t i = 0; i < length; i++)
        out[i] = (uint8_t)(seq * 31 + i * 7 + 1);
    return length;
}

__attribute__((unused)) static void check_payload(const ac_message_t *message) {
    uint8_t expected[PAYLOAD_MAX];
    size_t length = payload_of(message->seq, expected);
    CHECK_EQUAL(message->length, length);
    CHECK(memcmp(message->record + AC_HEADER_SIZE, expected, length) == 0);
}

/* Small segments, and no background thread, whose progress would differ from run to run. */
__attribute__((unused)) static ac_writer_config_t small_queue(uint64_t segment_size) {
    ac_writer_config_t config;
    ac_writer_defaults(&config);
    config.segment_size = segment_size;
    config.inline_housekeeping = 1;
    return config;
}

__attribute__((unused)) static ac_writer_t *open_writer(const char *path,
                                                        const ac_writer_config_t *config) {
    ac_writer_t *writer = NULL;
    ac_error_t err;
    CHECK_OK(ac_writer_open(path, config, &writer, &err), err);
    return writer;
}

__attribute__((unused)) static void close_writer(ac_writer_t *writer) {
    ac_error_t err;
    CHECK_OK(ac_writer_close(writer, &err), err);
    ac_writer_free(writer);
}

__attribute__((unused)) static void append_numbered(ac_writer_t *writer, int count) {
    uint8_t payload[PAYLOAD_MAX];
    ac_writer_stats_t stats;
    ac_error_t err;
    for (int i = 0; i < count; i++) {
        ac_writer_stats(writer, &stats);
        size_t length = payload_of(stats.next_seq, payload);
        int64_t seq = ac_writer_append(writer, payload, length, 7, AC_NOW, &err);
        CHECK_OK(seq, err);
        CHECK_EQUAL(seq, stats.next_seq);
    }
}

__attribute__((unused)) static ac_reader_t *open_reader(const char *path, const char *name,
                                                        int start) {
    ac_reader_config_t config;
    ac_reader_t *reader = NULL;
    ac_error_t err;
    ac_reader_defaults(&config);
    config.name = name;
    config.start = start;
    CHECK_OK(ac_reader_open(path, &config, &reader, &err), err);
    return reader;
}

/* Reads to the end; the first message must have `next_seq`. Returns the seq after the last one. */
__attribute__((unused)) static uint64_t read_numbered(ac_reader_t *reader, uint64_t next_seq) {
    ac_message_t message;
    ac_error_t err;
    int rc;
    while ((rc = ac_reader_next(reader, &message, &err)) == 1) {
        CHECK_EQUAL(message.seq, next_seq);
        check_payload(&message);
        next_seq++;
    }
    CHECK_OK(rc, err);
    return next_seq;
}

/* Reads all of a queue, from its first message; returns the number of messages. */
__attribute__((unused)) static uint64_t count_numbered(const char *path) {
    ac_reader_t *reader = open_reader(path, NULL, AC_START_FIRST);
    ac_message_t message;
    ac_error_t err;
    uint64_t count = 0;
    int rc = ac_reader_next(reader, &message, &err);
    CHECK_OK(rc, err);
    if (rc == 1) {
        check_payload(&message);
        count = read_numbered(reader, message.seq + 1) - message.seq;
    }
    ac_reader_free(reader);
    return count;
}

__attribute__((unused)) static void copy_file(const char *from, const char *to) {
    struct stat info;
    int in = open(from, O_RDONLY), out = open(to, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(in >= 0 && out >= 0 && fstat(in, &info) == 0);
    CHECK_EQUAL(ac_os_copy(in, out, 0, (uint64_t)info.st_size), 0);
    close(in);
    close(out);
}

/* Copies the present files of a queue to another directory, which the engine recognises as a copy. */
__attribute__((unused)) static void copy_queue_as_copy(const char *from, const char *to) {
    CHECK_EQUAL(mkdir(to, 0700), 0);
    DIR *stream = opendir(from);
    CHECK(stream != NULL);
    struct dirent *entry;
    while ((entry = readdir(stream))) {
        char source[1400], target[1400];
        struct stat info;
        if (entry->d_name[0] == '.') continue;
        snprintf(source, sizeof source, "%s/%s", from, entry->d_name);
        snprintf(target, sizeof target, "%s/%s", to, entry->d_name);
        CHECK_EQUAL(lstat(source, &info), 0);
        if (S_ISDIR(info.st_mode))
            copy_queue_as_copy(source, target);
        else
            copy_file(source, target);
    }
    closedir(stream);
}

/* Clears the directory that the control block names as its home, so that the queue counts as the
 * original. */
__attribute__((unused)) static void forget_home(const char *queue) {
    uint64_t nowhere = 0;
    char path[1400];
    snprintf(path, sizeof path, "%s/control.meta", queue);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    CHECK_EQUAL(ac_os_write_at(fd, &nowhere, sizeof nowhere, offsetof(ac_control_t, home)), 0);
    close(fd);
}

/* Copies the files as the original: what a writer killed now would leave. */
__attribute__((unused)) static void copy_queue(const char *from, const char *to) {
    copy_queue_as_copy(from, to);
    forget_home(to);
}

__attribute__((unused)) static void poke(const char *queue, const char *name, uint64_t offset,
                                         const void *bytes, size_t length) {
    char path[1400];
    snprintf(path, sizeof path, "%s/%s", queue, name);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    CHECK_EQUAL(ac_os_write_at(fd, bytes, length, offset), 0);
    close(fd);
}

__attribute__((unused)) static void peek(const char *queue, const char *name, uint64_t offset,
                                         void *bytes, size_t length) {
    char path[1400];
    snprintf(path, sizeof path, "%s/%s", queue, name);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK_EQUAL(ac_os_read_at(fd, bytes, length, offset), length);
    close(fd);
}

__attribute__((unused)) static int exists(const char *queue, const char *name) {
    char path[1400];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", queue, name);
    return lstat(path, &info) == 0;
}

__attribute__((unused)) static void remove_in(const char *queue, const char *name) {
    char path[1400];
    snprintf(path, sizeof path, "%s/%s", queue, name);
    CHECK_EQUAL(unlink(path), 0);
}

/* Undoes the writer's close. */
__attribute__((unused)) static void forget_close(void) {
    uint64_t no_epoch = 0;
    poke(check_path("queue"), "control.meta", offsetof(ac_control_t, clean), &no_epoch, 8);
}

/* A hook that fails the calls of one kind, on one file name or on all. */
typedef struct failing {
    int call;
    const char *name_end; /* NULL = whatever the name */
    int error;
    int skip; /* let this many pass first */
    int failed;
} failing_t;

__attribute__((unused)) static int fail_hook(void *context, int call, const char *path, int fd,
                                             uint64_t offset, uint64_t length) {
    failing_t *failing = context;
    (void)fd;
    (void)offset;
    (void)length;
    if (call != failing->call) return 0;
    if (failing->name_end) {
        size_t have = path ? strlen(path) : 0, want = strlen(failing->name_end);
        if (have < want || strcmp(path + have - want, failing->name_end) != 0) return 0;
    }
    if (failing->skip > 0) {
        failing->skip--;
        return 0;
    }
    failing->failed++;
    return failing->error;
}

#endif
