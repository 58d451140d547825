"""Entry point. Imports the tests' packages by their own names, as pytest does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from torture.command import main

if __name__ == "__main__":
    sys.exit(main())
