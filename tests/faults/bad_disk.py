"""A disk that can fail: one file, handed to the kernel through FUSE, with blocks that go bad.

``python -m faults.bad_disk BACKING MOUNTPOINT`` mounts BACKING, as a file again, on the file
MOUNTPOINT, and answers each read and write that the kernel sends. A loop device on top makes a disk
of it. Device-mapper could fail blocks, too, but not every kernel has it; FUSE is nearly everywhere.

Each line on standard input is a request. A line on standard output confirms that it took effect:

- a Plan: from now on reads and writes that touch one of its ranges fail with its errno;
- a Snapshot: a copy of the disk at one moment, as a power cut would leave it.

At the end of standard input the program unmounts the disk and removes the contents of the directory of
BACKING, so a killed test run leaves nothing behind.
"""

import ctypes
import errno
import os
import select
import shlex
import struct
import subprocess
import sys
from contextlib import suppress
from typing import NamedTuple

import msgspec

__all__ = ["Plan", "Snapshot", "serve"]


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The ranges that fail from now on: (start, end) in bytes of the disk."""

    unreadable: tuple[tuple[int, int], ...] = ()
    unwritable: tuple[tuple[int, int], ...] = ()
    read_errno: int = errno.EIO
    write_errno: int = errno.EIO


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """Copy the disk to this file. No request is answered during the copy, so it shows a single moment."""

    path: str


class Request(NamedTuple):
    """One message from the kernel."""

    opcode: int
    unique: int
    body: bytes


# What of linux/fuse.h is needed for a single file.
GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 3, 4, 14, 15, 16, 17
RELEASE, FSYNC, FLUSH, INIT, DESTROY = 18, 20, 25, 26, 38
UNANSWERED = {2, 36, 42}  # forget, interrupt, batch_forget
MAJOR, MINOR = 7, 31
MAX_WRITE = 128 << 10
FOPEN_DIRECT_IO = 1  # each read comes here, so a bad block fails at once
_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_IO = struct.Struct("<QQIIQII")
_ATTR = struct.Struct("<QII" + "QQQQQQIIIIIIIIII")
_INIT_OUT = struct.Struct("<IIIIHHIIHHII24x")
_BUFFER = MAX_WRITE + 4096


def _mount(fd: int, mountpoint: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=100600,user_id=0,group_id=0,max_read={MAX_WRITE}".encode()
    if libc.mount(b"bad_disk", os.fsencode(mountpoint), b"fuse", 0, options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), mountpoint)


def _touches(ranges: tuple[tuple[int, int], ...], offset: int, size: int) -> bool:
    return any(offset < end and start < offset + size for start, end in ranges)


class Server:
    """Answers requests of the kernel and of its owner, one at a time."""

    def __init__(self, fuse: int, path: str) -> None:
        self._fuse = fuse
        self._path = path
        self._backing = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._plan = Plan()

    def run(self) -> None:
        """Serve until the disk is unmounted."""
        sources = [self._fuse, 0]
        while True:
            ready = select.select(sources, [], [])[0]
            if 0 in ready and not self._follow():
                sources.remove(0)
                self._clean_up()
            if self._fuse in ready and not self._serve_one():
                return

    def _follow(self) -> bool:
        line = sys.stdin.buffer.readline()
        if not line:
            return False
        order = msgspec.json.decode(line, type=Plan | Snapshot)
        if isinstance(order, Plan):
            self._plan = order
        else:
            subprocess.run(["cp", "--sparse=always", self._path, order.path], check=True)
        print("holds", flush=True)
        return True

    def _clean_up(self) -> None:
        # Do not wait for this process: unmounting writes to this disk. Do not remove recursively: something
        # may be mounted.
        steps = (
            "sleep 0.2; umount -l mnt* disk; rm -f disk backing image*; rmdir mnt*; cd /; rmdir {}"
        )
        directory = os.path.dirname(self._path)  # noqa: PTH120
        command = steps.format(shlex.quote(directory))
        subprocess.Popen(["sh", "-c", command], cwd=directory, stderr=subprocess.DEVNULL)

    def _serve_one(self) -> bool:
        try:
            message = os.read(self._fuse, _BUFFER)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return False
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                return True
            raise
        opcode, unique = _IN.unpack_from(message)[1:3]
        if opcode in UNANSWERED:
            return True
        try:
            answer, code = self._answer(Request(opcode, unique, message[_IN.size :])), 0
        except OSError as error:
            answer, code = b"", -(error.errno or errno.EIO)
        with suppress(FileNotFoundError):  # the request was interrupted
            os.writev(self._fuse, [_OUT.pack(_OUT.size + len(answer), code, unique), answer])
        return bool(opcode != DESTROY)

    def _answer(self, request: Request) -> bytes:
        if request.opcode == INIT:
            return _INIT_OUT.pack(MAJOR, MINOR, 0, 1 | 1 << 5, 64, 48, MAX_WRITE, 1, 0, 0, 0, 0)
        if request.opcode in (GETATTR, SETATTR):
            return self._attributes()
        if request.opcode == OPEN:
            return struct.pack("<QII", 1, FOPEN_DIRECT_IO, 0)
        if request.opcode == READ:
            _, offset, size, *_ = _IO.unpack_from(request.body)
            if _touches(self._plan.unreadable, offset, size):
                raise OSError(self._plan.read_errno, "unreadable")
            return os.pread(self._backing, size, offset)
        if request.opcode == WRITE:
            _, offset, size, *_ = _IO.unpack_from(request.body)
            if _touches(self._plan.unwritable, offset, size):
                raise OSError(self._plan.write_errno, "unwritable")
            os.pwrite(self._backing, request.body[_IO.size : _IO.size + size], offset)
            return struct.pack("<II", size, 0)
        if request.opcode == STATFS:
            return struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 20, 1 << 20, 1, 1, 4096, 255, 4096, 0)
        if request.opcode in (RELEASE, FSYNC, FLUSH, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "not here")

    def _attributes(self) -> bytes:
        info = os.fstat(self._backing)
        size = info.st_size
        times = (0, 0, 0, 0, 0, 0)
        return _ATTR.pack(0, 0, 0, 1, size, size >> 9, *times, 0o100600, 1, 0, 0, 0, 4096, 0)


def serve(backing: str, mountpoint: str) -> None:
    """Mount and serve."""
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    server = Server(fuse, backing)
    _mount(fuse, mountpoint)
    print("mounted", flush=True)
    server.run()


if __name__ == "__main__":
    serve(*sys.argv[1:])
