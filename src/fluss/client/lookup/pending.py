"""Pending lookups: keys made of Python rows and Arrow data, the callers that wait, and stored values read for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.client.write.routing import row_numbers, split_by_index
from fluss.doors import clock, threads
from fluss.formats import kernel
from fluss.formats.arrow.cast import ArrowCaster
from fluss.formats.arrow.payload import numbers_of
from fluss.formats.rows.keys import BucketHash, KeyEncoder, PrimaryKeyEncoder, assigner_for, partition_names, value_text
from fluss.formats.rows.python_rows import RowBuilder, to_rows
from fluss.formats.rows.specs import LAYOUT_KEY, kind_of, spec_of
from fluss.formats.rows.values import ValueCodec, ValueRows, is_readable, value_rows
from fluss.model.config import Config
from fluss.model.descriptor import KvFormat
from fluss.model.errors import FlussError, SchemaMismatchError, TimeoutError
from fluss.model.infos import TableInfo
from fluss.model.schema import Column, Schema
from fluss.model.tables.options import DATALAKE_FORMAT, KV_FORMAT, choice
from fluss.model.types import TypeRoot

_TEXTS_REMEMBERED_MAX = 1_000
_PLAIN_TEXT = (TypeRoot.STRING, TypeRoot.CHAR)
_PLAIN_NUMBER = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT)
_NO_LAKE = (None, "LANCE")


KeyPlace: TypeAlias = tuple[str | None, int, bytes]
"""(partition name or None, bucket, key)"""


class Part(NamedTuple):
    """Keys of one bucket, and where they stood in the input."""

    partition: str | None
    bucket: int
    keys: list[bytes]
    positions: np.ndarray[Any, np.dtype[np.int64]]


class LookupKeys:
    """Encodes keys of given columns of a table: its partition columns and those that `encoder` takes."""

    def __init__(
        self, info: TableInfo, config: Config, names: Sequence[str], encoder: PrimaryKeyEncoder, what: str
    ) -> None:
        by_name = {column.name: column for column in info.schema.columns}
        self._what = what
        self._names = list(names)
        columns = [by_name[name] for name in names]
        self._schema = Schema.of(columns)
        self._appender = kernel.RowAppender(self._names, [kind_of(column.data_type) for column in columns])
        self._partition_columns = [by_name[name] for name in info.partition_keys]
        self._partition_places = [self._names.index(name) for name in info.partition_keys]
        self._texts: dict[Any, str] = {}
        self._encoder = encoder
        self._key = _Columns(self._names, [column for column in columns if column not in self._partition_columns])
        bucket_keys = [by_name[name] for name in info.get_bucket_keys() or info.physical_primary_keys]
        self._bucket = _Columns(self._names, bucket_keys)
        self._bucket_count = info.num_buckets
        lake_format = info.properties.get(DATALAKE_FORMAT)
        lake_format = lake_format and lake_format.upper()
        variant = BucketHash(config.bucket_hash)
        self._sign_extend = variant is BucketHash.JAVA
        self._assigner = assigner_for(bucket_keys, info.num_buckets, lake_format, variant)
        self._is_plain = isinstance(encoder, KeyEncoder) and lake_format in _NO_LAKE
        self._lock = threads.lock()
        self._builder = RowBuilder(self._schema)
        self._caster = ArrowCaster(self._schema)

    def place(self, row: Mapping[str, Any] | Sequence[Any]) -> KeyPlace:
        """The place of one key: a dict by column name, or a list or tuple in column order. For any thread."""
        try:
            values = self._appender.convert(row)
        except SchemaMismatchError as error:
            raise self._explained(row, error) from error
        partition = self._partition_name(row, values) if self._partition_places else None
        if not self._is_plain:
            return self._place_by_batch(row, partition)
        key = self._key.encode(values)
        if self._bucket_count == 1:
            return partition, 0, key
        bucket_key = key if self._bucket.places == self._key.places else self._bucket.encode(values)
        return partition, kernel.bucket_of(bucket_key, self._bucket_count, self._sign_extend), key

    def _place_by_batch(self, row: Any, partition: str | None) -> KeyPlace:
        """Keys of lake formats are encoded in batches only."""
        with self._lock:
            self._builder.append(row)
            batch = self._builder.build()
        return partition, self._assigner.assign(batch)[0].as_py(), self._encoder.encode(batch)[0].as_py()

    def _partition_name(self, row: Any, values: list[Any]) -> str:
        texts = []
        for column, place in zip(self._partition_columns, self._partition_places, strict=True):
            value = values[place]
            root = column.data_type.root
            if root in _PLAIN_TEXT:
                texts.append(value)
            elif root in _PLAIN_NUMBER:
                texts.append(str(value))
            else:
                texts.append(self._text(column, value, row[column.name] if isinstance(row, Mapping) else row[place]))
        return "$".join(texts)

    def _text(self, column: Column, physical: Any, value: Any) -> str:
        """Texts of other types take a while to make, and a table has few partitions."""
        text = self._texts.get((column.name, physical))
        if text is None:
            if len(self._texts) >= _TEXTS_REMEMBERED_MAX:
                self._texts.clear()
            text = self._texts[column.name, physical] = value_text(column.data_type, value)
        return text

    def _explained(self, row: Any, error: SchemaMismatchError) -> SchemaMismatchError:
        """What is wrong with a key, in the words of keys."""
        named = ", ".join(self._names)
        if isinstance(row, Mapping):
            surplus = next((name for name in row if name not in self._names), None)
            if surplus is not None:
                return SchemaMismatchError(f"{surplus!r} is not part of the {self._what}, which is {named}.")
            missing = next((name for name in self._names if name not in row), None)
            if missing is not None:
                return SchemaMismatchError(f"Column {missing!r} of the {self._what} ({named}) is missing.")
        return SchemaMismatchError(f"The {self._what} is {named}: {error.message}")

    def parts(self, keys: Any, keys_max: int) -> tuple[int, list[Part]]:
        """How many keys there are, and all of them by bucket, in parts of at most `keys_max`."""
        batch = self._batch(keys)
        parts: list[Part] = []
        for partition, rows in self._by_partition(_with_positions(batch)):
            for bucket, piece in split_by_index(rows, self._assigner.assign(rows)) if rows.num_rows else ():
                positions = numbers_of(piece.column(batch.num_columns))
                encoded: list[bytes] = self._encoder.encode(piece).to_pylist()
                for start in range(0, len(encoded), keys_max):
                    end = start + keys_max
                    parts.append(Part(partition, bucket, encoded[start:end], positions[start:end]))
        return batch.num_rows, parts

    def _by_partition(self, rows: pa.RecordBatch) -> list[tuple[str | None, pa.RecordBatch]]:
        if not self._partition_columns:
            return [(None, rows)]
        indexes, names = partition_names(rows, self._partition_columns)
        return [(names[index], part) for index, part in split_by_index(rows, indexes)]

    def _batch(self, keys: Any) -> pa.RecordBatch:
        if isinstance(keys, (list, tuple)):
            builder = RowBuilder(self._schema)
            for row in keys:
                try:
                    builder.append(row)
                except SchemaMismatchError as error:
                    raise self._explained(row, error) from error
            return builder.build()
        try:
            batches = list(self._caster.cast_all(keys))
        except SchemaMismatchError as error:
            raise SchemaMismatchError(
                f"The {self._what} is {', '.join(self._names)}, as a list of dicts, lists or tuples, or as Arrow data: "
                f"{error.message}"
            ) from error
        return pa.concat_batches(batches) if batches else RowBuilder(self._schema).build()


class _Columns:
    """Some of a lookup's columns as a compacted key."""

    __slots__ = ("_is_all", "_names", "_specs", "places")

    def __init__(self, names: Sequence[str], columns: Sequence[Column]) -> None:
        self._names = [column.name for column in columns]
        self._specs = [spec_of(column.data_type, LAYOUT_KEY) for column in columns]
        self.places = [names.index(column.name) for column in columns]
        self._is_all = self.places == list(range(len(names)))

    def encode(self, values: Sequence[Any]) -> bytes:
        if not self._is_all:
            values = [values[place] for place in self.places]
        return kernel.encode_values(self._names, self._specs, values, False)


