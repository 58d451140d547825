"""The command line as a whole: which commands exist, and how errors are reported.

The module of a command is imported when the command runs, so ``aioc ls`` pays for ``ls`` only.
"""

import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from cyclopts import App, CycloptsError, Group
from rich.console import Console

import aiochronicle
from aiochronicle.cli.advice import is_gap, text_for_operators
from aiochronicle.cli.exits import DAMAGED, FAILED, INTERRUPTED, USAGE, Refused, status_of
from aiochronicle.cli.finding import explain_missing
from aiochronicle.cli.output import console, forget, say
from aiochronicle.errors import ChronicleError, QueueNotFound

__all__ = ["app", "command_names", "run"]

_HELP = "Inspect and maintain queues."
_EPILOGUE = (
    "Exit status: 0 done, 1 failed, 2 usage error, 3 not found, 4 busy, 5 damaged, 6 no permission,"
    " 7 disk full, 130 Ctrl-C."
)

_HELP_COLUMNS = 80
_OF_FUNCTION: dict[str, Any] = {"help_epilogue": "", "version_flags": ()}
_GROUPS = ("readers", "dead", "config", "spark")  # with commands of their own
_PASSED_ON = ("demo",)  # programs that read their arguments themselves


def _group(name: str) -> Group:
    """Create a group that is listed after the groups created before it."""
    made: Group = Group.create_ordered(name)  # pyright: ignore[reportUnknownMemberType]
    return made


_LOOK = _group("Look")
_MESSAGES = _group("Messages")
_READERS = _group("Readers and retention")
_SAFETY = _group("Safety")
_MORE = _group("More")

# In the order of the help: name, function of a module here, group.
_COMMANDS = (
    ("ls", "queues:ls", _LOOK),
    ("info", "queues:info", _LOOK),
    ("who", "queues:who", _LOOK),
    ("topics", "queues:topics", _LOOK),
    ("du", "disk:du", _LOOK),
    ("hz", "rates:hz", _LOOK),
    ("latency", "rates:latency", _LOOK),
    ("top", "top:top", _LOOK),
    ("monitor", "monitor:monitor", _LOOK),
    ("tail", "messages:tail", _MESSAGES),
    ("cat", "messages:cat", _MESSAGES),
    ("append", "append:append", _MESSAGES),
    ("export", "moving:export", _MESSAGES),
    ("replay", "moving:replay", _MESSAGES),
    ("convert", "moving:convert", _MESSAGES),
    ("readers", "readers:app", _READERS),
    ("dead", "dead:app", _READERS),
    ("why-kept", "keeping:why_kept", _READERS),
    ("retention", "keeping:retention", _READERS),
    ("verify", "checking:verify", _SAFETY),
    ("config", "checking:config", _SAFETY),
    ("recovered", "checking:recovered", _SAFETY),
    ("repair", "checking:repair", _SAFETY),
    ("backup", "backups:backup", _SAFETY),
    ("restore", "backups:restore", _SAFETY),
    ("doctor", "health:doctor", _SAFETY),
    ("bench", "programs:bench", _MORE),
    ("demo", "programs:demo", _MORE),
    ("spark", "spark:app", _MORE),
    ("completion", "completing:completion", _MORE),
)


app = App(
    name="aioc",
    help=_HELP,
    help_format="markdown",
    help_epilogue=_EPILOGUE,
    version=aiochronicle.__version__,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
app["--help"].group = _MORE
app["--version"].group = _MORE
for _order, (_name, _function, _of) in enumerate(_COMMANDS):
    _options = _OF_FUNCTION if _name not in _GROUPS else {}
    if _name in _PASSED_ON:
        _options = {**_options, "help_flags": ()}
    app.command(f"aiochronicle.cli.{_function}", name=_name, group=_of, sort_key=_order, **_options)

app.command("aiochronicle.cli.completing:complete_words", name="complete-words", show=False)


def command_names() -> list[str]:
    """Return the names of the commands, in the order of the help."""
    return [name for name, *_ in _COMMANDS]


def run(arguments: Sequence[str]) -> int:
    """Run a command and return the exit status. Errors are one line, never a traceback."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a terminal without UTF-8 gets escapes
            reconfigure(errors="backslashreplace")
    previous: dict[signal.Signals, Any] = {}
    try:
        _import_commands(arguments)  # hide the traceback of an import that Ctrl-C interrupts
        for number, handler in _HANDLERS.items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a job in the background
                previous[number] = signal.signal(number, handler)
        status = app(arguments, exit_on_error=False, print_error=False, console=_help_console())
        sys.stdout.flush()
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        forget(sys.stdout)
        return 0
    except CycloptsError as error:
        say(_usage(error, arguments))
        return USAGE
    except (ChronicleError, Refused, OSError, ImportError) as error:
        say(_text_of(error))
        return DAMAGED if is_gap(error) else status_of(error)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else 0
    except Exception as error:  # an operator needs one line, not a traceback
        if os.environ.get("AIOC_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        say(f"this is a mistake in aioc, please report it: {what}. AIOC_TRACEBACK=1 shows where.")
        return FAILED
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return status if isinstance(status, int) else 0


def _open_streams() -> None:
    """Open /dev/null as standard output and error if they are closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115


def _import_commands(arguments: Sequence[str]) -> None:
    """Import the module of the command, or those of all commands for the help."""
    names = command_names()
    is_help = not arguments or arguments[0] in ("--help", "-h")
    for name in names if is_help else set(names).intersection(arguments[:1]):
        app[name]


def _end(number: int, _: object) -> None:
    """End as after Ctrl-C, so that nothing is left half-done. A second signal does not interrupt the
    clean-up."""
    for each in _HANDLERS:
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


_HANDLERS = {
    signal.SIGINT: _end,
    signal.SIGTERM: _end,
    signal.SIGHUP: _end,  # the terminal was closed
}


def _help_console() -> Console:
    """Return the console for help texts, which is never too wide to read well, not even in a pipe."""
    made = console()
    made.width = min(made.width, _HELP_COLUMNS) if sys.stdout.isatty() else _HELP_COLUMNS
    made.soft_wrap = False
    return made


def _text_of(error: BaseException) -> str:
    if isinstance(error, QueueNotFound) and error.path is not None:
        return explain_missing(error.path)
    if isinstance(error, OSError) and not isinstance(error, ChronicleError) and error.strerror:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{where}{error.strerror}"
    text = text_for_operators(error) if isinstance(error, ChronicleError) else str(error)
    return text or type(error).__name__


def _usage(error: CycloptsError, arguments: Sequence[str]) -> str:
    guess = _guess(arguments)
    if guess is not None:
        return guess
    command = " ".join(getattr(error, "command_chain", None) or ())
    said = str(error).partition(" Available commands:")[0].strip()
    said = said if said.endswith((".", "?", "!")) else f"{said}."
    return f"{said} See: aioc {command} --help" if command else f"{said} See: aioc --help"


def _guess(arguments: Sequence[str]) -> str | None:
    """Suggest the command of a group with the most similar name, if there is one."""
    group, wanted = (*arguments[:2], "", "")[:2]
    if group not in _GROUPS or wanted.startswith("-") or os.path.lexists(wanted):
        return None
    names = [name for name in app[group] if not name.startswith("-")]
    near = get_close_matches(wanted, names, 1)
    if not near or wanted in names:
        return None
    return f'Unknown command "{wanted}". Did you mean "{near[0]}"? See: aioc {group} --help'
