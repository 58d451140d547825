"""How much sooner are a hundred queues durable when a bus flushes them together?

Each has a few new messages. The other side flushes one queue after another, each with its own sync. Both,
and also the variant without io_uring, take turns on the same queues; real time, because the disk dominates,
and the best round of each.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOSYS
from pathlib import Path

from aiochronicle import Bus
from aiochronicle._engine import ffi, lib
from benchmarks.measure import PAYLOAD, Result

QUEUES = 100
QUEUES_QUICK = 10
MESSAGES = 10
ROUNDS = 40
ROUNDS_QUICK = 2


@contextmanager
def without_io_uring() -> Iterator[None]:
    """Let the engine find that the kernel has no io_uring."""
    injection = ffi.new("ac_injection_t *")
    names = [ffi.string(lib.ac_os_call_name(call)) for call in range(lib.ac_os_call_count())]
    injection.call, injection.answer = names.index(b"ring"), ENOSYS
    injection.first, injection.times = 1, 2**63
    lib.ac_os_set_hook(ffi.addressof(lib, "ac_os_inject"), injection)
    try:
        yield
    finally:
        lib.ac_os_set_hook(ffi.NULL, ffi.NULL)


def run(directory: Path, quick: bool) -> list[Result]:
    topics = [f"topic-{number}" for number in range(QUEUES_QUICK if quick else QUEUES)]
    root = directory / "together"
    root.mkdir()
    (root / "config.toml").write_text("[defaults]\nsegment_size = 1_048_576\n", encoding="utf-8")
    with Bus(root) as bus:
        asyncio.run(bus.prepare(*topics))

        def one_after_another() -> None:
            for topic in topics:
                bus.writer(topic).flush_now()

        def by_threads() -> None:
            with without_io_uring():
                bus.flush_now()

        ways: dict[str, Callable[[], object]] = {
            "one after another": one_after_another,
            "threads": by_threads,
            "together": bus.flush_now,
        }
        best_s = dict.fromkeys(ways, float("inf"))
        for _ in range(ROUNDS_QUICK if quick else ROUNDS):
            for name, flush in ways.items():
                for topic in topics:
                    bus.append_many(topic, [PAYLOAD] * MESSAGES)
                started_s = time.perf_counter()
                flush()
                best_s[name] = min(best_s[name], time.perf_counter() - started_s)
    detail = " / ".join(
        f"{best_s[name] * 1e3:.1f} ms" for name in ("together", "one after another")
    )
    detail += f"; by threads {best_s['threads'] * 1e3:.1f} ms"
    what = f"{len(topics)} queues flushed together / one after another"
    ratio = best_s["together"] / best_s["one after another"]
    return [Result.at_most("together", what, ratio, 1 / 5, "x", detail)]
