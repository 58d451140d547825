"""The systemd units of the operations guide pass systemd's own check."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "operations.md"
UNIT = re.compile(r"^# /etc/systemd/system/(\S+)\n", re.MULTILINE)


def units() -> dict[str, str]:
    """Return the text of each unit by file name."""
    found: dict[str, str] = {}
    for block in re.findall(r"^```ini\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        _, *parts = UNIT.split(block)
        found |= dict(zip(parts[::2], parts[1::2], strict=True))
    return found


def verify(directory: Path) -> str:
    names = [name.replace("@.", "@trades.") for name in units()]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(directory / name) for name in names)],
        capture_output=True,
        text=True,
        env={"SYSTEMD_UNIT_PATH": f"{directory}:", "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
    )
    lines = [
        line for line in done.stderr.splitlines() if str(directory) in line or "trades" in line
    ]
    return "\n".join(lines)


def write(directory: Path, program: Path) -> None:
    for name, text in units().items():
        text = re.sub(r"^(ExecStart=)\S+", rf"\g<1>{program}", text, flags=re.MULTILINE)
        (directory / name).write_text(text)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="there is no systemd-analyze (Debian's package systemd)",
)
def test_systemd_has_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    assert len(units()) == 4
    write(tmp_path, Path("/bin/true"))
    assert verify(tmp_path) == ""
    (tmp_path / "aioc-monitor.service").write_text("[Service]\nExecStart=/bin/true\nNicety=3\n")
    assert "Nicety" in verify(tmp_path), "what systemd finds is not seen here"
