"""``aioc monitor`` in a separate process, and requests to it."""

import http.client
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from cli.running import environment

__all__ = ["Answer", "ask", "monitor", "stream"]


@contextmanager
def monitor(root: Path, *options: str, **variables: str) -> Iterator[str]:
    """Run the monitor on a free port; yield its URL."""
    command = [sys.executable, "-m", "aiochronicle", "monitor", str(root), "--listen"]
    listen = "127.0.0.1:0" if "--listen" not in options else ""
    arguments = [*command, listen, *options] if listen else [*command[:-1], *options]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env=environment(**variables)
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("http://"), line
            yield line.split()[0]
        finally:
            process.terminate()
            assert process.wait(30) == 143


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    text: str


def ask(url: str, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send a request and return the whole answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    found = {name.lower(): value for name, value in answer.getheaders()}
    text = answer.read().decode()
    connection.close()
    return Answer(answer.status, found, text)


def stream(url: str, path: str = "/events") -> Generator[tuple[str, bytes], None, None]:
    """Yield the name and data of the stream's events."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200
    name = ""
    try:
        while line := answer.readline():
            key, _, value = line.rstrip(b"\r\n").partition(b": ")
            if key == b"event":
                name = value.decode()
            elif key == b"data":
                yield name, value
    finally:
        connection.close()
