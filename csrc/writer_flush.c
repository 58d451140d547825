/* Durability: what is on disk, how it gets there, and what sealing a segment does. */
#include "error.h"
#include "segment.h"
#include "segment_seekindex.h"
#include "sync.h"
#include "writer.h"

#include <errno.h>
#include <stdio.h>
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
    int rc = ac_os_write_at(writer->index_fd, position, sizeof position, 0);
    if (rc == 0) memcpy(writer->durable_position, position, sizeof position);
    if (rc == 0) ac_store_relaxed_u32(&writer->mark_unsynced, 1);
    return rc;
}

/* The durable position keeps recovery from cutting off records that are damaged later, so it must be
 * durable itself. With sync_mutex held. */
static int sync_mark(ac_writer_t *writer) {
    if (!ac_load_relaxed_u32(&writer->mark_unsynced)) return 0;
    int rc = ac_os_sync(writer->index_fd);
    if (rc == 0) ac_store_relaxed_u32(&writer->mark_unsynced, 0);
    return rc;
}

/* After a failed sync the kernel has dropped the error and perhaps the pages: no promise is possible any
 * more, so the writer stops for good. */
static int poison(ac_writer_t *writer, const char *file, int negative_errno, const char *what,
                  ac_error_t *err) {
    /* In this order, and read in the opposite order by ac_writer_set_limits: whichever comes second
     * disables the appender's fast path. */
    ac_exchange_seq_cst_u32(&writer->poisoned, (uint32_t)-negative_errno);
    ac_exchange_seq_cst_u64(&writer->limit, 0);
    char text[128];
    snprintf(text, sizeof text, "%s; close the writer and open it again to see how much is on disk",
             what);
    ac_error_t failed;
    int rc = ac_fail_os_in(&failed, negative_errno, writer->dir.path, file, text);
    ac_writer_note_error(writer, &writer->sync_errors, &failed);
    if (err) *err = failed;
    return rc;
}

static int sync_map(const ac_map_t *map, uint64_t from, uint64_t to) {
    return ac_map_is_cut(map) ? -EIO : ac_os_map_sync(map->base, map->fd, from, to - from);
}

/* Every sync of a segment ends here, with the system's answer. */
static int after_sync(ac_writer_t *writer, const ac_map_t *map, int rc, ac_error_t *err) {
    pthread_mutex_lock(&writer->mutex);
    writer->syncs++;
    pthread_mutex_unlock(&writer->mutex);
    if (rc >= 0) return AC_OK;
    char name[AC_NAME_MAX];
    ac_segment_name(name, map->segment, ".q");
    const char *what = ac_map_is_cut(map) ? "was cut, or its disk failed" : "cannot sync";
    return poison(writer, name, rc, what, err);
}

static int sync_range(ac_writer_t *writer, const ac_map_t *map, uint64_t from, uint64_t to,
                      ac_error_t *err) {
    return from < to ? after_sync(writer, map, sync_map(map, from, to), err) : AC_OK;
}

/* The records, and then the seal: without it readers would never go on to the next segment, and recovery
 * starts in the one that index.meta names.
 *
 * No thread stores into it any more, so its pages leave the page table first, all at once. Writing them back would
 * write-protect one after the other, each time interrupting the processor that the appender runs on: thousands of
 * appends would take microseconds. */
