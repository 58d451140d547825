"""Iceberg tables, by pyiceberg: adds existing files to a table.

The catalog is a SQLite file in the archive, unless another is given. Files have a column ``source``, by
which tables are partitioned.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.archive.names import directory_of
from aiochronicle.spark.archive.objects import ObjectStore
from aiochronicle.spark.archive.store import Store
from aiochronicle.spark.archive.table_format import Catalog, Change
from aiochronicle.spark.options import MANIFESTS

if TYPE_CHECKING:
    import pyarrow

__all__ = ["NAMESPACE", "IcebergTables"]

NAMESPACE = "archive"
CATALOG = "iceberg.db"


class IcebergTables:
    """A table ``archive.DATASET`` for each dataset."""

    def __init__(self, store: Store, catalog: Catalog) -> None:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise ImportError(
                'table="iceberg" needs pyiceberg: pip install "aiochronicle[iceberg]"',
                name="pyiceberg",
            ) from error
        self._store = store
        self._catalog: Any
        if isinstance(catalog, str):
            self._catalog = load_catalog(catalog)
        else:
            name = "aiochronicle"
            self._catalog = load_catalog(name, **(_storage(store) | dict(catalog or _local(store))))
        self._catalog.create_namespace_if_not_exists(NAMESPACE)

    def open(self, dataset: str, schema: "pyarrow.Schema") -> Any:
        """Return the table of a dataset, after adding missing columns."""
        import pyarrow
        from pyiceberg.exceptions import NoSuchTableError

        wanted = pyarrow.schema([*schema, pyarrow.field("source", pyarrow.string())])
        identifier = (NAMESPACE, dataset)
        try:
            table = self._catalog.load_table(identifier)
        except NoSuchTableError:
            return self._create(identifier, wanted)
        with table.update_schema() as change:
            change.union_by_name(_optional(wanted))
        return self._catalog.load_table(identifier)

    def _create(self, identifier: tuple[str, str], schema: "pyarrow.Schema") -> Any:
        from pyiceberg.transforms import DayTransform

        where = f"{_url(self._store)}/{directory_of(identifier[1], is_table=True)}"
        made = self._catalog.create_table_transaction(
            identifier, schema=_optional(schema), location=where
        )
        with made as change, change.update_spec() as partitions:
            partitions.add_identity("source")
            partitions.add_field("timestamp", DayTransform(), "day")
        return self._catalog.load_table(identifier)

    def next_seq(self, table: Any, source: str) -> int:
        """Return the seq in the properties of the table."""
        return int(table.properties.get(_property(source), 0))

    def files(self, table: Any, source: str) -> set[str]:
        """Return the data files of the current snapshot."""
        root = f"{_url(self._store)}/"
        tasks = table.scan(row_filter=_expressions().EqualTo("source", source)).plan_files()
        return {task.file.file_path.removeprefix(root) for task in tasks}

    def close(self) -> None:
        """Close the catalog's database."""
        if hasattr(self._catalog, "engine"):
            self._catalog.engine.dispose()

    def commit(self, table: Any, changes: list[Change]) -> None:
        """Add and remove files, and record up to which seq the table has each queue."""
        of = _expressions()
        root = _url(self._store)
        properties = {_property(change.source): str(change.next_seq) for change in changes}
        with table.transaction() as transaction:
            transaction.set_properties(properties)
            for change in changes:
                if change.removed and change.added:
                    # Whole files, of which the bounds of seq tell.
                    within = of.And(
                        of.GreaterThanOrEqual("seq", min(file.first_seq for file in change.added)),
                        of.LessThan("seq", max(file.end_seq for file in change.added)),
                    )
                    transaction.delete(of.And(of.EqualTo("source", change.source), within))
            paths = [f"{root}/{file.path}" for change in changes for file in change.added]
            if paths:
                transaction.add_files(paths, snapshot_properties=properties)


def _expressions() -> Any:
    return importlib.import_module("pyiceberg.expressions")


def _property(source: str) -> str:
    return f"aiochronicle.next-seq.{source}"


def _optional(schema: "pyarrow.Schema") -> "pyarrow.Schema":
    """Return the schema with nullable columns: earlier files may lack some."""
    import pyarrow

    return pyarrow.schema([field.with_nullable(True) for field in schema])


def _url(store: Store) -> str:
    return store.root if isinstance(store, ObjectStore) else f"file://{store.root}"


def _local(store: Store) -> dict[str, str]:
    if isinstance(store, ObjectStore):
        raise InvalidArgument(
            "Iceberg tables in object storage need a catalog: catalog={'type': 'sql', 'uri': ...}, or the"
            " name of one of ~/.pyiceberg.yaml",
            path=store.root,
        )
    return {"type": "sql", "uri": f"sqlite:///{Path(store.root, MANIFESTS, CATALOG)}"}


def _storage(store: Store) -> dict[str, str]:
    if not isinstance(store, ObjectStore):
        return {}
    client: dict[str, str] = store.options.get("client_kwargs", {})
    given = {
        "s3.access-key-id": store.options.get("key"),
        "s3.secret-access-key": store.options.get("secret"),
        "s3.session-token": store.options.get("token"),
        "s3.endpoint": client.get("endpoint_url"),
        "s3.region": client.get("region_name"),
    }
    return {name: value for name, value in given.items() if value}
