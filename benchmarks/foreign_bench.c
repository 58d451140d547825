/* A writer like that of chronicle-rs, and readers in C, for benchmarks/foreign.py.
 *
 *   fill PATH COUNT                 a queue of another program: spare bytes zero, no check of the header, with the
 *                                   index that its writers leave beside each finished segment
 *   copy PATH COUNT                 the same messages in a queue of ours
 *   send PATH foreign|native        appends as standard input says, "count microseconds" on each line: each message
 *                                   begins with the monotonic clock at its append; says "ready" and "done"
 *   read PATH                       reads all, verified: prints nanoseconds per message, and how many
 *   follow PATH COUNT               sleeps for each message: prints how old each was, in nanoseconds
 *
 * The foreign writer publishes as such programs do: it adds 1 to notify_seq, and wakes the futex if a reader waits.
 * All records have 100 bytes of payload. */
#include "aiochronicle.h"
#include "control.h"
#include "crc32.h"
#include "os.h"
#include "reader.h"
#include "record.h"
#include "segment.h"
#include "segment_seekindex.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAYLOAD = 100, STRIDE = 192, PATH_ROOM = 4096 };

static const uint64_t segment_size = 128 << 20;

static void fail(const char *what, const ac_error_t *err) {
    fprintf(stderr, "%s: %s: %s\n", what, err ? err->path : "", err ? err->detail : "");
    exit(1);
}

static uint64_t thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *map_file(const char *path, uint64_t size) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0) fail(path, NULL);
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) fail(path, NULL);
    close(fd);
    return at;
}

/* ---- the other program's writer ---- */

typedef struct foreign {
    char path[PATH_ROOM];
    ac_control_t *control;
    uint8_t *base;
    uint32_t segment;
    uint64_t offset, seq;
} foreign_t;

static void name_file(const foreign_t *writer, const char *suffix, char *out) {
    snprintf(out, PATH_ROOM + 16, "%s/%09u%s", writer->path, writer->segment, suffix);
}

static void enter(foreign_t *writer, uint32_t segment) {
    char name[PATH_ROOM + 16];
    writer->segment = segment;
    name_file(writer, ".q", name);
    writer->base = map_file(name, segment_size);
    const uint32_t header[3] = {AC_SEGMENT_MAGIC, AC_SEGMENT_VERSION, segment};
    memcpy(writer->base, header, sizeof header);
    writer->offset = AC_SEGMENT_DATA;
    ac_control_set_position(writer->control, segment, AC_SEGMENT_DATA);
}

static void foreign_open(foreign_t *writer, const char *path) {
    char name[PATH_ROOM + 16];
    snprintf(writer->path, sizeof writer->path, "%s", path);
    if (mkdir(path, 0700) < 0) fail(path, NULL);
    snprintf(name, sizeof name, "%s/control.meta", path);
    writer->control = map_file(name, AC_CONTROL_SIZE);
    writer->control->magic = AC_CONTROL_MAGIC;
    writer->control->version = AC_CONTROL_VERSION;
    writer->control->writer_epoch = 1;
    writer->control->segment_size = segment_size;
    enter(writer, 0);
    ac_store_release_u32(&writer->control->init_state, AC_CONTROL_READY);
}

static void seal(foreign_t *writer) {
    ac_directory_t dir = {0};
    ac_error_t err;
    ac_map_t *map = NULL;
    ac_index_t index = {0};
    if (ac_directory_init(&dir, writer->path, 0, 0, &err) != AC_OK) fail("directory", &err);
    int dir_fd = ac_directory_open(&dir, &err);
    ac_store_release_u32((uint32_t *)(void *)(writer->base + 12), 1);
    if (dir_fd < 0 || ac_segment_open(&dir, dir_fd, writer->segment, segment_size, 0, &map, &err))
        fail("segment", &err);
    if (ac_index_extend(&index, map) < 0 ||
        ac_index_save(&index, &dir, dir_fd, segment_size, &err) != AC_OK)
        fail("index", &err);
    ac_index_free(&index);
    ac_map_release(map);
    close(dir_fd);
    munmap(writer->base, segment_size);
}

/* All of it is on disk, and index.meta says so. */
static void foreign_close(foreign_t *writer) {
    char name[PATH_ROOM + 16];
    sync();
    const uint64_t durable[2] = {writer->segment, writer->offset};
    snprintf(name, sizeof name, "%s/index.meta", writer->path);
    void *at = map_file(name, sizeof durable);
    memcpy(at, durable, sizeof durable);
    if (msync(at, sizeof durable, MS_SYNC) < 0) fail(name, NULL);
}

