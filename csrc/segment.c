#include "segment.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ac_segment_name(char name[AC_NAME_MAX], uint32_t id, const char *suffix) {
    snprintf(name, AC_NAME_MAX, "%09u%s", id, suffix);
}

/* Fills NAME.tmp and renames it. A sealed one gets no blocks, since nothing will be written to it. The fd
 * of the published file, or a negated errno. */
static int prepare(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t size, int sealed) {
    char name[AC_NAME_MAX], temporary[AC_NAME_MAX];
    ac_segment_header_t header = {.magic = AC_SEGMENT_MAGIC,
                                  .version = AC_SEGMENT_VERSION,
                                  .segment_id = id,
                                  .flags = sealed ? AC_SEGMENT_SEALED : 0,
                                  .end = sealed ? AC_SEGMENT_DATA : 0};
    ac_segment_name(name, id, ".q");
    ac_segment_name(temporary, id, ".q.tmp");
    int fd = ac_file_create(dir_fd, temporary, dir->mode);
    if (fd < 0) return fd;
    int rc = sealed ? ac_os_truncate(fd, size) : ac_os_allocate(fd, size);
    if (rc == 0) rc = ac_os_write_at(fd, &header, sizeof header, 0);
    if (rc == 0) rc = ac_os_sync(fd);
    if (rc == 0) rc = ac_os_rename_new(dir_fd, temporary, name);
    if (rc == 0) {
        rc = ac_os_sync_dir(dir_fd);
        if (rc == 0) return fd;
        ac_os_unlink(dir_fd, name);
    }
    ac_os_close(fd);
    ac_os_unlink(dir_fd, temporary);
    return rc;
}

/* The same, with arguments checked and errors explained. */
static int publish(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t size, int sealed,
                   ac_error_t *err) {
    char name[AC_NAME_MAX];
    ac_segment_name(name, id, ".q");
    if (id > AC_SEGMENT_ID_MAX)
        return ac_fail(err, AC_E_CORRUPT, 0, dir->path, 0,
                       "there is no segment number after %u; begin a new queue", id - 1);
    int fd = prepare(dir, dir_fd, id, size, sealed);
    if (fd == -ENOENT)
        return ac_fail(err, AC_E_GONE, ENOENT, dir->path, 0, "the queue's directory was removed");
    if (fd < 0) return ac_fail_os_in(err, fd, dir->path, name, "cannot create segment");
    return fd;
}

int ac_segment_create(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t size,
                      ac_map_t **out, ac_error_t *err) {
    char name[AC_NAME_MAX];
    int error;
    int fd = publish(dir, dir_fd, id, size, 0, err);
    if (fd < 0) return fd;
    ac_map_t *map = ac_map_new(fd, size, 1, &error);
    if (!map) {
        ac_segment_name(name, id, ".q");
        ac_os_close(fd);
        ac_os_unlink(dir_fd, name);
        return ac_fail_os_in(err, error, dir->path, name, "cannot map");
    }
    map->segment = id;
    map->fd = fd;
    *out = map;
    return AC_OK;
}

int ac_segment_create_empty(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t size,
                            ac_error_t *err) {
    int fd = publish(dir, dir_fd, id, size, 1, err);
    if (fd < 0) return fd;
    ac_os_close(fd);
    return AC_OK;
}

int ac_segment_check_room(const ac_directory_t *dir, int dir_fd, uint64_t size, ac_error_t *err) {
    char name[AC_NAME_MAX];
    uint64_t free_bytes;
    if (ac_os_free_bytes(dir_fd, &free_bytes) < 0 || free_bytes >= size) return AC_OK;
    ac_segment_name(name, 0, ".q.tmp");
    int fd = ac_os_open_at(dir_fd, name, O_RDWR | O_CREAT | O_EXCL, dir->mode);
    if (fd == -EEXIST) return AC_OK; /* another process is working on it */
    int rc = fd < 0 ? fd : ac_os_allocate(fd, size);
    ac_os_close(fd);
    if (fd >= 0) ac_os_unlink(dir_fd, name);
    return rc < 0 ? ac_fail_os_in(err, rc, dir->path, name, "no room for the first segment")
                  : AC_OK;
}

