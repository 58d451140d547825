#include "aiochronicle.h"

#include "check.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>

static ac_change_t changes[8];
static ac_error_t error;

static int open_path(const char *path) {
    return open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void make_file(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    close(fd);
}

TEST(a_change_names_the_directory_and_the_file) {
    int watches = ac_watch_open(&error), dir = open_path(check_directory);
    int watch = ac_watch_add(watches, dir, &error);
    CHECK(watches >= 0 && dir >= 0 && watch >= 0);
    CHECK_EQUAL(ac_watch_add(watches, dir, &error), watch);
    CHECK_EQUAL(ac_watch_read(watches, changes, 8), 0);
    CHECK_EQUAL(mkdirat(dir, "queue", 0700), 0);
    CHECK_EQUAL(ac_watch_read(watches, changes, 8), 1);
    CHECK_EQUAL(changes[0].watch, watch);
    CHECK(strcmp(changes[0].name, "queue") == 0);
    ac_watch_remove(watches, watch);
    ac_watch_read(watches, changes, 8);
    CHECK_EQUAL(mkdirat(dir, "another", 0700), 0);
    CHECK_EQUAL(ac_watch_read(watches, changes, 8), 0);
    close(dir);
    close(watches);
}

TEST(without_room_the_last_change_says_that_some_were_lost) {
    char path[600];
    int watches = ac_watch_open(&error), dir = open_path(check_directory);
    CHECK(ac_watch_add(watches, dir, &error) >= 0);
    for (int i = 0; i < 9; i++) {
        snprintf(path, sizeof path, "%s/%d", check_directory, i);
        make_file(path);
    }
    CHECK_EQUAL(ac_watch_read(watches, changes, 8), 8);
    CHECK(changes[0].watch >= 0);
    CHECK_EQUAL(changes[7].watch, -1);
    CHECK_EQUAL(ac_watch_read(watches, changes, 8), 0);
    CHECK_EQUAL(ac_watch_read(watches, changes, 0), 0);
    close(dir);
    close(watches);
}

TEST(limits_are_errors_with_their_errno) {
    int watches = ac_watch_open(&error), dir = open_path(check_directory);
    ac_injection_t injection = {.call = AC_CALL_WATCH, .answer = ENOSPC, .first = 1, .times = 1};
    ac_os_set_hook(ac_os_inject, &injection);
    CHECK(ac_watch_add(watches, dir, &error) < 0);
    CHECK_EQUAL(error.sys_errno, ENOSPC);
    injection = (ac_injection_t){.call = AC_CALL_WATCH, .answer = EMFILE, .first = 1, .times = 1};
    CHECK(ac_watch_open(&error) < 0);
    CHECK_EQUAL(error.sys_errno, EMFILE);
    ac_os_set_hook(NULL, NULL);
    close(dir);
    close(watches);
}
