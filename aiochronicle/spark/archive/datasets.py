"""Messages of a queue as the datasets of an archive: one for each type, and one for all others.

A row of ``type=Trade`` has the columns of every message and the fields of a Trade. Its payload is null if
the fields, encoded again, are the payload (payloads.py). A message without a known type, or one that cannot
be decoded, is in ``type=raw``, unchanged. So each message is in exactly one dataset, completely.
"""

import logging
from collections.abc import Iterator

import msgspec
import numpy as np

from aiochronicle._base.prepared import prepared
from aiochronicle._columns.column_reader import arrow_schema
from aiochronicle._columns.typed import TypedDecoder, arrow_type, column_names
from aiochronicle._typed.registry import RegisteredType
from aiochronicle._typed.schema_file import StoredType
from aiochronicle.errors import CorruptionError, SchemaError
from aiochronicle.spark.archive.names import RAW
from aiochronicle.spark.archive.payloads import PayloadMaker
from aiochronicle.spark.arrow import Batch, Column, pa, pc
from aiochronicle.spark.source.queues import Source
from aiochronicle.spark.source.typed import registry_of_source

__all__ = ["COLUMNS", "Datasets", "Typed", "fingerprint_of", "typed_of"]

COLUMNS = ("seq", "timestamp_ns", "timestamp", "type_id", "payload", "cause", "key", "headers")
_log = logging.getLogger(__name__)

TAKEN = ("source", "date", *COLUMNS)

_BEFORE, _AFTER = COLUMNS[:4], COLUMNS[4:]
_METADATA = b"aiochronicle.type"  # of a typed file: the type with which its rows were decoded

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


@prepared
class _Stored(StoredType, frozen=True, kw_only=True):
    """A type, as stored in the metadata of a file."""


