/* A hostile peer on the sockets of the wake-up: it sends to a reader's process in the place of a writer,
 * and to a writer's process in the place of a reader.
 *
 * The input is a program: which peer, what to send, and which and how many descriptors with it. No
 * descriptor may leak, and the honest reader and writer keep working. */
#include "fuzz.h"

#include "os.h"
#include "wake_connection.h"

#include <dirent.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { PEERS = 4, STEPS_MAX = 32, PACKET_MAX = 160, FDS_MAX = 20, BARRIERS = 10 };
/* The input attacks the victim's queue. The probe has another queue, with an honest writer. */
static ac_directory_t directory, probe_directory;
static ac_wake_endpoint_t victim = {.name = "victim"}, probe = {.name = "probe"};
static int wake_fd = -1, probe_fd = -1;

static int connect_to(int dir_fd, const char *name) {
    int fd = ac_os_socket_connect(dir_fd, name);
    FUZZ_CHECK(fd >= 0);
    return fd;
}

static ac_hello_t hello_to(const ac_directory_t *to, const char *name) {
    ac_hello_t hello = {.magic = AC_HELLO_MAGIC,
                        .version = AC_HELLO_VERSION,
                        .device = (uint64_t)to->device,
                        .inode = (uint64_t)to->inode};
    strcpy(hello.name, name);
    return hello;
}

/* Returns the directory in which the reader was announced. */
static int announce(ac_wake_endpoint_t *endpoint, ac_directory_t *queue, const char *name) {
    char path[400], wake[40];
    int error;
    ac_error_t err;
    fuzz_make_directory(name);
    snprintf(wake, sizeof wake, "%.20s/" AC_WAKE_DIRECTORY, name);
    fuzz_make_directory(wake);
    snprintf(path, sizeof path, "%s/%s", fuzz_queue, name);
    FUZZ_CHECK(ac_directory_init(queue, path, 0600, 0, &err) == AC_OK);
    FUZZ_CHECK((endpoint->eventfd = ac_eventfd_new(&error)));
    FUZZ_CHECK(ac_wake_announce(endpoint, queue, &err) == AC_OK);
    snprintf(path, sizeof path, "%s/%s/" AC_WAKE_DIRECTORY, fuzz_queue, name);
    int fd = ac_os_open_dir(path);
    FUZZ_CHECK(fd >= 0);
    return fd;
}

static void set_up(void) {
    fuzz_clear();
    wake_fd = announce(&victim, &directory, "queue");
    int dir_fd = announce(&probe, &probe_directory, "probe");
    ac_hello_t hello = hello_to(&probe_directory, "probe");
    probe_fd = connect_to(dir_fd, "probe.efd");
    close(dir_fd);
    FUZZ_CHECK(ac_os_send(probe_fd, &hello, sizeof hello, -1) == 0);
    struct pollfd answer = {.fd = probe_fd, .events = POLLIN};
    int eventfd;
    uint8_t yes;
    FUZZ_CHECK(poll(&answer, 1, 10000) == 1);
    FUZZ_CHECK(ac_os_receive(probe_fd, &yes, sizeof yes, &eventfd) == 1 &&
               ac_os_is_eventfd(eventfd));
    close(eventfd);
    /* Descriptors that the first writer of a process keeps open are not a leak. */
    static ac_wake_targets_t first;
    ac_error_t err;
    FUZZ_CHECK(ac_wake_targets_open(&first, &directory, &err) == AC_OK);
    ac_wake_targets_close(&first);
}

/* Waits until everything sent before was handled: a packet of an honest writer, which signals an eventfd, comes after
 * the others. It does so several times, because each step causes the next: a connection is accepted, a hello answered,
 * the answer followed by a bit. */
static void let_wake_thread_work(void) {
    for (int i = 0; i < BARRIERS; i++) {
        uint32_t bit = 3;
        FUZZ_CHECK(ac_os_send(probe_fd, &bit, sizeof bit, -1) == 0);
        while (ac_os_eventfd_wait(probe.eventfd->fd, UINT64_MAX) == 0)
            ; /* libFuzzer's timer interrupts it, and ends what takes too long */
    }
    FUZZ_CHECK(probe.bit == 3);
}

static int count_fds(void) {
    int count = 0;
    DIR *listing = opendir("/proc/self/fd");
    FUZZ_CHECK(listing);
    while (readdir(listing))
        count++;
    closedir(listing);
    return count;
}

