/* A queue that is removed, moved away or taken by another writer under its writer. A mapping outlives the name of its file, so appends
 * would go on into something that no reader will ever find. Nothing on the way of a message looks for that:
 * the housekeeper does, once a second; and each flush looks at the two that matter most, since it could promise
 * nothing otherwise. */
#include "error.h"
#include "segment.h"
#include "writer.h"

#include <errno.h>
#include <stdio.h>

int ac_writer_check_gone(const ac_writer_t *writer, ac_error_t *err) {
    const char *gone = __atomic_load_n(&writer->gone, __ATOMIC_ACQUIRE);
    if (!gone) return AC_OK;
    return ac_fail(err, AC_E_GONE, ENOENT, writer->dir.path, 0,
                   "%s; what was appended since is not in the queue", gone);
}

static void give_up(ac_writer_t *writer, const char *why) {
    pthread_mutex_lock(&writer->mutex);
    writer->last_errno = ENOENT;
    snprintf(writer->last_error, sizeof writer->last_error, "%s", why);
    pthread_mutex_unlock(&writer->mutex);
    /* In this order, and looked at in the other one by ac_writer_set_limits: whichever comes second
     * takes the appender's fast path away. */
    __atomic_store_n(&writer->gone, why, __ATOMIC_SEQ_CST);
    ac_exchange_seq_cst_u64(&writer->limit, 0);
}

/* Under sync_mutex, so what is active now cannot be sealed meanwhile, and retention cannot remove it. */
static ac_map_t *active(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    ac_map_t *map = writer->map;
    pthread_mutex_unlock(&writer->mutex);
    return map;
}

static const char directory_gone[] = "the queue's directory was removed or moved away";
static const char segment_gone[] = "the active segment was removed";

/* Whether its path leads to another directory, or to none. What cannot be looked at may well be there. */
static int lacks_directory(const ac_writer_t *writer) {
    struct stat info;
    int rc = ac_os_stat_path(writer->dir.path, &info);
    if (rc < 0) return rc == -ENOENT || rc == -ENOTDIR;
    return info.st_dev != writer->dir.device || info.st_ino != writer->dir.inode;
}

/* Why the queue is not this writer's any more, or NULL; see lock.h. With sync_mutex held. */
static const char *lost_lock(ac_writer_t *writer) {
    return ac_writer_keep_lock(&writer->lock, &writer->dir, writer->dir_fd, writer->control,
                               writer->epoch);
}

int ac_writer_check_active(ac_writer_t *writer, ac_error_t *err) {
    struct stat info;
    const char *lost;
    if (ac_writer_check_gone(writer, err) != AC_OK) return AC_E_GONE;
    if (ac_os_stat(active(writer)->fd, &info) == 0 && info.st_nlink == 0)
        give_up(writer, segment_gone);
    else if (lacks_directory(writer))
        give_up(writer, directory_gone);
    else if ((lost = lost_lock(writer)))
        give_up(writer, lost);
    return ac_writer_check_gone(writer, err);
}

static int lacks(const ac_writer_t *writer, const char *name) {
    struct stat info;
    return ac_os_stat_at(writer->dir_fd, name, &info) == -ENOENT;
}

/* What is missing, or NULL. */
static const char *missing(ac_writer_t *writer, uint32_t segment) {
    char name[AC_NAME_MAX];
    if (lacks_directory(writer)) return directory_gone;
    ac_segment_name(name, segment, ".q");
    return lacks(writer, name) ? segment_gone : lost_lock(writer);
}

void ac_writer_look_around(ac_writer_t *writer) {
    /* What is lost stays lost: another writer's lock must not be taken when that one has ended. */
    const char *gone = __atomic_load_n(&writer->gone, __ATOMIC_ACQUIRE);
    if (!gone) {
        pthread_mutex_lock(&writer->sync_mutex);
        gone = missing(writer, active(writer)->segment);
        pthread_mutex_unlock(&writer->sync_mutex);
    }
    if (!gone) return;
    give_up(writer, gone);
    /* Readers that sleep have to look for themselves now. */
    ac_store_release_u64(&writer->control->signalling_epoch, 0);
    if (writer->attended) ac_doorman_leave(&writer->callers);
}
