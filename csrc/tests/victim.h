/* A writer that applies random operations to a queue until it is killed, and notes each promise in a
 * ledger.
 *
 * SIGKILL usually comes from a kernel timer that the victim arms, because this hits between any two
 * instructions even if the processors are busy; sometimes it comes from the parent. */
#ifndef AC_TEST_VICTIM_H
#define AC_TEST_VICTIM_H

#include "ledger.h"
#include "segment.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { OPERATIONS_MAX = 40, BATCH_MAX = 6, MICROSECOND = 1000 };

/* The job of one process. Everything random in it comes from `random`. */
typedef struct job {
    const char *path;
    const char *archive; /* the directory to which retention may move segments */
    ledger_t *ledger;
    uint64_t salt;
    uint64_t random;
    uint64_t segment_size;
    uint64_t kill_operation; /* after how many operations the timer starts … */
    uint64_t kill_delay_ns;  /* … and how long it runs; 0 = it does not */
} job_t;

static const char *const reader_names[LEDGER_READERS] = {"audit", "risk"};

static uint64_t draw(uint64_t *random, uint64_t below) {
    *random = mix(*random);
    return *random % below;
}

static void arm_kill(uint64_t delay_ns) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {.tv_nsec = (long)delay_ns}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) < 0 ||
        timer_settime(timer, 0, &when, NULL) < 0)
        _exit(4);
}

/* The only errors that a writer may get on a healthy disk. */
static int harmless(int64_t code) {
    return code >= 0 || code == AC_E_FULL;
}

#define EXPECT(code)                                                                               \
    do {                                                                                           \
        int64_t got = (code);                                                                      \
        if (!harmless(got)) ledger_fail(job->ledger, __LINE__, got, &err);                         \
    } while (0)

static void draw_options(ac_writer_config_t *config, uint64_t *random, const job_t *job) {
    uint64_t segment_size = job->segment_size;
    ac_writer_defaults(config);
    config->segment_size = segment_size;
    config->reader_ttl_ns = 3600ull * 1000000000u;
    if (draw(random, 3) == 0) config->roll_bytes = 64 * (1 + draw(random, segment_size / 64));
    if (draw(random, 4) == 0) config->roll_messages = 1 + draw(random, 20);
    if (draw(random, 6) == 0) config->roll_ns = 1 + draw(random, 200 * MICROSECOND);
    config->flush_mode = (int)draw(random, 3);
    config->batch_bytes = 64 + draw(random, 4096);
    config->batch_ns = 1 + draw(random, 300 * MICROSECOND);
    config->verify = draw(random, 4) == 0;
    config->inline_housekeeping = draw(random, 4) == 0;
    if (draw(random, 6) == 0) config->capacity_bytes = 4 * segment_size;
    if (draw(random, 3)) config->archive = job->archive;
    if (draw(random, 4) == 0) {
        config->retention = 1;
        config->retain_bytes = segment_size * (1 + draw(random, 8));
        config->retain_for_readers = (int)draw(random, 2);
        config->retention_check_ns = 1 + draw(random, 300 * MICROSECOND);
    }
}

static void note_retention(ledger_t *ledger) {
    ac_store_release_u64(&ledger->retained, 1);
    if (!ledger->archives) ac_store_release_u64(&ledger->deleted, 1);
}

static ac_writer_t *open_some_writer(const job_t *job, uint64_t *random) {
    ac_writer_config_t config;
    ac_writer_t *writer = NULL;
    ac_error_t err;
    draw_options(&config, random, job);
    ac_store_release_u64(&job->ledger->archives, config.archive != NULL);
    if (config.retention) note_retention(job->ledger);
    ac_store_release_u64(&job->ledger->closed, 0);
    EXPECT(ac_writer_open(job->path, &config, &writer, &err));
    if (writer) ac_store_release_u64(&job->ledger->opened, 1);
    return writer;
}

static uint64_t draw_timestamp(ac_writer_t *writer, uint64_t *random) {
    ac_writer_stats_t stats;
    if (draw(random, 3)) return AC_NOW;
    ac_writer_stats(writer, &stats);
    return stats.last_timestamp_ns + draw(random, 3);
}

static void settle(const job_t *job, int64_t first_seq, uint64_t records, const ac_error_t *err,
                   uint64_t line) {
    if (first_seq == (int64_t)job->ledger->acknowledged)
        ledger_acknowledge(job->ledger, job->ledger->acknowledged + records);
    else if (first_seq >= 0 || !harmless(first_seq))
        ledger_fail(job->ledger, line, first_seq, err);
    else
        ledger_attempt(job->ledger, 0);
}

static void append_one(const job_t *job, ac_writer_t *writer, uint64_t *random) {
    ac_error_t err;
    uint8_t payload[PAYLOAD_MAX];
    uint32_t length = payload_fill(job->salt, job->ledger->acknowledged, payload);
    uint64_t timestamp_ns = draw_timestamp(writer, random);
    ledger_attempt(job->ledger, 1);
    int64_t seq = ac_writer_append(writer, payload, length, 0, timestamp_ns, &err);
    settle(job, seq, 1, &err, __LINE__);
}

