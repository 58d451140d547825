"""Every example, run as its own process, does what it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import aiochronicle

EXAMPLES = Path(__file__).parent.parent / "examples"
TIMEOUT_S = 60.0

# What the last line of each says. An example that is not listed here has no test: see below.
RESULTS = {
    "producer_consumer.py": "1000 orders received",
    "batch_writer.py": "200 spreads, each with 3 legs, durable up to seq 600",
    "zero_copy.py": "100 bars of 1000 prices written and read in place, checksum 9900",
    "resume_after_crash.py": "5000 orders, 5000 fills, each exactly once",
    "replay_range.py": "60 messages from 10:00 to 10:59",
    "market_data_ingest.py": "3000 ticks from 3 venues as one stream",
    "order_gateways.py": "600 orders, sent by 3 gateways, each exactly once",
    "order_router.py": "600 orders of 3 strategies sent and acknowledged",
    "strategy_fan_out.py": "2 strategies, each saw all 4000 ticks",
    "risk_aggregation.py": "4 strategies, positions {'ALFA': 2500, 'BRAVO': 2500}",
    "audit_recorder.py": "3000 audit records, each exactly once",
    "replay_backtest.py": "the same stream: ecfce8170b74a864",
}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )


def test_every_example_is_tested_and_listed() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {*RESULTS, "audit_tail.py"}
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"]({name})" in listed for name in names)


@pytest.mark.parametrize("name", RESULTS)
def test_example_does_what_it_says(name: str) -> None:
    done = run(name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(RESULTS[name])


def test_audit_tail_follows_without_leaving_a_trace(tmp_path: Path) -> None:
    queue = tmp_path / "audited"
    command = [sys.executable, str(EXAMPLES / "audit_tail.py"), str(queue), "--from-start"]
    with aiochronicle.open_writer(queue) as writer:
        writer.append(b"before", type_id=3)
        before = sorted(path.name for path in queue.rglob("*.*"))
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
        assert sorted(path.name for path in queue.rglob("*.*")) == before
    assert not list(queue.glob("readers/*"))


def test_audit_tail_says_what_is_wrong(tmp_path: Path) -> None:
    done = run("audit_tail.py", str(tmp_path / "missing"))
    assert done.returncode == 1
    assert "Create it with open_writer, or check the path." in done.stderr
    assert "Traceback" not in done.stderr
