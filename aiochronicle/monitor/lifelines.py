"""Notices the end of processes at once, by pidfds: descriptors that become readable when a process ends."""

import os
import select

__all__ = ["Lifelines"]

PROCESSES_MAX = 512


class Lifelines:
    """Watches processes by their pids. ``fileno`` is readable when one of them has ended.

    It is only a hint to look sooner: the pid may meanwhile belong to another process, or be of another
    container. At most 512 processes are watched, fewer if the kernel or a limit refuses.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._descriptors: dict[int, int] = {}  # by pid

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._epoll.fileno()

    def watch(self, pids: set[int]) -> None:
        """Watch these processes, and stop watching all others."""
        for pid in self._descriptors.keys() - pids:
            self._drop(pid)
        for pid in pids - self._descriptors.keys():
            if len(self._descriptors) >= PROCESSES_MAX:
                return
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:  # it has ended, or there are no more descriptors: the next look sees it
                continue
            self._epoll.register(descriptor, select.EPOLLIN)
            self._descriptors[pid] = descriptor

    def ended(self) -> set[int]:
        """Return the pids that ended since the last call."""
        found = {descriptor for descriptor, _ in self._epoll.poll(0)}
        pids = {pid for pid, descriptor in self._descriptors.items() if descriptor in found}
        for pid in pids:
            self._drop(pid)
        return pids

    def _drop(self, pid: int) -> None:
        os.close(self._descriptors.pop(pid))  # takes it from the epoll, too

    def close(self) -> None:
        """Close all descriptors."""
        self.watch(set())
        self._epoll.close()
