"""Groups: a member beside a plain reader, two processes beside one, wake-ups, and Redis streams.

    python -m benchmarks.groups

Ratios within one run: each round measures all contestants one after the other. Targets: one member within
2.5x of ``async for``; two processes at least 1.6x of one with handlers of 20 us; a message wakes one of
the members that sleep; at least 20x Redis (XREADGROUP and XACK, 100 at a time, pipelined, over a unix
socket).
"""

import asyncio
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import aiochronicle

MESSAGES = 100_000
PAYLOAD = bytes(100)
HANDLER_S = 20e-6
ROUNDS = 5
BATCH = 100
SLEEPERS = 8
WAKES, WAKE_EVERY_S = 200, 0.005


def fill(queue: Path, count: int = MESSAGES) -> None:
    with aiochronicle.open_writer(queue) as writer:
        for _ in range(count):
            writer.append(PAYLOAD)


async def read_plainly(queue: Path) -> float:
    """Return the messages per second of ``async for message in reader``."""
    async with aiochronicle.aopen_reader(queue) as reader:
        count, started = 0, time.perf_counter()
        async for _ in reader:
            count += 1
            if count == MESSAGES:
                break
        return count / (time.perf_counter() - started)


async def work_alone(queue: Path, group_name: str) -> float:
    """Return the messages per second of one member that acknowledges each message."""
    async with aiochronicle.aopen_group(queue, group_name) as group:
        count, started = 0, time.perf_counter()
        async for delivery in group:
            delivery.ack()
            count += 1
            if count == MESSAGES:
                break
        return count / (time.perf_counter() - started)


WORKER = f"""
import asyncio, sys, time
import aiochronicle

async def main():
    async with aiochronicle.aopen_group(sys.argv[1], sys.argv[2]) as group:
        print("ready", flush=True)
        sys.stdin.readline()
        async for delivery in group:
            until = time.perf_counter() + {HANDLER_S!r}
            while time.perf_counter() < until:
                pass
            delivery.ack()

asyncio.run(main())
"""


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def work_in_processes(
    queue: Path, group_name: str, processes: int, count: int
) -> tuple[float, float]:
    """Return the messages per second of this many processes with handlers that take 20 us; and per CPU
    second.

    The second is what the first would be, per process, if each had a CPU to itself: on a loaded machine
    two processes get no more of it than one.
    """
    command = [sys.executable, "-c", WORKER, str(queue), group_name]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        used = sum(cpu_s(worker.pid) for worker in workers)
        started = time.perf_counter()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        while aiochronicle.inspect_group(queue, group_name).low_seq < count:
            time.sleep(0.005)
        elapsed = time.perf_counter() - started
        used = sum(cpu_s(worker.pid) for worker in workers) - used
        return count / elapsed, count / used
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def wake_sleepers(queue: Path, group_name: str, processes: int) -> tuple[float, float]:
    """Return the writer's wake-ups per message while this many members sleep, and their CPU microseconds."""
    command = [sys.executable, "-c", WORKER, str(queue), group_name]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    try:
        for worker in workers:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdout.readline()
            worker.stdin.write("go\n")
            worker.stdin.flush()
        with aiochronicle.open_writer(queue) as writer:
            time.sleep(1)  # all of them sleep, and are connected
            used = sum(cpu_s(worker.pid) for worker in workers)
            before = writer.statistics().wakeups
            for _ in range(WAKES):
                writer.append(PAYLOAD)
                time.sleep(WAKE_EVERY_S)
            wakes = writer.statistics().wakeups - before
            used = sum(cpu_s(worker.pid) for worker in workers) - used
        return wakes / WAKES, used / WAKES * 1e6
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


@contextmanager
def redis(directory: Path) -> Iterator[socket.socket]:
    """A connection to our own Redis server without persistence, its fastest mode."""
    path = directory / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(
        ["redis-server", *options, "--dir", str(directory)], stdout=subprocess.DEVNULL
    )
    try:
        connection = socket.socket(socket.AF_UNIX)
        for _ in range(500):
            try:
                connection.connect(str(path))
                break
            except OSError:
                time.sleep(0.01)
        with connection:
            yield connection
    finally:
        server.kill()
        server.wait()