static int check_header(const ac_map_t *map, uint32_t id, const char *path, ac_error_t *err) {
    ac_segment_header_t header;
    memcpy(&header, map->base, 12);
    if (header.magic != AC_SEGMENT_MAGIC)
        return ac_fail(err, AC_E_CORRUPT, 0, path, 0,
                       header.magic == 0 ? "segment header is all zero"
                                         : "magic is 0x%08x, not a segment",
                       header.magic);
    if (header.version != AC_SEGMENT_VERSION)
        return ac_fail(err, AC_E_VERSION, 0, path, 4, "segment version %u; this build knows %u",
                       header.version, AC_SEGMENT_VERSION);
    if (header.segment_id != id)
        return ac_fail(err, AC_E_CORRUPT, 0, path, 8, "says it is segment %u", header.segment_id);
    return AC_OK;
}

int ac_segment_check_readable(const ac_directory_t *dir, const ac_map_t *map, ac_error_t *err) {
    char path[1200];
    if (!ac_map_is_cut(map)) return AC_OK;
    snprintf(path, sizeof path, "%s/%09u.q", dir->path, map->segment);
    return ac_fail(
        err, AC_E_SYSTEM, EIO, path, ac_load_relaxed_u64(&map->cut_at),
        "a page cannot be read: the disk fails, or the file was cut; nothing was changed");
}

int ac_segment_populate(ac_map_t *map, uint64_t from, uint64_t to, uint64_t piece) {
    static uint8_t
        zeros[AC_POPULATE_STEP]; /* not const: a constant would be stored in the program file */
    uint64_t inside = ac_os_page_size() - 1;
    uint64_t at = (from + inside) & ~inside;
    int rc = 0;
    while (at < to && rc == 0) {
        uint64_t piece_end = (at / piece + 1) * piece;
        uint64_t end = piece_end < to ? piece_end : to;
        rc = ac_os_write_at(map->fd, zeros, end - at, at);
        at = end;
    }
    return rc < 0 ? rc : ac_os_populate(map->base, from, to - from, 1);
}

int ac_segment_open(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t size, int writable,
                    ac_map_t **out, ac_error_t *err) {
    char name[AC_NAME_MAX], path[1200];
    struct stat info;
    int error;
    ac_segment_name(name, id, ".q");
    snprintf(path, sizeof path, "%s/%s", dir->path, name);
    int fd = ac_file_open(dir, dir_fd, name, writable ? O_RDWR : O_RDONLY, &info, err);
    if (fd < 0) return fd;
    uint64_t length = (uint64_t)info.st_size < size ? (uint64_t)info.st_size & ~63ull : size;
    if (length < AC_SEGMENT_DATA) {
        ac_os_close(fd);
        return ac_fail(err, AC_E_CORRUPT, 0, path, length, "cut to %llu bytes, no header left",
                       (unsigned long long)info.st_size);
    }
    ac_map_t *map = ac_map_new(fd, length, writable, &error);
    if (map && writable)
        map->fd = fd;
    else
        ac_os_close(fd);
    if (!map) return ac_fail_os(err, error, path, "cannot map");
    map->segment = id;
    int rc = check_header(map, id, path, err);
    if (ac_map_is_cut(map)) rc = ac_segment_check_readable(dir, map, err);
    if (rc != AC_OK) {
        ac_map_release(map);
        return rc;
    }
    *out = map;
    return AC_OK;
}

int ac_segment_lacks_header(const ac_directory_t *dir, int dir_fd, uint32_t id) {
    char name[AC_NAME_MAX];
    struct stat info;
    ac_segment_header_t header;
    ac_segment_name(name, id, ".q");
    int fd = ac_file_open(dir, dir_fd, name, O_RDONLY, &info, NULL);
    if (fd < 0) return 0;
    int got = ac_os_read_at(fd, &header, sizeof header, 0);
    ac_os_close(fd);
    if (got < 0) return 0;
    return got < (int)sizeof header || header.magic == 0 || header.version == 0 ||
           (header.segment_id == 0 && id != 0);
}

