"""``aioc spark``, also ``python -m aiochronicle.spark``: dry runs, results, errors."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle.spark.__main__ import main
from spark.market import record, trades_of


def test_dry_runs_say_what_would_be_done_and_do_nothing(
    root: Path, rng: random.Random, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(root / "binance", rng, 100)
    before = sorted(tmp_path.rglob("*"))
    out = str(tmp_path / "out")
    for command in (
        ["bars", str(root), "--every", "1s", "--out", out],
        ["archive", str(root), "--out", out],
        ["audit", str(root), "--out", out],
        ["asof", str(root)],
        ["quality", str(root), "--messages", "trade", "--by", "symbol"],
    ):
        assert main([*command, "--dry-run"]) == 0
        text = capsys.readouterr().out
        assert "binance: 100 messages, seq 0 to 99" in text
        assert "would" in text
        assert main([*command, "--dry-run", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["queues"] == [
            {"source": "binance", "messages": 100, "start_seq": 0, "end_seq": 100}
        ]
    (root / "rows.parquet").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["replay", str(root), "--out", out, "--dry-run"]) == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_mistakes_are_told_before_spark_is_started(
    root: Path, rng: random.Random, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = ["bars", str(root), "--every", "1s"]
    assert main(bars) == 3
    assert "there is no queue in or below it" in capsys.readouterr().err
    record(root / "a", rng, 10)
    for command, complaint in (
        ([*bars, "--trades", "fill"], "aioc: no queue has a type 'fill'; there are Quote, Trade"),
        ([*bars, "--queues", "b"], "no queue b; there are a"),
        ([*bars, "--start", "yesterday"], "--start must be nanoseconds since 1970 or ISO 8601"),
        ([*bars, "--start", "9" * 23], "too far ahead"),
        ([*bars, "--queues", ""], "--queues is empty"),
        ([*bars, "--pattern", "("], "--pattern '(' is no regular expression"),
        ([*bars, "--queues", "a", "--pattern", "a"], "--queues and --pattern exclude each other"),
        ([*bars, "--moved", "/nowhere"], "Give the directory that retention moves segments to"),
        (["asof", str(root), "--quotes", "bid"], "no queue has a type 'bid'"),
        (["archive", str(root), "--out", str(root / "a" / "control.meta")], "must be a directory"),
        ([*bars, "--out", str(tmp_path)], "--overwrite replaces it"),
        ([*bars, "--out", str(root), "--overwrite"], "so it is not replaced"),
        ([*bars, "--out", str(root / "a"), "--overwrite"], "so it is not replaced"),
        ([*bars, "--plot", "bars.svg"], "give --plot a name that ends in .png"),
        ([*bars, "--plot", "/nowhere/bars.png"], "no such directory for the picture"),
        ([*bars, "--bad-records", "x"], "what --skip-corrupt steps over: give both"),
        (["bars", str(root), "--every", "1x"], "a duration is like 250ms"),
        (["quality", str(root), "--late", "soon"], "a duration is like 250ms"),
        (["quality", str(root), "--number", "id"], "Name their type: --messages TYPE"),
        (
            ["quality", str(root), "--messages", "trade", "--time", "price"],
            "price of trade is of type double, and has to be of whole numbers",
        ),
        (["replay", str(tmp_path / "no"), "--out", "x"], "there is no such archive"),
        (["replay", str(root), "--out", "x"], "neither an archive nor any Parquet file. Give the"),
    ):
        assert main(command) in (1, 2, 3)
        error = capsys.readouterr().err
        assert complaint in error
        assert error.count("\n") == 1
    assert main([*bars, "--queues", "b"]) == 3, "there is none"
    assert main([*bars, "--start", "yesterday"]) == 2, "a usage error"
    capsys.readouterr()
    for wrong, complaint in (
        (["bars", str(root)], "give one of --every, --ticks and --volume"),
        ([*bars, "--ticks", "5"], "give one of --every, --ticks and --volume"),
        ([*bars, "--by", "venue", "--per-queue"], "--by and --per-queue exclude each other"),
        (["bars", str(root), "--ticks", "0"], "--ticks"),
        (["bars", str(root), "--volume", "nan"], "must be a number above 0, not 'nan'"),
        ([*bars, "--show", "-3"], "--show"),
        (["bars", str(root), "--evry", "1s"], "Did you mean --every?"),
        ([*bars, "--overwite=1"], "Did you mean --overwrite?"),
        (["pack", "--out", "x", "--xyz"], "Unknown option: --xyz"),
        (["archive", str(root), "--outt", "x"], "Did you mean"),
        (["archive", str(root)], "--out"),
        (
            ["archive", str(root), "--out", "x", "--reader", "a", "--no-reader"],
            "--reader and --no-reader exclude each other",
        ),
    ):
        assert main(wrong) == 2
        told = capsys.readouterr()
        assert complaint in told.err
        assert (told.err.count("\n"), told.out) == (1, "")
    assert main(["bars", "--every", "1s", "--dry-run", "--", "--there"]) == 3
    assert "--there: there is no such directory" in capsys.readouterr().err


def test_without_java_it_is_said_what_to_do(
    queue: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main(["audit", str(queue)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("aioc: /nowhere: $JAVA_HOME has no java that runs; Spark needs 17")
    assert "put it on the PATH" in error


def test_commands_do_what_they_say(
    spark: SparkSession,
    root: Path,
    rng: random.Random,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands run in the tests' session and do not stop it."""
    record(root / "binance", rng, 400)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name in ("damaged", "whole"):
        with aiochronicle.open_writer(mixed / name, segment_size=1 << 20) as writer:
            writer.append_many([b"x"] * 100)
    with (mixed / "damaged" / "000000000.q").open("r+b") as segment:
        segment.seek(64 * 60)
        segment.write(b"\xff" * 64)
    commands = [
        ["bars", str(root), "--every", "1s", "--show", "2", "--plot", str(tmp_path / "bars.png")],
        ["archive", str(root), "--out", str(tmp_path / "archive")],
        ["audit", str(root), "--expect", "0000"],
        ["asof", str(root), "--show", "1"],
        ["quality", str(root), "--messages", "trade", "--out", str(tmp_path / "quality")],
        ["quality", str(root), "--out", str(tmp_path / "quality"), "--overwrite"],
        ["archive", str(mixed), "--out", str(tmp_path / "archive")],
        ["replay", str(tmp_path / "archive"), "--out", str(tmp_path / "again")],
        ["audit", str(mixed / "damaged"), "--skip-corrupt"],
    ]
    assert [main(command) for command in commands] == [0, 0, 1, 0, 0, 0, 5, 0, 0]
    text, complaints = capsys.readouterr()
    assert re.search(r"^source +symbol +bar ", text, re.MULTILINE)
    assert (tmp_path / "bars.png").exists()
    assert "binance: 400 messages verified in 2 files of" in text
    assert "archived up to seq 400" in text
    assert "whole: 100 messages verified in 1 file of" in text
    assert "400 messages of 1 queue\n" in text
    assert "aioc: the digest is not 0000" in complaints
    assert "quality: 1 row in" in text
    damage = r"aioc: .*damaged/000000000.q at offset \d+: .* Read on with --skip-corrupt, or"
    assert re.search(damage, complaints)
    assert "Traceback" not in complaints
    assert "audit: damaged messages that were stepped over: 1" in complaints
    assert re.search(r"audit:   damaged \d+: .*000000000.q at offset \d+: ", complaints)
    assert "binance: 400 messages written and verified" in text
    again = ["replay", str(tmp_path / "archive"), "--out", str(tmp_path / "again"), "--dry-run"]
    assert main(again) == 1, "the queues are newer by now"
    assert "binance: 400 messages in 2 files\n" in (told := capsys.readouterr()).out
    assert "Timestamps of one queue never decrease: replay into a new directory." in told.err
    assert "bars: done, " in complaints
    assert "quote_bid" in text
    assert spark.range(3).count() == 3


