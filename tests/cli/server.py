"""Forks a process for each command: a real process, with all modules imported already."""

import os
import sys
import traceback

import msgspec

from aiochronicle.cli import main
from aiochronicle.cli.application import app, command_names


class Request(msgspec.Struct):
    arguments: list[bytes]
    files: tuple[str, str, str]
    cwd: str | None
    variables: dict[str, str]


def serve(request: Request) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 99
    try:
        if request.cwd is not None:
            os.chdir(request.cwd)
        os.environ.update(request.variables)
        for number, file in enumerate(request.files):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
            os.dup2(os.open(file, flags, 0o600), number)
        status = main([os.fsdecode(argument) for argument in request.arguments])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  it is in the file
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    for name in command_names():
        app[name]
    for line in sys.stdin.buffer:
        print(serve(msgspec.json.decode(line, type=Request)), flush=True)
