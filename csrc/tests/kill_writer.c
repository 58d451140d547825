/* Kills writers at random instants; each queue is recovered in fresh processes and compared with what
 * its writer had acknowledged.
 *
 *     kill_writer ROOT SEED CYCLES LANES KEEP_EVERY
 *
 * A cycle: a victim is forked and killed; a reader reads what is there; up to two recoveries are forked and killed;
 * then one runs to its end, and another one, which must leave the same bytes. After each of these deaths the files
 * beside the segments are checked, too (beside.h). A queue is used for a few cycles. The kernel takes long to end a
 * killed process (it removes its inotify watches), so many queues are in use at once, each in a lane of its own.
 *
 * The output is lines: `tally` with numbers for each finished queue; `kept` for one queue in KEEP_EVERY, with its
 * path, which the caller checks and removes, and with the readers that registered during retention and never
 * committed, whose segment may be gone; `violation` with the first broken promise, whose queue is kept as well.
 * Everything random follows from SEED and the number of the queue, except the instant of the kill. The program ends
 * early when standard input is closed. */
#include "beside.h"
#include "victim.h"

#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { CYCLES_PER_QUEUE = 4, RECOVERY_KILLS_MAX = 2, HANGS_AFTER_S = 60, REMOVAL_FDS = 8 };

static const uint64_t segment_sizes[] = {4096, 4160, 8192, 16384, 65536};

/* The report of a recovery. */
typedef struct outcome {
    int64_t error;
    char detail[256];
    uint64_t next_seq;
    int verify;       /* every record was checked, even of a clean queue */
    int64_t intruder; /* what a second writer got at the same time */
    ac_recovery_t recovery;
    found_t all;
    found_t named[LEDGER_READERS];
} outcome_t;

/* The results of the processes of one lane. */
typedef struct lane {
    ledger_t *ledger;
    outcome_t outcomes[2];
    found_t before;
} lane_t;

/* What happened in a cycle and is not in the lane. */
typedef struct cycle {
    uint64_t acknowledged;
    uint64_t attempted;
    uint64_t closed;
    uint64_t recovery_kills;
    int crashes;
    int writer_status;
    walk_t walks[2]; /* after each recovery that was not killed */
    walk_t archived;
    int deaths; /* the writer's and those of all recoveries, killed or not */
    enum beside_after after[1 + RECOVERY_KILLS_MAX + 2];
    char broken[512];
} cycle_t;

/* Where the kills hit, to show that they hit everything. */
typedef struct tally {
    uint64_t cycles;
    uint64_t in_a_call;
    uint64_t took_effect;
    uint64_t before_first_open;
    uint64_t after_clean_close;
    uint64_t inside_recovery;
    uint64_t messages;
} tally_t;

typedef struct plan {
    const char *root;
    uint64_t seed;
    uint64_t queues;
    uint64_t keep_every;
} plan_t;

static lane_t *lane; /* shared with its processes */

/* The files beside the segments, first as the cycle before left them and then after each death. */
static beside_t besides[1 + 1 + RECOVERY_KILLS_MAX + 2];
static chart_t chart;

static struct common { /* shared by all */
    uint64_t queues;
    uint64_t violations;
} *common;

static void *share(size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return at;
}

/* ---- the processes ---- */

