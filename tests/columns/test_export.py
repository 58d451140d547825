"""An export is complete, or no file appears."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

import aiochronicle
from aiochronicle import ExportProgress, errors, open_writer

COUNT = 5000


@pytest.fixture
def filled(queue_path: Path) -> Path:
    with open_writer(queue_path, segment_size=1 << 18) as writer:
        for first in range(0, COUNT, 100):
            writer.append_many([b"%d" % number for number in range(first, first + 100)])
    return queue_path


def hidden(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(".")]


def test_file_holds_the_rows_in_order(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "all.parquet"
    with aiochronicle.Queue(filled) as whole:
        part = whole.slice(10, 4000)
        assert part.export(target, row_group_rows=1000, compression="snappy") == 3990
        expected = part.to_arrow()
    file = parquet.ParquetFile(target)
    assert file.read().equals(expected)
    assert file.schema_arrow == expected.schema
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    assert [group.num_rows for group in groups] == [1000, 1000, 1000, 990]
    assert groups[0].column(1).compression == "SNAPPY"
    file.close()
    assert hidden(tmp_path) == []


def test_progress_and_chosen_columns(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "seqs.parquet"
    steps: list[ExportProgress] = []
    with aiochronicle.Queue(filled) as whole:
        whole.slice().export(
            target, columns=["seq", "payload"], row_group_rows=2000, progress=steps.append
        )
    assert [(step.rows, step.rows_total) for step in steps] == [
        (2000, COUNT),
        (4000, COUNT),
        (COUNT, COUNT),
    ]
    sizes = [step.bytes for step in steps]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] <= target.stat().st_size
    assert parquet.read_table(target).schema.names == ["seq", "payload"]


def test_empty_slice_makes_a_file_without_rows(filled: Path, tmp_path: Path) -> None:
    with aiochronicle.Queue(filled) as whole:
        assert whole.slice(COUNT).export(tmp_path / "none.parquet") == 0
        assert parquet.read_table(tmp_path / "none.parquet").schema.names[0] == "source"


def test_failure_leaves_what_was_there(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "kept.parquet"
    target.write_bytes(b"the old file")

    def give_up(step: ExportProgress) -> None:
        assert hidden(tmp_path) == [".kept.parquet.part"]
        raise KeyboardInterrupt

    with aiochronicle.Queue(filled) as whole:
        with pytest.raises(KeyboardInterrupt):
            whole.slice().export(target, row_group_rows=100, progress=give_up)
        assert target.read_bytes() == b"the old file"
        assert hidden(tmp_path) == []
        assert whole.slice().export(target) == COUNT
    assert parquet.read_table(target).num_rows == COUNT


INTERRUPTED = """
import sys
from contextlib import suppress
from pathlib import Path
from aiochronicle._columns import export
target = Path(sys.argv[1], "x.jsonl")
left = 0
def trace(frame, event, _):
    global left
    if frame.f_code.co_filename != export.__file__:
        return None
    if event == "line":
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
    return trace
lines, done = 0, False
while not done:
    lines += 1
    left = lines
    with suppress(KeyboardInterrupt):
        sys.settrace(trace)
        try:
            with export.replacing(target) as file:
                file.write(b"{}")
            done = True
        finally:
            sys.settrace(None)
    hidden = [path.name for path in target.parent.iterdir() if path != target]
    assert not hidden, (lines, hidden)
