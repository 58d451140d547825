"""``python -m aiochronicle`` is ``aioc``."""

import sys

from aiochronicle.cli import main

if __name__ == "__main__":
    sys.exit(main())