static pid_t start(void (*run)(const job_t *), const job_t *job) {
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run(job);
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

static void draw_instant(job_t *job, uint64_t *random) {
    job->kill_operation = job->kill_delay_ns = 0;
    switch (draw(random, 8)) {
    case 0: /* by the parent */
        break;
    case 1:
    case 2: /* while it opens, or not long after */
        job->kill_delay_ns = 1 + draw(random, 1000 * MICROSECOND);
        break;
    default: /* while it works */
        job->kill_operation = 1 + draw(random, OPERATIONS_MAX / 2);
        job->kill_delay_ns = 1 + draw(random, 20 * MICROSECOND);
    }
}

static int kill_writer(job_t *job, uint64_t *random) {
    draw_instant(job, random);
    pid_t pid = start(write_until_killed, job);
    if (!job->kill_delay_ns) {
        struct timespec pause = {.tv_nsec = (long)draw(random, 1000 * MICROSECOND)};
        nanosleep(&pause, NULL);
        kill(pid, SIGKILL);
    }
    return reap(pid);
}

static void look_before_recovery(const job_t *job) {
    ac_error_t err;
    alarm(HANGS_AFTER_S);
    look(job->path, NULL, job->salt, &lane->before, &err);
    if (lane->before.error == AC_E_NOT_FOUND && !job->ledger->opened) lane->before.error = 0;
    _exit(0);
}

static int then_close(const job_t *job) {
    return (int)(job->random % 2);
}

static void recover(const job_t *job, outcome_t *outcome, int closes) {
    ac_writer_config_t config;
    ac_writer_t *writer = NULL, *intruder = NULL;
    ac_writer_stats_t stats;
    ac_error_t err, ignored;
    uint64_t random = job->random;
    alarm(HANGS_AFTER_S);
    if (job->kill_delay_ns) arm_kill(job->kill_delay_ns);
    draw_options(&config, &random, job);
    config.retention = 0; /* so that two recoveries can be compared */
    memset(&err, 0, sizeof err);
    memset(outcome, 0, sizeof *outcome);
    outcome->verify = config.verify;
    outcome->error = ac_writer_open(job->path, &config, &writer, &err);
    if (outcome->error == AC_OK) {
        ac_writer_stats(writer, &stats);
        ac_writer_recovery(writer, &outcome->recovery);
        outcome->next_seq = stats.next_seq;
        outcome->intruder = ac_writer_open(job->path, &config, &intruder, &ignored);
        look(job->path, NULL, job->salt, &outcome->all, &err);
        for (int i = 0; i < LEDGER_READERS; i++)
            if (job->ledger->readers[i].committed != NEVER_COMMITTED)
                look(job->path, reader_names[i], job->salt, &outcome->named[i], &err);
        if (closes) outcome->error = ac_writer_close(writer, &err);
    }
    memcpy(outcome->detail, err.detail, sizeof outcome->detail);
    _exit(0); /* without a close, which could repair something */
}

static void recover_first(const job_t *job) {
    recover(job, &lane->outcomes[0], 0);
}

static void recover_again(const job_t *job) {
    recover(job, &lane->outcomes[1], then_close(job));
}

static void take_besides(const job_t *job, cycle_t *cycle, enum beside_after after) {
    cycle->after[cycle->deaths++] = after;
    beside_take(job->path, reader_names, &besides[cycle->deaths]);
}

static void kill_and_recover(job_t *job, uint64_t *random, cycle_t *cycle) {
    ledger_t *ledger = job->ledger;
    memset(cycle, 0, sizeof *cycle);
    ledger->operations = ledger->finished = 0;
    ledger->closed = 0; /* the recoveries of the cycle before left the queue as a crash would */
    cycle->writer_status = kill_writer(job, random);
    cycle->acknowledged = ledger->acknowledged;
    cycle->attempted = ledger->attempted;
    cycle->closed = ledger->closed;
    take_besides(job, cycle, AFTER_WRITER);
    job->kill_delay_ns = 0;
    memset(&lane->before, 0, sizeof lane->before);
    cycle->crashes += reap(start(look_before_recovery, job)) != 0;
    for (uint64_t left = draw(random, RECOVERY_KILLS_MAX + 1); left > 0; left--) {
        job->random = mix(job->random);
        job->kill_delay_ns = 1 + draw(random, 400 * MICROSECOND);
        int status = reap(start(recover_first, job));
        cycle->recovery_kills += status == SIGKILL;
        cycle->crashes += status != 0 && status != SIGKILL;
        cycle->closed = 0; /* one of them may have opened the queue before it died */
        take_besides(job, cycle, status == SIGKILL ? AFTER_KILLED_RECOVERY : AFTER_RECOVERY);
    }
    job->kill_delay_ns = 0;
    for (int i = 0; i < 2; i++) {
        job->random = mix(job->random);
        cycle->crashes += reap(start(i ? recover_again : recover_first, job)) != 0;
        take_besides(job, cycle, i && then_close(job) ? AFTER_CLOSE : AFTER_RECOVERY);
        walk_queue(job->path, job->segment_size, job->salt, lane->outcomes[0].recovery.end_segment,
                   &cycle->walks[i], &chart);
    }
    if (cycle->walks[1].records == 0) chart.next_seq = lane->outcomes[1].next_seq;
    walk_archive(job->archive, job->segment_size, job->salt, &cycle->archived);
}

/* ---- the verdict ---- */

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            snprintf(cycle->broken, sizeof cycle->broken, __VA_ARGS__);                            \
            return -1;                                                                             \
        }                                                                                          \
    } while (0)

