/* Keeps the queues that a program removes. Loaded by LD_PRELOAD into JVMs that run Chronicle's tests.
 *
 * Before a data file or table store is removed, it gets a second name: $KEEP_QUEUES/+INODE-NAME/FILE, where INODE and
 * NAME are those of its directory. Of two files with the same name, the later one stays. When the directory is removed,
 * the queue is complete. It is then renamed to $KEEP_QUEUES/NAME.TIME: another directory may soon reuse the inode. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int is_kept(const char *name) {
    const char *suffix = strrchr(name, '.');
    return suffix && (strcmp(suffix, ".cq4") == 0 || strcmp(suffix, ".cq4t") == 0);
}

/* Find where the files of a directory are kept. Returns 0 if the directory does not exist or nothing is to be kept. */
static int find_kept(int dir_fd, const char *path, char kept[PATH_MAX], char name[NAME_MAX]) {
    char link[64], real[PATH_MAX];
    struct stat info;
    const char *root = getenv("KEEP_QUEUES");
    int fd = root ? openat(dir_fd, path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, real, sizeof real - 1);
    int rc = fstat(fd, &info);
    close(fd);
    if (length < 0 || rc < 0) return 0;
    real[length] = 0;
    snprintf(name, NAME_MAX, "%.200s", strrchr(real, '/') + 1);
    snprintf(kept, PATH_MAX, "%.3000s/+%llu-%s", root, (unsigned long long)info.st_ino, name);
    return 1;
}

static void complete(const char *kept, const char *name) {
    char path[PATH_MAX];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(path, sizeof path, "%.3000s/%.255s.%lld%09ld", getenv("KEEP_QUEUES"), name,
             (long long)now.tv_sec, now.tv_nsec);
    rename(kept, path);
}

typedef int remove_t(int dir_fd, const char *path, int flags);

static void keep_file(int dir_fd, const char *path, remove_t *removes) {
    char parent[PATH_MAX], kept[PATH_MAX], name[NAME_MAX], second[PATH_MAX];
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    if (!is_kept(file) || strlen(path) >= sizeof parent) return;
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    if (!find_kept(dir_fd, parent, kept, name)) return;
    snprintf(second, sizeof second, "%.3800s/%.255s", kept, file);
    mkdir(kept, 0755);
    removes(AT_FDCWD, second, 0);
    linkat(dir_fd, path, AT_FDCWD, second, 0);
}

static int keep_directory(int dir_fd, const char *path, remove_t *removes) {
    char kept[PATH_MAX], name[NAME_MAX];
    int is_found = find_kept(dir_fd, path, kept, name);
    int rc = removes(dir_fd, path, AT_REMOVEDIR);
    if (rc == 0 && is_found) complete(kept, name);
    return rc;
}

int unlinkat(int dir_fd, const char *path, int flags) {
    remove_t *next = (remove_t *)dlsym(RTLD_NEXT, "unlinkat");
    if (flags & AT_REMOVEDIR) return keep_directory(dir_fd, path, next);
    keep_file(dir_fd, path, next);
    return next(dir_fd, path, flags);
}

int unlink(const char *path) {
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path) {
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int remove(const char *path) {
    int rc = unlink(path);
    return rc < 0 && errno == EISDIR ? rmdir(path) : rc;
}
