#include "segment_seekindex.h"

#include "queue.h"

enum { SIZE = 4 << 20, RECORDS = 20000 };

static ac_directory_t dir;
static ac_error_t err;
static int dir_fd;
static ac_map_t *map;

/* A segment with RECORDS records: seq from 100, two of them with each timestamp. */
static void make_segment(void) {
    CHECK_OK(ac_directory_init(&dir, check_path("queue"), 0600, 1, &err), err);
    dir_fd = ac_directory_open(&dir, &err);
    CHECK_OK(dir_fd, err);
    CHECK_OK(ac_segment_create(&dir, dir_fd, 5, SIZE, &map, &err), err);
    uint64_t offset = AC_SEGMENT_DATA;
    for (uint64_t i = 0; i < RECORDS; i++) {
        ac_stamp_t stamp = {.seq = 100 + i, .timestamp_ns = 1000 + i / 2, .epoch = 1};
        uint8_t *at = map->base + offset;
        ac_record_write_header(at, 8, ac_crc32_copy(at + 64, &i, 8), &stamp, ac_crc32c_seed(5, 1));
        ac_store_release_u32(ac_record_commit_word(at), 9);
        offset += ac_record_size(8);
    }
}

static void drop_segment(void) {
    ac_map_release(map);
    ac_os_close(dir_fd);
}

static uint64_t offset_of(uint64_t i) {
    return AC_SEGMENT_DATA + i * 128;
}

TEST(an_index_survives_the_way_through_its_file) {
    ac_index_t index = {0}, loaded;
    make_segment();
    CHECK_EQUAL(ac_index_extend(&index, map), 0);
    CHECK_EQUAL(index.records, RECORDS);
    CHECK_EQUAL(index.count, (RECORDS + AC_INDEX_STRIDE - 1) / AC_INDEX_STRIDE);
    CHECK_EQUAL(index.end, offset_of(RECORDS));
    CHECK_OK(ac_index_save(&index, &dir, dir_fd, SIZE, &err), err);
    CHECK_OK(ac_index_load(&loaded, &dir, dir_fd, 5, SIZE, &err), err);
    CHECK_EQUAL(loaded.count, index.count);
    CHECK(memcmp(loaded.entries, index.entries, index.count * sizeof *index.entries) == 0);
    CHECK_EQUAL(loaded.min_seq, 100);
    CHECK_EQUAL(loaded.max_seq, 100 + RECORDS - 1);
    CHECK_EQUAL(loaded.min_ts_ns, 1000);
    CHECK_EQUAL(loaded.max_ts_ns, 1000 + (RECORDS - 1) / 2);
    ac_index_free(&loaded);
    ac_index_free(&index);
    drop_segment();
}

TEST(an_index_grows_with_its_segment) {
    ac_index_t index = {0};
    make_segment();
    uint32_t hidden = 9, zero = 0;
    poke(dir.path, "000000005.q", offset_of(50), &zero, 4);
    CHECK_EQUAL(ac_index_extend(&index, map), 0);
    CHECK_EQUAL(index.records, 50);
    CHECK_EQUAL(index.count, 1);
    poke(dir.path, "000000005.q", offset_of(50), &hidden, 4);
    CHECK_EQUAL(ac_index_extend(&index, map), 0);
    CHECK_EQUAL(index.records, RECORDS);
    for (size_t i = 0; i < index.count; i++)
        CHECK_EQUAL(index.entries[i].offset, offset_of(i * AC_INDEX_STRIDE));
    ac_index_free(&index);
    drop_segment();
}

TEST(a_lookup_never_goes_past_the_first_match) {
    ac_index_t index = {0};
    make_segment();
    CHECK_EQUAL(ac_index_extend(&index, map), 0);
    for (uint64_t i = 0; i < RECORDS; i += 61) {
        uint64_t found = ac_index_lookup(&index, map, 0, 100 + i);
        CHECK(found <= offset_of(i) && found + 4096 * 128 >= offset_of(i));
        found = ac_index_lookup(&index, map, 1, 1000 + i / 2);
        CHECK(found <= offset_of(i / 2 * 2));
    }
    CHECK_EQUAL(ac_index_lookup(&index, map, 0, 0), AC_SEGMENT_DATA);
    CHECK_EQUAL(ac_index_lookup(&index, map, 0, UINT64_MAX), offset_of(4 * 4096));
    /* An entry that names another record than the one it points to is not used. */
    index.entries[4].seq++;
    CHECK_EQUAL(ac_index_lookup(&index, map, 0, UINT64_MAX), AC_SEGMENT_DATA);
    index.seq_unordered = 1;
    CHECK_EQUAL(ac_index_lookup(&index, map, 0, 100 + 9000), AC_SEGMENT_DATA);
    ac_index_free(&index);
    drop_segment();
}