static int is_before(uint64_t segment, uint64_t offset, uint64_t than_segment,
                     uint64_t than_offset) {
    return segment < than_segment || (segment == than_segment && offset < than_offset);
}

/* A kill tears nothing that was committed, so recovery may find no corrupt record and set no segment aside. It may set
 * aside bytes of the unfinished record. */
static int judge_recovery(cycle_t *cycle, const outcome_t *outcome, const walk_t *walk,
                          uint64_t next_seq) {
    const ac_recovery_t *r = &outcome->recovery;
    REQUIRE(outcome->error == 0, "recovery fails: %" PRId64 " %s", outcome->error, outcome->detail);
    REQUIRE(outcome->intruder == AC_E_LOCKED, "a second writer got %" PRId64, outcome->intruder);
    REQUIRE(!walk->broken[0], "after recovery: %s", walk->broken);
    REQUIRE(r->torn_records == 0 && r->corrupt_records == 0, "recovery found damage");
    REQUIRE(r->segments_set_aside == 0, "recovery set segments aside");
    REQUIRE(outcome->next_seq == next_seq, "recovery goes on at %" PRIu64, outcome->next_seq);
    REQUIRE(next_seq == 0 ||
                !is_before(r->end_segment, r->end_offset, r->durable_segment, r->durable_offset),
            "recovery ends before what is durable");
    REQUIRE(!is_before(walk->end_segment, walk->end_offset, r->end_segment, r->end_offset),
            "recovery reports an end after the last record");
    REQUIRE(!r->clean || r->records_scanned == 0, "recovery is clean but scanned");
    return 0;
}

/* Each named reader resumes after its last commit, or after the one that was under way. */
static int judge_reader(cycle_t *cycle, const ledger_reader_t *known, const found_t *found,
                        const char *name, uint64_t next_seq) {
    if (known->committed == NEVER_COMMITTED) return 0;
    REQUIRE(found->error == 0, "reader %s: error %" PRId64, name, found->error);
    REQUIRE(found->wrong == 0, "reader %s: wrong message %" PRIu64, name, found->wrong - 1);
    uint64_t resumed = found->messages ? found->first_seq : next_seq;
    REQUIRE(resumed == (uint64_t)known->committed || resumed == (uint64_t)known->attempted,
            "reader %s resumes at %" PRIu64 ", committed were %" PRId64 " and perhaps %" PRId64,
            name, resumed, known->committed, known->attempted);
    REQUIRE(resumed + found->messages == next_seq, "reader %s stops at %" PRIu64, name,
            resumed + found->messages);
    return 0;
}

static int judge_look(cycle_t *cycle, const found_t *found, const walk_t *walk, const char *when) {
    REQUIRE(found->error == 0, "a reader %s recovery: error %" PRId64, when, found->error);
    REQUIRE(found->wrong == 0, "a reader %s recovery: wrong message %" PRIu64, when,
            found->wrong - 1);
    REQUIRE(walk->records == 0 ||
                (found->first_seq == walk->first_seq && found->next_seq == walk->next_seq),
            "a reader %s recovery sees %" PRIu64 " to %" PRIu64 " of %" PRIu64 " to %" PRIu64, when,
            found->first_seq, found->next_seq, walk->first_seq, walk->next_seq);
    return 0;
}

