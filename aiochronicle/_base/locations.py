"""Accepts local directories and object storage as paths, and refuses other URLs.

Every argument, option and command that takes a path is checked here before anything is created or moved.
Otherwise ``s3a://bucket/a`` would be a relative path to a directory ``s3a:``. Queues are on this machine;
archives may also be in object storage.
"""

import re

from aiochronicle.errors import InvalidArgument

__all__ = ["archive_path", "is_object_url", "local_path"]

# One slash is enough: pathlib turns "s3a://bucket" into "s3a:/bucket", and Spark accepts "file:/data".
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/(?:/(?P<host>[^/]*)(?=/|$))?")
_HOSTS = ("", "localhost")
_OBJECTS = ("s3", "s3a")


def local_path(path: str) -> str:
    """Return a path without its prefix ``file:``; InvalidArgument for any other URL.

    As in Spark, the rest is taken literally: ``%20`` is not decoded.

    >>> local_path("file:///data/ticks")
    '/data/ticks'
    """
    url = _URL.match(path)
    if url is None:
        return path
    scheme, host = url["scheme"].lower(), url["host"] or ""
    if scheme != "file":
        raise InvalidArgument(
            f"the scheme {scheme}: is not supported here. Nothing was written. Give a directory of this"
            f" machine or of a mounted file system (./{path} for a local directory of this name)",
            path=path,
        )
    if host not in _HOSTS:
        raise InvalidArgument(
            f"a file: URL with a host, {host!r}, is not supported: give file:///PATH", path=path
        )
    rest = path[url.end() :] if url["host"] is not None else path[url.end() - 1 :]
    if not rest:
        raise InvalidArgument("the URL has no path: give file:///PATH", path=path)
    return rest


def archive_path(path: str) -> str:
    """Return the location of an archive: a path as from ``local_path``, or ``s3://BUCKET/PREFIX``.

    ``s3a``, Hadoop's name for it, means the same.

    >>> archive_path("s3a://market/archive/")
    's3://market/archive'
    """
    url = _URL.match(path)
    if url is None or url["scheme"].lower() not in _OBJECTS:
        return local_path(path)
    bucket, rest = url["host"] or "", path[url.end() :].strip("/")
    parts = rest.split("/") if rest else []
    if not bucket or any(part in ("", ".", "..") for part in parts):
        raise InvalidArgument(
            "this URL has no bucket or an empty part: give s3://BUCKET/PREFIX", path=path
        )
    return "/".join((f"s3://{bucket}", *parts))


def is_object_url(path: str) -> bool:
    """Return whether a result of ``archive_path`` is in object storage."""
    return path.startswith("s3://")
