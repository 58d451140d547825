/* Kills the engine at every instruction of one call.
 *
 *     step_kill steps SCENARIO ROOT SALT STRIDE PHASE KEEP
 *     step_kill kill  SCENARIO ROOT SALT INSTRUCTION
 *
 * The scenario runs in a traced child, one instruction at a time. A kill leaves the content of the files,
 * since mapped memory and file are the same pages. Killing would mean starting over for every instruction.
 * Instead, the files are copied whenever they or the ledger have changed, and the copy is recovered and
 * checked as if the child had died there. Instructions that change neither leave the same state as the one
 * before. Every STRIDE-th state is checked, beginning with PHASE, and every KEEP-th of those stays in
 * ROOT/kept for an independent oracle.
 *
 * `kill` verifies this shortcut: it really kills after this many instructions, compares the files with
 * their content just before, and recovers them in place. */
#include "control.h"
#include "ledger.h"
#include "segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PATH_ROOM = 12288,
    SEGMENT_SIZE = 4096,
    FILES_MAX = 64,
    FOLDERS = 3,
    PREPARED = 5,
    BATCH = 4
};

static const char *const folders[FOLDERS] = {"", "readers/", "recovered/"};
static const char reader_name[] = "audit";

static ledger_t *ledger;
static uint64_t salt;
static char live[1024], copy[1024], kept[1024];

static void die(const char *what) {
    perror(what);
    exit(2);
}

/* ---- scenarios; these run in the child ---- */

static ac_writer_t *writer;
static ac_reader_t *reader;

static void must(int64_t result, const ac_error_t *err) {
    if (result >= 0) return;
    ledger_fail(ledger, 1, result, err);
    _exit(5);
}

static void open_writer(void) {
    ac_writer_config_t config;
    ac_error_t err;
    ac_writer_defaults(&config);
    config.segment_size = SEGMENT_SIZE;
    config.inline_housekeeping = 1; /* one thread, so that every instruction is stepped */
    config.reader_ttl_ns = 3600ull * 1000000000u;
    must(ac_writer_open(live, &config, &writer, &err), &err);
}

static void append(uint64_t count) {
    uint8_t payload[PAYLOAD_MAX];
    ac_error_t err;
    for (; count > 0; count--) {
        uint32_t length = payload_fill(salt, ledger->acknowledged, payload);
        ledger_attempt(ledger, 1);
        must(ac_writer_append(writer, payload, length, 0, AC_NOW, &err), &err);
        ledger_acknowledge(ledger, ledger->acknowledged + 1);
    }
}

static void prepare_some(void) {
    open_writer();
    append(PREPARED);
}

static void act_append(void) {
    append(1);
}

static void act_batch(void) {
    static uint8_t payloads[BATCH][PAYLOAD_MAX];
    ac_slice_t items[BATCH];
    ac_error_t err;
    for (uint64_t i = 0; i < BATCH; i++) {
        uint32_t length = payload_fill(salt, ledger->acknowledged + i, payloads[i]);
        items[i] = (ac_slice_t){payloads[i], length};
    }
    ledger_attempt(ledger, BATCH);
    must(ac_writer_append_many(writer, items, BATCH, 0, NULL, &err), &err);
    ledger_acknowledge(ledger, ledger->acknowledged + BATCH);
}

static void reserve(void) {
    uint8_t payload[PAYLOAD_MAX];
    void *room;
    ac_error_t err;
    uint32_t length = payload_fill(salt, ledger->acknowledged, payload);
    must(ac_writer_reserve(writer, length, &room, &err), &err);
    memcpy(room, payload, length);
}

static void act_reserve(void) {
    ac_error_t err;
    reserve();
    ledger_attempt(ledger, 1);
    must(ac_writer_commit(writer, 0, AC_NOW, NULL, &err), &err);
    ledger_acknowledge(ledger, ledger->acknowledged + 1);
}

static void act_abort(void) {
    reserve();
    ac_writer_abort(writer);
}

