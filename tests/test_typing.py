"""Type checkers know what a reader's messages decode to."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PROGRAM = """
import msgspec
from aiochronicle import Codec, FanIn, Reader, Registry, Router, open_reader, replay
from aiochronicle import aopen_reader, aopen_writer

class Trade(msgspec.Struct):
    price: float

class Quote(msgspec.Struct):
    bid: float

async def read(reader: Reader[Trade]) -> None:
    async for message in reader:
        reveal_type(message.decode())  # Trade
        reveal_type(message.decode(Quote))  # Quote
        reveal_type(message.decode(Codec(Quote, "json")))  # Quote
    reveal_type((await reader.next()).decode())  # Trade
    async for batch in reader.batches():
        reveal_type(batch[0].decode())  # Trade

reader = open_reader("q", codec=Trade)
reveal_type(reader)  # Reader[Trade]
for message in reader:
    reveal_type(message.decode().price)  # float
reveal_type([m.decode() for m in reader.read_batch()])  # list[Trade]
reveal_type(open_reader("q", codec=Codec(Quote, "struct")))  # Reader[Quote]
reveal_type(open_reader("q"))  # Reader[Any]
reveal_type(open_reader("q", codec=[Trade, Quote]))  # Reader[Any]
reveal_type(open_reader("q", codec=Registry({1: Trade})))  # Reader[Any]
with open_reader("q", codec=Trade) as opened:
    reveal_type(opened)  # Reader[Trade]
history = replay("q", codec=Trade)
reveal_type(history)  # Replay[Trade]
reveal_type([m.decode() for m in history.read_batch()])  # list[Trade]
for merged in FanIn([reader]):
    reveal_type(merged.decode())  # Trade
reveal_type(FanIn())  # FanIn[Any]
both: FanIn[Trade | Quote] = FanIn([reader, open_reader("p", codec=Quote)])
reveal_type(both)  # FanIn[Trade | Quote]

async def open_without_blocking() -> None:
    async with aopen_reader("q", codec=Trade) as reader:
        reveal_type(reader)  # Reader[Trade]
    reveal_type(await aopen_reader("q", "name", codec=Codec(Quote, "struct")))  # Reader[Quote]
    reveal_type(await aopen_reader("q"))  # Reader[Any]
    reveal_type(await aopen_reader("q", codec=[Trade, Quote]))  # Reader[Any]
    async with aopen_writer("q", codec=Trade, lock_timeout=1) as writer:
        reveal_type(writer)  # Writer
    reveal_type(await aopen_writer("q"))  # Writer

async def route(fan_in: FanIn[Trade]) -> None:
    async for message in fan_in:
        reveal_type(message.decode())  # Trade
    async with Router("root", name="router", codec=Trade) as router:
        reveal_type(router)  # Router[Trade]
        async for message in router:
            reveal_type(message.decode())  # Trade
        reveal_type((await router.next()).decode())  # Trade
        async for batch in router.batches():
            reveal_type(batch[0].decode())  # Trade
    reveal_type(Router("root", name="router"))  # Router[Any]
"""


def expected() -> dict[int, str]:
    lines = enumerate(PROGRAM.splitlines(), start=1)
    return {number: line.partition("# ")[2] for number, line in lines if "reveal_type(" in line}


def short(name: str) -> str:
    """Leave the modules out of a type's name."""
    return re.sub(r"[\w.]+\.(\w+)", r"\1", name).replace("builtins.", "")


def mypy(program: Path) -> dict[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run([*command, str(program)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        int(line): short(name)
        for line, name in re.findall(r':(\d+): note: Revealed type is "(.*)"', done.stdout)
    }


def pyright(program: Path) -> dict[int, str]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*command, str(program)], cwd=ROOT, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["summary"]["errorCount"] == 0, report["generalDiagnostics"]
    return {
        entry["range"]["start"]["line"] + 1: short(entry["message"].rpartition(' is "')[2][:-1])
        for entry in report["generalDiagnostics"]
        if entry["severity"] == "information"
    }


@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)
def test_checkers_know_what_messages_decode_to(checker: object, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    assert callable(checker)
    assert checker(program) == expected()
