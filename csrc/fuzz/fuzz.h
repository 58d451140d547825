/* What the fuzz targets share. A target is a program with LLVMFuzzerTestOneInput, which takes bytes that an
 * enemy may have put into a file or sent over a socket, lets the engine work on them and checks what the
 * engine promises about any bytes. Whatever is not so ends the process.
 *
 * `make fuzz` links a target with libFuzzer, `make fuzz-replay` with replay.c, which runs it over the files
 * that were kept. Its files lie in memory, so that an execution takes microseconds. */
#ifndef AC_FUZZ_H
#define AC_FUZZ_H

#include "aiochronicle.h"

#include "control.h"
#include "crc32.h"
#include "record.h"
#include "segment.h"
#include "trailer.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);

/* The size of every segment here: the smallest there is. */
enum { FUZZ_SEGMENT = 4096 };

#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ---- the input, taken from the front ---- */

typedef struct fuzz_bytes {
    const uint8_t *at;
    size_t left;
} fuzz_bytes_t;

__attribute__((unused)) static uint64_t fuzz_take(fuzz_bytes_t *bytes, size_t width) {
    uint64_t value = 0;
    size_t taken = width < bytes->left ? width : bytes->left;
    memcpy(&value, bytes->at, taken);
    bytes->at += taken;
    bytes->left -= taken;
    return value;
}

/* ---- the queue's directory ---- */

static char fuzz_root[256], fuzz_queue[300];

__attribute__((unused)) static int fuzz_remove(const char *path, const struct stat *info, int kind,
                                               struct FTW *where) {
    (void)info;
    (void)kind;
    return where->level == 0 && strcmp(path, fuzz_queue) == 0 ? 0 : remove(path);
}

__attribute__((unused)) static void fuzz_remove_root(void) {
    nftw(fuzz_root, fuzz_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* Empty: of each execution its own. */
__attribute__((unused)) static void fuzz_clear(void) {
    if (!fuzz_root[0]) {
        const char *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(fuzz_root, sizeof fuzz_root, "%s/aiochronicle-fuzz-XXXXXX", memory);
        FUZZ_CHECK(mkdtemp(fuzz_root));
        atexit(fuzz_remove_root);
        snprintf(fuzz_queue, sizeof fuzz_queue, "%s/queue", fuzz_root);
        FUZZ_CHECK(mkdir(fuzz_queue, 0700) == 0);
    }
    nftw(fuzz_queue, fuzz_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* A file of the queue: the bytes, and zeros after them up to `size`. */
__attribute__((unused)) static void fuzz_put(const char *name, const void *bytes, size_t length,
                                             size_t size) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", fuzz_queue, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    FUZZ_CHECK(fd >= 0);
    FUZZ_CHECK(pwrite(fd, bytes, length, 0) == (ssize_t)length);
    FUZZ_CHECK(size <= length || ftruncate(fd, (off_t)size) == 0);
    close(fd);
}

__attribute__((unused)) static void fuzz_make_directory(const char *name) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", fuzz_queue, name);
    FUZZ_CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
}

/* The control block that fits a queue whose newest segment is `segment`. */
__attribute__((unused)) static ac_control_t fuzz_control(uint32_t segment) {
    return (ac_control_t){.magic = AC_CONTROL_MAGIC,
                          .version = AC_CONTROL_VERSION,
                          .init_state = AC_CONTROL_READY,
                          .writer_epoch = 1,
                          .segment_size = FUZZ_SEGMENT,
                          .queue_id = 77,
                          .current_segment = segment,
                          .write_offset = AC_SEGMENT_DATA};
}

__attribute__((unused)) static void fuzz_put_control(const ac_control_t *control) {
    fuzz_put("control.meta", control, sizeof *control, 0);
}

__attribute__((unused)) static void fuzz_put_segment(uint32_t id, const void *bytes, size_t length,
                                                     size_t size) {
    char name[AC_NAME_MAX];
    ac_segment_name(name, id, ".q");
    fuzz_put(name, bytes, length, size);
}

/* ---- reading ---- */

/* Looks at every byte of a message, and holds its payload against its checksum if that was promised. */
__attribute__((unused)) static void fuzz_look_at(const ac_message_t *message, int verified) {
    uint32_t checksum = ac_crc32(message->record + AC_HEADER_SIZE, message->length);
    const ac_record_t *record = (const ac_record_t *)(const void *)message->record;
    FUZZ_CHECK(message->length <= FUZZ_SEGMENT - AC_SEGMENT_DATA - AC_HEADER_SIZE);
    FUZZ_CHECK(message->type_id != AC_TYPE_PADDING);
    FUZZ_CHECK(!verified || checksum == record->checksum);
    if (!(message->flags & AC_FLAG_TRAILER)) return;
    ac_trailer_t trailer;
    ac_header_t header;
    FUZZ_CHECK(message->trailer > 0 && message->trailer <= message->length);
    const uint8_t *end = message->record + AC_HEADER_SIZE + message->length;
    FUZZ_CHECK(ac_trailer_open(&trailer, end - message->trailer, message->trailer));
    if (trailer.key.data) ac_crc32(trailer.key.data, trailer.key.length);
    int rc;
    while ((rc = ac_trailer_next(&trailer, &header)) == 1)
        ac_crc32(header.name.data, header.name.length + header.value.length);
    FUZZ_CHECK(rc == 0);
}

/* ---- mutations that get past the checksums ---- */

/* Makes each record of a segment valid again, as long as its length leads anywhere. One bit of `spare` each
 * says that it stays as it is. */
__attribute__((unused)) static void fuzz_mend_segment(uint8_t *bytes, size_t size, uint32_t spare) {
    ac_segment_header_t header;
    if (size < sizeof header) return;
    memcpy(&header, bytes, sizeof header);
    for (size_t at = AC_SEGMENT_DATA; at + AC_HEADER_SIZE <= size;) {
        ac_record_t record;
        uint64_t words[8];
        memcpy(&record, bytes + at, sizeof record);
        uint64_t length = record.commit_len - 1u;
        uint64_t step = record.commit_len ? ac_record_size(length) : AC_ALIGNMENT;
        int whole = record.commit_len && length <= size - at - AC_HEADER_SIZE;
        if (whole && !(spare & 1)) {
            record.version = AC_RECORD_VERSION;
            record.checksum = ac_crc32(bytes + at + AC_HEADER_SIZE, length);
            memcpy(words, &record, sizeof words);
            if (record.flags & AC_FLAG_OURS)
                record.header_check =
                    ac_crc32c_header(ac_crc32c_seed(header.segment_id, record.epoch), words);
            memcpy(bytes + at, &record, sizeof record);
        }
        spare = spare >> 1 | spare << 31;
        at += whole ? step : AC_ALIGNMENT;
    }
}

#endif
