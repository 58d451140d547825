"""Datasets of an archive as tables of Delta Lake or Iceberg.

Tasks write the files, and manifests say which are part of the archive, as without tables. Then the driver
brings the table of each dataset to the same files, by one commit of metadata (``Change``). The commit
includes, for each queue, the seq up to which the table has its messages: for Delta as an application
transaction, for Iceberg as properties of table and snapshot. If a driver was killed before it, the next run
commits what is missing. So no message is doubled, and none is missing after the next run.

Files that other programs have written into a table in place of ours (OPTIMIZE) are left alone.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from aiochronicle.errors import ExportFailed, InvalidArgument, SchemaMismatch
from aiochronicle.spark.archive.manifest import Manifest
from aiochronicle.spark.archive.names import RAW, escape
from aiochronicle.spark.archive.store import Store
from aiochronicle.spark.archive.table_format import TABLES, Catalog, Change, TableFormat, Tables

if TYPE_CHECKING:
    import pyarrow

__all__ = ["TABLES", "Catalog", "Change", "TableFormat", "Tables", "commit_tables", "plan_change"]

_OURS = re.compile(r"\d{19}-[0-9a-f]{12}\.parquet")


def plan_change(manifest: Manifest, dataset: str, there: set[str], next_seq: int) -> Change | None:
    """Return the changes that give a table the files of a manifest; None if there are none."""
    listed = [file for file in manifest.files if (file.type or RAW) == dataset]
    paths = {file.path for file in listed}
    part = f"/source={escape(manifest.source)}/"
    removed = sorted(
        path for path in there - paths if part in path and _OURS.fullmatch(path.rpartition("/")[2])
    )
    since = min((_first_seq(path) for path in removed), default=next_seq)
    added = [file for file in listed if file.path not in there and file.first_seq >= since]
    if not added and not removed:
        return None
    return Change(manifest.source, manifest.next_seq, tuple(added), tuple(removed))


def _first_seq(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])


def commit_tables(
    store: Store,
    table: str,
    manifests: Iterable[Manifest],
    schemas: "Mapping[str, Mapping[str, pyarrow.Schema]]",
    catalog: Catalog = None,
) -> None:
    """Bring the tables of an archive to the files that these manifests list.

    ``schemas`` are those of the datasets, by queue. ExportFailed if a table cannot be changed,
    SchemaMismatch if queues have different types of one name.
    """
    if table == "parquet":
        return
    with contextlib.closing(_open_tables(store, table, catalog)) as tables:
        _commit(store, table, tables, list(manifests), schemas)


def _commit(
    store: Store,
    table: str,
    tables: Tables,
    listed: list[Manifest],
    schemas: "Mapping[str, Mapping[str, pyarrow.Schema]]",
) -> None:
    datasets = sorted({file.type or RAW for one in listed for file in one.files})
    for dataset in datasets:
        known = {name: of[dataset] for name, of in schemas.items() if dataset in of}
        try:
            opened = tables.open(dataset, together(dataset, known))
            changes: list[Change] = []
            for manifest in listed:
                there = tables.files(opened, manifest.source)
                next_seq = tables.next_seq(opened, manifest.source)
                change = plan_change(manifest, dataset, there, next_seq)
                if change is not None:
                    changes.append(change)
            if changes:
                tables.commit(opened, changes)
        except (SchemaMismatch, ImportError):
            raise
        except Exception as error:  # the library's own
            raise ExportFailed(
                f"the {table} table of {dataset} was not changed: {error}",
                path=store.root,
                errno=None,
                advice="The files are archived and verified. Run the job again: it commits what is missing.",
            ) from error


def together(dataset: str, schemas: "Mapping[str, pyarrow.Schema]") -> "pyarrow.Schema":
    """Return one schema with the columns of all; SchemaMismatch if they are of different types."""
    import pyarrow

    merged: dict[str, pyarrow.Field] = {}
    for source, schema in schemas.items():
        for field in schema:
            known = merged.setdefault(field.name, field)
            if known.type != field.type:
                raise SchemaMismatch(
                    f"{dataset} is not the same type in all queues",
                    [f"{field.name}: {known.type} elsewhere, {field.type} in {source}"],
                    path=source,
                )
    return pyarrow.schema(list(merged.values()))


def _open_tables(store: Store, table: str, catalog: Catalog) -> Tables:
    if table == "delta":
        from aiochronicle.spark.archive.delta import DeltaTables

        if catalog is not None:
            raise InvalidArgument("Delta tables need no catalog: they are where the files are")
        return DeltaTables(store)
    from aiochronicle.spark.archive.iceberg import IcebergTables

    return IcebergTables(store, catalog)
