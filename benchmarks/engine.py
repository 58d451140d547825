"""What do append and next cost in C alone, next to the bare copy, checksum and store in them?

``engine_bench.c`` says what exactly is compared. It is compiled here, with the flags of the
engine.
"""

import os
import subprocess
from pathlib import Path

from benchmarks.measure import Best, Result

ROOT = Path(__file__).resolve().parent.parent
MESSAGES = 20_000


def build(program: Path) -> None:
    """Compile the C side together with the engine."""
    flags = (ROOT / "csrc" / "compile_flags.txt").read_text(encoding="utf-8").split()
    sources = [*sorted((ROOT / "csrc").glob("*.c")), Path(__file__).with_name("engine_bench.c")]
    compiler = os.environ.get("CC", "cc")
    command: list[str | Path] = [compiler, *flags, "-I", ROOT / "csrc", *sources, "-o", program]
    subprocess.run(command, check=True)


def run(directory: Path, quick: bool) -> list[Result]:
    program = directory / "engine_bench"
    build(program)
    rounds = "3" if quick else "40"
    output = subprocess.run(
        [program, directory, rounds, str(MESSAGES)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    lines = (line.split() for line in output.splitlines())
    best = Best({name: min(map(float, figures)) for name, *figures in lines})

    def against_bare(call: str) -> Result:
        bare = f"{call}_bare"
        detail = best.describe(call, bare)
        return Result.at_most(
            "engine", f"{call} in C / its bare loop", best.ratio(call, bare), 1.5, "x", detail
        )

    return [against_bare("append"), against_bare("next")]
