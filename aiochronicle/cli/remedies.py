"""The findings of ``doctor``, in one table: severity, description and remedy."""

from typing import Literal

import msgspec

__all__ = ["Finding", "Level", "finding"]

Level = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding. ``check`` is a stable word for programs."""

    level: Level
    check: str
    subject: str
    detail: str
    remedy: str


# By name: level, check, detail, remedy. `finding` fills in what is in braces.
_TABLE: dict[str, tuple[Level, str, str, str]] = {
    # the machine
    "network": (
        "error",
        "file-system",
        "is on {kind}, where memory that processes share is not shared between machines",
        "Keep queues on a local disk: ext4, xfs or btrfs.",
    ),
    "volatile": (
        "note",
        "file-system",
        "is on {kind}: queues are gone after a restart, and take memory",
        "Keep queues that must survive on ext4, xfs or btrfs.",
    ),
    "space": (
        "warning",
        "space",
        "{free} of {total} are free",
        "aioc du shows what takes it, aioc why-kept what keeps it; a full disk refuses appends.",
    ),
    "inodes": (
        "warning",
        "inodes",
        "{free:,} of {total:,} inodes are free",
        "Use larger segments, or remove files that nobody needs.",
    ),
    "open-files": (
        "warning",
        "open-files",
        "may have {soft:,} files open; a service that follows many queues needs more",
        "ulimit -n {wanted}, or LimitNOFILE= in its systemd unit.",
    ),
    "maps": (
        "warning",
        "maps",
        "a process may have {maps:,} mappings, and each segment in use is one",
        "sysctl vm.max_map_count={wanted}",
    ),
    "kernel": (
        "warning",
        "kernel",
        "has no {feature}: {without}",
        "Linux {needed} or newer has it.",
    ),
    "io-uring": (
        "note",
        "io-uring",
        "is 2: Bus.flush syncs many queues by threads instead, which takes a little longer",
        "sysctl kernel.io_uring_disabled=0, if nothing speaks against it.",
    ),
    "watch-instances": (
        "note",
        "watch-instances",
        "a user may have {allowed:,}: each process that opens queues takes one or two, and polls without",
        "sysctl fs.inotify.max_user_instances=1024",
    ),
    "watches": (
        "warning",
        "watches",
        "{left:,} of {allowed:,} are left for this user; discovery polls without them",
        "sysctl fs.inotify.max_user_watches=524288",
    ),
    "clock": (
        "warning",
        "clock",
        "is read from {source}, which takes microseconds for each message",
        "Boot with tsc=reliable if the processor's counter can be trusted.",
    ),
    "forced-huge-pages": (
        "note",
        "huge-pages",
        "is force: queues on tmpfs take memory in pieces of 2 MiB",
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    ),
    "compacted-pages": (
        "note",
        "huge-pages",
        "is always: a page fault may wait for memory to be compacted",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
    ),
    # what is left over
    "half-restored": (
        "note",
        "half-restored",
        "is left of a restore that was killed",
        "Restore again, which removes it, or remove it.",
    ),
    "half-converted": (
        "note",
        "half-converted",
        "is left of a conversion that was killed",
        "Convert again, which removes it, or remove it.",
    ),
    "half-exported": (
        "note",
        "half-exported",
        "is left of an export that was killed",
        "Export to {target} again, which replaces it, or remove it.",
    ),
    "ready-alone": (
        "warning",
        "half-made",
        "has a READY file, but no queue: its writer was killed while it made it, or files were removed",
        "Start its writer again, or remove the directory.",
    ),
    "segments-alone": (
        "error",
        "half-made",
        "has segments, but no control.meta",
        "aioc repair {queue}",
    ),
    "deleted": (
        "note",
        "deleted",
        "{size} in {files} deleted files are still in use, by pid {pids}",
        "aioc du names the files; the space is free when these processes let go.",
    ),
    # a queue
    "unusable": (
        "error",
        "unusable",
        "{why}",
        "aioc repair {queue} --dry-run",
    ),
    "refused": (
        "error",
        "permissions",
        "cannot be examined: {why}",
        "Run aioc as the user it belongs to, {owner}.",
    ),
    "open-to-all": (
        "warning",
        "permissions",
        "everybody may write into it (mode {mode:04o})",
        "chmod o-w {queue}",
    ),
    "foreign-files": (
        "error",
        "permissions",
        "{owner}, whose directory it is, cannot read what others left in it: {files}",
        "chown -R {owner}:{group} {queue}, as root; run aioc as that user.",
    ),
    "dead-writer": (
        "warning",
        "dead-writer",
        "its writer, pid {pid} ({command}), ended without closing it",
        "Start that program again: it recovers the queue, and nothing that was appended is lost.",
    ),
    "stopped-writer": (
        "warning",
        "stopped-writer",
        "its writer, pid {pid} ({command}), is stopped, by a signal or a debugger: it holds the queue and"
        " appends nothing",
        "kill -CONT {pid} lets it go on, or end the debugger. To let another writer open the queue, end it:"
        " kill -KILL {pid}.",
    ),
    "silent-writer": (
        "warning",
        "silent-writer",
        "its writer, pid {pid} ({command}), has given no sign of life for {silent}, though its process"
        " is not stopped",
        "Check whether the machine is overloaded, its container is paused, or a disk hangs (dmesg); then"
        " restart that program.",
    ),
    "settings": (
        "error",
        "settings",
        "is refused by writers, which keep the settings they have: {why}",
        "Correct the file, or remove it: the program's own settings apply then.",
    ),
    "background": (
        "warning",
        "writer-errors",
        "its writer fails: {text} ({times}, last {ago} ago)",
        "The writer tries again. Make room, or correct the path or the permissions; aioc info {queue}"
        " shows what failed.",
    ),
    "ahead": (
        "warning",
        "ahead",
        "its last message is {ahead} ahead of the clock, and holds all that follow",
        "Check the clock, and the unit of the timestamps; open_writer(max_ahead_s=...) refuses such"
        " messages.",
    ),
    "missing-segments": (
        "error",
        "missing-segments",
        "segments are missing between others: {files}",
        "aioc repair {queue} --backup DIR takes them from a backup; aioc verify {queue} counts what is lost.",
    ),
    "missing-end": (
        "error",
        "missing-segments",
        "its last segments are missing: it ended in segment {end}, the last file is {file}",
        "Move it away and restore it from a backup, with aioc restore; or give up what is lost: aioc repair"
        " {queue} --salvage.",
    ),
    "recovered": (
        "note",
        "recovered",
        "repairs have set {parts} aside",
        "aioc recovered {queue} shows them; remove what nobody needs from recovered/.",
    ),
    "orphaned-replies": (
        "note",
        "orphaned-replies",
        "has replies to {asked}, which is gone",
        "Remove the directory, if nobody needs them: rm -r {queue}",
    ),
    # a reader
    "lost-reader": (
        "error",
        "lost-reader",
        "its position is no longer in the queue",
        "aioc readers seek {queue} {reader} first, or aioc readers forget {queue} {reader}",
    ),
    "damaged-reader": (
        "error",
        "damaged-reader",
        "{why}; retention removes nothing meanwhile",
        "aioc repair {queue} sets it aside; the reader is then a new one.",
    ),
    "reader-in-damage": (
        "error",
        "damaged-reader",
        "its position is in a damaged segment: it cannot read on",
        "aioc verify {queue} counts the damage, aioc repair {queue} --backup DIR replaces it from a backup;"
        " aioc readers seek {queue} {reader} SEQ moves the reader past it.",
    ),
    "absent-requester": (
        "note",
        "orphaned-replies",
        "answers for a requester that was last seen {seen} ago",
        "Remove the directory if that requester will not come back: rm -r {queue}",
    ),
    "stopped-reader": (
        "warning",
        "stopped-reader",
        "its process, pid {pid} ({command}), is stopped, by a signal or a debugger, with {lag} unread",
        "kill -CONT {pid} lets it go on, or end the debugger.",
    ),
    "stopped-member": (
        "warning",
        "stopped-member",
        "its member pid {pid} ({command}) is stopped, by a signal or a debugger, with {messages} in flight",
        "kill -CONT {pid} lets it go on, or end the debugger; others get its messages when their leases end.",
    ),
    "stale-reader": (
        "warning",
        "stale-reader",
        "was last seen {seen} ago, and keeps {lag}",
        "aioc readers forget {queue} {reader}, if it will not come back.",
    ),
}


def finding(name: str, subject: object, **values: object) -> Finding:
    """Return a finding of the table.

    >>> finding("volatile", "/dev/shm", kind="tmpfs").detail
    'is on tmpfs: queues are gone after a restart, and take memory'
    """
    level, check, detail, remedy = _TABLE[name]
    return Finding(
        level=level,
        check=check,
        subject=str(subject),
        detail=detail.format(**values),
        remedy=remedy.format(**values),
    )
