/* Long runs of appends in C, for benchmarks/recorder.py, benchmarks/longest.py and benchmarks/durable_peers.py.
 *
 *   record PATH COUNT PARTS         as fast as it goes, nothing is removed: prints the real nanoseconds per message of
 *                                   each part
 *   longest PATH RATE SECONDS KEPT  so many messages a second, with retention: prints "percentile nanoseconds" lines,
 *                                   "own nanoseconds" of the longest append that the host did not interrupt, "faults
 *                                   count" of the thread, and for each append over 1 ms a line "long microseconds", what
 *                                   the kernel counted for the thread meanwhile, ":", cause, state, stack
 *
 *   durable PATH                    for each number on standard input, so many messages, each flushed: prints "RESULT"
 *                                   and the nanoseconds of each on one line
 *
 * A second thread watches the appending one: when an append has taken 400 us, it reads the state of that thread and
 * its stack in the kernel (as root; otherwise the stack is "?"). All records have 100 bytes of payload.
 *
 * The kernel's counters of the thread show the cause of a long append. With CONFIG_PARAVIRT_TIME_ACCOUNTING, processor
 * time does not include the time that the host gave to other guests: time that was spent neither running nor waiting,
 * without a switch to another thread, was taken by the host. */
#include "aiochronicle.h"
#include "atomics.h"
#include "os.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    PAYLOAD = 100,
    LONG_NS = 1000000,
    SUSPECT_NS = 400000,
    LONG_MAX_KEPT = 4096,
    BUCKETS = 64 * 32
};

static uint8_t payload[PAYLOAD];

static void fail(const char *what, const ac_error_t *err) {
    fprintf(stderr, "%s: %s: %s\n", what, err ? err->path : "", err ? err->detail : "");
    exit(1);
}

static ac_writer_t *open_queue(const char *path, uint64_t kept_bytes) {
    ac_writer_config_t config;
    ac_writer_t *writer;
    ac_error_t err;
    ac_writer_defaults(&config);
    config.retention = kept_bytes > 0;
    config.retain_bytes = kept_bytes;
    if (ac_writer_open(path, &config, &writer, &err) != AC_OK) fail("open", &err);
    return writer;
}

static void append(ac_writer_t *writer) {
    ac_error_t err;
    if (ac_writer_append(writer, payload, PAYLOAD, 0, AC_NOW, &err) < 0) fail("append", &err);
}

static void close_queue(ac_writer_t *writer) {
    ac_error_t err;
    if (ac_writer_close(writer, &err) != AC_OK) fail("close", &err);
    ac_writer_free(writer);
}

static void record(const char *path, uint64_t count, uint64_t parts) {
    ac_writer_t *writer = open_queue(path, 0);
    for (uint64_t part = 0; part < parts; part++) {
        uint64_t started_ns = ac_os_monotonic_ns();
        for (uint64_t i = 0; i < count / parts; i++)
            append(writer);
        printf("%.2f\n", (double)(ac_os_monotonic_ns() - started_ns) / (double)(count / parts));
        fflush(stdout);
    }
    close_queue(writer);
}

static void append_durably(const char *path) {
    char line[64];
    ac_error_t err;
    ac_writer_t *writer = open_queue(path, 0);
    while (fgets(line, sizeof line, stdin)) {
        uint64_t count = strtoull(line, NULL, 10);
        uint64_t *taken_ns = ac_os_alloc((count + 1) * sizeof *taken_ns);
        if (!taken_ns) fail("memory", NULL);
        for (uint64_t i = 0; i < count; i++) {
            uint64_t started_ns = ac_os_monotonic_ns();
            append(writer);
            if (ac_writer_flush(writer, &err) < 0) fail("flush", &err);
            taken_ns[i] = ac_os_monotonic_ns() - started_ns;
        }
        printf("RESULT");
        for (uint64_t i = 0; i < count; i++)
            printf(" %llu", (unsigned long long)taken_ns[i]);
        printf("\n");
        fflush(stdout);
        free(taken_ns);
    }
    close_queue(writer);
}

/* ---- the longest append ---- */

typedef struct sight {
    uint64_t number; /* of the append in which it was seen */
    char state;
    char stack[512];
} sight_t;

