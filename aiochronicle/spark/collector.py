"""Which of its garbage collectors Java is to use.

With the parallel one the way of rows to and from Python takes 5 to 10 % less: the default one looks at every
reference that is stored. Java does not start if its options name two, so this one is named only where nobody
has said a word about them.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

__all__ = ["collector_settings"]

SETTING = "spark.driver.defaultJavaOptions"
COLLECTOR = "-XX:+UseParallelGC"

# What Java, or the scripts that start it for Spark, take options from.
VARIABLES = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
)


def collector_settings(config: Mapping[str, str]) -> dict[str, str]:
    """Return the setting with which Spark starts a Java of its own; none if others have chosen."""
    texts = [*map(str, config.values()), *(os.environ.get(name, "") for name in VARIABLES)]
    if SETTING in config or any("GC" in text for text in texts) or _has_java_options(_defaults()):
        return {}
    return {SETTING: COLLECTOR}


def _defaults() -> Path:
    """Return the file of settings that Spark itself reads, if it is there."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"


def _has_java_options(file: Path) -> bool:
    try:
        return "JavaOptions" in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
