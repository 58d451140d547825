/* A writer that is killed at a random instant, and the processes that recover after it.
 *
 * Driven line by line from standard input, one cycle per line, so that an oracle of another making can
 * look at the directory after each:
 *
 *     cycle PATH SALT SEED SEGMENT_SIZE FRESH
 *
 * FRESH 1 says that PATH is a new queue. A cycle is: a writer is forked and killed; a reader looks at
 * what is there; up to two recoveries are forked and killed; then one runs to its end, and another one,
 * whose bytes must be the same. The answer is one line of NAME=NUMBER pairs. Everything random comes from
 * SEED but the instant of the kill itself.
 *
 * Mostly SIGKILL comes from a timer of the kernel that the victim arms, because that hits it between any
 * two instructions even when the processors are busy with others; sometimes from the parent. */
#include "ledger.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OPERATIONS_MAX = 60, BATCH_MAX = 6, RECOVERY_KILLS_MAX = 2, MICROSECOND = 1000 };

typedef struct cycle {
    const char *path;
    uint64_t salt;
    uint64_t random;
    uint64_t segment_size;
    uint64_t kill_operation; /* after how many operations the timer starts … */
    uint64_t kill_delay_ns;  /* … and how long it runs; 0 = it does not */
} cycle_t;

/* What a recovery says about itself. */
typedef struct outcome {
    int64_t error;
    char detail[256];
    uint64_t next_seq;
    int verify; /* every record was looked at, however clean the queue */
    ac_recovery_t recovery;
    found_t all;
    found_t named[LEDGER_READERS];
} outcome_t;

static ledger_t *ledger;
static outcome_t *outcomes; /* shared with the children */
static found_t *before;

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

/* ---- the writer ---- */

/* Anything that is not in this list must not happen to a writer on a healthy disk. */
static int harmless(int64_t code) {
    return code >= 0 || code == AC_E_FULL;
}

#define EXPECT(code)                                                                               \
    do {                                                                                           \
        int64_t got = (code);                                                                      \
        if (!harmless(got)) ledger_fail(ledger, __LINE__, got, &err);                              \
    } while (0)

static void draw_options(ac_writer_config_t *config, uint64_t *random, uint64_t segment_size) {
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
    if (draw(random, 4) == 0) {
        config->retention = 1;
        config->retain_bytes = segment_size * (1 + draw(random, 8));
        config->retain_for_readers = (int)draw(random, 2);
        config->retention_check_ns = 1 + draw(random, 300 * MICROSECOND);
    }
}

static ac_writer_t *open_some_writer(const cycle_t *cycle, uint64_t *random) {
    ac_writer_config_t config;
    ac_writer_t *writer = NULL;
    ac_error_t err;
    draw_options(&config, random, cycle->segment_size);
    if (config.retention) ac_store_release_u64(&ledger->retained, 1);
    ac_store_release_u64(&ledger->closed, 0);
    EXPECT(ac_writer_open(cycle->path, &config, &writer, &err));
    if (writer) ac_store_release_u64(&ledger->opened, 1);
    return writer;
}

static uint64_t draw_timestamp(ac_writer_t *writer, uint64_t *random) {
    ac_writer_stats_t stats;
    if (draw(random, 3)) return AC_NOW;
    ac_writer_stats(writer, &stats);
    return stats.last_timestamp_ns + draw(random, 3);
}

static void settle(int64_t first_seq, uint64_t records, const ac_error_t *err, uint64_t line) {
    if (first_seq == (int64_t)ledger->acknowledged)
        ledger_acknowledge(ledger, ledger->acknowledged + records);
    else if (first_seq >= 0 || !harmless(first_seq))
        ledger_fail(ledger, line, first_seq, err);
    else
        ledger_attempt(ledger, 0);
}

static void append_one(const cycle_t *cycle, ac_writer_t *writer, uint64_t *random) {
    ac_error_t err;
    uint8_t payload[PAYLOAD_MAX];
    uint32_t length = payload_fill(cycle->salt, ledger->acknowledged, payload);
    uint64_t timestamp_ns = draw_timestamp(writer, random);
    ledger_attempt(ledger, 1);
    int64_t seq = ac_writer_append(writer, payload, length, 0, timestamp_ns, &err);
    settle(seq, 1, &err, __LINE__);
}

static void append_batch(const cycle_t *cycle, ac_writer_t *writer, uint64_t *random) {
    static uint8_t payloads[BATCH_MAX][PAYLOAD_MAX];
    ac_slice_t items[BATCH_MAX];
    ac_error_t err;
    uint64_t wanted = 1 + draw(random, BATCH_MAX), count = 0, size = AC_SEGMENT_DATA;
    for (; count < wanted; count++) {
        uint32_t length = payload_fill(cycle->salt, ledger->acknowledged + count, payloads[count]);
        size += (64u + length + 63u) & ~63u;
        if (size > cycle->segment_size) break;
        items[count] = (ac_slice_t){payloads[count], length};
    }
    ledger_attempt(ledger, count);
    int64_t seq = ac_writer_append_many(writer, items, count, 1, NULL, &err);
    settle(seq, count, &err, __LINE__);
}

