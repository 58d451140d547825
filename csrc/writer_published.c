#include "writer_published.h"

#include "crc32.h"
#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKED = offsetof(ac_published_slot_t, version), READ_TRIES = 10 };

static uint32_t checksum_of(const ac_published_slot_t *slot) {
    return ac_crc32((const uint8_t *)slot + CHECKED, sizeof *slot - CHECKED);
}

/* Filled with zeros first, so that all of its space is allocated before anything is stored. */
int ac_publisher_open(ac_publisher_t **out, const ac_directory_t *dir, int dir_fd,
                      ac_error_t *err) {
    static const uint8_t zeros[AC_PUBLISHED_SIZE];
    struct stat info;
    int error = -ENOMEM;
    int fd = ac_file_open(dir, dir_fd, AC_PUBLISHED_FILE, O_RDWR | O_CREAT, &info, err);
    if (fd < 0) return fd;
    ac_publisher_t *publisher = ac_os_alloc(sizeof *publisher);
    int rc = publisher ? ac_os_write_at(fd, zeros, sizeof zeros, 0) : -ENOMEM;
    if (rc == 0) publisher->map = ac_map_new(fd, AC_PUBLISHED_SIZE, 1, &error);
    if (rc == 0 && !publisher->map) rc = error;
    ac_os_close(fd);
    if (rc < 0) {
        free(publisher);
        return ac_fail_os_in(err, rc, dir->path, AC_PUBLISHED_FILE, "cannot make");
    }
    publisher->draft.magic = AC_PUBLISHED_MAGIC;
    publisher->draft.version = AC_PUBLISHED_VERSION;
    *out = publisher;
    return AC_OK;
}

void ac_publisher_store(ac_publisher_t *publisher, uint64_t time_ns, uint64_t monotonic_ns) {
    ac_published_slot_t *draft = &publisher->draft;
    draft->content.time_ns = time_ns;
    draft->content.monotonic_ns = monotonic_ns;
    draft->generation++;
    draft->checksum = checksum_of(draft);
    uint8_t *slot = publisher->map->base + (draft->generation & 1) * AC_PUBLISHED_SLOT;
    memcpy(slot, draft, sizeof *draft);
}

void ac_publisher_close(ac_publisher_t *publisher) {
    if (!publisher) return;
    ac_map_release(publisher->map);
    free(publisher);
}

/* A checksum does not prove good intent. */
static void make_harmless(ac_published_t *content) {
    content->command[sizeof content->command - 1] = 0;
    content->settings.wait_for[sizeof content->settings.wait_for - 1] = 0;
    content->settings.archive[sizeof content->settings.archive - 1] = 0;
    for (size_t i = 0; i < AC_RECENT_ERRORS; i++)
        content->error[i].text[sizeof content->error[i].text - 1] = 0;
    for (size_t i = 0; i < AC_SLOW_APPENDS; i++)
        if (content->slow_append[i].cause >= AC_SLOW_CAUSES)
            content->slow_append[i].cause = AC_SLOW_UNKNOWN;
}

int ac_published_decode(const uint8_t bytes[AC_PUBLISHED_SIZE], ac_published_t *out) {
    uint64_t newest = 0;
    for (int i = 0; i < 2; i++) {
        ac_published_slot_t slot;
        memcpy(&slot, bytes + (size_t)i * AC_PUBLISHED_SLOT, sizeof slot);
        if (slot.magic != AC_PUBLISHED_MAGIC || slot.version != AC_PUBLISHED_VERSION ||
            slot.generation <= newest || slot.checksum != checksum_of(&slot))
            continue;
        newest = slot.generation;
        *out = slot.content;
    }
    if (newest > 0) make_harmless(out);
    return newest > 0;
}

int ac_published_read(const ac_directory_t *dir, int dir_fd, ac_published_t *out) {
    uint8_t bytes[AC_PUBLISHED_SIZE];
    struct stat info;
    int found = 0;
    int fd = ac_file_open(dir, dir_fd, AC_PUBLISHED_FILE, O_RDONLY, &info, NULL);
    if (fd < 0) return 0;
    /* None is valid if it was stored to twice during the copy. */
    for (int tries = 0; tries < READ_TRIES && !found; tries++) {
        if (ac_os_read_at(fd, bytes, sizeof bytes, 0) != AC_PUBLISHED_SIZE) break;
        found = ac_published_decode(bytes, out);
    }
    ac_os_close(fd);
    return found;
}
