"""Publish staged rows and die at a given step: a journal write, an append, a flush …

For each line of standard input, a new process does so; its exit status is printed. Started by
test_publish.py.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from aiochronicle._core.writer import Writer
from aiochronicle.spark.options import write_options
from aiochronicle.spark.sink import publish, staging
from aiochronicle.spark.sink.journal import Journal
from aiochronicle.spark.sink.runs import Run
from aiochronicle.spark.sink.staging import Place


class Order(msgspec.Struct):
    root: str
    last_step: int
    runs: list[Run]
    late: str


def carry_out(order: Order) -> None:
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == order.last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def before_and_after(*args: Any, **kwargs: Any) -> Any:
            step()
            result = function(*args, **kwargs)
            step()
            return result

        return before_and_after

    for owner, name in (
        (Journal, "begin"),
        (publish, "append_rows"),
        (Writer, "flush_now"),
        (Journal, "end"),
        (Place, "sweep"),
        (staging, "discard"),
    ):
        setattr(owner, name, dying(getattr(owner, name)))
    options = write_options({"path": order.root, "segmentSize": str(1 << 22), "late": order.late})
    publish.publish(options, Place(root=order.root, writer_id="test"), 0, order.runs)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()  # the engine is not in use yet, so a fork is safe
        if child == 0:
            carry_out(msgspec.json.decode(line, type=Order))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
