/* Memory that a recorder returns to the kernel, to get it back for new pages.
 *
 * A queue that is never trimmed takes fresh pages without end. On a host that lends memory to its virtual machines each of
 * them takes 10 us when it is used for the first time, more than the twenty records that go into it. With retention that
 * does not happen: the pages of removed files come back with the next fill. A recorder removes nothing, but what it has
 * sealed and synced is on disk, and can leave the page cache: its pages come back likewise.
 *
 * What will be read soon must stay in memory. So nothing is dropped while fresh pages have their normal cost, nor for a
 * writer that fills its segments so slowly that pages can be populated ahead; never the newest KEPT_BYTES, and nothing
 * that an open named reader has yet to read. Pages that any process has mapped stay in any case: the kernel keeps them.
 *
 * Only what this writer has synced itself, with success, is dropped: after a failed sync the only copy may be the one in
 * memory. Correctness does not depend on whether this works. */
#include "retention.h"
#include "segment.h"
#include "writer.h"

#include <fcntl.h>

#define DEAR_NS_PER_MIB 1000000u    /* 1 GB/s */
#define FAST_NS_PER_MIB 16000000ull /* 64 MiB/s */
enum { AVERAGED = 16, DROPPED_AT_ONCE = 2 };
#define KEPT_BYTES (512ull << 20)
#define MIB (1ull << 20)

void ac_writer_note_fill(ac_writer_t *writer, uint64_t bytes, uint64_t cpu_ns) {
    if (bytes == 0) return;
    uint64_t ns_per_mib = cpu_ns * MIB / bytes;
    uint64_t before = writer->fill_ns_per_mib;
    writer->fill_ns_per_mib = before - before / AVERAGED + ns_per_mib / AVERAGED;
}

/* Once fresh pages were expensive, this goes on until the writer slows down: returned pages are cheap. */
static int is_wanted(ac_writer_t *writer, const ac_sealing_t *sealing) {
    pthread_mutex_lock(&writer->mutex);
    int is_fast = sealing->filled_ns < sealing->end / MIB * FAST_NS_PER_MIB;
    int is_dear = writer->fill_ns_per_mib > DEAR_NS_PER_MIB;
    writer->recycles_pages = is_fast && (is_dear || writer->recycles_pages);
    int is_wanted = writer->recycles_pages && !writer->config.memlock;
    pthread_mutex_unlock(&writer->mutex);
    return is_wanted;
}

/* The first segment that must stay in memory. */
static uint64_t first_kept(ac_writer_t *writer, int dir_fd, uint64_t sealed) {
    ac_settings_t settings;
    ac_writer_config_t config;
    ac_slowest_t slowest;
    uint64_t kept = KEPT_BYTES / writer->segment_size + 1;
    if (sealed < kept) return 0;
    ac_writer_settings(writer, &settings);
    ac_settings_apply(&settings, &config);
    if (ac_slowest_reader(&writer->dir, dir_fd, &config, &writer->liveness, writer->segment_size,
                          sealed + 1, AC_SEGMENT_DATA, &slowest, NULL) != AC_OK)
        return 0;
    uint64_t first = sealed + 1 - kept;
    return slowest.live && slowest.segment < first ? slowest.segment : first;
}

static int drop(const ac_writer_t *writer, int dir_fd, uint64_t segment) {
    char name[AC_NAME_MAX];
    struct stat info;
    ac_segment_name(name, (uint32_t)segment, ".q");
    int fd = ac_file_open(&writer->dir, dir_fd, name, O_RDONLY, &info, NULL);
    if (fd < 0) return 0; /* retention has removed it */
    ac_os_drop_cache(fd);
    ac_os_close(fd);
    return 1;
}

void ac_writer_recycle_pages(ac_writer_t *writer, const ac_sealing_t *sealing) {
    if (!is_wanted(writer, sealing)) return;
    int dir_fd = ac_directory_open(&writer->dir, NULL);
    if (dir_fd < 0) return;
    uint64_t kept = first_kept(writer, dir_fd, sealing->map->segment);
    int dropped = 0;
    while (writer->cached_from < kept && dropped < DROPPED_AT_ONCE)
        dropped += drop(writer, dir_fd, writer->cached_from++);
    ac_os_close(dir_fd);
}
