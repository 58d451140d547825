/* A queue that is removed, moved away or taken by another writer while its writer has it open. A mapping
 * outlives the name of its file, so appends would go into a file that no reader will ever find. Nothing on
 * a message's path checks that: the housekeeper does, once a second; and each flush checks the two files
 * that matter most, since it could promise nothing otherwise. */
#include "error.h"
#include "log.h"
#include "segment.h"
#include "writer.h"

#include <errno.h>
#include <stdio.h>

int ac_writer_check_removed(const ac_writer_t *writer, ac_error_t *err) {
    const char *gone = __atomic_load_n(&writer->gone, __ATOMIC_ACQUIRE);
    if (!gone) return AC_OK;
    return ac_fail(err, AC_E_GONE, ENOENT, writer->dir.path, 0,
                   "%s; what was appended since is not in the queue", gone);
}

static void give_up(ac_writer_t *writer, const char *why) {
    pthread_mutex_lock(&writer->mutex);
    ac_writer_keep_error(writer, ENOENT, writer->dir.path, why);
    pthread_mutex_unlock(&writer->mutex);
    /* In this order, and read in the opposite order by ac_writer_set_limits: whichever comes second
     * disables the appender's fast path. */
    const char *before = __atomic_exchange_n(&writer->gone, why, __ATOMIC_SEQ_CST);
    ac_exchange_seq_cst_u64(&writer->limit, 0);
    if (!before) ac_log(AC_LOG_ERROR, writer->dir.path, "%s; the writer stops", why);
}

/* Under sync_mutex, so that the active segment cannot be sealed meanwhile, nor removed by retention. */
static ac_map_t *active(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    ac_map_t *map = writer->map;
    pthread_mutex_unlock(&writer->mutex);
    return map;
}

static const char directory_gone[] = "the queue's directory was removed or moved away";
static const char segment_gone[] = "the active segment was removed";
static const char segment_cut[] = "the active segment was cut";

/* Whether its path leads to another directory, or to none. If that cannot be checked, it may well still be
 * there. */
static int lacks_directory(const ac_writer_t *writer) {
    struct stat info;
    int rc = ac_os_stat_path(writer->dir.path, &info);
    if (rc < 0) return rc == -ENOENT || rc == -ENOTDIR;
    return info.st_dev != writer->dir.device || info.st_ino != writer->dir.inode;
}

/* Why the queue is no longer this writer's, or NULL; see lock.h. A flush and the housekeeper may both ask. */
static const char *lost_lock(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->lock_mutex);
    const char *lost = ac_writer_keep_lock(&writer->lock, &writer->dir, writer->dir_fd,
                                           writer->control, writer->epoch);
    pthread_mutex_unlock(&writer->lock_mutex);
    return lost;
}

int ac_writer_check_active(ac_writer_t *writer, ac_error_t *err) {
    ac_extent_t found;
    const char *lost;
    if (ac_writer_check_removed(writer, err) != AC_OK) return AC_E_GONE;
    const ac_map_t *map = active(writer);
    int rc = ac_os_extent(map->fd, &found);
    if (rc == 0 && found.links == 0)
        give_up(writer, segment_gone);
    else if (rc == 0 && found.size < map->size) /* perhaps inside a page: no fault shows it */
        give_up(writer, segment_cut);
    else if (lacks_directory(writer))
        give_up(writer, directory_gone);
    else if ((lost = lost_lock(writer)))
        give_up(writer, lost);
    return ac_writer_check_removed(writer, err);
}

int ac_writer_fail_cut(ac_writer_t *writer, ac_error_t *err) {
    char path[1200];
    struct stat info;
    const ac_map_t *map = writer->map;
    uint64_t at = ac_load_relaxed_u64(&map->cut_at);
    snprintf(path, sizeof path, "%s/%09u.q", writer->dir.path, map->segment);
    if (ac_os_stat(map->fd, &info) == 0 && (uint64_t)info.st_size < map->size)
        return ac_fail(err, AC_E_GONE, 0, path, at, "the active segment was cut to %llu bytes",
                       (unsigned long long)info.st_size);
    return ac_fail(err, AC_E_SYSTEM, EIO, path, at,
                   "a page of the active segment cannot be written: the disk is full or fails");
}

int ac_writer_was_cut(const ac_writer_t *writer) {
    return __atomic_load_n(&writer->gone, __ATOMIC_ACQUIRE) == segment_cut ||
           ac_map_is_cut(writer->map);
}

static int lacks(const ac_writer_t *writer, const char *name) {
    struct stat info;
    return ac_os_stat_at(writer->dir_fd, name, &info) == -ENOENT;
}

static int is_shorter(const ac_writer_t *writer, const char *name, uint64_t size) {
    struct stat info;
    return ac_os_stat_at(writer->dir_fd, name, &info) == 0 && (uint64_t)info.st_size < size;
}

/* What is missing, or NULL. */
static const char *missing(ac_writer_t *writer, uint32_t segment) {
    char name[AC_NAME_MAX];
    if (lacks_directory(writer)) return directory_gone;
    if (is_shorter(writer, "control.meta", AC_CONTROL_SIZE)) return "control.meta was cut";
    ac_segment_name(name, segment, ".q");
    if (lacks(writer, name)) return segment_gone;
    return is_shorter(writer, name, writer->segment_size) ? segment_cut : lost_lock(writer);
}

static uint32_t active_segment(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    uint32_t segment = writer->map->segment;
    pthread_mutex_unlock(&writer->mutex);
    return segment;
}

/* Without sync_mutex, which may be held for as long as the disk takes to sync a segment. If the missing
 * segment is still the active one afterwards, it was active when it was looked for, and retention had not
 * removed it. */
void ac_writer_check_files(ac_writer_t *writer) {
    /* What is lost stays lost: another writer's lock must not be taken after that writer has ended. */
    const char *gone = __atomic_load_n(&writer->gone, __ATOMIC_ACQUIRE);
    if (!gone) {
        uint32_t segment = active_segment(writer);
        gone = missing(writer, segment);
        if (gone == segment_gone && active_segment(writer) != segment) gone = NULL;
    }
    if (!gone) return;
    give_up(writer, gone);
    /* Sleeping readers must look for themselves now. */
    ac_store_release_u64(&writer->control->signalling_epoch, 0);
    if (writer->attended) ac_wake_targets_close(&writer->targets);
}
