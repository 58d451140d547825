/* Processes that append to a Java queue are killed: in an append, at every system call of a roll, and at any time.
 * test_cq4_steps.c covers every instruction. The next writer continues; every acknowledged message is there, and every
 * other one is there as a whole or not at all. */
#include "java_queue.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

/* Shared with the children. */
typedef struct ledger {
    uint64_t attempted[WRITERS_MAX], acknowledged[WRITERS_MAX]; /* number + 1 */
    int64_t ms;
} ledger_t;
static ledger_t *ledger;

static void make_ledger(void) {
    ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ledger != MAP_FAILED);
    memset(ledger, 0, sizeof *ledger);
}

static void put_noted(ac_cq4_writer_t *writer, int who) {
    uint64_t number = ledger->attempted[who];
    ac_store_release_u64(&ledger->attempted[who], number + 1);
    put(writer, who, number);
    ac_store_release_u64(&ledger->acknowledged[who], number + 1);
}

/* Checks that every acknowledged message is there, and nothing that was never written; the count may differ by the
 * attempts that were cut short. */
static void check_ledger(void) {
    inventory_t seen = read_everything();
    for (int who = 0; who < WRITERS_MAX; who++) {
        CHECK(seen.next[who] <= ledger->attempted[who]);
        CHECK(seen.next[who] >= ledger->acknowledged[who]);
    }
}

/* ---- in a call ---- */

/* With a sanitizer, most instructions are its own. Odd, so that loops are not always left at the same
 * place. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 97 };
#else
enum { STRIDE = 3 };
#endif

/* The work of a child until it is killed: some messages, then the call that is stepped through. */
typedef struct scenario {
    const char *roll_cycle;
    int64_t later; /* ms by which the clock advances before the call */
    int is_new;    /* the call opens the queue, too */
    uint64_t call; /* killed at this system call, and not stepped */
} scenario_t;

static uint64_t calls_left;

static int kill_at_call(void *context, int call, const char *path, int fd, uint64_t offset,
                        uint64_t length) {
    (void)context, (void)call, (void)path, (void)fd, (void)offset, (void)length;
    if (calls_left-- == 0) kill(getpid(), SIGKILL);
    return 0;
}

static void run(const scenario_t *scenario) {
    ac_cq4_writer_t *writer = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!scenario->call && ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(2);
    if (!scenario->is_new) {
        writer = open_java(scenario->roll_cycle);
        put_noted(writer, 1);
    }
    set_ms += scenario->later;
    calls_left = scenario->call - 1;
    if (scenario->call)
        ac_os_set_hook(kill_at_call, NULL);
    else
        raise(SIGSTOP);
    if (!writer) writer = open_java(scenario->roll_cycle);
    put_noted(writer, 1);
    ac_os_set_hook(NULL, NULL);
    if (!scenario->call) raise(SIGSTOP);
    _exit(0);
}

static int is_stopped(int status) {
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
}

/* Kills the child after this many instructions. 0 = the call had ended before. */
static int kill_after(const scenario_t *scenario, uint64_t instructions) {
    int status, ended = 0;
    pid_t child = fork();
    if (child == 0) run(scenario);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(is_stopped(status));
    for (uint64_t i = 0; i < instructions && !ended; i++) {
        CHECK_EQUAL(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        CHECK(WIFSTOPPED(status));
        ended = is_stopped(status);
    }
    kill(child, SIGKILL);
    wait_for(child, -1);
    return !ended;
}

static int kill_at(scenario_t *scenario, uint64_t call) {
    int status;
    scenario->call = call;
    pid_t child = fork();
    if (child == 0) run(scenario);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) || status == 0);
    return WIFSIGNALED(status);
}

/* Another writer continues where one was killed. */
static void go_on(const char *roll_cycle, int messages) {
    ac_cq4_writer_t *writer = open_java(roll_cycle);
    for (int i = 0; i < messages; i++)
        put_noted(writer, 2);
    ac_cq4_writer_free(writer);
    check_ledger();
    CHECK(is_finished());
}

static void start_anew(void) {
    nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
    memset(ledger, 0, sizeof *ledger);
}

