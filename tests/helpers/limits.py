"""Programs with few inotify watches, in a user namespace of their own."""

import subprocess
from collections.abc import Sequence


def limited(what: str, count: int) -> Sequence[str]:
    """Run the command in a user namespace of its own that has no more of them than that."""
    return ["unshare", "-Ur", "sh", "-c", f'echo {count} > /proc/sys/user/{what}; exec "$@"', "sh"]


def can_limit() -> bool:
    command = [*limited("max_inotify_watches", 0), "true"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=20)
    except FileNotFoundError:
        return False
    return done.returncode == 0 and not done.stderr
