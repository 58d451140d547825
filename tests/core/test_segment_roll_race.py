"""A writer that needs its next segment at the moment the housekeeper begins to prepare it."""

from pathlib import Path

from aiochronicle import inspect, open_reader, open_writer

SEGMENT_BYTES = 64 << 10
PAYLOAD_BYTES = 20_000  # three to a segment, so that nearly every third append rolls
APPENDS = 600


def test_appender_and_housekeeper_never_create_the_same_segment_twice(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with open_writer(path, segment_size=SEGMENT_BYTES) as writer:
        for number in range(APPENDS):
            assert writer.append(number.to_bytes(4) * (PAYLOAD_BYTES // 4)) == number
        statistics = writer.statistics()
    assert statistics.rolls == APPENDS // 3 - 1
    assert statistics.prealloc_errors == 0, statistics.last_error
    assert inspect(path).segments >= APPENDS // 3
    with open_reader(path) as reader:
        payloads = [message.payload for message in reader]
    assert [int.from_bytes(payload[:4]) for payload in payloads] == list(range(APPENDS))