/* Messages that have left the queue are in the archive, unless retention was to delete them. */
static int judge_archive(cycle_t *cycle, const ledger_t *ledger, uint64_t next_seq) {
    const walk_t *archived = &cycle->archived, *walk = &cycle->walks[1];
    uint64_t first_seq = walk->records ? walk->first_seq : next_seq;
    if (ledger->deleted) return 0;
    REQUIRE(!archived->broken[0], "in the archive: %s", archived->broken);
    REQUIRE(archived->first_seq == 0 && archived->next_seq == first_seq,
            "%" PRIu64 " to %" PRIu64 " are archived, and the queue begins at %" PRIu64,
            archived->first_seq, archived->next_seq, first_seq);
    return 0;
}

static int judge_besides(cycle_t *cycle, const job_t *job) {
    for (int i = 0; i < cycle->deaths; i++) {
        beside_case_t judged = {.now = &besides[i + 1],
                                .before = &besides[i],
                                .after = cycle->after[i],
                                .chart = &chart,
                                .ledger = job->ledger,
                                .segment_size = job->segment_size};
        REQUIRE(beside_judge(&judged, reader_names) == 0, "after death %d: %s", i, judged.broken);
    }
    besides[0] = besides[cycle->deaths];
    return 0;
}

static int judge(cycle_t *cycle, const job_t *job) {
    const ledger_t *ledger = job->ledger;
    const outcome_t *first = &lane->outcomes[0], *second = &lane->outcomes[1];
    const walk_t *walk = &cycle->walks[1];
    REQUIRE(cycle->writer_status == SIGKILL, "the writer ended with %d", cycle->writer_status);
    REQUIRE(cycle->crashes == 0, "a reader or a recovery crashed or hung");
    REQUIRE(ledger->failed_line == 0, "a call at victim.h:%" PRIu64 " gave %" PRId64 " %s",
            ledger->failed_line, ledger->failed_code, ledger->failed_detail);
    /* A queue of which only an empty segment is left has nothing to check. */
    uint64_t next_seq = walk->records ? walk->next_seq : second->next_seq;
    REQUIRE(next_seq == cycle->acknowledged || next_seq == cycle->attempted,
            "next seq is %" PRIu64 ", promised were %" PRIu64 " and perhaps %" PRIu64, next_seq,
            cycle->acknowledged, cycle->attempted);
    if (judge_archive(cycle, ledger, next_seq) < 0) return -1;
    if (judge_recovery(cycle, first, &cycle->walks[0], next_seq) < 0 ||
        judge_recovery(cycle, second, walk, next_seq) < 0)
        return -1;
    if (judge_look(cycle, &lane->before, walk, "before") < 0 ||
        judge_look(cycle, &first->all, walk, "after") < 0)
        return -1;
    REQUIRE(!cycle->closed || first->verify || first->recovery.clean,
            "closed cleanly, but recovered");
    REQUIRE(cycle->walks[0].digest == walk->digest, "a second recovery changed the segments");
    for (int i = 0; i < LEDGER_READERS; i++)
        if (judge_reader(cycle, &ledger->readers[i], &first->named[i], reader_names[i], next_seq))
            return -1;
    return judge_besides(cycle, job);
}

static void count(tally_t *tally, const cycle_t *cycle, const ledger_t *ledger) {
    int hit = cycle->attempted != cycle->acknowledged;
    uint64_t next_seq = lane->outcomes[1].next_seq;
    tally->cycles++;
    tally->in_a_call += (uint64_t)hit;
    tally->took_effect += hit && next_seq == cycle->attempted;
    tally->before_first_open += !ledger->opened;
    tally->after_clean_close += cycle->closed;
    tally->inside_recovery += cycle->recovery_kills;
    tally->messages += next_seq;
}

/* From here on the recovered messages count as promised. */
static void go_on(ledger_t *ledger) {
    ledger->acknowledged = ledger->attempted = lane->outcomes[1].next_seq;
    ledger->opened = 1;
    for (int i = 0; i < LEDGER_READERS; i++) {
        const found_t *found = &lane->outcomes[0].named[i];
        /* A first commit that was under way stays in doubt until the next one. */
        if (ledger->readers[i].committed == NEVER_COMMITTED) continue;
        int64_t resumed =
            (int64_t)(found->messages ? found->first_seq : lane->outcomes[0].next_seq);
        ledger->readers[i] = (ledger_reader_t){resumed, resumed};
    }
}

