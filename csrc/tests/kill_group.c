/* Kills members of a group at random instants, while others go on.
 *
 *     kill_group ROOT SEED KILLS
 *
 * A writer in a process of its own appends, with small segments and retention; MEMBERS processes share what it
 * appends, acknowledge, give back, extend and leave. One after the other is killed after some microseconds and
 * replaced. Each notes its operations on messages in shared memory, before and after each operation. At any time:
 *
 *   - no member gets a message that another one holds, unless that one is dead or about to be killed;
 *   - no member gets a message whose acknowledgement returned;
 *   - at the end every message is acknowledged. */
#include "group.h"
#include "os.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MEMBERS = 4,
    SEGMENT = 1 << 16,
    MESSAGES_MAX = 1 << 22,
    AHEAD = 2000, /* how far the writer may be ahead of the members */
    LIMIT = 200,
    PATIENCE_S = 60
};

enum { ACKING = 1, ACKED = 2 };

typedef struct shared {
    uint64_t appended, acked, redelivered, stop;
    uint64_t violation_line, violation_seq, violation_other;
    uint32_t doomed[1 << 16];      /* per life: about to be killed, or dead */
    uint8_t state[MESSAGES_MAX];   /* of each message */
    uint32_t holder[MESSAGES_MAX]; /* the life that holds it, plus one */
} shared_t;

static shared_t *shared;
static char path[1024];

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % below;
}

static void violate(uint64_t line, uint64_t seq, uint64_t other) {
    uint64_t none = 0;
    if (!__atomic_compare_exchange_n(&shared->violation_line, &none, line, 0, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST))
        return;
    shared->violation_seq = seq;
    shared->violation_other = other;
}

/* ---- the writer ---- */

static void write_messages(void) {
    ac_writer_config_t config;
    ac_writer_t *writer;
    ac_error_t err;
    ac_writer_defaults(&config);
    config.segment_size = SEGMENT;
    config.retention = 1;
    config.retain_for_readers = 1;
    config.retention_check_ns = 1000000;
    if (ac_writer_open(path, &config, &writer, &err) != AC_OK) _exit(3);
    uint64_t seq = 0;
    while (!ac_load_acquire_u64(&shared->stop) && seq < MESSAGES_MAX) {
        if (seq >= ac_load_acquire_u64(&shared->acked) + AHEAD) {
            ac_os_sleep_ns(200000);
            continue;
        }
        if (ac_writer_append(writer, &seq, sizeof seq, 0, AC_NOW, &err) != (int64_t)seq) _exit(4);
        seq++;
        ac_store_release_u64(&shared->appended, seq);
    }
    ac_writer_close(writer, &err);
    _exit(0);
}

/* ---- members ---- */

static void check_mine(uint64_t seq, uint32_t life, const ac_message_t *message) {
    uint64_t payload;
    memcpy(&payload, message->record + 64, sizeof payload);
    if (message->length != sizeof payload || payload != seq) violate(__LINE__, seq, payload);
    if (__atomic_load_n(&shared->state[seq], __ATOMIC_SEQ_CST) & ACKED) violate(__LINE__, seq, 0);
    uint32_t other = __atomic_exchange_n(&shared->holder[seq], life + 1, __ATOMIC_SEQ_CST);
    if (other != 0 && !ac_load_acquire_u32(&shared->doomed[other - 1]))
        violate(__LINE__, seq, other);
}

