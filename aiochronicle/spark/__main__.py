"""``python -m aiochronicle.spark JOB …`` is ``aioc spark JOB …``."""

import sys
from collections.abc import Sequence

from aiochronicle.cli import main as aioc

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job and return the exit status of ``aioc``."""
    return aioc(["spark", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
