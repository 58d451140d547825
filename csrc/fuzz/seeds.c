/* Writes the first inputs of every fuzz target: queues made by the engine, split into the inputs that the
 * target takes. `seeds DIRECTORY` fills DIRECTORY/segment, DIRECTORY/recovery and so on. */
#include "fuzz.h"

static const char *corpus;

static void save(const char *target, const char *name, const void *bytes, size_t length) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", corpus, target);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", corpus, target, name);
    FILE *file = fopen(path, "wb");
    FUZZ_CHECK(file && fwrite(bytes, 1, length, file) == length && fclose(file) == 0);
}

/* Without the zeros at its end. */
static size_t load(const char *name, uint8_t *bytes) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", fuzz_queue, name);
    memset(bytes, 0, FUZZ_SEGMENT);
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    size_t length = fread(bytes, 1, FUZZ_SEGMENT, file);
    fclose(file);
    if (strstr(name, ".q"))
        while (length > 0 && bytes[length - 1] == 0)
            length--;
    return length;
}

/* A key and two headers: see trailer.h. */
static const uint8_t sound_trailer[] = "\x02\x00"
                                       "id\x01\x03\x00nxyz\x02\x00\x00\xc3\xa9\x14\x00\x02\x01";

/* Some of everything: causes, a trailer, a batch, an aborted and an abandoned reservation, a roll, a reader. */
static void write_queue(int closed) {
    ac_writer_config_t config;
    ac_reader_config_t reading;
    ac_writer_t *writer;
    ac_reader_t *reader;
    ac_message_t message;
    ac_error_t err;
    uint8_t payload[2000];
    void *room;
    uint64_t segment, offset;
    ac_slice_t trailer = {sound_trailer, sizeof sound_trailer - 1};
    ac_slice_t batch[3] = {{"one", 3}, {"three", 5}, {"", 0}};
    memset(payload, 'x', sizeof payload);
    fuzz_clear();
    ac_writer_defaults(&config);
    config.segment_size = FUZZ_SEGMENT;
    config.inline_housekeeping = 1;
    FUZZ_CHECK(ac_writer_open(fuzz_queue, &config, &writer, &err) == AC_OK);
    FUZZ_CHECK(ac_writer_append(writer, "hello", 5, 1, 1000, &err) == 0);
    FUZZ_CHECK(
        ac_writer_append_cause(writer, "caused", 6, 2, 1001, &(ac_cause_t){5, 9, 1, 0}, &err) == 1);
    FUZZ_CHECK(ac_writer_reserve(writer, 100, &room, &err) == AC_OK);
    ac_writer_abandon(writer);
    FUZZ_CHECK(ac_writer_append_many(writer, batch, 3, 3, NULL, &err) == 2);
    FUZZ_CHECK(ac_writer_append(writer, payload, sizeof payload, 4, AC_NOW, &err) == 5);
    ac_reader_defaults(&reading);
    reading.name = "r";
    FUZZ_CHECK(ac_reader_open(fuzz_queue, &reading, &reader, &err) == AC_OK);
    FUZZ_CHECK(ac_reader_next(reader, &message, &err) == 1);
    ac_reader_position(reader, &segment, &offset);
    FUZZ_CHECK(ac_reader_commit(reader, segment, offset, 0, &err) == AC_OK);
    ac_reader_free(reader);
    FUZZ_CHECK(ac_writer_append(writer, payload, sizeof payload, 4, AC_NOW, &err) == 6);
    FUZZ_CHECK(ac_writer_append(writer, payload, 70, 4, AC_NOW, &err) == 7);
    FUZZ_CHECK(ac_writer_append_trailer(writer, "t", 1, &trailer, 4, AC_NOW, NULL, &err) == 8);
    FUZZ_CHECK(ac_writer_flush(writer, &err) == 9);
    if (!closed) return; /* left as by a kill; its memory is freed when this program ends */
    FUZZ_CHECK(ac_writer_close(writer, &err) == AC_OK);
    ac_writer_free(writer);
}

static void save_segments(void) {
    uint8_t first[FUZZ_SEGMENT], second[FUZZ_SEGMENT], input[24 + 2 * FUZZ_SEGMENT];
    for (int options = 0; options < 32; options += 3) {
        memset(input, 0, sizeof input);
        size_t lengths[2] = {load("000000000.q", first), load("000000001.q", second)};
        input[0] = (uint8_t)options;
        input[1] = 30;
        memcpy(input + 24, first, sizeof first);
        memcpy(input + 24 + FUZZ_SEGMENT, second, lengths[1]);
        char name[32];
        snprintf(name, sizeof name, "options-%02d", options);
        save("segment", name, input, 24 + (options & 4 ? FUZZ_SEGMENT + lengths[1] : lengths[0]));
    }
    for (uint8_t options = 0; options < 8; options++) {
        size_t length = load("000000001.q", second);
        memset(input, 0, sizeof input);
        load("000000000.q", first);
        input[0] = options;
        input[1] = 2;
        memcpy(input + 4, first, sizeof first);
        memcpy(input + 4 + FUZZ_SEGMENT, second, length);
        uint32_t same_id = 0;
        memcpy(input + 4 + FUZZ_SEGMENT + 8, &same_id, sizeof same_id);
        fuzz_mend_segment(input + 4 + FUZZ_SEGMENT, length, 0);
        char name[32];
        snprintf(name, sizeof name, "options-%d", options);
        save("fanin", name, input, 4 + FUZZ_SEGMENT + length);
    }
}