static int sync_sealing(ac_writer_t *writer, ac_sealing_t *sealing, ac_error_t *err) {
    if (sealing->seal_synced) return AC_OK;
    ac_os_unpopulate(sealing->map->base, 0, sealing->map->size);
    /* And the zeros of aborted reservations: the bytes they replaced, which may be on disk, would be taken
     * for damage after the last record. */
    uint64_t end = sealing->soiled > sealing->end ? sealing->soiled : sealing->end;
    int rc = sync_range(writer, sealing->map, sealing->synced, end, err);
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

/* A flush has two halves, so that the syncs of many writers can run between them. In between, the writer's
 * sync_mutex is held and the mapping retained. */
typedef struct flushing {
    ac_writer_t *writer;
    ac_map_t *map; /* to be synced: this range of it */
    uint64_t from, to;
    uint64_t seq;     /* afterwards everything before it is durable */
    uint64_t records; /* how many of those were not durable before */
} flushing_t;

/* Whole pages of the active segment leave the page table before they are synced, too (see sync_sealing), if
 * there are enough of them. With memlock they stay: readers may not have been there yet. */
enum { MANY_BYTES = 1 << 20 };

static void let_go(const flushing_t *flushing) {
    if (flushing->writer->config.memlock || flushing->to - flushing->from < MANY_BYTES) return;
    uint64_t inside = ac_os_page_size() - 1;
    ac_os_unpopulate(flushing->map->base, (flushing->from + inside) & ~inside,
                     flushing->to & ~inside);
}

/* Syncs what is being sealed; the active segment is left to the caller. The sealing list only grows at its
 * tail meanwhile; what is added to it belongs after the active segment of this moment, and so to the next
 * flush. */
static int sync_until_active(flushing_t *flushing, ac_error_t *err) {
    ac_writer_t *writer = flushing->writer;
    pthread_mutex_lock(&writer->mutex);
    ac_sealing_t *sealing = writer->sealing;
    flushing->map = writer->map;
    flushing->from = writer->synced;
    flushing->seq = ac_load_acquire_u64(&writer->seq);
    flushing->to = ac_load_relaxed_u64(&writer->offset);
    ac_map_retain(flushing->map);
    pthread_mutex_unlock(&writer->mutex);
    int rc = AC_OK;
    for (; sealing && sealing->map != flushing->map && rc == AC_OK;
         sealing = after(writer, sealing))
        rc = sync_sealing(writer, sealing, err);
    if (rc != AC_OK)
        ac_map_release(flushing->map);
    else
        let_go(flushing);
    return rc;
}

static int has_unsynced_seals(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    const ac_sealing_t *sealing = writer->sealing;
    while (sealing && sealing->seal_synced)
        sealing = sealing->next;
    pthread_mutex_unlock(&writer->mutex);
    return sealing != NULL;
}

enum begun { DURABLE = AC_OK, TO_SYNC = 1, LATER = 2 };

/* TO_SYNC = the range must be synced, and end_flush must follow. In a group no thread waits for the disk
 * while it holds other writers: a member that would have to is LATER, to be flushed alone. */
static int begin_flush(ac_writer_t *writer, flushing_t *flushing, int in_group, ac_error_t *err) {
    *flushing = (flushing_t){.writer = writer};
    if (writer->java) return LATER;
    if (ac_load_relaxed_u32(&writer->state) == AC_STATE_FORKED)
        return ac_fail(err, AC_E_FORKED, 0, writer->dir.path, 0, "opened before fork");
    uint64_t target = ac_load_acquire_u64(&writer->seq);
    if (!in_group)
        pthread_mutex_lock(&writer->sync_mutex);
    else if (pthread_mutex_trylock(&writer->sync_mutex) != 0)
        return LATER;
    int rc = DURABLE;
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
    else {
        rc = ac_writer_check_active(writer, err);
        if (rc == AC_OK && durable < target) {
            rc = in_group && has_unsynced_seals(writer) ? LATER : sync_until_active(flushing, err);
            flushing->records = flushing->seq - durable;
            if (rc == AC_OK) return TO_SYNC;
        } else if (rc == AC_OK &&
                   ac_load_relaxed_u32(
                       &writer->mark_unsynced)) { /* by an append that did not wait for it */
            int synced = in_group ? 0 : sync_mark(writer);
            if (synced < 0) rc = poison(writer, "index.meta", synced, "cannot sync", err);
            if (in_group) rc = LATER;
        }
    }
    pthread_mutex_unlock(&writer->sync_mutex);
    return rc;
}

static void note_durable(const flushing_t *flushing) {
    ac_writer_t *writer = flushing->writer;
    pthread_mutex_lock(&writer->mutex);
    if (writer->map == flushing->map) {
        if (flushing->to > writer->synced) writer->synced = flushing->to;
        writer->piece = flushing->to - flushing->from < AC_FEW_BYTES ? AC_PIECE_SYNCED : AC_PIECE;
    } else { /* rolled meanwhile: its entry in the list continues from here */
        for (ac_sealing_t *sealing = writer->sealing; sealing; sealing = sealing->next)
            if (sealing->map == flushing->map && flushing->to > sealing->synced)
                sealing->synced = flushing->to;
    }
    if (flushing->seq > writer->durable_seq) writer->durable_seq = flushing->seq;
    pthread_mutex_unlock(&writer->mutex);
}

/* `synced` is the result of syncing the range. The caller syncs index.meta next, and then calls end_flush. */
static int write_mark(flushing_t *flushing, int synced, ac_error_t *err) {
    ac_writer_t *writer = flushing->writer;
    int rc = flushing->from < flushing->to ? after_sync(writer, flushing->map, synced, err) : AC_OK;
    if (rc != AC_OK) return rc;
    int written = ac_writer_write_durable(writer, flushing->map->segment, flushing->to);
    return written < 0 ? poison(writer, "index.meta", written, "cannot write", err) : AC_OK;
}

/* `rc` is the result of write_mark, `synced` that of syncing index.meta. */
static int end_flush(flushing_t *flushing, int rc, int synced, ac_error_t *err) {
    ac_writer_t *writer = flushing->writer;
    if (rc == AC_OK && synced < 0) rc = poison(writer, "index.meta", synced, "cannot sync", err);
    if (rc == AC_OK) note_durable(flushing);
    ac_map_release(flushing->map);
    pthread_mutex_unlock(&writer->sync_mutex);
    return rc;
}

/* One message, appended when everything before it was on disk. It says so itself (AC_FLAG_SYNCED), and
 * nothing lies after it that recovery could cut off: index.meta, which is synced soon in the background,
 * need not be on disk before the flush returns. That saves half of the time that one durable message takes. */
static int is_own_proof(const flushing_t *flushing) {
    ac_message_t message;
    const char *why;
    return flushing->records == 1 &&
           ac_record_inspect(flushing->map->base, flushing->to, flushing->from,
                             flushing->map->segment, AC_CHECK_HEADER, &message,
                             &why) == AC_RECORD_GOOD &&
           (message.flags & AC_FLAG_SYNCED) &&
           flushing->from + ac_record_size(message.length) == flushing->to;
}

/* A caller that flushes single messages will flush the next one, too: that one is appended on the slow
 * path, where it gets the flag. */
static void expect_single(const flushing_t *flushing) {
    int is_single = flushing->records == 1;
    ac_store_relaxed_u32(&flushing->writer->flushed_single, (uint32_t)is_single);
    if (is_single) ac_store_relaxed_u64(&flushing->writer->limit, 0);
}

static int64_t durable_seq(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->mutex);
    uint64_t durable = writer->durable_seq;
    pthread_mutex_unlock(&writer->mutex);
    return (int64_t)durable;
}