def _with_positions(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, row_numbers(batch.num_rows)], names=[*batch.schema.names, ""])


SCHEMAS_MAX = 10_000


class ValueReader:
    """Reads for one table. `learn` is for the I/O loop, the rest for any thread."""

    def __init__(self, admin: AdminCore, info: TableInfo) -> None:
        self._admin = admin
        self._info = info
        self._kv_format = choice(info.properties, KV_FORMAT)
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


# The queue ends a lookup at its deadline; this is for a process whose I/O thread has ended.
GRACE_S = 5.0

Read: TypeAlias = Callable[[ValueReader, Sequence[Any]], Sequence[Any]]
"""Makes a result for each caller of what the server has for their keys; an error is one, too"""


class LookupQueue(Protocol):
    """The queue in which lookups of one table and kind wait for their leaders."""

    info: TableInfo
    timeout_s: float

    def add(self, lookups: Iterable[Lookup]) -> None: ...
    def close(self) -> None: ...


Place: TypeAlias = "tuple[LookupQueue, Read, str | None, int]"
"""What lookups have in common that travel as one: queue, what is made of the answer, partition, bucket"""


class Caller(Protocol):
    """The caller that waits for a lookup: a future of the loop, or a thread."""

    def cancelled(self) -> bool: ...
    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class WaitingThread:
    """A thread that waits for a lookup, told once."""

    __slots__ = ("_error", "_gate", "_result")

    def __init__(self) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._gate = threads.lock()
        self._gate.acquire()

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        self._result = result
        self._gate.release()

    def set_exception(self, exception: BaseException) -> None:
        self._error = exception
        self._gate.release()

    def wait(self, timeout_s: float) -> Any:
        """Wait in the calling thread."""
        if not self._gate.acquire(timeout=timeout_s + GRACE_S):
            raise TimeoutError("The lookup was not answered in time.")
        if self._error is not None:
            raise self._error
        return self._result


