"""Observes all queues of a directory, once a second, within a budget of processor time.

Each look has two parts. The first is a glance at every queue: the next seq and the rate. The second reads
everything about some queues (writer, readers, groups, disk) until the budget is spent: first the queues where
something happened, then those whose last full look is the oldest. A few queues are therefore complete every
second. With hundreds of queues the rates are still of this second, and readers may be some seconds old.

The end of a process is noticed at once, by its descriptor (``lifelines.py``).
"""

import os
import time
from collections import deque
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

import msgspec

from aiochronicle._base.printable import printable
from aiochronicle.cli.exits import Refused
from aiochronicle.cli.finding import find_queues
from aiochronicle.monitor.alarms import Limits, alarms_of, alarms_of_disk
from aiochronicle.monitor.events import ROUTINE, changes
from aiochronicle.monitor.history import History
from aiochronicle.monitor.lifelines import Lifelines
from aiochronicle.monitor.records import Alarm, Event, EventKind, QueueState, Snapshot
from aiochronicle.monitor.scout import Scout

__all__ = ["Alarm", "Collector", "Event", "History", "Limits", "QueueState", "Snapshot"]

BUDGET_S = 0.006
EVENTS_MAX = 500
SCOUTS_MAX = 1000  # queues whose reader stays open
_SOON_NS = 10 * 10**9  # routine events within so long are one
_LOOK_AGAIN_NS = 10**9 // 2  # a whole look at the same queue does not come sooner
_URGENT_S = 0.25  # the budget of what cannot wait
_SCAN_SHARE = 0.005  # of the time goes into looking for queues …
_SCAN_MIN_S, _SCAN_MAX_S = 1.0, 60.0  # … at least and at most so far apart