static void append_batch(const job_t *job, ac_writer_t *writer, uint64_t *random) {
    static uint8_t payloads[BATCH_MAX][PAYLOAD_MAX];
    ac_slice_t items[BATCH_MAX];
    ac_error_t err;
    uint64_t wanted = 1 + draw(random, BATCH_MAX), count = 0, size = AC_SEGMENT_DATA;
    for (; count < wanted; count++) {
        uint32_t length =
            payload_fill(job->salt, job->ledger->acknowledged + count, payloads[count]);
        size += (64u + length + 63u) & ~63u;
        if (size > job->segment_size) break;
        items[count] = (ac_slice_t){payloads[count], length};
    }
    ledger_attempt(job->ledger, count);
    int64_t seq = ac_writer_append_many(writer, items, count, 1, NULL, &err);
    settle(job, seq, count, &err, __LINE__);
}

static void reserve_one(const job_t *job, ac_writer_t *writer, uint64_t *random) {
    ac_error_t err;
    uint8_t payload[PAYLOAD_MAX];
    void *room;
    uint32_t length = payload_fill(job->salt, job->ledger->acknowledged, payload);
    int rc = ac_writer_reserve(writer, length, &room, &err);
    EXPECT(rc);
    if (rc != AC_OK) return;
    memcpy(room, payload, length);
    if (draw(random, 3) == 0) {
        ac_writer_abort(writer);
        return;
    }
    ledger_attempt(job->ledger, 1);
    int64_t seq = ac_writer_commit(writer, 2, AC_NOW, NULL, &err);
    settle(job, seq, 1, &err, __LINE__);
}

static void read_and_commit(const job_t *job, uint64_t *random) {
    ac_reader_config_t config;
    ac_reader_t *reader = NULL;
    ac_message_t message;
    ac_error_t err;
    uint64_t which = draw(random, LEDGER_READERS), segment, offset;
    ledger_reader_t *known = &job->ledger->readers[which];
    int64_t next_seq = known->committed;
    ac_reader_defaults(&config);
    config.name = reader_names[which];
    int rc = ac_reader_open(job->path, &config, &reader, &err);
    /* Retention does not wait for a name that registers while retention runs. */
    if (rc == AC_E_POSITION_LOST && known->attempted == NEVER_COMMITTED && job->ledger->retained)
        return;
    EXPECT(rc);
    if (rc != AC_OK) return;
    for (uint64_t left = 1 + draw(random, 40); left > 0; left--) {
        rc = ac_reader_next(reader, &message, &err);
        EXPECT(rc);
        if (rc != 1) break;
        if (next_seq >= 0 && message.seq != (uint64_t)next_seq)
            ledger_fail(job->ledger, __LINE__, (int64_t)message.seq, NULL);
        next_seq = (int64_t)message.seq + 1;
    }
    if (next_seq >= 0) {
        ac_reader_position(reader, &segment, &offset);
        ac_store_release_u64((uint64_t *)&known->attempted, (uint64_t)next_seq);
        EXPECT(ac_reader_commit(reader, segment, offset, (int)draw(random, 2), &err));
        ac_store_release_u64((uint64_t *)&known->committed, (uint64_t)next_seq);
    }
    ac_reader_close(reader);
    ac_reader_free(reader);
}

static void beat(const job_t *job, ac_writer_t *writer) {
    ac_writer_stats_t stats;
    ac_error_t err;
    EXPECT(ac_writer_heartbeat(writer, AC_NOW, &err));
    ac_writer_stats(writer, &stats);
    ac_store_release_u64(&job->ledger->watermark_ns, stats.last_timestamp_ns);
}

static void close_writer(const job_t *job, ac_writer_t *writer) {
    ac_error_t err;
    int rc = ac_writer_close(writer, &err);
    EXPECT(rc);
    ac_writer_free(writer);
    ac_store_release_u64(&job->ledger->closed, 1);
}

static void operate(const job_t *job, ac_writer_t **writer, uint64_t *random) {
    ac_error_t err;
    uint64_t kind = draw(random, 100);
    if (kind < 50) {
        append_one(job, *writer, random);
    } else if (kind < 68) {
        append_batch(job, *writer, random);
    } else if (kind < 80) {
        reserve_one(job, *writer, random);
    } else if (kind < 85) {
        int64_t durable = ac_writer_flush(*writer, &err);
        EXPECT(durable);
        if (durable >= 0 && (uint64_t)durable < job->ledger->acknowledged)
            ledger_fail(job->ledger, __LINE__, durable, NULL);
    } else if (kind < 88) {
        beat(job, *writer);
    } else if (kind < 95) {
        read_and_commit(job, random);
    } else if (kind < 97) {
        note_retention(job->ledger);
        EXPECT(ac_writer_retain(*writer, &err));
    } else if (kind < 98) {
        EXPECT(ac_writer_mark_ready(*writer, "{\"version\": 1}", &err));
    } else {
        close_writer(job, *writer);
        *writer = draw(random, 4) ? open_some_writer(job, random) : NULL;
    }
}

static void write_until_killed(const job_t *job) {
    uint64_t random = job->random;
    uint64_t armed_at = job->kill_delay_ns ? job->kill_operation : UINT64_MAX;
    if (armed_at == 0) arm_kill(job->kill_delay_ns);
    ac_writer_t *writer = open_some_writer(job, &random);
    while (writer && !job->ledger->failed_line && job->ledger->operations < OPERATIONS_MAX) {
        if (job->ledger->operations == armed_at && armed_at > 0) arm_kill(job->kill_delay_ns);
        operate(job, &writer, &random);
        ac_store_release_u64(&job->ledger->operations, job->ledger->operations + 1);
    }
    ac_store_release_u64(&job->ledger->finished, 1);
    if (job->kill_delay_ns) arm_kill(1); /* the operation that arms it may not have run */
    for (;;)
        pause();
}

#endif