assert lines > 10, lines
assert target.read_bytes() == b"{}"
"""


def test_an_interrupt_anywhere_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM arrive between two lines of the program: interrupt before each line in turn."""
    command = [sys.executable, "-W", "ignore", "-c", INTERRUPTED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_corrupt_record_leaves_no_file(filled: Path, tmp_path: Path) -> None:
    with (filled / "000000000.q").open("r+b") as segment:
        segment.seek(64 + 128 * 1500 + 64)
        segment.write(b"X")
    target = tmp_path / "sound.parquet"
    with aiochronicle.Queue(filled) as whole, pytest.raises(errors.CorruptionError):
        whole.slice().export(target, row_group_rows=100)
    assert not target.exists()
    assert hidden(tmp_path) == []
    with aiochronicle.Queue(filled, on_corrupt="skip") as whole:
        assert whole.slice().export(target) == COUNT - 1


def test_missing_directory(filled: Path, tmp_path: Path) -> None:
    with aiochronicle.Queue(filled) as whole:
        with pytest.raises(errors.ExportFailed, match=r"No such file.*then try again"):
            whole.slice().export(tmp_path / "missing" / "x.parquet")
        with pytest.raises(errors.ExportFailed, match="this is a directory"):
            whole.slice().export(tmp_path)


def test_links_are_followed_and_pipes_are_refused(filled: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    reading, writing = os.pipe()
    (tmp_path / "to-fd").symlink_to(f"/proc/self/fd/{writing}")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old").write_bytes(b"old")
    (tmp_path / "to-old").symlink_to("there/old")
    (tmp_path / "to-new").symlink_to("there/new")
    with aiochronicle.Queue(filled) as whole:
        for name in ("pipe", "to-pipe", "to-fd"):
            with pytest.raises(errors.ExportFailed, match=r"not a regular file.*aioc cat"):
                whole.slice().export(tmp_path / name)
        with pytest.raises(errors.ExportFailed):
            whole.slice().export(tmp_path / "loop")
        for name in ("to-old", "to-new"):
            assert whole.slice().export(tmp_path / name) == COUNT
    os.close(reading)
    os.close(writing)
    assert (tmp_path / "pipe").is_fifo()
    for name, old in (("to-old", "old"), ("to-new", "new")):
        assert (tmp_path / name).is_symlink()
        assert parquet.read_table(tmp_path / "there" / old).num_rows == COUNT
    assert hidden(tmp_path) == hidden(tmp_path / "there") == []


def test_target_on_a_read_only_file_system(filled: Path) -> None:
    with aiochronicle.Queue(filled) as whole, pytest.raises(errors.ExportFailed) as caught:
        whole.slice().export("/proc/x.parquet")
    assert caught.value.errno is not None
    assert caught.value.path == "/proc/x.parquet"


def test_two_exports_to_one_target(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "one.parquet"
    with aiochronicle.Queue(filled) as whole:

        def another(step: ExportProgress) -> None:
            with pytest.raises(errors.ExportFailed, match="another export"):
                whole.slice().export(target)

        assert whole.slice().export(target, progress=another) == COUNT
    assert parquet.read_table(target).num_rows == COUNT


KILLED = """
import sys, aiochronicle
def stop(step):
    print("half", flush=True)
    sys.stdin.read()
with aiochronicle.Queue(sys.argv[1]) as whole:
    whole.slice().export(sys.argv[2], row_group_rows=1000, progress=stop)
"""


def test_killed_export_is_done_again(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "again.parquet"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(filled), str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        os.kill(process.pid, signal.SIGKILL)
    assert not target.exists()
    assert hidden(tmp_path) == [".again.parquet.part"]
    with aiochronicle.Queue(filled) as whole:
        assert whole.slice().export(target) == COUNT
    assert parquet.read_table(target).num_rows == COUNT
    assert hidden(tmp_path) == []


def test_no_room_for_the_file(filled: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with aiochronicle.Queue(filled) as whole, pytest.raises(errors.ExportFailed) as caught:
            whole.slice().export(tmp_path / "large.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert hidden(tmp_path) == []


def test_impossible_row_groups(filled: Path, tmp_path: Path) -> None:
    with aiochronicle.Queue(filled) as whole, pytest.raises(errors.InvalidArgument):
        whole.slice().export(tmp_path / "x.parquet", row_group_rows=0)
    assert hidden(tmp_path) == []