/* Changes one field of the file; returns the answer of ac_index_load. */
static int load_with(uint64_t offset, uint64_t value, size_t length) {
    ac_index_t index = {0};
    CHECK_EQUAL(ac_index_extend(&index, map), 0);
    CHECK_OK(ac_index_save(&index, &dir, dir_fd, SIZE, &err), err);
    ac_index_free(&index);
    poke(dir.path, "000000005.idx", offset, &value, length);
    int rc = ac_index_load(&index, &dir, dir_fd, 5, SIZE, &err);
    if (rc == AC_OK) ac_index_free(&index);
    return rc;
}

TEST(a_crooked_index_is_refused) {
    ac_index_t index;
    make_segment();
    CHECK_FAILS(ac_index_load(&index, &dir, dir_fd, 5, SIZE, &err), err, AC_E_NOT_FOUND);
    CHECK_EQUAL(load_with(0, 'C', 1), AC_OK);
    CHECK_EQUAL(load_with(0, 'X', 1), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, version), 2, 2), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, header_len), 88, 2), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, segment_id), 6, 8), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, segment_size), 4096, 8), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, entry_stride), 0, 4), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, entry_count), 6, 8), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, entry_count), UINT64_MAX, 8), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, min_seq), UINT64_MAX, 8), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, min_ts_ns), UINT64_MAX, 8), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(80 + 16, 0, 8), AC_E_CORRUPT);         /* into the header */
    CHECK_EQUAL(load_with(80 + 24 + 16, 1000, 8), AC_E_CORRUPT); /* not where records start */
    CHECK_EQUAL(load_with(80 + 24 + 16, SIZE, 8), AC_E_CORRUPT); /* after the segment */
    CHECK_EQUAL(load_with(80 + 24 + 16, UINT64_MAX & ~63ull, 8), AC_E_CORRUPT);
    CHECK_EQUAL(load_with(80 + 48 + 16, AC_SEGMENT_DATA, 8), AC_E_CORRUPT); /* not ascending */
    CHECK_EQUAL(truncate(check_path("queue/000000005.idx"), 79), 0);
    CHECK_FAILS(ac_index_load(&index, &dir, dir_fd, 5, SIZE, &err), err, AC_E_CORRUPT);
    /* The engine must not read a sparse file that claims an entry for every byte into memory. */
    CHECK_EQUAL(load_with(offsetof(ac_index_header_t, entry_count), SIZE / 64 + 1, 8),
                AC_E_CORRUPT);
    CHECK_EQUAL(truncate(check_path("queue/000000005.idx"), 1ll << 40), 0);
    uint64_t huge = 1ull << 35;
    poke(dir.path, "000000005.idx", offsetof(ac_index_header_t, entry_count), &huge, 8);
    CHECK_FAILS(ac_index_load(&index, &dir, dir_fd, 5, SIZE, &err), err, AC_E_CORRUPT);
    drop_segment();
}

TEST(an_index_whose_bounds_lie_is_built_anew) {
    static const struct {
        size_t offset;
        uint64_t value;
        int built;
    } lies[] = {{offsetof(ac_index_header_t, max_seq), 100 + RECORDS - 1, 0},
                {offsetof(ac_index_header_t, max_seq), 100 + RECORDS - 2, 1},
                {offsetof(ac_index_header_t, max_seq), UINT64_MAX, 1},
                {offsetof(ac_index_header_t, min_seq), 0, 1},
                {offsetof(ac_index_header_t, max_ts_ns), UINT64_MAX, 1},
                {offsetof(ac_index_header_t, min_ts_ns), 1, 1},
                {offsetof(ac_index_header_t, entry_count), 0, 1},
                {offsetof(ac_index_header_t, entry_count), 1, 0},
                {80, 99, 1},       /* seq of the first entry */
                {80 + 96, 7, 1},   /* of the last */
                {80 + 104, 7, 1}}; /* and its timestamp */
    make_segment();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        ac_index_t index;
        int built;
        load_with(lies[i].offset, lies[i].value, 8);
        CHECK_OK(ac_index_obtain(&index, &dir, dir_fd, map, SIZE, &built, &err), err);
        CHECK_EQUAL(built, lies[i].built);
        CHECK_EQUAL(index.min_seq, 100);
        CHECK_EQUAL(index.max_seq, 100 + RECORDS - 1);
        CHECK_EQUAL(index.min_ts_ns, 1000);
        CHECK_EQUAL(index.max_ts_ns, 1000 + (RECORDS - 1) / 2);
        CHECK_EQUAL(index.end, offset_of(RECORDS));
        ac_index_free(&index);
    }
    drop_segment();
}