/* Without mapping it: a caller may ask about thousands. */
static uint64_t records_end(const ac_directory_t *dir, int dir_fd, uint32_t id, uint64_t size) {
    char name[AC_NAME_MAX];
    struct stat info;
    union {
        uint8_t base[AC_SEGMENT_DATA];
        ac_segment_header_t header;
    } head;
    ac_segment_name(name, id, ".q");
    int fd = ac_file_open(dir, dir_fd, name, O_RDONLY, &info, NULL);
    if (fd < 0) return size;
    int got = ac_os_read_at(fd, &head, sizeof head, 0);
    ac_os_close(fd);
    ac_map_t map = {.base = head.base, .size = size, .segment = id};
    if (got != (int)sizeof head || check_header(&map, id, dir->path, NULL) != AC_OK) return size;
    uint64_t end = ac_segment_end(&map);
    return end >= AC_SEGMENT_DATA ? end : size;
}

uint64_t ac_segment_room(const ac_directory_t *dir, int dir_fd, uint32_t id,
                         uint64_t segment_size) {
    return records_end(dir, dir_fd, id, segment_size) > AC_SEGMENT_DATA ? segment_size : 0;
}

static uint64_t room_between(uint64_t from, uint64_t to) {
    return to > from ? to - from : 0;
}

/* From the existing segments: the ids may come from a damaged file and be billions apart. */
uint64_t ac_segment_distance(const ac_directory_t *dir, int dir_fd, uint64_t segment_size,
                             uint64_t from_segment, uint64_t from_offset, uint64_t to_segment,
                             uint64_t to_offset) {
    uint32_t *ids = NULL;
    size_t count = 0;
    if (from_segment > to_segment) return 0;
    if (from_segment == to_segment) return room_between(from_offset, to_offset);
    ac_segment_list(dir, dir_fd, &ids, &count, NULL);
    uint64_t first_end = segment_size;
    uint64_t distance = (to_segment - from_segment - 1) * (segment_size - AC_SEGMENT_DATA);
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < from_segment || ids[i] >= to_segment) continue;
        uint64_t end = records_end(dir, dir_fd, ids[i], segment_size);
        if (ids[i] == from_segment)
            first_end = end;
        else
            distance -= segment_size - end;
    }
    free(ids);
    return distance + room_between(from_offset, first_end) +
           room_between(AC_SEGMENT_DATA, to_offset);
}

/* "000000012.q" -> 12; -1 for anything else. */
static int64_t id_of_name(const char *name) {
    int64_t id = 0;
    int digits = 0;
    while (name[digits] >= '0' && name[digits] <= '9' && digits < 10)
        id = id * 10 + (name[digits++] - '0');
    return digits >= 9 && strcmp(name + digits, ".q") == 0 && id <= AC_SEGMENT_ID_MAX ? id : -1;
}

typedef struct id_list {
    uint32_t *ids;
    size_t count, room;
} id_list_t;

static int collect(void *context, const char *name) {
    id_list_t *list = context;
    int64_t id = id_of_name(name);
    if (id < 0) return 0;
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        uint32_t *grown = realloc(list->ids, room * sizeof *grown);
        if (!grown) return -ENOMEM;
        list->ids = grown;
        list->room = room;
    }
    list->ids[list->count++] = (uint32_t)id;
    return 0;
}

static int ascending(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

int ac_segment_list(const ac_directory_t *dir, int dir_fd, uint32_t **ids, size_t *count,
                    ac_error_t *err) {
    id_list_t list = {0};
    int rc = ac_os_list(dir_fd, collect, &list);
    if (rc < 0) {
        free(list.ids);
        return ac_fail_os(err, rc, dir->path, "cannot list");
    }
    if (list.count > 0) qsort(list.ids, list.count, sizeof *list.ids, ascending);
    *ids = list.ids;
    *count = list.count;
    return AC_OK;
}

int ac_segment_bounds(const ac_directory_t *dir, int dir_fd, uint32_t *first, uint32_t *last,
                      size_t *count, ac_error_t *err) {
    uint32_t *ids = NULL;
    int rc = ac_segment_list(dir, dir_fd, &ids, count, err);
    if (rc != AC_OK) return rc;
    if (*count > 0) {
        *first = ids[0];
        *last = ids[*count - 1];
    }
    free(ids);
    return AC_OK;
}
