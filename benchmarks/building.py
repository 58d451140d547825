"""Compile the C parts of the benchmarks with the flags of the engine."""

import os
import subprocess
from pathlib import Path

__all__ = ["ROOT", "build_program"]

ROOT = Path(__file__).resolve().parent.parent


def build_program(name: str, directory: Path) -> Path:
    """Compile ``NAME.c`` of this directory together with the engine; return the program's path."""
    program = directory / name
    flags = (ROOT / "csrc" / "compile_flags.txt").read_text(encoding="utf-8").split()
    sources = [*sorted((ROOT / "csrc").glob("*.c")), ROOT / "benchmarks" / f"{name}.c"]
    compiler = os.environ.get("CC", "cc")
    command: list[str | Path] = [compiler, *flags, "-I", ROOT / "csrc", *sources, "-o", program]
    subprocess.run(command, check=True)
    return program
