"""Lookups by primary key, or by the part of it that chooses the bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.client.cluster.cluster import Cluster
from fluss.client.lookup.pending import Lookup, LookupKeys, Part, Read, ValueReader, WaitingThread
from fluss.client.lookup.table_lookups import Lookups, TableLookups
from fluss.client.net.own_loop import PerLoop
from fluss.formats.arrow.payload import places_array
from fluss.formats.rows.keys import ICEBERG, PAIMON, KeyEncoder, primary_key_encoder
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.tables.options import DATALAKE_FORMAT, KV_FORMAT_VERSION, choice
from fluss.protocol.lookups import LookupKind

KEYS_PER_PART_MAX = 512
"""Of lookup_many: the rows of a part are decoded as one batch."""

KeyRow: TypeAlias = Mapping[str, Any] | Sequence[Any]


class ClientLookups(NamedTuple):
    """The lookups of one client, by the loop that they go over."""

    io: Lookups
    """On the I/O loop"""
    per_loop: PerLoop[Lookups]
    """On loops of callers"""


class _LookuperBase:
    """Encodes keys in the caller's thread and waits there, or in its loop."""

    def __init__(
        self, cluster: Cluster, lookups: ClientLookups, info: TableInfo, kind: LookupKind, keys: LookupKeys
    ) -> None:
        self._cluster = cluster
        self._lookups = lookups
        self._keys = keys
        self._kind = kind
        self._table_lookups = self._table_lookups_of(lookups.io, info)
        # These live as long as their lookupers keep them. Of loops the last one is kept: others may be closed by now.
        self._on_loop: tuple[asyncio.AbstractEventLoop, Lookups, TableLookups] | None = None
        self.info = info

    def _table_lookups_of(self, lookups: Lookups, info: TableInfo) -> TableLookups:
        return lookups.of_table(info, self._kind, lambda: ValueReader(AdminCore(self._cluster), info))

    def _begin(self, row: KeyRow, read: Read) -> asyncio.Future[Any]:
        self._cluster.check_usable()
        loop = asyncio.get_running_loop()
        on_loop = self._on_loop
        if on_loop is None or on_loop[0] is not loop:
            lookups = self._lookups.per_loop.here()
            on_loop = self._on_loop = (loop, lookups, self._table_lookups_of(lookups, self.info))
        _, lookups, table_lookups = on_loop
        partition, bucket, key = self._keys.place(row)
        future = loop.create_future()
        lookups.start((table_lookups, read, partition, bucket), key, future)
        return future

    def _look(self, row: KeyRow, read: Read) -> Any:
        runtime.check_may_block()
        self._cluster.check_usable()
        partition, bucket, key = self._keys.place(row)
        thread = WaitingThread()
        self._lookups.io.start((self._table_lookups, read, partition, bucket), key, thread)
        return thread.wait(self._table_lookups.timeout_s)


class LookuperCore(_LookuperBase):
    """Looks up rows by primary key."""

    def __init__(
        self, cluster: Cluster, lookups: ClientLookups, info: TableInfo, *, insert_if_not_exists: bool = False
    ) -> None:
        check_primary_key(info)
        if insert_if_not_exists:
            _check_insertable(info)
        kind = LookupKind.ROW_OR_INSERT if insert_if_not_exists else LookupKind.ROW
        encoder = primary_key_encoder(info.descriptor)
        super().__init__(
            cluster, lookups, info, kind, LookupKeys(info, cluster.config, info.primary_keys, encoder, "primary key")
        )
        self._keys_per_part: int = min(KEYS_PER_PART_MAX, cluster.config.lookup_max_batch_size)
        self._many_schema = pa.schema([field.with_nullable(True) for field in arrow_schema(info.schema)])

    def begin(self, key: KeyRow) -> asyncio.Future[dict[str, Any] | None]:
        """The row of a key, for the caller's running loop to await."""
        return self._begin(key, ValueReader.each)

    def lookup(self, key: KeyRow) -> dict[str, Any] | None:
        """The row of a key, in the calling thread."""
        row: dict[str, Any] | None = self._look(key, ValueReader.each)
        return row

    async def lookup_many(self, keys: Any) -> pa.Table:
        """A row for each key, in their order, on the I/O loop; all null where there is none."""
        self._cluster.check_usable()
        count, parts = await runtime.in_worker(self._keys.parts, keys, self._keys_per_part)
        found = await self._find(parts)
        return await runtime.in_worker(self._in_order, count, parts, found)

    def look_many(self, keys: Any) -> pa.Table:
        """The same, in the calling thread."""
        self._cluster.check_usable()
        count, parts = self._keys.parts(keys, self._keys_per_part)
        return self._in_order(count, parts, runtime.run(self._find(parts)))

    async def _find(self, parts: list[Part]) -> list[tuple[pa.RecordBatch, list[bool]]]:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Any]] = [loop.create_future() for _ in parts]
        self._lookups.io.send(
            [
                Lookup((self._table_lookups, _batch, part.partition, part.bucket), part.keys, [future])
                for part, future in zip(parts, futures, strict=True)
            ]
        )
        return await _all_of(futures)

    def _in_order(self, count: int, parts: list[Part], found: list[tuple[pa.RecordBatch, list[bool]]]) -> pa.Table:
        """Rows that were found, and nulls, in the order of the keys."""
        rows_at = np.full(count, -1, np.int64)
        row_count = 0
        for part, (batch, is_there) in zip(parts, found, strict=True):
            positions = part.positions[np.asarray(is_there, bool)]
            rows_at[positions] = np.arange(row_count, row_count + batch.num_rows)
            row_count += batch.num_rows
        batches = [
            pa.RecordBatch.from_arrays(batch.columns, schema=self._many_schema) for batch, _ in found if batch.num_rows
        ]
        rows = pa.Table.from_batches(batches, self._many_schema)
        return rows.take(places_array(rows_at))