def _storable(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column for files that all programs can read: Spark has no unsigned numbers."""
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(_storable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_storable(kind.key_type), _storable(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _storable(part.type)) for part in kind])
    return _WIDER.get(kind, kind)


class Typed:
    """How messages of one type are stored."""

    def __init__(self, entry: RegisteredType) -> None:
        self.name = "raw_" if entry.name == RAW else entry.name
        self.columns = column_names(entry.fields, entry.name, TAKEN)
        self._entry = entry
        types = {field.name: _storable(arrow_type(field)) for field in entry.fields}
        raw = arrow_schema(COLUMNS)
        self.schema = pa.schema(
            [
                *(raw.field(name) for name in _BEFORE),
                *(pa.field(self.columns[name], kind) for name, kind in types.items()),
                *(
                    raw.field(name).with_nullable(raw.field(name).nullable or name == "payload")
                    for name in _AFTER
                ),
            ],
            metadata={_METADATA: _described(entry)},
        )
        self._decoder = TypedDecoder(entry, types)
        self._maker = PayloadMaker(entry, self.columns)

    def split(self, batch: Batch, *, payload: bool) -> tuple[Batch, Column | None]:
        """Return messages of the type with their fields as columns, and their rows; None: all rows.

        Rows have their payload if it is wanted, or if encoding their fields does not give the same bytes.
        """
        fields, troubles, usual = self._decoder.decode_usual(batch.column("payload"))
        good: Column | None = None
        if troubles is not None:
            good = troubles.is_null()
            batch, usual = batch.filter(good), usual.filter(good)
            fields = {name: column.filter(good) for name, column in fields.items()}
        arrays = {name: batch.column(name) for name in COLUMNS}
        arrays |= {self.columns[name]: column for name, column in fields.items()}
        if not payload and batch.num_rows:
            typed = pa.record_batch([arrays[name] for name in self.schema.names], self.schema.names)
            same = self._are_same(typed, batch.column("payload"), usual)
            nothing = pa.scalar(None, pa.binary())
            arrays["payload"] = pc.if_else(same, nothing, batch.column("payload"))
        columns = [arrays[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), good

    def _are_same(self, typed: Batch, payloads: Column, usual: pa.BooleanArray) -> pa.BooleanArray:
        """Return for each row whether encoding its fields gives its payload; usual rows need no encoding."""
        if usual.true_count == len(usual):
            return usual
        if usual.true_count == 0:
            return self._maker.are_same(typed, payloads)
        others = pc.invert(usual)
        same = self._maker.are_same(typed.filter(others), payloads.filter(others))
        return pc.replace_with_mask(usual, others, same)

    def restored(self, batch: Batch) -> Batch:
        """Return rows of a typed file as the original messages, with their payloads."""
        kept = batch.column("payload")
        if kept.null_count:
            made = self._maker.make(batch)
            kept = made if kept.null_count == len(kept) else pc.coalesce(kept, made)
        if kept.null_count:
            row = kept.is_null().index(True).as_py()
            seq = batch.column("seq")[row]
            raise CorruptionError(f"the {self._entry.name} with seq {seq} cannot be encoded")
        arrays = [kept if name == "payload" else batch.column(name) for name in COLUMNS]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(COLUMNS))


def _described(entry: RegisteredType) -> bytes:
    record = entry.record
    parts = {name: getattr(record, name) for name in type(record).__struct_fields__}
    return msgspec.json.encode(
        StoredType(
            type_id=entry.type_id, format=entry.format, fingerprint=entry.fingerprint, **parts
        )
    )


def _stored_of(schema: pa.Schema) -> _Stored | None:
    metadata: dict[bytes, bytes] = schema.metadata or {}
    described = metadata.get(_METADATA)
    return None if described is None else msgspec.json.decode(described, type=_Stored)


def fingerprint_of(schema: pa.Schema) -> str | None:
    """Return the fingerprint of the type of a file's rows; None if they have no type."""
    stored = _stored_of(schema)
    return None if stored is None else stored.fingerprint


def typed_of(schema: pa.Schema) -> Typed | None:
    """Return how the messages of a file are stored; None if they are stored unchanged."""
    stored = _stored_of(schema)
    if stored is None:
        return None
    return Typed(RegisteredType(stored.type_id, stored.build(), stored.record))


def _types(source: Source) -> dict[int, Typed]:
    """Return the types of a queue; a damaged schema.json does not prevent archiving the messages."""
    try:
        return {entry.type_id: Typed(entry) for entry in registry_of_source(source) or ()}
    except SchemaError as error:
        _log.warning("%s is archived without types: %s", source.name, error)
        return {}


class Datasets:
    """The datasets for the messages of one queue; without a queue there are no types."""

    def __init__(self, source: Source | None, *, payload: bool) -> None:
        self._payload = payload
        self._types = {} if source is None else _types(source)

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the schema of each dataset."""
        typed = {one.name: one.schema.remove_metadata() for one in self._types.values()}
        return {RAW: arrow_schema(COLUMNS), **typed}

    def split(self, batch: Batch) -> Iterator[tuple[str, Batch, Batch]]:
        """Yield, for each dataset, its rows of a batch and the messages they represent."""
        if not self._types:
            yield RAW, batch, batch
            return
        type_ids = batch.column("type_id").to_numpy()
        is_raw = np.ones(batch.num_rows, np.bool_)
        for type_id in np.unique(type_ids).tolist():
            if (typed := self._types.get(type_id)) is None:
                continue
            places = np.flatnonzero(type_ids == type_id)
            messages = batch if len(places) == batch.num_rows else batch.take(pa.array(places))
            rows, good = typed.split(messages, payload=self._payload)
            if good is not None:
                messages = messages.filter(good)
                places = places[good.to_numpy(zero_copy_only=False)]
            is_raw[places] = False
            if rows.num_rows:
                yield typed.name, rows, messages
        if is_raw.any():
            raw = batch if is_raw.all() else batch.filter(pa.array(is_raw))
            yield RAW, raw, raw