/* Appends until the next record does not fit. */
static void prepare_full(void) {
    ac_writer_stats_t stats;
    open_writer();
    for (;;) {
        uint64_t size = (64u + payload_length(salt, ledger->acknowledged) + 63u) & ~63u;
        ac_writer_stats(writer, &stats);
        if (stats.offset + size > SEGMENT_SIZE) return;
        append(1);
    }
}

static void act_flush(void) {
    ac_error_t err;
    must(ac_writer_flush(writer, &err), &err);
}

static void act_close(void) {
    ac_error_t err;
    must(ac_writer_close(writer, &err), &err);
}

static void prepare_closed(void) {
    prepare_some();
    act_close();
}

static void open_reader(void) {
    ac_reader_config_t config;
    ac_error_t err;
    ac_reader_defaults(&config);
    config.name = reader_name;
    must(ac_reader_open(live, &config, &reader, &err), &err);
}

static void commit(int sync) {
    ac_message_t message;
    ac_error_t err;
    uint64_t segment, offset;
    must(ac_reader_next(reader, &message, &err) - 1, &err);
    ac_reader_position(reader, &segment, &offset);
    ac_store_release_u64((uint64_t *)&ledger->readers[0].attempted, message.seq + 1);
    must(ac_reader_commit(reader, segment, offset, sync, &err), &err);
    ac_store_release_u64((uint64_t *)&ledger->readers[0].committed, message.seq + 1);
}

static void prepare_reader(void) {
    prepare_some();
    open_reader();
    commit(0);
}

static void act_commit(void) {
    commit(1);
    commit(0);
}

static void act_open(void) {
    open_writer();
    append(1);
}

static void prepare_nothing(void) {}

/* A writer that dies: `dying` continues after prepare_some or a similar function. */
static void in_dying_process(void (*dying)(void)) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        dying();
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0) _exit(6);
}

static void die_in_reservation(void) {
    prepare_some();
    reserve();
}

static void prepare_unfinished(void) {
    in_dying_process(die_in_reservation);
}

/* Flips a bit in the payload or header of the last record of segment 0 with the given seq, and removes what
 * can no longer be there. */
static void tear(uint64_t seq) {
    char path[1200];
    uint8_t content[SEGMENT_SIZE];
    snprintf(path, sizeof path, "%s/%09u.q", live, 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || pread(fd, content, sizeof content, 0) != (ssize_t)sizeof content) _exit(7);
    uint64_t offset = AC_SEGMENT_DATA;
    for (uint64_t at = 0; at < seq; at++)
        offset += (64u + payload_length(salt, at) + 63u) & ~63u;
    content[offset + 9] ^= 0x10; /* in its seq */
    if (pwrite(fd, content, sizeof content, 0) != (ssize_t)sizeof content) _exit(7);
    close(fd);
    ac_store_release_u64(&ledger->attempted, seq);
    ac_store_release_u64(&ledger->acknowledged, seq);
}

static void prepare_torn(void) {
    in_dying_process(die_in_reservation);
    tear(PREPARED - 1);
}

static void die_with_segments(void) {
    prepare_full();
    append(PREPARED);
}

/* The segments after the torn record are after the end, too. Without index.meta nothing is durable. */
static void prepare_torn_segments(void) {
    char path[1200];
    in_dying_process(die_with_segments);
    snprintf(path, sizeof path, "%s/index.meta", live);
    unlink(path);
    for (int id = 0; id < 64; id++) { /* they show that their segments were durable */
        snprintf(path, sizeof path, "%.1100s/%09d.idx", live, id);
        unlink(path);
    }
    tear(PREPARED - 1);
}

static void prepare_unsealed(void) {
    in_dying_process(die_with_segments);
}

static void act_recover(void) {
    open_writer();
}

#include "step_group.h"

static void prepare_segments(void) {
    prepare_full();
    while (ledger->acknowledged < 60)
        append(1);
    open_reader();
    while (ledger->readers[0].committed < 40)
        commit(0);
}

static void act_retain(void) {
    ac_error_t err;
    must(ac_writer_retain(writer, &err), &err);
}

