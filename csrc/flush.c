/* Durability: what is on disk, how it gets there, and what sealing a segment means. */
#include "error.h"
#include "seekindex.h"
#include "segment.h"
#include "writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t ac_writer_unsynced(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    uint64_t bytes = ac_load_relaxed_u64(&writer->offset) - writer->synced;
    for (ac_sealing_t *sealing = writer->sealing; sealing; sealing = sealing->next)
        bytes += sealing->end - sealing->synced;
    pthread_mutex_unlock(&writer->mutex);
    return bytes;
}

/* Never backwards: a flush may have gone beyond a segment before that one is sealed. */
int ac_writer_write_durable(ac_writer_t *writer, uint64_t segment, uint64_t offset) {
    uint64_t position[2] = {segment, offset};
    const uint64_t *written = writer->durable_position;
    if (segment < written[0] || (segment == written[0] && offset <= written[1])) return 0;
    /* Not synced: losing it costs the next opening a longer walk, nothing else. */
    int rc = ac_os_write_at(writer->index_fd, position, sizeof position, 0);
    if (rc == 0) memcpy(writer->durable_position, position, sizeof position);
    return rc;
}

/* After a failed sync the kernel has dropped the error and perhaps the pages: nothing can be promised
 * any more, so the writer stops for good. */
static int poison(ac_writer_t *writer, int negative_errno, const char *what, ac_error_t *err) {
    /* In this order, and looked at in the other one by ac_writer_set_limits: whichever comes second
     * takes the appender's fast path away. */
    ac_exchange_seq_cst_u32(&writer->poisoned, (uint32_t)-negative_errno);
    ac_exchange_seq_cst_u64(&writer->limit, 0);
    int rc = ac_fail_os(err, negative_errno, writer->dir.path, what);
    pthread_mutex_lock(&writer->mutex);
    writer->sync_errors++;
    writer->last_errno = -negative_errno;
    pthread_mutex_unlock(&writer->mutex);
    return rc;
}

static int sync_range(ac_writer_t *writer, ac_map_t *map, uint64_t from, uint64_t to,
                      ac_error_t *err) {
    if (from >= to) return AC_OK;
    int rc = ac_map_is_cut(map) ? -EIO : ac_os_map_sync(map->base, map->fd, from, to - from);
    pthread_mutex_lock(&writer->mutex);
    writer->syncs++;
    pthread_mutex_unlock(&writer->mutex);
    return rc < 0 ? poison(writer, rc, "cannot sync a segment", err) : AC_OK;
}

/* The records, and then the seal: without it readers would never go on to the next segment, and recovery
 * starts in the one that index.meta names. */
static int sync_sealing(ac_writer_t *writer, ac_sealing_t *sealing, ac_error_t *err) {
    if (sealing->seal_synced) return AC_OK;
    int rc = sync_range(writer, sealing->map, sealing->synced, sealing->end, err);
    ac_segment_seal(sealing->map, sealing->sealed_end); /* the appender may be about to */
    if (rc == AC_OK) rc = sync_range(writer, sealing->map, 0, AC_SEGMENT_DATA, err);
    if (rc != AC_OK) return rc;
    pthread_mutex_lock(&writer->mutex);
    sealing->synced = sealing->end;
    sealing->seal_synced = 1;
    if (sealing->next_seq > writer->durable_seq) writer->durable_seq = sealing->next_seq;
    pthread_mutex_unlock(&writer->mutex);
    return AC_OK;
}

static ac_sealing_t *after(ac_writer_t *writer, const ac_sealing_t *sealing) {
    pthread_mutex_lock(&writer->mutex);
    ac_sealing_t *next = sealing->next;
    pthread_mutex_unlock(&writer->mutex);
    return next;
}

/* With sync_mutex held. The sealing list only grows at its tail meanwhile; what is added to it belongs
 * behind the active segment of this moment, and so to the next flush. */
