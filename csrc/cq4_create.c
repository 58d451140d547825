#include "cq4_create.h"

#include "cq4_encode.h"
#include "cq4_grow.h"
#include "error.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* ---- the content ---- */

enum { HEAD_MAX = 512, PAGE_HEAD_MAX = 64, PADDING = 3 };

typedef struct content {
    uint8_t head[HEAD_MAX], page[PAGE_HEAD_MAX]; /* with zeros between and after them */
    ac_cq4_builder_t at_start, at_page;
    uint64_t end; /* where the first message will be */
} content_t;

static void patch(ac_cq4_builder_t *out, uint64_t where, uint64_t value) {
    memcpy(out->base + where, &value, sizeof value);
}

/* Header of an index record that begins at `from` of the builder, and all of it before the numbers. */
static uint64_t put_index_head(ac_cq4_builder_t *out, const char *event, uint32_t count,
                               uint64_t used) {
    size_t from = out->at;
    ac_cq4_put(out, &(uint32_t){0}, sizeof(uint32_t));
    ac_cq4_put_event(out, event);
    uint64_t numbers = ac_cq4_put_array(out, count, used, sizeof(uint64_t));
    uint64_t end = numbers + count * sizeof(uint64_t);
    uint32_t header =
        AC_CQ4_META_BIT | (uint32_t)(end - (out->offset + from) - AC_CQ4_HEADER_BYTES);
    memcpy(out->base + from, &header, sizeof header);
    return (end + PADDING) & ~(uint64_t)PADDING;
}

/* Returns where the offset of index2index belongs. */
static uint64_t put_header(ac_cq4_builder_t *out, const ac_cq4_roll_t *roll) {
    static const uint64_t none[2];
    ac_cq4_put(out, &(uint32_t){0}, sizeof(uint32_t));
    ac_cq4_put_event(out, "header");
    ac_cq4_put_type(out, "SCQStore");
    size_t store = ac_cq4_begin_block(out);
    ac_cq4_put_field(out, "writePosition");
    ac_cq4_put_array(out, 2, 2, sizeof none);
    ac_cq4_put(out, none, sizeof none);
    ac_cq4_put_field(out, "indexing");
    ac_cq4_put_type(out, "SCQSIndexing");
    size_t indexing = ac_cq4_begin_block(out);
    ac_cq4_put_field(out, "indexCount");
    ac_cq4_put_number(out, roll->index_count);
    ac_cq4_put_field(out, "indexSpacing");
    ac_cq4_put_number(out, roll->index_spacing);
    ac_cq4_put_field(out, "index2Index");
    uint64_t index2index = ac_cq4_put_bound(out, 0);
    ac_cq4_put_field(out, "lastIndex");
    ac_cq4_put_bound(out, 0);
    ac_cq4_end_block(out, indexing);
    ac_cq4_put_field(out, "dataFormat");
    ac_cq4_put_number(out, 1);
    ac_cq4_end_block(out, store);
    uint32_t header = AC_CQ4_META_BIT | (uint32_t)(out->at - AC_CQ4_HEADER_BYTES);
    memcpy(out->base, &header, sizeof header);
    return index2index;
}

static void make_content(const ac_cq4_roll_t *roll, content_t *content) {
    memset(content, 0, sizeof *content);
    ac_cq4_builder_t *out = &content->at_start, *page = &content->at_page;
    *out = (ac_cq4_builder_t){.base = content->head, .size = HEAD_MAX};
    uint64_t index2index = put_header(out, roll);
    ac_cq4_put(out, &(uint32_t){0}, -out->at & PADDING);
    patch(out, index2index, out->at);
    uint64_t first_page = put_index_head(out, "index2index", roll->index_count, 1);
    ac_cq4_put(out, &first_page, sizeof first_page);
    *page = (ac_cq4_builder_t){.base = content->page, .size = PAGE_HEAD_MAX, .offset = first_page};
    content->end = put_index_head(page, "index", roll->index_count, 0);
}

/* The first header last. */
static int write_content(int fd, const content_t *content) {
    const ac_cq4_builder_t *head = &content->at_start, *page = &content->at_page;
    int rc = ac_os_write_at(fd, page->base, page->at, page->offset);
    if (rc == 0)
        rc = ac_os_write_at(fd, head->base + AC_CQ4_HEADER_BYTES, head->at - AC_CQ4_HEADER_BYTES,
                            AC_CQ4_HEADER_BYTES);
    if (rc == 0) rc = ac_os_write_at(fd, head->base, AC_CQ4_HEADER_BYTES, 0);
    return rc;
}

/* ---- a new file ---- */

static int build(const ac_cq4_queue_t *queue, int dir_fd, const char *name, uint32_t number,
                 char temporary[AC_CQ4_TEMPORARY_MAX], ac_cq4_cycle_t *out, ac_error_t *err) {
    content_t content;
    const ac_directory_t *dir = &queue->dir;
    int fd = ac_cq4_temporary_create(dir, dir_fd, "cycle", ac_cq4_length_for(0), temporary, err);
    if (fd < 0) return fd;
    make_content(&queue->roll, &content);
    int rc = write_content(fd, &content);
    rc = rc < 0 ? ac_fail_os_in(err, rc, dir->path, temporary, "cannot write")
                : ac_cq4_cycle_open_fd(dir, fd, 1, name, number, queue->roll.shift, out, err);
    if (rc == AC_OK) return AC_OK;
    ac_os_unlink(dir_fd, temporary);
    ac_os_close(fd);
    return rc;
}