static int64_t flush_one(ac_writer_t *writer, int with_mark, ac_error_t *err) {
    flushing_t flushing;
    int rc = begin_flush(writer, &flushing, 0, err);
    if (rc == TO_SYNC) {
        int synced =
            flushing.from < flushing.to ? sync_map(flushing.map, flushing.from, flushing.to) : 0;
        rc = write_mark(&flushing, synced, err);
        int marked = rc == AC_OK && with_mark && !is_own_proof(&flushing) ? sync_mark(writer) : 0;
        if (rc == AC_OK && with_mark) expect_single(&flushing);
        rc = end_flush(&flushing, rc, marked, err);
    }
    return rc != AC_OK ? rc : durable_seq(writer);
}

int64_t ac_writer_flush(ac_writer_t *writer, ac_error_t *err) {
    return writer->java ? ac_java_flush(writer, err) : flush_one(writer, 1, err);
}

int64_t ac_writer_sync_data(ac_writer_t *writer, ac_error_t *err) {
    return flush_one(writer, 0, err);
}

/* One writer of a group: its index in the caller's list, and its progress. */
typedef struct member {
    ac_writer_t *writer;
    size_t number;
    int begun;  /* what begin_flush gave … */
    int marked; /* … and write_mark */
    flushing_t flushing;
} member_t;

static int by_address(const void *left, const void *right) {
    uintptr_t a = (uintptr_t)((const member_t *)left)->writer;
    uintptr_t b = (uintptr_t)((const member_t *)right)->writer;
    return (a > b) - (a < b);
}

typedef struct group {
    member_t *members;
    ac_sync_t *ranges;
    int64_t *results;
    ac_error_t *errors;
    int patient; /* waits for writers that are LATER */
} group_t;

