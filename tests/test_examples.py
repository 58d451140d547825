"""Every example, run as its own process, does what its description says."""

import asyncio
import contextlib
import os
import random
import runpy
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import nautilus
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import cq4
from aiochronicle.errors import QueueGone, QueueNotFound

EXAMPLES = Path(__file__).parent.parent / "examples"
TIMEOUT_S = 100.0

# The last line that each example prints. Examples that are not listed have tests of their own below.
RESULTS = {
    "producer_consumer.py": "1000 orders received",
    "async_producer_consumer.py": "1000 orders received",
    "batch_writer.py": "200 spreads, each with 3 legs, durable up to seq 600",
    "zero_copy.py": "100 bars of 1000 prices written and read in place, checksum 9900",
    "resume_after_crash.py": "5000 orders, 5000 fills, each exactly once",
    "replay_range.py": "60 messages from 10:00 to 10:59",
    "market_data_ingest.py": "3000 ticks from 3 venues as one stream",
    "market_data_to_parquet.py": "15000 quotes in 3 Parquet files",
    "order_gateways.py": "600 orders, sent by 3 gateways, each exactly once",
    "order_router.py": "600 orders of 3 strategies sent and acknowledged",
    "strategy_fan_out.py": "2 strategies, each saw all 4000 ticks",
    "risk_aggregation.py": "4 strategies, positions {'ALFA': 2500, 'BRAVO': 2500}",
    "audit_recorder.py": "3000 audit records, each exactly once",
    "typed_messages.py": "250 of 300 orders accepted, 3 damaged messages skipped",
    "topics.py": "300 orders sent, 1200 ticks recorded from 2 venues",
    "replay_backtest.py": "the same stream: ecfce8170b74a864",
    "strategy_backtest.py": "292 orders live and in two back-tests, which agree to the nanosecond",
    "latest_quotes.py": "ALFA 49996, BRAVO 49997, CHARLIE 49998, DELTA 49999",
    "headers.py": "900 orders of 2 desks, 150 of fx in ALFA",
    "faststream_orders.py": "100 orders checked, 10 refused, 1 dead letter",
    "nautilus_backtest.py": "1000 quotes, 10 fills recorded, 1000 quotes in the catalog",
    "request_reply.py": "603 questions of 3 desks, each answered once by two services",
}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": str(nautilus.BESIDE)},
    )


def test_every_example_is_tested_and_listed() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {*RESULTS, "audit_tail.py", "service.py", "spark_jobs.py", "spark_pipeline.py"}
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"]({name})" in listed for name in names)


