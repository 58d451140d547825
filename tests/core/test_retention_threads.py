"""Any thread may request retention, even while the housekeeper runs it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiochronicle
from aiochronicle import Retention, Roll

SEGMENTS = 25
THREADS = 4
ROUNDS = 2


def test_retention_should_not_trip_over_itself(tmp_path: Path) -> None:
    for turn in range(ROUNDS):
        path = tmp_path / f"queue-{turn}"
        with aiochronicle.open_writer(path, segment_size=4096, roll=Roll(messages=1)) as writer:
            for _ in range(SEGMENTS):
                writer.append(b"x")
        with aiochronicle.open_reader(path, "reader") as reader:
            assert sum(1 for _ in reader) == SEGMENTS
            reader.commit()
        retention = Retention(archive=str(tmp_path / "archive" / str(turn)))
        (tmp_path / "archive").mkdir(exist_ok=True)
        with aiochronicle.open_writer(path, retention=retention) as writer:

            def retain() -> int:
                writer.retain_now()
                return writer.statistics().segments_archived

            with ThreadPoolExecutor(THREADS) as pool:
                counts = [pool.submit(retain) for _ in range(THREADS)]
            # Whichever thread did the work, the first call to return sees all of it counted.
            assert [count.result() for count in counts] == [SEGMENTS - 1] * THREADS
            assert writer.statistics().retention_errors == 0
        assert len(list((tmp_path / "archive" / str(turn)).glob("*/*/*/*.q"))) == SEGMENTS - 1