def command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


class Replies:
    """Parse an answer of Redis, without a client library."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb", buffering=1 << 20)

    def next(self) -> object:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self._file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.next() for _ in range(max(int(rest), 0))]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        return rest


def work_with_redis(connection: socket.socket, count: int) -> float:
    """Return the messages per second of one consumer: read 100, acknowledge them while the next are read."""
    replies = Replies(connection)
    connection.sendall(command(b"DEL", b"s"))
    replies.next()
    for start in range(0, count, 1000):
        connection.sendall(command(b"XADD", b"s", b"*", b"p", PAYLOAD) * min(1000, count - start))
        for _ in range(min(1000, count - start)):
            replies.next()
    connection.sendall(command(b"XGROUP", b"CREATE", b"s", b"g", b"0"))
    replies.next()
    read = command(
        b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"%d" % BATCH, b"STREAMS", b"s", b">"
    )
    done, started = 0, time.perf_counter()
    connection.sendall(read)
    while done < count:
        answer = replies.next()
        entries = answer[0][1]  # type: ignore[index]
        ids = [entry[0] for entry in entries]
        done += len(ids)
        more = read if done < count else b""
        connection.sendall(command(b"XACK", b"s", b"g", *ids) + more)
        replies.next()
    return count / (time.perf_counter() - started)


def report(name: str, ratios: list[float], target: str) -> None:
    if not ratios:
        print(f"{name}: skipped, redis-server is not installed")
        return
    print(
        f"{name}: median {statistics.median(ratios):.2f}x,"
        f" range {min(ratios):.2f}-{max(ratios):.2f}x, n = {len(ratios)} (target {target})"
    )


def main() -> None:
    root = Path(tempfile.mkdtemp(prefix="groups-"))
    slower, more, by_cpu, faster, herd = [], [], [], [], []
    try:
        queue = root / "queue"
        fill(queue)
        with redis(root) if shutil.which("redis-server") else nullcontext() as connection:
            for turn in range(ROUNDS):
                plain = asyncio.run(read_plainly(queue))
                alone = asyncio.run(work_alone(queue, f"alone{turn}"))
                streams = work_with_redis(connection, MESSAGES // 5) if connection else 0.0
                part = root / f"part{turn}"
                fill(part, 30_000)
                one, one_cpu = work_in_processes(part, "one", 1, 30_000)
                two, two_cpu = work_in_processes(part, "two", 2, 30_000)
                print(
                    f"messages/s: async for {plain:,.0f}, one member {alone:,.0f}, Redis {streams:,.0f};"
                    f" 20 us handlers: one process {one:,.0f}, two {two:,.0f}",
                    flush=True,
                )
                slower.append(plain / alone)
                more.append(two / one)
                by_cpu.append(2 * two_cpu / one_cpu)
                if streams:
                    faster.append(alone / streams)
                shutil.rmtree(part)
                fill(part, 1)
                one_wake, one_us = wake_sleepers(part, "sleeper", 1)
                wakes, herd_us = wake_sleepers(part, "sleepers", SLEEPERS)
                print(
                    f"wake-ups per message: one member asleep {one_wake:.2f}, {SLEEPERS} asleep {wakes:.2f};"
                    f" CPU of the members {one_us:,.0f} and {herd_us:,.0f} us",
                    flush=True,
                )
                herd.append(wakes)
                shutil.rmtree(part)
    finally:
        shutil.rmtree(root)
    report("async for, as fast as one member", slower, "at most 2.5x")
    report("two processes, as fast as one", more, "at least 1.6x")
    report("two processes, as fast as one, by the CPU time they took", by_cpu, "for information")
    report(f"wake-ups per message with {SLEEPERS} members asleep", herd, "1")
    report("one member, as fast as Redis streams", faster, "at least 20x")


if __name__ == "__main__":
    main()