/* A writer that is listed twice comes twice in a row, by address. */
static void begin_member(group_t *group, size_t i) {
    member_t *member = &group->members[i];
    ac_sync_t *range = &group->ranges[i];
    const flushing_t *flushing = &member->flushing;
    ac_error_t *err = &group->errors[member->number];
    *range = (ac_sync_t){.fd = -1};
    if (i > 0 && group->members[i - 1].writer == member->writer)
        member->begun =
            ac_fail(err, AC_E_ARGUMENT, 0, member->writer->dir.path, 0, "a writer is listed twice");
    else
        member->begun = begin_flush(member->writer, &member->flushing, 1, err);
    if (member->begun != TO_SYNC || flushing->from >= flushing->to) return;
    if (ac_map_is_cut(flushing->map))
        range->result = -EIO;
    else
        *range = (ac_sync_t){.base = flushing->map->base,
                             .fd = flushing->map->fd,
                             .offset = flushing->from,
                             .length = flushing->to - flushing->from};
}

static void mark_member(void *context, size_t i) {
    const group_t *group = context;
    member_t *member = &group->members[i];
    if (member->begun == TO_SYNC)
        member->marked =
            write_mark(&member->flushing, group->ranges[i].result, &group->errors[member->number]);
}

static void end_member(void *context, size_t i) {
    const group_t *group = context;
    member_t *member = &group->members[i];
    ac_error_t *err = &group->errors[member->number];
    int rc = member->begun, synced = group->ranges[i].result;
    if (rc == TO_SYNC) {
        if (member->marked == AC_OK && synced == 0)
            ac_store_relaxed_u32(&member->writer->mark_unsynced, 0);
        rc = end_flush(&member->flushing, member->marked, synced, err);
    }
    group->results[member->number] = rc == AC_OK ? durable_seq(member->writer) : rc;
}

/* The durable positions of all of them, likewise together. */
static void sync_marks(group_t *group, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const member_t *member = &group->members[i];
        group->ranges[i] = (ac_sync_t){.fd = -1};
        if (member->begun == TO_SYNC && member->marked == AC_OK &&
            ac_load_relaxed_u32(&member->writer->mark_unsynced))
            group->ranges[i] = (ac_sync_t){.fd = member->writer->index_fd, .length = 1};
    }
    ac_sync_ranges(group->ranges, count, end_member, group);
}

static void flush_group(group_t *group, size_t count) {
    qsort(group->members, count, sizeof *group->members, by_address);
    for (size_t i = 0; i < count; i++)
        begin_member(group, i);
    ac_sync_ranges(group->ranges, count, mark_member, group);
    sync_marks(group, count);
    for (size_t i = 0; i < count; i++) {
        const member_t *member = &group->members[i];
        if (member->begun == LATER)
            group->results[member->number] =
                group->patient ? ac_writer_flush(member->writer, &group->errors[member->number])
                               : AC_E_SLOW;
    }
}

#ifdef __SANITIZE_THREAD__
enum { TOGETHER = 32 }; /* ThreadSanitizer can follow 64 locks of a thread */
#else
enum { TOGETHER = 256 };
#endif

static void flush_all(ac_writer_t *const *writers, size_t count, int64_t *results,
                      ac_error_t *errors, int patient) {
    size_t room = count < TOGETHER ? count : TOGETHER;
    member_t *members = ac_os_alloc(room * sizeof *members);
    ac_sync_t *ranges = ac_os_alloc(room * sizeof *ranges);
    for (size_t from = 0; from < count; from += room) {
        size_t some = count - from < room ? count - from : room;
        if (!members || !ranges) { /* slower, but no less durable */
            for (size_t i = from; i < from + some; i++)
                results[i] = ac_writer_flush(writers[i], &errors[i]);
            continue;
        }
        for (size_t i = 0; i < some; i++)
            members[i] = (member_t){.writer = writers[from + i], .number = i};
        flush_group(&(group_t){members, ranges, results + from, errors + from, patient}, some);
    }
    free(members);
    free(ranges);
}

void ac_writers_try_flush(ac_writer_t *const *writers, size_t count, int64_t *results,
                          ac_error_t *errors) {
    flush_all(writers, count, results, errors, 0);
}

size_t ac_writers_flush(ac_writer_t *const *writers, size_t count, int64_t *results,
                        ac_error_t *errors) {
    flush_all(writers, count, results, errors, 1);
    size_t failed = 0;
    for (size_t i = 0; i < count; i++)
        failed += results[i] < 0;
    return failed;
}

/* 1 = it is on disk, 0 = a sync has failed before. After a failure another sync of the same pages succeeds,
 * whether they are on disk or not, so this is checked where no other thread can be syncing. */
