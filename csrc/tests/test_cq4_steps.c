/* A process that appends to a Java queue is stepped through a call, instruction by instruction. Whenever a file has
 * changed, a kill at this moment would leave exactly these files. So they are copied, and another process continues
 * with the copy. This covers every instruction, since those in between leave the same files.
 *
 * AIOCHRONICLE_KEEP_STATES names a directory for the copies, where a JVM can continue with them: see
 * tests/interop/test_steps.py. */
#include "java_queue.h"

#include <dirent.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>

/* Shared with the child. */
typedef struct ledger {
    uint64_t attempted, acknowledged; /* number + 1 */
} ledger_t;
static ledger_t *ledger;

enum { STEPPED = 1, BEFORE = 2, AFTER = 3 };

static void put_noted(ac_cq4_writer_t *writer) {
    uint64_t number = ledger->attempted;
    ac_store_release_u64(&ledger->attempted, number + 1);
    put(writer, STEPPED, number);
    ac_store_release_u64(&ledger->acknowledged, number + 1);
}

typedef struct scenario {
    const char *name, *roll_cycle;
    int before;    /* messages that exist already; none: no queue */
    int64_t later; /* ms by which the clock advances before the call */
} scenario_t;

static void run(const scenario_t *scenario) {
    ac_cq4_writer_t *writer = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(2);
    if (scenario->before) {
        writer = open_java(scenario->roll_cycle);
        put_noted(writer);
    }
    set_ms += scenario->later;
    raise(SIGSTOP);
    if (!writer) writer = open_java(scenario->roll_cycle);
    put_noted(writer);
    raise(SIGSTOP);
    _exit(0);
}

/* ---- the files ---- */

/* How much of each is compared and copied; a check at the end shows that nothing else is in them. */
enum { WINDOW = 16384, FILES_MAX = 16, NAME_SIZE = 256 };

typedef struct file {
    char name[NAME_SIZE];
    uint64_t size;
    uint8_t *map;
    uint8_t seen[WINDOW];
} file_t;
static file_t files[FILES_MAX];
static size_t file_count;

static int by_name(const void *left, const void *right) {
    return strcmp(((const file_t *)left)->name, ((const file_t *)right)->name);
}

static size_t window_of(const file_t *file) {
    return file->size < WINDOW ? (size_t)file->size : WINDOW;
}

static void check_rest(const file_t *file) {
    static const uint8_t zeros[4096];
    for (uint64_t at = WINDOW; at + sizeof zeros <= file->size; at += sizeof zeros)
        CHECK(memcmp(file->map + at, zeros, sizeof zeros) == 0);
}

static void forget_files(void) {
    for (size_t i = 0; i < file_count; i++)
        if (files[i].map) munmap(files[i].map, files[i].size);
    file_count = 0;
}

/* The files of the directory itself: .aiochronicle below it has the files that wake our own readers. */
static void scan_files(const char *path) {
    struct stat info;
    struct dirent *entry;
    DIR *dir = opendir(path);
    forget_files();
    if (!dir) return;
    while ((entry = readdir(dir))) {
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
            CHECK(file_count < FILES_MAX);
            file_t *file = &files[file_count++];
            memset(file, 0, sizeof *file);
            snprintf(file->name, sizeof file->name, "%s", entry->d_name);
            file->size = (uint64_t)info.st_size;
            if (file->size > 0) {
                file->map = mmap(NULL, file->size, PROT_READ, MAP_SHARED, fd, 0);
                CHECK(file->map != MAP_FAILED);
                memcpy(file->seen, file->map, window_of(file));
            }
        }
        close(fd);
    }
    closedir(dir);
    qsort(files, file_count, sizeof *files, by_name);
}

static int contents_changed(void) {
    int changed = 0;
    for (size_t i = 0; i < file_count; i++) {
        file_t *file = &files[i];
        if (!file->map || memcmp(file->seen, file->map, window_of(file)) == 0) continue;
        memcpy(file->seen, file->map, window_of(file));
        changed = 1;
    }
    return changed;
}

/* Called after a system call, which may have created, removed, renamed or cut a file. */
static int names_changed(const char *path) {
    static file_t before[FILES_MAX];
    size_t count = file_count;
    memcpy(before, files, sizeof files);
    scan_files(path);
    if (count != file_count) return 1;
    for (size_t i = 0; i < count; i++)
        if (strcmp(before[i].name, files[i].name) || before[i].size != files[i].size ||
            memcmp(before[i].seen, files[i].seen, WINDOW))
            return 1;
    return 0;
}

/* The files that the child would leave if it were killed now: its pid becomes that of a process that is
 * gone. */
static void write_copy(const char *to, pid_t child, pid_t gone) {
    CHECK_EQUAL(mkdir(to, 0700), 0);
    for (size_t i = 0; i < file_count; i++) {
        char path[PATH_MAX], pid[32], name[NAME_SIZE];
        snprintf(pid, sizeof pid, ".tmp.%d.", child);
        memcpy(name, files[i].name, sizeof name);
        char *owner = strstr(name, pid);
        if (owner)
            snprintf(owner, sizeof name - (size_t)(owner - name), ".tmp.%d.%s", gone,
                     strstr(files[i].name, pid) + strlen(pid));
        for (size_t at = 0; strstr(name, ".cq4t") && at + 8 <= window_of(&files[i]); at += 8) {
            uint64_t value;
            memcpy(&value, files[i].seen + at, 8);
            if (value != (uint64_t)child) continue;
            value = (uint64_t)gone;
            memcpy(files[i].seen + at, &value, 8);
        }
        snprintf(path, sizeof path, "%s/%s", to, name);
        int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        CHECK(fd >= 0);
        size_t window = window_of(&files[i]);
        CHECK_EQUAL(write(fd, files[i].seen, window), (ssize_t)window);
        CHECK_EQUAL(ftruncate(fd, (off_t)files[i].size), 0);
        close(fd);
        if (files[i].map) memcpy(files[i].seen, files[i].map, window);
    }
}

