/* The promises of a writer that is going to be killed, in memory that survives it.
 *
 * The ledger is in memory shared with the parent. Before a call that may add records, the writer stores how
 * far the queue may reach after it, and after the call how far it does reach. So at any instant the next
 * seq of a recovered queue is one of the two, and nothing between them (a batch is whole or absent). Only
 * the writer's main thread stores; each field is one aligned word, so a kill never tears it.
 *
 * A payload is a function of its seq and the queue's salt, and the oracle in Python computes the same. */
#ifndef AC_TEST_LEDGER_H
#define AC_TEST_LEDGER_H

#include "aiochronicle.h"
#include "atomics.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { LEDGER_READERS = 2, PAYLOAD_MAX = 900, NEVER_COMMITTED = -1 };

typedef struct ledger_reader {
    int64_t committed; /* seq at which it resumes after the last commit that returned … */
    int64_t attempted; /* … and after the one under way */
} ledger_reader_t;

typedef struct ledger {
    uint64_t acknowledged; /* every seq below was acknowledged */
    uint64_t attempted;    /* next seq if the call under way takes effect */
    uint64_t retained;     /* retention may have removed what every reader has read … */
    uint64_t deleted;      /* … and not into an archive, … */
    uint64_t archives;     /* … as the present writer does */
    uint64_t operations;
    uint64_t watermark_ns; /* of the last heartbeat */
    uint64_t opened;       /* a writer was opened at least once */
    uint64_t closed;       /* the last thing that happened was a clean close */
    uint64_t finished;
    uint64_t failed_line; /* a call returned a wrong result: where, and the result */
    int64_t failed_code;
    char failed_detail[256];
    ledger_reader_t readers[LEDGER_READERS];
    uint64_t acked;  /* of a group, one bit per message: its ack returned … */
    uint64_t acking; /* … or was begun */
} ledger_t;

static inline ledger_t *ledger_new(void) {
    void *at =
        mmap(NULL, sizeof(ledger_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static inline void ledger_reset(ledger_t *ledger) {
    memset(ledger, 0, sizeof *ledger);
    for (int i = 0; i < LEDGER_READERS; i++)
        ledger->readers[i] = (ledger_reader_t){NEVER_COMMITTED, NEVER_COMMITTED};
}

static inline void ledger_attempt(ledger_t *ledger, uint64_t records) {
    ac_store_release_u64(&ledger->attempted, ledger->acknowledged + records);
}

static inline void ledger_acknowledge(ledger_t *ledger, uint64_t next_seq) {
    ac_store_release_u64(&ledger->acknowledged, next_seq);
}

static inline void ledger_fail(ledger_t *ledger, uint64_t line, int64_t code,
                               const ac_error_t *err) {
    if (ledger->failed_line) return;
    ledger->failed_code = code;
    if (err && code < 0) memcpy(ledger->failed_detail, err->detail, sizeof err->detail);
    ac_store_release_u64(&ledger->failed_line, line);
}

static inline uint64_t mix(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

/* Mostly small, sometimes empty, occasionally a large part of a small segment. */
static inline uint32_t payload_length(uint64_t salt, uint64_t seq) {
    uint64_t word = mix(salt ^ mix(seq));
    uint32_t limit = (word & 7) == 0 ? PAYLOAD_MAX : (word & 7) < 4 ? 200 : 40;
    return (uint32_t)((word >> 8) % (limit + 1));
}

static inline uint32_t payload_fill(uint64_t salt, uint64_t seq, uint8_t out[PAYLOAD_MAX]) {
    uint32_t length = payload_length(salt, seq);
    uint64_t word = mix(mix(salt ^ mix(seq)));
    for (uint32_t i = 0; i < length; i += 8)
        memcpy(out + i, &word, length - i < 8 ? length - i : 8);
    return length;
}

typedef struct found {
    int64_t error; /* 0, or the code of the call that failed */
    uint64_t first_seq;
    uint64_t next_seq;
    uint64_t messages;
    uint64_t wrong; /* seq + 1 of the first message that is not what was appended */
} found_t;

/* Reads to the end from the reader's position and compares the messages with what was appended. */
static inline void read_all(ac_reader_t *reader, uint64_t salt, found_t *found, ac_error_t *err) {
    ac_message_t message;
    uint8_t expected[PAYLOAD_MAX];
    uint64_t timestamp_ns = 0;
    int rc;
    while ((rc = ac_reader_next(reader, &message, err)) == 1) {
        if (found->messages++ == 0) found->first_seq = found->next_seq = message.seq;
        uint32_t length = payload_fill(salt, message.seq, expected);
        if (found->wrong == 0 &&
            (message.seq != found->next_seq || message.length != length ||
             message.timestamp_ns < timestamp_ns || memcmp(message.record + 64, expected, length)))
            found->wrong = message.seq + 1;
        timestamp_ns = message.timestamp_ns;
        found->next_seq = message.seq + 1;
    }
    found->error = rc;
}

/* What a reader of this name (NULL: from the first record on) finds. */
static inline void look(const char *path, const char *name, uint64_t salt, found_t *found,
                        ac_error_t *err) {
    ac_reader_config_t config;
    ac_reader_t *reader = NULL;
    memset(found, 0, sizeof *found);
    ac_reader_defaults(&config);
    config.name = name;
    found->error = ac_reader_open(path, &config, &reader, err);
    if (found->error != AC_OK) return;
    read_all(reader, salt, found, err);
    ac_reader_close(reader);
    ac_reader_free(reader);
}

#endif
