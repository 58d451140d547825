/* Files and directories that are not what they seem, or belonged to another user before. */
#include "directory.h"

#include "check.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>

enum { SOMEBODY = 65534 };

static ac_error_t err;
static struct stat info;

static void make_file(const char *path, unsigned mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0);
    CHECK_EQUAL(write(fd, "precious", 8), 8);
    CHECK_EQUAL(fchmod(fd, mode), 0);
    close(fd);
}

static void check_precious(const char *path, unsigned mode) {
    CHECK_EQUAL(stat(path, &info), 0);
    CHECK_EQUAL(info.st_mode & 07777, mode);
    CHECK_EQUAL(info.st_size, 8);
}

static int open_directory(ac_directory_t *dir, const char *path) {
    CHECK_EQUAL(mkdir(path, 0700), 0);
    CHECK_OK(ac_directory_init(dir, path, 0644, 0, &err), err);
    int fd = ac_directory_open(dir, &err);
    CHECK_OK(fd, err);
    return fd;
}

/* A refused file must be unchanged: an attacker who linked it there wants it changed. */
TEST(a_file_that_is_refused_keeps_its_mode) {
    ac_directory_t dir;
    if (geteuid() != 0) return; /* directories of other users */
    make_file(check_path("precious"), 0600);
    int dir_fd = open_directory(&dir, check_path("queue"));
    CHECK_EQUAL(link(check_path("precious"), check_path("queue/index.meta")), 0);
    CHECK_EQUAL(fchown(dir_fd, SOMEBODY, SOMEBODY), 0);
    dir.owner = SOMEBODY;
    CHECK_FAILS(ac_file_open(&dir, dir_fd, "index.meta", O_RDWR | O_CREAT, &info, &err), err,
                AC_E_NOT_A_QUEUE);
    check_precious(check_path("precious"), 0600);
    ac_os_close(dir_fd);
}

TEST(a_file_that_was_there_keeps_its_mode_and_a_new_one_gets_it) {
    ac_directory_t dir;
    int dir_fd = open_directory(&dir, check_path("queue"));
    make_file(check_path("queue/old"), 0600);
    mode_t before = umask(0777);
    int old = ac_file_open(&dir, dir_fd, "old", O_RDWR | O_CREAT, &info, &err);
    int new = ac_file_open(&dir, dir_fd, "new", O_RDWR | O_CREAT, &info, &err);
    umask(before);
    CHECK_OK(old, err);
    CHECK_OK(new, err);
    check_precious(check_path("queue/old"), 0600);
    CHECK_EQUAL(fstat(new, &info), 0);
    CHECK_EQUAL(info.st_mode & 07777, 0644);
    ac_os_close(old);
    ac_os_close(new);
    ac_os_close(dir_fd);
}

/* Another user who created a file may hold an fd of it. */
TEST(a_new_file_is_new_whatever_has_its_name) {
    ac_directory_t dir;
    int dir_fd = open_directory(&dir, check_path("queue"));
    make_file(check_path("precious"), 0640);
    for (int kind = 0; kind < 4; kind++) {
        const char *path = check_path("queue/1.q.tmp");
        if (kind == 0) make_file(path, 0666);
        if (kind == 1) CHECK_EQUAL(link(check_path("precious"), path), 0);
        if (kind == 2) CHECK_EQUAL(symlink(check_path("precious"), path), 0);
        if (kind == 3) CHECK_EQUAL(mkfifo(path, 0666), 0);
        int fd = ac_file_create(dir_fd, "1.q.tmp", 0600);
        CHECK(fd >= 0);
        CHECK_EQUAL(fstat(fd, &info), 0);
        CHECK(S_ISREG(info.st_mode));
        CHECK_EQUAL(info.st_nlink, 1);
        CHECK_EQUAL(info.st_size, 0);
        CHECK_EQUAL(info.st_mode & 07777, 0600);
        ac_os_close(fd);
        CHECK_EQUAL(ac_os_unlink(dir_fd, "1.q.tmp"), 0);
        check_precious(check_path("precious"), 0640);
    }
    CHECK_EQUAL(mkdir(check_path("queue/1.q.tmp"), 0700), 0);
    CHECK_EQUAL(ac_file_create(dir_fd, "1.q.tmp", 0600), -EISDIR);
    ac_os_close(dir_fd);
}

static ac_identity_t identity_of(const char *path) {
    CHECK_EQUAL(lstat(path, &info), 0);
    return (ac_identity_t){info.st_dev, info.st_ino, info.st_uid, 1};
}

