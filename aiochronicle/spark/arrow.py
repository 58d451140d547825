"""pyarrow without types.

Its stubs leave the values of columns unknown, and describe functions more narrowly than they are: with
the real types, pyright in strict mode rejects nearly every line that touches a column.
"""

from typing import Any, TypeAlias

import pyarrow
import pyarrow.compute

__all__ = ["Batch", "Column", "Table", "pa", "pc"]

pa: Any = pyarrow
pc: Any = pyarrow.compute

Batch: TypeAlias = Any  # pyarrow.RecordBatch
Column: TypeAlias = Any  # pyarrow.Array
Table: TypeAlias = Any  # pyarrow.Table
