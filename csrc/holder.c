#include "holder.h"

#include "os.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

int ac_holder_find(int fd, ac_holder_t *out) {
    memset(out, 0, sizeof *out);
    out->pid = ac_os_flock_owner(fd);
    if (out->pid <= 0) return 0;
    out->started_ns = ac_os_process_started_ns(out->pid);
    ac_os_process_command(out->pid, out->command, sizeof out->command);
    return 1;
}

/* Of this much a text of 256 bytes has room beside what it is about. */
void ac_holder_describe(int fd, char *out, size_t size) {
    ac_holder_t holder;
    struct tm day;
    char since[48] = "";
    if (!ac_holder_find(fd, &holder)) {
        snprintf(out, size, "in a process that cannot be seen from here, as of another container");
        return;
    }
    time_t seconds = (time_t)(holder.started_ns / 1000000000u);
    if (holder.started_ns && gmtime_r(&seconds, &day))
        strftime(since, sizeof since, ", started %Y-%m-%d %H:%M:%S UTC", &day);
    snprintf(out, size, "pid %d%s%s%s", holder.pid, since, holder.command[0] ? ", " : "",
             holder.command);
}
