#include "sigbus.h"

#include "atomics.h"
#include "os.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Slots live in chunks that are never freed: the handler walks them without a lock. A slot is valid while
 * its length is not 0; base, cut and cut_at are stored before length, with release. */
enum { CHUNK_SLOTS = 1024, CHUNKS_MAX = 64 };

typedef struct slot {
    uint64_t base;
    uint64_t length;
    uint32_t *cut;
    uint64_t *cut_at;
    int next_free;
} slot_t;

static slot_t *chunks[CHUNKS_MAX];
static int slots_used;
static int free_head = -1;
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous;
static int installed;
static uint64_t page_size;
static int raised_here;

static slot_t *slot_at(int index) {
    return &__atomic_load_n(&chunks[index / CHUNK_SLOTS], __ATOMIC_ACQUIRE)[index % CHUNK_SLOTS];
}

static int mend(uint64_t address) {
    int used = __atomic_load_n(&slots_used, __ATOMIC_ACQUIRE);
    for (int i = 0; i < used; i++) {
        slot_t *slot = slot_at(i);
        uint64_t length = ac_load_acquire_u64(&slot->length);
        uint64_t base = ac_load_relaxed_u64(&slot->base);
        if (length == 0 || address < base || address - base >= length) continue;
        uint64_t page = address & ~(page_size - 1);
        if (!ac_load_relaxed_u32(slot->cut)) ac_store_relaxed_u64(slot->cut_at, page - base);
        __atomic_store_n(slot->cut, 1, __ATOMIC_SEQ_CST);
        __atomic_store_n(&raised_here, 0, __ATOMIC_RELAXED);
        return mmap((void *)(uintptr_t)page, page_size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return 0;
}

/* A handler installed over ours, like Python's faulthandler, does its work, restores ours and raises the
 * signal again; such a signal has no address. Returning from it repeats the access, and then the fault
 * comes here with one. If none comes, the signal was sent on purpose. */
static int is_second_hand(const siginfo_t *info) {
    return info->si_code == SI_TKILL && info->si_pid == getpid() &&
           !__atomic_exchange_n(&raised_here, 1, __ATOMIC_RELAXED);
}

static void on_sigbus(int number, siginfo_t *info, void *context) {
    int saved = errno;
    if (is_second_hand(info)) return;
    if (mend((uint64_t)(uintptr_t)info->si_addr)) {
        errno = saved;
        return;
    }
    /* Not ours: behave as if this handler had never been installed. */
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
    } else {
        sigaction(SIGBUS, &previous, NULL); /* returns to the faulting access, which now kills */
    }
    errno = saved;
}

/* A child must not find the list locked by a thread that it does not have. */
static void before_fork(void) {
    pthread_mutex_lock(&slots_lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&slots_lock);
}

/* Before the housekeeper registers its own: handlers run in the reverse order before a fork, and that one
 * waits for tasks that map files. */
__attribute__((constructor)) static void register_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork, after_fork);
}

static int install(void) {
    struct sigaction action = {.sa_sigaction = on_sigbus,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    page_size = ac_os_page_size();
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &previous) != 0) return -errno;
    installed = 1;
    return 0;
}

static int take_slot(void) {
    if (free_head >= 0) {
        int index = free_head;
        free_head = slot_at(index)->next_free;
        return index;
    }
    int index = slots_used;
    if (index == CHUNK_SLOTS * CHUNKS_MAX) return -EMFILE;
    if (index % CHUNK_SLOTS == 0) {
        slot_t *chunk = calloc(CHUNK_SLOTS, sizeof *chunk);
        if (!chunk) return -ENOMEM;
        __atomic_store_n(&chunks[index / CHUNK_SLOTS], chunk, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&slots_used, index + 1, __ATOMIC_RELEASE);
    return index;
}

int ac_sigbus_register(void *base, uint64_t length, uint32_t *cut, uint64_t *cut_at) {
    pthread_mutex_lock(&slots_lock);
    int index = installed ? 0 : install();
    if (index == 0) index = take_slot();
    if (index >= 0) {
        slot_t *slot = slot_at(index);
        ac_store_relaxed_u64(&slot->base, (uint64_t)(uintptr_t)base);
        __atomic_store_n(&slot->cut, cut, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->cut_at, cut_at, __ATOMIC_RELAXED);
        ac_store_release_u64(&slot->length, length);
    }
    pthread_mutex_unlock(&slots_lock);
    return index;
}

void ac_sigbus_forget(int index) {
    if (index < 0) return;
    pthread_mutex_lock(&slots_lock);
    slot_t *slot = slot_at(index);
    ac_store_release_u64(&slot->length, 0);
    slot->next_free = free_head;
    free_head = index;
    pthread_mutex_unlock(&slots_lock);
}
