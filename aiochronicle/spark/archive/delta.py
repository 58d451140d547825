"""Tables of Delta Lake, by delta-rs: metadata only, next to the files of a dataset."""

import datetime
import time
import urllib.parse
from typing import Any

import msgspec
import pyarrow

from aiochronicle.spark.archive.manifest import ArchivedFile
from aiochronicle.spark.archive.names import directory_of, escape
from aiochronicle.spark.archive.objects import ObjectStore
from aiochronicle.spark.archive.store import Store
from aiochronicle.spark.archive.table_format import Change

__all__ = ["DeltaTables"]

PARTITIONS = ["date", "source"]


class DeltaTables:
    """A table for each dataset, in the dataset's own directory."""

    def __init__(self, store: Store) -> None:
        try:
            import deltalake
        except ImportError as error:
            raise ImportError(
                'table="delta" needs delta-rs: pip install "aiochronicle[delta]"', name="deltalake"
            ) from error
        self._library: Any = deltalake
        self._store = store
        self._options = _storage(store)

    def open(self, dataset: str, schema: pyarrow.Schema) -> Any:
        """Return the table of a dataset, after adding missing columns."""
        library = self._library
        where = f"{self._store.root}/{directory_of(dataset, is_table=True)}"
        wanted = pyarrow.schema(
            [
                *schema,
                pyarrow.field("date", pyarrow.date32()),
                pyarrow.field("source", pyarrow.string()),
            ]
        )
        table = library.DeltaTable.create(
            where, wanted, mode="ignore", partition_by=PARTITIONS, storage_options=self._options
        )
        known = {field.name for field in table.schema().fields}
        added = [
            field for field in library.Schema.from_arrow(wanted).fields if field.name not in known
        ]
        if added:
            table.alter.add_columns(
                [library.Field(field.name, field.type, nullable=True) for field in added]
            )
        return table

    def next_seq(self, table: Any, source: str) -> int:
        """Return the version of the queue's application transaction."""
        return table.transaction_version(_application(source)) or 0

    def files(self, table: Any, source: str) -> set[str]:
        """Return the paths of the table's add actions."""
        directory = table.table_uri.rstrip("/").rpartition("/")[2]
        part = f"/source={escape(source)}/"
        actions: Any = pyarrow.table(table.get_add_actions(flatten=True))
        encoded: list[str] = actions.column("path").to_pylist()  # as the log has them
        found = map(urllib.parse.unquote, encoded)
        return {f"{directory}/{path}" for path in found if part in f"/{path}"}

    def close(self) -> None:
        """Do nothing: a table keeps nothing open."""

    def commit(self, table: Any, changes: list[Change]) -> None:
        """Add and remove files, with an application transaction for each queue."""
        transaction = self._library.transaction
        actions: list[Any] = []
        for change in changes:
            actions += [_added(transaction, change.source, file) for file in change.added]
            actions += [_removed(transaction, path) for path in change.removed]
        versions = [
            transaction.Transaction(_application(change.source), change.next_seq)
            for change in changes
        ]
        table.create_write_transaction(
            actions,
            mode="append",
            schema=table.schema(),
            partition_by=PARTITIONS,
            commit_properties=self._library.CommitProperties(app_transactions=versions),
        )


def _application(source: str) -> str:
    return f"aiochronicle:{source}"


def _added(transaction: Any, source: str, file: ArchivedFile) -> Any:
    bounds = ({"seq": file.first_seq}, {"seq": file.end_seq - 1})
    if file.first_ns is not None and file.last_ns is not None:
        bounds[0]["timestamp_ns"], bounds[1]["timestamp_ns"] = file.first_ns, file.last_ns
    statistics = {"numRecords": file.rows, "minValues": bounds[0], "maxValues": bounds[1]}
    return transaction.AddAction(
        path=file.path.partition("/")[2],
        size=file.bytes,
        partition_values={"date": file.day, "source": source},
        modification_time=round(time.time() * 1000),
        data_change=True,
        stats=msgspec.json.encode({**statistics, "nullCount": {"seq": 0}}).decode(),
    )


def _removed(transaction: Any, path: str) -> Any:
    now = round(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
    return transaction.RemoveAction(
        path=path.partition("/")[2], deletion_timestamp=now, data_change=False
    )


def _storage(store: Store) -> dict[str, str] | None:
    if not isinstance(store, ObjectStore):
        return None
    client: dict[str, str] = store.options.get("client_kwargs", {})
    given = {
        "AWS_ACCESS_KEY_ID": store.options.get("key"),
        "AWS_SECRET_ACCESS_KEY": store.options.get("secret"),
        "AWS_SESSION_TOKEN": store.options.get("token"),
        "AWS_ENDPOINT_URL": client.get("endpoint_url"),
        "AWS_REGION": client.get("region_name"),
        # An endpoint without TLS was asked for.
        "AWS_ALLOW_HTTP": "true" if client.get("endpoint_url", "").startswith("http:") else None,
    }
    return {name: value for name, value in given.items() if value}
