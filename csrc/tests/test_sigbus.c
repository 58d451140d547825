#include "sigbus.h"

#include "queue.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { LENGTH = 16384 };

static int make_file(const char *name, off_t length) {
    int fd = open(check_path(name), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, length) == 0);
    return fd;
}

TEST(a_file_cut_under_its_mapping_reads_as_zeros_and_is_marked) {
    int error, fd = make_file("file", LENGTH);
    ac_map_t *map = ac_map_new(fd, LENGTH, 1, &error);
    ac_map_t *other = ac_map_new(fd, 4096, 0, &error);
    memset(map->base, 0x77, LENGTH);
    CHECK_EQUAL(ftruncate(fd, 4096), 0);
    CHECK_EQUAL(*(volatile uint8_t *)map->base, 0x77);
    CHECK(!ac_map_is_cut(map));
    CHECK_EQUAL(*(volatile uint8_t *)(map->base + 8192), 0);
    CHECK(ac_map_is_cut(map));
    CHECK(!ac_map_is_cut(other));
    *(volatile uint8_t *)(map->base + 12288 + 5) = 1; /* a store does no harm either */
    ac_map_release(map);
    ac_map_release(other);
    close(fd);
}

TEST(a_fault_that_is_not_ours_kills_as_ever) {
    int error, fd = make_file("file", 4096), status;
    ac_map_t *ours = ac_map_new(fd, 4096, 0, &error);
    pid_t child = fork();
    if (child == 0) {
        volatile uint8_t *foreign = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, fd, 0);
        signal(SIGALRM, SIG_DFL);
        alarm(20);
        _exit(foreign[8192]);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    /* A sanitizer's own handler, to which ours passes the signal, reports it and exits. */
    int reported = WIFEXITED(status) && WEXITSTATUS(status) != 0;
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) || reported);
    ac_map_release(ours);
    close(fd);
}

TEST(more_mappings_than_one_chunk_holds_are_all_watched) {
    enum { MAPS = 2500 };
    static ac_map_t *maps[MAPS];
    int error, fd = make_file("file", LENGTH);
    for (int round = 0; round < 2; round++) {
        CHECK_EQUAL(ftruncate(fd, LENGTH), 0);
        for (int i = 0; i < MAPS; i++) {
            maps[i] = ac_map_new(fd, LENGTH, 0, &error);
            CHECK(maps[i] != NULL);
        }
        CHECK_EQUAL(ftruncate(fd, 0), 0);
        for (int i = 0; i < MAPS; i += 100) {
            CHECK_EQUAL(*(volatile uint8_t *)maps[i]->base, 0);
            CHECK(ac_map_is_cut(maps[i]));
            CHECK(!ac_map_is_cut(maps[i + 1]));
        }
        for (int i = 0; i < MAPS; i++)
            ac_map_release(maps[i]);
    }
    close(fd);
}

TEST(a_mapping_that_cannot_be_made_is_an_error) {
    int error = 0, fd = make_file("file", LENGTH);
    failing_t failing = {.call = AC_CALL_MAP, .error = ENOMEM};
    ac_os_set_hook(fail_hook, &failing);
    CHECK(ac_map_new(fd, LENGTH, 0, &error) == NULL);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(error, -ENOMEM);
    ac_sigbus_forget(-1);
    close(fd);
}

static uint32_t stop;

static void *map_and_unmap(void *argument) {
    int fd = (int)(intptr_t)argument, error;
    while (!ac_load_relaxed_u32(&stop))
        ac_map_release(ac_map_new(fd, LENGTH, 0, &error));
    return NULL;
}

/* Another thread changes the list of mappings while this one forks. */
TEST(a_forked_child_can_map_and_unmap) {
    int fd = make_file("file", LENGTH), error;
    pthread_t thread;
    ac_map_t *map = ac_map_new(fd, LENGTH, 0, &error);
    pthread_create(&thread, NULL, map_and_unmap, (void *)(intptr_t)fd);
    for (int i = 0; i < 200; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            ac_map_release(map);
            map = ac_map_new(fd, LENGTH, 0, &error);
            ac_map_release(map);
            _exit(0);
        }
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    ac_store_relaxed_u32(&stop, 1);
    pthread_join(thread, NULL);
    ac_map_release(map);
    close(fd);
}