/* Files that can be passed as a reader's eventfd. */
static int make_fd(unsigned kind) {
    int ends[2];
    switch (kind % 5) {
    case 0:
        return eventfd(0, EFD_CLOEXEC); /* which would block */
    case 1: {
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        uint64_t full = UINT64_MAX - 1;
        FUZZ_CHECK(write(fd, &full, sizeof full) == sizeof full);
        return fd;
    }
    case 2:
        FUZZ_CHECK(pipe(ends) == 0);
        close(ends[0]);
        return ends[1]; /* a write gives SIGPIPE */
    case 3:
        return open("/dev/null", O_WRONLY | O_CLOEXEC);
    default:
        return open(fuzz_queue, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
}

static void send_packet(int peer, const void *packet, size_t length, unsigned kind, unsigned fds) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control = {0};
    int passed[FDS_MAX];
    struct iovec vector = {.iov_base = (void *)(uintptr_t)packet, .iov_len = length};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (fds > 0) {
        for (unsigned i = 0; i < fds; i++)
            FUZZ_CHECK((passed[i] = make_fd(kind + i)) >= 0);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fds * sizeof(int));
        memcpy(CMSG_DATA(header), passed, fds * sizeof(int));
    }
    sendmsg(peer, &message, MSG_NOSIGNAL | MSG_DONTWAIT); /* the other side may have hung up */
    for (unsigned i = 0; i < fds; i++)
        close(passed[i]);
}

typedef struct stage {
    int peers[PEERS]; /* -1 = not there */
    int listener;     /* of a hostile reader */
    ac_wake_targets_t targets;
    ac_control_t control;
} stage_t;

/* A writer meets a reader whose socket is ours. */
static void meet_writer(stage_t *stage) {
    ac_error_t err;
    memset(&stage->targets, 0, sizeof stage->targets);
    FUZZ_CHECK((stage->listener = ac_os_socket_listen(wake_fd, "enemy.efd")) >= 0);
    FUZZ_CHECK(ac_wake_targets_open(&stage->targets, &directory, &err) == AC_OK);
    FUZZ_CHECK((stage->peers[0] = ac_os_socket_accept(stage->listener)) >= 0);
}

static void step(stage_t *stage, fuzz_bytes_t *bytes) {
    uint8_t packet[PACKET_MAX];
    unsigned action = (unsigned)fuzz_take(bytes, 1), detail = (unsigned)fuzz_take(bytes, 1);
    int *peer = &stage->peers[action / 8 % PEERS];
    switch (action % 8) {
    case 0: /* connect */
        if (*peer < 0) *peer = connect_to(wake_fd, "victim.efd");
        break;
    case 1: /* hang up */
        if (*peer >= 0) close(*peer);
        *peer = -1;
        break;
    case 2: { /* a nearly valid hello: one byte is changed */
        ac_hello_t hello = hello_to(&directory, detail & 1 ? "victim" : "nobody");
        ((uint8_t *)&hello)[fuzz_take(bytes, 1) % sizeof hello] ^= (uint8_t)fuzz_take(bytes, 1);
        if (*peer >= 0) send_packet(*peer, &hello, sizeof hello, detail, detail / 8 % FDS_MAX);
        break;
    }
    case 3: { /* a bit, or more than one */
        uint64_t bit = fuzz_take(bytes, 1);
        if (*peer >= 0) send_packet(*peer, &bit, detail & 1 ? 4 : detail % 9, detail, 0);
        break;
    }
    case 4: { /* a reader's answer */
        uint8_t yes = 1;
        if (*peer >= 0) send_packet(*peer, &yes, detail & 1, detail / 2, detail / 16);
        break;
    }
    case 5: { /* anything */
        size_t length = detail % PACKET_MAX < bytes->left ? detail % PACKET_MAX : bytes->left;
        memcpy(packet, bytes->at, length);
        bytes->at += length;
        bytes->left -= length;
        if (*peer >= 0) send_packet(*peer, packet, length, action, detail / 64);
        break;
    }
    case 6:
        if (stage->listener >= 0)
            ac_wake_targets_signal(&stage->targets, &stage->control, UINT64_MAX, detail);
        break;
    default:
        let_wake_thread_work();
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stage_t stage = {.peers = {-1, -1, -1, -1}, .listener = -1};
    fuzz_bytes_t bytes = {data, size};
    if (wake_fd < 0) set_up();
    let_wake_thread_work();
    int fds = count_fds();
    if (fuzz_take(&bytes, 1) & 1) meet_writer(&stage);
    for (int steps = 0; bytes.left > 0 && steps < STEPS_MAX; steps++)
        step(&stage, &bytes);
    let_wake_thread_work();
    FUZZ_CHECK(victim.bit < AC_BIT_FIRST_MEMBER + AC_MEMBER_BITS || victim.bit == AC_NO_BIT);
    for (int i = 0; i < PEERS; i++)
        if (stage.peers[i] >= 0) close(stage.peers[i]);
    if (stage.listener >= 0) {
        ac_wake_targets_signal(&stage.targets, &stage.control, UINT64_MAX, 1);
        ac_wake_targets_close(&stage.targets);
        ac_os_close(stage.listener);
        ac_os_unlink(wake_fd, "enemy.efd");
    }
    let_wake_thread_work();
    FUZZ_CHECK(victim.bit == AC_NO_BIT);
    FUZZ_CHECK(count_fds() == fds);
    return 0;
}