static uint64_t append_number, append_since_ns; /* atomic: the append under way; 0 = none is */
static uint32_t is_over;
static int appender_tid;
static sight_t sights[LONG_MAX_KEPT];
static uint32_t sight_count;

static void read_text(const char *name, char *out, size_t room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", appender_tid, name);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(out, 1, room - 1, file) : 0;
    out[length] = 0;
    if (file) fclose(file);
}

static void look(sight_t *sight) {
    char text[4096], *name;
    read_text("stat", text, sizeof text);
    const char *after = strrchr(text, ')');
    sight->state = after && after[1] ? after[2] : '?';
    read_text("stack", text, sizeof text);
    size_t used = 0;
    for (name = strtok(text, "\n"); name && used + 64 < sizeof sight->stack;
         name = strtok(NULL, "\n")) {
        const char *function = strstr(name, "] ");
        if (!function) continue;
        int length = (int)strcspn(function + 2, "+");
        used += (size_t)snprintf(sight->stack + used, sizeof sight->stack - used, "%s%.*s",
                                 used ? "<" : "", length < 48 ? length : 48, function + 2);
    }
    if (used == 0) snprintf(sight->stack, sizeof sight->stack, "?");
}

/* What the kernel has counted for the thread that appends. */
typedef struct account {
    uint64_t cpu_ns, delay_ns; /* time running, and time ready while another thread ran */
    long faults, disk_faults, sleeps, preemptions;
} account_t;

static account_t take_account(FILE *schedstat) {
    account_t account = {.cpu_ns = ac_os_thread_cpu_ns()};
    unsigned long long ran_ns, delay_ns;
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    account.faults = usage.ru_minflt;
    account.disk_faults = usage.ru_majflt;
    account.sleeps = usage.ru_nvcsw;
    account.preemptions = usage.ru_nivcsw;
    rewind(schedstat);
    if (fscanf(schedstat, "%llu %llu", &ran_ns, &delay_ns) == 2) account.delay_ns = delay_ns;
    return account;
}

static account_t subtract(account_t after, const account_t *before) {
    after.cpu_ns -= before->cpu_ns;
    after.delay_ns -= before->delay_ns;
    after.faults -= before->faults;
    after.disk_faults -= before->disk_faults;
    after.sleeps -= before->sleeps;
    after.preemptions -= before->preemptions;
    return after;
}

static const char of_the_host[] = "the host had the processor";

/* Returns the cause that took most of the time. */
static const char *find_cause(uint64_t taken_ns, const account_t *spent) {
    uint64_t most_ns = taken_ns / 2;
    if (spent->delay_ns > most_ns) return "another thread had the processor";
    if (spent->cpu_ns > most_ns)
        return spent->faults ? "ran, with page faults" : "ran, or interrupts did";
    return spent->sleeps ? "slept" : of_the_host;
}

typedef struct lengthy {
    uint64_t number, taken_ns;
    account_t spent;
} lengthy_t;

static void *watch(void *unused) {
    uint64_t seen = 0;
    (void)unused;
    while (!ac_load_relaxed_u32(&is_over)) {
        ac_os_sleep_ns(SUSPECT_NS / 2);
        uint64_t number = ac_load_acquire_u64(&append_number);
        uint64_t since = ac_load_acquire_u64(&append_since_ns);
        if (since == 0 || number == seen || ac_os_monotonic_ns() < since + SUSPECT_NS ||
            sight_count == LONG_MAX_KEPT)
            continue;
        sight_t *sight = &sights[sight_count];
        sight->number = seen = number;
        look(sight);
        if (ac_load_acquire_u64(&append_number) == number) sight_count++;
    }
    return NULL;
}

/* 32 buckets for each power of two: 3 % wide. */
static unsigned bucket_of(uint64_t ns) {
    if (ns < 32) return (unsigned)ns;
    unsigned shift = 63 - (unsigned)__builtin_clzll(ns) - 5;
    return (shift + 1) * 32 + (unsigned)((ns >> shift) & 31);
}

static uint64_t upper_end(unsigned bucket) {
    if (bucket < 32) return bucket;
    unsigned shift = bucket / 32 - 1;
    return ((32 + (uint64_t)(bucket % 32) + 1) << shift) - 1;
}

