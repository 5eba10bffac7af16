"""Values of looked-up rows, read into the schema that the client knows, whatever schema they were written with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.formats import kernel
from fluss.formats.rows.python_rows import to_rows
from fluss.formats.rows.values import ValueCodec, ValueRows, is_readable, value_rows
from fluss.model.descriptor import KvFormat
from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.model.schema import Schema
from fluss.model.tables.options import KV_FORMAT

SCHEMAS_MAX = 10_000


class ValueReader:
    """Reads for one table. `learn` is for the I/O loop, the rest for any thread."""

    def __init__(self, admin: AdminCore, info: TableInfo) -> None:
        self._admin = admin
        self._info = info
        self._kv_format = info.properties.get(KV_FORMAT, KvFormat.COMPACTED).upper()
        self._schemas: dict[int, Schema] = {}
        self._rows: dict[int, ValueRows] = {}
        self._add(info.schema_id, info.schema)

    def unknown(self, values: Sequence[bytes | None]) -> list[int]:
        """Schemas of values that have to be learned before these are read."""
        return [schema_id for schema_id in kernel.schema_ids_of(values) if schema_id not in self._schemas]

    async def learn(self, schema_ids: list[int]) -> None:
        """Ask for schemas."""
        for schema_id in schema_ids:
            if len(self._schemas) >= SCHEMAS_MAX:
                raise FlussError(f"Table {self._info.table_path} has more than {SCHEMAS_MAX} schemas.")
            self._add(*await self._admin.get_table_schema(self._info.table_path, schema_id))

    def _add(self, schema_id: int, schema: Schema) -> None:
        if self._kv_format == KvFormat.COMPACTED and is_readable(schema):
            self._rows[schema_id] = value_rows(schema, self._info.schema)
        self._schemas[schema_id] = schema
        # Columns of the newest schema that this table's schema has, wherever they are.
        self._codec = ValueCodec(self._schemas, self._kv_format)
        places = {field_id: place for place, field_id in enumerate(self._codec.schema.field_ids)}
        self._wanted = [places[field_id] for field_id in self._info.schema.field_ids]

    def rows(self, values: list[bytes]) -> list[dict[str, Any]]:
        """One dict per value."""
        if len(self._rows) == len(self._schemas):
            try:
                return kernel.decode_values(values, self._rows)  # type: ignore[return-value]  # for no value is None
            except (OverflowError, ValueError):
                pass  # read through Arrow it fails with the column's name
        return to_rows(self.batch(values))

    def each(self, values: Sequence[bytes | None]) -> list[dict[str, Any] | FlussError | None]:
        """The row of each value, or why it can't be read; None stays None."""
        try:
            if len(self._rows) == len(self._schemas):
                return kernel.decode_values(values, self._rows)  # type: ignore[return-value]  # an invariant list
            rows = iter(self.rows([value for value in values if value is not None]))
            return [None if value is None else next(rows) for value in values]
        except (FlussError, OverflowError, ValueError):
            return [None if value is None else self._row(value) for value in values]

    def _row(self, value: bytes) -> dict[str, Any] | FlussError:
        try:
            return self.rows([value])[0]
        except FlussError as error:
            return error

    def batch(self, values: list[bytes]) -> pa.RecordBatch:
        """The rows of values as a batch of the table's columns."""
        return self._codec.decode(values).select(self._wanted)

    async def decode(self, values: list[bytes]) -> pa.RecordBatch:
        """The same for the I/O loop: unknown schemas are asked for, and the work is done beside it."""
        unknown = self.unknown(values)
        if unknown:
            await self.learn(unknown)
        return await runtime.in_worker(self.batch, values)
