"""Types of parameters by which handlers receive objects of the broker."""

from typing import Annotated

from faststream import Context

from aiochronicle.faststream.broker import ChronicleBroker as _Broker
from aiochronicle.faststream.message import ChronicleMessage as _Message

__all__ = ["ChronicleBroker", "ChronicleMessage"]

ChronicleMessage = Annotated[_Message, Context("message")]
ChronicleBroker = Annotated[_Broker, Context("broker")]