static void reserve_one(const cycle_t *cycle, ac_writer_t *writer, uint64_t *random) {
    ac_error_t err;
    uint8_t payload[PAYLOAD_MAX];
    void *room;
    uint32_t length = payload_fill(cycle->salt, ledger->acknowledged, payload);
    int rc = ac_writer_reserve(writer, length, &room, &err);
    EXPECT(rc);
    if (rc != AC_OK) return;
    memcpy(room, payload, length);
    if (draw(random, 3) == 0) {
        ac_writer_abort(writer);
        return;
    }
    ledger_attempt(ledger, 1);
    int64_t seq = ac_writer_commit(writer, 2, AC_NOW, &err);
    settle(seq, 1, &err, __LINE__);
}

static void read_and_commit(const cycle_t *cycle, uint64_t *random) {
    ac_reader_config_t config;
    ac_reader_t *reader = NULL;
    ac_message_t message;
    ac_error_t err;
    uint64_t which = draw(random, LEDGER_READERS), segment, offset;
    ledger_reader_t *known = &ledger->readers[which];
    int64_t next_seq = known->committed;
    ac_reader_defaults(&config);
    config.name = reader_names[which];
    int rc = ac_reader_open(cycle->path, &config, &reader, &err);
    /* Retention does not wait for a name that registers while it is at work. */
    if (rc == AC_E_POSITION_LOST && known->attempted == NEVER_COMMITTED && ledger->retained) return;
    EXPECT(rc);
    if (rc != AC_OK) return;
    for (uint64_t left = 1 + draw(random, 40); left > 0; left--) {
        rc = ac_reader_next(reader, &message, &err);
        EXPECT(rc);
        if (rc != 1) break;
        if (next_seq >= 0 && message.seq != (uint64_t)next_seq)
            ledger_fail(ledger, __LINE__, (int64_t)message.seq, NULL);
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

static void beat(ac_writer_t *writer) {
    ac_writer_stats_t stats;
    ac_error_t err;
    EXPECT(ac_writer_heartbeat(writer, AC_NOW, &err));
    ac_writer_stats(writer, &stats);
    ac_store_release_u64(&ledger->watermark_ns, stats.last_timestamp_ns);
}

static void close_writer(ac_writer_t *writer) {
    ac_error_t err;
    int rc = ac_writer_close(writer, &err);
    EXPECT(rc);
    ac_writer_free(writer);
    ac_store_release_u64(&ledger->closed, 1);
}

static void operate(const cycle_t *cycle, ac_writer_t **writer, uint64_t *random) {
    ac_error_t err;
    uint64_t kind = draw(random, 100);
    if (kind < 50) {
        append_one(cycle, *writer, random);
    } else if (kind < 68) {
        append_batch(cycle, *writer, random);
    } else if (kind < 80) {
        reserve_one(cycle, *writer, random);
    } else if (kind < 85) {
        int64_t durable = ac_writer_flush(*writer, &err);
        EXPECT(durable);
        if (durable >= 0 && (uint64_t)durable < ledger->acknowledged)
            ledger_fail(ledger, __LINE__, durable, NULL);
    } else if (kind < 88) {
        beat(*writer);
    } else if (kind < 95) {
        read_and_commit(cycle, random);
    } else if (kind < 97) {
        ac_store_release_u64(&ledger->retained, 1);
        EXPECT(ac_writer_retain(*writer, &err));
    } else if (kind < 98) {
        EXPECT(ac_writer_mark_ready(*writer, "{\"version\": 1}", &err));
    } else {
        close_writer(*writer);
        *writer = draw(random, 4) ? open_some_writer(cycle, random) : NULL;
    }
}

static void write_until_killed(const cycle_t *cycle) {
    uint64_t random = cycle->random;
    uint64_t armed_at = cycle->kill_delay_ns ? cycle->kill_operation : UINT64_MAX;
    if (armed_at == 0) arm_kill(cycle->kill_delay_ns);
    ac_writer_t *writer = open_some_writer(cycle, &random);
    while (writer && !ledger->failed_line && ledger->operations < OPERATIONS_MAX) {
        if (ledger->operations == armed_at && armed_at > 0) arm_kill(cycle->kill_delay_ns);
        operate(cycle, &writer, &random);
        ac_store_release_u64(&ledger->operations, ledger->operations + 1);
    }
    ac_store_release_u64(&ledger->finished, 1);
    if (cycle->kill_delay_ns) arm_kill(1); /* the operation that was to arm it may not have come */
    for (;;)
        pause();
}

/* ---- the recoveries ---- */

static void recover(const cycle_t *cycle, outcome_t *outcome, int then_close) {
    ac_writer_config_t config;
    ac_writer_t *writer = NULL;
    ac_writer_stats_t stats;
    ac_error_t err;
    uint64_t random = cycle->random;
    if (cycle->kill_delay_ns) arm_kill(cycle->kill_delay_ns);
    draw_options(&config, &random, cycle->segment_size);
    config.retention = 0; /* so that two recoveries can be compared */
    memset(&err, 0, sizeof err);
    memset(outcome, 0, sizeof *outcome);
    outcome->verify = config.verify;
    outcome->error = ac_writer_open(cycle->path, &config, &writer, &err);
    if (outcome->error == AC_OK) {
        ac_writer_stats(writer, &stats);
        ac_writer_recovery(writer, &outcome->recovery);
        outcome->next_seq = stats.next_seq;
        look(cycle->path, NULL, cycle->salt, &outcome->all, &err);
        for (int i = 0; i < LEDGER_READERS; i++)
            if (ledger->readers[i].committed != NEVER_COMMITTED)
                look(cycle->path, reader_names[i], cycle->salt, &outcome->named[i], &err);
        if (then_close) outcome->error = ac_writer_close(writer, &err);
    }
    memcpy(outcome->detail, err.detail, sizeof outcome->detail);
    _exit(0); /* without a close: nothing may be put right by it */
}

static void look_before_recovery(const cycle_t *cycle) {
    ac_error_t err;
    look(cycle->path, NULL, cycle->salt, before, &err);
    if (before->error == AC_E_NOT_FOUND && !ledger->opened) before->error = 0;
    _exit(0);
}

/* One word for the content of every segment up to the given one. */
static uint64_t digest(const char *path, uint64_t last_segment) {
    static uint8_t content[1 << 17];
    char name[1200];
    uint64_t sum = 0;
    for (uint64_t id = 0; id <= last_segment; id++) {
        snprintf(name, sizeof name, "%s/%09" PRIu64 ".q", path, id);
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t got = read(fd, content, sizeof content);
        close(fd);
        if (got > 0) sum = mix(sum ^ id ^ (uint64_t)ac_checksum(content, (size_t)got) << 32);
    }
    return sum;
}

/* ---- the parent ---- */

static pid_t start(void (*run)(const cycle_t *), const cycle_t *cycle) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    if (pid == 0) {
        run(cycle);
        _exit(3);
    }
    return pid;
}

/* 0 = it ended by itself with 0, 9 = killed, anything else is a crash. */
static int reap(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -errno;
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) ? 256 : 0;
}

