"""Forks the Python halves of streams from a process with their imports already done.

Spark starts an interpreter for every stream, which spends a third of a second importing; Spark gives up
after ten seconds. On a single machine it starts ``forkclient`` instead, which asks here for a fork.

Spark's first daemon starts the server; it ends with Spark's JVM, by whose pid it is found.
"""

import contextlib
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import NoReturn

from aiochronicle.spark.runtime.forkclient import FAILED, MODULE, STARTED, address, is_ours

__all__ = ["start"]

REQUEST_S = 5.0
WAITING_MAX = 32
REQUEST_BYTES_MAX = 16 << 20  # more than any kernel passes to a program


def start() -> None:
    """Start the fork server for the Spark that started this process, unless there is one."""
    jvm_pid = os.getppid()
    with contextlib.ExitStack() as opened:
        try:
            jvm = os.pidfd_open(jvm_pid)
            opened.callback(os.close, jvm)
            listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            if _is_closed(0):  # that was not the JVM, which has ended
                return
            listener.bind(address(jvm_pid))
            if os.fork() > 0:
                return
        except OSError:  # another daemon was first; otherwise streams start as they do elsewhere
            return
        try:
            _serve(listener, jvm)
        finally:
            os._exit(FAILED)  # in any case, this process must not become a second daemon


def _is_closed(pipe: int) -> bool:
    """Return whether no process is left that could write to this pipe."""
    poller = select.poll()
    poller.register(pipe, select.POLLHUP)
    return bool(poller.poll(0))


def _serve(listener: socket.socket, jvm: int) -> None:
    os.setpgid(0, 0)  # a daemon ends its group
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard_file in (0, 1, 2):
        os.dup2(nothing, standard_file)
    importlib.import_module(MODULE)
    del sys.modules[MODULE]  # a half runs it as its program
    gc.collect()
    gc.freeze()
    listener.listen()
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    poller.register(jvm, select.POLLIN)
    waiting = _Waiting(poller)
    while jvm not in (ready := dict(poller.poll(waiting.left_ms()))):
        for client in waiting.take(ready):
            with client, contextlib.suppress(OSError):  # the client gets no answer
                if os.fork() == 0:
                    listener.close()
                    os.close(jvm)
                    waiting.close()
                    _be_a_half(client)
        if listener.fileno() in ready:
            client, _ = listener.accept()
            if is_ours(client):
                waiting.add(client)
            else:
                client.close()  # of another user: reads nothing, and does not fork
        waiting.drop_late()


class _Waiting:
    """Clients that have sent nothing yet: a few, for some seconds, at no cost of a process."""

    def __init__(self, poller: "select.poll") -> None:
        self._poller = poller
        self._clients: dict[int, tuple[socket.socket, float]] = {}  # oldest first

    def add(self, client: socket.socket) -> None:
        """Add a client; if there are too many, the oldest is dropped."""
        if len(self._clients) == WAITING_MAX:
            self._remove(next(iter(self._clients))).close()
        self._clients[client.fileno()] = (client, time.monotonic() + REQUEST_S)
        self._poller.register(client, select.POLLIN)

    def take(self, ready: Mapping[int, int]) -> list[socket.socket]:
        """Return the clients that have sent something, and drop those that are gone."""
        taken: list[socket.socket] = []
        for number in [number for number in ready if number in self._clients]:
            client = self._remove(number)
            if ready[number] & select.POLLHUP:
                client.close()
            else:
                taken.append(client)
        return taken

    def drop_late(self) -> None:
        """Close the clients whose time is up."""
        now_s = time.monotonic()
        for number in [n for n, (_, end_s) in self._clients.items() if end_s <= now_s]:
            self._remove(number).close()

    def left_ms(self) -> float | None:
        """Return how long the first of them may still wait; None if there are none."""
        ends_s = [end_s for _, end_s in self._clients.values()]
        return max(0.0, min(ends_s) - time.monotonic()) * 1000 if ends_s else None

    def close(self) -> None:
        """Forget them in a fork: they stay connected to the server."""
        for number in list(self._clients):
            self._remove(number).close()

    def _remove(self, number: int) -> socket.socket:
        self._poller.unregister(number)
        return self._clients.pop(number)[0]


def _be_a_half(client: socket.socket) -> NoReturn:
    status = FAILED
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if _take_over(client):
            status = _run()
            sys.stdout.flush()
            sys.stderr.flush()
        client.send(bytes([status]))
    except BaseException:  # noqa: BLE001 - as an interpreter would
        if not _is_gone(client):
            traceback.print_exc()
    finally:
        os._exit(status)  # this process must not become a second server


def _is_gone(client: socket.socket) -> bool:
    """Return whether Spark has ended the client, and so the stream."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _take_over(client: socket.socket) -> bool:
    """Receive the client's arguments and answer it; False if this process does not suit it."""
    client.settimeout(REQUEST_S)
    size, standard_files, _, _ = socket.recv_fds(client, 4, 3)
    variables_bytes = int.from_bytes(size, sys.byteorder)
    if len(standard_files) != 3 or variables_bytes > REQUEST_BYTES_MAX:
        return False
    with client.makefile("rb") as stream:
        variables = stream.read(variables_bytes).split(b"\0")
    environment = dict(variable.split(b"=", 1) for variable in variables)
    if _for_the_interpreter(environment) != _for_the_interpreter(os.environb):
        return False
    for standard_file, given in enumerate(standard_files):
        os.dup2(given, standard_file)
        os.close(given)
    os.environb.clear()
    os.environb.update(environment)
    client.sendall(STARTED)
    return True


def _for_the_interpreter(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the variables whose change it would no longer notice; Spark's own begin with PYTHON_."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(b"PYTHON") and not name.startswith(b"PYTHON_")
    }


def _run() -> int:
    """Run what the interpreter would run, and return its exit status."""
    try:
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code & 0xFF if isinstance(end.code, int) else FAILED
    except (BrokenPipeError, ConnectionResetError):  # Spark has stopped the stream
        return FAILED
    return 0
