"""Runs the model checker: find or fetch spin, compile a model's verifier, search every state.

A search that was cut short (depth, memory, time) is an error here, never a result.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parent
TOOLS = MODELS.parent.parent / "build" / "tools"

# Optimisation would cost more compile time than it saves in the search.
COMPILE = ("gcc", "-O0", "-w", "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=3072", "-o", "pan", "pan.c")
DEPTH_MAX = 20_000
HASH_BITS = 22
SEARCH_SECONDS = 600
TRACE_LINES = 60

CUT_SHORT = re.compile(r"max search depth too small|Search not completed|reached -DMEMLIM|aborted")


class SpinMissingError(Exception):
    """spin is not installed and could not be fetched; the text says why."""


@dataclass(frozen=True)
class Verdict:
    """The result of a search of the whole state space."""

    states: int
    violation: str | None  # the first assertion that failed
    trace: str  # the last steps before it


def find_spin() -> str:
    """Return the path of spin: installed, fetched earlier, or fetched now from Debian's archive."""
    fetched = TOOLS / "usr" / "bin" / "spin"
    installed = shutil.which("spin")
    if installed:
        return installed
    if not fetched.exists():
        _fetch()
    return str(fetched)


def _fetch() -> None:
    """Unpack Debian's package under build/tools; this needs no privileges and installs nothing."""
    advice = "install the package 'spin' of your distribution"
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise SpinMissingError(f"spin is not here, and this is not Debian; {advice}")
    TOOLS.mkdir(parents=True, exist_ok=True)
    download = subprocess.run(
        ["apt-get", "download", "-q", "spin"], cwd=TOOLS, capture_output=True, text=True
    )
    packages = sorted(TOOLS.glob("spin_*.deb"))
    if download.returncode != 0 or not packages:
        raise SpinMissingError(
            f"spin is not here and cannot be fetched ({download.stderr.strip()}); {advice}"
        )
    subprocess.run(["dpkg", "-x", packages[-1].name, "."], cwd=TOOLS, check=True)


def search(model: str, defines: tuple[str, ...], work: Path) -> Verdict:
    """Search all states of `model` with these macros defined, in the directory `work`."""
    spin = find_spin()
    options = [f"-D{define}" for define in defines]
    source = work / f"{model}.pml"
    shutil.copy(MODELS / source.name, source)
    _run([spin, *options, "-a", source.name], work)
    _run(list(COMPILE), work)
    # -E: a reader that sleeps at the end is not an error by itself; the models define errors.
    output = _run(["./pan", "-E", f"-m{DEPTH_MAX}", f"-w{HASH_BITS}"], work)
    errors = re.search(r"errors: (\d+)", output)
    states = re.search(r"(\d+) states, stored", output)
    violated = re.search(r"assertion violated (.*) \(at depth", output)
    complete = "Full statespace search for:" in output and errors and states
    if not complete or (not violated and CUT_SHORT.search(output)):
        raise RuntimeError(f"{model} {defines}: the search is not complete\n{output}")
    if errors and int(errors[1]) and not violated:
        raise RuntimeError(f"{model} {defines}: stopped by something else\n{output}")
    trace = ""
    if violated:
        steps = _run([spin, "-t", "-p", "-g", *options, source.name], work)
        trace = "\n".join(steps.splitlines()[-TRACE_LINES:])
    return Verdict(int(states[1]) if states else 0, violated[1] if violated else None, trace)


def _run(command: list[str], work: Path) -> str:
    done = subprocess.run(
        command, cwd=work, capture_output=True, text=True, timeout=SEARCH_SECONDS, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout
