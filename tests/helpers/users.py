"""Run functions as other users, which needs root."""

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest

SHARED = 2000


WRITER, READER, COLLEAGUE, STRANGER = 1001, 1002, 1003, 1004


GROUPS = {
    WRITER: (SHARED, []),
    READER: (3002, [SHARED]),
    COLLEAGUE: (SHARED, []),
    STRANGER: (3004, []),
}


def become(user: int) -> None:
    primary, others = GROUPS[user]
    os.setgroups(others)
    os.setgid(primary)
    os.setuid(user)


def run_as(user: int, work: Callable[[], Any]) -> Any:
    """Run the function in a process of this user; return its result, converted to JSON and back."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become(user)
            answer = {"result": work()}
        except BaseException:  # noqa: BLE001  it is told to the parent
            answer = {"failed": traceback.format_exc()}
        os.write(sending, json.dumps(answer).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as stream:
        answer = json.loads(stream.read())
    os.waitpid(child, 0)
    if "failed" in answer:
        pytest.fail(answer["failed"])
    return answer["result"]