TEST(only_the_expected_directory_is_remembered) {
    ac_directory_t dir;
    const char *path = check_path("queue");
    CHECK_FAILS(ac_directory_init_expected(&dir, path, 0600, &(ac_identity_t){0}, &err), err,
                AC_E_NOT_FOUND);
    CHECK_EQUAL(mkdir(path, 0700), 0);
    ac_identity_t expected = identity_of(path);
    CHECK_OK(ac_directory_init_expected(&dir, path, 0600, &expected, &err), err);
    ac_identity_t another = expected;
    another.owner++;
    CHECK_FAILS(ac_directory_init_expected(&dir, path, 0600, &another, &err), err, AC_E_GONE);
    CHECK_EQUAL(rename(path, check_path("aside")), 0);
    CHECK_EQUAL(symlink(check_path("aside"), path), 0); /* even if it leads there */
    CHECK_FAILS(ac_directory_init_expected(&dir, path, 0600, &expected, &err), err, AC_E_GONE);
    CHECK_EQUAL(unlink(path), 0);
    CHECK_EQUAL(mkdir(path, 0700), 0);
    CHECK_FAILS(ac_directory_init_expected(&dir, path, 0600, &expected, &err), err, AC_E_GONE);
}

TEST(an_expected_directory_is_looked_at_again_each_time) {
    ac_directory_t dir, linked;
    const char *path = check_path("queue");
    CHECK_EQUAL(mkdir(path, 0700), 0);
    ac_identity_t expected = identity_of(path);
    CHECK_OK(ac_directory_init_expected(&dir, path, 0600, &expected, &err), err);
    CHECK_OK(ac_directory_init(&linked, path, 0600, 0, &err), err);
    int fd = ac_directory_open(&dir, &err);
    CHECK_OK(fd, err);
    ac_os_close(fd);
    CHECK_EQUAL(rename(path, check_path("aside")), 0);
    CHECK_EQUAL(symlink(check_path("aside"), path), 0);
    CHECK_FAILS(ac_directory_open(&dir, &err), err, AC_E_GONE);
    fd = ac_directory_open(&linked, &err); /* an operator may have moved it to a larger disk */
    CHECK_OK(fd, err);
    ac_os_close(fd);
    CHECK_EQUAL(unlink(path), 0);
    CHECK_EQUAL(mkdir(path, 0700), 0);
    CHECK_FAILS(ac_directory_open(&linked, &err), err, AC_E_GONE);
    CHECK_EQUAL(ac_directory_reopen(&linked), -ESTALE);
}

/* connect would follow a link, and talk to the process that listens there. */
TEST(sockets_are_for_their_own_user_and_not_found_through_links) {
    ac_directory_t dir;
    int dir_fd = open_directory(&dir, check_path("wake"));
    mode_t before = umask(0);
    int listener = ac_os_socket_listen(dir_fd, "r.efd");
    umask(before);
    CHECK(listener >= 0);
    CHECK_EQUAL(stat(check_path("wake/r.efd"), &info), 0);
    CHECK_EQUAL(info.st_mode & 07777, 0600);
    int fd = ac_os_socket_connect(dir_fd, "r.efd");
    CHECK(fd >= 0);
    ac_os_close(fd);
    CHECK_EQUAL(symlink("r.efd", check_path("wake/link.efd")), 0);
    CHECK_EQUAL(ac_os_socket_connect(dir_fd, "link.efd"), -EACCES);
    make_file(check_path("wake/file.efd"), 0600);
    CHECK_EQUAL(ac_os_socket_connect(dir_fd, "file.efd"), -EACCES);
    CHECK_EQUAL(ac_os_socket_connect(dir_fd, "none.efd"), -ENOENT);
    if (geteuid() == 0) {
        CHECK_EQUAL(chown(check_path("wake/r.efd"), SOMEBODY, SOMEBODY), 0);
        CHECK_EQUAL(ac_os_socket_connect(dir_fd, "r.efd"), -EACCES);
    }
    ac_os_close(listener);
    ac_os_close(dir_fd);
}

/* ---- changes by another user between two system calls ---- */

static int unlink_before_stat(void *context, int call, const char *path, int fd, uint64_t offset,
                              uint64_t length) {
    (void)path, (void)fd, (void)offset, (void)length;
    if (call == AC_CALL_STAT) unlink(context);
    return 0;
}

