"""``retention`` and ``why-kept``: what they leave alone, and what they report."""

import tomllib
from pathlib import Path

from aiochronicle import configure, open_writer
from cli.running import aioc


def test_retention_reset_leaves_other_settings(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    open_writer(queue).close()
    configure(queue, flush="sync", capacity=1 << 20)
    assert aioc("retention", queue, "--max-bytes", "1M").status == 0
    assert aioc("retention", queue, "--reset").status == 0
    said = tomllib.loads((queue / "settings.toml").read_text())
    assert (said["flush"], set(said)) == ("sync", {"flush", "capacity"})