def test_many_rows_are_written_by_many_tasks_in_order(
    spark: SparkSession,
    root: Path,
    rng: random.Random,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asof = sys.modules["aiochronicle.spark.jobs.asof"]
    monkeypatch.setattr(asof, "ROWS_PER_SLICE", 100)
    monkeypatch.setattr(asof, "SLICES_PER_TASK", 1)
    messages = record(root / "binance", rng, 600) + record(root / "kraken", rng, 300)
    trades = sorted((m.timestamp_ns, m.source, m.seq) for m, _ in trades_of(messages))
    small = "spark.sql.adaptive.coalescePartitions.enabled"  # simulate too many rows for one task
    spark.conf.set(small, "false")
    try:
        assert main(["asof", str(root), "--out", str(tmp_path / "out")]) == 0
    finally:
        spark.conf.unset(small)
    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    assert len(files) > 1
    tables = [parquet.read_table(file, partitioning=None) for file in files]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [(row["timestamp_ns"], row["source"], row["seq"]) for row in rows] == trades


def test_full_disk_under_the_archive(root: Path, rng: random.Random, tmp_path: Path) -> None:
    """The archive is on a small file system in a separate mount namespace."""
    with aiochronicle.open_writer(root / "a", segment_size=4 << 20) as writer:
        for _ in range(3000):
            writer.append(rng.randbytes(1000))
    disk = tmp_path / "disk"
    disk.mkdir()
    shell = f'mount -t tmpfs -o size=1m tmpfs {disk} && "$@"; s=$?; find {disk} -name "*.parquet"; exit $s'
    inside = ["sh", "-c", shell, "sh", sys.executable, "-m", "aiochronicle.spark"]
    done = subprocess.run(
        [
            "unshare",
            "--map-root-user",
            "--mount",
            *inside,
            "archive",
            str(root),
            "--out",
            str(disk),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, ""), "no file is left behind"
    assert "No space left on device" in done.stderr.splitlines()[-1]
    with aiochronicle.open_reader(root / "a", "archive") as reader:
        message = reader.poll()
        assert message is not None
        assert message.seq == 0, "nothing was archived, so retention has to wait"
