"""Helpers for tests of services: real queues, and deliberate failures.

Nothing is mocked: a killed writer is a process that was killed, a fault is a system call of the engine that
fails, an image is what a crash would leave on the disk at this moment. Fixtures for pytest are in
``aiochronicle.testing.fixtures``; virtual time is ``aiochronicle.run_virtual``.
"""

from aiochronicle._services.virtual_time import VirtualTimeLoop, run_virtual
from aiochronicle.testing.clock import ManualClock
from aiochronicle.testing.faults import CALL_NAMES, FaultPlan, fault_plan
from aiochronicle.testing.images import copy_killed, copy_powered_off
from aiochronicle.testing.killing import Victim, kill_writer, start_victim
from aiochronicle.testing.open_files import files_in_use
from aiochronicle.testing.waiting import aeventually, eventually

__all__ = [
    "CALL_NAMES",
    "FaultPlan",
    "ManualClock",
    "Victim",
    "VirtualTimeLoop",
    "aeventually",
    "copy_killed",
    "copy_powered_off",
    "eventually",
    "fault_plan",
    "files_in_use",
    "kill_writer",
    "run_virtual",
    "start_victim",
]
