"""A broker for FastStream: topics with many writers, subscribers as members of groups.

``pip install "aiochronicle[faststream]"``. FastStream's base classes for brokers are not public; this
package uses those of the versions that the extra ``faststream`` names.
"""

from aiochronicle.faststream.broker import ChronicleBroker, ChronicleRouter
from aiochronicle.faststream.message import ChronicleMessage, Envelope
from aiochronicle.faststream.testing import TestChronicleBroker

__all__ = [
    "ChronicleBroker",
    "ChronicleMessage",
    "ChronicleRouter",
    "Envelope",
    "TestChronicleBroker",
]
