"""The fork server that starts the Python halves of streams."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import eventually
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from aiochronicle.spark.runtime import forkclient

SERVER = "from aiochronicle.spark.runtime import forkserver; forkserver.start()"

# A server that reports every fork, its own first.
COUNTED = """
import os
fork = os.fork
def counted():
    os.write({said}, b"f")
    return fork()
os.fork = counted
from aiochronicle.spark.runtime import forkserver
forkserver.start()
"""


def server_pid(jvm_pid: int) -> int | None:
    """Return the pid of the server for a JVM's streams, or None."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(forkclient.address(jvm_pid))
        except ConnectionRefusedError:
            return None
        pid_uid_gid = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("iII", pid_uid_gid)[0])


@pytest.fixture
def jvm(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket to which stream halves report as they do to Spark; this process stands in for the JVM."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "jvm"))
        listener.listen()
        listener.settimeout(30)
        yield listener


@pytest.fixture
def server(jvm: socket.socket) -> Iterator[int]:
    subprocess.run([sys.executable, "-c", SERVER], check=True)
    eventually(lambda: server_pid(os.getpid()) is not None)
    pid = server_pid(os.getpid())
    assert pid is not None
    yield pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: server_pid(os.getpid()) is None)


def test_there_is_no_server_for_a_jvm_that_has_ended_meanwhile() -> None:
    """The JVM's end of the pipe is then closed, and the server's new parent may live forever."""
    subprocess.run([sys.executable, "-c", SERVER], check=True, input=b"")
    assert server_pid(os.getpid()) is None


