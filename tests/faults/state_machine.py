"""R9: a queue against a list, driven by hypothesis.

The model is the list of appended messages, with the first seq that retention left. Every rule does the same
to the queue and to the model. Invariants compare them through our reader and through the decoder that shares
no code with the engine.
"""

import shutil
from functools import cache

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from reference import format as fmt

from aiochronicle import Batch, Reader, Retention, Roll, Writer, open_reader, open_writer, verify

from .kill_loop import memory_directory
from .operations import Abort, Append, AppendMany, Flush, Heartbeat, Operation, Reserve, apply
from .victim import ScriptJob, VictimServer

__all__ = ["QueueMachine", "run_machines"]

READER = "model"
_SIGKILL = -9

_payloads = st.binary(max_size=700)
_types = st.sampled_from((0, 1, 0xFFFE))
_batches = st.lists(_payloads, max_size=4).map(tuple)
_operations = st.one_of(
    st.builds(Append, _payloads, _types),
    st.builds(AppendMany, _batches),
    st.builds(Reserve, _payloads),
    st.builds(Abort, _payloads),
    st.builds(Flush),
    st.builds(Heartbeat),
)
_rolls = st.one_of(st.none(), st.integers(1, 5))
_flush_modes = st.sampled_from(("async", "sync", Batch(1000, 0.01)))


@cache
def _server() -> VictimServer:
    """Return the one server whose children crash, started when first needed."""
    return VictimServer()


def run_machines(runs: int, chosen_seed: int) -> None:
    """Run this many random programs; raise the error of the first failing one, minimised."""
    limits = settings(
        max_examples=runs,
        stateful_step_count=25,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
        print_blob=True,
    )
    try:
        run_state_machine_as_test(seed(chosen_seed)(QueueMachine), settings=limits)
    finally:
        if _server.cache_info().currsize:
            _server().close()
            _server.cache_clear()


