"""Measures the share that each of two JVMs and two of our processes gets of a contended queue."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from aiochronicle import open_reader

from .judge import Judge
from .ours import Ours

__all__ = ["share_alike"]

_WARM_UP_ROUNDS = 5
_WARM_UP_APPENDS = 20_000


def share_alike(
    path: Path, seconds: float, properties: list[str] | None = None, *, is_warm: bool
) -> dict[str, float]:
    """Return each one's share while all were running; warm JVMs have appended to other queues before."""
    with ExitStack() as stack:
        judges = [stack.enter_context(Judge(properties=properties or [])) for _ in range(2)]
        ours = [stack.enter_context(Ours()) for _ in range(2)]
        for number, judge in enumerate(judges if is_warm else ()):
            with judge.open(path.with_name(f"{path.name}-warm-up{number}")) as queue:
                queue.bench_append(bytes(100), _WARM_UP_APPENDS, rounds=_WARM_UP_ROUNDS)
        queues = [stack.enter_context(judge.open(path)) for judge in judges]
        for number, queue in enumerate(queues):
            queue.start_append(prefix=f"java{number}")
        for number, process in enumerate(ours):
            process.start_flood(path, f"ours{number}", seconds=seconds)
        for process in ours:
            process.finish_flood(seconds + 60)
        for queue in queues:
            written = queue.stop_append()
            if written.thrown:
                raise RuntimeError(f"after {written.written} messages: {written.thrown}")
    return _shares(path)


def _shares(path: Path) -> dict[str, float]:
    with open_reader(path) as reader:
        authors = [message.payload.partition(b":")[0].decode() for message in reader]
    names = sorted(set(authors))
    assert len(names) == 4, names
    first = max(authors.index(name) for name in names)
    last = min(len(authors) - authors[::-1].index(name) for name in names)
    counts = Counter(authors[first:last])
    return {name: counts[name] / counts.total() for name in names}
