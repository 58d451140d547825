#include "cq4_temporary.h"

#include "error.h"
#include "os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char mark[] = ".tmp.";

int ac_cq4_temporary_create(const ac_directory_t *dir, int dir_fd, const char *what,
                            uint64_t length, char name[AC_CQ4_TEMPORARY_MAX], ac_error_t *err) {
    uint64_t random;
    int rc = ac_os_random(&random, sizeof random);
    if (rc < 0) return ac_fail_os(err, rc, dir->path, "cannot get random bytes");
    snprintf(name, AC_CQ4_TEMPORARY_MAX, ".%.16s%s%d.%016llx", what, mark, (int)getpid(),
             (unsigned long long)random);
    int fd = ac_file_create(dir_fd, name, dir->mode);
    if (fd < 0) return ac_fail_os_in(err, fd, dir->path, name, "cannot create");
    rc = ac_os_truncate(fd, length);
    if (rc == 0) return fd;
    ac_os_unlink(dir_fd, name);
    ac_os_close(fd);
    return ac_fail_os_in(err, rc, dir->path, name, "cannot set the length of");
}

/* The pid in such a name; 0 if it is another name. */
static int owner_of(const char *name) {
    const char *at = name[0] == '.' ? strstr(name, mark) : NULL;
    char *end;
    if (!at) return 0;
    long pid = strtol(at + strlen(mark), &end, 10);
    int is_ours = strncmp(name, ".cycle.", 7) == 0 || strncmp(name, ".metadata.", 10) == 0;
    return is_ours && *end == '.' && pid > 0 && pid <= INT32_MAX ? (int)pid : 0;
}

static int clean_one(void *context, const char *name) {
    int pid = owner_of(name);
    if (pid > 0 && !ac_os_process_exists(pid)) ac_os_unlink(*(int *)context, name);
    return 0;
}

void ac_cq4_temporary_clean(int dir_fd) {
    ac_os_list(dir_fd, clean_one, &dir_fd);
}