class QueueMachine(RuleBasedStateMachine):
    """Rules over one queue: one writer at a time, one named reader, crashes in between."""

    def __init__(self) -> None:
        """Begin without a queue."""
        super().__init__()
        self.root = memory_directory()
        self.path = self.root / "queue"
        self.segment_size = 4096
        self.writer: Writer | None = None
        self.reader: Reader | None = None
        self.messages: list[tuple[bytes, int]] = []
        self.first = 0  # smallest seq that is still there
        self.position = 0  # seq that the reader delivers next
        self.committed = 0

    def teardown(self) -> None:
        """Close everything, then check the queue with the second oracle."""
        try:
            if self.reader is not None:
                self.reader.close()
            if self.writer is not None:
                self.writer.close()
                assert verify(self.path).corrupt == 0
            self._compare_with_decoder()
        finally:
            shutil.rmtree(self.root)

    # the writer

    @initialize(
        size=st.sampled_from((4096, 4160, 8192)),
        roll=_rolls,
        flush=_flush_modes,
        inline=st.booleans(),
    )
    def create(self, size: int, roll: int | None, flush: str | Batch, inline: bool) -> None:
        """Create the queue."""
        self.segment_size = size
        self._open(roll, flush, inline)

    def _open(self, roll: int | None, flush: str | Batch, inline: bool) -> None:
        self.writer = open_writer(
            self.path,
            segment_size=self.segment_size,
            roll=None if roll is None else Roll(messages=roll),
            flush=flush,  # type: ignore[arg-type]
            # Not in the background, where it would happen at any moment.
            retention=(
                Retention(max_bytes=2 * self.segment_size, reader_ttl_s=3600.0) if inline else None
            ),
            _inline_housekeeping=inline,
        )
        assert self.writer.next_seq == len(self.messages)

    @precondition(lambda self: self.writer is None)
    @rule(roll=_rolls, flush=_flush_modes, inline=st.booleans())
    def open(self, roll: int | None, flush: str | Batch, inline: bool) -> None:
        """Open the queue again with other options, and check the report of the opening."""
        self._open(roll, flush, inline)
        assert self.writer is not None
        recovery = self.writer.recovery
        assert recovery.torn_records == recovery.corrupt_records == 0
        assert recovery.segments_set_aside == 0

    @precondition(lambda self: self.writer is not None)
    @rule()
    def close(self) -> None:
        """Close the writer."""
        assert self.writer is not None
        self.writer.close()
        self.writer = None

    @precondition(lambda self: self.writer is not None)
    @rule(operation=_operations)
    def operate(self, operation: Operation) -> None:
        """Apply one operation: append, reserve, flush and so on."""
        assert self.writer is not None
        self.messages += apply(self.writer, operation)
        assert self.writer.next_seq == len(self.messages)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def roll(self) -> None:
        """Fill the segment, so that the next message begins a new one."""
        assert self.writer is not None
        room = self.segment_size - self.writer.position.offset - fmt.RECORD_HEADER_SIZE
        if room >= 0:
            self.messages += apply(self.writer, Append(bytes(room)))

    @precondition(lambda self: self.writer is not None)
    @rule()
    def retain(self) -> None:
        """Remove old segments, except those that the named reader still needs."""
        assert self.writer is not None
        self.writer.flush_now()
        self.writer.retain_now()
        with open_reader(self.path) as reader:
            message = reader.poll()
        first = len(self.messages) if message is None else message.seq
        assert first >= self.first
        if self._is_registered():
            assert first <= self.committed
        self.first = first
        if self.reader is not None and self.position < first:
            # The reader went back after its commit. It could read what it still has mapped, but not the
            # removed segments after that.
            self.reader.seek_first()
            self.position = first
        if self.reader is None and not self._is_registered():
            self.position = self.committed = first

    def _is_registered(self) -> bool:
        return (self.path / "readers" / f"{READER}.meta").exists()

    @precondition(lambda self: self.writer is None)
    @rule(
        operations=st.lists(_operations, max_size=8).map(tuple),
        roll=_rolls,
        unfinished=st.one_of(st.none(), _payloads),
    )
    def crash(
        self, operations: tuple[Operation, ...], roll: int | None, unfinished: bytes | None
    ) -> None:
        """Another process opens the queue, writes, and dies without closing it."""
        job = ScriptJob(str(self.path), self.segment_size, roll, operations, unfinished)
        server = _server()
        server.start(job)
        assert server.wait() == _SIGKILL
        for operation in operations:
            self.messages += _messages_of(operation)

    # the reader

    @precondition(lambda self: self.reader is None)
    @rule()
    def open_reader(self) -> None:
        """Open the named reader, which resumes at its last commit."""
        registered = self._is_registered()
        self.reader = open_reader(self.path, READER)
        if not registered:
            self.committed = self.first
        self.position = self.committed

    @precondition(lambda self: self.reader is not None)
    @rule()
    def close_reader(self) -> None:
        """Close the reader; uncommitted messages will come again."""
        assert self.reader is not None
        self.reader.close()
        self.reader = None

    @precondition(lambda self: self.reader is not None)
    @rule(count=st.integers(1, 20))
    def read(self, count: int) -> None:
        """Read some messages."""
        assert self.reader is not None
        batch = self.reader.read_batch(count)
        self.position = max(self.position, self.first)
        wanted = self.messages[self.position : self.position + count]
        assert [(m.payload, m.type_id) for m in batch] == wanted
        assert [m.seq for m in batch] == list(range(self.position, self.position + len(wanted)))
        self.position += len(wanted)

    @precondition(lambda self: self.reader is not None)
    @rule()
    def commit(self) -> None:
        """Commit the position."""
        assert self.reader is not None
        self.reader.commit()
        self.committed = self.position

    @precondition(lambda self: self.reader is not None)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        """Seek a seq, which may be before the first or after the last one."""
        assert self.reader is not None
        seq = data.draw(st.integers(0, len(self.messages) + 2))
        self.reader.seek(seq)
        self.position = min(max(seq, self.first), len(self.messages))

    @precondition(lambda self: self.reader is not None)
    @rule(last=st.booleans())
    def seek_end(self, last: bool) -> None:
        """Seek the first message, or the end."""
        assert self.reader is not None
        if last:
            self.reader.seek_last()
        else:
            self.reader.seek_first()
        self.position = len(self.messages) if last else self.first

    # the invariants

    @invariant()
    def reader_and_model_agree(self) -> None:
        """Check that a new reader gets exactly the messages of the list."""
        if not self.path.exists():
            return
        with open_reader(self.path) as reader:
            found = [(m.seq, m.payload, m.type_id) for m in reader]
        wanted = [(seq, *self.messages[seq]) for seq in range(self.first, len(self.messages))]
        assert found == wanted

    def _compare_with_decoder(self) -> None:
        if not self.path.exists():
            return
        dump = fmt.decode_queue(self.path)
        assert not dump.errors
        assert not dump.remarks
        assert dump.timestamp_regressions == 0
        found = [(r.seq, r.payload, r.type_id) for _, r in dump.records]
        wanted = [(seq, *self.messages[seq]) for seq in range(self.first, len(self.messages))]
        assert found == wanted


def _messages_of(operation: Operation) -> list[tuple[bytes, int]]:
    """Return what the operation would add, without applying it."""
    match operation:
        case Append(payload, type_id):
            return [(payload, type_id)]
        case AppendMany(payloads):
            return [(payload, 0) for payload in payloads]
        case Reserve(payload):
            return [(payload, 0)]
    return []