int ac_cq4_create_build(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number,
                        char temporary[AC_CQ4_TEMPORARY_MAX], ac_cq4_cycle_t *out,
                        ac_error_t *err) {
    char name[AC_CQ4_NAME_MAX];
    memset(out, 0, sizeof *out);
    if (ac_cq4_roll_file_name(&queue->roll, number, name) != AC_OK)
        return ac_fail(err, AC_E_ARGUMENT, 0, queue->dir.path, 0, "cycle %u has no file name",
                       number);
    return build(queue, dir_fd, name, number, temporary, out, err);
}

/* ---- a file that is there ---- */

/* 1 = it was filled, 0 = it is complete; or a negated errno. */
static int fill(int fd, const ac_cq4_roll_t *roll) {
    static const uint8_t zeros[4096];
    content_t content;
    uint32_t header = 0;
    int rc = ac_os_read_at(fd, &header, sizeof header, 0);
    if (rc < 0) return rc;
    int is_begun = (header & AC_CQ4_NOT_COMPLETE) && header != AC_CQ4_END_OF_FILE;
    if (header != 0 && !is_begun) return 0;
    make_content(roll, &content);
    rc = 0;
    uint64_t end = content.end + sizeof(uint64_t);
    for (uint64_t at = AC_CQ4_HEADER_BYTES; at < end && rc == 0; at += sizeof zeros) {
        size_t length = end - at < sizeof zeros ? (size_t)(end - at) : sizeof zeros;
        rc = ac_os_write_at(fd, zeros, length, at);
    }
    if (rc == 0) rc = write_content(fd, &content);
    return rc < 0 ? rc : 1;
}

static int complete(const ac_cq4_queue_t *queue, int dir_fd, const char *name, ac_error_t *err) {
    struct stat info;
    int fd = ac_file_open(&queue->dir, dir_fd, name, O_RDWR, &info, err);
    if (fd < 0) return fd;
    int rc = fill(fd, &queue->roll);
    if (rc >= 0 && (uint64_t)info.st_size < ac_cq4_length_for(0))
        rc = ac_os_truncate(fd, ac_cq4_length_for(0));
    ac_os_close(fd);
    return rc < 0 ? ac_fail_os_in(err, rc, queue->dir.path, name, "cannot complete") : AC_OK;
}

int ac_cq4_create_complete(const ac_cq4_queue_t *queue, int dir_fd, uint32_t number,
                           ac_error_t *err) {
    char name[AC_CQ4_NAME_MAX];
    if (ac_cq4_roll_file_name(&queue->roll, number, name) != AC_OK)
        return ac_fail(err, AC_E_ARGUMENT, 0, queue->dir.path, 0, "cycle %u has no file name",
                       number);
    return complete(queue, dir_fd, name, err);
}

/* 1 = it has become the data file, 0 = there is none. */
static int take_precreated(const ac_cq4_queue_t *queue, int dir_fd, const char *name,
                           ac_error_t *err) {
    char precreated[AC_CQ4_NAME_MAX + 16];
    struct stat info;
    int stem = (int)(strlen(name) - strlen(AC_CQ4_SUFFIX));
    snprintf(precreated, sizeof precreated, "%.*s.precreated", stem, name);
    if (ac_os_stat_at(dir_fd, precreated, &info) < 0) return 0;
    int rc = complete(queue, dir_fd, precreated, err);
    if (rc != AC_OK) return rc;
    rc = ac_os_rename_new(dir_fd, precreated, name);
    if (rc == -ENOENT) return 0;
    return rc < 0 && rc != -EEXIST
               ? ac_fail_os_in(err, rc, queue->dir.path, precreated, "cannot rename")
               : 1;
}

int ac_cq4_create_link(const ac_cq4_queue_t *queue, int dir_fd, const char *temporary,
                       const ac_cq4_cycle_t *cycle, ac_error_t *err) {
    struct stat info;
    int rc = ac_os_stat_at(dir_fd, cycle->name, &info);
    if (rc == -ENOENT) {
        rc = take_precreated(queue, dir_fd, cycle->name, err);
        if (rc == 0) {
            rc = ac_os_link(dir_fd, temporary, dir_fd, cycle->name);
            if (rc < 0 && rc != -EEXIST && rc != -ENOENT)
                rc = ac_fail_os_in(err, rc, queue->dir.path, cycle->name, "cannot create");
            else
                rc = rc == 0 ? 0 : 1;
        }
    } else {
        rc = rc < 0 ? ac_fail_os_in(err, rc, queue->dir.path, cycle->name, "cannot examine") : 1;
    }
    ac_os_unlink(dir_fd, temporary);
    return rc < 0 ? rc : !rc;
}