/* ---- queues, one after the other, in lanes ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

/* One write per line, because other lanes write lines, too. */
static void say_kept(const job_t *job) {
    const ledger_t *ledger = job->ledger;
    char late[128] = "";
    for (int i = 0; i < LEDGER_READERS; i++)
        if (ledger->retained && ledger->readers[i].committed == NEVER_COMMITTED)
            strcat(strcat(late, late[0] ? "," : ""), reader_names[i]);
    dprintf(STDOUT_FILENO, "kept path=%s salt=%" PRIu64 " late=%s\n", job->path, job->salt, late);
}

static void say_tally(const tally_t *tally) {
    dprintf(STDOUT_FILENO,
            "tally cycles=%" PRIu64 " in_a_call=%" PRIu64 " took_effect=%" PRIu64
            " before_first_open=%" PRIu64 " after_clean_close=%" PRIu64 " inside_recovery=%" PRIu64
            " messages=%" PRIu64 "\n",
            tally->cycles, tally->in_a_call, tally->took_effect, tally->before_first_open,
            tally->after_clean_close, tally->inside_recovery, tally->messages);
}

static void run_queue(const plan_t *plan, uint64_t number) {
    char place[1024], path[1040], archive[1040];
    uint64_t random = mix(plan->seed ^ mix(number));
    tally_t tally = {0};
    snprintf(place, sizeof place, "%s/%" PRIu64, plan->root, number);
    snprintf(path, sizeof path, "%s/queue", place);
    snprintf(archive, sizeof archive, "%s/archive", place);
    if (mkdir(place, 0700) < 0) {
        perror(place);
        _exit(2);
    }
    ledger_reset(lane->ledger);
    beside_take(path, reader_names, &besides[0]); /* nothing yet */
    job_t job = {.path = path, .archive = archive, .ledger = lane->ledger, .salt = mix(random + 1)};
    job.segment_size = segment_sizes[draw(&random, sizeof segment_sizes / sizeof *segment_sizes)];
    for (int turn = 0; turn < CYCLES_PER_QUEUE; turn++) {
        cycle_t cycle;
        job.random = mix(draw(&random, UINT64_MAX));
        kill_and_recover(&job, &random, &cycle);
        if (judge(&cycle, &job) < 0) {
            __atomic_fetch_add(&common->violations, 1, __ATOMIC_SEQ_CST);
            dprintf(STDOUT_FILENO, "violation queue %" PRIu64 " (kept in %s), cycle %d: %s\n",
                    number, path, turn, cycle.broken);
            return;
        }
        count(&tally, &cycle, lane->ledger);
        go_on(lane->ledger);
    }
    if (plan->keep_every && number % plan->keep_every == 0)
        say_kept(&job);
    else
        nftw(place, remove_one, REMOVAL_FDS, FTW_DEPTH | FTW_PHYS);
    say_tally(&tally);
}

static int is_to_stop(void) {
    struct pollfd input = {.fd = STDIN_FILENO};
    return __atomic_load_n(&common->violations, __ATOMIC_SEQ_CST) ||
           (poll(&input, 1, 0) == 1 && (input.revents & (POLLHUP | POLLERR)));
}

static void run_lane(const plan_t *plan) {
    uint64_t number;
    lane = share(sizeof *lane);
    lane->ledger = ledger_new();
    if (!lane->ledger) _exit(2);
    while (!is_to_stop() &&
           (number = __atomic_fetch_add(&common->queues, 1, __ATOMIC_SEQ_CST)) < plan->queues)
        run_queue(plan, number);
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: kill_writer ROOT SEED CYCLES LANES KEEP_EVERY\n");
        return 2;
    }
    uint64_t cycles = strtoull(argv[3], NULL, 10), lanes = strtoull(argv[4], NULL, 10);
    plan_t plan = {argv[1], strtoull(argv[2], NULL, 10),
                   (cycles + CYCLES_PER_QUEUE - 1) / CYCLES_PER_QUEUE, strtoull(argv[5], NULL, 10)};
    common = share(sizeof *common);
    for (uint64_t i = 0; i < lanes; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            perror("fork");
            return 2;
        }
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run_lane(&plan);
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed || common->violations;
}
