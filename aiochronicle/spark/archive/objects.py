"""An archive in object storage (S3), by fsspec's s3fs.

A file is written and verified on this machine, uploaded, and read back: its checksum must equal that of the
verified file. So a manifest lists only complete objects. The next job removes what a killed job left,
objects and parts of uploads. Small files are replaced by one request.

Queues are on one host, so only jobs of that host write their part of an archive, and a lock on that host is
enough.
"""

import contextlib
import errno
import functools
import hashlib
import importlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from aiochronicle.errors import CorruptionError, ExportFailed, StorageError
from aiochronicle.spark.archive.files import Target, lock_in, regular
from aiochronicle.spark.archive.names import escape
from aiochronicle.spark.options import MANIFESTS
from aiochronicle.spark.private_files import FILE_MODE, Location, temporary_directory
from aiochronicle.spark.sink.runs import checksum
from aiochronicle.spark.source.found import naming

__all__ = ["ObjectStore", "storage_options"]

_log = logging.getLogger(__name__)

ATTEMPTS = 4  # of each request, beside those that s3fs makes itself
FIRST_PAUSE_S = 0.2


# Where Spark and other programs configure credentials and endpoint: the name for s3fs, Hadoop's, the
# environment's.
_CREDENTIALS = (
    ("key", "access.key", ("AWS_ACCESS_KEY_ID",)),
    ("secret", "secret.key", ("AWS_SECRET_ACCESS_KEY",)),
    ("token", "session.token", ("AWS_SESSION_TOKEN",)),
)
_CLIENT = (
    ("endpoint_url", "endpoint", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
    ("region_name", "endpoint.region", ("AWS_REGION", "AWS_DEFAULT_REGION")),
)


def storage_options(spark: SparkSession | None = None) -> dict[str, Any]:
    """Return the options of s3fs: ``spark.hadoop.fs.s3a.…`` of a session, else this process's environment.

    Tasks use the same. s3fs looks for missing ones where it runs: ``~/.aws``, the role of the host.
    """

    def found(names: tuple[tuple[str, str, tuple[str, ...]], ...]) -> dict[str, str]:
        known: dict[str, str] = {}
        for name, hadoop, variables in names:
            given = [os.environ.get(variable) for variable in variables]
            if spark is not None:
                given.insert(0, spark.conf.get(f"spark.hadoop.fs.s3a.{hadoop}", None))
            if value := next(filter(None, given), None):
                known[name] = value
        return known

    client = found(_CLIENT)
    if "://" not in client.get("endpoint_url", "://"):
        client["endpoint_url"] = f"https://{client['endpoint_url']}"
    return {**found(_CREDENTIALS), **({"client_kwargs": client} if client else {})}


class ObjectStore(msgspec.Struct, frozen=True):
    """An archive below ``s3://BUCKET/PREFIX``; ``options`` are those of s3fs."""

    url: str
    options: dict[str, Any] = {}  # with credentials, so they are not shown

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    @property
    def root(self) -> str:
        return self.url

    def exists(self) -> bool:
        return True  # a prefix without objects is empty: object storage has no directories

    def make(self, file_mode: int) -> None:
        """Do nothing: the policy of the bucket decides who may read."""

    @contextmanager
    def locked(self) -> Generator[None]:
        number = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        location = Location(root=tempfile.gettempdir(), names=(f"aiochronicle-{os.geteuid()}",))
        with lock_in(location, f"archive-{number}.lock", self.url):
            yield

    def manifests(self) -> list[str]:
        found = self._try(lambda fs: fs.ls(self._key(MANIFESTS), detail=False), default=[])
        return sorted(key.rpartition("/")[2] for key in found if key.endswith(".json"))

    def read_any(self, name: str, max_bytes: int) -> bytes | None:
        key = self._key(MANIFESTS, name)
        content: bytes | None = self._try(
            lambda fs: fs.cat_file(key, start=0, end=max_bytes + 1), default=None
        )
        if content is not None and len(content) > max_bytes:
            raise ValueError(f"more than {max_bytes} bytes")
        return content

    read_own = read_any

    def replace(self, name: str, content: bytes, file_mode: int) -> None:
        key = self._key(MANIFESTS, name)
        self._try(lambda fs: fs.pipe_file(key, content))

    @contextmanager
    def new_file(self, names: tuple[str, ...], name: str, file_mode: int) -> Generator[Target]:
        key = self._key(*names, name)
        directory = temporary_directory()
        try:
            with naming(str(directory), self.url):
                target = Target(directory / name, f"s3://{key}")
                yield target
                self._upload(target.path, key)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _upload(self, file: Path, key: str) -> None:
        """Upload a file and compare the object; after a failure nothing is left of it."""
        expected = checksum(file)
        try:
            self._try(lambda fs: fs.put_file(str(file), key))
            with self._downloaded(key, "Nothing was listed: run the job again.") as copy:
                if checksum(copy) != expected:
                    raise CorruptionError(
                        "the object is not what was uploaded",
                        path=f"s3://{key}",
                        advice="It was removed, and archive and queue are as they were. Run the job again.",
                    )
        except BaseException:
            with contextlib.suppress(Exception):
                self._abort_uploads(key)
                self._file_system().rm_file(key)
            raise

    def mode_of(self, path: str) -> int:
        return FILE_MODE  # nothing comes of it

    @contextmanager
    def opened(self, path: str, advice: str) -> Generator[Path]:
        key = self._key(path)
        with self._downloaded(key, advice) as copy:
            yield copy

    @contextmanager
    def _downloaded(self, key: str, advice: str) -> Generator[Path]:
        directory = temporary_directory()
        try:
            copy = directory / "object"
            self._try(lambda fs: fs.get_file(key, str(copy)), default=None)
            if not copy.exists():
                raise CorruptionError("is gone", path=f"s3://{key}", advice=advice)
            with naming(str(copy), f"s3://{key}"), regular(copy, advice) as opened:
                yield opened
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def clean(self, listed: Mapping[str, set[str]]) -> None:
        root = f"{self._key()}/"
        known = {f"source={escape(source)}": paths for source, paths in listed.items()}
        self._abort_uploads(root, set(known))
        found: list[str] = self._try(lambda fs: fs.find(root), default=[])
        for key in found:
            path = key.removeprefix(root)
            names = path.split("/")
            if len(names) > 1 and names[-2] in known and path not in known[names[-2]]:
                self._try(functools.partial(_remove, key), default=None)

    def _abort_uploads(self, prefix: str, directories: set[str] | None = None) -> None:
        """Abort abandoned uploads: those of one key, or of queues that only this job writes."""
        bucket, _, rest = prefix.partition("/")
        try:
            answer = self._try(
                lambda fs: fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=rest)
            )
        except StorageError as error:  # some policies do not allow for it
            _log.warning("cannot look for abandoned uploads: %s", error)
            return
        for upload in answer.get("Uploads") or ():
            key: str = upload["Key"]
            if directories is None or key.split("/")[-2] in directories:
                self._try(
                    functools.partial(_abort, bucket=bucket, key=key, number=upload["UploadId"])
                )

    def _key(self, *names: str) -> str:
        return "/".join((self.url.removeprefix("s3://"), *names))

    def _file_system(self) -> Any:
        return _file_system(msgspec.json.encode(self.options), os.getpid())

    def _try(self, request: Callable[[Any], Any], **default: Any) -> Any:
        """Retry a request that fails; return the default, if given, for a missing object."""
        fs = self._file_system()
        for attempt in range(ATTEMPTS):
            try:
                return request(fs)
            except FileNotFoundError as error:
                if "default" in default:
                    return default["default"]
                raise self._failed(error) from error  # no such bucket
            except PermissionError as error:
                raise self._failed(error) from error
            except Exception as error:  # the library's own, and the network's
                if attempt + 1 == ATTEMPTS:
                    raise self._failed(error) from error
                time.sleep(FIRST_PAUSE_S * 2**attempt)
        raise AssertionError

    def _failed(self, error: Exception) -> StorageError:
        number = getattr(error, "errno", None) or errno.EIO
        return ExportFailed(
            str(error) or type(error).__name__,
            path=self.url,
            errno=number,
            advice="Check the bucket, its policy, and credentials and endpoint (AWS_ACCESS_KEY_ID,"
            " AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, ~/.aws). The archive is as it was.",
        )


def _remove(key: str, fs: Any) -> None:
    fs.rm_file(key)


def _abort(fs: Any, *, bucket: str, key: str, number: str) -> None:
    fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=number)


@functools.lru_cache(maxsize=8)
def _file_system(options: bytes, process: int) -> Any:
    """Return the file system of this process, because a fork cannot use its parent's."""
    try:
        s3fs: Any = importlib.import_module("s3fs")
    except ImportError as error:
        raise ImportError(
            's3:// needs s3fs: pip install "aiochronicle[s3]"', name="s3fs"
        ) from error
    del process
    given: dict[str, Any] = msgspec.json.decode(options)
    # Listings change while a job runs.
    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, **given)
