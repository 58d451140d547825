"""``dead``: messages in a dead-letter queue, which a group has given up."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

import aiochronicle
from aiochronicle import DeadLetter
from aiochronicle._base.printable import printable
from aiochronicle.cli.arguments import Json, QueuePath, Seconds, path_argument
from aiochronicle.cli.exits import NOT_FOUND, Refused
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.units import amount, when

__all__ = ["app"]

app = App(
    name="dead",
    help="List dead letters; retry them, or drop them.\n\n"
    "Example: aioc dead /var/lib/feeds/orders.dead",
    help_format="markdown",
    help_epilogue="",
    version_flags=(),
)

Seqs = Annotated[int, Parameter(metavar="SEQ", help="which; the SEQ of the list")]
All = Annotated[
    bool, Parameter(name="--all", parse=True, negative=(), show_default=False, help="all of them")
]


def _check(queue: Path) -> None:
    """Refuse anything but a dead-letter queue: changing it would create a group in it."""
    if "DeadLetter" not in _types(queue):
        raise Refused(f"{queue}: is no dead-letter queue", NOT_FOUND)


def _types(queue: Path) -> set[str]:
    aiochronicle.inspect(queue)  # raises the right error if there is no queue
    try:
        return {entry.name for entry in aiochronicle.Registry.load(queue)}
    except aiochronicle.ChronicleError:
        return set()


@app.command(name="list")
@app.default
def list_letters(queue: QueuePath, /, *, json: Json = False) -> None:
    """List the dead letters that were neither retried nor dropped.

    Example: aioc dead list /var/lib/feeds/orders.dead
    """
    _check(queue)
    found = aiochronicle.list_dead_letters(queue)
    Output(as_json=json).table(
        [_record(seq, letter) for seq, letter in found],
        [
            Column("SEQ", right=True),
            Column("DIED", rank=2),
            Column("QUEUE", rank=3, least=10, ends=True),
            Column("MESSAGE", right=True, rank=1),
            Column("GROUP", rank=4, least=6),
            Column("ATTEMPTS", right=True, rank=2),
            Column("SIZE", right=True, rank=5),
            Column("ERROR", least=20),
        ],
        [
            [
                f"{seq:,}",
                when(letter.died_ns, parts=False),
                letter.queue,
                f"{letter.seq:,}",
                letter.group,
                f"{letter.attempts:,}",
                amount(len(letter.payload)),
                printable(letter.error or "its lease ended, or its process died"),
            ]
            for seq, letter in found
        ],
        empty="there are no dead letters",
    )


def _record(seq: int, letter: DeadLetter) -> dict[str, Any]:
    fields = msgspec.structs.asdict(letter)
    fields["message_seq"] = fields.pop("seq")
    return {"seq": seq, **fields}


def _chosen(seqs: tuple[int, ...], everything: bool) -> set[int] | None:
    if bool(seqs) == everything:
        raise Refused("say which: seqs of the list, or --all")
    return None if everything else set(seqs)


@app.command
def retry(
    queue: QueuePath,
    /,
    *seqs: Seqs,
    everything: All = False,
    to: Annotated[
        Path | None, path_argument("QUEUE", "another queue than the one they came from")
    ] = None,
    lock_timeout: Annotated[
        Seconds, Parameter(help="how long to wait for a queue that is open for writing")
    ] = 0.0,
    json: Json = False,
) -> None:
    """Append dead letters again to the queue they came from.

    That queue must not be open for writing elsewhere.

    Example: aioc dead retry /var/lib/feeds/orders.dead 3 4
    """
    wanted = _chosen(seqs, everything)
    _check(queue)
    done = aiochronicle.retry_dead_letters(queue, wanted, to=to, lock_timeout=lock_timeout)
    _tell(queue, wanted, done, "retried", json)


@app.command
def drop(queue: QueuePath, /, *seqs: Seqs, everything: All = False, json: Json = False) -> None:
    """Discard dead letters. Their records stay in the queue until retention removes them.

    Example: aioc dead drop /var/lib/feeds/orders.dead --all
    """
    wanted = _chosen(seqs, everything)
    _check(queue)
    _tell(queue, wanted, aiochronicle.drop_dead_letters(queue, wanted), "dropped", json)


def _tell(queue: Path, wanted: set[int] | None, done: list[int], how: str, json: bool) -> None:
    missing = sorted((wanted or set()) - set(done))
    out = Output(as_json=json)
    if json:
        out.json({"path": str(queue), "done": how, "seqs": done, "missing": missing})
    else:
        out.line(f"{len(done):,} {how}")
    if missing:
        names = ", ".join(map(str, missing))
        raise Refused(f"{queue}: there is no dead letter {names}", NOT_FOUND)
