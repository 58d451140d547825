/* Unix sockets, and the descriptors that travel over them. */
#include "os.h"

#include "os_call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The address of NAME in an open directory: through /proc, so that its own path may be of any length. */
static int socket_address(struct sockaddr_un *address, int dir, const char *name) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int length =
        snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/%s", dir, name);
    return length < (int)sizeof address->sun_path ? 0 : -ENAMETOOLONG;
}

static int open_socket(void) {
    int fd;
    CALL_VALUE(fd, AC_CALL_SOCKET, NULL, -1, 0, 0,
               socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    return fd;
}

/* bind gives the new file the mode of the socket, less the umask: it never has more rights, not even for a
 * moment. */
int ac_os_socket_listen(int dir, const char *name) {
    struct sockaddr_un address;
    int rc = socket_address(&address, dir, name);
    int fd = rc < 0 ? rc : open_socket();
    if (fd < 0) return fd;
    rc = ac_os_chmod(fd, 0600);
    if (rc == 0)
        CALL(rc, AC_CALL_SOCKET, name, fd, 0, 0,
             bind(fd, (struct sockaddr *)(void *)&address, sizeof address));
    if (rc == 0) CALL(rc, AC_CALL_SOCKET, name, fd, 0, 0, listen(fd, 4096));
    if (rc == 0) return fd;
    close(fd);
    return rc;
}

/* An fd of a socket's file, not for reading, if it is one of ours. */
static int find_own_socket(int dir, const char *name) {
    struct stat info;
    int fd = ac_os_open_at(dir, name, O_PATH, 0);
    int rc = fd < 0 ? fd : ac_os_stat(fd, &info);
    if (rc == 0 && (!S_ISSOCK(info.st_mode) || info.st_uid != geteuid())) rc = -EACCES;
    if (rc == 0) return fd;
    ac_os_close(fd);
    return rc;
}

/* By the file that was examined, not by its name: connect would follow a link. */
int ac_os_socket_connect(int dir, const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int file = find_own_socket(dir, name);
    int fd = file < 0 ? file : open_socket(), rc;
    if (fd < 0) {
        ac_os_close(file);
        return fd;
    }
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", file);
    CALL(rc, AC_CALL_SOCKET, name, fd, 0, 0,
         connect(fd, (struct sockaddr *)(void *)&address, sizeof address));
    close(file);
    if (rc == 0) return fd;
    close(fd);
    return rc;
}

int ac_os_socket_pair(int ends[2]) {
    int rc;
    CALL(rc, AC_CALL_SOCKET, NULL, -1, 0, 0,
         socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
    return rc;
}

int ac_os_socket_accept(int fd) {
    int accepted;
    CALL_VALUE(accepted, AC_CALL_SOCKET, NULL, fd, 0, 0,
               accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    return accepted;
}

int ac_os_socket_peer(int fd, uid_t *user) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    int rc;
    CALL(rc, AC_CALL_SOCKET, NULL, fd, 0, 0,
         getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length));
    if (rc == 0) *user = peer.uid;
    return rc;
}

enum { PASSED_FDS_MAX = 16 };

int ac_os_send(int fd, const void *packet, size_t length, int passed_fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {.iov_base = (void *)(uintptr_t)packet, .iov_len = length};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (passed_fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &passed_fd, sizeof passed_fd);
    }
    int rc;
    CALL(rc, AC_CALL_SEND, NULL, fd, 0, length, (int)sendmsg(fd, &message, MSG_NOSIGNAL));
    return rc;
}

/* Takes the first fd of the ancillary data and closes all others, however many were sent. */
static int take_fd(struct msghdr *message) {
    int taken = -1;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (taken < 0)
                taken = fd;
            else
                close(fd);
        }
    }
    return taken;
}

int ac_os_receive(int fd, void *packet, size_t length, int *passed_fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(PASSED_FDS_MAX * sizeof(int))];
    } control;
    struct iovec vector = {.iov_base = packet, .iov_len = length};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got;
    *passed_fd = -1;
    CALL_VALUE(got, AC_CALL_RECEIVE, NULL, fd, 0, length,
               recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT));
    if (got >= 0) *passed_fd = take_fd(&message);
    return (int)got;
}

int ac_os_is_eventfd(int fd) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) return 0;
    target[length] = 0;
    if (strcmp(target, "anon_inode:[eventfd]") != 0) return 0;
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}
