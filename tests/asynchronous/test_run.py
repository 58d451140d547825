"""``aiochronicle.run`` prefers uvloop and ends as asyncio.run does."""

import asyncio
import inspect
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

import aiochronicle


async def loop_in_use() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_run_uses_uvloop_and_closes_it() -> None:
    loop = aiochronicle.run(loop_in_use())
    assert isinstance(loop, uvloop.Loop)
    assert loop.is_closed()


def test_run_calls_an_async_function() -> None:
    assert isinstance(aiochronicle.run(loop_in_use), uvloop.Loop)


def test_run_takes_another_loop_and_debug() -> None:
    async def main() -> tuple[asyncio.AbstractEventLoop, bool]:
        return asyncio.get_running_loop(), asyncio.get_running_loop().get_debug()

    loop, debug = aiochronicle.run(main(), debug=True, loop_factory=asyncio.SelectorEventLoop)
    assert isinstance(loop, asyncio.SelectorEventLoop)
    assert debug
    assert not aiochronicle.run(main(), debug=False)[1]


def test_run_delivers_what_was_appended(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        async with (
            aiochronicle.aopen_writer(tmp_path / "ticks") as writer,
            aiochronicle.aopen_reader(tmp_path / "ticks", "r") as reader,
        ):
            task = asyncio.create_task(reader.next())
            await asyncio.sleep(0)  # it waits now and will be woken
            writer.append(b"hello")
            return [(await task).payload]

    assert aiochronicle.run(main()) == [b"hello"]


def test_run_raises_what_main_raises_after_it_has_cancelled_the_rest() -> None:
    cancelled: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append("wait")

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert not task.done()
        raise LookupError("main failed")

    with pytest.raises(LookupError, match="main failed"):
        aiochronicle.run(main())
    assert cancelled == ["wait"]


async def test_run_refuses_to_run_inside_a_loop() -> None:
    coroutine = loop_in_use()
    with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
        aiochronicle.run(coroutine)
    coroutine.close()


def test_run_has_the_parameters_of_asyncio_run() -> None:
    ours = inspect.signature(aiochronicle.run).parameters
    assert {*inspect.signature(asyncio.run).parameters} <= {*ours}


WITHOUT_UVLOOP = """
import sys
sys.modules["uvloop"] = None  # importing it raises ImportError
import asyncio, aiochronicle
async def main():
    return asyncio.get_running_loop()
print(type(aiochronicle.run(main())).__module__)
"""


def test_run_without_uvloop_uses_asyncio() -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_UVLOOP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("asyncio.unix_events\n", "")


INTERRUPTED = """
import asyncio, aiochronicle
async def main():
    try:
        print("ready", flush=True)
        await asyncio.Event().wait()
    finally:
        print("cleaned up", flush=True)
try:
    aiochronicle.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_run_cancels_main_on_an_interrupt() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert output == "cleaned up\ninterrupted\n"
