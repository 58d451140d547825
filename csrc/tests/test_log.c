#include "log.h"

#include "check.h"
#include "os.h"

#include <pthread.h>
#include <sys/wait.h>

static ac_log_entry_t entry;

TEST(entries_come_out_in_order_with_their_paths) {
    ac_log(AC_LOG_INFO, "/queue", "number %d", 1);
    ac_log(AC_LOG_ERROR, NULL, "number %d", 2);
    CHECK_EQUAL(ac_log_wait(0), 1);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK_EQUAL(entry.level, AC_LOG_INFO);
    CHECK(strcmp(entry.path, "/queue") == 0 && strcmp(entry.text, "number 1") == 0);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK_EQUAL(entry.level, AC_LOG_ERROR);
    CHECK(strcmp(entry.path, "") == 0 && strcmp(entry.text, "number 2") == 0);
    CHECK_EQUAL(ac_log_next(&entry), 0);
    CHECK_EQUAL(ac_log_wait(1000000), 0);
}

TEST(when_there_is_no_room_the_newest_are_dropped_and_counted) {
    int taken = 0;
    for (int i = 0; i < 1000; i++)
        ac_log(AC_LOG_INFO, NULL, "%d", i);
    for (char text[16]; ac_log_next(&entry); taken++) {
        snprintf(text, sizeof text, "%d", taken);
        CHECK(strcmp(entry.text, text) == 0);
        CHECK_EQUAL(entry.dropped_before, 0);
    }
    CHECK(taken >= 100 && taken < 1000);
    ac_log(AC_LOG_INFO, NULL, "after");
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK_EQUAL(entry.dropped_before, 1000 - taken);
}

TEST(what_nobody_asked_for_is_not_made) {
    ac_log(AC_LOG_DEBUG, NULL, "rolled");
    CHECK_EQUAL(ac_log_next(&entry), 0);
    ac_log_set_level(AC_LOG_DEBUG);
    ac_log(AC_LOG_DEBUG, NULL, "rolled");
    ac_log_set_level(AC_LOG_INFO);
    CHECK_EQUAL(ac_log_next(&entry), 1);
    CHECK_EQUAL(entry.level, AC_LOG_DEBUG);
    CHECK_EQUAL(ac_log_next(&entry), 0);
}

static void *wait_for_entry(void *unused) {
    CHECK_EQUAL(ac_log_wait(20000000000u), 1);
    return unused;
}

/* Even if nothing was logged before the fork, while a thread waits. */
TEST(a_forked_child_has_a_log_of_its_own) {
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, wait_for_entry, NULL), 0);
    ac_os_sleep_ns(20000000);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        for (int i = 0; i < 10; i++) {
            ac_log(AC_LOG_INFO, NULL, "child's %d", i);
            if (!ac_log_next(&entry) || strncmp(entry.text, "child's", 7) != 0) _exit(1);
        }
        _exit(ac_log_wait(1000000));
    }
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQUAL(ac_log_next(&entry), 0);
    ac_log(AC_LOG_INFO, NULL, "parent's");
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK_EQUAL(ac_log_next(&entry), 1);
}
