"""Paths: a directory of this machine, object storage, or a URL that is refused.

Every argument, option and command that takes a path is checked here before anything is created or moved.
Otherwise ``s3a://bucket/a`` would be a relative path to a directory ``s3a:``. Queues are on this machine;
archives may also be in object storage.
"""

import re

from aiochronicle.errors import InvalidArgument

__all__ = ["archive_path", "is_object_url", "local_path"]

# One slash is enough: pathlib makes "s3a:/bucket" of "s3a://bucket", and Spark reads "file:/data".
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/(?:/(?P<host>[^/]*)(?=/|$))?")
_HOSTS = ("", "localhost")
_OBJECTS = ("s3", "s3a")


def local_path(path: str) -> str:
    """Return a path without the ``file:`` in front of it; InvalidArgument for any other URL.

    As in Spark, what follows is the path as it is, with no ``%20`` in it to decode.

    >>> local_path("file:///data/ticks")
    '/data/ticks'
    """
    url = _URL.match(path)
    if url is None:
        return path
    scheme, host = url["scheme"].lower(), url["host"] or ""
    if scheme != "file":
        raise InvalidArgument(
            f"{scheme}: is not supported here: give a directory of this machine, or of a mounted file"
            f" system. Nothing was written. (A local directory of this name is ./{path})",
            path=path,
        )
    if host not in _HOSTS:
        raise InvalidArgument(
            f"file: with a host, {host!r}, is not supported: give file:///PATH", path=path
        )
    rest = path[url.end() :] if url["host"] is not None else path[url.end() - 1 :]
    if not rest:
        raise InvalidArgument("there is no path in it: give file:///PATH", path=path)
    return rest


def archive_path(path: str) -> str:
    """Return where an archive is: a path as local_path does, or ``s3://BUCKET/PREFIX``.

    ``s3a``, as Hadoop calls it, is the same.

    >>> archive_path("s3a://market/archive/")
    's3://market/archive'
    """
    url = _URL.match(path)
    if url is None or url["scheme"].lower() not in _OBJECTS:
        return local_path(path)
    bucket, rest = url["host"] or "", path[url.end() :].strip("/")
    parts = rest.split("/") if rest else []
    if not bucket or any(part in ("", ".", "..") for part in parts):
        raise InvalidArgument("give s3://BUCKET/PREFIX", path=path)
    return "/".join((f"s3://{bucket}", *parts))


def is_object_url(path: str) -> bool:
    """Return whether archive_path gave back a URL of object storage."""
    return path.startswith("s3://")