static void foreign_append(foreign_t *writer, const void *payload) {
    if (writer->offset + STRIDE > segment_size) {
        seal(writer);
        enter(writer, writer->segment + 1);
    }
    uint8_t *at = writer->base + writer->offset;
    ac_record_t header = {.commit_len = 0,
                          .version = AC_RECORD_VERSION,
                          .seq = writer->seq++,
                          .timestamp_ns = ac_os_now_ns(),
                          .checksum = ac_crc32(payload, PAYLOAD)};
    memcpy(at + AC_HEADER_SIZE, payload, PAYLOAD);
    memcpy(at, &header, sizeof header);
    ac_store_release_u32(ac_record_commit_word(at), PAYLOAD + 1);
    writer->offset += STRIDE;
    ac_store_release_u64(&writer->control->write_offset, writer->offset);
    ac_fetch_add_seq_cst_u32(&writer->control->notify_seq, 1);
    if (ac_load_seq_cst_u32(&writer->control->waiters_pending))
        syscall(SYS_futex, &writer->control->notify_seq, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

/* ---- both kinds ---- */

typedef struct sender {
    ac_writer_t *native; /* NULL: a foreign one */
    foreign_t foreign;
} sender_t;

static void sender_open(sender_t *sender, const char *path, int is_foreign) {
    ac_writer_config_t config;
    ac_error_t err;
    memset(sender, 0, sizeof *sender);
    if (is_foreign) {
        foreign_open(&sender->foreign, path);
        return;
    }
    ac_writer_defaults(&config);
    if (ac_writer_open(path, &config, &sender->native, &err) != AC_OK) fail("open", &err);
}

static void sender_append(sender_t *sender, const void *payload) {
    ac_error_t err;
    if (!sender->native)
        foreign_append(&sender->foreign, payload);
    else if (ac_writer_append(sender->native, payload, PAYLOAD, 0, AC_NOW, &err) < 0)
        fail("append", &err);
}

static void sender_close(sender_t *sender) {
    ac_error_t err;
    if (!sender->native) foreign_close(&sender->foreign);
    if (sender->native && ac_writer_close(sender->native, &err) != AC_OK) fail("close", &err);
    ac_writer_free(sender->native);
}

static void fill(const char *path, uint64_t count, int is_foreign) {
    sender_t sender;
    uint8_t payload[PAYLOAD];
    sender_open(&sender, path, is_foreign);
    for (uint64_t i = 0; i < count; i++) {
        memset(payload, (int)(i & 0x7F), sizeof payload);
        sender_append(&sender, payload);
    }
    sender_close(&sender);
}

static void send_on_request(const char *path, int is_foreign) {
    char line[64];
    uint8_t payload[PAYLOAD] = {0};
    sender_t sender;
    sender_open(&sender, path, is_foreign);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char *rest;
        unsigned long count = strtoul(line, &rest, 10), pause_us = strtoul(rest, NULL, 10);
        for (unsigned long i = 0; i < count; i++) {
            ac_os_sleep_ns(pause_us * 1000);
            uint64_t now = ac_os_monotonic_ns();
            memcpy(payload, &now, sizeof now);
            sender_append(&sender, payload);
        }
        puts("done");
        fflush(stdout);
    }
    sender_close(&sender);
}

static ac_reader_t *open_reader(const char *path, int start) {
    ac_reader_config_t config;
    ac_reader_t *reader;
    ac_error_t err;
    ac_reader_defaults(&config);
    config.start = start;
    if (ac_reader_open(path, &config, &reader, &err) != AC_OK) fail("open", &err);
    return reader;
}

static void read_all(const char *path) {
    ac_reader_t *reader = open_reader(path, AC_START_FIRST);
    ac_message_t message;
    ac_error_t err;
    uint64_t count = 0, started_ns = thread_ns();
    int rc;
    while ((rc = ac_reader_next(reader, &message, &err)) == 1) {
        __asm__ volatile("" : "+m"(message)); /* all of it is wanted */
        count++;
    }
    if (rc < 0) fail("next", &err);
    printf("%.3f %llu\n", (double)(thread_ns() - started_ns) / (double)count,
           (unsigned long long)count);
    ac_reader_free(reader);
}

static void follow(const char *path, uint64_t count) {
    ac_reader_t *reader = open_reader(path, AC_START_LAST);
    ac_message_t message;
    ac_error_t err;
    puts("ready");
    fflush(stdout);
    while (count > 0) {
        int rc = ac_reader_wait(reader, 20000000000, 0, &err);
        if (rc != 1) fail("wait", rc < 0 ? &err : NULL);
        while (count > 0 && ac_reader_next(reader, &message, &err) == 1) {
            uint64_t sent_ns, now = ac_os_monotonic_ns();
            memcpy(&sent_ns, message.record + AC_HEADER_SIZE, sizeof sent_ns);
            printf("%llu\n", (unsigned long long)(now - sent_ns));
            count--;
        }
    }
    ac_reader_free(reader);
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "fill") == 0)
        fill(argv[2], strtoull(argv[3], NULL, 10), 1);
    else if (argc == 4 && strcmp(argv[1], "copy") == 0)
        fill(argv[2], strtoull(argv[3], NULL, 10), 0);
    else if (argc == 4 && strcmp(argv[1], "send") == 0)
        send_on_request(argv[2], strcmp(argv[3], "foreign") == 0);
    else if (argc == 3 && strcmp(argv[1], "read") == 0)
        read_all(argv[2]);
    else if (argc == 4 && strcmp(argv[1], "follow") == 0)
        follow(argv[2], strtoull(argv[3], NULL, 10));
    else
        fail("usage: see the head of foreign_bench.c", NULL);
    return 0;
}