/* A link to a file of ours that is gone before the links are counted: the file does not belong to the
 * queue. */
TEST(a_link_that_is_removed_while_it_is_opened_is_noticed) {
    ac_directory_t dir;
    if (geteuid() != 0) return; /* directories of other users */
    make_file(check_path("precious"), 0600);
    int dir_fd = open_directory(&dir, check_path("queue"));
    char path[1024];
    snprintf(path, sizeof path, "%s", check_path("queue/writer.lock"));
    CHECK_EQUAL(link(check_path("precious"), path), 0);
    CHECK_EQUAL(fchown(dir_fd, SOMEBODY, SOMEBODY), 0);
    dir.owner = SOMEBODY;
    ac_os_set_hook(unlink_before_stat, path);
    int fd = ac_file_open(&dir, dir_fd, "writer.lock", O_RDWR, &info, &err);
    ac_os_set_hook(NULL, NULL);
    CHECK_FAILS(fd, err, AC_E_NOT_A_QUEUE);
    check_precious(check_path("precious"), 0600);
    ac_os_close(dir_fd);
}

static char swapped[3][1024];

/* The parent becomes a link to another directory as soon as the new directory is created. */
static int swap_after_mkdir(void *context, int call, const char *path, int fd, uint64_t offset,
                            uint64_t length) {
    int *made = context;
    (void)path, (void)fd, (void)offset, (void)length;
    if (*made == 1) {
        *made = 2;
        CHECK_EQUAL(rename(swapped[0], swapped[1]), 0);
        CHECK_EQUAL(symlink(swapped[2], swapped[0]), 0);
    }
    if (call == AC_CALL_MKDIR && *made == 0) *made = 1;
    return 0;
}

TEST(a_directory_above_that_is_swapped_changes_no_other_directory) {
    ac_directory_t dir;
    int made = 0;
    snprintf(swapped[0], sizeof swapped[0], "%s", check_path("above"));
    snprintf(swapped[1], sizeof swapped[1], "%s", check_path("aside"));
    snprintf(swapped[2], sizeof swapped[2], "%s", check_path("private"));
    CHECK_EQUAL(mkdir(swapped[0], 0755), 0);
    CHECK_EQUAL(mkdir(swapped[2], 0755), 0);
    CHECK_EQUAL(mkdir(check_path("private/q"), 0755), 0);
    CHECK_EQUAL(chmod(check_path("private/q"), 0755), 0);
    ac_os_set_hook(swap_after_mkdir, &made);
    int rc = ac_directory_init(&dir, check_path("above/q"), 0600, 1, &err);
    ac_os_set_hook(NULL, NULL);
    CHECK_EQUAL(made, 2);
    CHECK_OK(rc, err);
    CHECK_EQUAL(stat(check_path("private/q"), &info), 0);
    CHECK_EQUAL(info.st_mode & 07777, 0755);
    CHECK_EQUAL(stat(check_path("aside/q"), &info), 0);
    CHECK_EQUAL(info.st_mode & 07777, 0700);
    CHECK_EQUAL(info.st_ino, dir.inode);
}

TEST(directories_are_made_whatever_the_form_of_the_path) {
    static const char *const forms[] = {"plain", "slash/", "slashes///", "./dot", "in/../dots"};
    ac_directory_t dir;
    CHECK_EQUAL(chdir(check_path(".")), 0);
    CHECK_EQUAL(mkdir("in", 0700), 0);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        CHECK_OK(ac_directory_init(&dir, forms[i], 0640, 1, &err), err);
        CHECK_EQUAL(stat(forms[i], &info), 0);
        CHECK_EQUAL(info.st_mode & 07777, 0750);
        CHECK_OK(ac_directory_init(&dir, forms[i], 0640, 1, &err), err);
    }
    CHECK_FAILS(ac_directory_init(&dir, "no/such", 0600, 1, &err), err, AC_E_NOT_FOUND);
}

/* A root that a group shares, with the setgid bit. */
TEST(a_new_directory_stays_setgid) {
    ac_directory_t dir;
    CHECK_EQUAL(mkdir(check_path("root"), 0770), 0);
    CHECK_EQUAL(chmod(check_path("root"), 02770), 0);
    CHECK_OK(ac_directory_init(&dir, check_path("root/queue"), 0660, 1, &err), err);
    CHECK_EQUAL(stat(check_path("root/queue"), &info), 0);
    CHECK_EQUAL(info.st_mode & 07777, 02770);
}
