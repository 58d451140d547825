/* Lists a Java Chronicle Queue: one line per message, index and payload in hexadecimal, as Java's own listings in
 * tests/data/cq4 are. Driven by tests/cq4/test_engine.py.
 *
 *   cq4_list QUEUE                all messages that are there now
 *   cq4_list QUEUE seek INDEX…    the first message at or after each (hexadecimal), found by the index of its file;
 *                                 "none" at the end
 *   cq4_list QUEUE follow COUNT   waits for the queue, and until it has read this many
 *   cq4_list QUEUE bench ROUNDS   reads all of it so often; prints nanoseconds per message
 *   cq4_list QUEUE lag            messages and bytes */
#include "cq4_tail.h"
#include "os.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ac_cq4_tail_t tail;
static ac_error_t err;

static void check(int rc) {
    if (rc >= 0) return;
    fprintf(stderr, "%d %s at %" PRIu64 ": %s\n", rc, err.path, err.offset, err.detail);
    exit(1);
}

static void print(const ac_message_t *message) {
    const uint8_t *payload = message->record + AC_HEADER_SIZE;
    printf("%" PRIx64 " ", message->seq);
    for (uint32_t i = 0; i < message->length; i++)
        printf("%02x", payload[i]);
    printf("\n");
}

static void list(void) {
    ac_message_t message;
    int rc;
    while ((rc = ac_cq4_tail_next(&tail, &message, &err)) == 1)
        print(&message);
    check(rc);
}

static void seek(uint64_t index) {
    ac_message_t message;
    check(ac_cq4_tail_seek_index(&tail, index, &err));
    int rc = ac_cq4_tail_next(&tail, &message, &err);
    check(rc);
    if (rc == 1)
        print(&message);
    else
        printf("none\n");
}

static void follow(uint64_t count) {
    ac_message_t message;
    while (count > 0) {
        int rc = ac_cq4_tail_next(&tail, &message, &err);
        check(rc);
        if (rc == 1) {
            print(&message);
            count--;
        } else {
            fflush(stdout);
            ac_os_sleep_ns(100000);
        }
    }
}

/* Reads one number of each payload, like a program that decodes what it reads. */
static void bench(int rounds) {
    ac_message_t message;
    for (int round = 0; round < rounds; round++) {
        uint64_t messages = 0, sum = 0;
        check(ac_cq4_tail_seek_first(&tail, &err));
        uint64_t start_ns = ac_os_monotonic_ns();
        while (ac_cq4_tail_next(&tail, &message, &err) == 1) {
            uint64_t number = 0;
            memcpy(&number, message.record + AC_HEADER_SIZE,
                   message.length < 8 ? message.length : 8);
            sum += number;
            messages++;
        }
        uint64_t took_ns = ac_os_monotonic_ns() - start_ns;
        printf("%.2f ns per message, %" PRIu64 " messages, sum %" PRIx64 "\n",
               messages ? (double)took_ns / (double)messages : 0.0, messages, sum);
    }
}

int main(int argc, char **argv) {
    ac_lag_t lag;
    if (argc < 2) return 2;
    const char *command = argc > 2 ? argv[2] : "";
    int is_following = strcmp(command, "follow") == 0, rc;
    while ((rc = ac_cq4_tail_open(&tail, argv[1], &err)) < 0 && is_following &&
           (rc == AC_E_NOT_FOUND || rc == AC_E_NOT_A_QUEUE))
        ac_os_sleep_ns(1000000);
    check(rc);
    if (strcmp(command, "seek") == 0) {
        for (int i = 3; i < argc; i++)
            seek(strtoull(argv[i], NULL, 16));
    } else if (is_following && argc == 4) {
        follow(strtoull(argv[3], NULL, 10));
    } else if (strcmp(command, "bench") == 0 && argc == 4) {
        bench(atoi(argv[3]));
    } else if (strcmp(command, "lag") == 0) {
        check(ac_cq4_tail_lag(&tail, &lag, &err));
        printf("%" PRIu64 " %" PRIu64 "\n", lag.messages, lag.bytes);
    } else if (argc == 2) {
        list();
    } else {
        return 2;
    }
    ac_cq4_tail_close(&tail);
    return 0;
}