class Lookup:
    """Keys of one bucket, and those who look them up: each one of them, or one all of them."""

    __slots__ = (
        "attempts",
        "bucket",
        "callers",
        "deadline",
        "error",
        "is_ended",
        "keys",
        "partition",
        "partition_id",
        "queue",
        "read",
        "results",
    )

    def __init__(self, place: Place, keys: list[bytes], callers: list[Caller]) -> None:
        self.queue, self.read, self.partition, self.bucket = place
        self.partition_id: int | None = None
        self.keys = keys
        self.callers = callers
        self.deadline = clock.monotonic() + self.queue.timeout_s
        self.attempts = 0
        self.results: Sequence[Any] = ()
        self.error: FlussError | None = None
        self.is_ended = False

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(caller.cancelled() for caller in self.callers)

    @property
    def is_divisible(self) -> bool:
        return len(self.callers) > 1

    def split(self, count: int) -> tuple[Lookup, Lookup]:
        """The first so many callers, and the others."""
        return self._part(slice(count)), self._part(slice(count, None))

    def _part(self, which: slice) -> Lookup:
        part = Lookup((self.queue, self.read, self.partition, self.bucket), self.keys[which], self.callers[which])
        part.partition_id, part.deadline, part.attempts = self.partition_id, self.deadline, self.attempts
        return part

    def resolve(self) -> None:
        """Tell the callers; on their loop, or anywhere if they are threads."""
        if self.is_abandoned:
            return  # it may have been given up without an answer
        if self.error is not None:
            for caller in self.callers:
                if not caller.done():
                    caller.set_exception(_own(self.error))
            return
        for caller, result in zip(self.callers, self.results, strict=True):
            if caller.done():
                continue
            if isinstance(result, FlussError):
                caller.set_exception(self._unreadable(result))
            else:
                caller.set_result(result)

    def _unreadable(self, error: FlussError) -> FlussError:
        place = f"bucket {self.bucket} of table {self.queue.info.table_path}"
        return type(error)(f"Can't read a row of {place}: {error.message}", error.error_code)


def _own(error: FlussError) -> FlussError:
    """One exception per caller: a traceback grows with every raise of the same object."""
    own = type(error)(error.message, error.error_code)
    own.__cause__ = error.__cause__
    return own
