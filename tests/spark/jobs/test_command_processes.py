"""Jobs in separate processes: Ctrl-C and spark-submit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
from cli.running import Terminal, lines_of

from aiochronicle import open_writer
from aiochronicle.spark.runtime.java import ensure_java

WAIT_S = 200.0


def test_interrupted_it_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    out, long = tmp_path / "stream", tmp_path / "long"
    with open_writer(long) as writer:  # long enough for the interrupt to come first
        for _ in range(20):
            writer.append_many([b"x"] * 50_000)
    terminal = Terminal(80, ["spark", "audit", long, "--out", out, "--ui"])
    try:
        terminal.read_until("Spark's page is http://127.0.0.1:", WAIT_S)
        terminal.interrupt()
        terminal.read_until(None, WAIT_S)
        assert terminal.end() == 130
    finally:
        terminal.kill()
    shown = [line for line in lines_of(terminal.output) if line]
    assert shown[0] == "audit: starting Spark"
    assert shown[-1].removeprefix("^C") == "aioc: interrupted"
    assert "Traceback" not in terminal.output
    assert not list(out.rglob("*"))


SUBMITTED = """
import sys
from aiochronicle.spark import session
from aiochronicle.spark.__main__ import main
print(session().sparkContext.getConf().get("spark.driver.bindAddress"))
sys.exit(main())
"""


def test_it_runs_under_spark_submit(queue: Path, tmp_path: Path) -> None:
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    program = tmp_path / "program.py"
    program.write_text(SUBMITTED)
    done = subprocess.run(
        [submit, "--master", "local[1]", program, "audit", str(queue), "--json"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "JAVA_HOME": str(ensure_java()), "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    # spark-submit prints a program's standard error to standard output.
    printed = done.stdout.splitlines()
    assert printed[0] == "127.0.0.1", "nothing listens to the outside where Spark is local"
    assert json.loads(printed[-1])["messages"] == 1