static const struct scenario {
    const char *name;
    void (*prepare)(void);
    void (*act)(void);
    int torn;    /* recovery sets bytes aside */
    int removes; /* the first messages may go */
    int group;   /* 1: of a group; 2: … and some comes later */
} scenarios[] = {
    {"append", prepare_some, act_append, 0, 0, 0},
    {"batch", prepare_some, act_batch, 0, 0, 0},
    {"reserve", prepare_some, act_reserve, 0, 0, 0},
    {"abort", prepare_some, act_abort, 0, 0, 0},
    {"roll", prepare_full, act_append, 0, 0, 0},
    {"flush", prepare_some, act_flush, 0, 0, 0},
    {"commit", prepare_reader, act_commit, 0, 0, 0},
    {"register", prepare_some, open_reader, 0, 0, 0},
    {"create", prepare_nothing, act_open, 0, 0, 0},
    {"open", prepare_closed, act_open, 0, 0, 0},
    {"close", prepare_some, act_close, 0, 0, 0},
    {"recover", prepare_unfinished, act_recover, 0, 0, 0},
    {"recover-unsealed", prepare_unsealed, act_recover, 0, 0, 0},
    {"recover-torn", prepare_torn, act_recover, 1, 0, 0},
    {"recover-segments", prepare_torn_segments, act_recover, 1, 0, 0},
    {"retain", prepare_segments, act_retain, 0, 1, 0},
    {"group-found", group_queue, act_group_join, 0, 0, 1},
    {"group-join", group_left, act_group_join, 0, 0, 1},
    {"group-resize", group_left, act_group_resize, 0, 0, 1},
    {"group-take", group_some, act_group_take, 0, 0, 1},
    {"group-ack", group_some, act_group_ack, 0, 0, 1},
    {"group-nack", group_some, act_group_nack, 0, 0, 2},
    {"group-extend", group_some, act_group_extend, 0, 0, 1},
    {"group-take-back", group_beside, act_group_take_back, 0, 0, 1},
    {"group-leave", group_some, act_group_leave, 0, 0, 1},
};

static pid_t start(const struct scenario *scenario) {
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid > 0) return pid;
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0) _exit(8);
    scenario->prepare();
    raise(SIGSTOP);
    scenario->act();
    ac_store_release_u64(&ledger->finished, 1);
    for (;;)
        pause();
}

/* ---- the state of the files ---- */

typedef struct file {
    char name[300]; /* below the queue's directory */
    size_t size;
    void *map;
    uint8_t *content;
} file_t;

static file_t files[FILES_MAX];
static size_t file_count;
static ledger_t ledger_seen;
static int events = -1;

static void forget_files(void) {
    for (size_t i = 0; i < file_count; i++) {
        if (files[i].map) munmap(files[i].map, files[i].size);
        free(files[i].content);
    }
    file_count = 0;
}

static void add_file(const char *folder, const char *name) {
    char path[1500];
    struct stat info;
    file_t *file = &files[file_count];
    if (file_count == FILES_MAX) die("too many files");
    snprintf(file->name, sizeof file->name, "%s%s", folder, name);
    snprintf(path, sizeof path, "%s/%s", live, file->name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) < 0) die(path);
    file->size = (size_t)info.st_size;
    file->map = NULL;
    if (file->size > 0) file->map = mmap(NULL, file->size, PROT_READ, MAP_SHARED, fd, 0);
    if (file->map == MAP_FAILED) die("mmap");
    file->content = malloc(file->size + 1);
    if (!file->content) die("malloc");
    if (file->size > 0) memcpy(file->content, file->map, file->size);
    close(fd);
    file_count++;
}

/* Lists and maps everything again; needed only after a system call that changed names or sizes. */
static void scan_files(void) {
    char path[1200];
    forget_files();
    for (int i = 0; i < FOLDERS; i++) {
        snprintf(path, sizeof path, "%s/%s", live, folders[i]);
        DIR *stream = opendir(path);
        if (!stream) continue;
        inotify_add_watch(events, path, IN_CREATE | IN_DELETE | IN_MOVE | IN_MODIFY);
        struct dirent *entry;
        while ((entry = readdir(stream)))
            if (entry->d_type == DT_REG) add_file(folders[i], entry->d_name);
        closedir(stream);
    }
}

