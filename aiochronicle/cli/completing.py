"""``completion``: completion for shells.

Commands and options are in the script that ``aioc completion`` prints. For names of queues and readers,
which change, the script calls the hidden command ``complete-words``.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import aiochronicle
from aiochronicle.cli.finding import is_queue
from aiochronicle.cli.output import Output
from aiochronicle.errors import ChronicleError

__all__ = ["complete_words", "completion"]

# By command: the kinds of its arguments, in order. Arguments without a kind are files, or anything.
_QUEUE = ("queue",)
_OF_QUEUES = """
    ls du top monitor doctor topics replay info who hz latency tail cat append export convert why-kept
    retention verify repair backup readers dead
"""
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_OF_QUEUES.split(), _QUEUE),
    "recovered": ("queue", "part"),
    "readers list": _QUEUE,
    "readers forget": ("queue", "reader"),
    "readers reset": ("queue", "reader"),
    "readers seek": ("queue", "reader", "place"),
    "dead list": _QUEUE,
    "dead retry": _QUEUE,
    "dead drop": _QUEUE,
    **{f"spark {job}": _QUEUE for job in ("bars", "archive", "audit", "asof", "quality")},
}

_BASH = """
_aioc_words() {
  _aioc
  local current="${COMP_WORDS[COMP_CWORD]}" word
  [[ $COMP_CWORD -lt 2 || $current == -* ]] && return
  local -a found=()
  while IFS= read -r word; do found+=("$word"); done \\
    < <(aioc complete-words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  [[ ${#found[@]} -eq 0 ]] && return
  COMPREPLY=("${found[@]}")
  compopt -o filenames 2>/dev/null
  [[ ${#found[@]} -eq 1 && ${found[0]} == */ ]] && compopt -o nospace 2>/dev/null
}
complete -F _aioc_words aioc aiochronicle
"""
_ZSH = """
_aioc_words() {
  local -a found
  if (( CURRENT > 2 )) && [[ $words[CURRENT] != -* ]]; then
    found=("${(@f)$(aioc complete-words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    if (( $#found )); then
      compadd -f -S '' -- $found
      return
    fi
  fi
  _cyclopts_aioc "$@"
}

if [[ $funcstack[1] == _aioc ]]; then
  _aioc_words "$@"
else
  compdef _aioc_words aioc aiochronicle
fi
"""
_FISH = """
function __aioc_words
    set -l words (commandline -opc)[2..-1]
    aioc complete-words -- $words (commandline -ct) 2>/dev/null
end
complete -c aioc -a '(__aioc_words)'
"""
_ADDED = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="which shell")],
    /,
) -> None:
    """Print a shell script that completes commands, options, queues and readers.

    Example: aioc completion bash > ~/.local/share/bash-completion/completions/aioc
    """
    from aiochronicle.cli.application import app

    made = app.generate_completion(prog_name="aioc", shell=shell)
    Output().raw(f"{made.rstrip()}\n{_ADDED[shell]}".rstrip())


def complete_words(
    *words: Annotated[str, Parameter(allow_leading_hyphen=True, metavar="WORD", help="so far")],
) -> None:
    """Print possible completions of the last word, one per line; nothing if none is known.

    Example: aioc complete-words -- readers forget feeds/trades ''
    """
    out = Output()
    for found in _candidates(list(words)):
        if "\n" not in found:
            out.bytes(os.fsencode(found) + b"\n")


def _candidates(words: list[str]) -> Iterator[str]:
    if not words:
        return
    *before, current = words
    command, arguments = _split(before)
    kinds = _ARGUMENTS.get(command, ())
    if len(arguments) >= len(kinds) or current.startswith("-"):
        return
    kind = kinds[len(arguments)]
    if kind == "queue":
        yield from _paths(current)
        return
    names: list[str] = []
    try:
        if kind == "reader":
            names = [reader.name for reader in aiochronicle.list_readers(arguments[0])]
        elif kind == "part":
            names = [part.name for part in aiochronicle.list_recovered(arguments[0])]
        elif kind == "place":
            names = ["first", "last"]
    except (ChronicleError, OSError):
        return
    yield from (name for name in names if name.startswith(current))


def _split(words: list[str]) -> tuple[str, list[str]]:
    """Return the command and its arguments; a word after an option may be its value."""
    command = words[0] if words else ""
    rest = words[1:]
    if rest and f"{command} {rest[0]}" in _ARGUMENTS:
        command, rest = f"{command} {rest[0]}", rest[1:]
    plain = _flags(command) if command in _ARGUMENTS else set[str]()
    arguments: list[str] = []
    is_value = False
    for word in rest:
        if word.startswith("-"):
            is_value = word not in plain and "=" not in word
        elif is_value:
            is_value = False
        else:
            arguments.append(word)
    return command, arguments


def _flags(command: str) -> set[str]:
    """Return the options of a command that take no value."""
    from aiochronicle.cli.application import app

    found = app
    for name in command.split():
        found = found[name]
    options = found.assemble_argument_collection()
    return {name for one in options if one.token_count()[0] == 0 for name in one.names}


def _paths(current: str) -> Iterator[str]:
    """Yield the directories with this prefix: queues as they are, others with a slash for further
    completion."""
    folder, _, begun = current.rpartition("/")
    prefix = f"{folder}/" if "/" in current else ""
    try:
        with os.scandir(Path(prefix).expanduser() if prefix else ".") as entries:
            found = sorted(
                entry.name
                for entry in entries
                if entry.name.startswith(begun)
                and (begun or not entry.name.startswith("."))
                and entry.is_dir()
            )
    except OSError:
        return
    for name in found:
        path = Path(prefix + name).expanduser()
        yield f"{prefix}{name}" if is_queue(path) else f"{prefix}{name}/"
