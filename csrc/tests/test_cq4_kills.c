/* Processes that append to a Java queue are killed: at every instruction of one call, and at any time. Whoever comes next
 * goes on, what was acknowledged is there, and what was not is there as a whole or not at all. */
#include "cq4_queue.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>

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

/* Everything acknowledged is there, and nothing that was never written; then the count may differ by the attempts that
 * were cut short. */
static void check_ledger(void) {
    inventory_t seen = read_everything();
    for (int who = 0; who < WRITERS_MAX; who++) {
        CHECK(seen.next[who] <= ledger->attempted[who]);
        CHECK(seen.next[who] >= ledger->acknowledged[who]);
    }
}

/* ---- at every instruction ---- */

typedef struct scenario {
    const char *roll_cycle;
    int prepared;  /* messages before the call */
    int64_t later; /* ms that the clock goes on before it */
    int reopens;   /* it opens the queue */
} scenario_t;

/* In the child: stops where the stepping is to begin, and when it is done. */
static void run(const scenario_t *scenario) {
    ac_cq4_writer_t *writer = NULL;
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(2);
    if (!scenario->reopens) {
        writer = open_java(scenario->roll_cycle);
        put_noted(writer, 1);
    }
    set_ms += scenario->later;
    raise(SIGSTOP);
    if (!writer) writer = open_java(scenario->roll_cycle);
    put_noted(writer, 1);
    raise(SIGSTOP);
    _exit(0);
}

static int is_stopped(int status) {
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
}

/* Kills it after so many instructions. 0 = it was done before. Threads of the child are not stepped. */
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

/* Steps of 1 while the files change, larger ones where a call does much. */
static void kill_everywhere(const scenario_t *scenario, uint64_t stride) {
    uint64_t instruction = 0, kills = 0;
    make_ledger();
    ac_cq4_writer_t *writer = open_java(scenario->roll_cycle);
    for (int i = 0; i < scenario->prepared; i++)
        put_noted(writer, 0);
    ac_cq4_writer_free(writer);
    int64_t start = set_ms;
    while (kill_after(scenario, instruction)) {
        instruction += stride + kills % 3;
        kills++;
        set_ms += scenario->later;
        check_ledger();
        if (kills % 8 == 0) { /* somebody goes on */
            writer = open_java(NULL);
            put_noted(writer, 2);
            check_ledger();
            CHECK(is_finished());
            ac_cq4_writer_free(writer);
        }
    }
    printf("%s: killed %d times\n", scenario->roll_cycle, (int)kills);
    CHECK(kills > 50);
    set_ms = start;
}

TEST_IN_MEMORY(killed_at_every_instruction_of_an_append) {
    scenario_t scenario = {.roll_cycle = "FAST_DAILY", .prepared = 3};
    kill_everywhere(&scenario, 1);
}

/* Every message is indexed, and each eighth begins a page. */
TEST_IN_MEMORY(killed_at_every_instruction_of_an_append_with_a_page) {
    make_ledger();
    int64_t start = set_ms;
    uint64_t instruction = 0, kills = 0;
    /* A fresh day for each: the index of one has 64 places. */
    scenario_t scenario = {.roll_cycle = "TEST_DAILY"};
    do {
        ac_cq4_writer_t *writer = open_java("TEST_DAILY");
        for (int i = 0; i < 7; i++)
            put_noted(writer, 0);
        ac_cq4_writer_free(writer);
        check_ledger();
        kills++;
        instruction += 3;
        int went_on = kill_after(&scenario, instruction);
        check_ledger();
        writer = open_java(NULL);
        for (int i = 0; i < 10; i++)
            put_noted(writer, 2);
        ac_cq4_writer_free(writer);
        check_ledger();
        set_ms += 86400000;
        if (!went_on) break;
    } while (kills < 400);
    printf("killed %d times\n", (int)kills);
    set_ms = start;
}

TEST_IN_MEMORY(killed_while_rolling) {
    scenario_t scenario = {.roll_cycle = "TEST4_SECONDLY", .prepared = 2, .later = 1000};
    kill_everywhere(&scenario, 499);
}

TEST_IN_MEMORY(killed_while_opening_and_creating) {
    uint64_t instruction = 0;
    int kills = 0;
    make_ledger();
    scenario_t scenario = {.roll_cycle = "TEST4_DAILY", .reopens = 1};
    while (kill_after(&scenario, instruction)) {
        instruction += 307;
        kills++;
        /* Sometimes the queue is there already, sometimes it is made anew. */
        ac_cq4_writer_t *writer = open_java("TEST4_DAILY");
        put_noted(writer, 2);
        ac_cq4_writer_free(writer);
        check_ledger();
        if (kills % 3 == 0) {
            nftw(check_path("queue"), check_remove, 16, FTW_DEPTH | FTW_PHYS);
            make_ledger();
        }
    }
    printf("killed %d times\n", kills);
    CHECK(kills > 50);
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
