/* The checks of the kill loop on wrong files: each rule of beside.h is broken once. */
#include "beside.h"
#include "check.h"

enum { SALT = 7, SEGMENT_SIZE = 4096, MESSAGES = 80, FIRST_COMMIT = 20, SECOND_COMMIT = 30 };

static const char *const names[LEDGER_READERS] = {"audit", "risk"};

static struct {
    chart_t chart;
    ledger_t ledger;
    beside_t before, now;
    beside_case_t judged;
} scene;

static void append_all(void) {
    ac_writer_config_t config;
    ac_writer_t *writer;
    ac_error_t err;
    uint8_t payload[PAYLOAD_MAX];
    ac_writer_defaults(&config);
    config.segment_size = SEGMENT_SIZE;
    config.inline_housekeeping = 1;
    CHECK_OK(ac_writer_open(check_path("queue"), &config, &writer, &err), err);
    CHECK_OK(ac_writer_heartbeat(writer, AC_NOW, &err), err);
    for (uint64_t seq = 0; seq < MESSAGES; seq++)
        CHECK_OK(
            ac_writer_append(writer, payload, payload_fill(SALT, seq, payload), 0, AC_NOW, &err),
            err);
    CHECK_OK(ac_writer_close(writer, &err), err);
    ac_writer_free(writer);
}

static void read_and_commit(void) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_message_t message;
    ac_error_t err;
    uint64_t segment, offset;
    ac_reader_defaults(&config);
    config.name = names[0];
    CHECK_OK(ac_reader_open(check_path("queue"), &config, &reader, &err), err);
    for (int i = 0; i < SECOND_COMMIT; i++) {
        CHECK_EQUAL(ac_reader_next(reader, &message, &err), 1);
        if (i + 1 != FIRST_COMMIT && i + 1 != SECOND_COMMIT) continue;
        ac_reader_position(reader, &segment, &offset);
        CHECK_OK(ac_reader_commit(reader, segment, offset, 0, &err), err);
    }
    ac_reader_close(reader);
    ac_reader_free(reader);
}

/* A closed queue, and what is known about it. */
static void set_scene(void) {
    walk_t walk;
    append_all();
    read_and_commit();
    ledger_reset(&scene.ledger);
    scene.ledger.acknowledged = scene.ledger.attempted = MESSAGES;
    scene.ledger.opened = scene.ledger.closed = 1;
    scene.ledger.readers[0] = (ledger_reader_t){SECOND_COMMIT, SECOND_COMMIT};
    walk_queue(check_path("queue"), SEGMENT_SIZE, SALT, UINT64_MAX, &walk, &scene.chart);
    CHECK(!walk.broken[0]);
    beside_take(check_path("queue"), names, &scene.before);
    scene.ledger.watermark_ns = beside_word(&scene.before, CONTROL_WATERMARK);
    scene.now = scene.before;
    scene.judged = (beside_case_t){.now = &scene.now,
                                   .before = &scene.before,
                                   .after = AFTER_WRITER,
                                   .chart = &scene.chart,
                                   .ledger = &scene.ledger,
                                   .segment_size = SEGMENT_SIZE};
}

static void check_passes(void) {
    int rc = beside_judge(&scene.judged, names);
    if (rc < 0) fprintf(stderr, "%s\n", scene.judged.broken);
    CHECK_EQUAL(rc, 0);
}

static void check_complains(const char *wanted) {
    CHECK_EQUAL(beside_judge(&scene.judged, names), -1);
    if (strstr(scene.judged.broken, wanted)) return;
    fprintf(stderr, "'%s' instead of '%s'\n", scene.judged.broken, wanted);
    exit(1);
}

static void check_fails(const char *wanted) {
    check_complains(wanted);
    scene.now = scene.before;
    check_passes();
}

static void add(uint8_t *at, int64_t by) {
    uint64_t value = walk_number(at, 8) + (uint64_t)by;
    memcpy(at, &value, sizeof value);
}

TEST(the_judge_should_find_nothing_wrong_with_a_queue_that_was_closed) {
    set_scene();
    CHECK(scene.now.indexes > 2);
    CHECK(scene.chart.segments == scene.now.indexes + 1);
    check_passes();
    scene.judged.after = AFTER_KILLED_RECOVERY;
    check_passes();
}

TEST(the_judge_should_see_every_lie_of_a_seek_index) {
    set_scene();
    uint8_t *at = scene.now.index[1].bytes;
    add(at, 1);
    check_fails("bad header");
    at[12] ^= 1;
    check_fails("being alike");
    for (int bound = 40; bound < 72; bound += 8) {
        add(at + bound, 1);
        check_fails("wrong bounds");
    }
    add(at + 72, 1);
    check_fails("bytes for");
    for (int field = 0; field < 24; field += 8) {
        add(at + BESIDE_INDEX_HEADER + field, field == 16 ? 64 : 1);
        check_fails("names no record");
    }
    scene.now.index[1].size--;
    check_fails("bytes for");
    scene.now.index[1].segment = scene.chart.first_segment + scene.chart.segments - 1;
    check_fails("not finished");
    scene.now.index[1].segment = 1000;
    check_fails("not finished");
}

/* A slot that is in order, wherever it points. */
static void store_slot(int slot, uint64_t segment, uint64_t offset, uint64_t generation) {
    uint8_t *at = scene.now.positions[0].bytes + slot * BESIDE_SLOT;
    uint64_t words[4] = {segment, offset, 1, generation};
    uint32_t checksum = beside_crc((const uint8_t *)words, sizeof words);
    memcpy(at, words, sizeof words);
    memcpy(at + sizeof words, &checksum, sizeof checksum);
    memset(at + 36, 0, 4);
}

