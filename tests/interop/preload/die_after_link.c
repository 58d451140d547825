/* Kills the process just after it has linked a data file of a Java queue, before it announces the file. */
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    int (*real)(int, const char *, int, const char *, int);
    void *found = dlsym(RTLD_NEXT, "linkat");
    memcpy(&real, &found, sizeof real);
    int rc = real(from_dir, from, to_dir, to, flags);
    size_t length = strlen(to);
    if (rc == 0 && length > 4 && strcmp(to + length - 4, ".cq4") == 0) kill(getpid(), SIGKILL);
    return rc;
}
