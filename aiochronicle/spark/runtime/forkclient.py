"""Stands in for the Python half of a stream, which ``forkserver`` forks on its behalf.

Spark starts this program as if it were that half: it passes its environment and its standard files to the
fork, waits until the fork has ended, and ends with the same status. Without a fork server, it becomes that
half itself, as Spark intended.

Spark starts it once per stream and waits for it, so it imports next to nothing: ``socket`` alone would
double its time, and wraps only what is used here.
"""

import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, socket

__all__ = ["FAILED", "MODULE", "STARTED", "address", "is_ours"]

MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
ANSWER_S = 5.0  # Spark waits for ten
STARTED = b"+"
FAILED = 1


def address(jvm_pid: int) -> bytes:
    """Return the address at which the server for the streams of a JVM listens; it is in no file system.

    Processes that share a network need not share their pids.
    """
    pids = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    return f"\0aiochronicle-streams-{os.geteuid()}-{pids}-{jvm_pid}".encode()


def is_ours(peer: socket) -> bool:
    """Return whether the peer is of the same user; any user may listen at the address, or connect."""
    pid_uid_gid = peer.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
    return int.from_bytes(pid_uid_gid[4:8], sys.byteorder) == os.geteuid()


def _ask_for_fork() -> int | None:
    """Return the exit status of the fork after it has ended; None if there was no fork."""
    try:
        server = socket(AF_UNIX, SOCK_STREAM)
        server.settimeout(ANSWER_S)
        server.connect(address(os.getppid()))
        if not is_ours(server):
            return None
        standard_files = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
        variables = b"\0".join(name + b"=" + value for name, value in os.environb.items())
        size = len(variables).to_bytes(4, sys.byteorder)
        server.sendmsg([size], [(SOL_SOCKET, SCM_RIGHTS, standard_files)])
        server.sendall(variables)
        if server.recv(1) != STARTED:
            return None
    except OSError:
        return None
    server.settimeout(None)
    return (server.recv(1) or bytes([FAILED]))[0]


if __name__ == "__main__":
    status = _ask_for_fork()
    if status is not None:
        sys.exit(status)
    os.execv(sys.executable, [sys.executable, "-m", MODULE])
