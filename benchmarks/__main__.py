"""Command line of the benchmarks."""

import argparse
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from benchmarks import (
    append,
    columns,
    durable,
    durable_peers,
    engine,
    foreign,
    java,
    java_waiting,
    longest,
    loop,
    merge,
    opening,
    peers,
    read,
    recorder,
    roll,
    seek,
    spark,
    together,
    typed,
    wake,
)
from benchmarks.measure import Result, workspace

Question = Callable[[Path, bool], Iterable[Result]]

QUESTIONS: dict[str, tuple[str, Question]] = {
    module.__name__.rpartition(".")[2]: ((module.__doc__ or "").splitlines()[0], module.run)
    for module in (
        append,
        read,
        typed,
        columns,
        loop,
        peers,
        wake,
        durable,
        together,
        merge,
        engine,
        roll,
        opening,
        seek,
        java,
        foreign,
        longest,
        recorder,
        durable_peers,
        java_waiting,
        spark,
    )
}
for part in spark.PARTS:
    QUESTIONS[f"spark-{part}"] = (f"And of that, only {part}?", partial(spark.run, parts=[part]))
# They take minutes, and need packages that are large or not written in Python.
ON_REQUEST = tuple(
    name
    for name in QUESTIONS
    if name.startswith(("spark", "java", "recorder", "longest", "durable_", "foreign"))
)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures what the project promises about speed, and compares it with the bar. "
        "All payloads are 100 bytes, with checksums and verification on.",
        epilog="The exit status is 1 if a bar was missed in a full run; --quick only shows it.",
    )
    parser.add_argument("--list", action="store_true", help="name the questions and stop")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(QUESTIONS),
        metavar="NAME",
        help="answer this question only; may be given several times (foreign, java, spark …: only so)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds and a 1 GiB queue instead of 10 GiB: shows that all works, not how fast",
    )
    parser.add_argument(
        "--messages",
        type=int,
        help="how many messages the recording of spark-market has (default: 13,000,000, 4 GiB)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument(
        "--directory",
        type=Path,
        help="where the queues are made: on a disk, with room for 12 GiB (default: /var/tmp)",
    )
    return parser.parse_args(arguments)


def show(result: Result) -> None:
    verdict = "pass" if result.passed else "FAIL"
    measured = f"{result.measured:.2f} {result.unit}"
    bar = f"{'>=' if result.is_least else '<='} {result.bar:.3g} {result.unit}"
    print(
        f"{result.question:8} {result.what:58} {measured:>10} {bar:>11}  {verdict}  {result.detail}"
    )


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        for name, (summary, _) in QUESTIONS.items():
            print(f"{name:16} {summary}")
        return 0
    results: list[Result] = []
    with workspace(options.directory) as directory:
        for name in options.only or [name for name in QUESTIONS if name not in ON_REQUEST]:
            answer: Callable[..., Iterable[Result]] = QUESTIONS[name][1]
            if options.messages is not None and name.startswith("spark"):
                answer = partial(answer, messages=options.messages)
            for result in answer(directory, options.quick):
                show(result)
                sys.stdout.flush()
                results.append(result)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    missed = sum(not result.passed for result in results)
    print(f"{len(results) - missed} of {len(results)} within their bars")
    return int(missed > 0 and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
