"""nautilus_trader over queues: its message bus recorded and fed, its catalog filled and read.

``pip install "aiochronicle[nautilus]"``. It uses the public interface of nautilus_trader: listeners
of the message bus, its serializer, ``ParquetDataCatalog.write_data``.
"""

from aiochronicle.nautilus.bus import BusFeed, BusRecorder
from aiochronicle.nautilus.catalog import append_objects, read_objects, write_catalog

__all__ = ["BusFeed", "BusRecorder", "append_objects", "read_objects", "write_catalog"]