class PrefixLookuperCore(_LookuperBase):
    """Looks up all rows whose key begins with the table's bucket key."""

    def __init__(self, cluster: Cluster, lookups: ClientLookups, info: TableInfo, columns: Sequence[str]) -> None:
        check_primary_key(info)
        names = list(columns)
        _check_prefix(info, names)
        self.columns = names
        by_name = {column.name: column for column in info.schema.columns}
        encoder = KeyEncoder([by_name[name] for name in info.get_bucket_keys()])
        super().__init__(
            cluster, lookups, info, LookupKind.PREFIX, LookupKeys(info, cluster.config, names, encoder, "prefix")
        )

    def begin(self, prefix: KeyRow) -> asyncio.Future[list[dict[str, Any]]]:
        """The rows of a prefix, for the caller's running loop to await."""
        return self._begin(prefix, _rows)

    def lookup(self, prefix: KeyRow) -> list[dict[str, Any]]:
        """The rows of a prefix, in the calling thread."""
        rows: list[dict[str, Any]] = self._look(prefix, _rows)
        return rows

    def begin_arrow(self, prefix: KeyRow) -> asyncio.Future[pa.Table]:
        """The rows of a prefix as Arrow, for the caller's running loop to await."""
        return self._begin(prefix, _table)

    def lookup_arrow(self, prefix: KeyRow) -> pa.Table:
        """The rows of a prefix as Arrow, in the calling thread."""
        return self._look(prefix, _table)


# ---- results: what a caller gets for what the server has ----


def _batch(reader: ValueReader, found: Sequence[bytes | None]) -> Sequence[Any]:
    """One caller's result: rows of the keys that have one, and which those are."""

    def read(values: Sequence[bytes | None]) -> tuple[pa.RecordBatch, list[bool]]:
        return reader.batch([value for value in values if value is not None]), [value is not None for value in values]

    return [_or_error(read, found)]


def _rows(reader: ValueReader, found: Sequence[list[bytes]]) -> Sequence[Any]:
    return [_or_error(reader.rows, values) for values in found]


def _table(reader: ValueReader, found: Sequence[list[bytes]]) -> Sequence[Any]:
    return [_or_error(lambda values: pa.Table.from_batches([reader.batch(values)]), values) for values in found]


def _or_error(read: Callable[[Any], Any], values: Sequence[Any]) -> Any:
    try:
        return read(values)
    except FlussError as error:
        return error


async def _all_of(futures: list[asyncio.Future[Any]]) -> list[Any]:
    """The results of lookups in order; when one fails, or the caller leaves, nobody waits for the others."""
    try:
        return await asyncio.gather(*futures)
    finally:
        for future in futures:
            future.cancel()


# ---- rules ----


def check_primary_key(info: TableInfo) -> None:
    """Raise for a log table."""
    if not info.has_primary_key():
        raise InvalidRequestError(
            f"Table {info.table_path} is a log table: it has no primary key to look rows up by. Read it with a scan."
        )


def _check_insertable(info: TableInfo) -> None:
    filled = {*info.primary_keys, *info.schema.get_auto_increment_columns()}
    for column in info.schema.columns:
        if column.name not in filled and not column.data_type.nullable:
            raise InvalidRequestError(
                f"Lookups can't insert into table {info.table_path}: column {column.name!r} is NOT NULL, and a row "
                "inserted by a lookup has just its key and numbered columns."
            )


def _check_prefix(info: TableInfo, names: list[str]) -> None:
    """Raise unless the columns are the partition columns and the bucket key, and that is where the key begins."""
    known = info.schema.column_names
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidRequestError(
            f"Unknown column name {unknown[0]!r} in a prefix lookup; the columns of table {info.table_path} are "
            f"{', '.join(known)}."
        )
    bucket_keys, physical = info.get_bucket_keys(), info.physical_primary_keys
    refused = f"No prefix lookup by {', '.join(names) or 'nothing'} in table {info.table_path}: "
    if bucket_keys == physical or not bucket_keys:
        raise InvalidRequestError(
            f"{refused}its bucket key is the whole primary key ({', '.join(physical)}). Look up by primary key, or "
            "create the table with a bucket key that the primary key begins with."
        )
    if physical[: len(bucket_keys)] != bucket_keys:
        raise InvalidRequestError(
            f"{refused}its primary key ({', '.join(physical)}) does not begin with its bucket key "
            f"({', '.join(bucket_keys)})."
        )
    missing = [name for name in info.partition_keys if name not in names]
    if (
        missing
        or [name for name in names if name not in info.partition_keys] != bucket_keys
        or len(set(names)) != len(names)
    ):
        expected = ", ".join([*info.partition_keys, *bucket_keys])
        raise InvalidRequestError(
            f"{refused}the prefix has to be {expected}: the partition fields, then the bucket keys in their order."
        )
    version = int(info.properties.get(KV_FORMAT_VERSION, "1"))
    if choice(info.properties, DATALAKE_FORMAT) in (PAIMON, ICEBERG) and version < 2:
        raise InvalidRequestError(
            f"{refused}its keys are encoded as those of its lake format (table.kv.format-version is {version}), which "
            "have no prefixes."
        )
