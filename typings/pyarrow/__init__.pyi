"""The part of pyarrow that the project uses, for the type checkers that ``make lint`` runs.

pyarrow has no types of its own, and those of pyarrow-stubs leave the values of columns unknown. Here, what a
column holds is Any, and everything around it has a type. tests/test_pyarrow_types.py compares with pyarrow.
"""

from . import ipc as ipc
from . import lib as lib
from . import types as types
from .lib import *
