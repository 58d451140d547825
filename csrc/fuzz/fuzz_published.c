/* statistics.meta with any content, read by queries about the queue and its writer, and by the next writer. */
#include "fuzz.h"
#include "writer_published.h"

enum { CUT = 1, SECOND_SLOT = 2, WRITE_AFTER = 4 };

static void ask(void) {
    static ac_queue_writer_t seen;
    static ac_kept_segment_t kept[8];
    static ac_reader_entry_t readers[8];
    ac_error_t err;
    FUZZ_CHECK(ac_queue_writer(fuzz_queue, &seen, &err) == AC_OK);
    FUZZ_CHECK(seen.samples <= AC_SAMPLES && seen.errors <= AC_RECENT_ERRORS);
    FUZZ_CHECK(seen.slow_appends <= AC_SLOW_APPENDS);
    FUZZ_CHECK(memchr(seen.command, 0, sizeof seen.command));
    FUZZ_CHECK(memchr(seen.settings.archive, 0, sizeof seen.settings.archive));
    FUZZ_CHECK(memchr(seen.settings.wait_for, 0, sizeof seen.settings.wait_for));
    for (uint32_t i = 0; i < seen.errors; i++)
        FUZZ_CHECK(memchr(seen.error[i].text, 0, sizeof seen.error[i].text));
    for (uint32_t i = 0; i < seen.slow_appends; i++)
        FUZZ_CHECK(seen.slow_append[i].cause < AC_SLOW_CAUSES);
    int64_t count = ac_queue_why_kept(fuzz_queue, NULL, kept, 8, &err);
    FUZZ_CHECK(count == 2);
    for (int64_t i = 0; i < count; i++)
        FUZZ_CHECK(kept[i].why >= 0 && kept[i].why <= AC_KEPT_UNKNOWN);
    FUZZ_CHECK(ac_queue_readers(fuzz_queue, readers, 8, &err) == 1);
}

/* Two segments and a reader that is not running. Returns the identity of their writer. */
static ac_published_t write_queue(int again) {
    ac_writer_config_t config;
    ac_reader_config_t reading;
    ac_writer_t *writer;
    ac_reader_t *reader;
    ac_error_t err;
    ac_published_t content = {0};
    uint8_t payload[3000] = {0}, bytes[AC_PUBLISHED_SIZE];
    ac_writer_defaults(&config);
    config.segment_size = FUZZ_SEGMENT;
    config.inline_housekeeping = 1;
    FUZZ_CHECK(ac_writer_open(fuzz_queue, &config, &writer, &err) == AC_OK);
    for (int i = 0; i < 2 && !again; i++)
        FUZZ_CHECK(ac_writer_append(writer, payload, sizeof payload, 1, AC_NOW, &err) >= 0);
    FUZZ_CHECK(ac_writer_close(writer, &err) == AC_OK);
    ac_writer_free(writer);
    if (again) return content;
    ac_reader_defaults(&reading);
    reading.name = "r";
    FUZZ_CHECK(ac_reader_open(fuzz_queue, &reading, &reader, &err) == AC_OK);
    ac_reader_free(reader);
    char path[400];
    snprintf(path, sizeof path, "%s/%s", fuzz_queue, AC_PUBLISHED_FILE);
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(file && fread(bytes, 1, sizeof bytes, file) == sizeof bytes && fclose(file) == 0);
    FUZZ_CHECK(ac_published_decode(bytes, &content) == 1);
    return content;
}

/* The first byte chooses the use of the rest: the content of a slot with a valid checksum that claims to be of this
 * writer; or the whole file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t bytes[AC_PUBLISHED_SIZE];
    if (size < 1 || size > 1 + AC_PUBLISHED_SIZE) return 0;
    fuzz_clear();
    ac_published_t true_content = write_queue(0);
    memset(bytes, 0, sizeof bytes);
    if (data[0] & CUT) {
        memcpy(bytes, data + 1, size - 1);
        fuzz_put(AC_PUBLISHED_FILE, bytes, size - 1, 0);
    } else {
        ac_published_slot_t slot = {.magic = AC_PUBLISHED_MAGIC,
                                    .version = AC_PUBLISHED_VERSION,
                                    .generation = 1000,
                                    .content = true_content};
        size_t length = size - 1 < sizeof slot.content ? size - 1 : sizeof slot.content;
        memcpy(&slot.content, data + 1, length);
        slot.content.epoch = true_content.epoch;
        slot.content.home = true_content.home;
        slot.content.pid = true_content.pid;
        size_t from = offsetof(ac_published_slot_t, version);
        slot.checksum = ac_crc32((uint8_t *)&slot + from, sizeof slot - from);
        memcpy(bytes + (data[0] & SECOND_SLOT ? AC_PUBLISHED_SLOT : 0), &slot, sizeof slot);
        fuzz_put(AC_PUBLISHED_FILE, bytes, sizeof bytes, 0);
    }
    ask();
    if (data[0] & WRITE_AFTER) write_queue(1);
    return 0;
}