static int names_changed(void) {
    char buffer[4096];
    int changed = 0;
    while (read(events, buffer, sizeof buffer) > 0)
        changed = 1;
    return changed;
}

/* 1 = something has changed since the last call. Names and sizes come first: a map that is longer than its
 * file must not be read. */
static int state_changed(void) {
    int changed = 0;
    if (names_changed() || file_count == 0) {
        scan_files();
        changed = file_count > 0;
    }
    for (size_t i = 0; i < file_count; i++) {
        if (files[i].size == 0 || !memcmp(files[i].map, files[i].content, files[i].size)) continue;
        memcpy(files[i].content, files[i].map, files[i].size);
        changed = 1;
    }
    if (memcmp(&ledger_seen, ledger, sizeof ledger_seen)) {
        ledger_seen = *ledger;
        changed = 1;
    }
    return changed;
}

static void make_directory(const char *path) {
    if (mkdir(path, 0700) < 0 && errno != EEXIST) die(path);
}

static void write_copy(const char *to) {
    char path[1500];
    make_directory(to);
    for (size_t i = 0; i < file_count; i++) {
        const char *slash = strchr(files[i].name, '/');
        if (slash) {
            snprintf(path, sizeof path, "%.1100s/%.*s", to, (int)(slash - files[i].name),
                     files[i].name);
            make_directory(path);
        }
        snprintf(path, sizeof path, "%.1100s/%.299s", to, files[i].name);
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, files[i].content, files[i].size) != (ssize_t)files[i].size)
            die(path);
        if (strcmp(files[i].name, "control.meta") == 0) { /* not a copy: the original, elsewhere */
            static const uint64_t nowhere;
            if (pwrite(fd, &nowhere, sizeof nowhere, offsetof(ac_control_t, home)) < 0) die(path);
        }
        if (strcmp(files[i].name, "readers/work.group") == 0) move_group(fd, 0);
        close(fd);
    }
}

static void remove_copy(const char *at) {
    char path[1500];
    for (int i = FOLDERS - 1; i >= 0; i--) {
        snprintf(path, sizeof path, "%s/%s", at, folders[i]);
        DIR *stream = opendir(path);
        if (!stream) continue;
        struct dirent *entry;
        while ((entry = readdir(stream)))
            if (entry->d_type != DT_DIR) unlinkat(dirfd(stream), entry->d_name, 0);
        closedir(stream);
        rmdir(path);
    }
}

/* ---- checking ---- */

static uint64_t steps;
static const struct scenario *chosen;

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) violated(at, #condition, &err);                                          \
    } while (0)

static void violated(const char *at, const char *what, const ac_error_t *err) {
    printf("violation scenario=%s instruction=%" PRIu64 " acknowledged=%" PRIu64
           " attempted=%" PRIu64 " not: %s (%s: %s)\n",
           chosen->name, steps, ledger_seen.acknowledged, ledger_seen.attempted, what, at,
           err->detail);
    char bad[1200];
    snprintf(bad, sizeof bad, "%s-bad", copy);
    write_copy(bad); /* as before any recovery */
    printf("the state is kept in %s\n", bad);
    fflush(stdout);
    _exit(1);
}

static int promised(uint64_t next_seq) {
    return next_seq == ledger_seen.acknowledged || next_seq == ledger_seen.attempted;
}

/* A reader at the end of the queue before its recovery; NULL if there is no queue yet. */
static ac_reader_t *follow(const char *at) {
    ac_reader_config_t config;
    ac_reader_t *follower = NULL;
    ac_error_t err = {0};
    ac_reader_defaults(&config);
    config.start = AC_START_LAST;
    int rc = ac_reader_open(at, &config, &follower, &err);
    REQUIRE(rc == AC_OK || rc == AC_E_NOT_FOUND);
    return follower;
}

