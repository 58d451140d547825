"""The engine's reader lists what Java lists, for Java queues written over ten years of versions.

``csrc/tests/cq4_list.c`` reads them; ``tests/data/cq4/README.md`` describes them.
"""

import subprocess
import tarfile
from pathlib import Path

import pytest
from faults.programs import program

_DATA = Path(__file__).parents[1] / "data" / "cq4"
_NAMES = sorted(path.name.removesuffix(".tar.xz") for path in _DATA.glob("*.tar.xz"))


@pytest.fixture
def unpacked(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Unpack the queue of the test's parameter; Java's listing is beside it."""
    with tarfile.open(_DATA / f"{request.param}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(tmp_path)
    return tmp_path / str(request.param)


def _expected(queue: Path, kind: str = "expected") -> list[str]:
    text = queue.with_name(f"{queue.name}.{kind}.txt").read_text()
    return [line for line in text.splitlines() if not line.startswith("#")]


def _list(queue: Path, *arguments: str) -> list[str]:
    command: list[str | Path] = [program("cq4_list"), queue, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("unpacked", [n for n in _NAMES if n != "j26-noeof"], indirect=True)
def test_lists_what_java_lists(unpacked: Path) -> None:
    assert _list(unpacked) == _expected(unpacked)


@pytest.mark.parametrize("unpacked", [n for n in _NAMES if n != "j26-noeof"], indirect=True)
def test_seeks_to_every_index(unpacked: Path) -> None:
    expected = _expected(unpacked)
    indexes = [line.split()[0] for line in expected]
    after_last = f"{int(indexes[-1], 16) + 1:x}"
    found = _list(unpacked, "seek", *indexes, after_last)
    assert found == [*expected, "none"]


@pytest.mark.parametrize("unpacked", [n for n in _NAMES if n != "j26-noeof"], indirect=True)
def test_counts_what_java_counts(unpacked: Path) -> None:
    assert int(_list(unpacked, "lag")[0].split()[0]) == len(_expected(unpacked))


@pytest.mark.parametrize("unpacked", ["j26-noeof"], indirect=True)
def test_goes_on_without_end_mark(unpacked: Path) -> None:
    """Java stays in the older cycle until its end mark is written; here no writer is left to do so."""
    first_cycle = _expected(unpacked)
    whole = _list(unpacked)
    assert whole[: len(first_cycle)] == first_cycle
    assert whole == _expected(unpacked, "after-eof")[: len(whole)]
    assert len(whole) == 10
