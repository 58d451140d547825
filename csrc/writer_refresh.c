/* Makes pages writable again that the kernel has written back after they were made ready and before the append that
 * needs them.
 *
 * Pages ahead of the appender are dirty: making them ready filled them with zeros. When the kernel writes the file
 * back, as it often does with a busy disk, it write-protects all of them, and an append that begins a page faults.
 * That is one of twenty-one appends, at 1 to 6 us each, or milliseconds if this very page is on its way to the disk.
 * So the housekeeper touches the next few pages shortly before the appender reaches them. A page that is still
 * writable costs it less than 0.1 us; the others fault here.
 *
 * How many pages are "next", and when to check again, follow from the writer's rate since the last check. A writer at
 * full speed is left alone, because its pages were made ready a moment ago. So is one that syncs every few records,
 * which faults after each sync anyway. After a check that found the writer idle, checks stop until the heartbeat finds
 * that it has moved. Correctness does not depend on any of this. */
#include "segment.h"
#include "writer.h"

#define SOONEST_NS 10000000ull
#define LATEST_NS 1000000000ull
enum { BYTES_PER_LOOK = 128 << 10, REACH_LEAST = 64 << 10 };
enum { BYTES_MOST = 4 << 20 }; /* in SOONEST_NS: 400 MB/s */

/* The pages that the appender will need first, in the active segment and in the next one. */
typedef struct coming {
    ac_map_t *map, *next;
    uint64_t from, to, next_to;
} coming_t;

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Returns the bytes appended since the last check; in a new segment, all of them. With the mutex held. */
static uint64_t note_place(ac_writer_t *writer, uint64_t now_ns, uint64_t *elapsed_ns) {
    uint64_t offset = ac_load_relaxed_u64(&writer->offset);
    uint64_t from = writer->map->segment == writer->refreshed_segment ? writer->refreshed_offset
                                                                      : AC_SEGMENT_DATA;
    *elapsed_ns = now_ns > writer->refreshed_ns ? now_ns - writer->refreshed_ns : 1;
    writer->refreshed_segment = writer->map->segment;
    ac_store_relaxed_u64(&writer->refreshed_offset, offset);
    writer->refreshed_ns = now_ns;
    return offset > from ? offset - from : 0;
}

/* With the mutex held. */
static coming_t find_coming(const ac_writer_t *writer, uint64_t reach) {
    uint64_t from = writer->refreshed_offset, end = from + reach;
    coming_t coming = {.map = writer->map, .from = from, .to = least(end, writer->populated)};
    if (writer->next && end > writer->segment_size) {
        coming.next = writer->next;
        coming.next_to = least(end - writer->segment_size, writer->next_populated);
    }
    return coming;
}

static void touch(ac_map_t *map, uint64_t from, uint64_t to) {
    if (!map) return;
    if (from < to) ac_os_populate(map->base, from, to - from, 1);
    ac_map_release(map);
}

uint64_t ac_writer_refresh_pages(ac_writer_t *writer) {
    uint64_t now_ns = ac_os_monotonic_ns(), elapsed_ns;
    coming_t coming = {0};
    pthread_mutex_lock(&writer->mutex);
    uint64_t moved = note_place(writer, now_ns, &elapsed_ns);
    uint64_t pause_ns = moved ? elapsed_ns / moved * BYTES_PER_LOOK : 0;
    if (pause_ns < SOONEST_NS) pause_ns = SOONEST_NS;
    if (pause_ns > LATEST_NS) pause_ns = LATEST_NS;
    double meanwhile = (double)moved * (double)pause_ns / (double)elapsed_ns;
    if (writer->piece == AC_PIECE_SYNCED) moved = 0;
    if (moved && meanwhile < BYTES_MOST) {
        coming = find_coming(writer, REACH_LEAST + 2 * (uint64_t)meanwhile);
        ac_map_retain(coming.map);
        if (coming.next) ac_map_retain(coming.next);
    }
    pthread_mutex_unlock(&writer->mutex);
    touch(coming.map, coming.from, coming.to);
    touch(coming.next, 0, coming.next_to);
    return moved ? ac_os_monotonic_ns() + pause_ns : UINT64_MAX;
}