static void draw_instant(cycle_t *cycle, uint64_t *random) {
    cycle->kill_operation = cycle->kill_delay_ns = 0;
    switch (draw(random, 8)) {
    case 0: /* by the parent */
        break;
    case 1:
    case 2: /* while it opens, or not long after */
        cycle->kill_delay_ns = 1 + draw(random, 1000 * MICROSECOND);
        break;
    default: /* while it works */
        cycle->kill_operation = 1 + draw(random, OPERATIONS_MAX / 2);
        cycle->kill_delay_ns = 1 + draw(random, 20 * MICROSECOND);
    }
}

static int kill_writer(cycle_t *cycle, uint64_t *random) {
    draw_instant(cycle, random);
    pid_t pid = start(write_until_killed, cycle);
    if (!cycle->kill_delay_ns) {
        struct timespec pause = {.tv_nsec = (long)draw(random, 1000 * MICROSECOND)};
        nanosleep(&pause, NULL);
        kill(pid, SIGKILL);
    }
    return reap(pid);
}

static void recover_first(const cycle_t *cycle) {
    recover(cycle, &outcomes[0], 0);
}

static void recover_again(const cycle_t *cycle) {
    recover(cycle, &outcomes[1], (int)(cycle->random % 2));
}

static void print_outcome(const char *prefix, const outcome_t *outcome) {
    const ac_recovery_t *r = &outcome->recovery;
    printf(" %serror=%" PRId64 " %snext_seq=%" PRIu64 " %sclean=%d %storn=%d", prefix,
           outcome->error, prefix, outcome->next_seq, prefix, r->clean, prefix, r->torn_records);
    printf(" %sscanned=%" PRIu64 " %scorrupt=%" PRIu64 " %saside=%" PRIu64, prefix,
           r->records_scanned, prefix, r->corrupt_records, prefix,
           r->bytes_set_aside + r->segments_set_aside);
    printf(" %send_segment=%" PRIu64 " %send_offset=%" PRIu64, prefix, r->end_segment, prefix,
           r->end_offset);
    printf(" %sdurable_segment=%" PRIu64 " %sdurable_offset=%" PRIu64 " %sverify=%d", prefix,
           r->durable_segment, prefix, r->durable_offset, prefix, outcome->verify);
}

