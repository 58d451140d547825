#include "housekeeper.h"

#include "queue.h"

#include <pthread.h>
#include <sys/wait.h>

typedef struct counted {
    ac_task_t task; /* first */
    uint64_t turns;
    uint64_t pause_ns, every_ns;
    uint32_t forked;
} counted_t;

static uint64_t take_turn(ac_task_t *task, uint64_t now_ns) {
    counted_t *counted = (counted_t *)(void *)task;
    ac_os_sleep_ns(counted->pause_ns);
    __atomic_fetch_add(&counted->turns, 1, __ATOMIC_SEQ_CST);
    return counted->every_ns ? now_ns + counted->every_ns : UINT64_MAX;
}

static void on_fork(ac_task_t *task) {
    ((counted_t *)(void *)task)->forked = 1;
}

static void wait_for(counted_t *counted, uint64_t turns) {
    uint64_t deadline = ac_os_monotonic_ns() + 20000000000u;
    while (ac_load_seq_cst_u64(&counted->turns) < turns) {
        CHECK(ac_os_monotonic_ns() < deadline);
        ac_os_sleep_ns(100000);
    }
}

static void add(counted_t *counted, enum ac_lane lane) {
    counted->task.run = take_turn;
    counted->task.forked = on_fork;
    counted->task.lane = lane;
    CHECK_EQUAL(ac_housekeeper_add(&counted->task), 0);
}

TEST(a_task_runs_when_nudged_and_when_it_is_due) {
    counted_t nudged = {0}, timed = {.every_ns = 1000000};
    add(&nudged, AC_LANE_MEMORY);
    add(&timed, AC_LANE_DISK);
    for (uint64_t i = 1; i <= 20; i++) {
        ac_housekeeper_nudge(&nudged.task);
        wait_for(&nudged, i);
    }
    ac_housekeeper_nudge(&timed.task);
    wait_for(&timed, 5);
    ac_housekeeper_remove(&nudged.task);
    ac_housekeeper_remove(&timed.task);
}

static uint64_t seen_together;

static void note_together(ac_task_t *const *tasks, size_t count) {
    for (size_t i = 0; i < count; i++)
        CHECK(tasks[i]->together == note_together);
    if (count > ac_load_seq_cst_u64(&seen_together)) ac_exchange_seq_cst_u64(&seen_together, count);
}

TEST(tasks_that_are_due_at_one_moment_may_begin_together) {
    counted_t busy = {.pause_ns = 20000000}, alone = {0}, group[300] = {{.turns = 0}};
    add(&busy, AC_LANE_DISK);
    add(&alone, AC_LANE_DISK);
    for (size_t i = 0; i < 300; i++) {
        group[i].task.together = note_together;
        add(&group[i], AC_LANE_DISK);
    }
    ac_housekeeper_nudge(&busy.task); /* the others become due while it runs */
    for (size_t i = 0; i < 300; i++)
        ac_housekeeper_nudge(&group[i].task);
    ac_housekeeper_nudge(&alone.task);
    for (size_t i = 0; i < 300; i++)
        wait_for(&group[i], 1);
    wait_for(&alone, 1);
    CHECK(ac_load_seq_cst_u64(&seen_together) > 50);
    for (size_t i = 0; i < 300; i++)
        ac_housekeeper_remove(&group[i].task);
    for (size_t i = 0; i < 300; i++)
        CHECK_EQUAL(group[i].turns, 1);
    ac_housekeeper_remove(&busy.task);
    ac_housekeeper_remove(&alone.task);
}

TEST(who_began_together_need_not_stay_for_the_turns_of_the_others) {
    counted_t group[20] = {{.turns = 0}};
    uint64_t turns = 0;
    ac_exchange_seq_cst_u64(&seen_together, 0);
    for (size_t i = 0; i < 20; i++) {
        group[i].pause_ns = 20000000;
        group[i].task.together = note_together;
        add(&group[i], AC_LANE_DISK);
        ac_housekeeper_nudge(&group[i].task);
    }
    while (ac_load_seq_cst_u64(&seen_together) < 10)
        ac_os_sleep_ns(100000);
    for (size_t i = 0; i < 20; i++)
        ac_housekeeper_remove(&group[i].task);
    for (size_t i = 0; i < 20; i++)
        turns += group[i].turns;
    CHECK(turns < 10); /* and not once for each one before it is released */
}

TEST(a_nudge_during_a_turn_gives_another_one) {
    counted_t counted = {.pause_ns = 20000000};
    add(&counted, AC_LANE_MEMORY);
    ac_housekeeper_nudge(&counted.task);
    ac_os_sleep_ns(5000000);
    ac_housekeeper_nudge(&counted.task);
    wait_for(&counted, 1);
    wait_for(&counted, 2);
    ac_housekeeper_remove(&counted.task);
}

TEST(a_removed_task_is_not_running_and_never_will) {
    for (int i = 0; i < 200; i++) {
        counted_t counted = {.pause_ns = (uint64_t)(i % 5) * 20000};
        add(&counted, (enum ac_lane)(i % AC_LANES));
        ac_housekeeper_nudge(&counted.task);
        ac_housekeeper_remove(&counted.task);
        uint64_t turns = ac_load_seq_cst_u64(&counted.turns);
        ac_housekeeper_nudge(&counted.task);
        ac_os_sleep_ns(50000);
        CHECK_EQUAL(ac_load_seq_cst_u64(&counted.turns), turns);
    }
}

static void check_not_held_up(enum ac_lane slow_lane, enum ac_lane quick_lane) {
    counted_t slow = {.pause_ns = 300000000}, quick = {0};
    add(&slow, slow_lane);
    add(&quick, quick_lane);
    ac_housekeeper_nudge(&slow.task);
    for (uint64_t i = 1; i <= 10; i++) {
        ac_housekeeper_nudge(&quick.task);
        wait_for(&quick, i);
    }
    CHECK_EQUAL(ac_load_seq_cst_u64(&slow.turns), 0);
    ac_housekeeper_remove(&slow.task);
    ac_housekeeper_remove(&quick.task);
}

TEST(a_slow_task_in_one_lane_does_not_hold_up_the_others) {
    for (int slow = 0; slow < AC_LANES; slow++)
        check_not_held_up((enum ac_lane)slow, (enum ac_lane)((slow + 1) % AC_LANES));
}

TEST(a_forked_child_is_told_and_starts_without_tasks) {
    counted_t counted = {0};
    add(&counted, AC_LANE_MEMORY);
    pid_t child = fork();
    if (child == 0) _exit(counted.forked ? 0 : 1);
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQUAL(counted.forked, 0);
    ac_housekeeper_nudge(&counted.task);
    wait_for(&counted, 1);
    ac_housekeeper_remove(&counted.task);
}
