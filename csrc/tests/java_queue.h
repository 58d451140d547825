/* Shared by the tests of the writer of Java queues: a clock that tests set, short ways to write, and a check of a
 * whole queue. A payload is text: the name of its writer and its number. */
#ifndef AC_TESTS_JAVA_QUEUE_H
#define AC_TESTS_JAVA_QUEUE_H

#include "../cq4_writer.h"
#include "check.h"
#include "cq4_tail.h"
#include "forks.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define START_MS 1700000000000

static ac_error_t err;
static int64_t set_ms = START_MS;
__attribute__((unused)) static const char *queue_name = "queue";

__attribute__((unused)) static uint64_t set_clock(void *context) {
    (void)context;
    return (uint64_t)__atomic_load_n(&set_ms, __ATOMIC_RELAXED) * 1000000;
}

__attribute__((unused)) static ac_cq4_writer_config_t config_of(const char *roll_cycle) {
    ac_cq4_writer_config_t config;
    ac_cq4_writer_defaults(&config);
    config.roll_cycle = roll_cycle;
    config.clock_ns = set_clock;
    config.lock_timeout_ns = 200000000;
    return config;
}

__attribute__((unused)) static ac_cq4_writer_t *open_java(const char *roll_cycle) {
    ac_cq4_writer_t *writer;
    ac_cq4_writer_config_t config = config_of(roll_cycle);
    CHECK_OK(ac_cq4_writer_open(check_path(queue_name), &config, &writer, &err), err);
    return writer;
}

__attribute__((unused)) static int64_t try_put(ac_cq4_writer_t *writer, int who, uint64_t number) {
    char text[64];
    size_t length = (size_t)snprintf(text, sizeof text, "%d:%" PRIu64, who, number);
    int64_t index = ac_cq4_writer_try_append(writer, text, length);
    return index == AC_E_SLOW ? ac_cq4_writer_append(writer, text, length, &err) : index;
}

__attribute__((unused)) static uint64_t put(ac_cq4_writer_t *writer, int who, uint64_t number) {
    int64_t index = try_put(writer, who, number);
    CHECK_OK(index, err);
    return (uint64_t)index;
}

/* The content of a queue, found by reading all of it: every index follows the previous one or begins a later cycle;
 * the numbers of each writer grow. */
enum { WRITERS_MAX = 64 };
typedef struct inventory {
    uint64_t messages, cycles, first_index, last_index;
    uint64_t next[WRITERS_MAX]; /* number of each writer's newest message + 1 */
    uint64_t count[WRITERS_MAX];
} inventory_t;

__attribute__((unused)) static inventory_t read_everything(void) {
    static ac_cq4_tail_t tail;
    inventory_t seen = {0};
    ac_message_t message;
    int rc;
    CHECK_OK(ac_cq4_tail_open(&tail, check_path(queue_name), &err), err);
    while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1) {
        unsigned who;
        uint64_t number;
        char text[64] = {0};
        CHECK(message.length < sizeof text);
        memcpy(text, message.record + AC_HEADER_SIZE, message.length);
        CHECK_EQUAL(sscanf(text, "%u:%" SCNu64, &who, &number), 2);
        CHECK(who < WRITERS_MAX && number >= seen.next[who]);
        seen.next[who] = number + 1;
        seen.count[who]++;
        uint32_t shift = tail.queue.roll.shift;
        if (seen.messages == 0) seen.first_index = message.seq;
        if (seen.messages == 0 || message.seq >> shift != seen.last_index >> shift) {
            CHECK(seen.messages == 0 || message.seq > seen.last_index);
            CHECK_EQUAL(message.seq & (((uint64_t)1 << shift) - 1), 0);
            seen.cycles++;
        } else {
            CHECK_EQUAL(message.seq, seen.last_index + 1);
        }
        seen.last_index = message.seq;
        seen.messages++;
    }
    CHECK_OK(rc, err);
    ac_cq4_tail_close(&tail);
    return seen;
}

/* A value of the table store. */
__attribute__((unused)) static uint64_t *table_value(const char *key) {
    static ac_cq4_table_t table;
    static ac_directory_t dir;
    uint64_t *value;
    CHECK_OK(ac_directory_init(&dir, check_path(queue_name), 0600, 0, &err), err);
    int dir_fd = ac_directory_open(&dir, &err);
    CHECK_OK(dir_fd, err);
    ac_cq4_table_close(&table); /* the one before */
    CHECK_OK(ac_cq4_table_open(&dir, dir_fd, AC_CQ4_METADATA, 1, &table, &err), err);
    ac_os_close(dir_fd);
    CHECK_EQUAL(ac_cq4_table_find(&table, key, &value), 1);
    return value;
}

__attribute__((unused)) static const char *cycle_path(const char *roll_cycle, int64_t ms) {
    static char path[1200];
    char name[AC_CQ4_NAME_MAX];
    const ac_cq4_known_roll_t *known = ac_cq4_roll_by_name(roll_cycle);
    ac_cq4_roll_t roll = {.length_ms = known->length_ms};
    snprintf(roll.format, sizeof roll.format, "%s", known->format);
    CHECK_EQUAL(ac_cq4_roll_file_name(&roll, (uint32_t)((uint64_t)ms / roll.length_ms), name),
                AC_OK);
    snprintf(path, sizeof path, "%s/%s", check_path(queue_name), name);
    return path;
}

/* Returns whether every file except the newest has its end mark. */
__attribute__((unused)) static int is_finished(void) {
    ac_cq4_queue_t queue;
    ac_cq4_cycle_t cycle;
    uint32_t *cycles;
    size_t count;
    int all = 1;
    CHECK_OK(ac_cq4_queue_open(check_path(queue_name), &queue, &err), err);
    CHECK_OK(ac_cq4_queue_cycles(&queue, &cycles, &count, &err), err);
    for (size_t i = 0; i + 1 < count; i++) {
        CHECK_OK(ac_cq4_queue_open_cycle(&queue, cycles[i], &cycle, &err), err);
        all &= ac_cq4_cycle_end(&cycle).kind == AC_CQ4_END;
        ac_cq4_cycle_close(&cycle);
    }
    free(cycles);
    ac_cq4_queue_close(&queue);
    return all;
}

__attribute__((unused)) static void wait_for(pid_t child, int wanted) {
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    if (wanted >= 0) CHECK_EQUAL(status, wanted);
}

#endif