@pytest.mark.parametrize("name", RESULTS)
def test_example_does_what_it_says(name: str) -> None:
    if name.startswith("nautilus") and not nautilus.has_nautilus():
        pytest.skip(nautilus.REASON)
    done = run(name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(RESULTS[name])


def test_the_spark_pipeline_copies_every_tick_once() -> None:
    """A separate test, because Spark and the JVM always write to standard error."""
    done = run("spark_pipeline.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "3000 ticks of 2 venues copied in order of time, each exactly once"
    )


async def test_the_order_router_goes_on_when_a_strategy_takes_its_replies_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: dict[str, aiochronicle.Writer] = {}

    class Watched(aiochronicle.Router[bytes]):
        async def reply(self, source: int | aiochronicle.Message) -> aiochronicle.Writer:
            reply = await super().reply(source)
            replies[Path(reply.path).name] = reply
            return reply

    async def answered(name: str, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while name not in replies or replies[name].next_seq < count:
                await asyncio.sleep(0.001)

    monkeypatch.setattr(aiochronicle, "Router", Watched)
    (tmp_path / "orders").mkdir()
    route = runpy.run_path(str(EXAMPLES / "order_router.py"))["route"]
    with (
        aiochronicle.open_writer(tmp_path / "orders" / "leaves", ready=True) as leaves,
        aiochronicle.open_writer(tmp_path / "orders" / "stays", ready=True) as stays,
    ):
        routing = asyncio.create_task(route(tmp_path, 3))
        leaves.append(b"1")
        await answered("leaves", 1)
        shutil.rmtree(tmp_path / "orders.replies" / "leaves")
        with pytest.raises(QueueGone):
            replies["leaves"].flush_now()
        leaves.append(b"2")
        stays.append(b"3")
        assert await asyncio.wait_for(routing, TIMEOUT_S) == 3
    with aiochronicle.open_reader(tmp_path / "orders.replies" / "stays") as reader:
        assert [answer.payload for answer in reader] == [b"ack 3"]


def names_beside_segments(queue: Path) -> list[str]:
    """List the files, without segments: the writer may prepare its next one at any time."""
    return sorted(path.name for path in queue.rglob("*.*") if path.suffix != ".q")


def test_audit_tail_follows_without_leaving_a_trace(tmp_path: Path) -> None:
    queue = tmp_path / "audited"
    command = [sys.executable, str(EXAMPLES / "audit_tail.py"), str(queue), "--from-start"]
    with aiochronicle.open_writer(queue) as writer:
        writer.append(b"before", type_id=3)
        before = names_beside_segments(queue)
        tail = subprocess.Popen(
            [*command, "--idle-seconds", "2"], stdout=subprocess.PIPE, text=True
        )
        with tail:
            assert tail.stdout is not None
            assert tail.stdout.readline().endswith("Z  audited#0  type 3  b'before'\n")
            writer.append(b"after")
            assert tail.stdout.readline().endswith("Z  audited#1  type 0  b'after'\n")
            assert tail.stdout.read() == ""
        assert tail.returncode == 0
        assert names_beside_segments(queue) == before
    assert not list(queue.glob("readers/*"))


def test_audit_tail_says_what_is_wrong(tmp_path: Path) -> None:
    done = run("audit_tail.py", str(tmp_path / "missing"))
    assert done.returncode == 1
    assert "Check the path. open_writer creates a queue" in done.stderr
    assert "Traceback" not in done.stderr


def cut_power(queue: Path) -> int:
    """Remove all data that was not synced, but keep readers' positions: the worst result of a power cut.

    Returns how many bytes of the truncated segment remain.
    """
    durable_segment, durable_offset = struct.unpack("<QQ", (queue / "index.meta").read_bytes()[:16])
    for path in queue.glob("*.q"):
        segment, size = int(path.stem), path.stat().st_size
        if segment >= durable_segment:
            os.truncate(path, durable_offset if segment == durable_segment else 0)
            os.truncate(path, size)
    return int(durable_offset)


@pytest.mark.parametrize(
    ("name", "function", "output"),
    [("resume_after_crash.py", "route", "fills"), ("audit_recorder.py", "run_recorder", "audit")],
)
def test_a_power_cut_costs_no_result_and_repeats_none(
    tmp_path: Path, name: str, function: str, output: str
) -> None:
    example = runpy.run_path(str(EXAMPLES / name))
    if name == "audit_recorder.py":
        for service in example["SERVICES"]:
            (tmp_path / "services").mkdir(exist_ok=True)
            example["service"](tmp_path, service)
        total = example["EVENTS"] * len(example["SERVICES"])
    else:
        total = 1000
        with aiochronicle.open_writer(tmp_path / "orders") as orders:
            orders.append_many([b"%d" % number for number in range(total)])
    program = f"""
import runpy, sys
from pathlib import Path
runpy.run_path({str(EXAMPLES / name)!r})[{function!r}](Path({str(tmp_path)!r}), 350)
"""
    died = subprocess.run([sys.executable, "-c", program], timeout=TIMEOUT_S, check=False)
    assert died.returncode == -signal.SIGKILL
    assert cut_power(tmp_path / output) > 64, "something was flushed"
    with aiochronicle.open_reader(tmp_path / output) as reader:
        assert 0 < len(list(reader)) < 350, "and something was not"
    example[function](tmp_path, None)
    with aiochronicle.open_reader(tmp_path / output) as reader:
        causes = [message.cause for message in reader]
    assert len(causes) == len(set(causes)) == total


def start_service(directory: Path) -> subprocess.Popen[str]:
    service = subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / "service.py"), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert service.stdout is not None
    assert service.stdout.readline() == "ready\n"
    return service


def wait_for_fills(fills: aiochronicle.Reader, count: int) -> list[aiochronicle.Message]:
    found: list[aiochronicle.Message] = []
    while len(found) < count:
        assert fills.wait(TIMEOUT_S), "the service has stopped working"
        found += fills.read_batch(count - len(found))
    return found


def test_the_service_stops_in_order_and_fills_each_order_once(
    tmp_path: Path, rng: random.Random
) -> None:
    done: list[aiochronicle.Message] = []
    fills = aiochronicle.open_reader(tmp_path / "fills", wait_for_queue=True)
    with fills, start_service(tmp_path) as first:  # before there are any orders
        with aiochronicle.open_writer(tmp_path / "orders") as orders:
            orders.append_many([f"order {number}".encode() for number in range(400)])
        done += wait_for_fills(fills, 50)
        first.send_signal(signal.SIGTERM)
        output, errors = first.communicate(timeout=TIMEOUT_S)
        assert (first.returncode, errors) == (0, "")
        assert output.splitlines()[-1].startswith("stopped with ")
        assert output.endswith(" fills on disk\n")
        for _ in range(3):  # killed without a clean shutdown
            with start_service(tmp_path) as victim:
                done += wait_for_fills(fills, rng.randrange(1, 60))
                victim.kill()
        with start_service(tmp_path) as last:
            done += wait_for_fills(fills, 400 - len(done))
            last.send_signal(signal.SIGINT)
            output, errors = last.communicate(timeout=TIMEOUT_S)
            assert (last.returncode, errors) == (0, "")
            assert output.splitlines()[-1] == "stopped with 400 fills on disk"
        assert fills.poll() is None
        assert [fill.payload for fill in done] == [b"filled order %d" % n for n in range(400)]
        done.clear()


def test_a_power_cut_costs_the_service_nothing(tmp_path: Path) -> None:
    with aiochronicle.open_writer(tmp_path / "orders") as orders:
        orders.append_many([f"order {number}".encode() for number in range(400)])
    fills = aiochronicle.open_reader(tmp_path / "fills", wait_for_queue=True)
    with fills, start_service(tmp_path) as victim:
        wait_for_fills(fills, 150)
        victim.kill()
    cut_power(tmp_path / "fills")
    with start_service(tmp_path) as last, aiochronicle.open_reader(tmp_path / "fills") as fills:
        done = wait_for_fills(fills, 400)
        last.send_signal(signal.SIGTERM)
        last.communicate(timeout=TIMEOUT_S)
        assert fills.poll() is None
    assert [fill.payload for fill in done] == [b"filled order %d" % n for n in range(400)]
    done.clear()


def test_java_ticks_goes_on_after_its_last_commit(tmp_path: Path) -> None:
    """Our own writer plays the feed; the service also processes ticks from before it started."""
    script = EXAMPLES / "java_ticks" / "tick_service.py"
    service = runpy.run_path(str(script))

    def tick(price: float) -> cq4.Fields:
        return cq4.Fields({"symbol": "ALFA", "price": price, "time": 1})

    def alerts() -> list[str]:
        with (
            contextlib.suppress(QueueNotFound),
            aiochronicle.open_reader(tmp_path / "alerts") as reader,
        ):
            return [message.decode().name for message in reader]
        return []

    with aiochronicle.open_writer(tmp_path / "ticks", format="cq4") as feed:
        for price in (109.0, 1.0, 109.0):
            feed.method("tick", tick(price))
        killed = subprocess.Popen([sys.executable, str(script), str(tmp_path)])
        eventually(lambda: len(alerts()) == 2 and not lag(tmp_path))
        killed.kill()
        killed.wait()
        feed.method("tick", tick(109.0))
        feed.method("closed", tick(1.0))
    assert asyncio.run(service["serve"](tmp_path)) == 1
    assert alerts() == ["alert"] * 3 + ["done"]


def lag(root: Path) -> int:
    """Return how many messages the service has yet to commit."""
    with aiochronicle.open_reader(root / "ticks", "service") as reader:
        return sum(1 for _ in reader)
