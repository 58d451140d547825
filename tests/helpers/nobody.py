"""Programs without any privilege."""

import subprocess
import sys
from pathlib import Path


def as_nobody(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run code without any privilege: root's rights would make every permission test pass."""
    prelude = (
        "import os, sys\n"
        "import aiochronicle\n"  # while the files of the package can still be read
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