def start_client(jvm: socket.socket, **variables: str) -> "subprocess.Popen[str]":
    """Start the half of a stream the way the script in place of the interpreter does."""
    path = jvm.getsockname()
    return subprocess.Popen(
        [sys.executable, "-I", "-S", forkclient.__file__],
        env={**os.environ, "PYTHON_WORKER_FACTORY_SOCK_PATH": path, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ask(client: socket.socket, jvm: socket.socket, errors: int) -> None:
    """Ask the server for a stream half as a client does."""
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SOCK_PATH": jvm.getsockname()}
    variables = "\0".join(f"{name}={value}" for name, value in environment.items()).encode()
    with Path(os.devnull).open("r+b") as nothing:
        files = [nothing.fileno(), nothing.fileno(), errors]
        socket.send_fds(client, [len(variables).to_bytes(4, sys.byteorder)], files)
    client.sendall(variables)


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Switch to another user's effective id for the duration of the block."""
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def reporting_pid(jvm: socket.socket) -> tuple[int, socket.socket]:
    """Wait for a half to report; return its pid and the connection."""
    half, _ = jvm.accept()
    return int.from_bytes(half.recv(4), "big"), half


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(status.rpartition(")")[2].split()[1])


def test_a_half_is_forked_and_ends_with_its_spark_in_silence(
    jvm: socket.socket, server: int
) -> None:
    with start_client(jvm) as client:
        pid, half = reporting_pid(jvm)
        assert parent_of(pid) == server
        half.close()
        assert client.communicate(timeout=30) == ("", "")
        assert client.returncode == forkclient.FAILED
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_half_that_fails_ends_with_its_status(jvm: socket.socket, server: int) -> None:
    with start_client(jvm) as client:
        pid, half = reporting_pid(jvm)
        assert parent_of(pid) == server
        half.sendall(struct.pack(">i3s", 3, b"0.0"))  # a Python version that does not match
        client.communicate(timeout=30)
        assert b"PYTHON_VERSION_MISMATCH" in half.recv(100_000)
        half.close()
    assert client.returncode == 255


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("begun", [False, True])
def test_a_half_whose_client_was_ended_says_nothing(jvm: socket.socket, begun: bool) -> None:
    said, errors = os.pipe()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(forkclient.address(os.getpid()))
        ask(client, jvm, errors)
        if begun:
            assert client.recv(1) == forkclient.STARTED
    os.close(errors)
    if begun:
        _, half = reporting_pid(jvm)
        half.sendall(struct.pack(">i3s", 3, b"0.0"))  # a mismatch, so that it fails
        half.close()
    with os.fdopen(said, "rb") as stream:
        assert stream.read() == b""


def test_what_a_half_says_comes_out_where_it_was_started(jvm: socket.socket, server: int) -> None:
    with start_client(jvm, PYTHON_WORKER_FACTORY_SOCK_PATH="/nowhere") as client:
        _, said = client.communicate(timeout=30)
    assert "CANNOT_OPEN_SOCKET" in said
    assert client.returncode == forkclient.FAILED


@pytest.mark.usefixtures("server")
def test_a_half_with_another_path_is_an_interpreter_of_its_own(
    jvm: socket.socket, tmp_path: Path
) -> None:
    with start_client(jvm, PYTHONPATH=str(tmp_path)) as client:
        pid, half = reporting_pid(jvm)
        half.close()
        client.communicate(timeout=30)
    assert pid == client.pid


def test_without_a_server_a_half_is_an_interpreter_of_its_own(jvm: socket.socket) -> None:
    with start_client(jvm) as client:
        pid, half = reporting_pid(jvm)
        half.close()
        client.communicate(timeout=30)
    assert pid == client.pid


def test_a_client_that_says_nothing_keeps_nobody_waiting(jvm: socket.socket, server: int) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(forkclient.address(os.getpid()))
        with start_client(jvm) as client:
            pid, half = reporting_pid(jvm)
            assert parent_of(pid) == server
            half.close()
            client.communicate(timeout=30)


def test_there_is_one_server_and_it_ends_with_the_jvm() -> None:
    code = (
        "import subprocess, sys\n"
        f"for _ in range(2): subprocess.run([sys.executable, '-c', {SERVER!r}], check=True)\n"
        "print('started', flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as jvm:
        assert jvm.stdout is not None
        assert jvm.stdout.readline() == "started\n"
        eventually(lambda: server_pid(jvm.pid) is not None)
        jvm.kill()
    eventually(lambda: server_pid(jvm.pid) is None)


@pytest.fixture
def forks(jvm: socket.socket) -> Iterator[int]:
    """Start a counting server; yield the descriptor on which it reports each fork."""
    reading, said = os.pipe()
    subprocess.run([sys.executable, "-c", COUNTED.format(said=said)], check=True, pass_fds=[said])
    os.close(said)
    eventually(lambda: server_pid(os.getpid()) is not None)
    pid = server_pid(os.getpid())
    assert pid is not None
    assert os.read(reading, 1) == b"f"
    os.set_blocking(reading, False)
    yield reading
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: server_pid(os.getpid()) is None)
    os.close(reading)


def count_forks(reading: int) -> int:
    try:
        return len(os.read(reading, 10_000))
    except BlockingIOError:
        return 0


def is_refused(client: socket.socket) -> bool:
    """Wait for the end of a connection; return whether it ended without any data."""
    client.settimeout(30)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_nobody_is_forked_for_others(jvm: socket.socket, forks: int) -> None:
    server = forkclient.address(os.getpid())
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as client:
            with another_user():
                client.connect(server)
            with contextlib.suppress(BrokenPipeError):
                ask(client, jvm, 2)
            assert is_refused(client)
    assert count_forks(forks) == 0


def test_clients_that_say_nothing_cost_no_process_and_are_few(
    jvm: socket.socket, forks: int
) -> None:
    with contextlib.ExitStack() as connected:
        silent = [connected.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(100)]
        for client in silent:
            client.connect(forkclient.address(os.getpid()))
        with start_client(jvm) as honest:
            pid, half = reporting_pid(jvm)
            half.close()
            honest.communicate(timeout=30)
        assert pid != honest.pid
        assert count_forks(forks) == 1
        assert is_refused(silent[0])  # the oldest clients are dropped


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.usefixtures("server")
def test_others_are_not_served(jvm: socket.socket) -> None:
    address = forkclient.address(os.getpid())
    with socket.socket(socket.AF_UNIX) as client:
        with another_user():
            client.connect(address)
        with contextlib.suppress(BrokenPipeError):  # the server may have closed it already
            ask(client, jvm, 2)
        assert is_refused(client)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_others_are_told_nothing(jvm: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(forkclient.address(os.getpid()))
        with another_user():
            impostor.listen()
        with start_client(jvm) as client:
            pid, half = reporting_pid(jvm)
            half.close()
            client.communicate(timeout=30)
        assert pid == client.pid
        asked, _ = impostor.accept()
        with asked:
            assert asked.recv(1) == b""


def test_sparks_streams_are_forked(spark: SparkSession, tmp_path: Path) -> None:
    class TellingReader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {}

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
            return {"pid": os.getpid(), "parent": os.getppid()}

        def partitions(self, start: object, end: object) -> list[InputPartition]:
            return []

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield from ()

    class Telling(DataSource):
        """A stream whose offsets contain its pid."""

        @classmethod
        def name(cls) -> str:
            return "telling"

        def schema(self) -> str:
            return "nothing int"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return TellingReader()

    spark.dataSource.register(Telling)
    checkpoint = tmp_path / "checkpoint"
    stream = spark.readStream.format("telling").load().writeStream.format("noop")
    query = stream.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    told = json.loads((checkpoint / "offsets" / "0").read_text(encoding="utf-8").splitlines()[-1])
    jvm: Any = spark._jvm
    assert told["parent"] == server_pid(jvm.java.lang.ProcessHandle.current().pid())
    eventually(lambda: not Path(f"/proc/{told['pid']}").exists())