/* The reader continues with what the next writer appends. */
static void check_follower(const char *at, ac_reader_t *follower, ac_writer_t *recovered,
                           uint64_t next_seq) {
    ac_error_t err = {0};
    found_t found = {0};
    uint8_t payload[PAYLOAD_MAX];
    uint32_t length = payload_fill(salt, next_seq, payload);
    REQUIRE(ac_writer_append(recovered, payload, length, 0, AC_NOW, &err) == (int64_t)next_seq);
    read_all(follower, salt, &found, &err);
    REQUIRE(found.error == 0 && found.wrong == 0);
    REQUIRE(found.messages == 1 && found.first_seq == next_seq);
}

/* Recovers the queue at the given place and checks everything that is known about it; appends one message
 * more, unless an oracle checks the queue later. */
static void check(const char *at, int more) {
    ac_error_t err;
    ac_writer_config_t config;
    ac_writer_t *recovered = NULL;
    ac_writer_stats_t stats;
    ac_recovery_t report;
    found_t found;
    memset(&err, 0, sizeof err);
    ac_writer_defaults(&config);
    config.segment_size = SEGMENT_SIZE;
    config.inline_housekeeping = 1;
    ac_reader_t *follower = more && !chosen->torn ? follow(at) : NULL;
    REQUIRE(ac_writer_open(at, &config, &recovered, &err) == AC_OK);
    ac_writer_stats(recovered, &stats);
    ac_writer_recovery(recovered, &report);
    REQUIRE(promised(stats.next_seq));
    REQUIRE(report.corrupt_records == 0);
    if (!chosen->torn) REQUIRE(report.torn_records == 0 && report.segments_set_aside == 0);
    look(at, NULL, salt, &found, &err);
    REQUIRE(found.error == 0 && found.wrong == 0);
    REQUIRE(found.messages == 0 ? stats.next_seq == 0 : found.next_seq == stats.next_seq);
    REQUIRE(found.first_seq == 0 || chosen->removes);
    if (ledger_seen.readers[0].committed != NEVER_COMMITTED) {
        look(at, reader_name, salt, &found, &err);
        int64_t resumed = (int64_t)(found.messages ? found.first_seq : stats.next_seq);
        REQUIRE(found.error == 0 && found.wrong == 0);
        REQUIRE(resumed == ledger_seen.readers[0].committed ||
                resumed == ledger_seen.readers[0].attempted);
    }
    if (follower) check_follower(at, follower, recovered, stats.next_seq);
    ac_reader_free(follower);
    REQUIRE(ac_writer_close(recovered, &err) == AC_OK);
    ac_writer_free(recovered);
}

static void check_group(const char *at, int after_power_cut) {
    member_t heir;
    ac_group_info_t info;
    ac_error_t err = {0};
    int wrong = 0;
    uint64_t everything = (1ull << GROUP_MESSAGES) - 1, delayed = chosen->group == 2 ? 1u << 2 : 0;
    if (ledger_seen.acknowledged < GROUP_MESSAGES) return; /* the queue is being made */
    if (after_power_cut) reboot_group(at);
    REQUIRE(member_open(&heir, at, GROUP_LIMIT, GROUP_LEASE_MS, &err) == AC_OK);
    uint64_t delivered = take_all(&heir, &wrong, &err);
    REQUIRE(!wrong && err.code == 0);
    REQUIRE(((delivered | delayed | ledger_seen.acking) & everything) == everything);
    if (!after_power_cut) REQUIRE(!(delivered & ledger_seen.acked));
    REQUIRE(ac_group_inspect(at, "work", &info, &err) == AC_OK);
    REQUIRE(delayed || info.pending == 0);
    member_close(&heir);
}

/* ---- stepping ---- */

