/* READY and schema.json, which programs that look for queues read. */
#include "error.h"
#include "writer.h"

#include <string.h>

enum { READY_MAX = 65536, SCHEMA_MAX = 1 << 20 };

static int publish(ac_writer_t *writer, const char *name, const char *json, size_t max,
                   ac_error_t *err) {
    size_t length = strlen(json);
    if (length > max)
        return ac_fail(err, AC_E_ARGUMENT, 0, writer->dir.path, 0, "%s of %zu bytes", name, length);
    int rc = ac_writer_usable(writer, err);
    if (rc != AC_OK) return rc;
    int dir_fd = ac_directory_open(&writer->dir, err); /* another thread may close ours */
    if (dir_fd < 0) return dir_fd;
    rc = ac_file_publish(&writer->dir, dir_fd, name, json, length, err);
    ac_os_close(dir_fd);
    return rc;
}

int ac_writer_mark_ready(ac_writer_t *writer, const char *json, ac_error_t *err) {
    return publish(writer, "READY", json, READY_MAX, err);
}

int ac_writer_publish_schema(ac_writer_t *writer, const char *json, ac_error_t *err) {
    return publish(writer, "schema.json", json, SCHEMA_MAX, err);
}
