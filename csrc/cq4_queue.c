#include "cq4_queue.h"

#include "error.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static int is_data_file(const char *name) {
    size_t length = strlen(name), suffix = strlen(AC_CQ4_SUFFIX);
    return name[0] != '.' && length > suffix && length < AC_CQ4_NAME_MAX &&
           strcmp(name + length - suffix, AC_CQ4_SUFFIX) == 0;
}

static int is_any_of_ours(void *context, const char *name) {
    (void)context;
    return is_data_file(name) || strcmp(name, AC_CQ4_METADATA) == 0 ||
           strcmp(name, AC_CQ4_LISTING) == 0;
}

int ac_cq4_is_queue(const char *path) {
    int fd = ac_os_open_dir(path);
    if (fd < 0) return fd == -ENOENT || fd == -ENOTDIR ? 0 : fd;
    int rc = ac_cq4_is_queue_in(fd);
    ac_os_close(fd);
    return rc;
}

int ac_cq4_is_queue_in(int dir_fd) {
    return ac_os_list(dir_fd, is_any_of_ours, NULL);
}

/* ---- opening ---- */

static void find_key(const ac_cq4_table_t *table, const char *key, const uint64_t **out) {
    uint64_t *value;
    if (table->map && !*out && ac_cq4_table_find(table, key, &value)) *out = value;
}

/* A queue that is being created may get them later. */
static void find_keys(ac_cq4_queue_t *queue) {
    find_key(&queue->table, AC_CQ4_KEY_HIGHEST, &queue->highest);
    find_key(&queue->table, AC_CQ4_KEY_MOD_COUNT, &queue->mod_count);
    find_key(&queue->table, AC_CQ4_KEY_WRITE_LOCK, &queue->write_lock);
    find_key(&queue->lock, AC_CQ4_KEY_WRITE_LOCK, &queue->write_lock);
}

/* 1 = opened, 0 = there is none. */
static int open_table(const ac_directory_t *dir, int dir_fd, const char *name, ac_cq4_table_t *out,
                      ac_error_t *err) {
    struct stat info;
    int rc = ac_os_stat_at(dir_fd, name, &info);
    if (rc == -ENOENT) return 0;
    if (rc < 0) return ac_fail_os_in(err, rc, dir->path, name, "cannot examine");
    rc = ac_cq4_table_open(dir, dir_fd, name, 0, out, err);
    return rc == AC_OK ? 1 : rc;
}

static int open_tables(ac_cq4_queue_t *queue, int dir_fd, ac_error_t *err) {
    const ac_directory_t *dir = &queue->dir;
    queue->dialect = AC_CQ4_DIALECT_V5;
    int rc = open_table(dir, dir_fd, AC_CQ4_METADATA, &queue->table, err);
    if (rc != 0) return rc;
    queue->dialect = AC_CQ4_DIALECT_V4;
    rc = open_table(dir, dir_fd, AC_CQ4_LISTING, &queue->table, err);
    if (rc < 0) return rc;
    rc = open_table(dir, dir_fd, AC_CQ4_QUEUE_LOCK, &queue->lock, err);
    if (rc == 1) queue->dialect = AC_CQ4_DIALECT_EARLY_V5;
    return rc;
}

static int refuse_roll(const ac_directory_t *dir, const ac_cq4_roll_t *roll, const char *why,
                       ac_error_t *err) {
    return ac_fail(err, AC_E_VERSION, 0, dir->path, 0, "%s: format \"%s\", length %llu ms", why,
                   roll->format, (unsigned long long)roll->length_ms);
}

/* What metadata.cq4t records; the older table stores have none of it. */
static int take_roll(ac_cq4_queue_t *queue, ac_error_t *err) {
    queue->roll = queue->table.roll;
    if (queue->dialect != AC_CQ4_DIALECT_V5) return AC_OK;
    const char *problem = ac_cq4_roll_problem(&queue->roll);
    if (problem) return refuse_roll(&queue->dir, &queue->roll, problem, err);
    const ac_cq4_known_roll_t *known = ac_cq4_roll_by_format(queue->roll.format);
    if (known) {
        queue->roll.index_count = known->index_count;
        queue->roll.index_spacing = known->index_spacing;
        queue->roll.shift = ac_cq4_shift(known->index_count, known->index_spacing);
    }
    return AC_OK;
}

static int examine(ac_cq4_queue_t *queue, int dir_fd, ac_error_t *err) {
    struct stat info;
    const char *path = queue->dir.path;
    int rc = ac_cq4_is_queue_in(dir_fd);
    if (rc < 0) return ac_fail_os(err, rc, path, "cannot list");
    if (rc == 0) return ac_fail(err, AC_E_NOT_A_QUEUE, 0, path, 0, "is not a Chronicle Queue");
    rc = ac_os_stat(dir_fd, &info);
    if (rc < 0) return ac_fail_os(err, rc, path, "cannot examine directory");
    queue->dir.shared = (info.st_mode & 0022) != 0;
    return AC_OK;
}

int ac_cq4_queue_open(const char *path, ac_cq4_queue_t *out, ac_error_t *err) {
    ac_directory_t dir;
    memset(out, 0, sizeof *out);
    int rc = ac_directory_init(&dir, path, 0600, 0, err);
    return rc == AC_OK ? ac_cq4_queue_open_in(&dir, out, err) : rc;
}