static const char *describe(uint64_t number) {
    static char text[600];
    for (uint32_t i = 0; i < sight_count; i++)
        if (sights[i].number == number) {
            snprintf(text, sizeof text, "%c %s", sights[i].state, sights[i].stack);
            return text;
        }
    return "- not seen";
}

static void longest(const char *path, uint64_t rate, uint64_t seconds, uint64_t kept_bytes) {
    static uint64_t counts[BUCKETS];
    static lengthy_t lengthy[LONG_MAX_KEPT];
    uint32_t long_count = 0;
    uint64_t count = rate * seconds, max_ns = 0, own_max_ns = 0, before = 0;
    pthread_t watcher;
    ac_writer_t *writer = open_queue(path, kept_bytes);
    appender_tid = (int)gettid();
    if (pthread_create(&watcher, NULL, watch, NULL)) fail("thread", NULL);
    FILE *schedstat = fopen("/proc/thread-self/schedstat", "re");
    if (!schedstat) fail("schedstat", NULL);
    account_t start = take_account(schedstat), last = start;
    uint64_t start_ns = ac_os_monotonic_ns();
    for (uint64_t i = 0; i < count; i++) {
        uint64_t due_ns = start_ns + i * 1000000000 / rate, now_ns = ac_os_monotonic_ns();
        /* A pause of 100 us, and what became due in it: 20 messages at 200,000 a second. */
        if (now_ns < due_ns) {
            ac_os_sleep_ns(100000);
            last = take_account(schedstat);
            now_ns = ac_os_monotonic_ns();
        }
        ac_store_release_u64(&append_number, i + 1);
        ac_store_release_u64(&append_since_ns, now_ns);
        append(writer);
        uint64_t taken_ns = ac_os_monotonic_ns() - now_ns;
        ac_store_release_u64(&append_since_ns, 0);
        counts[bucket_of(taken_ns)]++;
        if (taken_ns > max_ns) max_ns = taken_ns;
        int is_own = 1;
        if (taken_ns >= LONG_NS && long_count < LONG_MAX_KEPT) {
            account_t now = take_account(schedstat), spent = subtract(now, &last);
            lengthy[long_count++] = (lengthy_t){i + 1, taken_ns, spent};
            is_own = find_cause(taken_ns, &spent) != of_the_host;
            last = now;
        }
        if (is_own && taken_ns > own_max_ns) own_max_ns = taken_ns;
    }
    ac_store_relaxed_u32(&is_over, 1);
    pthread_join(watcher, NULL);
    static const double shares[] = {0.5, 0.99, 0.999, 0.9999};
    unsigned next = 0;
    for (unsigned bucket = 0; bucket < BUCKETS && next < 4; bucket++) {
        before += counts[bucket];
        while (next < 4 && (double)before >= shares[next] * (double)count)
            printf("%g %llu\n", shares[next++] * 100, (unsigned long long)upper_end(bucket));
    }
    printf("100 %llu\n", (unsigned long long)max_ns);
    printf("own %llu\n", (unsigned long long)own_max_ns);
    printf("faults %ld\n", subtract(take_account(schedstat), &start).faults);
    fclose(schedstat);
    for (uint32_t i = 0; i < long_count; i++) {
        const account_t *spent = &lengthy[i].spent;
        printf("long %llu ran %llu waited %llu us, faults %ld + %ld, slept %ld, preempted %ld: %s; "
               "%s\n",
               (unsigned long long)(lengthy[i].taken_ns / 1000),
               (unsigned long long)(spent->cpu_ns / 1000),
               (unsigned long long)(spent->delay_ns / 1000), spent->faults, spent->disk_faults,
               spent->sleeps, spent->preemptions, find_cause(lengthy[i].taken_ns, spent),
               describe(lengthy[i].number));
    }
    close_queue(writer);
}

int main(int argc, char **argv) {
    for (int i = 0; i < PAYLOAD; i++)
        payload[i] = (uint8_t)(i * 131 + 7);
    if (argc == 5 && strcmp(argv[1], "record") == 0)
        record(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    else if (argc == 3 && strcmp(argv[1], "durable") == 0)
        append_durably(argv[2]);
    else if (argc == 6 && strcmp(argv[1], "longest") == 0)
        longest(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10),
                strtoull(argv[5], NULL, 10));
    else
        fail("usage: see the head of recorder_bench.c", NULL);
    return 0;
}
