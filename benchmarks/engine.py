"""What do append and next cost in C alone, compared with the bare copy, checksum and store in them?

``engine_bench.c`` describes the comparison. It is compiled here, with the flags of the engine.
"""

import subprocess
from pathlib import Path

from benchmarks.building import build_program
from benchmarks.measure import Best, Result

MESSAGES = 20_000


def run(directory: Path, quick: bool) -> list[Result]:
    program = build_program("engine_bench", directory)
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
