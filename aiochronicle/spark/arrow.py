"""Names for the parts of pyarrow that process rows.

Their types are in typings/pyarrow.
"""

from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Batch", "Column", "Table", "pa", "pc"]

Batch: TypeAlias = pa.RecordBatch
Column: TypeAlias = pa.Array
Table: TypeAlias = pa.Table