static void print_found(const char *prefix, const found_t *found) {
    printf(" %serror=%" PRId64 " %sfirst=%" PRIu64 " %snext=%" PRIu64 " %smessages=%" PRIu64
           " %swrong=%" PRIu64,
           prefix, found->error, prefix, found->first_seq, prefix, found->next_seq, prefix,
           found->messages, prefix, found->wrong);
}

static void run_cycle(const char *path, uint64_t salt, uint64_t seed, uint64_t segment_size,
                      int fresh) {
    cycle_t cycle = {path, salt, mix(seed), segment_size, 0, 0};
    uint64_t random = mix(seed + 1);
    int recovery_kills = 0, crashes = 0;
    if (fresh) ledger_reset(ledger);
    ledger->operations = ledger->finished = 0;
    ledger->closed = 0; /* the recoveries of the cycle before left the queue as a crash would */
    int writer_status = kill_writer(&cycle, &random);
    cycle.kill_delay_ns = 0;
    uint64_t acknowledged = ledger->acknowledged, attempted = ledger->attempted;
    uint64_t was_closed = ledger->closed;
    memset(before, 0, sizeof *before);
    crashes += reap(start(look_before_recovery, &cycle)) != 0;
    for (uint64_t left = draw(&random, RECOVERY_KILLS_MAX + 1); left > 0; left--) {
        cycle.random = mix(cycle.random);
        cycle.kill_delay_ns = 1 + draw(&random, 400 * MICROSECOND);
        int status = reap(start(recover_first, &cycle));
        recovery_kills += status == SIGKILL;
        crashes += status != 0 && status != SIGKILL;
        was_closed = 0; /* one of them may have opened the queue before it died */
    }
    cycle.kill_delay_ns = 0;
    cycle.random = mix(cycle.random);
    crashes += reap(start(recover_first, &cycle)) != 0;
    uint64_t first_digest = digest(path, outcomes[0].recovery.end_segment);
    cycle.random = mix(cycle.random);
    crashes += reap(start(recover_again, &cycle)) != 0;
    uint64_t second_digest = digest(path, outcomes[0].recovery.end_segment);

    printf("acknowledged=%" PRIu64 " attempted=%" PRIu64 " operations=%" PRIu64, acknowledged,
           attempted, ledger->operations);
    printf(" opened=%" PRIu64 " closed=%" PRIu64 " retained=%" PRIu64 " writer_status=%d",
           ledger->opened, was_closed, ledger->retained, writer_status);
    printf(" recovery_kills=%d crashes=%d same_bytes=%d", recovery_kills, crashes,
           first_digest == second_digest);
    printf(" failed_line=%" PRIu64 " failed_code=%" PRId64, ledger->failed_line,
           ledger->failed_code);
    print_found("before_", before);
    print_outcome("first_", &outcomes[0]);
    print_found("first_all_", &outcomes[0].all);
    for (int i = 0; i < LEDGER_READERS; i++) {
        char prefix[32];
        printf(" reader%d_committed=%" PRId64 " reader%d_attempted=%" PRId64, i,
               ledger->readers[i].committed, i, ledger->readers[i].attempted);
        snprintf(prefix, sizeof prefix, "reader%d_", i);
        print_found(prefix, &outcomes[0].named[i]);
    }
    print_outcome("second_", &outcomes[1]);
    printf(" detail=%s|%s|%s\n", ledger->failed_detail, outcomes[0].detail, outcomes[1].detail);
    fflush(stdout);

    /* From here on what was recovered counts as promised. */
    ledger->acknowledged = ledger->attempted = outcomes[1].next_seq;
    ledger->opened = 1;
    ledger->failed_line = 0;
    for (int i = 0; i < LEDGER_READERS; i++) {
        const found_t *found = &outcomes[0].named[i];
        /* A first commit that was under way stays in doubt until the next one. */
        if (ledger->readers[i].committed == NEVER_COMMITTED) continue;
        int64_t resumed = (int64_t)(found->messages ? found->first_seq : outcomes[0].next_seq);
        ledger->readers[i] = (ledger_reader_t){resumed, resumed};
    }
}

static void *share(size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return at;
}

int main(void) {
    char line[2048], path[1024];
    uint64_t salt, seed, segment_size;
    int fresh;
    ledger = ledger_new();
    outcomes = share(2 * sizeof *outcomes);
    before = share(sizeof *before);
    if (!ledger) return 2;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "cycle %1023s %" SCNu64 " %" SCNu64 " %" SCNu64 " %d", path, &salt, &seed,
                   &segment_size, &fresh) != 5) {
            fprintf(stderr, "not a cycle: %s", line);
            return 2;
        }
        run_cycle(path, salt, seed, segment_size, fresh);
    }
    return 0;
}