static void remove_queue(const char *path) {
    nftw(path, check_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- going on ---- */

static void check_promises(const scenario_t *scenario, uint64_t after) {
    inventory_t seen = read_everything();
    CHECK_EQUAL(seen.count[BEFORE], (uint64_t)scenario->before);
    CHECK(seen.count[STEPPED] >= ledger->acknowledged);
    CHECK(seen.count[STEPPED] <= ledger->attempted);
    CHECK_EQUAL(seen.next[STEPPED], seen.count[STEPPED]);
    CHECK_EQUAL(seen.count[AFTER], after);
}

/* One process reads, another appends, in the same cycle and then in a later one. */
static void go_on(const scenario_t *scenario) {
    int64_t start = set_ms;
    queue_name = "copy";
    if (scenario->before) check_promises(scenario, 0);
    set_ms += scenario->later;
    ac_cq4_writer_t *writer = open_java(scenario->roll_cycle);
    put(writer, AFTER, 0);
    set_ms += ac_cq4_roll_by_name(scenario->roll_cycle)->length_ms;
    put(writer, AFTER, 1);
    ac_cq4_writer_free(writer);
    check_promises(scenario, 2);
    CHECK(is_finished());
    queue_name = "queue";
    set_ms = start;
}

static pid_t pid_of_nobody(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    wait_for(child, 0);
    return child;
}

static void check_state(const scenario_t *scenario, pid_t child, int number) {
    const char *keep = getenv("AIOCHRONICLE_KEEP_STATES");
    pid_t gone = pid_of_nobody();
    char path[PATH_MAX];
    if (keep) {
        snprintf(path, sizeof path, "%s/%s-%03d-%d-%d-%d", keep, scenario->name, number,
                 scenario->before, (int)ledger->acknowledged, (int)ledger->attempted);
        write_copy(path, child, gone);
    }
    snprintf(path, sizeof path, "%s", check_path("copy"));
    write_copy(path, child, gone);
    go_on(scenario);
    remove_queue(path);
}

/* ---- stepping ---- */

static int is_system_call(pid_t child) {
    long at = ptrace(PTRACE_PEEKUSER, child, (void *)offsetof(struct user_regs_struct, rip), NULL);
    return (ptrace(PTRACE_PEEKTEXT, child, (void *)at, NULL) & 0xffff) == 0x050f;
}

static int is_stopped(int status) {
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
}

static void step_through(const scenario_t *scenario) {
    int status, states = 0;
    uint64_t instructions = 0;
    char path[PATH_MAX];
    ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ledger != MAP_FAILED);
    snprintf(path, sizeof path, "%s", check_path("queue"));
    if (scenario->before) {
        ac_cq4_writer_t *writer = open_java(scenario->roll_cycle);
        for (int i = 0; i < scenario->before; i++)
            put(writer, BEFORE, (uint64_t)i);
        ac_cq4_writer_free(writer);
    }
    pid_t child = fork();
    if (child == 0) run(scenario);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(is_stopped(status));
    scan_files(path);
    check_state(scenario, child, states++);
    for (;;) {
        int is_call = is_system_call(child);
        CHECK_EQUAL(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        CHECK(WIFSTOPPED(status));
        if (is_stopped(status)) break;
        instructions++;
        if (is_call ? names_changed(path) : contents_changed())
            check_state(scenario, child, states++);
    }
    for (size_t i = 0; i < file_count; i++)
        check_rest(&files[i]);
    CHECK_EQUAL(ledger->acknowledged, scenario->before ? 2u : 1u);
    kill(child, SIGKILL);
    wait_for(child, -1);
    forget_files();
    printf("%s: %" PRIu64 " instructions, %d states\n", scenario->name, instructions, states);
    CHECK(states > 5);
    remove_queue(path);
    munmap(ledger, sizeof *ledger);
}

/* With a sanitizer, most instructions are its own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_STEPS(name) TEST_WHERE(name, 0)
#else
#define TEST_STEPS(name) TEST_IN_MEMORY(name)
#endif

TEST_STEPS(every_instruction_of_an_append) {
    step_through(&(scenario_t){.name = "append", .roll_cycle = "TEST4_DAILY", .before = 1});
}

/* Every message is indexed, and the eighth begins a page. */
TEST_STEPS(every_instruction_of_an_append_with_an_index_page) {
    step_through(&(scenario_t){.name = "page", .roll_cycle = "TEST_DAILY", .before = 7});
}

TEST_STEPS(every_instruction_of_a_roll) {
    step_through(
        &(scenario_t){.name = "roll", .roll_cycle = "TEST4_SECONDLY", .before = 2, .later = 1000});
}

TEST_STEPS(every_instruction_of_a_roll_over_a_gap) {
    step_through(
        &(scenario_t){.name = "gap", .roll_cycle = "TEST4_SECONDLY", .before = 2, .later = 5000});
}

TEST_STEPS(every_instruction_of_a_creation) {
    step_through(&(scenario_t){.name = "create", .roll_cycle = "TEST4_SECONDLY"});
}
