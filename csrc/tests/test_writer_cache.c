#include "queue.h"
#include "writer.h"

#include <sys/mman.h>
#include <sys/vfs.h>

#define MIB (1ull << 20)
enum { ROLL_BYTES = 64 << 10, SEALED = 9, KEPT = 5 /* of 128 MiB each */, TMPFS = 0x01021994 };

static ac_error_t err;

/* A queue of SEALED segments that are on disk, and one that is active. */
static ac_writer_t *open_recorder(void) {
    ac_writer_config_t config = small_queue(128 * MIB);
    config.roll_bytes = ROLL_BYTES;
    ac_writer_t *writer = open_writer(check_path("queue"), &config);
    while (writer->map->segment < SEALED)
        append_numbered(writer, 1);
    CHECK_EQUAL(writer->cached_from, 0);
    return writer;
}

/* Makes the segment look sealed and synced now, after it was filled at this many bytes a second. */
static void seal_again(ac_writer_t *writer, uint64_t bytes_per_s) {
    ac_sealing_t sealing = {
        .map = writer->map, .end = 128 * MIB, .filled_ns = 128 * MIB * 1000000000 / bytes_per_s};
    ac_writer_recycle_pages(writer, &sealing);
}

/* Returns how many pages of a segment's first bytes are in the page cache. */
static int is_cached(uint32_t segment) {
    char name[64];
    unsigned char pages[ROLL_BYTES / 4096];
    snprintf(name, sizeof name, "queue/%09u.q", segment);
    int fd = open(check_path(name), O_RDONLY), found = 0;
    void *at = mmap(NULL, ROLL_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    CHECK_EQUAL(mincore(at, ROLL_BYTES, pages), 0);
    for (size_t i = 0; i < sizeof pages; i++)
        found += pages[i] & 1;
    munmap(at, ROLL_BYTES);
    close(fd);
    return found > 0;
}

static int has_page_cache(void) {
    struct statfs info;
    CHECK_EQUAL(statfs(check_directory, &info), 0);
    return info.f_type != TMPFS && ac_os_page_size() == 4096;
}

TEST(nothing_leaves_the_cache_while_pages_are_cheap_or_the_writer_is_slow) {
    ac_writer_t *writer = open_recorder();
    writer->fill_ns_per_mib = 300000;
    seal_again(writer, 1000 * MIB);
    CHECK_EQUAL(writer->cached_from, 0);
    writer->fill_ns_per_mib = 2600000;
    seal_again(writer, 10 * MIB);
    CHECK_EQUAL(writer->cached_from, 0);
    CHECK(is_cached(0));
    close_writer(writer);
}

TEST(a_fast_writer_with_dear_pages_gives_back_the_oldest_and_keeps_the_newest) {
    ac_writer_t *writer = open_recorder();
    writer->fill_ns_per_mib = 2600000;
    seal_again(writer, 1000 * MIB);
    CHECK_EQUAL(writer->cached_from, 2);
    writer->fill_ns_per_mib = 300000; /* because they come back: it continues */
    for (int i = 0; i < 10; i++)
        seal_again(writer, 1000 * MIB);
    CHECK_EQUAL(writer->cached_from, SEALED + 1 - KEPT);
    if (has_page_cache()) CHECK(!is_cached(0) && !is_cached(SEALED - KEPT));
    CHECK(is_cached(SEALED + 1 - KEPT));
    seal_again(writer, 10 * MIB);
    CHECK(!writer->recycles_pages);
    /* A reader still gets every message. */
    uint64_t count = writer->seq;
    close_writer(writer);
    CHECK_EQUAL(count_numbered(check_path("queue")), count);
}

TEST(what_an_open_reader_has_yet_to_read_stays) {
    ac_writer_t *writer = open_recorder();
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_reader_defaults(&config);
    config.name = "slow";
    CHECK_OK(ac_reader_open(check_path("queue"), &config, &reader, &err), err);
    writer->fill_ns_per_mib = 2600000;
    seal_again(writer, 1000 * MIB);
    CHECK_EQUAL(writer->cached_from, 0);
    CHECK_OK(ac_reader_commit(reader, 1, AC_SEGMENT_DATA, 0, &err), err);
    seal_again(writer, 1000 * MIB);
    CHECK_EQUAL(writer->cached_from, 1);
    ac_reader_free(reader);
    seal_again(writer, 1000 * MIB);
    CHECK_EQUAL(writer->cached_from, 3);
    close_writer(writer);
}

TEST(segments_that_are_gone_are_passed_over) {
    ac_writer_t *writer = open_recorder();
    writer->fill_ns_per_mib = 2600000;
    CHECK_EQUAL(unlink(check_path("queue/000000000.q")), 0);
    CHECK_EQUAL(unlink(check_path("queue/000000001.q")), 0);
    seal_again(writer, 1000 * MIB);
    CHECK_EQUAL(writer->cached_from, 4);
    close_writer(writer);
}

TEST(the_cost_of_pages_is_averaged) {
    ac_writer_t *writer = open_recorder();
    writer->fill_ns_per_mib = 0;
    for (int i = 0; i < 100; i++)
        ac_writer_note_fill(writer, MIB / 4, 650000); /* 2.6 ms per MiB */
    CHECK(writer->fill_ns_per_mib > 2500000 && writer->fill_ns_per_mib <= 2600000);
    for (int i = 0; i < 100; i++)
        ac_writer_note_fill(writer, MIB, 300000);
    CHECK(writer->fill_ns_per_mib < 350000);
    close_writer(writer);
}
