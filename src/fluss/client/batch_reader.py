"""Log batches into Arrow batches of the columns wanted, whatever schema they were written with."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from fluss.client.admin import AdminCore
from fluss.client.cursor import Cursor
from fluss.client.fetched import FetchedBatch
from fluss.formats.arrow_payload import decode_changes
from fluss.formats.log_batch import BatchHeader, verify_crc
from fluss.model.arrow_types import arrow_schema
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.infos import TableInfo
from fluss.model.schema import Schema

SCHEMAS_MAX = 10_000


class Part(NamedTuple):
    """One log batch of an answer, not decoded yet."""

    cursor: Cursor
    records: memoryview
    position: int
    header: BatchHeader


class _Plan(NamedTuple):
    """How batches of one schema id are read."""

    on_wire: pa.Schema
    sources: tuple[int | None, ...]
    """For each wanted column its place on the wire, None where the writer did not know it."""


class BatchReader:
    """Decodes for one table and projection. `decode` may run on any thread."""

    def __init__(self, admin: AdminCore, info: TableInfo, projection: list[int] | None) -> None:
        self._admin = admin
        self._info = info
        full = arrow_schema(info.schema)
        self._wanted = list(range(len(full))) if projection is None else list(projection)
        self.schema: pa.Schema = pa.schema([full.field(index) for index in self._wanted])
        fields = sorted(set(self._wanted))
        # The server does not renew checksums when it leaves columns out, so a full read is read in full.
        self.pushed_fields: list[int] | None = None if len(fields) == len(full) else fields
        self._plans: dict[int, _Plan] = {info.schema_id: self._plan(info.schema)}

    async def learn(self, parts: list[Part]) -> None:
        """Ask for the schemas that batches name and that are not known yet."""
        for schema_id in {part.header.schema_id for part in parts} - self._plans.keys():
            if len(self._plans) >= SCHEMAS_MAX:
                raise FlussError(f"Table {self._info.table_path} has more than {SCHEMAS_MAX} schemas.")
            _, schema = await self._admin.get_table_schema(self._info.table_path, schema_id)
            self._plans[schema_id] = self._plan(schema)

    def _plan(self, written: Schema) -> _Plan:
        columns = arrow_schema(written)
        if self.pushed_fields is not None:
            columns = pa.schema([columns.field(index) for index in self.pushed_fields if index < len(columns)])
        places = {name: place for place, name in enumerate(columns.names)}
        return _Plan(columns, tuple(places.get(name) for name in self.schema.names))

    def decode(self, parts: list[Part]) -> list[tuple[Part, FetchedBatch | FlussError | None]]:
        """Each part's rows from its cursor's offset on, None for none, or what is wrong with it."""
        results: list[tuple[Part, FetchedBatch | FlussError | None]] = []
        for part in parts:
            try:
                results.append((part, self._decode(part)))
            except FlussError as error:
                results.append((part, self._named(part, error)))
            except Exception as error:  # no batch may be passed over in silence
                results.append((part, self._named(part, FlussError(f"unexpected failure: {error!r}"))))
        return results

    def _named(self, part: Part, error: FlussError) -> FlussError:
        place = f"bucket {part.cursor.bucket.bucket} of table {self._info.table_path}, offset {part.header.base_offset}"
        return type(error)(f"Can't read {place}: {error.message}", error.error_code)

    def _decode(self, part: Part) -> FetchedBatch | None:
        cursor, records, position, header = part
        if self.pushed_fields is None:
            verify_crc(records, position, header)
        skipped = max(0, cursor.start_offset - header.base_offset)
        end = header.next_offset if cursor.stop_offset is None else min(header.next_offset, cursor.stop_offset)
        count = end - header.base_offset - skipped
        if header.record_count == 0 or count <= 0:
            return None
        plan = self._plans.get(header.schema_id)
        if plan is None:
            raise FlussError(f"schema {header.schema_id} is not known", ErrorCode.SCHEMA_NOT_EXIST)
        change_types, on_wire = decode_changes(records, position, header, plan.on_wire)
        fetched = FetchedBatch(
            self._conform(plan, on_wire),
            cursor.bucket,
            header.base_offset,
            header.last_offset,
            header.commit_timestamp_ms,
            change_types,
        )
        return fetched.slice(skipped, count)

    def _conform(self, plan: _Plan, on_wire: pa.RecordBatch) -> pa.RecordBatch:
        if plan.on_wire == self.schema:
            return on_wire
        arrays = [
            pa.nulls(on_wire.num_rows, field.type) if place is None else on_wire.column(place)
            for place, field in zip(plan.sources, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