static void let_go(uint64_t seq, uint32_t life) {
    uint32_t mine = life + 1;
    __atomic_compare_exchange_n(&shared->holder[seq], &mine, 0, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
}

/* Handles one message; 0 = the member keeps it for a while. */
static void settle(ac_group_t *group, uint64_t seq, uint64_t word, uint32_t life,
                   uint64_t *random) {
    uint64_t kind = draw(random, 100);
    if (kind < 10 && !ac_group_extend(group, seq, &word, 50000)) violate(__LINE__, seq, life);
    if (kind < 25) {
        let_go(seq, life);
        if (kind < 20)
            ac_group_nack(group, seq, word, (uint32_t)draw(random, 3));
        else
            ac_group_undo(group, seq, word);
        return;
    }
    __atomic_fetch_or(&shared->state[seq], ACKING, __ATOMIC_SEQ_CST);
    let_go(seq, life);
    if (!ac_group_ack(group, seq, word)) violate(__LINE__, seq, life);
    if (__atomic_fetch_or(&shared->state[seq], ACKED, __ATOMIC_SEQ_CST) & ACKED)
        violate(__LINE__, seq, life);
    __atomic_fetch_add(&shared->acked, 1, __ATOMIC_RELAXED);
}

static void work(uint32_t life, uint64_t seed) {
    enum { HELD = 8 };
    ac_group_config_t config = {.name = "work", .lease_ms = 60000, .limit = LIMIT};
    ac_reader_config_t reader_config;
    ac_reader_t *walker, *again, *from;
    ac_group_t *group;
    ac_error_t err;
    ac_message_t message;
    uint64_t random = seed | 1, seqs[HELD], words[HELD], word;
    ac_reader_defaults(&reader_config);
    reader_config.start = AC_START_FIRST;
    for (;;) {
        if (ac_reader_open(path, &reader_config, &walker, &err) != AC_OK ||
            ac_reader_open(path, &reader_config, &again, &err) != AC_OK)
            _exit(5);
        int rc = ac_group_open(walker, again, &config, &group, &err);
        if (rc != AC_OK) {
            violate(__LINE__, (uint64_t)-rc, life);
            fprintf(stderr, "join: %s\n", err.detail);
            _exit(6);
        }
        for (uint64_t turns = 1 + draw(&random, 3000); turns > 0; turns--) {
            uint64_t held = 0, wanted = 1 + draw(&random, HELD);
            while (held < wanted &&
                   (rc = ac_group_next(group, 0, &message, &word, &from, &err)) == 1) {
                check_mine(message.seq, life, &message);
                if (ac_word_unpack(word).attempt > 1)
                    __atomic_fetch_add(&shared->redelivered, 1, __ATOMIC_RELAXED);
                seqs[held] = message.seq;
                words[held++] = word;
            }
            if (rc < 0) {
                violate(__LINE__, (uint64_t)-rc, life);
                fprintf(stderr, "next: %s\n", err.detail);
            }
            while (held > 0) { /* in any order */
                uint64_t which = draw(&random, held--);
                settle(group, seqs[which], words[which], life, &random);
                seqs[which] = seqs[held];
                words[which] = words[held];
            }
            if (wanted == 1) ac_os_sleep_ns(100000);
        }
        ac_group_free(group);
        ac_reader_free(walker);
        ac_reader_free(again);
    }
}

/* ---- the parent: single-threaded, so that it may fork ---- */

static pid_t start(uint32_t life, uint64_t seed) {
    pid_t pid = fork();
    if (pid == 0) work(life, seed);
    return pid;
}

static int finish(pid_t writer) {
    static ac_group_info_t info;
    ac_error_t err;
    int status;
    ac_store_release_u64(&shared->stop, 1);
    waitpid(writer, &status, 0);
    for (int i = 0; i < PATIENCE_S * 1000 && !shared->violation_line; i++) {
        uint64_t open = 0;
        for (uint64_t seq = 0; seq < shared->appended; seq++)
            open += __atomic_load_n(&shared->state[seq], __ATOMIC_SEQ_CST) == 0;
        if (open == 0 && ac_group_inspect(path, "work", &info, &err) == AC_OK && info.pending == 0)
            return 1;
        ac_os_sleep_ns(1000000);
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    uint64_t random = strtoull(arguments[2], NULL, 10) | 1,
             kills = strtoull(arguments[3], NULL, 10);
    pid_t members[MEMBERS];
    uint32_t lives[MEMBERS], next_life = 0;
    snprintf(path, sizeof path, "%s/queue", arguments[1]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || kills + MEMBERS > 1 << 16) return 2;
    pid_t writer = fork();
    if (writer == 0) write_messages();
    while (ac_load_acquire_u64(&shared->appended) == 0)
        ac_os_sleep_ns(1000000);
    for (int i = 0; i < MEMBERS; i++)
        members[i] = start(lives[i] = next_life++, draw(&random, UINT64_MAX));
    for (uint64_t killed = 0; killed < kills && !shared->violation_line; killed++) {
        uint64_t which = draw(&random, MEMBERS);
        ac_os_sleep_ns(draw(&random, 4) ? draw(&random, 3000000) : draw(&random, 30000000));
        ac_store_release_u32(&shared->doomed[lives[which]], 1);
        kill(members[which], SIGKILL);
        waitpid(members[which], NULL, 0);
        members[which] = start(lives[which] = next_life++, draw(&random, UINT64_MAX));
    }
    int complete = finish(writer);
    for (int i = 0; i < MEMBERS; i++) {
        kill(members[i], SIGKILL);
        waitpid(members[i], NULL, 0);
    }
    printf("messages=%" PRIu64 " acked=%" PRIu64 " redelivered=%" PRIu64 " complete=%d "
           "violation_line=%" PRIu64 " seq=%" PRIu64 " other=%" PRIu64 "\n",
           shared->appended, shared->acked, shared->redelivered, complete, shared->violation_line,
           shared->violation_seq, shared->violation_other);
    return complete && !shared->violation_line ? 0 : 1;
}
