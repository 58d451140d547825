"""``monitor``: the web page, and metrics for Prometheus."""

import os
import socket
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import aiochronicle
from aiochronicle._base.printable import printable
from aiochronicle.cli.arguments import Directory, File, Seconds
from aiochronicle.cli.exits import FAILED, Refused
from aiochronicle.cli.finding import find_queues
from aiochronicle.cli.output import Output

__all__ = ["monitor"]

_TOKEN_VARIABLE = "AIOC_MONITOR_TOKEN"
_TOKEN_MIN = 16


def monitor(
    root: Directory = Path(),
    /,
    *,
    listen: Annotated[
        str, Parameter(metavar="HOST:PORT", help="address to listen on; port 0: any free one")
    ] = "127.0.0.1:8470",
    token_file: Annotated[
        File | None,
        Parameter(
            help="file with the token that a request must have; needed if other machines can connect"
        ),
    ] = None,
    max_lag: Annotated[
        Seconds,
        Parameter(help="warn about an open reader whose oldest unread message is older than this"),
    ] = 60.0,
    probe: Annotated[
        bool,
        Parameter(
            show_default=False,
            help="measure wake latency by up to 20 wake-ups per second in total; default: yes",
        ),
    ] = True,
) -> None:
    """Serve a live web page of all queues below a directory, /metrics and /healthz.

    It only reads. To listen beyond this machine it needs a token: --token-file, or $AIOC_MONITOR_TOKEN.

    Example: aioc monitor /var/lib/feeds --listen 127.0.0.1:8470

    Parameters
    ----------
    root
        a queue, or a directory with queues below it
    """
    try:
        from aiochronicle.monitor.collector import Limits
        from aiochronicle.monitor.serving import serve
        from aiochronicle.monitor.web import is_loopback
    except ModuleNotFoundError as error:
        raise Refused(
            f'the monitor needs more packages ({error.name} is missing): pip install "aiochronicle[monitor]"',
            FAILED,
        ) from None
    host, port = _address(listen)
    token = _token(token_file)
    if token is None and not is_loopback(host):
        raise Refused(
            f"{host} can be reached from other machines, so a token is needed: --token-file FILE, or"
            f" ${_TOKEN_VARIABLE}. Without one, listen on 127.0.0.1."
        )
    _check_root(root)
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}/"
    out = Output()

    def tell() -> None:
        out.line(f"{url} shows {printable(root.resolve())}; Ctrl-C ends it")
        out.flush()

    with listening:
        aiochronicle.run(
            serve(
                root,
                [listening],
                token=token,
                limits=Limits(max_lag_s=max_lag),
                probe=probe,
                started=tell,
            )
        )


def _check_root(root: Path) -> None:
    """Refuse a missing directory; one without queues may get some later."""
    next(iter(find_queues(root)), None)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not host:
        raise Refused(f"--listen takes HOST:PORT, as 127.0.0.1:8470 or [::1]:8470, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _token(file: Path | None) -> str | None:
    token = (
        os.environ.get(_TOKEN_VARIABLE)
        if file is None
        else file.read_text(encoding="utf-8").strip()
    )
    if not token:
        if file is not None:
            raise Refused(f"{file}: has no token in it")
        return None
    if len(token) < _TOKEN_MIN or not token.isascii() or not token.isprintable() or " " in token:
        raise Refused(
            f"a token has {_TOKEN_MIN} or more visible ASCII characters; openssl rand -hex 32 makes one"
        )
    return token


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise Refused(
            f"cannot listen on {host}:{port}: {error.strerror or error}", FAILED
        ) from None