TEST_IN_MEMORY(killed_in_an_append) {
    scenario_t scenario = {.roll_cycle = "FAST_DAILY"};
    int kills = 0;
    make_ledger();
    go_on("FAST_DAILY", 3);
    for (uint64_t at = 0; kill_after(&scenario, at); at += STRIDE + at % 3, kills++) {
        check_ledger();
        if (kills % 4 == 0) go_on(NULL, 1);
    }
    printf("killed %d times\n", kills);
    CHECK(kills > 20);
}

TEST_IN_MEMORY(killed_at_every_system_call_of_a_roll_and_of_a_creation) {
    int64_t start = set_ms;
    make_ledger();
    for (int is_new = 0; is_new < 2; is_new++) {
        scenario_t scenario = {.roll_cycle = "TEST4_SECONDLY", .later = 1000, .is_new = is_new};
        uint64_t kills = 0;
        do {
            start_anew();
            if (!is_new) go_on("TEST4_SECONDLY", 2);
            int was_killed = kill_at(&scenario, kills + 1);
            set_ms += kills % 2 ? 1000 : 2000;
            go_on("TEST4_SECONDLY", 2);
            if (!was_killed) break;
        } while (++kills < 1000);
        printf("killed %d times\n", (int)kills);
        CHECK(kills > 20 && kills < 1000);
    }
    set_ms = start;
}

/* ---- at any time ---- */

static uint64_t ledger_clock(void *context) {
    (void)context;
    return (uint64_t)__atomic_load_n(&ledger->ms, __ATOMIC_RELAXED) * 1000000;
}

static pid_t start_appender(int who, int pace_us) {
    pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ac_cq4_writer_config_t config = config_of("TEST4_SECONDLY");
    ac_cq4_writer_t *writer;
    config.clock_ns = ledger_clock;
    config.lock_timeout_ns = 15000000000u;
    CHECK_OK(ac_cq4_writer_open(check_path("queue"), &config, &writer, &err), err);
    for (;;) {
        uint64_t number = ledger->attempted[who];
        ac_store_release_u64(&ledger->attempted[who], number + 1);
        int64_t index = try_put(writer, who, number);
        if (index == AC_E_FULL) { /* 4096 to a cycle: until the next */
            ac_os_sleep_ns(1000000);
            continue;
        }
        CHECK_OK(index, err);
        ac_store_release_u64(&ledger->acknowledged[who], number + 1);
        if (pace_us) ac_os_sleep_ns((uint64_t)pace_us * 1000);
    }
}

static void kill_at_random(int kills, int appenders) {
    pid_t children[8];
    uint64_t state = check_seed() | 1;
    make_ledger();
    ledger->ms = START_MS;
    for (int i = 0; i < appenders; i++)
        children[i] = start_appender(i, i ? 0 : 50);
    for (int i = 0; i < kills; i++) {
        ac_os_sleep_ns(check_random(&state) % 4000000);
        __atomic_fetch_add(&ledger->ms, 150, __ATOMIC_RELAXED);
        int victim = (int)(check_random(&state) % (uint64_t)appenders);
        kill(children[victim], SIGKILL);
        wait_for(children[victim], SIGKILL);
        children[victim] = start_appender(victim, victim ? 0 : 50);
    }
    for (int i = 0; i < appenders; i++) {
        kill(children[i], SIGKILL);
        wait_for(children[i], SIGKILL);
    }
    int64_t start = set_ms;
    set_ms = ledger->ms + 10000;
    ac_cq4_writer_t *writer = open_java(NULL);
    put(writer, WRITERS_MAX - 1, 0);
    ledger->attempted[WRITERS_MAX - 1] = 1;
    ac_cq4_writer_free(writer);
    check_ledger();
    CHECK(is_finished());
    inventory_t seen = read_everything();
    printf("%" PRIu64 " messages in %" PRIu64 " cycles\n", seen.messages, seen.cycles);
    CHECK(seen.cycles > 3);
    set_ms = start;
}

TEST(writers_killed_at_random_lose_nothing) {
    const char *wanted = getenv("AIOCHRONICLE_KILLS");
    kill_at_random(wanted ? atoi(wanted) : 60, 3);
}