/* 1 = one instruction further, 0 = the scenario has ended. */
static int step(pid_t pid) {
    static long signal_to_deliver;
    int status;
    if (ac_load_acquire_u64(&ledger->finished)) return 0;
    if (ptrace(PTRACE_SINGLESTEP, pid, NULL, (void *)signal_to_deliver) < 0) die("singlestep");
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) {
        printf("violation scenario=%s instruction=%" PRIu64 " the child ended with %x: %s\n",
               chosen->name, steps, (unsigned)status, ledger->failed_detail);
        exit(1);
    }
    signal_to_deliver = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
    steps++;
    return 1;
}

static void wait_until_prepared(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        if (WSTOPSIG(status) == SIGSTOP) {
            /* No stopped child may be left behind if this process ends early. */
            if (ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)PTRACE_O_EXITKILL) < 0) break;
            return;
        }
        if (ptrace(PTRACE_CONT, pid, NULL, (void *)(long)WSTOPSIG(status)) < 0) break;
    }
    printf("violation scenario=%s the preparation ended with %x: %s\n", chosen->name,
           (unsigned)status, ledger->failed_detail);
    exit(1);
}

static void end_child(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void step_through(uint64_t stride, uint64_t phase, uint64_t keep) {
    uint64_t states = 0, checked = 0;
    pid_t pid = start(chosen);
    wait_until_prepared(pid);
    do {
        if (!state_changed() || states++ % stride != phase % stride) continue;
        int keeps = ++checked % keep == 0;
        write_copy(copy);
        check(copy, !keeps && !chosen->group);
        if (chosen->group) {
            check_group(copy, 0);
            if (!keeps) {
                remove_copy(copy);
                write_copy(copy);
                check_group(copy, 1);
            }
        }
        if (keeps) {
            char path[1200];
            snprintf(path, sizeof path, "%s/%s-%" PRIu64, kept, chosen->name, steps);
            if (rename(copy, path) < 0) die(path);
            printf("kept acknowledged=%" PRIu64 " attempted=%" PRIu64 " path=%s\n",
                   ledger_seen.acknowledged, ledger_seen.attempted, path);
        } else {
            remove_copy(copy);
        }
    } while (step(pid));
    end_child(pid);
    printf("steps scenario=%s instructions=%" PRIu64 " states=%" PRIu64 " checked=%" PRIu64 "\n",
           chosen->name, steps, states, checked);
}

static void kill_at(uint64_t instruction) {
    ac_error_t err = {0};
    const char *at = live;
    pid_t pid = start(chosen);
    wait_until_prepared(pid);
    while (steps < instruction && step(pid))
        continue;
    state_changed();
    end_child(pid);
    if (file_count > 0) {
        REQUIRE(!state_changed()); /* the kill itself changes nothing */
        check(live, 0);
        if (chosen->group) check_group(live, 0);
    }
    printf("killed scenario=%s instruction=%" PRIu64 " acknowledged=%" PRIu64 " attempted=%" PRIu64
           "\n",
           chosen->name, steps, ledger_seen.acknowledged, ledger_seen.attempted);
}

int main(int count, char **arguments) {
    if (count < 6) {
        for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
            puts(scenarios[i].name);
        return count == 2 && !strcmp(arguments[1], "list") ? 0 : 2;
    }
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (!strcmp(scenarios[i].name, arguments[2])) chosen = &scenarios[i];
    if (!chosen) return 2;
    snprintf(live, sizeof live, "%s/live", arguments[3]);
    snprintf(copy, sizeof copy, "%s/copy", arguments[3]);
    snprintf(kept, sizeof kept, "%s/kept", arguments[3]);
    make_directory(live);
    make_directory(kept);
    salt = strtoull(arguments[4], NULL, 10);
    ac_checksum("", 0); /* its tables are made once: no need to step through that */
    ledger = ledger_new();
    events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (!ledger || events < 0) die("ledger");
    ledger_reset(ledger);
    if (!strcmp(arguments[1], "steps") && count == 8)
        step_through(strtoull(arguments[5], NULL, 10), strtoull(arguments[6], NULL, 10),
                     strtoull(arguments[7], NULL, 10));
    else if (!strcmp(arguments[1], "kill") && count == 6)
        kill_at(strtoull(arguments[5], NULL, 10));
    else
        return 2;
    return 0;
}