static void save_directory(const char *name, uint8_t options) {
    static const char *const files[] = {"control.meta",  "index.meta",    "000000000.q",
                                        "000000001.q",   "000000002.q",   "000000000.idx",
                                        "000000001.idx", "readers/r.meta"};
    static uint8_t input[5 * FUZZ_SEGMENT];
    size_t at = 1;
    input[0] = options;
    for (size_t kind = 0; kind < sizeof files / sizeof *files; kind++) {
        uint8_t bytes[FUZZ_SEGMENT];
        size_t length = load(files[kind], bytes);
        if (length == 0) continue;
        input[at++] = (uint8_t)kind;
        input[at++] = (uint8_t)length;
        input[at++] = (uint8_t)(length >> 8);
        memcpy(input + at, bytes, length);
        at += length;
    }
    save("recovery", name, input, at);
}

static void save_small_files(void) {
    uint8_t bytes[1 + FUZZ_SEGMENT];
    static const struct {
        const char *target, *file;
        uint8_t options;
    } files[] = {{"control", "control.meta", 0},    {"control", "control.meta", 2},
                 {"control", "control.meta", 3},    {"position", "readers/r.meta", 0},
                 {"position", "readers/r.meta", 1}, {"position", "readers/r.meta", 6},
                 {"seekindex", "000000000.idx", 0}, {"seekindex", "000000000.idx", 20}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t length = load(files[i].file, bytes + 1);
        char name[32];
        FUZZ_CHECK(length > 0);
        bytes[0] = files[i].options;
        snprintf(name, sizeof name, "options-%d", files[i].options);
        save(files[i].target, name, bytes, 1 + length);
    }
}

/* See fuzz_handshake.c for what the bytes mean. */
static void save_handshakes(void) {
    static const uint8_t good_writer[] = {0, 0, 0, 2, 1, 80, 0, 3, 1, 7, 7, 0, 1, 0};
    static const uint8_t two_writers[] = {0, 0,  0, 8, 0, 2, 1, 80, 0, 10, 1, 80,
                                          0, 11, 1, 4, 3, 1, 9, 7,  0, 6,  0};
    static const uint8_t good_reader[] = {1, 4, 17, 7, 0, 6, 0};
    static const uint8_t odd_readers[] = {1, 4, 19, 7, 0, 6, 0, 4, 21};
    static const uint8_t many_fds[] = {0, 0, 0, 2, 153, 80, 0, 3, 1, 70, 7, 0};
    static const uint8_t noise[] = {0, 0, 0, 5, 20, 'a', 'n', 'y', 't', 'h', 'i', 'n', 'g', 7, 0};
    save("handshake", "good-writer", good_writer, sizeof good_writer);
    save("handshake", "two-writers", two_writers, sizeof two_writers);
    save("handshake", "good-reader", good_reader, sizeof good_reader);
    save("handshake", "odd-readers", odd_readers, sizeof odd_readers);
    save("handshake", "many-fds", many_fds, sizeof many_fds);
    save("handshake", "noise", noise, sizeof noise);
}

/* See fuzz_msgpack.c for the first two bytes. */
static void save_payloads(void) {
    static const uint8_t plain[] = "\x00\x25\x85\xa1"
                                   "b\xc3\xa1i\x07\xa1"
                                   "f\xcb\x40\x59\x00\x00\x00\x00\x00\x00\xa4text\xa3"
                                   "EUR\xa5"
                                   "bytes\xc4\x02\x01\xff\x85\xa1"
                                   "b\xc2\xa1i\xd1\x80\x00\xa1"
                                   "f\x05\xa4text\xa0\xa5"
                                   "bytes\xc4\x00";
    static const uint8_t sparse[] =
        "\x03\x0d\x82\xa4text\xc0\xa1z\x91\x81\xa0\xc0\x81\xa1z\xc7\x01\x05x";
    save("msgpack", "plain", plain, sizeof plain - 1);
    save("msgpack", "sparse", sparse, sizeof sparse - 1);
}

static void save_trailers(void) {
    static const uint8_t after_payload[] = "payload\x00\x00\x06\x00\x00\x01";
    save("trailer", "sound", sound_trailer, sizeof sound_trailer - 1);
    save("trailer", "after-payload", after_payload, sizeof after_payload - 1);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    corpus = argv[1];
    write_queue(1);
    save_segments();
    save_directory("closed", 0);
    save_directory("closed-verified", 1);
    save_small_files();
    write_queue(0);
    save_directory("killed", 0);
    save_directory("killed-cut", 2);
    save_handshakes();
    save_payloads();
    save_trailers();
    return 0;
}