class Collector:
    """Observes all queues in or below a directory. For one thread; ``look`` blocks while it reads files.

    ``budget_s`` limits the processor time of a look, without the glances. ``events`` has the last 500 events,
    ``history`` the last 300 looks. It never writes, and needs only permission to read. A context manager.

    >>> with Collector(queue) as collector:
    ...     [(found.name, found.next_seq, found.problem) for found in collector.look().queues]
    [('hello', 1, None)]
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        limits: Limits | None = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        self.root = os.path.abspath(root)
        self.limits = limits or Limits()
        self.events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.history = History()
        self._budget_s = budget_s
        self._scouts: dict[str, Scout] = {}
        self._unreadable: dict[str, str] = {}  # directories, with the reason
        self._lifelines = Lifelines()
        self._numbers = 0
        self._event_numbers = 0
        self._scan_at_s = 0.0
        self._problem: str | None = None

    def __enter__(self) -> "Collector":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        for scout in self._scouts.values():
            scout.close()
        self._scouts.clear()
        self._lifelines.close()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a writer or reader process ends; look then."""
        return self._lifelines.fileno()

    def look(self, focus: Container[int] = ()) -> Snapshot:
        """Return a new snapshot. The queues with the numbers in ``focus`` get a full look in any case."""
        began_s = time.thread_time()
        is_first = not self._numbers
        ended = self._lifelines.ended()
        fresh: list[Event] = []
        self._scan(fresh, is_first)
        before = {path: scout.state for path, scout in self._scouts.items()}
        urgent = {path for path, state in before.items() if _uses(state, ended)}
        for path, scout in self._scouts.items():
            if scout.glance() or scout.state.number in focus:
                urgent.add(path)
        for path in urgent:
            self._scouts[path].due_ns = 0
        self._look_at_some(urgent)
        for path, scout in self._scouts.items():
            for kind, time_ns, text, count in changes(before[path], scout.state, ended):
                self._note(fresh, scout.state, kind, text, time_ns=time_ns, count=count)
        self._watch_processes()
        return self._snapshot(fresh, began_s)

    def _look_at_some(self, urgent: set[str]) -> None:
        now_ns = time.monotonic_ns()
        began_s = time.thread_time()
        due = [path for path, scout in self._scouts.items() if scout.due_ns <= now_ns]
        due.sort(key=lambda path: (path not in urgent, self._scouts[path].due_ns))
        for path in due:
            budget_s = _URGENT_S if path in urgent else self._budget_s
            if time.thread_time() - began_s > budget_s:
                break
            scout = self._scouts[path]
            if scout.state.problem is None:
                scout.look()
            scout.due_ns = time.monotonic_ns() + _LOOK_AGAIN_NS
        for scout in list(self._scouts.values())[SCOUTS_MAX:]:
            scout.close()

    def _scan(self, fresh: list[Event], is_first: bool) -> None:
        """Search the directory for new and removed queues, if the last search is long enough ago."""
        if time.monotonic() < self._scan_at_s:
            return
        began_s = time.thread_time()
        unreadable: dict[str, str] = {}

        def complain(path: str, error: OSError) -> None:
            unreadable[path] = printable(error.strerror or error)

        self._problem = None
        try:
            found = {str(path) for path in find_queues(Path(self.root), unreadable=complain)}
        except (Refused, OSError) as error:
            self._problem, found = printable(error), set[str]()
        for path in sorted((found | unreadable.keys()) - self._scouts.keys()):
            self._numbers += 1
            scout = self._scouts[path] = Scout(self._numbers, path, self.root)
            if not is_first:
                self._note(fresh, scout.state, "appeared", "")
        for path in self._scouts.keys() - found - unreadable.keys():
            scout = self._scouts.pop(path)
            scout.close()
            self._note(fresh, scout.state, "vanished", "")
        self._scouts = dict(sorted(self._scouts.items()))
        took_s = time.thread_time() - began_s
        pause_s = min(max(took_s / _SCAN_SHARE, _SCAN_MIN_S), _SCAN_MAX_S)
        self._scan_at_s = time.monotonic() + pause_s * 0.95

    def _note(
        self,
        fresh: list[Event],
        state: QueueState,
        kind: EventKind,
        text: str,
        *,
        time_ns: int = 0,
        count: int = 1,
    ) -> None:
        now_ns = time.time_ns()
        time_ns = min(time_ns, now_ns) or now_ns
        if kind in ROUTINE:
            for place, earlier in enumerate(reversed(self.events), 1):
                if abs(time_ns - earlier.time_ns) > _SOON_NS:
                    break
                if (earlier.kind, earlier.queue) == (kind, state.number):
                    merged = msgspec.structs.replace(
                        earlier, text=text, count=earlier.count + count
                    )
                    self.events[-place] = merged
                    fresh.append(merged)
                    return
        self._event_numbers += 1
        event = Event(
            number=self._event_numbers,
            time_ns=time_ns,
            kind=kind,
            queue=state.number,
            name=state.name,
            text=text,
            count=count,
        )
        self.events.append(event)
        fresh.append(event)

    def _watch_processes(self) -> None:
        pids: set[int] = set()
        for scout in self._scouts.values():
            pids |= _pids(scout.state)
        self._lifelines.watch(pids)

    def _snapshot(self, fresh: list[Event], began_s: float) -> Snapshot:
        queues = tuple(scout.state for scout in self._scouts.values())
        free = total = 0
        with suppress(OSError):
            disk = os.statvfs(self.root)
            free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        found = Snapshot(
            time_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            root=printable(self.root),
            queues=queues,
            events=tuple(fresh),
            problem=self._problem,
            disk_bytes_free=free,
            disk_bytes_total=total,
        )
        alarms = [*alarms_of_disk(found, self.limits)]
        for queue in queues:
            alarms += alarms_of(queue, self.limits)
        alarms.sort(key=lambda alarm: alarm.level)
        found = msgspec.structs.replace(
            found, alarms=tuple(alarms), took_s=time.thread_time() - began_s
        )
        self.history.add(found)
        return found


def _pids(state: QueueState) -> set[int]:
    pids = {one.pid for one in state.readers if one.live and one.pid}
    if state.writer is not None and state.writer.state == "open" and state.writer.pid > 0:
        pids.add(state.writer.pid)
    return pids


def _uses(state: QueueState, pids: set[int]) -> bool:
    return bool(pids) and not pids.isdisjoint(_pids(state))
