/* The C engine alone, compared with the minimum work that its two hot calls contain.
 *
 * append: ac_writer_append with the caller's timestamp. Its baseline uses the same kind of mapping (a
 * segment file made and populated by the engine's own functions, with consecutive records of 192 bytes).
 * Per message: memcpy of the payload, ac_crc32 over it, memcpy of a ready-made 64-byte header with that
 * checksum and a seq filled in, and a release store of the commit word.
 *
 * next: ac_reader_next with verification. Its baseline walks the same records of the same segment file:
 * acquire load of the commit word, memcpy of the 64-byte header, ac_crc32 over the payload, comparison with
 * the checksum in the header.
 *
 * The ratio shows the engine's additional work: the header's own check, bounds, order of seq and time, the
 * control block, the full barrier before it checks for sleepers, statistics, and populating the reader's
 * window. All pages are in memory before the clock starts, on both sides; each burst is short enough for
 * that, and the rounds of the four loops alternate.
 *
 * Arguments: directory, rounds, messages per burst. Output: one line per loop, nanoseconds per message of
 * each round. */
#include "crc32.h"
#include "reader.h"
#include "segment.h"
#include "writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PAYLOAD = 100, STRIDE = 192, ROUNDS_MAX = 1000 };

static uint8_t payload[PAYLOAD];

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void fail(const char *what, const ac_error_t *err) {
    fprintf(stderr, "%s: %s: %s\n", what, err ? err->path : "", err ? err->detail : "");
    exit(1);
}

/* ---- append ---- */

/* Moves to a fresh segment if the burst would cross its end, and waits for the pages of the whole burst. */
static void prepare_writer(ac_writer_t *writer, uint64_t bytes) {
    ac_error_t err;
    int rc = ac_writer_make_room(writer, bytes, writer->last_timestamp_ns, &err);
    if (rc != AC_OK) fail("make room", &err);
}

static double append_engine(ac_writer_t *writer, int count) {
    ac_error_t err;
    prepare_writer(writer, (uint64_t)count * STRIDE);
    uint64_t time_ns = writer->last_timestamp_ns;
    double start = now_ns();
    for (int i = 0; i < count; i++)
        if (ac_writer_try_append(writer, payload, PAYLOAD, NULL, 0, ++time_ns, NULL) < 0 &&
            ac_writer_append(writer, payload, PAYLOAD, 0, time_ns, &err) < 0)
            fail("append", &err);
    return (now_ns() - start) / count;
}

static double append_bare(uint8_t *at, int count) {
    ac_record_t header = {.version = 1, .flags = AC_FLAG_OURS};
    double start = now_ns();
    for (int i = 0; i < count; i++, at += STRIDE) {
        header.seq++;
        header.timestamp_ns++;
        memcpy(at + AC_HEADER_SIZE, payload, PAYLOAD);
        header.checksum = ac_crc32(payload, PAYLOAD);
        memcpy(at, &header, sizeof header);
        ac_store_release_u32(ac_record_commit_word(at), PAYLOAD + 1);
    }
    return (now_ns() - start) / count;
}

/* ---- next ---- */

static double next_engine(ac_reader_t *reader, int count) {
    ac_error_t err;
    ac_message_t message;
    uint64_t sum = 0;
    if (ac_reader_seek_first(reader, &err) != AC_OK) fail("seek", &err);
    double start = now_ns();
    for (int i = 0; i < count; i++) {
        if (ac_reader_try_next(reader, &message) != 1 &&
            ac_reader_next(reader, &message, &err) != 1)
            fail("next", &err);
        __asm__ volatile("" : "+m"(message)); /* all of it is wanted */
        sum += message.seq;
    }
    double taken = now_ns() - start;
    __asm__ volatile("" : : "r"(sum));
    return taken / count;
}

static double next_bare(const uint8_t *at, int count) {
    ac_record_t header;
    uint64_t sum = 0;
    double start = now_ns();
    for (int i = 0; i < count; i++, at += STRIDE) {
        uint32_t length = ac_record_load_commit(at) - 1;
        memcpy(&header, at, sizeof header);
        __asm__ volatile("" : "+m"(header)); /* all of it is wanted */
        if (ac_crc32(at + AC_HEADER_SIZE, length) != header.checksum) fail("bare next", NULL);
        sum += header.seq;
    }
    double taken = now_ns() - start;
    __asm__ volatile("" : : "r"(sum));
    return taken / count;
}

static void show(const char *name, const double *figures, int count) {
    printf("%s", name);
    for (int i = 0; i < count; i++)
        printf(" %.2f", figures[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    static double figures[4][ROUNDS_MAX];
    if (argc != 4) fail("usage: engine_bench DIRECTORY ROUNDS MESSAGES", NULL);
    int rounds = atoi(argv[2]), count = atoi(argv[3]);
    if (rounds < 1 || rounds > ROUNDS_MAX || count < 1) fail("arguments", NULL);

    char path[1024], bare_path[1024];
    snprintf(path, sizeof path, "%s/engine", argv[1]);
    snprintf(bare_path, sizeof bare_path, "%s/bare", argv[1]);
    for (int i = 0; i < PAYLOAD; i++)
        payload[i] = (uint8_t)(i * 131 + 7);

    ac_error_t err;
    ac_writer_config_t config;
    ac_reader_config_t reader_config;
    ac_writer_t *writer, *other;
    ac_reader_t *reader;
    ac_map_t *map;
    uint64_t burst = (uint64_t)count * STRIDE;
    ac_writer_defaults(&config);
    config.segment_size = burst * 2 + AC_SEGMENT_DATA;
    ac_reader_defaults(&reader_config);
    reader_config.start = AC_START_FIRST;
    if (ac_writer_open(path, &config, &writer, &err) != AC_OK) fail("open", &err);
    if (ac_writer_open(bare_path, &config, &other, &err) != AC_OK) fail("open", &err);
    append_engine(writer, count);
    if (ac_reader_open(path, &reader_config, &reader, &err) != AC_OK) fail("open", &err);
    next_engine(reader, count);

    for (int round = 0; round < rounds; round++) {
        int rc = ac_segment_create(&other->dir, other->dir_fd, 100 + (uint32_t)round,
                                   config.segment_size, &map, &err);
        if (rc != AC_OK) fail("create", &err);
        if (ac_segment_populate(map, AC_SEGMENT_DATA, AC_SEGMENT_DATA + burst, AC_POPULATE_STEP) <
            0)
            fail("populate", NULL);
        figures[0][round] = append_bare(map->base + AC_SEGMENT_DATA, count);
        figures[1][round] = append_engine(writer, count);
        figures[2][round] = next_bare(reader->base + AC_SEGMENT_DATA, count);
        figures[3][round] = next_engine(reader, count);
        ac_map_release(map);
    }
    show("append_bare", figures[0], rounds);
    show("append", figures[1], rounds);
    show("next_bare", figures[2], rounds);
    show("next", figures[3], rounds);
    ac_reader_free(reader);
    if (ac_writer_close(other, &err) != AC_OK || ac_writer_close(writer, &err) != AC_OK)
        fail("close", &err);
    ac_writer_free(other);
    ac_writer_free(writer);
    return 0;
}
