"""``python -m aiochronicle`` is ``aioc``."""

import sys

from _aioc import main

if __name__ == "__main__":
    sys.exit(main())
