"""The garbage collector that Java is started with, which others may have chosen."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aiochronicle.spark.collector import SETTING, VARIABLES, collector_settings

PROGRAM = """
from aiochronicle.spark import session
from tests.spark.test_collector import collectors
spark = session(config={'spark.driver.extraJavaOptions': '-XX:+UseSerialGC'})
print(collectors(spark))
spark.stop()
"""


@pytest.fixture(autouse=True)
def nobody_has_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def collectors(spark: SparkSession) -> list[str]:
    """Return what the collectors of a session's Java are called."""
    jvm: Any = spark.sparkContext._jvm
    beans = jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    return sorted(bean.getName() for bean in beans)


def test_a_session_collects_in_parallel(spark: SparkSession) -> None:
    assert collectors(spark) == ["PS MarkSweep", "PS Scavenge"]


def test_other_options_of_java_are_kept() -> None:
    quiet = {"spark.driver.extraJavaOptions": "-Dlog4j2.level=off", "spark.ui.enabled": False}
    assert collector_settings(quiet) == {SETTING: "-XX:+UseParallelGC"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config",
    [{"spark.driver.extraJavaOptions": "-Xss4m -XX:+UseZGC"}, {SETTING: "-Dwhatever=1"}],
)
def test_settings_win(config: dict[str, str]) -> None:
    assert collector_settings(config) == {}


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables_win(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "-XX:+UseSerialGC")
    assert collector_settings({}) == {}


def test_the_settings_of_an_administrator_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = tmp_path / "spark-defaults.conf"
    defaults.write_text("spark.ui.enabled false\n")
    assert collector_settings({}) != {}
    defaults.write_text("spark.driver.extraJavaOptions -XX:+UseG1GC\n")
    assert collector_settings({}) == {}
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert collector_settings({}) != {}
    (tmp_path / "conf").mkdir()
    defaults.rename(tmp_path / "conf" / defaults.name)
    assert collector_settings({}) == {}


def test_java_starts_with_the_collector_of_others() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout.strip() == "['Copy', 'MarkSweepCompact']", ended.stderr
