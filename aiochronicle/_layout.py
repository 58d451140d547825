"""Every file name and on-disk layout that Python code uses; those of the engine are in ``csrc/*.h``.

A native queue is a directory::

    control.meta          the control block (csrc/control.h)
    000000000.q           segments (csrc/segment.h), with 000000000.idx, their seek index
    readers/NAME.meta     the position of a named reader (csrc/position.h)
    readers/NAME.group    the slots of a group (csrc/group.h)
    recovered/            messages that repairs set aside
    writer.lock           held by the writer
    READY                 announces the queue to discovery
    schema.json           the types of its messages
    settings.toml         settings that an operator has changed
    shared.json           instead of control.meta: a topic with many writers
    backup.json           marks a backup of a queue, which nothing may change

A Java queue has ``metadata.cq4t`` and files that end in ``.cq4``. A bus has a ``config.toml`` in its root.
"""

import re
import struct

CONTROL = "control.meta"  # native queues have one, and no other directory has
WRITER_LOCK = "writer.lock"
READY = "READY"
SCHEMA = "schema.json"
SETTINGS = "settings.toml"
SHARED = "shared.json"
BACKUP = "backup.json"
READERS = "readers"
WAKE = "wake"  # wake-up sockets, accessible to the reader's user only
RECOVERED = "recovered"
BUS_CONFIGURATION = "config.toml"

TYPE_ID_MAX = 65534  # 65535 is padding

SEGMENT_SUFFIX = ".q"
INDEX_SUFFIX = ".idx"
POSITION_SUFFIX = ".meta"
GROUP_SUFFIX = ".group"
SEGMENT = re.compile(r"([0-9]{9,10})\.q")
RECOVERED_SEGMENT = re.compile(r"([0-9]+)-([0-9]+)\.q")

JAVA_TABLE = "metadata.cq4t"  # every Java queue has one, except very old ones
JAVA_TABLES = (JAVA_TABLE, "directory-listing.cq4t")
JAVA_SUFFIX = ".cq4"
JAVA_SUFFIXES = (JAVA_SUFFIX, ".cq4t")

# One of the two slots of a position file: segment, offset, heartbeat_ns, generation, checksum, epoch.
POSITION_SLOT = struct.Struct("<QQQQII")
POSITION_CHECKED_BYTES = 32
# The header of a record (csrc/record.h): length + 1, version, zeros, seq, timestamp_ns, type_id,
# flags, check.
RECORD = struct.Struct("<IB3sQQHHI")
# The head of a seek index (csrc/segment_seekindex.h).
INDEX_HEAD = struct.Struct("<8s H H I Q Q I I Q Q")


def segment_name(number: int) -> str:
    """Return the file name of a segment.

    >>> segment_name(7)
    '000000007.q'
    """
    return f"{number:09d}{SEGMENT_SUFFIX}"


def index_name(number: int) -> str:
    """Return the file name of a segment's seek index."""
    return f"{number:09d}{INDEX_SUFFIX}"


def schema_path(directory: str) -> str:
    """Return the path of a queue's schema.json."""
    return f"{directory}/{SCHEMA}"


def position_name(reader: str) -> str:
    """Return the name of a reader's position file in ``readers/``."""
    return f"{reader}{POSITION_SUFFIX}"
