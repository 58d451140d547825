"""pyarrow as these modules see it: without types, of which its stubs have too few to help."""

from typing import Any, TypeAlias

import pyarrow
import pyarrow.compute

__all__ = ["Batch", "Column", "Table", "pa", "pc"]

pa: Any = pyarrow
pc: Any = pyarrow.compute

Batch: TypeAlias = Any  # pyarrow.RecordBatch
Column: TypeAlias = Any  # pyarrow.Array
Table: TypeAlias = Any  # pyarrow.Table
