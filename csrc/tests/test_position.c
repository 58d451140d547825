#include "position.h"

#include "queue.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static ac_directory_t dir;
static ac_error_t err;
static ac_position_t position;
static int created;

static int open_directory(void) {
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 1, &err), err);
    int fd = ac_directory_open(&dir, &err);
    CHECK_OK(fd, err);
    return fd;
}

static int open_position(int fd, const char *name) {
    memset(&position, 0, sizeof position);
    return ac_position_open(&position, &dir, fd, name, 3, 64, &created, &err);
}

TEST(names_are_checked) {
    static const char *const good[] = {"a", "A9", "x.y_z-1", "0"};
    static const char *const bad[] = {"",   ".",   "..",  ".a",       "-a",
                                      "_a", "a/b", "a b", "\xc3\xa4", "a\n"};
    char longest[66];
    memset(longest, 'a', sizeof longest);
    longest[64] = 0;
    CHECK(ac_reader_name_valid(longest));
    longest[64] = 'a';
    longest[65] = 0;
    CHECK(!ac_reader_name_valid(longest));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK(ac_reader_name_valid(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(!ac_reader_name_valid(bad[i]));
}

TEST(a_new_position_is_where_it_was_asked_for_and_stays_where_it_was_stored) {
    int fd = open_directory();
    uint64_t segment, offset;
    struct stat info;
    CHECK_OK(open_position(fd, "r"), err);
    CHECK(created);
    ac_position_get(&position, &segment, &offset);
    CHECK_EQUAL(segment, 3);
    CHECK_EQUAL(offset, 64);
    for (uint64_t i = 0; i < 10; i++)
        ac_position_store(&position, 4 + i, 128 * i, 0, 1000 + i);
    ac_position_heartbeat(&position, 2000);
    CHECK_EQUAL(ac_position_sync(&position), 0);
    ac_position_close(&position);
    ac_position_close(&position);
    CHECK_OK(open_position(fd, "r"), err);
    CHECK(!created);
    CHECK_EQUAL(position.current.segment, 13);
    CHECK_EQUAL(position.current.offset, 1152);
    CHECK_EQUAL(position.current.heartbeat_ns, 2000);
    CHECK_EQUAL(position.current.generation, 12);
    ac_position_close(&position);
    CHECK_EQUAL(stat(check_path("queue/readers/r.meta"), &info), 0);
    CHECK_EQUAL(info.st_size, 80);
    CHECK_EQUAL(info.st_mode & 0777, 0600);
    CHECK_EQUAL(stat(check_path("queue/readers"), &info), 0);
    CHECK_EQUAL(info.st_mode & 0777, 0700);
    ac_os_close(fd);
}

TEST(a_torn_store_leaves_the_one_before) {
    int fd = open_directory();
    CHECK_OK(open_position(fd, "r"), err);
    ac_position_store(&position, 10, 640, 0, 1);
    ac_position_store(&position, 11, 704, 0, 2);
    int newer = position.slot;
    ac_position_close(&position);
    uint8_t noise = 0xff;
    poke(check_path("queue/readers"), "r.meta", (uint64_t)newer * 40 + 3, &noise, 1);
    CHECK_OK(open_position(fd, "r"), err);
    CHECK_EQUAL(position.current.segment, 10);
    ac_position_store(&position, 12, 64, 0, 3); /* overwrites the broken slot */
    ac_position_close(&position);
    CHECK_OK(open_position(fd, "r"), err);
    CHECK_EQUAL(position.current.segment, 12);
    ac_position_close(&position);
    ac_os_close(fd);
}

TEST(two_broken_slots_are_an_error_and_never_a_restart) {
    int fd = open_directory();
    uint8_t zeros[80] = {0}, noise[80];
    memset(noise, 0xab, sizeof noise);
    CHECK_OK(open_position(fd, "r"), err);
    ac_position_close(&position);
    poke(check_path("queue/readers"), "r.meta", 0, noise, sizeof noise);
    CHECK_FAILS(open_position(fd, "r"), err, AC_E_POSITION_CORRUPT);
    poke(check_path("queue/readers"), "r.meta", 0, zeros, sizeof zeros);
    CHECK_FAILS(open_position(fd, "r"), err, AC_E_POSITION_CORRUPT);
    CHECK_EQUAL(truncate(check_path("queue/readers/r.meta"), 79), 0);
    CHECK_FAILS(open_position(fd, "r"), err, AC_E_POSITION_CORRUPT);
    CHECK(strstr(err.path, "readers/r.meta"));
    ac_os_close(fd);
}

TEST(a_name_is_locked_while_it_is_used) {
    int fd = open_directory();
    ac_position_t second = {0};
    CHECK_OK(open_position(fd, "r"), err);
    CHECK_FAILS(ac_position_open(&second, &dir, fd, "r", 0, 64, &created, &err), err,
                AC_E_READER_BUSY);
    CHECK_FAILS(ac_position_open(&second, &dir, fd, "a/b", 0, 64, &created, &err), err, AC_E_NAME);
    ac_position_close(&position);
    CHECK_OK(ac_position_open(&second, &dir, fd, "r", 0, 64, &created, &err), err);
    ac_position_close(&second);
    ac_os_close(fd);
}

TEST(a_position_that_cannot_be_made_leaves_nothing_behind) {
    static const int calls[] = {AC_CALL_OPEN, AC_CALL_CHMOD, AC_CALL_WRITE,    AC_CALL_SYNC,
                                AC_CALL_LOCK, AC_CALL_MAP,   AC_CALL_SYNC_DIR, AC_CALL_RENAME};
    int fd = open_directory();
    CHECK_OK(open_position(fd, "first"), err);
    ac_position_close(&position);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int skip = 0;; skip++) {
            failing_t failing = {.call = calls[i], .error = ENOSPC, .skip = skip};
            char name[32];
            snprintf(name, sizeof name, "r%d-%d", (int)i, skip);
            ac_os_set_hook(fail_hook, &failing);
            int rc = open_position(fd, name);
            ac_os_set_hook(NULL, NULL);
            if (!failing.failed) {
                CHECK_OK(rc, err);
                ac_position_close(&position);
                break;
            }
            CHECK(rc < 0 && err.code == rc);
            CHECK_OK(open_position(fd, name), err); /* and the name can be taken afterwards */
            ac_position_close(&position);
        }
    DIR *stream = opendir(check_path("queue/readers"));
    struct dirent *entry;
    while ((entry = readdir(stream)))
        CHECK(!strstr(entry->d_name, ".tmp"));
    closedir(stream);
    ac_os_close(fd);
}

static void note_held(void *context, const char *name, const ac_slot_t *slot, int held) {
    (void)name;
    (void)slot;
    *(int *)context = held;
}

TEST(it_can_be_seen_whether_a_position_is_open) {
    int fd = open_directory(), held = -1;
    CHECK_OK(open_position(fd, "r"), err);
    CHECK_OK(ac_position_each(&dir, fd, note_held, &held, &err), err);
    CHECK_EQUAL(held, 1);
    pid_t child = fork();
    if (child == 0) pause(); /* is not affected */
    ac_position_close(&position);
    CHECK_OK(ac_position_each(&dir, fd, note_held, &held, &err), err);
    CHECK_EQUAL(held, 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    ac_os_close(fd);
}

static uint32_t stop;
static uint64_t visits;

static void *store(void *unused) {
    (void)unused;
    for (uint64_t i = 0; !ac_load_relaxed_u32(&stop); i++)
        ac_position_store(&position, i, i * 64, 0, i);
    return NULL;
}

static void visit(void *context, const char *name, const ac_slot_t *slot, int held) {
    CHECK(strcmp(name, "r") == 0);
    CHECK(held);
    CHECK_EQUAL(slot->offset, slot->segment == 3 && slot->offset == 64 ? 64 : slot->segment * 64);
    ++*(uint64_t *)context;
}

TEST(a_position_can_be_read_at_any_moment) {
    pthread_t thread;
    int fd = open_directory();
    CHECK_OK(open_position(fd, "r"), err);
    pthread_create(&thread, NULL, store, NULL);
    for (uint64_t i = 1; i <= 5000; i++) {
        CHECK_OK(ac_position_each(&dir, fd, visit, &visits, &err), err);
        CHECK_EQUAL(visits, i);
    }
    ac_store_relaxed_u32(&stop, 1);
    pthread_join(thread, NULL);
    ac_position_close(&position);
    ac_os_close(fd);
}

TEST(what_is_left_of_an_unfinished_store_is_wiped) {
    int fd = open_directory();
    ac_slot_t slot;
    CHECK_OK(open_position(fd, "r"), err);
    ac_position_store(&position, 5, 128, 0, 1000);
    ac_position_close(&position);
    uint64_t elsewhere = 9; /* in the slot of the first generation */
    poke(dir.path, "readers/r.meta", 0, &elsewhere, sizeof elsewhere);
    CHECK_OK(open_position(fd, "r"), err);
    CHECK_EQUAL(position.current.segment, 5);
    ac_slot_t zero = {0};
    peek(dir.path, "readers/r.meta", 0, &slot, sizeof slot);
    CHECK(memcmp(&slot, &zero, sizeof slot) == 0);
    ac_position_close(&position);
    ac_os_close(fd);
}

static int held_when_named;

/* Creating the file syncs the directory after naming it: the lock must be held by then. */
static int look_who_holds(void *context, int call, const char *path, int fd, uint64_t offset,
                          uint64_t length) {
    (void)context, (void)path, (void)offset, (void)length;
    if (call != AC_CALL_SYNC_DIR) return 0;
    int file = openat(fd, "new.meta", O_RDONLY);
    if (file < 0) return 0;
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK_EQUAL(fcntl(file, F_OFD_GETLK, &whole), 0);
    held_when_named = whole.l_type != F_UNLCK;
    close(file);
    return 0;
}

TEST(a_new_position_is_held_from_the_moment_it_has_its_name) {
    int fd = open_directory();
    ac_os_set_hook(look_who_holds, NULL);
    CHECK_OK(open_position(fd, "new"), err);
    ac_os_set_hook(NULL, NULL);
    CHECK(held_when_named);
    ac_position_close(&position);
    ac_os_close(fd);
}

/* forget_reader and an opening at the same time: the lock of a file without a name is worth nothing. */
static int remove_at_lock(void *context, int call, const char *path, int fd, uint64_t offset,
                          uint64_t length) {
    int *left = context;
    (void)path, (void)fd, (void)offset, (void)length;
    if (call == AC_CALL_LOCK && *left > 0 && --*left == 0)
        CHECK_EQUAL(unlink(check_path("queue/readers/r.meta")), 0);
    return 0;
}

TEST(a_position_that_is_removed_while_it_is_opened_is_made_anew) {
    int fd = open_directory(), removals = 1;
    CHECK_OK(open_position(fd, "r"), err);
    ac_position_store(&position, 9, 64, 0, 1);
    ac_position_close(&position);
    ac_os_set_hook(remove_at_lock, &removals);
    CHECK_OK(open_position(fd, "r"), err);
    ac_os_set_hook(NULL, NULL);
    CHECK(created);
    CHECK_EQUAL(position.current.segment, 3);
    CHECK(ac_position_has_name(&position, &dir, "r"));
    ac_position_close(&position);
    ac_os_close(fd);
}

TEST(a_reader_is_removed_durably_and_not_while_it_is_open) {
    int fd = open_directory();
    CHECK_FAILS(ac_position_remove(&dir, fd, "r", &err), err, AC_E_READER_NOT_FOUND);
    CHECK_OK(open_position(fd, "r"), err);
    CHECK_FAILS(ac_position_remove(&dir, fd, "r", &err), err, AC_E_READER_BUSY);
    ac_position_close(&position);
    failing_t failing = {.call = AC_CALL_SYNC_DIR, .error = EIO};
    ac_os_set_hook(fail_hook, &failing);
    CHECK_FAILS(ac_position_remove(&dir, fd, "r", &err), err, AC_E_SYSTEM);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(failing.failed, 1);
    CHECK_FAILS(ac_position_remove(&dir, fd, "r", &err), err, AC_E_READER_NOT_FOUND);
    ac_os_close(fd);
}
