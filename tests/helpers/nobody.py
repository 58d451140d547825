"""Run programs without privileges."""

import subprocess
import sys
from pathlib import Path


def as_nobody(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run code without privileges, because root may read everything."""
    prelude = (
        "import os, sys\n"
        "import aiochronicle\n"  # while the package's files are still readable
        "from aiochronicle import Registry, errors, open_reader, open_writer, repair, replay\n"
        "if os.geteuid() == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "assert os.geteuid() != 0\n"
    )
    return subprocess.run(
        [sys.executable, "-c", prelude + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
