"""Run programs with few inotify watches, in their own user namespace."""

import subprocess
from collections.abc import Sequence


def limited(what: str, count: int) -> Sequence[str]:
    """Return a command prefix that runs a program in its own user namespace with this limit."""
    return ["unshare", "-Ur", "sh", "-c", f'echo {count} > /proc/sys/user/{what}; exec "$@"', "sh"]


def can_limit() -> bool:
    command = [*limited("max_inotify_watches", 0), "true"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=20)
    except FileNotFoundError:
        return False
    return done.returncode == 0 and not done.stderr