int ac_cq4_queue_open_in(const ac_directory_t *dir, ac_cq4_queue_t *out, ac_error_t *err) {
    memset(out, 0, sizeof *out);
    out->dir = *dir;
    int dir_fd = ac_directory_open(&out->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = examine(out, dir_fd, err);
    if (rc == AC_OK) rc = open_tables(out, dir_fd, err);
    ac_os_close(dir_fd);
    if (rc >= 0) rc = take_roll(out, err);
    if (rc == AC_OK) rc = ac_cq4_queue_learn(out, err);
    if (rc < 0) ac_cq4_queue_close(out);
    return rc < 0 ? rc : AC_OK;
}

void ac_cq4_queue_close(ac_cq4_queue_t *queue) {
    ac_cq4_table_close(&queue->table);
    ac_cq4_table_close(&queue->lock);
    queue->highest = queue->mod_count = queue->write_lock = NULL;
}

/* ---- the roll cycle, from a data file ---- */

typedef struct survey {
    ac_cq4_queue_t *queue;
    int dir_fd;
    int outcome; /* of the last file that could not be used */
    ac_error_t *err;
} survey_t;

static int learn_from_file(survey_t *survey, const char *name) {
    ac_cq4_queue_t *queue = survey->queue;
    ac_cq4_cycle_t cycle;
    if (!is_data_file(name)) return 0;
    int named = queue->roll.format[0] != 0;
    if (named && ac_cq4_roll_cycle_of_name(&queue->roll, name) < 0) return 0;
    int rc = ac_cq4_cycle_open(&queue->dir, survey->dir_fd, name, 0, 0, &cycle, survey->err);
    if (rc == AC_E_NOT_FOUND) return 0;
    if (rc != AC_OK) return rc;
    ac_cq4_roll_t roll = cycle.roll;
    ac_cq4_cycle_close(&cycle);
    if (named) {
        queue->roll.index_count = roll.index_count;
        queue->roll.index_spacing = roll.index_spacing;
        queue->roll.shift = roll.shift;
        return 1;
    }
    if (!roll.format[0])
        return ac_fail(survey->err, AC_E_NOT_A_QUEUE, 0, queue->dir.path, 0,
                       "has data files but no " AC_CQ4_METADATA);
    const char *problem = ac_cq4_roll_problem(&roll);
    if (problem) return refuse_roll(&queue->dir, &roll, problem, survey->err);
    queue->roll = roll;
    return 1;
}

/* Stops at the first file that has what is missing. */
static int learn_from(void *context, const char *name) {
    survey_t *survey = context;
    int rc = learn_from_file(survey, name);
    if (rc < 0) survey->outcome = rc;
    return rc == 1;
}

int ac_cq4_queue_learn(ac_cq4_queue_t *queue, ac_error_t *err) {
    find_keys(queue);
    if (queue->roll.shift) return 1;
    survey_t survey = {.queue = queue, .dir_fd = ac_directory_open(&queue->dir, err), .err = err};
    if (survey.dir_fd < 0) return survey.dir_fd;
    int rc = ac_os_list(survey.dir_fd, learn_from, &survey);
    ac_os_close(survey.dir_fd);
    if (rc < 0) return ac_fail_os(err, rc, queue->dir.path, "cannot list");
    return rc == 1 ? 1 : survey.outcome;
}

/* ---- cycles ---- */

typedef struct cycle_list {
    const ac_cq4_roll_t *roll;
    uint32_t *cycles;
    size_t count, room;
} cycle_list_t;

static int collect(void *context, const char *name) {
    cycle_list_t *list = context;
    int64_t cycle = is_data_file(name) ? ac_cq4_roll_cycle_of_name(list->roll, name) : -1;
    if (cycle < 0) return 0;
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        uint32_t *grown = realloc(list->cycles, room * sizeof *grown);
        if (!grown) return -ENOMEM;
        list->cycles = grown;
        list->room = room;
    }
    list->cycles[list->count++] = (uint32_t)cycle;
    return 0;
}

static int ascending(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

int ac_cq4_queue_cycles(ac_cq4_queue_t *queue, uint32_t **cycles, size_t *count, ac_error_t *err) {
    cycle_list_t list = {.roll = &queue->roll};
    *cycles = NULL;
    *count = 0;
    int rc = ac_cq4_queue_learn(queue, err);
    if (rc <= 0) return rc;
    int dir_fd = ac_directory_open(&queue->dir, err);
    if (dir_fd < 0) return dir_fd;
    rc = ac_os_list(dir_fd, collect, &list);
    ac_os_close(dir_fd);
    if (rc < 0) {
        free(list.cycles);
        return ac_fail_os(err, rc, queue->dir.path, "cannot list");
    }
    if (list.count > 0) qsort(list.cycles, list.count, sizeof *list.cycles, ascending);
    *cycles = list.cycles;
    *count = list.count;
    return AC_OK;
}

int ac_cq4_queue_open_cycle(const ac_cq4_queue_t *queue, uint32_t number, ac_cq4_cycle_t *out,
                            ac_error_t *err) {
    char name[AC_CQ4_NAME_MAX];
    memset(out, 0, sizeof *out);
    if (ac_cq4_roll_file_name(&queue->roll, number, name) != AC_OK)
        return ac_fail(err, AC_E_NOT_FOUND, ENOENT, queue->dir.path, 0, "cycle %u has no file name",
                       number);
    int dir_fd = ac_directory_open(&queue->dir, err);
    if (dir_fd < 0) return dir_fd;
    int rc = ac_cq4_cycle_open(&queue->dir, dir_fd, name, number, queue->roll.shift, out, err);
    ac_os_close(dir_fd);
    return rc;
}

int ac_cq4_queue_is_locked(const ac_cq4_queue_t *queue) {
    uint64_t holder = queue->write_lock ? ac_load_acquire_u64(queue->write_lock) : AC_CQ4_UNLOCKED;
    int pid = (int)(uint32_t)holder;
    return holder != AC_CQ4_UNLOCKED && pid > 0 && ac_os_process_start(pid) != 0 &&
           !ac_os_process_ends(pid);
}