static int sync_all(ac_writer_t *writer, ac_error_t *err) {
    pthread_mutex_lock(&writer->mutex);
    ac_sealing_t *sealing = writer->sealing;
    ac_map_t *map = writer->map;
    uint64_t from = writer->synced;
    uint64_t seq = ac_load_acquire_u64(&writer->seq);
    uint64_t to = ac_load_relaxed_u64(&writer->offset);
    ac_map_retain(map);
    pthread_mutex_unlock(&writer->mutex);
    int rc = AC_OK;
    for (; sealing && sealing->map != map && rc == AC_OK; sealing = after(writer, sealing))
        rc = sync_sealing(writer, sealing, err);
    if (rc == AC_OK) rc = sync_range(writer, map, from, to, err);
    if (rc == AC_OK) {
        int written = ac_writer_write_durable(writer, map->segment, to);
        if (written < 0) rc = poison(writer, written, "cannot write index.meta", err);
    }
    if (rc == AC_OK) {
        pthread_mutex_lock(&writer->mutex);
        if (writer->map == map) {
            if (to > writer->synced) writer->synced = to;
        } else { /* rolled meanwhile: its entry in the list continues from here */
            for (sealing = writer->sealing; sealing; sealing = sealing->next)
                if (sealing->map == map && to > sealing->synced) sealing->synced = to;
        }
        if (seq > writer->durable_seq) writer->durable_seq = seq;
        pthread_mutex_unlock(&writer->mutex);
    }
    ac_map_release(map);
    return rc;
}

int64_t ac_writer_flush(ac_writer_t *writer, ac_error_t *err) {
    uint32_t state = ac_load_relaxed_u32(&writer->state);
    if (state == AC_STATE_FORKED)
        return ac_fail(err, AC_E_FORKED, 0, writer->dir.path, 0, "opened before fork");
    uint64_t target = ac_load_acquire_u64(&writer->seq);
    pthread_mutex_lock(&writer->sync_mutex);
    int rc = AC_OK;
    int poisoned = (int)ac_load_acquire_u32(&writer->poisoned);
    pthread_mutex_lock(&writer->mutex);
    uint64_t durable = writer->durable_seq;
    pthread_mutex_unlock(&writer->mutex);
    if (poisoned)
        rc = ac_fail(err, AC_E_POISONED, poisoned, writer->dir.path, 0,
                     "an earlier sync failed; close the writer and open it again");
    else if (ac_load_relaxed_u32(&writer->state) == AC_STATE_CLOSED)
        rc = durable >= target
                 ? AC_OK
                 : ac_fail(err, AC_E_CLOSED, 0, writer->dir.path, 0, "writer is closed");
    else if (durable < target)
        rc = sync_all(writer, err);
    pthread_mutex_lock(&writer->mutex);
    durable = writer->durable_seq;
    pthread_mutex_unlock(&writer->mutex);
    pthread_mutex_unlock(&writer->sync_mutex);
    return rc != AC_OK ? rc : (int64_t)durable;
}

/* The index is a hint: failing to write it is counted, not fatal. */
static void save_index(ac_writer_t *writer, const ac_map_t *map) {
    ac_index_t index = {0};
    ac_error_t err;
    int rc = ac_index_extend(&index, map);
    if (rc < 0)
        rc = ac_fail_os(&err, rc, writer->dir.path, "index");
    else
        rc = ac_index_save(&index, &writer->dir, writer->dir_fd, writer->segment_size, &err);
    ac_index_free(&index);
    if (rc != AC_OK) ac_writer_note_error(writer, &writer->seal_errors, &err);
}

static int seal_first(ac_writer_t *writer, ac_sealing_t *sealing, ac_error_t *err) {
    int rc = sync_sealing(writer, sealing, err);
    if (rc != AC_OK) return rc;
    int written = ac_writer_write_durable(writer, sealing->map->segment, sealing->end);
    if (written < 0) return poison(writer, written, "cannot write index.meta", err);
    save_index(writer, sealing->map);
    return AC_OK;
}

int ac_writer_seal_pending(ac_writer_t *writer, ac_error_t *err) {
    int rc = AC_OK;
    pthread_mutex_lock(&writer->sync_mutex);
    while (rc == AC_OK && !ac_load_acquire_u32(&writer->poisoned)) {
        pthread_mutex_lock(&writer->mutex);
        ac_sealing_t *sealing = writer->sealing;
        pthread_mutex_unlock(&writer->mutex);
        if (!sealing) break;
        rc = seal_first(writer, sealing, err);
        if (rc != AC_OK) break;
        pthread_mutex_lock(&writer->mutex);
        writer->sealing = sealing->next;
        if (!sealing->next) writer->sealing_tail = &writer->sealing;
        writer->seals++;
        pthread_mutex_unlock(&writer->mutex);
        ac_map_release(sealing->map);
        free(sealing);
    }
    pthread_mutex_unlock(&writer->sync_mutex);
    return rc;
}