TEST(the_judge_should_see_every_lie_of_a_position) {
    set_scene();
    uint8_t *at = scene.now.positions[0].bytes;
    beside_slot_t slots[2] = {beside_slot(at), beside_slot(at + BESIDE_SLOT)};
    int newer = slots[1].generation > slots[0].generation;
    beside_slot_t last = slots[newer], older = slots[!newer];
    CHECK(last.valid && older.valid);
    at[!newer * BESIDE_SLOT] ^= 1; /* a store that a kill interrupted */
    check_passes();
    at[newer * BESIDE_SLOT] ^= 1;
    check_fails("neither slot");
    store_slot(!newer, last.segment, last.offset, last.generation + 1);
    check_passes();
    scene.now = scene.before;
    store_slot(!newer, last.segment, last.offset, last.generation);
    check_fails("is in slot");
    store_slot(!newer, last.segment, last.offset, last.generation + 3);
    check_fails("are of generations");
    store_slot(!newer, last.segment, WALK_DATA, last.generation + 1);
    check_fails("went back");
    at[newer * BESIDE_SLOT] ^= 1; /* what is left is valid, but old */
    check_fails("older than it was");
    store_slot(!newer, last.segment, last.offset + 64 * 63, last.generation + 1);
    check_fails("is at seq -1");
    uint64_t head = walk_number(scene.now.durable.bytes, 8);
    store_slot(!newer, head, WALK_DATA, last.generation + 1);
    check_fails("committed were 30");
    scene.now.positions[0].size--;
    check_fails("bytes");
    scene.now.positions[0].size = -1;
    check_fails("is gone");
    scene.now.positions[1] = scene.now.positions[0]; /* of a name that never committed */
    check_fails("begins at");
}

TEST(the_judge_should_see_every_lie_of_index_meta) {
    set_scene();
    uint8_t *at = scene.now.durable.bytes;
    scene.ledger.closed = 0; /* the mark of the close would show it, too */
    scene.now.control.bytes[CONTROL_CLEAN_CHECKSUM] ^= 1;
    scene.before = scene.now;
    add(at + 8, 64);
    check_fails("no record ends");
    add(at, 1);
    check_fails("no record ends");
    add(at, -1);
    add(at + 8,
        (int64_t)(scene.chart.segment[scene.chart.segments - 2].end - walk_number(at + 8, 8)));
    check_fails("went back");
    scene.now.durable.size = 8;
    check_fails("bytes");
    scene.chart.first_segment += 100;
    CHECK_EQUAL(beside_judge_durable(&scene.judged), -1);
}

static void poke_control(int offset, int64_t by, const char *wanted) {
    add(scene.now.control.bytes + offset, by);
    check_fails(wanted);
}

static void note_removed(uint64_t seq) {
    uint8_t *at = scene.now.control.bytes + CONTROL_REMOVED_SEQ;
    memcpy(at, &seq, sizeof seq);
    uint32_t checksum = beside_crc(at, 16);
    memcpy(scene.now.control.bytes + CONTROL_REMOVED_CHECK, &checksum, sizeof checksum);
}

TEST(the_judge_should_see_every_lie_of_control_meta) {
    set_scene();
    poke_control(0, 1, "begins with");
    poke_control(12, 1, "spare bytes");
    poke_control(152, 1, "spare bytes");
    poke_control(324, 1, "spare bytes");
    poke_control(504, 1, "spare bytes");
    poke_control(CONTROL_SEGMENT_SIZE, 64, "segment size");
    poke_control(CONTROL_QUEUE_ID, 1, "another id");
    poke_control(CONTROL_EPOCH, -1, "went back");
    poke_control(CONTROL_SIGNALLING_EPOCH, 1ll << 40, "of the future signals");
    poke_control(CONTROL_COUNTING_EPOCH, 1ll << 40, "of the future counts");
    poke_control(CONTROL_NEXT_SEQ, 1, "next seq 81");
    poke_control(CONTROL_NEXT_SEQ, -1, "went back");
    poke_control(CONTROL_OFFSET, 64, "seq -1");
    poke_control(CONTROL_SEGMENT, 1, "seq -1");
    poke_control(CONTROL_LAST_RECORD, 4096, "where none is");
    poke_control(CONTROL_LAST_TIMESTAMP, 1000000000000, "no record has");
    poke_control(CONTROL_LAST_TIMESTAMP, -1, "went back");
    poke_control(CONTROL_WATERMARK, -1, "went back");
    poke_control(CONTROL_REMOVING, 2, "were to be removed");
    poke_control(CONTROL_CLEAN_OFFSET, 64, "left no mark");
    scene.now.control.size = -1;
    check_fails("bytes");
    note_removed(scene.chart.segment[0].count);
    check_passes();
    note_removed(scene.chart.segment[0].count + 1);
    check_fails("removed was noted");
    scene.ledger.watermark_ns++;
    check_complains("a heartbeat is lost");
}

TEST(the_judge_should_ask_more_of_a_queue_that_was_recovered) {
    set_scene();
    beside_t now = scene.now;
    add(scene.before.control.bytes + CONTROL_EPOCH, -1);
    scene.judged.after = AFTER_CLOSE;
    check_passes();
    scene.judged.after = AFTER_RECOVERY;
    check_complains("closed without a close");
    scene.now.control.bytes[CONTROL_GENERATION] |= 1;
    check_complains("being changed");
    scene.now = now;
    add(scene.now.control.bytes + CONTROL_LAST_RECORD,
        WALK_DATA - (int64_t)beside_word(&now, CONTROL_LAST_RECORD));
    check_complains("not the last one");
    scene.now = scene.before = now;
    check_complains("used twice");
}