static int sync_and_note(ac_writer_t *writer, ac_sealing_t *sealing, ac_error_t *err) {
    int rc = 0;
    pthread_mutex_lock(&writer->sync_mutex);
    if (!ac_load_acquire_u32(&writer->poisoned)) {
        rc = sync_sealing(writer, sealing, err);
        int written = 0;
        if (rc == AC_OK)
            written = ac_writer_write_durable(writer, sealing->map->segment, sealing->end);
        if (rc == AC_OK && written == 0) written = sync_mark(writer);
        if (written < 0) rc = poison(writer, "index.meta", written, "cannot write", err);
        if (rc == AC_OK) rc = 1;
    }
    pthread_mutex_unlock(&writer->sync_mutex);
    return rc;
}

/* In async mode no caller asks for a sync, although the kernel has long written the older records: only a
 * sync confirms this, so that they count as durable. A segment that was rolled is synced anyway. */
enum ac_write_back ac_writer_find_write_back(ac_writer_t *writer, uint64_t now_ns) {
    uint64_t batch_ns;
    int unsynced =
        ac_writer_flush_mode(writer, &batch_ns) == AC_FLUSH_ASYNC && ac_writer_unsynced(writer) > 0;
    if (!unsynced)
        writer->unsynced_since_ns = 0;
    else if (writer->unsynced_since_ns == 0)
        writer->unsynced_since_ns = now_ns;
    else if (now_ns - writer->unsynced_since_ns >= writer->config.write_back_ns) {
        writer->unsynced_since_ns = 0;
        return AC_WRITE_BACK_ALL;
    }
    return ac_load_relaxed_u32(&writer->mark_unsynced) ? AC_WRITE_BACK_MARK : AC_WRITE_BACK_NOTHING;
}

/* A failure poisons the writer, which reports it. */
void ac_writer_write_back(ac_writer_t *writer, enum ac_write_back what) {
    ac_error_t err;
    if (what == AC_WRITE_BACK_ALL) ac_writer_flush(writer, &err);
    if (what != AC_WRITE_BACK_MARK) return;
    pthread_mutex_lock(&writer->sync_mutex);
    if (!ac_load_acquire_u32(&writer->poisoned)) {
        int rc = sync_mark(writer);
        if (rc < 0) poison(writer, "index.meta", rc, "cannot sync", &err);
    }
    pthread_mutex_unlock(&writer->sync_mutex);
}

/* With sync_mutex, since a flush may be walking the list. */
static void forget_first(ac_writer_t *writer) {
    pthread_mutex_lock(&writer->sync_mutex);
    pthread_mutex_lock(&writer->mutex);
    ac_sealing_t *sealing = writer->sealing;
    writer->sealing = sealing->next;
    if (!sealing->next) writer->sealing_tail = &writer->sealing;
    writer->seals++;
    pthread_mutex_unlock(&writer->mutex);
    pthread_mutex_unlock(&writer->sync_mutex);
    ac_map_release(sealing->map);
    free(sealing);
}

/* One thread at a time: the housekeeper, or the thread that has taken the writer from it. The index needs a
 * walk over the segment, during which no flush has to wait. It is built first, while the pages are still in
 * the page table, and published last: recovery takes a segment with an index for finished. It is a hint, so
 * a failure to build it is counted, not fatal. */
int ac_writer_seal_next(ac_writer_t *writer, ac_error_t *err) {
    pthread_mutex_lock(&writer->mutex);
    ac_sealing_t *sealing = writer->sealing;
    pthread_mutex_unlock(&writer->mutex);
    if (!sealing || ac_load_acquire_u32(&writer->poisoned)) return 0; /* no need for a walk */
    ac_index_t index = {0};
    ac_error_t why;
    int walked = ac_index_extend(&index, sealing->map);
    int rc = sync_and_note(writer, sealing, err);
    if (rc == 1) {
        int saved = walked < 0 ? ac_fail_os(&why, walked, writer->dir.path, "index")
                               : ac_index_save(&index, &writer->dir, writer->dir_fd,
                                               writer->segment_size, &why);
        if (saved != AC_OK)
            ac_writer_note_error(writer, &writer->seal_errors, &why);
        else
            ac_writer_note_success(writer, &writer->seal_errors);
        ac_writer_recycle_pages(writer, sealing);
        forget_first(writer);
    }
    ac_index_free(&index);
    return rc;
}

int ac_writer_seal_pending(ac_writer_t *writer, ac_error_t *err) {
    int rc;
    while ((rc = ac_writer_seal_next(writer, err)) == 1)
        continue;
    return rc;
}
